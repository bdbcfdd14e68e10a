//! Samples of the delivery rate from the send times of packets, as Linux takes them (tcp_rate.c's definition, restated in
//! draft-cheng-iccrg-delivery-rate-estimation): what was delivered since a packet left, over the longer way that it took to be sent or to arrive.

use std::collections::VecDeque;
use std::time::Instant;

/// Packets that are remembered at most; the oldest go first.
const PACKETS_MAX: usize = 8192;

/// What was known when a packet left.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    delivered: u64,
    delivered_at: Instant,
    /// When the packet left that was acknowledged last by then.
    first_at: Instant,
}

/// Two rates, bytes per second; 0: no sample.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sample {
    pub incoming: u64,
    pub outgoing: u64,
}

/// The packets in flight and what has been delivered.
#[derive(Clone, Debug)]
pub struct Rates {
    packets: VecDeque<Sent>,
    delivered: u64,
    delivered_at: Instant,
    first_at: Instant,
    newest: Option<Sent>,
}

impl Rates {
    pub fn new(now: Instant) -> Self {
        Self { packets: VecDeque::new(), delivered: 0, delivered_at: now, first_at: now, newest: None }
    }

    pub fn sent(&mut self, now: Instant, is_idle: bool) {
        if is_idle {
            (self.first_at, self.delivered_at) = (now, now);
        }
        if self.packets.len() >= PACKETS_MAX {
            self.packets.pop_front();
        }
        let Self { delivered, delivered_at, first_at, .. } = *self;
        self.packets.push_back(Sent { at: now, delivered, delivered_at, first_at });
    }

    /// A packet that left at `sent` was delivered.
    pub fn acknowledged(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        let place = self.packets.partition_point(|packet| packet.at < sent);
        let Some(packet) = self.packets.get(place).copied().filter(|packet| packet.at == sent) else {
            return;
        };
        self.first_at = self.first_at.max(sent);
        if self.newest.is_none_or(|newest| newest.at <= packet.at) {
            self.newest = Some(packet);
        }
        self.packets.remove(place);
    }

    /// The sample of the acknowledgements since the last call.
    pub fn sample(&mut self) -> Sample {
        let Some(packet) = self.newest.take() else { return Sample::default() };
        let bytes = self.delivered - packet.delivered;
        Sample {
            incoming: rate(bytes, packet.delivered_at, self.delivered_at),
            outgoing: rate(bytes, packet.first_at, packet.at),
        }
    }
}

fn rate(bytes: u64, from: Instant, to: Instant) -> u64 {
    let us = to.saturating_duration_since(from).as_micros();
    u64::try_from(u128::from(bytes) * 1_000_000).unwrap_or(u64::MAX).checked_div(us as u64).unwrap_or(0)
}
