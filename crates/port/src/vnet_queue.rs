//! A [`Port`] over a Linux descriptor that reads and writes frames with a virtio-net header: a TAP's or a packet socket's.

use crate::vnet::{VNET_HEADER_LEN, decode, encode};
use crate::{Batch, Capabilities, DropCause, Lent, PacketBuf, Port, Stats, Wait, lent};
use rustix::io::{Errno, readv};
use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A call reads at most this many frames, good ones and bad ones, so that good frames do not wait for many bad ones.
const READS_MAX: usize = 256;

/// One queue of an interface, with a descriptor of its own.
///
/// `commit` gives a frame to the kernel at once, while it is in the cache; waiting gains nothing, because each frame
/// needs its own system call. Make batches with [`Batch::new`]: a frame that fills its buffer to the last byte counts
/// as too long, because the kernel cuts frames without an error.
#[derive(Debug)]
pub struct VnetQueue {
    fd: OwnedFd,
    capabilities: Capabilities,
    index: u16,
    /// Most frames that the kernel keeps for this queue; `usize::MAX`: not known.
    frames_most: usize,
    outgoing: PacketBuf,
    state: Outgoing,
    failure: Option<Errno>,
    stats: Stats,
    /// Returns the number of new overruns: see [`VnetQueue::with_overruns`].
    ask_overruns: Option<fn(BorrowedFd<'_>) -> u64>,
    overruns: Cell<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outgoing {
    Free,
    Reserved,
    /// The frame is committed, but the kernel had no room.
    Pending,
}

impl VnetQueue {
    /// A queue over `fd`, which must be non-blocking and have a virtio-net header in front of every frame.
    #[must_use]
    pub fn new(fd: OwnedFd, capabilities: Capabilities, index: u16) -> Self {
        let outgoing = PacketBuf::with_capacity(capabilities.frame_max);
        Self {
            fd,
            capabilities: Capabilities { gathers: true, ..capabilities },
            index,
            frames_most: usize::MAX,
            outgoing,
            state: Outgoing::Free,
            failure: None,
            stats: Stats::default(),
            ask_overruns: None,
            overruns: Cell::new(0),
        }
    }

    /// Says that the kernel keeps at most so many frames for this queue.
    #[must_use]
    pub fn with_frames_most(self, frames_most: usize) -> Self {
        Self { frames_most, ..self }
    }

    /// Sets the function that counts overruns: frames that the kernel dropped because the descriptor's buffer was full, since the
    /// function was last called. [`Port::stats`] calls it.
    #[must_use]
    pub fn with_overruns(self, ask: fn(BorrowedFd<'_>) -> u64) -> Self {
        Self { ask_overruns: Some(ask), ..self }
    }

    /// The counters, for a caller that also receives from the same descriptor in another way.
    pub fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// Index of this queue in the interface, from 0.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Tries to give the committed frame, with `payload` at its end, to the kernel. If the kernel has no room, the frame stays pending,
    /// together with its payload.
    fn transmit(&mut self, payload: Lent<'_>) {
        let header = encode(&self.outgoing.meta);
        self.stats.system_calls += 1;
        let result = lent::write(&self.fd, [&header, self.outgoing.frame()], payload);
        self.state = Outgoing::Free;
        match result {
            Ok(_) => self.stats.count_sent(self.outgoing.len() + payload.len()),
            Err(Errno::AGAIN | Errno::INTR) if self.outgoing.append(payload) => {
                self.state = Outgoing::Pending;
            }
            Err(error) => {
                self.stats.drops.count(DropCause::Device);
                self.note_failure(error);
            }
        }
    }

    /// Notes an error of the descriptor that means that the interface is gone; other errors (link down, no memory) are temporary.
    pub fn note_failure(&mut self, error: Errno) {
        if matches!(error, Errno::BADFD | Errno::NODEV | Errno::BADF | Errno::NXIO) {
            self.failure = Some(error);
        }
    }
}

impl Port for VnetQueue {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn waiting_most(&self) -> usize {
        self.frames_most
    }

    fn receive(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        for _ in 0..READS_MAX {
            let Some(slot) = batch.slot() else { break };
            let mut header = [0; VNET_HEADER_LEN];
            let capacity = slot.capacity();
            let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(slot.storage_mut())];
            self.stats.system_calls += 1;
            let len = match readv(&self.fd, &mut parts) {
                Ok(len) => len.saturating_sub(VNET_HEADER_LEN),
                Err(Errno::INTR) => continue,
                // A packet socket has received a frame with an offload that the virtio-net header cannot express.
                Err(Errno::INVAL) => {
                    self.stats.drops.count(DropCause::Malformed);
                    continue;
                }
                Err(error) => {
                    self.note_failure(error);
                    break;
                }
            };
            if len >= capacity {
                self.stats.drops.count(DropCause::Oversized);
                continue;
            }
            slot.set_len(len);
            match decode(&header, slot.frame()) {
                Some(meta) => {
                    slot.meta = meta;
                    self.stats.count_received(len);
                    batch.push_slot();
                }
                None => self.stats.drops.count(DropCause::Malformed),
            }
        }
        batch.len()
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.flush();
        if self.state == Outgoing::Pending {
            self.stats.sent_full += 1;
            return None;
        }
        self.state = Outgoing::Reserved;
        self.outgoing.clear();
        Some(&mut self.outgoing)
    }

    fn commit_with(&mut self, payload: Lent<'_>) {
        if self.state != Outgoing::Reserved {
            return;
        }
        if self.capabilities.admits_with(&self.outgoing, payload.len()) {
            self.transmit(payload);
        } else {
            self.state = Outgoing::Free;
            self.stats.drops.count(DropCause::Unsendable);
        }
    }

    fn flush(&mut self) {
        if self.state == Outgoing::Pending {
            self.transmit(Lent::NONE);
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    /// Needs no preparation: the kernel keeps the descriptor readable while frames wait.
    fn arm(&mut self) -> Wait {
        if self.state == Outgoing::Pending { Wait::ReadableOrWritable } else { Wait::Readable }
    }

    fn failure(&self) -> Option<io::Error> {
        self.failure.map(io::Error::from)
    }

    fn stats(&self) -> Stats {
        let new = self.ask_overruns.map_or(0, |ask| ask(self.fd.as_fd()));
        self.overruns.set(self.overruns.get() + new);
        let mut stats = self.stats;
        stats.drops.add(DropCause::Overrun, self.overruns.get());
        stats
    }
}
