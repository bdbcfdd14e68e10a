//! The pacer: a wheel of time slots that hold the flows whose next segment may go then.

use crate::lists::List;
use crate::setup::{State, Work};
use base::{Duration, Instant};
use flow::{Cold, SendLine};

/// A slot is 2^14 ns, 16 microseconds: about one full segment at 1 Gbit/s.
const SLOT_LOG2: u32 = 14;
/// Slots; a flow that must wait longer than the 16.8 ms they span looks again then.
const SLOTS: u64 = 1024;

/// A paced flow that has not sent for a while may send so many bytes at once: more than the initial window, and whatever a
/// request or a reply usually is. A lone message is never delayed.
const BURST: u64 = 64 << 10;

impl State {
    /// False, and remembered, when the segment's time has not come.
    #[inline]
    pub(crate) fn may_go(&mut self, w: &mut Work<'_>, len: u32) -> bool {
        w.f.cold.pace_rate == 0 || self.pace(w, len)
    }

    /// A bucket of [`BURST`] bytes that fills at the flow's rate, kept as the time at which it would be full to the brim less what
    /// was taken: `pace_at`. The bucket may be overdrawn by one segment.
    fn pace(&mut self, w: &mut Work<'_>, len: u32) -> bool {
        let cold = &mut *w.f.cold;
        let time = |bytes: u64| Duration::from_ns(bytes * 1_000_000_000 / cold.pace_rate);
        let burst = time(BURST);
        let full = Instant::from_ns(self.now.as_ns().saturating_sub(burst.as_ns()));
        if self.now < cold.pace_at {
            self.pacer.wait(w.id.0, cold.pace_at);
            return false;
        }
        cold.pace_at = cold.pace_at.max(full).plus(time(u64::from(len)));
        true
    }
}

/// The longest super-frame at the flow's rate, as Linux sizes them: a millisecond's worth, `segments_min` at least, and no more than
/// half the window; on short paths more, up to all that fits, for there a burst is over before anybody is in its way. What is not
/// paced goes at twice the window in a round trip while it may double, else at 1.2 times.
pub(crate) fn burst_at_rate(cold: &Cold, len: u32, cwnd: u32, mss: u32, segments_min: u16) -> u32 {
    /// Half a millisecond of round trip halves what is added.
    const RTT_LOG2: u32 = 9;
    let near = BURST.checked_shr(cold.rtt_us_min >> RTT_LOG2).unwrap_or(0);
    if near == BURST {
        return len;
    }
    let tenths = if cwnd < cold.window.ssthresh() / 2 { 20 } else { 12 };
    let round_trip_us = u64::from(cold.srtt_us.max(1));
    let unpaced = || u64::from(cwnd) * tenths * 100_000 / round_trip_us;
    let rate = if cold.pace_rate == 0 { unpaced() } else { cold.pace_rate };
    let wanted = (rate / 1024 + near).max(u64::from(segments_min) * u64::from(mss));
    let wanted = wanted.min(u64::from((cwnd / 2).max(mss))) as u32;
    let whole = wanted - wanted % mss;
    // No lone segment stays behind a longer super-frame: it would bear no PSH.
    let is_lone = len > whole && len - whole <= mss && whole > 2 * mss;
    if is_lone { whole - mss } else { len.min(whole) }
}

/// How much of the super-frame in hand is left. As on Linux none is longer than half the peer's largest window (two segments may go in any): what has waited
/// for an acknowledgement is cut into such pieces from there on, and each of them ends with PSH, however it goes.
pub(crate) fn burst_left(cold: &mut Cold, tx: &SendLine, is_rung: bool) -> u32 {
    let (mss, half) = (u32::from(tx.mss), 1 << tx.window_log2_max.min(31) >> 1);
    if u64::from(half) >= BURST {
        return u32::MAX;
    }
    let most = (half - half % mss).max(2 * mss);
    let left = cold.burst_end.since(tx.snd_max);
    if left >= mss && left <= most && left.is_multiple_of(mss) {
        return left;
    }
    if !is_rung {
        cold.burst_end = tx.snd_max.plus(most);
    }
    most
}

/// Flows in order of their next release.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// The flows of all slots in one pair of arrays: `slot[flow]` names the slot.
    heads: Box<[u32]>,
    next: Box<[u32]>,
    slot: Box<[u16]>,
    occupied: [u64; SLOTS as usize / 64],
    /// The first tick not yet expired.
    cursor: u64,
    /// No flow waits for an earlier tick; the first may wait for a later one.
    first: u64,
    count: u32,
}

const END: u32 = u32::MAX;

impl Pacer {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize) -> Self {
        Self {
            heads: vec![END; SLOTS as usize].into_boxed_slice(),
            next: vec![0; flows].into_boxed_slice(),
            slot: vec![0; flows].into_boxed_slice(),
            occupied: [0; SLOTS as usize / 64],
            cursor: 0,
            first: u64::MAX,
            count: 0,
        }
    }

    /// The flow looks again at `at`, at the earliest in the next slot. A flow that waits already keeps its time.
    pub(crate) fn wait(&mut self, flow: u32, at: Instant) {
        let i = flow as usize;
        if self.next[i] != 0 {
            return;
        }
        let tick = (at.as_ns() >> SLOT_LOG2).clamp(self.cursor + 1, self.cursor + SLOTS - 1);
        let slot = (tick % SLOTS) as usize;
        self.next[i] = self.heads[slot];
        self.heads[slot] = flow + 1;
        self.slot[i] = slot as u16;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.first = self.first.min(tick);
        self.count += 1;
    }

    /// Flows that wait.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// Moves the flows whose slots have passed to `ready`.
    #[inline]
    pub(crate) fn expire(&mut self, now: Instant, ready: &mut List) {
        let tick = now.as_ns() >> SLOT_LOG2;
        if tick < self.first || tick <= self.cursor {
            self.cursor = self.cursor.max(tick);
            return;
        }
        let last = tick.min(self.cursor + SLOTS);
        for t in self.cursor..=last {
            let slot = (t % SLOTS) as usize;
            if self.occupied[slot / 64] & 1 << (slot % 64) != 0 {
                self.empty(slot, ready);
            }
        }
        self.cursor = tick;
        self.first = self.find_first();
    }

    /// The first occupied slot's tick.
    fn find_first(&self) -> u64 {
        const WORDS: usize = SLOTS as usize / 64;
        let start = (self.cursor % SLOTS) as usize;
        let ahead = u64::MAX << (start % 64);
        for i in 0..=WORDS {
            let word = (start / 64 + i) % WORDS;
            let mask = [ahead, u64::MAX, !ahead][usize::from(i > 0) + usize::from(i == WORDS)];
            let bits = self.occupied[word] & mask;
            if bits != 0 {
                let slot = (word * 64) as u64 + u64::from(bits.trailing_zeros());
                return self.cursor + (slot + SLOTS - start as u64) % SLOTS;
            }
        }
        u64::MAX
    }

    fn empty(&mut self, slot: usize, ready: &mut List) {
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        let mut at = std::mem::replace(&mut self.heads[slot], END);
        while at != END {
            let flow = at - 1;
            at = std::mem::take(&mut self.next[flow as usize]);
            self.count -= 1;
            ready.push_back(flow, 0);
        }
    }

    /// Forgets a flow that goes.
    pub(crate) fn remove(&mut self, flow: u32) {
        if self.next[flow as usize] == 0 {
            return;
        }
        let slot = usize::from(self.slot[flow as usize]);
        let after = std::mem::take(&mut self.next[flow as usize]);
        self.count -= 1;
        if self.heads[slot] == flow + 1 {
            self.heads[slot] = after;
            if after == END {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
            }
            return;
        }
        let mut at = self.heads[slot];
        while at != END {
            let i = at as usize - 1;
            if self.next[i] == flow + 1 {
                self.next[i] = after;
                return;
            }
            at = self.next[i];
        }
    }

    /// When the first flow may go.
    pub(crate) fn next_deadline(&self) -> Instant {
        if self.count == 0 { Instant::NEVER } else { Instant::from_ns(self.first << SLOT_LOG2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_come_out_when_their_time_has_come_and_not_before() {
        let (mut pacer, mut ready) = (Pacer::new(8), List::new(8));
        let us = |n: u64| Instant::from_ns(n * 1000);
        pacer.expire(us(5_000), &mut ready);
        for (flow, at) in [(0, 5_100), (1, 5_050), (2, 90_000), (3, 5_060)] {
            pacer.wait(flow, us(at));
        }
        pacer.remove(3);
        assert!(pacer.next_deadline() <= us(5_050));
        pacer.expire(us(5_020), &mut ready);
        assert_eq!(ready.front(), None);
        pacer.expire(us(5_070), &mut ready);
        assert_eq!(ready.pop_due(0), Some(1));
        pacer.expire(us(5_120), &mut ready);
        assert_eq!((ready.pop_due(0), ready.pop_due(0)), (Some(0), None));
        // Beyond the horizon: looks again at its end, and waits again if need be.
        pacer.expire(us(50_000), &mut ready);
        assert_eq!(ready.pop_due(0), Some(2));
        assert_eq!(pacer.next_deadline(), Instant::NEVER);
    }
}
