//! Timers of flows: retransmission (RFC 6298), window probes, keepalive, FIN-WAIT-2. Only *active* flows are in the wheel: an idle
//! flow has no timer at all.

use crate::event::{How, errno};
use crate::{Count, SlowPath};
use base::{Duration, Instant};
use flow::{Command, Config, FlowId, FlowMut, state};
use std::net::IpAddr;

/// Most doublings of the timeout; `rto_max` bounds it earlier.
const BACKOFF_MAX: u8 = 32;
/// After so many timeouts in a row the next hop is asked whether it is there: "the value of R1 SHOULD correspond to at least 3
/// retransmissions" (RFC 9293 SHLD-10), Linux's `tcp_retries1`.
const DOUBT_AFTER: u8 = 3;

/// A core's tail loss probe may be due exactly at the timeout, and goes first (RFC 8985 section 7.2): time that the core is given to
/// send it.
const PROBE_FIRST: Duration = Duration::from_ms(10);

/// What a timer of the wheel is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    Retransmit(FlowId),
    Aux(FlowId),
    /// The search for the path MTU.
    Path(FlowId),
    Opening(u64),
    HalfOpen(u64),
    Neighbour(IpAddr),
    /// A region that some core has not let go of yet.
    Region(u16),
    /// Time for a core to answer while groups of flows move.
    Move,
}

/// Result of the retransmission timer.
enum Verdict {
    /// No data is in flight: the flow leaves the wheel.
    Idle,
    /// The timer is to be set to this time.
    Wait(Instant),
    /// The window is closed: send a window probe.
    Probe { backoff: u8, next: Instant, heard_at: Instant },
    /// The data in flight is lost. If the peer has closed its window behind it but still answers, it only has no room.
    Lost { backoff: u8, next: Instant, is_closed: bool, heard_at: Instant },
}

impl SlowPath {
    /// Handles all timers that are due. Call at [`next_deadline`](Self::next_deadline), or more often.
    pub fn handle_timers(&mut self, now: Instant) {
        // Time never goes back; two threads may read the clock in another order than they get here.
        let now = now.max(self.now);
        self.now = now;
        if self.pause.may_judge(now, self.next_timer()) {
            self.run_timers(now);
        }
        self.output.flush();
    }

    fn run_timers(&mut self, now: Instant) {
        while let Some(timer) = self.wheel.pop_due(now) {
            self.foresee();
            match timer {
                Timer::Retransmit(flow) => self.on_retransmit_timer(now, flow),
                Timer::Aux(flow) => self.on_aux_timer(now, flow),
                Timer::Path(flow) => self.on_path_timer(now, flow),
                Timer::Opening(id) => self.on_opening_timer(now, id),
                Timer::HalfOpen(id) => self.on_half_open_timer(now, id),
                Timer::Neighbour(addr) => self.on_neighbour_timer(now, addr),
                Timer::Region(index) => self.on_region_timer(now, index),
                Timer::Move => self.on_move_timer(),
            }
        }
        self.time_wait.expire(now);
    }

    /// With tens of thousands of flows in flight, timers come in no order: prefetches the next flow while this one is handled.
    fn foresee(&self) {
        if let Some(Timer::Retransmit(flow)) = self.wheel.next_at_once() {
            self.keeper.flows().prefetch_waiting(*flow);
            self.connections.prefetch(*flow);
        }
    }

    fn next_timer(&self) -> Instant {
        self.wheel.next_deadline().min(self.time_wait.next_deadline())
    }

    /// When [`handle_timers`](Self::handle_timers) is to be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let timers = self.pause.next_deadline(self.next_timer());
        // A core's ring is full; the core is working, so try again soon.
        if self.output.is_backed_up() { timers.min(self.now.plus(Duration::from_ms(1))) } else { timers }
    }

    /// The core has sent data and no timer ran, or the running timer was backed off and must be set for the plain timeout.
    pub(crate) fn on_active(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow).filter(|c| !c.is_over) else { return };
        let running = connection.retransmit;
        if running.is_none() || self.with_flow(flow, |parts| parts.cold.backoff == 0) {
            running.and_then(|timer| self.wheel.cancel(timer));
            if let Some(connection) = self.connections.get_mut(&flow) {
                connection.fired_at = Instant::ZERO;
            }
            self.set_retransmit(flow, now.plus(self.keeper.flows().config().rto_min));
        }
        self.resume_search(now, flow);
    }

    fn set_retransmit(&mut self, flow: FlowId, at: Instant) {
        let at = at.min(self.user_deadline(flow));
        if let Some(connection) = self.connections.get_mut(&flow) {
            connection.retransmit = Some(self.wheel.set(at, Timer::Retransmit(flow)));
        }
    }

    fn on_retransmit_timer(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow) else { return };
        connection.retransmit = None;
        let fired_at = connection.fired_at;
        if self.user_deadline(flow) <= now {
            return self.give_up(now, flow);
        }
        let config = self.flow_config();
        match self.with_flow(flow, |parts| judge(now, fired_at, config, parts)) {
            Verdict::Idle => {}
            Verdict::Wait(until) => self.set_retransmit(flow, until),
            Verdict::Probe { backoff, next, heard_at } => {
                if self.is_probed_out(now, flow, backoff, heard_at) {
                    return;
                }
                let Some(connection) = self.connections.get_mut(&flow) else { return };
                connection.fired_at = now;
                let core = connection.owner.core;
                self.counters.add(Count::WindowProbes);
                self.output.command(core, Command::Probe { flow });
                self.set_retransmit(flow, next);
            }
            Verdict::Lost { backoff, next, is_closed, heard_at } => {
                let silent = self.silent_timeouts(now, flow, backoff, is_closed.then_some(heard_at));
                let is_over = if is_closed {
                    self.is_probed_out(now, flow, backoff, heard_at)
                } else {
                    self.is_silent_too_long(now, flow)
                };
                if is_over {
                    return;
                }
                let Some(connection) = self.connections.get_mut(&flow) else { return };
                connection.fired_at = now;
                let (core, next_hop) = (connection.owner.core, connection.next_hop);
                self.counters.add(Count::Timeouts);
                self.suspect_path(now, flow, silent);
                self.output.command(core, Command::Transmit { flow });
                self.set_retransmit(flow, next);
                if silent >= DOUBT_AFTER {
                    self.doubt_neighbour(now, core, next_hop);
                }
            }
        }
    }

    /// Number of consecutive timeouts that speak against the path. That is all of them, unless the peer has closed its window behind the
    /// data in flight (`closed`: when it was last heard): then its answers show that segments arrive and that it has no room for them.
    fn silent_timeouts(&mut self, now: Instant, flow: FlowId, backoff: u8, closed: Option<Instant>) -> u8 {
        let Some(connection) = self.connections.get_mut(&flow) else { return 0 };
        let silent = closed.map_or(backoff, |heard_at| {
            backoff.min(connection.probes.unanswered(heard_at).saturating_add(1))
        });
        if silent <= 1 {
            connection.silent_from = now;
        }
        silent
    }

    /// Gives the flow up after too many probes without an answer. A peer that answers may keep its window closed for ever (RFC 9293
    /// MUST-37), even behind data in flight: "SHOULD NOT time out the connection if data beyond the right window edge is not
    /// acknowledged" (SHLD-17).
    fn is_probed_out(&mut self, now: Instant, flow: FlowId, backoff: u8, heard_at: Instant) -> bool {
        let most = self.tries_most(flow);
        let Some(connection) = self.connections.get_mut(&flow) else { return true };
        connection.probes.note_sent(heard_at);
        let tries = if connection.is_orphan { backoff } else { connection.probes.unanswered(heard_at) };
        if tries <= most {
            return false;
        }
        self.give_up(now, flow);
        true
    }

    fn tries_most(&self, flow: FlowId) -> u8 {
        let is_orphan = self.connections.get(&flow).is_some_and(|c| c.is_orphan);
        if is_orphan { self.config.orphan_retries } else { self.config.retries }
    }

    /// Gives the flow up when nothing was acknowledged for the time that so many timeouts would take on a short path. As in Linux,
    /// `tcp_retries2` stands for a time, so that R2 is the same for every path ("at least 100 seconds", RFC 9293 SHLD-11).
    fn is_silent_too_long(&mut self, now: Instant, flow: FlowId) -> bool {
        let Some(connection) = self.connections.get(&flow) else { return true };
        let since = self.pause.waiting_since(connection.silent_from);
        let config = self.flow_config();
        if now.since(since) < time_of(self.tries_most(flow), config.rto_min, config.rto_max) {
            return false;
        }
        self.give_up(now, flow);
        true
    }

    pub(crate) fn give_up(&mut self, now: Instant, flow: FlowId) {
        let soft = self.with_flow(flow, |parts| parts.cold.soft_error);
        self.counters.add(Count::GivenUp);
        self.end(now, flow, How::TimedOut(if soft == 0 { errno::ETIMEDOUT } else { soft }));
    }
}

/// Duration of `tries` timeouts in a row after the first, when they begin with `rto_min` and double up to `rto_max`.
fn time_of(tries: u8, rto_min: Duration, rto_max: Duration) -> Duration {
    (0..=tries).fold(Duration::ZERO, |sum, n| sum.plus(rto_min.times(1 << n.min(BACKOFF_MAX)).min(rto_max)))
}

/// Under the record's lock: decides whether the oldest segment is lost; if so, rewinds the flow.
fn judge(now: Instant, fired_at: Instant, config: &Config, parts: &mut FlowMut<'_>) -> Verdict {
    let (rx, tx, cold) = (&mut *parts.rx, &mut *parts.tx, &mut *parts.cold);
    let is_outstanding = tx.snd_una != tx.snd_max;
    let is_blocked = !is_outstanding && rx.has(state::BLOCKED);
    if !is_outstanding && !is_blocked {
        rx.clear(state::TIMER_ARMED);
        cold.backoff = 0;
        return Verdict::Idle;
    }
    if cold.progress_at > fired_at {
        cold.backoff = 0;
    }
    let timeout =
        |backoff: u8| cold.rto.times(1 << backoff.min(BACKOFF_MAX)).min(config.rto_max.max(cold.rto));
    let due = cold.timeout_from(rx.flags).max(fired_at).plus(timeout(cold.backoff));
    let is_probe_first = is_outstanding && config.tail_probes && cold.is_probe_due(rx.flags);
    let due = if is_probe_first { due.plus(PROBE_FIRST) } else { due };
    if now < due {
        return Verdict::Wait(due);
    }
    // RFC 6298 (5.5): "The host MUST set RTO <- RTO * 2 ('back off the timer')".
    let backoff = cold.backoff.saturating_add(1);
    let next = now.plus(timeout(backoff));
    cold.backoff = backoff;
    let (is_closed, heard_at) = (tx.snd_wnd == 0, cold.heard_at);
    if is_blocked {
        return Verdict::Probe { backoff, next, heard_at };
    }
    // The core reduces the window, once it has handled the packets that have come in meanwhile.
    cold.counters.timeouts = cold.counters.timeouts.saturating_add(1);
    cold.recovery.expired_at = now;
    tx.rewind();
    // Karn's rule: data sent twice is not timed.
    rx.clear(state::TIMING);
    Verdict::Lost { backoff, next, is_closed, heard_at }
}
