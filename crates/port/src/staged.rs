//! A buffer in front of another port's, for wrappers that must see a frame before the port takes it.

use crate::{Lent, PacketBuf, Port};

/// One frame to be sent, between the caller and a wrapped port that is known to have room for it.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    buf: PacketBuf,
    reserved: bool,
}

impl Staged {
    /// An empty buffer, when `inner` has room.
    pub(crate) fn reserve(&mut self, inner: &mut impl Port) -> Option<&mut PacketBuf> {
        self.reserved = inner.reserve().is_some();
        self.buf.clear();
        self.reserved.then_some(&mut self.buf)
    }

    /// Shows the frame, of which `payload` is the end, to `look`, then gives it to `inner`.
    pub(crate) fn commit(&mut self, payload: Lent<'_>, inner: &mut impl Port, look: impl FnOnce(&PacketBuf)) {
        if !std::mem::take(&mut self.reserved) {
            return;
        }
        // A frame that does not fit leaves the buffer empty, which the port counts as unsendable.
        let _ = self.buf.append(payload);
        look(&self.buf);
        if let Some(buf) = inner.reserve() {
            let _ = buf.copy_from(&self.buf);
            inner.commit();
        }
    }
}
