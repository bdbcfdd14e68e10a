//! The invariants of a host that hold at every instant, and the check that nothing remains in it at the end.

use crate::host::{Home, Host, Lane, Use};
use base::{Duration, Instant};
use flow::{FlowId, FlowMut, state};
use slowpath::Census;

/// Largest number of sockets in a failure message about one host.
const DESCRIBED: usize = 12;

/// The resources that a host still uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leftovers {
    /// Sockets that applications have not closed.
    pub sockets: usize,
    /// Connections that wait to be accepted.
    pub waiting: usize,
    /// Slots of all regions in use.
    pub slots: usize,
    /// Number of entries in the slow path's tables.
    pub slow: Census,
    /// Bytes of receive rings lent; the rings that a core keeps ready for reuse count until [`Host::retire`].
    pub receive_bytes: u64,
    /// Pages of send rings lent.
    pub send_pages: usize,
    /// Gap records that flows have borrowed.
    pub gap_records: usize,
}

impl Host {
    /// The resources in use now.
    #[must_use]
    pub fn leftovers(&self) -> Leftovers {
        Leftovers {
            sockets: self.sockets.len(),
            waiting: self.sockets.waiting(),
            slots: self.homes.iter().flat_map(|home| &home.uses).filter(|u| **u != Use::Free).count(),
            slow: self.slow.census(),
            receive_bytes: self.lent(),
            send_pages: self.homes.iter().map(|home| home.mapped.lent_pages()).sum(),
            gap_records: self.lanes.iter().map(|lane| lane.core.gap_records()).sum(),
        }
    }

    fn lent(&self) -> u64 {
        self.homes.iter().map(|home: &Home| home.region.lent()).sum()
    }

    /// Removes the regions of all applications, as when their last processes have ended, and returns what is still in use then: in a host without a
    /// leak, [`Leftovers::default`]. The host cannot be used afterwards.
    ///
    /// # Panics
    /// When the core does not give the regions back within ten seconds of virtual time.
    pub fn retire(&mut self, now: Instant) -> Leftovers {
        let before = self.leftovers();
        (0..self.homes.len()).for_each(|region| self.slow.remove_region(now, region as u16));
        let until = now.plus(Duration::from_secs(10));
        let mut now = now;
        while self.drained < self.homes.len() {
            assert!(now <= until, "a region is not given back: {:?}", self.leftovers());
            self.run(now);
            while self.next_frame().is_some() {}
            now = now.plus(Duration::from_ms(1));
        }
        Leftovers { receive_bytes: self.lent(), ..before }
    }

    /// Lists the first sockets of TCP with the contents of their records, and the slow path's counters, for a failure message.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut left = DESCRIBED;
        self.slow.for_each_socket(|socket| {
            if left == 0 {
                return;
            }
            left -= 1;
            text.push_str(&format!("\n    {:?} {} {:?}", socket.state, socket.local, socket.remote));
            if let Some(mut guard) = socket.flow.and_then(|flow| self.slow.flows().lock_briefly(flow)) {
                let FlowMut { rx, tx, cold, .. } = guard.parts();
                text.push_str(&format!("\n      {rx:?}\n      {tx:?}\n      {:?}", cold.counters));
            }
        });
        let counts = self.slow.counters().iter().filter(|(_, n)| *n > 0);
        counts.for_each(|(name, n)| text.push_str(&format!("\n    {name} {n}")));
        text
    }

    /// Checks the record of every flow, and that no flow has sent something again without a reason.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut found = Ok(());
        self.slow.for_each_socket(|socket| {
            let Some(flow) = socket.flow else { return };
            let Some(mut guard) = self.slow.flows().lock_briefly(flow) else { return };
            let parts = guard.parts();
            let checked = check_flow(&parts)
                .and_then(|()| self.check_intervals(&parts))
                .and_then(|()| self.check_lists(flow, parts.rx.core));
            if let (Ok(()), Err(what)) = (&found, checked) {
                found = Err(format!("{} -> {:?}: {what}", socket.local, socket.remote));
            }
        });
        found.and_then(|()| self.check_processors())?;
        self.repeats.breach.clone().map_or(Ok(()), Err)
    }

    /// Intervals ahead of gaps lie beyond `rcv_nxt`, are not empty, are in order and do not touch.
    fn check_intervals(&self, f: &FlowMut<'_>) -> Result<(), String> {
        let Some(lane) = self.lanes.get(usize::from(f.rx.core)) else { return Ok(()) };
        let held = lane.core.intervals(f);
        if held.len() != usize::from(f.cold.ahead.count) || held.is_empty() != (f.rx.has_ahead == 0) {
            return Err(format!("{} intervals: {:?}", held.len(), f.rx));
        }
        let mut end = f.rx.rcv_nxt;
        for interval in held {
            if !end.is_before(interval.left) || !interval.left.is_before(interval.right) {
                return Err(format!("{interval:?} after {end:?} of {held:?}"));
            }
            end = interval.right;
        }
        if f.rx.rcv_edge.is_before(end) { Err(format!("{held:?} beyond {:?}", f.rx)) } else { Ok(()) }
    }

    /// A flow is in the lists of the core that serves it, and of no other.
    fn check_lists(&self, flow: FlowId, core: u8) -> Result<(), String> {
        let lists =
            |(i, lane): (usize, &Lane)| (lane.core.lists(flow) && i != usize::from(core)).then_some(i);
        match self.lanes.iter().enumerate().find_map(lists) {
            Some(other) => Err(format!("a flow of core {core} is in the lists of core {other}")),
            None => Ok(()),
        }
    }
}

/// The invariants of one record.
fn check_flow(f: &FlowMut<'_>) -> Result<(), String> {
    let FlowMut { rx, tx, cold, .. } = f;
    let ensure = |holds: bool, what: &str| if holds { Ok(()) } else { Err(format!("{what}: {rx:?} {tx:?}")) };
    // RFC 9293 section 3.3.1: SND.UNA =< SND.NXT. Our snd_nxt may go back to SND.UNA; snd_max is the highest number sent.
    ensure(!tx.snd_nxt.is_before(tx.snd_una), "snd_una <= snd_nxt")?;
    ensure(!tx.snd_max.is_before(tx.snd_nxt), "snd_nxt <= snd_max")?;
    ensure(!rx.rcv_edge.is_before(rx.rcv_nxt) || rx.has(state::FIN_RECEIVED), "rcv_nxt <= rcv_edge")?;
    ensure(!rx.rcv_nxt.is_before(rx.last_ack), "last_ack <= rcv_nxt")?;
    // In recovery cwnd is the amount that proportional rate reduction allows now, pipe + sndcnt (RFC 6937 section 3): it may be zero.
    ensure(tx.mss > 0 && (tx.cwnd > 0 || rx.has(state::RECOVERY)), "mss and cwnd are positive")?;
    ensure(cold.window.is_programmed() == cold.program.is_some(), "a program and its law belong together")?;
    let most = if cold.recovery.is_unheard() { u32::from(tx.mss) } else { u32::MAX };
    let is_programs = !cold.window.is_programmed() || tx.cwnd == cold.window.cwnd().min(most);
    ensure(is_programs, "nothing but its program sets the window of a flow, and timeouts without an answer")?;
    ensure(rx.unread() <= base::limits::RING_MAX * 2, "unread bytes fit the rings")?;
    let r = &cold.recovery;
    let known = if cold.runs > 0 { r.held + r.lost + r.again } else { 0 };
    ensure(known <= tx.in_flight(), "the scoreboard knows of no more than is in flight")
}
