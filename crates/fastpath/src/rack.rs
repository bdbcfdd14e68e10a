//! What an acknowledgement says about losses: RACK (RFC 8985 section 6) over the scoreboard, with send times known per burst.
//!
//! A segment is lost when a segment sent after it was delivered and the time that reordering may take has passed. Each segment's
//! send time is known to a sixteenth of a round trip from the marks (`board`); for comparing neighbours in order that is exact.

use crate::setup::{State, Work};
use base::{Duration, Instant, SeqNumber};
use flow::{Episode, FlowMut, Interval, Kind, Run, state};
use wire::{SackBlocks, TcpPacket};

/// Most segments of reordering that `tcpi_reordering` reports (Linux's `tcp_max_reordering`).
const REORDERING_MAX: u32 = 300;

/// Two sendings of a segment are at least a round trip apart. From this least round trip on, microseconds, their timestamps, which count
/// milliseconds, differ.
const TOLD_FROM_US: u32 = 2_000;

/// "DupThresh" (RFC 6675 section 2).
pub(crate) const THRESHOLD: u32 = 3;

/// What one acknowledgement reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    /// "DeliveredData": bytes not known to be delivered before (RFC 6937 section 3).
    pub(crate) bytes: u32,
    /// Of the delivered segments, the one sent last.
    latest: Option<Sent>,
    /// Send time of the segment delivered last, microseconds modulo 2^32; with reordering it is not the one in `latest`.
    last_at: u32,
    /// Round-trip times of delivered data that was sent once.
    pub(crate) rtt: Option<RoundTrip>,
    /// Data that counted as lost has arrived though it was not retransmitted.
    pub(crate) is_original: bool,
    /// Retransmitted data was acknowledged with a timestamp older than the retransmission's.
    pub(crate) is_delayed: bool,
    /// Which sending filled the oldest gap, if the data there was retransmitted and the timestamp tells.
    pub(crate) oldest: Option<Sending>,
    /// Round trip of the retransmission that filled the oldest gap, microseconds, if the timestamp tells that it was this one.
    told_rtt: Option<u32>,
    /// The part of `bytes` that SACK blocks have reported.
    pub(crate) reported: u32,
    /// One after the last byte of what was delivered and sent once.
    pub(crate) newest: Option<SeqNumber>,
    /// SACK blocks report more data than before.
    pub(crate) is_held_more: bool,
    /// The range that the peer reports as received twice (RFC 2883).
    pub(crate) duplicate: Option<Interval>,
    /// The peer has discarded data that it had reported by SACK.
    is_reneged: bool,
    /// "A duplicate ACK without any SACK information" (RFC 8985 section 7.4.2), without data and without a new window.
    pub(crate) is_pure_duplicate: bool,
    /// Largest distance in bytes by which delivered data was overtaken by data sent later.
    reordered: u32,
}

impl News {
    /// News that contain a round-trip time only, microseconds.
    pub(crate) fn timed(us: u32) -> Self {
        Self { rtt: Some(RoundTrip { first: us, last: us }), ..Self::default() }
    }
}

/// Which sending of a segment has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sending {
    First,
    Repeated,
}

/// Round-trip times that an acknowledgement gives, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RoundTrip {
    /// Round trip of the segment that waited longest: it contains the time by which the peer delays acknowledgements, so that timeouts
    /// allow for it.
    pub(crate) first: u32,
    /// Round trip of the segment that was sent last: the path's own, without such delays.
    pub(crate) last: u32,
}

/// A segment's place in the order of sending.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Send time, microseconds modulo 2^32.
    at: u32,
    /// The sequence number behind its last byte, which orders segments of one send time.
    end: SeqNumber,
}

impl Sent {
    /// True if at `now` this segment was sent later than `other`: "RACK_sent_after" (RFC 8985 section 6.2).
    fn is_after(self, other: Self, now: u32) -> bool {
        if self.at == other.at { other.end.is_before(self.end) } else { is_earlier(other.at, self.at, now) }
    }
}

/// True if at `now` the time `a` is longer ago than `b`. Times come back after 71 minutes, so they are compared by how long they are ago:
/// then no time that was kept since an earlier loss lies ahead, where nothing that is heard could come after it.
fn is_earlier(a: u32, b: u32, now: u32) -> bool {
    now.wrapping_sub(b) < now.wrapping_sub(a)
}

impl State {
    /// The round's time in microseconds modulo 2^32.
    #[inline]
    pub(crate) fn now_us(&self) -> u32 {
        self.now_us
    }

    /// Our timestamp at the time `at`, microseconds modulo 2^32, which must be recent.
    fn stamp(&self, f: &FlowMut<'_>, at: u32) -> u32 {
        let ago = u64::from(self.now_us().wrapping_sub(at));
        f.cold.timestamp(Instant::from_ns(self.now.as_us().saturating_sub(ago) * 1_000))
    }

    /// Collects what a segment reports as delivered, before `snd_una` moves.
    #[cold]
    pub(crate) fn take_news(&mut self, w: &mut Work<'_>, p: &TcpPacket, advanced: bool) -> News {
        let f = &mut w.f;
        let (una, ack) = (f.tx.snd_una, p.header.ack);
        let echo = p.options.timestamps.filter(|ts| f.rx.has(state::TIMESTAMPS) && ts.echo != 0);
        let echo = echo.map(|ts| ts.echo);
        let highest = self.records.highest(f);
        let mut news = News::default();
        if f.cold.runs == 0 && f.cold.recovery.episode == Episode::None {
            // RACK starts anew with each trouble: what it knows of the last one may be hours old.
            f.cold.recovery.rack_rtt_us = u32::MAX;
        }
        if advanced {
            let range = Interval { left: una, right: ack };
            self.deliver(f, range, highest, echo, &mut news);
            // "RTT samples MUST NOT be made using segments that were retransmitted" (RFC 6298 section 3): it is not known which sending
            // the peer has answered.
            let is_again = |run: Option<Run>| run.is_some_and(|run| run.was_sent_again());
            if self.records.find(f.cold, range, is_again).is_some() {
                news.rtt = None;
            }
            self.set_runs(f.cold, range, None);
            if let Some(us) = news.told_rtt {
                f.cold.sample_least_rtt(us, self.now);
            }
            // RFC 2018 section 8: reported data begins exactly where the acknowledgement ends, so it would have been acknowledged too.
            let first = self.records.runs(f.cold).first();
            news.is_reneged = first.is_some_and(|run| run.kind == Kind::Held && run.left == ack);
        }
        if f.rx.has(state::SACK) {
            self.take_blocks(f, &p.options.sack, una.later_of(ack), highest, &mut news);
        }
        if news.reordered > 0 {
            let places = news.reordered.div_ceil(u32::from(f.tx.mss)).min(REORDERING_MAX) as u16;
            let r = &mut f.cold.recovery;
            (r.is_reordered, r.reordering) = (true, r.reordering.max(places));
            r.reorderings = r.reorderings.saturating_add(1);
        }
        news
    }

    /// Takes in SACK blocks. Ignores blocks outside the data in flight, and new ones when the board is full.
    fn take_blocks(
        &mut self,
        f: &mut FlowMut<'_>,
        blocks: &SackBlocks,
        una: SeqNumber,
        highest: SeqNumber,
        news: &mut News,
    ) {
        let blocks = blocks.as_slice();
        // Distances from `una`, because comparing the edges one by one lets a block through that goes round half of the number space.
        let (flight, distance) = (f.tx.snd_max.since(una), |seq: SeqNumber| seq.since(una));
        for (n, block) in blocks.iter().enumerate() {
            let range = Interval { left: block.left, right: block.right };
            if !range.left.is_before(range.right) {
                continue;
            }
            // "If the first block of the SACK option ... is below the cumulative ACK, or is contained in the second block, it
            // reports a duplicate" (RFC 2883 section 4 in short).
            let is_inside = |outer: &wire::SackBlock| {
                outer.left.is_at_or_before(range.left) && range.right.is_at_or_before(outer.right)
            };
            if n == 0 && (range.right.is_at_or_before(una) || blocks.get(1).is_some_and(is_inside)) {
                news.duplicate = Some(range);
            } else if 0 < distance(range.left)
                && distance(range.left) < distance(range.right)
                && distance(range.right) <= flight
            {
                let before = *news;
                // The peer echoes the timestamp of the segment before the gap, whatever came behind it: it keeps a new one only "if ...
                // SEG.SEQ <= Last.ACK.sent" (RFC 7323 section 4.3). So the echo does not tell which sending has arrived there. Of a probe
                // behind two lost segments it would always say "not the probe", and the timeout would have to repair them.
                self.deliver(f, range, highest, None, news);
                let is_joined = |run: Option<Run>| run.is_some_and(|run| run.is_joined);
                if news.bytes == before.bytes && self.records.find(f.cold, range, is_joined).is_none() {
                    continue;
                }
                if self.records.hold(f.cold, range) {
                    (news.is_held_more, news.reported) = (true, news.reported + news.bytes - before.bytes);
                } else {
                    // The peer repeats the report, and what is not noted would be news each time.
                    *news = before;
                }
            }
        }
    }

    /// Notes that `range` was delivered. `echo`: the timestamp of the segment at its left edge, if the acknowledgement tells it.
    fn deliver(
        &self,
        f: &FlowMut<'_>,
        range: Interval,
        highest: SeqNumber,
        echo: Option<u32>,
        news: &mut News,
    ) {
        let now = self.now_us();
        for (piece, run) in self.records.pieces(f.cold, range) {
            let kind = run.map(|run| run.kind);
            // Of joined runs it is not known what was reported, and counted, before.
            if kind == Some(Kind::Held) || run.is_some_and(|run| run.is_joined) {
                continue;
            }
            news.bytes += piece.right.since(piece.left);
            let at = match run.filter(|_| kind == Some(Kind::Again)) {
                Some(run) => {
                    // Which sending has arrived? RFC 8985 section 6.2 step 2: not the repetition when an older timestamp is
                    // echoed, or when it would have been faster than ever.
                    let is_older =
                        echo.is_some_and(|e| SeqNumber(e).is_before(SeqNumber(self.stamp(f, run.at))));
                    let us = now.wrapping_sub(run.at);
                    news.is_delayed |= is_older;
                    // The echo is that of the segment "that advanced the left edge of the window" (RFC 7323 section 4.3 in short);
                    // retransmitted segments above it, even if sent later, may have come before it.
                    let is_edge = piece.left == f.tx.snd_una && echo.is_some();
                    // A new timestamp at the edge is proof. The retransmission may well be faster than ever: if all that was sent before
                    // it is lost, it meets the first empty queue. Without it nothing else would show that loss.
                    let is_told = is_edge && !is_older && f.cold.rtt_us_min >= TOLD_FROM_US;
                    let is_early = us < f.cold.rtt_us_min && !is_told;
                    news.told_rtt = news.told_rtt.or(is_told.then_some(us));
                    if is_edge && (is_older || !is_early) {
                        news.oldest = Some(if is_older { Sending::First } else { Sending::Repeated });
                    }
                    if is_older || is_early {
                        continue;
                    }
                    run.at
                }
                // Retransmitted and lost again: it is not known which sending has arrived, nor when it was sent.
                None if run.is_some_and(|run| run.was_sent_again()) => continue,
                None => {
                    news.is_original |= kind == Some(Kind::Lost);
                    news.newest = Some(news.newest.map_or(piece.right, |end| end.later_of(piece.right)));
                    // "If any segment that was never retransmitted has been delivered below the highest delivered one,
                    // reordering has happened" (section 6.2 step 3 in short).
                    if piece.right.is_at_or_before(highest) {
                        news.reordered = news.reordered.max(highest.since(piece.left));
                    }
                    self.measure_delivery(f, piece, news);
                    self.records.sent_at(f, piece.right.minus(1))
                }
            };
            news.last_at = at;
            let sent = Sent { at, end: piece.right };
            if news.latest.is_none_or(|latest| sent.is_after(latest, now)) {
                news.latest = Some(sent);
            }
        }
    }

    /// Measures the round trip of `piece`, which was sent once. Acknowledged data comes before reported data, and says more of the path.
    fn measure_delivery(&self, f: &FlowMut<'_>, piece: Interval, news: &mut News) {
        let ago = |seq| self.records.measured_at(f, seq).map(|at| self.now_us().wrapping_sub(at));
        let (Some(first), Some(last)) = (ago(piece.left), ago(piece.right.minus(1))) else { return };
        let earlier = news.rtt;
        news.rtt = Some(RoundTrip {
            first: earlier.map_or(first, |rtt| rtt.first),
            last: earlier.map_or(last, |rtt| rtt.last.min(last)),
        });
    }

    /// Draws the conclusions from the news, after `snd_una` has moved.
    #[cold]
    pub(crate) fn judge(&mut self, w: &mut Work<'_>, news: &News, advanced: bool) {
        let (f, now) = (&mut w.f, self.now_us());
        if let Some(latest) = news.latest {
            let r = &mut f.cold.recovery;
            if r.rack_rtt_us == u32::MAX || latest.is_after(Sent { at: r.rack_at, end: r.rack_end }, now) {
                (r.rack_at, r.rack_end) = (latest.at, latest.end);
            }
            // "RACK.rtt: the RTT of the most recently delivered segment" (section 5.2 in short), even if others were sent after it: if
            // this one was late, those that were sent with it may be late, too.
            r.rack_rtt_us = now.wrapping_sub(news.last_at);
        }
        if advanced || news.is_held_more {
            let was_unheard = f.cold.recovery.is_unheard();
            (f.cold.recovery.stalls, f.cold.recovery.is_restarted) = (0, false);
            if was_unheard {
                f.allow_window();
            }
        }
        if let Some(range) = news.duplicate {
            self.on_duplicate(f, range);
        }
        if f.cold.recovery.episode != Episode::None {
            self.go_on(f, news, advanced);
        } else if self.is_all_duplicate(f, news) {
            // The last D-SACK came after the end of the episode, and shows that its retransmissions were needless.
            self.undo(f);
        }
        let mut is_lost = news.is_reneged && {
            let whole = Interval { left: f.tx.snd_una, right: f.tx.snd_max };
            let is_held = |run: Option<Run>| run.is_some_and(|run| run.kind == Kind::Held);
            self.turn_runs(f.cold, whole, Some(Kind::Lost), is_held)
        };
        is_lost |= self.detect(f).0;
        if is_lost && f.cold.recovery.episode == Episode::None {
            self.enter(f);
        }
        self.reduce(f, news.bytes, advanced && !is_lost);
        if f.rx.has(state::PROBED) {
            self.judge_probe(f, news, advanced);
        }
        self.hasten(w);
    }

    /// Microseconds that a segment may be late because of reordering: `RACK_update_reo_wnd` (RFC 8985 section 6.2 step 4).
    fn reordering_window(&self, f: &FlowMut<'_>) -> u32 {
        let r = &f.cold.recovery;
        // "If DSACK ... or reordering was never seen: in recovery, or when DupThresh segments are held, 0."
        if !r.is_reordered && (r.episode != Episode::None || self.is_much_held(f)) {
            return 0;
        }
        // "MIN(RACK.reo_wnd_mult * RACK.min_RTT / 4, SRTT)".
        let min = f.cold.rtt_us_min.min(f.cold.srtt_us);
        (u32::from(r.reo_mult).saturating_mul(min) / 4).min(f.cold.srtt_us)
    }

    /// "either DupThresh discontiguous SACKed sequences ... or more than (DupThresh - 1) * SMSS bytes" (RFC 6675 section 4). With
    /// super-frames one acknowledgement may stand for many segments, so bytes are compared as well.
    fn is_much_held(&self, f: &FlowMut<'_>) -> bool {
        let is_held = |run: &&Run| run.kind == Kind::Held;
        f.cold.recovery.held > (THRESHOLD - 1) * u32::from(f.tx.mss)
            || self.records.runs(f.cold).iter().filter(is_held).count() >= THRESHOLD as usize
    }

    /// Of data sent once, in the order of its sequence numbers: the end of what was sent before `rack` and longer ago than `patience`
    /// microseconds; and microseconds until more of it is (`i64::MAX`: there is no more).
    fn sent_before(&self, f: &FlowMut<'_>, rack: Sent, patience: u32) -> (SeqNumber, i64) {
        let (mut below, highest) = (f.tx.snd_una, self.records.highest(f));
        let mut bursts = self.records.bursts(f).peekable();
        while let Some((end, at)) = bursts.next() {
            let until = bursts.peek().map_or(at.wrapping_add(f.cold.srtt_us >> 4), |&(_, next)| next);
            let end = match (at == rack.at, Sent { at, end }.is_after(rack, self.now_us())) {
                (false, true) => break,
                (true, true) => rack.end,
                // A retransmission that went while the burst was being sent says nothing of the part that was sent after it, and which
                // part that is is not known: only what lies below delivered data was sent before that.
                (false, false) if rack.at.wrapping_sub(at) < until.wrapping_sub(at) => {
                    if highest.is_before(end) { highest } else { end }
                }
                _ => end,
            };
            let left = time_left(self.now_us(), at, patience);
            if left > 0 {
                return (below, if below.is_before(end) { left } else { i64::MAX });
            }
            below = below.later_of(end);
        }
        (below, i64::MAX)
    }

    /// `RACK_detect_loss` (RFC 8985 section 6.2 step 5). Returns whether data newly counts as lost, and when to check again.
    pub(crate) fn detect(&mut self, f: &mut FlowMut<'_>) -> (bool, Option<Instant>) {
        let r = &f.cold.recovery;
        // In recovery, data without a mark may have been sent before a retransmission that was delivered.
        let is_calm = f.cold.runs == 0 && r.episode == Episode::None;
        if is_calm || r.rack_rtt_us == u32::MAX || !f.rx.has(state::SACK) {
            return (false, None);
        }
        let rack = Sent { at: r.rack_at, end: r.rack_end };
        let patience = r.rack_rtt_us.saturating_add(self.reordering_window(f));
        let now = self.now_us();
        let (below, next) = self.sent_before(f, rack, patience);
        let left = |at: u32| time_left(now, at, patience);
        let range = Interval { left: f.tx.snd_una, right: below };
        let mut any =
            below != range.left && self.turn_runs(f.cold, range, Some(Kind::Lost), |run| run.is_none());
        let whole = Interval { left: f.tx.snd_una, right: f.tx.snd_max };
        // Strictly before, because the send time of data sent once is known per burst only.
        let is_before = |run: &Run| run.kind == Kind::Again && is_earlier(run.at, rack.at, now);
        any |= self.turn_runs(f.cold, whole, Some(Kind::Lost), |run| {
            run.is_some_and(|run| is_before(&run) && left(run.at) <= 0)
        });
        let again = self.records.runs(f.cold).iter().filter(|run| is_before(run)).map(|run| left(run.at));
        let next = again.fold(next, i64::min);
        let at = (next != i64::MAX).then(|| self.now.plus(Duration::from_us(next.max(1) as u64)));
        (any, at)
    }
}

/// Microseconds from `now` until data sent at `at` counts as lost, when it may take `patience` microseconds.
fn time_left(now: u32, at: u32, patience: u32) -> i64 {
    i64::from(patience) - i64::from(now.wrapping_sub(at))
}
