//! What an acknowledgement says about losses: RACK (RFC 8985 section 6) over the scoreboard, with times known to a burst.
//!
//! A segment is lost when one sent after it was delivered and the time a reordered one might take has passed. When each was
//! sent is known to a sixteenth of a round trip from the marks (`board`), which for the comparison of neighbours is exact.

use crate::setup::{State, Work};
use base::{Duration, Instant, SeqNumber};
use flow::{Episode, FlowMut, Interval, Kind, Run, state};
use wire::{SackBlocks, TcpPacket};

/// Segments that may overtake one as far as `tcpi_reordering` tells (Linux's `tcp_max_reordering`).
const REORDERING_MAX: u32 = 300;

/// "DupThresh" (RFC 6675 section 2).
pub(crate) const THRESHOLD: u32 = 3;

/// What one acknowledgement brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    /// "DeliveredData": bytes not known to be delivered before (RFC 6937 section 3).
    pub(crate) bytes: u32,
    /// When the segment that was sent last among them was sent, and its end.
    latest: Option<(u32, SeqNumber)>,
    /// When the one delivered last was sent: with what was overtaken, not the same.
    last_at: u32,
    /// Round-trip times of data sent once.
    pub(crate) rtt: Option<RoundTrip>,
    /// Something that counted as lost has arrived though it was not sent again.
    pub(crate) is_original: bool,
    /// Something that was sent again was acknowledged with an older timestamp than its repetition's.
    pub(crate) is_delayed: bool,
    /// What filled the oldest gap, where that was sent again and the timestamp tells.
    pub(crate) oldest: Option<Sending>,
    /// The peer reports more than before.
    pub(crate) is_held_more: bool,
    /// It reports a duplicate (RFC 2883).
    pub(crate) duplicate: Option<Interval>,
    /// It has thrown away what it had reported.
    is_reneged: bool,
    /// "A duplicate ACK without any SACK information" (RFC 8985 section 7.4.2), data or window.
    pub(crate) is_pure_duplicate: bool,
    /// Bytes by which something sent earlier was overtaken, at most.
    reordered: u32,
}

impl News {
    /// Nothing but a round-trip time.
    pub(crate) fn timed(us: u32) -> Self {
        Self { rtt: Some(RoundTrip { first: us, last: us }), ..Self::default() }
    }
}

/// Which of a segment's sendings has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sending {
    First,
    Repeated,
}

/// What an acknowledgement says about the path's round trip, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RoundTrip {
    /// Of the segment that waited longest: with it the time that the peer delays acknowledgements is part of the smoothed time, so that
    /// timeouts allow for it.
    pub(crate) first: u32,
    /// Of the one that was sent last: the path's own.
    pub(crate) last: u32,
}

/// The later of two segments in order of sending: "RACK_sent_after" (RFC 8985 section 6.2).
fn is_sent_after(a: (u32, SeqNumber), b: (u32, SeqNumber)) -> bool {
    if a.0 == b.0 { b.1.is_before(a.1) } else { SeqNumber(b.0).is_before(SeqNumber(a.0)) }
}

impl State {
    /// The time in microseconds modulo 2^32.
    #[inline]
    pub(crate) fn now_us(&self) -> u32 {
        self.now_us
    }

    /// Our timestamp when it was `at`, not long ago.
    fn stamp(&self, f: &FlowMut<'_>, at: u32) -> u32 {
        let ago = u64::from(self.now_us().wrapping_sub(at));
        f.cold.timestamp(Instant::from_ns(self.now.as_us().saturating_sub(ago) * 1_000))
    }

    /// Takes in what a segment says was delivered, before `snd_una` moves.
    #[cold]
    pub(crate) fn take_news(&mut self, w: &mut Work<'_>, p: &TcpPacket, advanced: bool) -> News {
        let f = &mut w.f;
        let (una, ack) = (f.tx.snd_una, p.header.ack);
        let echo = p.options.timestamps.filter(|ts| f.rx.has(state::TIMESTAMPS) && ts.echo != 0);
        let echo = echo.map(|ts| ts.echo);
        let highest = self.records.highest(f);
        let mut news = News::default();
        if advanced {
            let range = Interval { left: una, right: ack };
            self.deliver(f, range, highest, echo, &mut news);
            // "RTT samples MUST NOT be made using segments that were retransmitted" (RFC 6298 section 3): which of them the peer has
            // answered is not known.
            let is_again = |run: Option<Run>| run.is_some_and(|run| run.was_sent_again());
            if self.records.find(f.cold, range, is_again).is_some() {
                news.rtt = None;
            }
            self.records.set(f.cold, range, None, 0);
            // RFC 2018 section 8: what was reported begins where the acknowledgement ends, so it would have been acknowledged.
            let first = self.records.runs(f.cold).first();
            news.is_reneged = first.is_some_and(|run| run.kind == Kind::Held && run.left == ack);
        }
        if f.rx.has(state::SACK) {
            self.take_blocks(f, &p.options.sack, una.later_of(ack), highest, echo, &mut news);
        }
        if news.reordered > 0 {
            let places = news.reordered.div_ceil(u32::from(f.tx.mss)).min(REORDERING_MAX) as u16;
            let r = &mut f.cold.recovery;
            (r.is_reordered, r.reordering) = (true, r.reordering.max(places));
            r.reorderings = r.reorderings.saturating_add(1);
        }
        news
    }

    /// Blocks outside what is in flight are ignored, and new ones when the board is full.
    fn take_blocks(
        &mut self,
        f: &mut FlowMut<'_>,
        blocks: &SackBlocks,
        una: SeqNumber,
        highest: SeqNumber,
        echo: Option<u32>,
        news: &mut News,
    ) {
        let blocks = blocks.as_slice();
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
            } else if una.is_before(range.left) && range.right.is_at_or_before(f.tx.snd_max) {
                let before = news.bytes;
                self.deliver(f, range, highest, echo, news);
                if news.bytes != before {
                    news.is_held_more |= self.records.set(f.cold, range, Some(Kind::Held), 0);
                }
            }
        }
    }

    /// `range` has arrived.
    fn deliver(
        &self,
        f: &FlowMut<'_>,
        range: Interval,
        highest: SeqNumber,
        echo: Option<u32>,
        news: &mut News,
    ) {
        let now = self.now_us();
        self.records.pieces(f.cold, range, |piece, run| {
            let kind = run.map(|run: Run| run.kind);
            if kind == Some(Kind::Held) {
                return;
            }
            news.bytes += piece.right.since(piece.left);
            let at = match run.filter(|_| kind == Some(Kind::Again)) {
                Some(run) => {
                    // Which sending has arrived? RFC 8985 section 6.2 step 2: not the repetition when an older timestamp is
                    // echoed, or when it would have been faster than ever.
                    let is_older =
                        echo.is_some_and(|e| SeqNumber(e).is_before(SeqNumber(self.stamp(f, run.at))));
                    let is_early = now.wrapping_sub(run.at) < f.cold.rtt_us_min;
                    news.is_delayed |= is_older;
                    // The echo is that of the segment "that advanced the left edge of the window" (RFC 7323 section 4.3 in short);
                    // others that were sent again, even later, may have come before it.
                    if piece.left == f.tx.snd_una && echo.is_some() && (is_older || !is_early) {
                        news.oldest = Some(if is_older { Sending::First } else { Sending::Repeated });
                    }
                    if is_older || is_early {
                        return;
                    }
                    run.at
                }
                // One of its sendings; nothing is known about when.
                None if run.is_some_and(|run| run.was_sent_again()) => return,
                None => {
                    news.is_original |= kind == Some(Kind::Lost);
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
            if news.latest.is_none_or(|latest| is_sent_after((at, piece.right), latest)) {
                news.latest = Some((at, piece.right));
            }
        });
    }

    /// `piece` was sent once and has arrived. What is acknowledged comes before what is reported, which says more of the path.
    fn measure_delivery(&self, f: &FlowMut<'_>, piece: Interval, news: &mut News) {
        let ago = |seq| self.records.measured_at(f, seq).map(|at| self.now_us().wrapping_sub(at));
        let (Some(first), Some(last)) = (ago(piece.left), ago(piece.right.minus(1))) else { return };
        let earlier = news.rtt;
        news.rtt = Some(RoundTrip {
            first: earlier.map_or(first, |rtt| rtt.first),
            last: earlier.map_or(last, |rtt| rtt.last.min(last)),
        });
    }

    /// Draws the conclusions, after `snd_una` has moved.
    #[cold]
    pub(crate) fn judge(&mut self, w: &mut Work<'_>, news: &News, advanced: bool) {
        let f = &mut w.f;
        if let Some((at, end)) = news.latest {
            let r = &mut f.cold.recovery;
            if r.rack_rtt_us == u32::MAX || is_sent_after((at, end), (r.rack_at, r.rack_end)) {
                (r.rack_at, r.rack_end) = (at, end);
            }
            // "RACK.rtt: the RTT of the most recently delivered segment" (section 5.2 in short), though others were sent after it: where
            // one was late, so may be those that were sent with it.
            r.rack_rtt_us = self.now_us().wrapping_sub(news.last_at);
        }
        if advanced || news.is_held_more {
            f.cold.recovery.stalls = 0;
        }
        if let Some(range) = news.duplicate {
            self.on_duplicate(f, range);
        }
        if f.cold.recovery.episode != Episode::None {
            self.go_on(f, news, advanced);
        } else if self.is_all_duplicate(f, news) {
            // The last report came after the end of what it says was needless.
            self.undo(f);
        }
        let mut is_lost = news.is_reneged && {
            let whole = Interval { left: f.tx.snd_una, right: f.tx.snd_max };
            let is_held = |run: Option<Run>| run.is_some_and(|run| run.kind == Kind::Held);
            self.records.turn(f.cold, whole, Some(Kind::Lost), is_held)
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

    /// The time that a segment may be late for being reordered: `RACK_update_reo_wnd` (RFC 8985 section 6.2 step 4).
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
    /// super-frames one acknowledgement may stand for many segments, so bytes tell what counting would miss.
    fn is_much_held(&self, f: &FlowMut<'_>) -> bool {
        let is_held = |run: &&Run| run.kind == Kind::Held;
        f.cold.recovery.held > (THRESHOLD - 1) * u32::from(f.tx.mss)
            || self.records.runs(f.cold).iter().filter(is_held).count() >= THRESHOLD as usize
    }

    /// `RACK_detect_loss` (RFC 8985 section 6.2 step 5): whether anything is lost that did not count as lost before, and when
    /// to look again.
    pub(crate) fn detect(&mut self, f: &mut FlowMut<'_>) -> (bool, Option<Instant>) {
        let r = &f.cold.recovery;
        // In recovery what has no mark may be behind something sent again.
        let is_calm = f.cold.runs == 0 && r.episode == Episode::None;
        if is_calm || r.rack_rtt_us == u32::MAX || !f.rx.has(state::SACK) {
            return (false, None);
        }
        let rack = (r.rack_at, r.rack_end);
        let patience = r.rack_rtt_us.saturating_add(self.reordering_window(f));
        // Microseconds until what was sent at `at` counts as lost.
        let now = self.now_us();
        let left = |at: u32| i64::from(patience) - i64::from(now.wrapping_sub(at));
        let mut next = i64::MAX;
        // What was sent once and before the one delivered last: the order of sending is that of the numbers.
        let mut below = f.tx.snd_una;
        for (end, at) in self.records.bursts(f) {
            let end = match (at == rack.0, is_sent_after((at, end), rack)) {
                (false, true) => break,
                (true, true) => rack.1,
                _ => end,
            };
            if left(at) > 0 {
                if below.is_before(end) {
                    next = left(at);
                }
                break;
            }
            below = below.later_of(end);
        }
        let range = Interval { left: f.tx.snd_una, right: below };
        let mut any =
            below != range.left && self.records.turn(f.cold, range, Some(Kind::Lost), |run| run.is_none());
        let whole = Interval { left: f.tx.snd_una, right: f.tx.snd_max };
        // Strictly before, for what was sent once is known to a burst only.
        let is_before = |run: &Run| run.kind == Kind::Again && SeqNumber(run.at).is_before(SeqNumber(rack.0));
        any |= self.records.turn(f.cold, whole, Some(Kind::Lost), |run| {
            run.is_some_and(|run| is_before(&run) && left(run.at) <= 0)
        });
        let again = self.records.runs(f.cold).iter().filter(|run| is_before(run)).map(|run| left(run.at));
        let next = again.fold(next, i64::min);
        let at = (next != i64::MAX).then(|| self.now.plus(Duration::from_us(next.max(1) as u64)));
        (any, at)
    }
}
