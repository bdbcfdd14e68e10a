//! What the registry does by itself, and when: sweeps of closed connections, looks for descriptors that no process has, and the deadlines of
//! its parts. The control loop waits until the next deadline and says what time it is then; no clock is read here.

use crate::registry::{Registry, Sweep};
use std::time::{Duration, Instant};

/// First and longest pause between sweeps of closed pair slots; doubles while a sweep finds nothing.
const SWEEP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// Shortest time between a look for what no live process holds and the next one that a message has caused.
const REAP_PAUSE: Duration = Duration::from_millis(5);
/// First pause after a process has died: its peers are about to read the end and close their sides.
const SOON: Duration = Duration::from_millis(50);

impl Registry {
    /// When there is something to do, if nothing else happens; `None`: never.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !(self.outputs.is_empty() && self.unheard.is_empty())
            || self.trusts.changed
            || self.ports.is_expecting()
        {
            return Some(self.now);
        }
        let look = self.trusts.due(self.now);
        let sweep = self.timers.sweep.map(|sweep| sweep.at);
        let scaling = self.scaling.due().map(|at| self.tcp.system_time(at));
        let parts = [self.counting.due(), self.held.due(self.now), self.agents_due()];
        [look, sweep, self.timers.reap, self.tcp.due(), scaling].into_iter().chain(parts).flatten().min()
    }

    /// Does all that is due. The caller carries the outputs out, and calls [`Self::pump`].
    pub fn handle_timers(&mut self) {
        let now = self.now;
        self.look_at_trusts();
        if std::mem::take(&mut self.trusts.changed) {
            self.reap_soon();
        }
        if self.timers.reap.is_some_and(|at| at <= now) {
            self.reap_on_time();
        }
        if self.timers.sweep.is_some_and(|sweep| sweep.at <= now) {
            self.sweep_on_time();
        }
        self.hold_ahead();
        self.look_at_held();
        if self.counting.handle_timer(now) {
            self.spread_switch();
        }
        let now = self.tcp_now();
        self.tcp.handle_timers(now);
        self.scaling.handle_timers(now, &mut self.tcp.slow);
        self.pump_tcp();
    }

    /// Carries out what flows and agents have decided since.
    pub fn pump(&mut self) {
        self.pump_agents();
        self.pump_tcp();
    }

    /// Regions may not be needed any more. Processes may say so without end, and a look costs as much as there is: it is not taken again at
    /// once.
    fn reap_soon(&mut self) {
        let now = self.now;
        let at = self.timers.reaped.map_or(now, |last| now.max(last + REAP_PAUSE));
        self.timers.reap = Some(self.timers.reap.map_or(at, |known| known.min(at)));
    }

    /// Ends what no live process holds.
    pub fn reap_on_time(&mut self) {
        self.timers.reap = None;
        self.reap(false);
        self.timers.reaped = Some(self.now);
        #[cfg(test)]
        {
            self.timers.reaps += 1;
        }
        // A pair region with a dead side: its memory goes as soon as the live side has closed.
        if self.has_survivors() {
            self.sweep_in(SOON);
        }
    }

    fn sweep_on_time(&mut self) {
        let Some(Sweep { pause, .. }) = self.timers.sweep else { return };
        let (freed, open) = self.sweep();
        self.release_ports();
        self.rouse_all();
        let pause = match freed {
            0 => (pause * 2).min(SWEEP.1),
            _ if self.has_survivors() => pause.min(SWEEP.0),
            _ => SWEEP.0,
        };
        let at = self.now + pause;
        self.timers.sweep = (open || self.keeps_ports()).then_some(Sweep { at, pause });
    }

    /// A connection was made: its slot is to be swept when it is closed.
    pub fn sweep_later(&mut self) {
        self.sweep_in(SWEEP.0);
    }

    /// Schedules a sweep within `pause`. An earlier one stays: a stream of new connections must not postpone it.
    fn sweep_in(&mut self, pause: Duration) {
        let at = self.now + pause;
        if self.timers.sweep.is_none_or(|sweep| at < sweep.at) {
            self.timers.sweep = Some(Sweep { at, pause });
        }
    }
}
