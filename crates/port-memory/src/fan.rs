//! A link in memory of which one end has several queues, steered by groups of flows. For tests and benchmarks of several cores. Loses no frame:
//! the end with one queue has no room while one of the links behind it has none.
//!
//! ```text
//!                     ┌── link 0 ──  port of core 0
//!   FanPort  ─table──┼── link 1 ──  port of core 1        frames to us go by the table, frames from us come in turn
//!                     └── link 2 ──  port of core 2
//! ```

use crate::link::{LinkOptions, MemoryPort, link};
use port::{Batch, Capabilities, DropCause, Lent, PacketBuf, Port, Stats, Steering, Table, Wait};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use wire::{Body, GROUPS, Packet, RxChecksum};

/// The end with one queue, which can only be polled.
pub struct FanPort {
    links: Box<[MemoryPort]>,
    table: Arc<[AtomicU8; GROUPS]>,
    /// The frame that is being made: which link gets it is known when it is complete.
    frame: PacketBuf,
    is_reserved: bool,
    /// The link that is received from next.
    next: usize,
    unsendable: u64,
}

/// The steering of the end with several queues.
#[derive(Debug)]
pub struct MemorySteering {
    table: Arc<[AtomicU8; GROUPS]>,
}

/// Makes a link with `queues` queues at its first end: the ports of that end, its steering, and the other end. `options.peer_mac` is the
/// address of the end with one queue, which has no descriptor.
///
/// # Errors
/// The error of `eventfd`, when `options.wakes` is set.
pub fn fan(
    options: &LinkOptions,
    queues: u8,
    table: &Table,
) -> io::Result<(Vec<MemoryPort>, MemorySteering, FanPort)> {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let capabilities = Capabilities { queues: u16::from(queues), rss: queues > 1, ..options.capabilities };
    for _ in 0..queues {
        let (a, b) = link(&LinkOptions { capabilities, ..*options })?;
        near.push(a);
        far.push(b);
    }
    let table = Arc::new(table.map(AtomicU8::new));
    let port = FanPort {
        links: far.into_boxed_slice(),
        table: table.clone(),
        frame: PacketBuf::with_capacity(options.capabilities.frame_max),
        is_reserved: false,
        next: 0,
        unsendable: 0,
    };
    Ok((near, MemorySteering { table }, port))
}

impl Steering for MemorySteering {
    fn apply(&mut self, table: &Table) -> io::Result<()> {
        // Release: pairs with the Acquire in `FanPort::queue_of`.
        self.table.iter().zip(table).for_each(|(entry, queue)| entry.store(*queue, Ordering::Release));
        Ok(())
    }

    fn means(&self) -> &'static str {
        "a table of the memory port"
    }
}

impl FanPort {
    /// The queue of a frame; the first for frames without TCP.
    fn queue_of(&self, frame: &[u8]) -> usize {
        let Ok(Packet { body: Body::Tcp(tcp), .. }) = Packet::parse(frame, RxChecksum::Verified) else {
            return 0;
        };
        // Acquire: pairs with the Release in `apply`.
        let queue = self.table[usize::from(tcp.tuple().group())].load(Ordering::Acquire);
        usize::from(queue) % self.links.len()
    }
}

impl Port for FanPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities { queues: 1, rss: false, ..self.links[0].capabilities() }
    }

    /// Receives from the links in turn: a batch has frames of one.
    fn receive(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        for _ in 0..self.links.len() {
            let link = self.next;
            self.next = (link + 1) % self.links.len();
            if self.links[link].receive(batch) > 0 {
                break;
            }
        }
        batch.len()
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        if !self.links.iter_mut().all(|link| link.reserve().is_some()) {
            return None;
        }
        self.is_reserved = true;
        self.frame.clear();
        Some(&mut self.frame)
    }

    fn commit_with(&mut self, payload: Lent<'_>) {
        if !std::mem::take(&mut self.is_reserved) {
            return;
        }
        let queue = self.queue_of(self.frame.frame());
        let link = &mut self.links[queue];
        if link.reserve().is_some_and(|buf| buf.copy_from(&self.frame)) {
            link.commit_with(payload);
        } else {
            self.unsendable += 1;
        }
    }

    fn flush(&mut self) {
        self.links.iter_mut().for_each(MemoryPort::flush);
    }

    fn arm(&mut self) -> Wait {
        Wait::Not
    }

    fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for stats in self.links.iter().map(MemoryPort::stats) {
            sum.received_packets += stats.received_packets;
            sum.received_bytes += stats.received_bytes;
            sum.sent_packets += stats.sent_packets;
            sum.sent_bytes += stats.sent_bytes;
            sum.sent_full += stats.sent_full;
            sum.system_calls += stats.system_calls;
            sum.drops = sum.drops.plus(&stats.drops);
        }
        sum.drops.add(DropCause::Unsendable, self.unsendable);
        sum
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
