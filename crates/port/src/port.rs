//! The trait every backend implements and every wrapper implements around another.

use crate::{Batch, Capabilities, Lent, PacketBuf, Stats};
use base::Instant;
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
    fn stats(&self) -> Stats {
        (**self).stats()
    }
}
