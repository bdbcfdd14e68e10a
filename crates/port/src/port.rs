//! The trait every backend implements and every wrapper implements around another.

use crate::{Batch, Capabilities, Lent, PacketBuf, Stats, Ticket};
use base::Instant;
use std::io;
use std::os::fd::BorrowedFd;

/// What a core has to wait for before it looks at the port again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Nothing: there is work already, or the port can only be polled.
    Not,
    /// Until the wait descriptor is readable.
    Readable,
    /// Until the wait descriptor is readable or writable: `reserve` had no room last time.
    ReadableOrWritable,
}

/// One queue of a network interface, used by one fast-path core. Nothing here blocks.
///
/// Sending writes the frame straight into the port's own buffer:
///
/// ```text
/// let Some(buf) = port.reserve() else { /* full: keep the work, try in the next round */ };
/// buf.storage_mut()[..n] = ...; buf.set_len(n); buf.meta = ...;
/// port.commit();
/// ...
/// port.flush();            // once per round
/// ```
///
/// Sleeping: `arm`; on [`Wait::Not`] go on polling, else sleep on `wait_fd`; then `disarm` and poll.
pub trait Port: Send {
    /// What the port can do. Constant.
    fn capabilities(&self) -> Capabilities;

    /// Empties `batch`, fills it with packets that have come, and says how many. The port may exchange its own buffers for
    /// those of the batch.
    fn receive(&mut self, batch: &mut Batch) -> usize;

    /// The same, but a long frame whose checksum is not the receiver's business may come as its beginning alone, with a
    /// [ticket](PacketBuf::ticket): who knows where its payload belongs has it put there with one copy less. Tickets are good until the
    /// next `receive` or `receive_heads`, and until that of a later frame is used.
    fn receive_heads(&mut self, batch: &mut Batch) -> usize {
        self.receive(batch)
    }

    /// Fills `into` with the bytes of that frame from `skip` on. False when they are not to be had: the frame is lost.
    fn take(&mut self, frame: &[u8], ticket: Ticket, skip: usize, into: Lent<'_>) -> bool {
        let _ = (frame, ticket, skip, into);
        false
    }

    /// Brings the rest of a frame that came as its beginning. False when it is not to be had: the frame is lost.
    fn complete(&mut self, packet: &mut PacketBuf) -> bool {
        packet.ticket().is_none()
    }

    /// An empty buffer for one frame to send, or none when the port is full: keep the work, and flush or sleep.
    ///
    /// The buffer stays the port's: it is filled, not exchanged for another. Without a `commit` the next `reserve` gives it
    /// again. Its capacity is at least [`Capabilities::frame_max`].
    fn reserve(&mut self) -> Option<&mut PacketBuf>;

    /// The frame in the buffer that `reserve` gave is to be sent, in order, at the latest by `flush`. A frame that asks for
    /// an offload the port does not have is dropped and counted. Without a reserved buffer nothing happens.
    #[inline]
    fn commit(&mut self) {
        self.commit_with(Lent::NONE);
    }

    /// The same of a frame that ends with `payload`, which is not in the buffer: of use where [`Capabilities::gathers`], else the port
    /// copies it.
    fn commit_with(&mut self, payload: Lent<'_>);

    /// Everything committed goes to the device now, as far as it takes it.
    fn flush(&mut self);

    /// The descriptor to sleep on, if the port has one.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Prepares for sleep: from now on the wait descriptor signals new packets, and room when `reserve` found none.
    fn arm(&mut self) -> Wait {
        Wait::Not
    }

    /// The sleep is over: no signals are needed any more, and pending ones are taken back.
    fn disarm(&mut self) {}

    /// Tells the time to wrappers that want it. Once per round; ports never read a clock.
    fn set_now(&mut self, _now: Instant) {}

    /// When the port has something to deliver or send by itself (the fault injector holds packets back);
    /// [`Instant::NEVER`] when it only reacts.
    fn next_deadline(&self) -> Instant {
        Instant::NEVER
    }

    /// Why the port no longer works: somebody deleted its interface. It does not recover; its descriptor stays readable, so it is not to
    /// be slept on any more.
    fn failure(&self) -> Option<io::Error> {
        None
    }

    /// What the port has done since it was opened.
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
