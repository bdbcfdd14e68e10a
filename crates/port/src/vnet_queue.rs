//! A descriptor of Linux that takes and gives frames with a virtio-net header, a TAP's or a packet socket's, as a [`Port`].

use crate::vnet::{VNET_HEADER_LEN, decode, encode};
use crate::{Batch, Capabilities, DropCause, Lent, PacketBuf, Port, Stats, Wait, lent};
use rustix::io::{Errno, readv};
use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes after which a batch ends early, so that a batch of super-frames is still in the core's own cache (1 to 2 MiB on
/// today's servers, shared with everything else) when it is worked on. Each frame costs a system call of its own anyway.
const RECEIVE_BYTES_MAX: usize = 256 * 1024;

/// One queue of an interface, over a descriptor of its own.
///
/// A frame is given to the kernel at `commit`, while it is in the cache; there is nothing to gain by waiting, since each frame
/// takes its own system call. Batches should be made with [`Batch::new`]: a frame that fills its buffer to the last byte counts
/// as too long, since the kernel cuts silently.
#[derive(Debug)]
pub struct VnetQueue {
    fd: OwnedFd,
    capabilities: Capabilities,
    index: u16,
    outgoing: PacketBuf,
    state: Outgoing,
    failure: Option<Errno>,
    stats: Stats,
    /// See [`VnetQueue::with_overruns`].
    ask_overruns: Option<fn(BorrowedFd<'_>) -> u64>,
    overruns: Cell<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outgoing {
    Free,
    Reserved,
    /// Committed, but the kernel had no room.
    Pending,
}

impl VnetQueue {
    /// A queue over `fd`, which does not block and puts a header in front of every frame.
    #[must_use]
    pub fn new(fd: OwnedFd, capabilities: Capabilities, index: u16) -> Self {
        let outgoing = PacketBuf::with_capacity(capabilities.frame_max);
        Self {
            fd,
            capabilities: Capabilities { gathers: true, ..capabilities },
            index,
            outgoing,
            state: Outgoing::Free,
            failure: None,
            stats: Stats::default(),
            ask_overruns: None,
            overruns: Cell::new(0),
        }
    }

    /// The kernel drops what finds the descriptor's buffer full, and `ask` tells how many frames that were since it was last
    /// called: [`Port::stats`] calls it.
    #[must_use]
    pub fn with_overruns(self, ask: fn(BorrowedFd<'_>) -> u64) -> Self {
        Self { ask_overruns: Some(ask), ..self }
    }

    /// What was counted, for who receives from the same descriptor in another way.
    pub fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// Which queue of the interface this is, from 0.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Tries to hand the committed frame, of which `payload` is the end, to the kernel. It stays pending, with what it ends with, only
    /// when there is no room.
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

    /// What the descriptor has to say: the interface is gone for good; other errors (link down, no memory) pass.
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

    fn receive(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        let mut bytes = 0;
        while bytes < RECEIVE_BYTES_MAX {
            let Some(slot) = batch.slot() else { break };
            let mut header = [0; VNET_HEADER_LEN];
            let capacity = slot.capacity();
            let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(slot.storage_mut())];
            self.stats.system_calls += 1;
            let len = match readv(&self.fd, &mut parts) {
                Ok(len) => len.saturating_sub(VNET_HEADER_LEN),
                Err(Errno::INTR) => continue,
                // A packet socket has taken a frame with an offload that the header has no words for.
                Err(Errno::INVAL) => {
                    self.stats.drops.count(DropCause::Malformed);
                    continue;
                }
                Err(error) => {
                    self.note_failure(error);
                    break;
                }
            };
            bytes += len;
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

    /// The kernel keeps the descriptor readable while frames wait, so there is nothing to prepare.
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
