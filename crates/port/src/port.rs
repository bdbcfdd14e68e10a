//! The trait that every backend implements, and every wrapper around a port.

use crate::{Batch, Capabilities, Lent, PacketBuf, Stats, Ticket};
use base::Instant;
use std::io;
use std::os::fd::BorrowedFd;

/// What a core must wait for before it polls the port again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Nothing: there is work already, or the port can only be polled.
    Not,
    /// The wait descriptor must become readable.
    Readable,
    /// The wait descriptor must become readable or writable: the last `reserve` had no room.
    ReadableOrWritable,
}

/// What is to be done with a frame that waits, before its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// It is received now.
    Take,
    /// It waits for its turn, and is not looked at again.
    Leave,
    /// It stays, and the next look begins with it: it would be taken, but enough of its kind were.
    Later,
}

/// One queue of a network interface, used by one fast-path core. No method blocks.
///
/// To send, write the frame directly into the port's own buffer:
///
/// ```text
/// let Some(buf) = port.reserve() else { /* full: keep the work, try in the next round */ };
/// buf.storage_mut()[..n] = ...; buf.set_len(n); buf.meta = ...;
/// port.commit();
/// ...
/// port.flush();            // once per round
/// ```
///
/// To sleep, call `arm`; on [`Wait::Not`] continue polling, otherwise sleep on `wait_fd`; then call `disarm` and poll.
pub trait Port: Send {
    /// The capabilities of the port; constant.
    fn capabilities(&self) -> Capabilities;

    /// Empties `batch`, fills it with received packets, and returns their number. The port may exchange its own buffers for
    /// those of the batch.
    fn receive(&mut self, batch: &mut Batch) -> usize;

    /// As [`receive`](Self::receive), but of a long frame with a trusted checksum the port may give only the beginning, with a
    /// [ticket](PacketBuf::ticket): a caller that knows the final place of the payload saves one copy with [`take`](Self::take). A ticket
    /// is valid until the next `receive` or `receive_heads`, and until the ticket of a later frame is used.
    fn receive_heads(&mut self, batch: &mut Batch) -> usize {
        self.receive(batch)
    }

    /// Empties `batch` and fills it with those of the waiting frames, also of frames behind many others, of which `look` says [`Look::Take`] when it
    /// sees the frame's bytes, or their beginning. The other frames keep their order. A call begins with the first frame that the call before has put
    /// off, or not seen, so it costs little when nothing new has come. A port that cannot look at its frames before it takes them, as a TAP interface,
    /// gives none.
    fn receive_ahead(&mut self, batch: &mut Batch, look: &mut dyn FnMut(&[u8]) -> Look) -> usize {
        let _ = look;
        batch.clear();
        0
    }

    /// The most frames that can wait in this queue now: when so many more have come out of it, those that wait now have. `usize::MAX`: not
    /// known. May look at every frame.
    fn waiting_most(&self) -> usize {
        usize::MAX
    }

    /// Fills `into` with the bytes of that frame from offset `skip` on. False when the bytes are not available: the frame is lost.
    fn take(&mut self, frame: &[u8], ticket: Ticket, skip: usize, into: Lent<'_>) -> bool {
        let _ = (frame, ticket, skip, into);
        false
    }

    /// Reads the rest of an incomplete frame. False when it is not available: the frame is lost.
    fn complete(&mut self, packet: &mut PacketBuf) -> bool {
        packet.ticket().is_none()
    }

    /// An empty buffer for one frame to send; `None` when the port is full: keep the work, then flush or sleep.
    ///
    /// The buffer belongs to the port: fill it, do not exchange it. Without a `commit` the next `reserve` returns it
    /// again. Its capacity is at least [`Capabilities::frame_max`].
    fn reserve(&mut self) -> Option<&mut PacketBuf>;

    /// Sends the frame in the buffer that `reserve` returned, in order, at the latest by `flush`. A frame that needs
    /// an offload that the port lacks is dropped and counted. Without a reserved buffer, does nothing.
    #[inline]
    fn commit(&mut self) {
        self.commit_with(Lent::NONE);
    }

    /// As [`commit`](Self::commit), for a frame that ends with `payload`, which is not in the buffer. Saves a copy with
    /// [`Capabilities::gathers`]; other ports copy it.
    fn commit_with(&mut self, payload: Lent<'_>);

    /// Gives all committed frames to the device, as far as it takes them.
    fn flush(&mut self);

    /// The descriptor to sleep on, if the port has one.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Prepares to sleep: from now on the wait descriptor signals new packets, and room if `reserve` had none.
    fn arm(&mut self) -> Wait {
        Wait::Not
    }

    /// Ends the sleep: no signals are needed any more, and pending ones are cleared.
    fn disarm(&mut self) {}

    /// Gives the time to wrappers that need it, once per round; ports never read a clock.
    fn set_now(&mut self, _now: Instant) {}

    /// When the port must deliver or send something by itself (the fault injector holds packets back);
    /// [`Instant::NEVER`] when it only reacts.
    fn next_deadline(&self) -> Instant {
        Instant::NEVER
    }

    /// Why the port no longer works, for example because its interface was deleted. It does not recover; its descriptor stays readable,
    /// so do not sleep on it any more.
    fn failure(&self) -> Option<io::Error> {
        None
    }

    /// Counters since the port was opened.
    fn stats(&self) -> Stats;
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn receive(&mut self, batch: &mut Batch) -> usize {
        (**self).receive(batch)
    }
    fn receive_heads(&mut self, batch: &mut Batch) -> usize {
        (**self).receive_heads(batch)
    }
    fn receive_ahead(&mut self, batch: &mut Batch, look: &mut dyn FnMut(&[u8]) -> Look) -> usize {
        (**self).receive_ahead(batch, look)
    }
    fn waiting_most(&self) -> usize {
        (**self).waiting_most()
    }
    fn take(&mut self, frame: &[u8], ticket: Ticket, skip: usize, into: Lent<'_>) -> bool {
        (**self).take(frame, ticket, skip, into)
    }
    fn complete(&mut self, packet: &mut PacketBuf) -> bool {
        (**self).complete(packet)
    }
    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        (**self).reserve()
    }
    fn commit(&mut self) {
        (**self).commit();
    }
    fn commit_with(&mut self, payload: Lent<'_>) {
        (**self).commit_with(payload);
    }
    fn flush(&mut self) {
        (**self).flush();
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).wait_fd()
    }
    fn arm(&mut self) -> Wait {
        (**self).arm()
    }
    fn disarm(&mut self) {
        (**self).disarm();
    }
    fn set_now(&mut self, now: Instant) {
        (**self).set_now(now);
    }
    fn next_deadline(&self) -> Instant {
        (**self).next_deadline()
    }
    fn failure(&self) -> Option<io::Error> {
        (**self).failure()
    }
    fn stats(&self) -> Stats {
        (**self).stats()
    }
}
