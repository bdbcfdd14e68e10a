//! How long an application waits for its peer: keepalive of idle connections, and the user timeout.

use crate::event::How;
use crate::timeouts::Timer;
use crate::{Count, SlowPath};
use base::{Duration, Instant};
use flow::{Command, FlowId, state};

/// `SO_KEEPALIVE`: after `idle` without a segment from the peer, `count` probes are sent, `interval` apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    /// `TCP_KEEPIDLE`: time without a segment from the peer.
    pub idle: Duration,
    /// `TCP_KEEPINTVL`: time between probes.
    pub interval: Duration,
    /// `TCP_KEEPCNT`: number of probes without an answer that end the connection.
    pub count: u8,
}

impl Default for Keepalive {
    /// Linux's defaults: 7200 s, 75 s, 9 probes.
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), count: 9 }
    }
}

/// Probes of an idle connection or closed window that the peer has not answered yet: Linux's `icsk_probes_out`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Probes {
    sent: u8,
    /// `Cold::heard_at` when the last probe was sent: any later segment of the peer changes that time, and counts as an answer.
    heard_at: Instant,
}

impl Probes {
    /// Number of consecutive probes without an answer, if the peer's last segment came at `heard_at`.
    pub(crate) fn unanswered(&self, heard_at: Instant) -> u8 {
        if heard_at == self.heard_at { self.sent } else { 0 }
    }

    /// Counts a probe sent now; the peer's last segment came at `heard_at`.
    pub(crate) fn note_sent(&mut self, heard_at: Instant) {
        *self = Self { sent: self.unanswered(heard_at).saturating_add(1), heard_at };
    }
}

impl SlowPath {
    /// When the user timeout ends a flow unless its peer acknowledges data, or opens its window, before: "If, after this
    /// time, an acknowledgment for data has not been received, the connection is closed" (RFC 5482 section 1). As in Linux it
    /// also bounds zero-window probing, which otherwise goes on for ever (RFC 9293 MUST-35).
    pub(crate) fn user_deadline(&mut self, flow: FlowId) -> Instant {
        let Some(timeout) = self.connections.get(&flow).and_then(|c| c.options.user_timeout) else {
            return Instant::NEVER;
        };
        let (una, is_outstanding, is_blocked, progress_at) = self.with_flow(flow, |parts| {
            let is_outstanding = parts.tx.snd_una != parts.tx.snd_max;
            (parts.tx.snd_una, is_outstanding, parts.rx.has(state::BLOCKED), parts.cold.progress_at)
        });
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&flow) else { return Instant::NEVER };
        if !is_outstanding && !is_blocked {
            connection.waiting = None;
            return Instant::NEVER;
        }
        let since = if is_outstanding { progress_at } else { now };
        // The timeout counts from when this byte was first waited for, whatever restarts the retransmission timer.
        let what = (una, is_outstanding);
        let (_, since) = connection.waiting.filter(|w| w.0 == what).unwrap_or((what, since));
        connection.waiting = Some((what, since));
        self.pause.waiting_since(since).plus(timeout)
    }

    /// Keepalive was switched on or off, or its times changed: starts or stops its timer.
    pub(crate) fn keepalive_changed(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow) else { return };
        let keepalive = connection.options.keepalive;
        connection.probes = Probes::default();
        let old = connection.aux.take();
        old.and_then(|timer| self.wheel.cancel(timer));
        if let Some(keepalive) = keepalive {
            self.set_aux(flow, now.plus(keepalive.idle));
        }
    }

    pub(crate) fn set_aux(&mut self, flow: FlowId, at: Instant) {
        if let Some(connection) = self.connections.get_mut(&flow) {
            connection.aux = Some(self.wheel.set(at, Timer::Aux(flow)));
        }
    }

    pub(crate) fn on_aux_timer(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow) else { return };
        connection.aux = None;
        let (core, probes, timeout) =
            (connection.owner.core, connection.probes, connection.options.user_timeout);
        let Some(keepalive) = connection.options.keepalive else {
            // An orphan in FIN-WAIT-2 has waited long enough for the peer's FIN.
            if connection.is_orphan {
                self.end(now, flow, How::Finished);
            }
            return;
        };
        let (heard_at, is_idle) = self.with_flow(flow, |parts| {
            let is_idle = parts.tx.snd_max == parts.tx.snd_una && !parts.rx.has(state::BLOCKED);
            (parts.cold.heard_at, is_idle)
        });
        let due = heard_at.plus(keepalive.idle);
        // Data in flight is retransmitted anyway, and a closed window probed: both find out whether the peer answers.
        if now < due || !is_idle {
            return self.set_aux(flow, if is_idle { due } else { now.plus(keepalive.idle) });
        }
        // As Linux: with a user timeout that timeout decides, else the number of probes.
        let unanswered = probes.unanswered(heard_at);
        let is_over = match timeout {
            Some(timeout) => unanswered > 0 && self.pause.waiting_since(heard_at).plus(timeout) <= now,
            None => unanswered >= keepalive.count,
        };
        if is_over {
            self.reset_peer(now, flow);
            return self.give_up(now, flow);
        }
        if let Some(connection) = self.connections.get_mut(&flow) {
            connection.probes.note_sent(heard_at);
        }
        self.counters.add(Count::KeepaliveProbes);
        self.output.command(core, Command::Probe { flow });
        self.set_aux(flow, now.plus(keepalive.interval));
    }
}
