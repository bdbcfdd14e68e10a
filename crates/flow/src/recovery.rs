//! What a flow knows of its losses, as far as it must outlive a packet: the scoreboard's first runs, RACK, PRR, undo.

use base::{Duration, Instant, SeqNumber};
use congestion::Window;

/// Runs that every record has room for: enough to repair one hole, or everything after a timeout. More are borrowed from a
/// pool of the core's.
pub const RUNS: usize = 4;

/// What is known of a run of sequence numbers in flight. What is in no run was sent once and nothing was heard of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    /// The peer has reported it (RFC 2018).
    #[default]
    Held,
    /// It counts as lost and has not been sent again since.
    Lost,
    /// It was sent again, at `Run::at`.
    Again,
}

/// `[left, right)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Run {
    /// First sequence number.
    pub left: SeqNumber,
    /// One after the last.
    pub right: SeqNumber,
    /// When it was sent again, in microseconds modulo 2^32. Of what is lost: 1 when it was sent again before, and that is lost, too.
    pub at: u32,
    /// What is known.
    pub kind: Kind,
}

impl Run {
    /// Which sending is acknowledged cannot be told.
    #[must_use]
    pub fn was_sent_again(&self) -> bool {
        self.kind == Kind::Again || self.kind == Kind::Lost && self.at != 0
    }
}

/// What the flow is repairing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Episode {
    /// Nothing.
    #[default]
    None,
    /// Fast recovery, until `recover` is acknowledged.
    Fast,
    /// After a timeout, until `recover` is acknowledged.
    Timeout,
}

/// Repairs that timeouts began: Linux's `tcpi_total_rto_recoveries` and `tcpi_total_rto_time`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Timeouts {
    /// When the repair under way began; `ZERO`: there is none.
    since: Instant,
    /// Milliseconds that those took which are over.
    ms: u32,
    /// How many were begun; timeouts in a row are one.
    pub episodes: u16,
}

impl Timeouts {
    /// Those of the handshake.
    #[must_use]
    pub fn of_handshake(time: Duration) -> Self {
        Self { since: Instant::ZERO, ms: time.as_ms().min(u64::from(u32::MAX)) as u32, episodes: 1 }
    }

    /// A timeout; `is_first`: something was acknowledged since the one before.
    pub fn begin(&mut self, now: Instant, is_first: bool) {
        self.episodes = self.episodes.saturating_add(u16::from(is_first));
        if self.since == Instant::ZERO {
            self.since = now;
        }
    }

    /// Everything is repaired, or nothing was lost.
    pub fn end(&mut self, now: Instant) {
        (self.ms, self.since) = (self.ms_until(now), Instant::ZERO);
    }

    /// Milliseconds that repairs took, the one under way included.
    #[must_use]
    pub fn ms_until(&self, now: Instant) -> u32 {
        let lately = if self.since == Instant::ZERO { Duration::ZERO } else { now.since(self.since) };
        self.ms.saturating_add(lately.as_ms().min(u64::from(u32::MAX)) as u32)
    }
}

/// The state of loss recovery. Who looks at a flow that waits, and finds nothing, has touched the first line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Recovery {
    /// When something was last sent again: the timeout counts from there, too.
    pub restart_at: Instant,
    /// When the slow path found the flow overdue; `ZERO` when it has not, or when the core has seen to it.
    pub expired_at: Instant,
    /// Bytes in runs that are `Held`.
    pub held: u32,
    /// In runs that are `Lost`.
    pub lost: u32,
    /// In runs that are `Again`.
    pub again: u32,
    /// RFC 8985 `RACK.xmit_ts`, microseconds modulo 2^32: when what was delivered last, in order of sending, was sent.
    pub rack_at: u32,
    /// `RACK.end_seq`.
    pub rack_end: SeqNumber,
    /// `RACK.rtt`, microseconds; `u32::MAX` when there is none.
    pub rack_rtt_us: u32,
    /// `RACK.dsack_round`, while `has_dsack_round`.
    pub dsack_round: SeqNumber,
    /// End of the tail loss probe (`TLP.end_seq`).
    pub probe_end: SeqNumber,
    /// By how many segments others have overtaken one, at most; 3 before anything is known (`tcpi_reordering`).
    pub reordering: u16,
    /// See `dsack_round`.
    pub has_dsack_round: bool,
    /// `RACK.reordering_seen`.
    pub is_reordered: bool,
    /// What is being repaired.
    pub episode: Episode,
    /// Repetitions for silence in this episode since anything was heard.
    pub stalls: u8,
    /// The last probe was new data.
    pub is_probe_new: bool,
    /// Since the last probe no round trip was measured.
    pub is_probe_unmeasured: bool,
    /// RFC 5682's step 1, 2 or 3 after a timeout; 0: not under way.
    pub frto: u8,
    /// The first runs, in order; they do not overlap.
    pub runs: [Run; RUNS],
    /// Acknowledgements that showed it.
    pub reorderings: u32,
    /// Duplicates that the peer has reported.
    pub duplicates: u32,
    /// `RACK.reo_wnd_mult`.
    pub reo_mult: u8,
    /// `RACK.reo_wnd_persist`.
    pub reo_persist: u8,
    /// RFC 6937 `prr_delivered`.
    pub prr_delivered: u32,
    /// RFC 6937 `prr_out`.
    pub prr_out: u32,
    /// RFC 6937 `RecoverFS`.
    pub prr_flight: u32,
    /// `snd_una` when the episode began.
    pub undo_from: SeqNumber,
    /// Bytes sent again in the episode that the peer has not reported as duplicates.
    pub undo_bytes: u32,
    /// The episode has sent something again, and nothing else speaks of congestion.
    pub may_undo: bool,
    /// Of what it has sent again something was needed, as timestamps show.
    pub was_needed: bool,
    /// Congestion state before the episode.
    pub before: Window,
}

impl Recovery {
    /// Nothing was lost yet.
    #[must_use]
    pub const fn new(window: Window) -> Self {
        let nothing = Run { left: SeqNumber(0), right: SeqNumber(0), at: 0, kind: Kind::Held };
        Self {
            runs: [nothing; RUNS],
            held: 0,
            lost: 0,
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
            stalls: 0,
            is_probe_new: false,
            is_probe_unmeasured: false,
            prr_delivered: 0,
            prr_out: 0,
            prr_flight: 0,
            undo_from: SeqNumber(0),
            undo_bytes: 0,
            may_undo: false,
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
