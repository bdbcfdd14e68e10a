//! A host's network interface: a port with two queues of frames in memory as its wire.
//!
//! It does what hardware does: cuts super-frames into segments, merges received segments, completes checksums, and drops received frames
//! while the receive ring is full. Of a merged frame it first gives only the beginning, as a packet socket does. It has no clock and loses
//! nothing else.

use crate::receive_offload;
use crate::repeats::Heard;
use port::{
    Batch, Capabilities, DropCause, Lent, Look, PacketBuf, Port, Segmenter, Stats, Ticket, complete_checksum,
};
use std::collections::VecDeque;

/// Length of the receive ring in frames; further frames are dropped. 4096, as in large NICs.
const RECEIVE_RING: usize = 4096;
/// Frames that may wait for the network before `reserve` fails.
const TRANSMIT_RING: usize = 1024;
/// Bytes of a merged frame that `receive_heads` gives: no headers are longer. The bytes behind them are filled with `NOBODYS`.
const HEAD: usize = 128;
const NOBODYS: u8 = 0xDB;

/// The interface; see the module.
#[derive(Debug)]
pub(crate) struct Interface {
    capabilities: Capabilities,
    /// True: consecutive segments of a flow are merged on receipt.
    merges: bool,
    received: VecDeque<Vec<u8>>,
    /// Number of frames of `received`, from the first on, that `receive_ahead` need not look at again.
    seen: usize,
    /// What the core has read since [`heard`](Self::heard) was last asked.
    heard: Vec<Heard>,
    /// The whole merged frames of the present batch that gave only their beginning; below, the ticket of the first.
    merged: VecDeque<Vec<u8>>,
    first_merged: u32,
    /// Frames for the network, each with the turn in which it was sent.
    sent: VecDeque<(u64, Vec<u8>)>,
    turn: u64,
    reserved: PacketBuf,
    segment: PacketBuf,
    stats: Stats,
    /// True when a frame has found no room since the last `receive_heads`.
    was_full: bool,
}

impl Interface {
    pub(crate) fn new(capabilities: Capabilities, merges: bool) -> Self {
        let wire = usize::from(capabilities.mtu) + 64;
        Self {
            capabilities,
            merges,
            received: VecDeque::new(),
            seen: 0,
            heard: Vec::new(),
            merged: VecDeque::new(),
            first_merged: 0,
            sent: VecDeque::new(),
            turn: 0,
            reserved: PacketBuf::with_capacity(capabilities.frame_max.max(wire)),
            segment: PacketBuf::with_capacity(wire),
            stats: Stats::default(),
            was_full: false,
        }
    }

    /// A frame comes from the network.
    pub(crate) fn inject(&mut self, frame: Vec<u8>) {
        if self.received.len() < RECEIVE_RING {
            self.received.push_back(frame);
        } else {
            self.stats.drops.count(DropCause::Device);
        }
    }

    /// Sets the turn that frames sent from now on are marked with.
    pub(crate) fn begin(&mut self, turn: u64) {
        self.turn = turn;
    }

    /// The turn in which the next frame for the network was sent.
    pub(crate) fn next_turn(&self) -> Option<u64> {
        self.sent.front().map(|(turn, _)| *turn)
    }

    /// What the core has read since this was last asked.
    pub(crate) fn heard(&mut self) -> impl Iterator<Item = Heard> + use<> {
        std::mem::take(&mut self.heard).into_iter()
    }

    /// Number of frames that wait for the network.
    pub(crate) fn waiting(&self) -> usize {
        self.sent.len()
    }

    /// The frames for the network after the first `before`.
    pub(crate) fn sent_after(&self, before: usize) -> impl Iterator<Item = &[u8]> {
        self.sent.range(before..).map(|(_, frame)| frame.as_slice())
    }

    /// Takes the next frame for the network.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front().map(|(_, frame)| frame)
    }

    /// True when the core has work here: received frames, or room in the transmit ring after it was full.
    pub(crate) fn has_news(&self) -> bool {
        !self.received.is_empty() || (self.was_full && self.sent.len() < TRANSMIT_RING)
    }

    /// Takes the merged frame with that ticket; drops the frames before it.
    fn merged(&mut self, Ticket(ticket): Ticket) -> Option<Vec<u8>> {
        let before = usize::try_from(ticket.checked_sub(self.first_merged)?).ok()?;
        if before >= self.merged.len() {
            return None;
        }
        self.merged.drain(..before);
        self.first_merged = ticket + 1;
        self.merged.pop_front()
    }

    fn emit(&mut self) {
        let frame = &mut self.reserved;
        if frame.meta.gso.is_some() {
            let Ok(mut segments) = Segmenter::new(frame) else {
                return self.stats.drops.count(DropCause::Unsendable);
            };
            while segments.next_into(frame, &mut self.segment) {
                self.sent.push_back((self.turn, self.segment.frame().to_vec()));
            }
        } else if complete_checksum(frame) {
            self.sent.push_back((self.turn, frame.frame().to_vec()));
        }
    }
}

impl Port for Interface {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn waiting_most(&self) -> usize {
        self.received.len()
    }

    fn receive(&mut self, batch: &mut Batch) -> usize {
        let count = self.receive_heads(batch);
        let are_whole = batch.packets_mut().iter_mut().all(|packet| self.complete(packet));
        assert!(are_whole, "no ticket was used");
        count
    }

    fn receive_heads(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        self.first_merged += self.merged.len() as u32;
        self.merged.clear();
        // A new round: `reserve` sets this again when the ring is still full.
        self.was_full = false;
        let before = self.received.len();
        while !batch.is_full() {
            let Some(mut frame) = self.received.pop_front() else { break };
            let meta =
                if self.merges { receive_offload::merge(&mut frame, &mut self.received) } else { None };
            let Some(slot) = batch.slot() else { break };
            if !slot.fill(&frame) {
                self.stats.drops.count(DropCause::Oversized);
                continue;
            }
            slot.meta = meta.unwrap_or_default();
            self.stats.count_received(frame.len());
            self.heard.push(Heard::of(&frame));
            if meta.is_some() && frame.len() > HEAD {
                slot.frame_mut()[HEAD..].fill(NOBODYS);
                slot.set_ticket(Some(Ticket(self.first_merged + self.merged.len() as u32)));
                self.merged.push_back(frame);
            }
            batch.push_slot();
        }
        self.seen = self.seen.saturating_sub(before - self.received.len());
        batch.len()
    }

    fn receive_ahead(&mut self, batch: &mut Batch, look: &mut dyn FnMut(&[u8]) -> Look) -> usize {
        batch.clear();
        let mut later = None;
        while let (Some(slot), Some(frame)) = (batch.slot(), self.received.get(self.seen)) {
            let what = look(frame);
            if what == Look::Take && slot.fill(frame) {
                self.stats.count_received(frame.len());
                self.heard.push(Heard::of(frame));
                batch.push_slot();
                self.received.remove(self.seen);
            } else {
                later = later.or((what == Look::Later).then_some(self.seen));
                self.seen += 1;
            }
        }
        self.seen = later.unwrap_or(self.seen);
        batch.len()
    }

    fn take(&mut self, frame: &[u8], ticket: Ticket, skip: usize, into: Lent<'_>) -> bool {
        let Some(whole) = self.merged(ticket) else { return false };
        assert_eq!(frame[..skip], whole[..skip]);
        into.fill(&whole[skip..skip + into.len()]);
        true
    }

    fn complete(&mut self, packet: &mut PacketBuf) -> bool {
        let Some(ticket) = packet.ticket() else { return true };
        packet.set_ticket(None);
        let Some(whole) = self.merged(ticket) else { return false };
        packet.frame_mut().copy_from_slice(&whole);
        true
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        if self.sent.len() >= TRANSMIT_RING {
            self.was_full = true;
            return None;
        }
        self.reserved.clear();
        Some(&mut self.reserved)
    }

    fn commit_with(&mut self, payload: Lent<'_>) {
        // When the payload does not fit, the buffer stays empty, and an empty frame is not sendable.
        let _ = self.reserved.append(payload);
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
