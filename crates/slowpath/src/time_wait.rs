//! Connections in TIME-WAIT: small, bounded, in order of their end, and reusable by RFC 6191.

use base::{Duration, Instant, SeqNumber};
use flow::Challenged;
use std::collections::{HashMap, VecDeque};
use wire::{FourTuple, TcpFlags, TcpHeader, TcpOptions};

/// What is kept of a connection in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remains {
    /// Our next sequence number.
    pub snd_nxt: SeqNumber,
    /// The next sequence number expected from the peer, after its FIN.
    pub rcv_nxt: SeqNumber,
    /// The peer's last timestamp, if timestamps were agreed on.
    pub ts_recent: Option<u32>,
    /// Offset of our timestamps.
    pub ts_offset: u32,
    /// Differentiated services code point of our segments.
    pub dscp: u8,
}

impl Remains {
    /// Options of an acknowledgement: "Once TSopt has been successfully negotiated ... the TSopt MUST be sent in every non-<RST>
    /// segment" (RFC 7323 section 3.2).
    pub(crate) fn options(&self, now: Instant) -> TcpOptions {
        self.ts_recent.map_or(TcpOptions::NONE, |echo| {
            let value = (now.as_ms() as u32).wrapping_add(self.ts_offset);
            TcpOptions::with_timestamps(value, echo)
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    remains: Remains,
    until: Instant,
    /// Number of this insertion: older queue places of a renewed entry have another.
    generation: u32,
    challenged: Challenged,
}

/// After this time the peer's timestamp clock has certainly moved on.
const REUSE_AFTER: Duration = Duration::from_secs(1);

/// What to do with a segment for a connection in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The old connection is replaced: take the segment as the SYN of a new one, beyond these sequence numbers.
    Reuse(Remains),
    /// The peer's FIN has come again: answer with an acknowledgement of this state. Each answer may be the one that was lost.
    Acknowledge(Remains),
    /// Not acceptable: challenge the sender with an acknowledgement of this state, if [`TimeWait::take_challenge`] says so.
    Challenge(Remains),
    /// Drop the segment without an answer.
    Ignore,
}

/// All connections in TIME-WAIT. Keys have our end as `src`.
#[derive(Debug)]
pub struct TimeWait {
    entries: HashMap<FourTuple, Entry>,
    queue: VecDeque<(Instant, u32, FourTuple)>,
    linger: Duration,
    capacity: usize,
    generation: u32,
}

impl TimeWait {
    /// A table of at most `capacity` connections, each kept for `linger` (2 MSL).
    #[must_use]
    pub fn new(capacity: usize, linger: Duration) -> Self {
        Self { entries: HashMap::new(), queue: VecDeque::new(), linger, capacity, generation: 0 }
    }

    /// Number of connections in TIME-WAIT.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when the port pair is still in TIME-WAIT.
    #[must_use]
    pub fn contains(&self, tuple: &FourTuple) -> bool {
        self.entries.contains_key(tuple)
    }

    /// True when an active open may use the port pair: it is not in TIME-WAIT, or for over a second, and timestamps
    /// will keep the old connection's segments apart from the new one's (RFC 6191; Linux's `tcp_tw_reuse`).
    #[must_use]
    pub fn is_free(&self, now: Instant, tuple: &FourTuple) -> bool {
        self.entries.get(tuple).is_none_or(|entry| {
            let began_at_least = now.plus(self.linger);
            entry.remains.ts_recent.is_some() && entry.until.plus(REUSE_AFTER) < began_at_least
        })
    }

    /// The places of connections behind that place, in order; `None` at a place: the connection has another one by now, or has ended.
    pub fn after(&self, place: Option<u32>) -> impl Iterator<Item = (u32, Option<&FourTuple>)> {
        let first = self.queue.front().map_or(0, |(_, generation, _)| *generation);
        // Places are numbered in order, and numbers wrap.
        let before = |generation: u32| generation.wrapping_sub(first) as i32;
        let start =
            place.map_or(0, |place| self.queue.partition_point(|(_, g, _)| before(*g) <= before(place)));
        self.queue.range(start..).map(|(_, generation, tuple)| {
            let is_here = self.entries.get(tuple).is_some_and(|entry| entry.generation == *generation);
            (*generation, is_here.then_some(tuple))
        })
    }

    /// Adds a connection. If the table is full the oldest is removed; true then.
    pub fn insert(&mut self, now: Instant, tuple: FourTuple, remains: Remains) -> bool {
        let mut is_crowded = false;
        while self.entries.len() >= self.capacity.max(1) && !self.entries.contains_key(&tuple) {
            let Some((_, generation, oldest)) = self.queue.pop_front() else { break };
            is_crowded |= self.remove_if(&oldest, generation);
        }
        self.put(now, tuple, remains);
        is_crowded
    }

    /// Decides what to do with a segment; `None` when its tuple is not in TIME-WAIT (RFC 9293 section 3.10.7.4, "TIME-WAIT STATE").
    pub fn judge(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        header: &TcpHeader,
        options: &TcpOptions,
        payload_len: usize,
    ) -> Option<Verdict> {
        let remains = self.entries.get(tuple)?.remains;
        // "assassination" of TIME-WAIT by a late RST is RFC 1337's hazard; its first remedy is to ignore RST here.
        if header.flags.contains(TcpFlags::RST) {
            return Some(Verdict::Ignore);
        }
        if header.flags.contains(TcpFlags::SYN) && !header.flags.contains(TcpFlags::ACK) {
            if is_new(&remains, header, options) {
                self.entries.remove(tuple);
                return Some(Verdict::Reuse(remains));
            }
            return Some(Verdict::Challenge(remains));
        }
        let is_fin = header.flags.contains(TcpFlags::FIN);
        if is_fin && header.seq.plus(header.sequence_len(payload_len)) == remains.rcv_nxt {
            // "The only thing that can arrive in this state is a retransmission of the remote FIN. Acknowledge it, and
            // restart the 2 MSL timeout."
            self.put(now, *tuple, remains);
            return Some(Verdict::Acknowledge(remains));
        }
        let is_acceptable = header.sequence_len(payload_len) == 0 && header.seq == remains.rcv_nxt;
        Some(if is_acceptable { Verdict::Ignore } else { Verdict::Challenge(remains) })
    }

    /// Takes the right to challenge the peer of that connection; false: it was challenged a moment ago.
    #[must_use]
    pub fn take_challenge(&mut self, now: Instant, tuple: &FourTuple) -> bool {
        self.entries.get_mut(tuple).is_some_and(|entry| entry.challenged.take(now))
    }

    /// Removes the connection with these ports for an active open, if [`is_free`](Self::is_free) allows it.
    pub fn reuse_for_connect(&mut self, tuple: &FourTuple) -> Option<Remains> {
        self.entries.remove(tuple).map(|entry| entry.remains)
    }

    /// Removes the connections that have lasted for 2 MSL.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&(until, generation, tuple)) = self.queue.front() {
            if until > now {
                return;
            }
            self.queue.pop_front();
            self.remove_if(&tuple, generation);
        }
    }

    /// When [`expire`](Self::expire) has something to remove.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        self.queue.front().map_or(Instant::NEVER, |front| front.0)
    }

    fn put(&mut self, now: Instant, tuple: FourTuple, remains: Remains) {
        self.generation = self.generation.wrapping_add(1);
        let until = now.plus(self.linger);
        let challenged = self.entries.get(&tuple).map_or(Challenged::NEVER, |entry| entry.challenged);
        self.entries.insert(tuple, Entry { remains, until, generation: self.generation, challenged });
        self.queue.push_back((until, self.generation, tuple));
        // A renewed entry leaves its old place in the queue; a peer that repeats its FIN must not make the queue grow.
        if self.queue.len() > 2 * self.entries.len() + 64 {
            let entries = &self.entries;
            self.queue.retain(|(_, generation, tuple)| {
                entries.get(tuple).is_some_and(|entry| entry.generation == *generation)
            });
        }
    }

    fn remove_if(&mut self, tuple: &FourTuple, generation: u32) -> bool {
        let is_same = self.entries.get(tuple).is_some_and(|entry| entry.generation == generation);
        if is_same {
            self.entries.remove(tuple);
        }
        is_same
    }
}

/// RFC 6191 section 2: a SYN opens a new connection when its timestamp is later than the last of the old one, or, where
/// either lacks timestamps (or they are equal), when its sequence number lies beyond the old connection's.
fn is_new(remains: &Remains, header: &TcpHeader, options: &TcpOptions) -> bool {
    let is_beyond = remains.rcv_nxt.is_before(header.seq);
    match (remains.ts_recent, options.timestamps) {
        (Some(old), Some(new)) if new.value != old => SeqNumber(old).is_before(SeqNumber(new.value)),
        (None, Some(_)) => true,
        _ => is_beyond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use wire::Endpoint;

    fn tuple(port: u16) -> FourTuple {
        let end = |a: [u8; 4], p| Endpoint::new(IpAddr::from(a), p);
        FourTuple::new(end([10, 0, 0, 2], port), end([10, 0, 0, 1], 80))
    }

    fn remains(ts_recent: Option<u32>) -> Remains {
        Remains { snd_nxt: SeqNumber(500), rcv_nxt: SeqNumber(1000), ts_recent, ts_offset: 0, dscp: 0 }
    }

    fn segment(flags: TcpFlags, seq: u32) -> TcpHeader {
        let (seq, ack) = (SeqNumber(seq), SeqNumber(500));
        TcpHeader { src_port: 80, dst_port: 1, seq, ack, flags, window: 100, urgent: 0 }
    }

    fn secs(s: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_secs(s))
    }

    fn judge(remains: Remains, header: &TcpHeader, options: &TcpOptions) -> Option<Verdict> {
        let mut table = TimeWait::new(4, Duration::from_secs(60));
        table.insert(secs(0), tuple(1), remains);
        table.judge(secs(1), &tuple(1), header, options, 0)
    }

    #[test]
    fn a_syn_is_new_by_timestamp_or_by_sequence() {
        let syn = |seq| segment(TcpFlags::SYN, seq);
        let stamped = |value| TcpOptions::with_timestamps(value, 0);
        let (old, plain) = (remains(Some(70)), remains(None));
        assert_eq!(judge(old, &syn(5), &stamped(71)), Some(Verdict::Reuse(old)));
        assert_eq!(judge(old, &syn(2000), &stamped(69)), Some(Verdict::Challenge(old)));
        assert_eq!(judge(old, &syn(2000), &stamped(70)), Some(Verdict::Reuse(old)));
        assert_eq!(judge(old, &syn(999), &TcpOptions::NONE), Some(Verdict::Challenge(old)));
        assert_eq!(judge(plain, &syn(1001), &TcpOptions::NONE), Some(Verdict::Reuse(plain)));
    }

    #[test]
    fn reset_does_not_assassinate() {
        let rst = segment(TcpFlags::RST, 1000);
        assert_eq!(judge(remains(None), &rst, &TcpOptions::NONE), Some(Verdict::Ignore));
    }

    #[test]
    fn repeated_fin_renews_and_the_queue_stays_small() {
        let mut table = TimeWait::new(4, Duration::from_secs(60));
        table.insert(secs(0), tuple(1), remains(None));
        let fin = segment(TcpFlags::FIN.with(TcpFlags::ACK), 999);
        for second in 0..1000 {
            let verdict = table.judge(secs(second), &tuple(1), &fin, &TcpOptions::NONE, 0);
            assert_eq!(verdict, Some(Verdict::Acknowledge(remains(None))));
            table.expire(secs(second));
        }
        assert!(table.queue.len() < 100);
        table.expire(secs(999 + 59));
        assert_eq!(table.len(), 1);
        table.expire(secs(999 + 60));
        assert!(table.len() == 0 && table.next_deadline() == Instant::NEVER);
    }

    #[test]
    fn the_oldest_gives_way() {
        let mut table = TimeWait::new(2, Duration::from_secs(60));
        assert!(!table.insert(secs(0), tuple(1), remains(None)));
        assert!(!table.insert(secs(1), tuple(2), remains(None)));
        assert!(table.insert(secs(2), tuple(3), remains(None)));
        assert!(!table.contains(&tuple(1)) && table.contains(&tuple(2)) && table.len() == 2);
    }
}
