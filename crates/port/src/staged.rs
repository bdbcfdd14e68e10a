//! A buffer before another port's buffer, for wrappers that must see a frame before the port takes it.

use crate::{Lent, PacketBuf, Port};

/// A frame to send, between the caller and a wrapped port that has room for it.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    buf: PacketBuf,
    reserved: bool,
}

impl Staged {
    /// Returns an empty buffer if `inner` has room.
    pub(crate) fn reserve(&mut self, inner: &mut impl Port) -> Option<&mut PacketBuf> {
        self.reserved = inner.reserve().is_some();
        self.buf.clear();
        self.reserved.then_some(&mut self.buf)
    }

    /// Appends `payload` to the frame, shows it to `look`, then gives it to `inner`.
    pub(crate) fn commit(&mut self, payload: Lent<'_>, inner: &mut impl Port, look: impl FnOnce(&PacketBuf)) {
        if !std::mem::take(&mut self.reserved) {
            return;
        }
        // A frame that does not fit leaves the buffer empty; the port counts that as unsendable.
        let _ = self.buf.append(payload);
        look(&self.buf);
        if let Some(buf) = inner.reserve() {
            let _ = buf.copy_from(&self.buf);
            inner.commit();
        }
    }
}
