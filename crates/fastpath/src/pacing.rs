//! The pacer: decides when a flow's next segment may be sent.

use crate::setup::{State, Work};
use base::{Duration, Instant};
use flow::{Cold, Limits, SendLine};

/// Bytes that a paced flow may send at once after a pause: more than the initial window, and than a usual request or reply. A
/// single message is never delayed.
const BURST: u64 = 64 << 10;

/// Segments that a flow may send at once if `SO_MAX_PACING_RATE` limits its rate (what Linux sends before it begins to pace), or if the rate
/// is the decision of its congestion control: the initial window, so that a lone request waits no longer than on a new flow.
const BURST_LIMITED: u64 = 10;

/// True when the flow's rate must be kept strictly: it is not only there to spread a window.
#[inline]
fn is_strict(cold: &Cold) -> bool {
    cold.pace_most != 0 || cold.window.is_decided_outside()
}

impl State {
    /// True when a segment of `len` bytes may be sent now; else the flow waits in the pacer's wheel.
    #[inline]
    pub(crate) fn may_go(&mut self, w: &mut Work<'_>, len: u32) -> bool {
        w.f.cold.pace_rate == 0 || self.pace(w, len)
    }

    /// As `may_go`, for a flow that is paced, and takes nothing out of the bucket.
    #[inline]
    pub(crate) fn has_room_in_bucket(&self, w: &Work<'_>) -> bool {
        w.f.cold.pace_at <= self.now && w.region.limits().next() <= self.now
    }

    /// Asks the flow's own bucket, and then those of its application ([`flow::Limits`]): while these are empty all its flows wait in the
    /// backlog. The own one is a token bucket of [`BURST`] bytes, or [`BURST_LIMITED`] segments, that fills at the flow's rate. It is kept
    /// as a time, `pace_at`: when the bucket would be full, less the time worth of the bytes taken. It may be overdrawn by one segment, by
    /// two where the rate is the decision.
    pub(crate) fn pace(&mut self, w: &mut Work<'_>, len: u32) -> bool {
        let cold = &mut *w.f.cold;
        let time = |bytes: u64| Duration::from_ns(bytes * 1_000_000_000 / cold.pace_rate);
        let limited = BURST_LIMITED * u64::from(w.f.tx.mss);
        let burst = time(if is_strict(cold) { limited } else { BURST });
        let full = Instant::from_ns(self.now.as_ns().saturating_sub(burst.as_ns()));
        // Where the rate is the decision two segments go together: a receiver acknowledges every second full segment at once (RFC 5681
        // section 4.2), but a lone one after up to 40 ms, and then the sender knows neither the round trip nor what was delivered.
        let is_pair = cold.window.decides_rate() && !self.lists.pacer.contains(w.id.0);
        let ahead = if is_pair { time(u64::from(w.f.tx.mss)) } else { Duration::ZERO };
        if self.now.plus(ahead) < cold.pace_at {
            self.lists.pacer.wait(w.id.0, cold.pace_at);
            return false;
        }
        let (region, limits) = (w.f.rx.region, w.region.limits());
        if self.rest_if_empty(region, limits) {
            self.wait_for_turn(w);
            return false;
        }
        cold.pace_at = cold.pace_at.max(full).plus(time(u64::from(len)));
        limits.take(self.now, len);
        // At once, so that no flow of the application has a turn in which it cannot send.
        self.rest_if_empty(region, limits);
        true
    }

    /// Lets the application of `region` rest until its buckets let it send again. False if they do now.
    fn rest_if_empty(&mut self, region: u16, limits: &Limits) -> bool {
        let next = limits.next();
        let is_empty = self.now < next;
        if is_empty {
            self.lists.backlog.rest(region, next);
        }
        is_empty
    }
}

/// The longest super-frame at the flow's rate, bytes, as Linux sizes them: a millisecond's worth, at least `segments_min` segments, at
/// most half the window; longer on short paths, because a burst there is over before other traffic meets it. For a flow that is not
/// paced the rate is twice the window per round trip in slow start, else 1.2 times.
pub(crate) fn burst_at_rate(cold: &Cold, len: u32, cwnd: u32, mss: u32, segments_min: u16) -> u32 {
    /// log2 of the microseconds of round trip that halve the bytes added for short paths: half a millisecond.
    const RTT_LOG2: u32 = 9;
    let is_limited = cold.pace_rate != 0 && is_strict(cold);
    let near = if is_limited { 0 } else { BURST.checked_shr(cold.rtt_us_min >> RTT_LOG2).unwrap_or(0) };
    if near == BURST {
        return len;
    }
    let tenths = if cwnd < cold.window.ssthresh() / 2 { 20 } else { 12 };
    let round_trip_us = u64::from(cold.srtt_us.max(1));
    let unpaced = || u64::from(cwnd) * tenths * 100_000 / round_trip_us;
    let rate = if cold.pace_rate == 0 { unpaced() } else { cold.pace_rate };
    // Where the rate is kept strictly, a burst also lasts at most an eighth of a round trip.
    let most_us = if is_limited { (round_trip_us / 8).min(1_000) } else { 1_000 };
    let wanted =
        (rate.saturating_mul(most_us) / 1_024_000 + near).max(u64::from(segments_min) * u64::from(mss));
    let wanted = wanted.min(u64::from((cwnd / 2).max(mss))) as u32;
    let whole = wanted - wanted % mss;
    // Leave no single segment after a longer super-frame: it would carry no PSH.
    let is_lone = len > whole && len - whole <= mss && whole > 2 * mss;
    if is_lone { whole - mss } else { len.min(whole) }
}

/// Bytes left of the super-frame begun before. As on Linux, a super-frame is at most half the peer's largest window (but two segments
/// are always allowed): data that waited for an acknowledgement is cut into such pieces, and each piece ends with PSH, even when it is
/// sent in parts.
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
