//! A host's network interface: a port whose wire is two queues of frames in memory.
//!
//! It does what hardware does: cuts super-frames into segments, completes checksums, and drops what comes while the receive
//! ring is full. It keeps no time and loses nothing else.

use port::{Batch, Capabilities, Checksum, DropCause, PacketBuf, Port, Segmenter, Stats, complete_checksum};
use std::collections::VecDeque;

/// Frames a receive ring holds before the next is dropped: 4096, as large NICs have.
const RECEIVE_RING: usize = 4096;
/// Frames that wait to be taken by the network before the core is told to wait.
const TRANSMIT_RING: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Interface {
    capabilities: Capabilities,
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    reserved: PacketBuf,
    segment: PacketBuf,
    stats: Stats,
    /// A frame found no room since the network last took one.
    was_full: bool,
}

impl Interface {
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        let wire = usize::from(capabilities.mtu) + 64;
        Self {
            capabilities,
            received: VecDeque::new(),
            sent: VecDeque::new(),
            reserved: PacketBuf::with_capacity(capabilities.frame_max.max(wire)),
            segment: PacketBuf::with_capacity(wire),
            stats: Stats::default(),
            was_full: false,
        }
    }

    /// A frame comes from the network.
    pub(crate) fn inject(&mut self, frame: &[u8]) {
        if self.received.len() < RECEIVE_RING {
            self.received.push_back(frame.to_vec());
        } else {
            self.stats.drops.count(DropCause::Device);
        }
    }

    /// The network takes a frame.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front()
    }

    /// True when the core has something to do here: frames to receive, or room that it waited for.
    pub(crate) fn has_news(&self) -> bool {
        !self.received.is_empty() || (self.was_full && self.sent.len() < TRANSMIT_RING)
    }

    fn emit(&mut self) {
        let frame = &mut self.reserved;
        if frame.meta.gso.is_some() {
            let Ok(mut segments) = Segmenter::new(frame) else {
                return self.stats.drops.count(DropCause::Unsendable);
            };
            while segments.next_into(frame, &mut self.segment) {
                self.sent.push_back(self.segment.frame().to_vec());
            }
        } else if complete_checksum(frame) {
            self.sent.push_back(frame.frame().to_vec());
        }
    }
}

impl Port for Interface {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        // A new round: whoever still waits for room says so again.
        self.was_full = false;
        while !batch.is_full() {
            let Some(frame) = self.received.pop_front() else { break };
            let Some(slot) = batch.slot() else { break };
            if !slot.fill(&frame) {
                self.stats.drops.count(DropCause::Oversized);
                continue;
            }
            slot.meta.checksum = Checksum::Unknown;
            self.stats.count_received(frame.len());
            batch.push_slot();
        }
        batch.len()
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        if self.sent.len() >= TRANSMIT_RING {
            self.was_full = true;
            return None;
        }
        self.reserved.clear();
        Some(&mut self.reserved)
    }

    fn commit(&mut self) {
        if self.capabilities.admits(&self.reserved) {
            self.stats.count_sent(self.reserved.len());
            self.emit();
        } else {
            self.stats.drops.count(DropCause::Unsendable);
        }
    }

    fn flush(&mut self) {}

    fn stats(&self) -> Stats {
        self.stats
    }
}
