//! One direction: decides on every segment, keeps the frames on the way, and sends them when they are due.

use crate::store::Store;
use base::{Duration, Instant};
use link::{Damage, LinkConfig, Model, Passage, View, apply};
use port::{Capabilities, Checksum, PacketBuf, Port, Segmenter, complete_checksum};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A packet on the way: one segment of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Packet {
    at: Instant,
    frame: u32,
    segment: u32,
    damage: Damage,
}

impl Packet {
    /// True if this packet is `count` segments after `first` and may be sent together with it in one frame.
    fn continues(&self, first: &Self, count: usize) -> bool {
        let is_whole = |damage: &Damage| damage.corrupt.is_none() && damage.truncate.is_none();
        self.frame == first.frame
            && self.segment as usize == first.segment as usize + count
            && self.damage.mark == first.damage.mark
            && is_whole(&self.damage)
            && is_whole(&first.damage)
    }
}

/// A late packet's time, then its number.
type Late = Reverse<(Instant, u64)>;

/// One direction of the emulated link.
#[derive(Debug)]
pub struct Lane {
    model: Model,
    store: Store,
    in_order: VecDeque<Packet>,
    late_times: BinaryHeap<Late>,
    late: std::collections::HashMap<u64, Packet>,
    late_number: u64,
    /// The longest time that a packet waits for the next segment of its super-frame.
    slack: Duration,
    /// Frames dropped because they were not valid super-frames, or because too much was on the way.
    refused: u64,
}

impl Lane {
    /// A direction with this configuration. Segments of a super-frame that arrive within `slack` of each other leave together.
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64, slack: Duration) -> Self {
        Self {
            model: Model::new(config, seed),
            store: Store::default(),
            in_order: VecDeque::new(),
            late_times: BinaryHeap::new(),
            late: std::collections::HashMap::new(),
            late_number: 0,
            slack,
            refused: 0,
        }
    }

    /// The model of this direction.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Number of frames that the emulator itself could not carry.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Sends a frame into the link. The frame's buffer may be exchanged for another.
    pub fn offer(&mut self, now: Instant, frame: &mut PacketBuf) {
        let segmenter = match frame.meta.gso.map(|_| Segmenter::new(frame)) {
            Some(Err(_)) => {
                self.refused += 1;
                return;
            }
            Some(Ok(segmenter)) => Some(segmenter),
            None => None,
        };
        let (view, len) = (View::of(frame.frame()), frame.len());
        let Some(key) = self.store.put(frame, segmenter) else {
            self.refused += 1;
            return;
        };
        self.store.hold(key);
        match segmenter {
            None => self.judge(now, &view, key, 0),
            Some(segmenter) => {
                let (headers, size) = (segmenter.header_len(), segmenter.segment_size());
                let count = (len - headers).div_ceil(size).max(1);
                for segment in 0..count {
                    let payload = size.min(len - headers - segment * size);
                    self.judge(now, &View { len: headers + payload, ..view }, key, segment as u32);
                }
            }
        }
        self.store.release(key, 1);
    }

    fn judge(&mut self, now: Instant, view: &View, frame: u32, segment: u32) {
        let fate = self.model.judge(now, view);
        for Passage { at, late, damage } in [fate.first, fate.second].into_iter().flatten() {
            self.store.hold(frame);
            let packet = Packet { at, frame, segment, damage };
            if late {
                self.late_number += 1;
                self.late_times.push(Reverse((at, self.late_number)));
                self.late.insert(self.late_number, packet);
            } else {
                self.in_order.push_back(packet);
            }
        }
    }

    /// Sends the packets that are due into `port`, as long as that has room. True if something was sent.
    pub fn release(&mut self, now: Instant, port: &mut impl Port) -> bool {
        let capabilities = port.capabilities();
        let mut has_sent = false;
        while let Some((first, count)) = self.next_run(now, &capabilities) {
            let Some(out) = port.reserve() else { break };
            let held = self.store.get(first.frame);
            let is_written = match &held.segmenter {
                Some(segmenter) => segmenter.run_into(&held.frame, first.segment as usize, count, out),
                None => out.copy_from(&held.frame),
            };
            if is_written {
                damage(&first.damage, &capabilities, out);
                let bytes = held.segmenter.map_or(0, |segmenter| segmenter.header_len() * (count - 1));
                let counters = self.model.counters_mut();
                counters.delivered += count as u64;
                counters.delivered_bytes += (out.len() + bytes) as u64;
            }
            // If the port's buffer does not take the frame, the buffer is empty, and the port counts it as unsendable.
            port.commit();
            self.take(&first, count);
            has_sent = true;
        }
        has_sent
    }

    /// The first packet that is due, and the number of segments in the frame that begins with it.
    fn next_run(&self, now: Instant, capabilities: &Capabilities) -> Option<(Packet, usize)> {
        let late = self.late_times.peek().map(|Reverse(key)| *key);
        let first = self.in_order.front();
        if let Some((at, number)) = late
            && at <= now
            && first.is_none_or(|first| at < first.at)
        {
            return self.late.get(&number).map(|packet| (*packet, 1));
        }
        let first = first.filter(|first| first.at <= now)?;
        if !capabilities.tso_v4 || !capabilities.tso_v6 {
            return Some((*first, 1));
        }
        let together = self.in_order.iter().enumerate().skip(1);
        let continues = |(count, packet): &(usize, &Packet)| packet.continues(first, *count);
        let mut count = 1;
        for (_, packet) in together.take_while(continues) {
            if now < packet.at {
                let waits = packet.at <= first.at.plus(self.slack) && now < first.at.plus(self.slack);
                return if waits { None } else { Some((*first, count)) };
            }
            count += 1;
        }
        Some((*first, count))
    }

    fn take(&mut self, first: &Packet, count: usize) {
        let is_in_order = self.in_order.front() == Some(first);
        if is_in_order {
            self.in_order.drain(..count);
        } else if let Some(Reverse((_, number))) = self.late_times.pop() {
            self.late.remove(&number);
        }
        self.store.release(first.frame, count as u32);
    }

    /// When [`release`](Self::release) has something to do; [`Instant::NEVER`] if nothing is on the way.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let late = self.late_times.peek().map_or(Instant::NEVER, |Reverse((at, _))| *at);
        let Some(first) = self.in_order.front() else { return late };
        let waits = self.in_order.get(1).filter(|next| {
            first.at < next.at && next.continues(first, 1) && next.at <= first.at.plus(self.slack)
        });
        late.min(if waits.is_some() { first.at.plus(self.slack) } else { first.at })
    }
}

/// Applies `damage` to a frame before it is sent, and completes its checksum if the port or the damage needs that.
fn damage(damage: &Damage, capabilities: &Capabilities, out: &mut PacketBuf) {
    let is_whole = damage.corrupt.is_none() && damage.truncate.is_none();
    if !is_whole || (!capabilities.tx_checksum && out.meta.gso.is_none()) {
        // The checksum of a damaged frame must be complete and unverified; otherwise the damage would not be noticed.
        complete_checksum(out);
        out.meta.checksum = Checksum::Unknown;
    }
    if !damage.is_none() {
        let len = apply(damage, out.frame_mut());
        out.set_len(len);
    }
}

#[cfg(test)]
mod tests;
