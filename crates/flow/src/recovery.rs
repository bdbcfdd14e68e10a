//! A flow's state of loss recovery: the first runs of the scoreboard, RACK, PRR, undo.

use base::{Duration, Instant, SeqNumber};
use congestion::Window;

/// Runs that every record has room for: enough to repair one hole, or everything after a timeout. A flow that needs more borrows
/// a loss record from its core.
pub const RUNS: usize = 4;

/// What is known of a run of sequence numbers in flight. Numbers in no run were sent once, and nothing was heard of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    /// The peer has reported these bytes by SACK (RFC 2018).
    #[default]
    Held,
    /// These bytes count as lost and were not retransmitted since.
    Lost,
    /// These bytes were retransmitted, at `Run::at`.
    Again,
}

/// A run of sequence numbers in the same state: `[left, right)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Run {
    /// First sequence number of the run.
    pub left: SeqNumber,
    /// First sequence number after the run.
    pub right: SeqNumber,
    /// For `Again`: when the bytes were retransmitted, microseconds modulo 2^32; the last of them, where the times were not kept apart. For
    /// `Lost`: 1 if they were retransmitted and lost again.
    pub at: u32,
    /// What is known of these bytes.
    pub kind: Kind,
    /// Bytes of several kinds were joined here for lack of room. Of each it is unknown whether it was reported, and how often it was sent;
    /// `kind` is `Again`, so all of them count as in flight.
    pub is_joined: bool,
}

impl Run {
    /// A place without a run.
    pub const NOTHING: Self =
        Self { left: SeqNumber(0), right: SeqNumber(0), at: 0, kind: Kind::Held, is_joined: false };

    /// True when the bytes were sent more than once, so that it is unknown which sending an acknowledgement means.
    #[must_use]
    pub fn was_sent_again(&self) -> bool {
        self.kind == Kind::Again || self.kind == Kind::Lost && self.at != 0
    }
}

/// The episode of loss recovery that a flow is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Episode {
    /// No losses are being repaired.
    #[default]
    None,
    /// Fast recovery, until `recover` is acknowledged.
    Fast,
    /// Repair after a timeout, until `recover` is acknowledged.
    Timeout,
}

/// Episodes of repair after timeouts: Linux's `tcpi_total_rto_recoveries` and `tcpi_total_rto_time`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Timeouts {
    /// When the present repair began; `ZERO`: there is none.
    since: Instant,
    /// Milliseconds that all finished repairs took.
    ms: u32,
    /// Number of repairs begun; consecutive timeouts count as one.
    pub episodes: u16,
}

impl Timeouts {
    /// One repair of `time`, by the timeouts of the handshake.
    #[must_use]
    pub fn of_handshake(time: Duration) -> Self {
        Self { since: Instant::ZERO, ms: time.as_ms().min(u64::from(u32::MAX)) as u32, episodes: 1 }
    }

    /// Notes a timeout; `is_first`: something was acknowledged since the timeout before.
    pub fn begin(&mut self, now: Instant, is_first: bool) {
        self.episodes = self.episodes.saturating_add(u16::from(is_first));
        if self.since == Instant::ZERO {
            self.since = now;
        }
    }

    /// The repair has ended: everything is acknowledged, or nothing was lost.
    pub fn end(&mut self, now: Instant) {
        (self.ms, self.since) = (self.ms_until(now), Instant::ZERO);
    }

    /// Milliseconds that all repairs took, including the present one up to `now`.
    #[must_use]
    pub fn ms_until(&self, now: Instant) -> u32 {
        let lately = if self.since == Instant::ZERO { Duration::ZERO } else { now.since(self.since) };
        self.ms.saturating_add(lately.as_ms().min(u64::from(u32::MAX)) as u32)
    }
}

/// The state of loss recovery. A check of a flow in flight that finds nothing to do touches only its first line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Recovery {
    /// When the oldest data was first retransmitted since the last news, or probed for: the timeout counts from here, if later than
    /// `progress_at`. While the flow [is impatient](crate::Cold::is_impatient): when the episode began, or its first partial acknowledgement came.
    pub restart_at: Instant,
    /// When the slow path found a timeout that the core has not carried out yet; `ZERO`: none.
    pub expired_at: Instant,
    /// Bytes in runs that are `Held`.
    pub held: u32,
    /// Bytes in runs that are `Lost`.
    pub lost: u32,
    /// Bytes in runs that are `Again`.
    pub again: u32,
    /// RFC 8985 `RACK.xmit_ts`, microseconds modulo 2^32: send time of the delivered segment that was sent last.
    pub rack_at: u32,
    /// RFC 8985 `RACK.end_seq`: the end of that segment.
    pub rack_end: SeqNumber,
    /// RFC 8985 `RACK.rtt`, microseconds; `u32::MAX` when there is none.
    pub rack_rtt_us: u32,
    /// RFC 8985 `RACK.dsack_round`; valid while `has_dsack_round`.
    pub dsack_round: SeqNumber,
    /// End of the tail loss probe (RFC 8985 `TLP.end_seq`).
    pub probe_end: SeqNumber,
    /// Most segments that have overtaken one; 3 before anything is known (`tcpi_reordering`).
    pub reordering: u16,
    /// `dsack_round` is valid.
    pub has_dsack_round: bool,
    /// RFC 8985 `RACK.reordering_seen`: reordering was seen on this path.
    pub is_reordered: bool,
    /// The present episode.
    pub episode: Episode,
    /// A retransmission has restarted the timeout since the last news from the peer.
    pub is_restarted: bool,
    /// Number of probes for silence in this episode since the last news from the peer; `u8::MAX`: none are sent until it is heard.
    pub stalls: u8,
    /// The last probe was new data, not a retransmission.
    pub is_probe_new: bool,
    /// No round trip was measured since the last probe.
    pub is_probe_unmeasured: bool,
    /// Step of RFC 5682 (F-RTO) after a timeout, 1 to 3; 0: not under way.
    pub frto: u8,
    /// The first runs, in order; they do not overlap.
    pub runs: [Run; RUNS],
    /// Bytes that became `Lost` since the flow began, a byte as often as it did; modulo 2^32.
    pub lost_total: u32,
    /// Number of acknowledgements that showed reordering.
    pub reorderings: u32,
    /// Number of duplicates that the peer has reported by D-SACK.
    pub duplicates: u32,
    /// RFC 8985 `RACK.reo_wnd_mult`: multiplier of the reordering window.
    pub reo_mult: u8,
    /// RFC 8985 `RACK.reo_wnd_persist`: recoveries until the multiplier is reset.
    pub reo_persist: u8,
    /// RFC 6937 `prr_delivered`, bytes.
    pub prr_delivered: u32,
    /// RFC 6937 `prr_out`, bytes.
    pub prr_out: u32,
    /// RFC 6937 `RecoverFS`, bytes.
    pub prr_flight: u32,
    /// `snd_una` when the episode began.
    pub undo_from: SeqNumber,
    /// Bytes retransmitted in the episode that the peer has not reported as duplicates.
    pub undo_bytes: u32,
    /// The episode has retransmitted something and may still be undone: nothing else indicates congestion.
    pub may_undo: bool,
    /// End in the stream of what was in flight when an episode was last undone.
    pub undone_until: u64,
    /// Timestamps show that some retransmission of the episode was needed.
    pub was_needed: bool,
    /// State of congestion control before the episode.
    pub before: Window,
}

impl Recovery {
    /// A timeout was carried out, and the peer has acknowledged and reported nothing since.
    #[must_use]
    #[inline]
    pub const fn is_unheard(&self) -> bool {
        matches!(self.episode, Episode::Timeout) && self.stalls == u8::MAX
    }

    /// The state of a flow without losses.
    #[must_use]
    pub const fn new(window: Window) -> Self {
        Self {
            runs: [Run::NOTHING; RUNS],
            held: 0,
            lost: 0,
            lost_total: 0,
            again: 0,
            rack_at: 0,
            rack_end: SeqNumber(0),
            rack_rtt_us: u32::MAX,
            dsack_round: SeqNumber(0),
            has_dsack_round: false,
            is_reordered: false,
            reordering: 3,
            reorderings: 0,
            duplicates: 0,
            reo_mult: 1,
            reo_persist: 0,
            episode: Episode::None,
            frto: 0,
            is_restarted: false,
            stalls: 0,
            is_probe_new: false,
            is_probe_unmeasured: false,
            prr_delivered: 0,
            prr_out: 0,
            prr_flight: 0,
            undo_from: SeqNumber(0),
            undo_bytes: 0,
            may_undo: false,
            undone_until: 0,
            was_needed: false,
            probe_end: SeqNumber(0),
            before: window,
            restart_at: Instant::ZERO,
            expired_at: Instant::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_in_a_row_are_one_repair_and_its_time_counts_while_it_lasts() {
        let ms = |n| Instant::ZERO.plus(Duration::from_ms(n));
        let mut timeouts = Timeouts::of_handshake(Duration::from_ms(1500));
        assert_eq!((timeouts.episodes, timeouts.ms_until(ms(9_000))), (1, 1500));
        timeouts.begin(ms(9_000), true);
        timeouts.begin(ms(9_400), false);
        assert_eq!((timeouts.episodes, timeouts.ms_until(ms(10_000))), (2, 2500));
        timeouts.end(ms(10_000));
        timeouts.end(ms(11_000));
        assert_eq!((timeouts.episodes, timeouts.ms_until(ms(20_000))), (2, 2500));
    }
}
