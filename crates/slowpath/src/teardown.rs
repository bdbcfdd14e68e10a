//! The end of connections: FINs in every order, RST, and the release of records and slots.
//!
//! ```text
//!                  Command::Drop    application has read everything, or lets go
//!  live --end--> leaving ----------------------------------------------------> record free (Event::Released)
//! ```
//! A connection that has ended leaves the flow table at once, so that its port pair is free; its record and its rings stay
//! with the core until the application no longer needs them.

use crate::event::{Event, How, Owner, Release};
use crate::path_search::Search;
use crate::patience::Probes;
use crate::time_wait::Remains;
use crate::wheel::TimerId;
use crate::{Count, FlowOptions, SlowPath};
use base::{Instant, SeqNumber};
use flow::{Command, FlowId, FlowMut, class, state};
use shm::half_flags;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use wire::FourTuple;

/// TCP state of a connection (RFC 9293 section 3.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum State {
    /// LISTEN: waiting for a SYN.
    Listen,
    /// SYN-SENT: our SYN was sent.
    SynSent,
    /// SYN-RECEIVED: SYNs were sent and received.
    SynReceived,
    /// ESTABLISHED: open in both directions.
    Established,
    /// Our FIN is on its way.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer's FIN has come; we may still send.
    CloseWait,
    /// Both FINs crossed; ours is not acknowledged.
    Closing,
    /// The peer's FIN came first; ours is on its way.
    LastAck,
    /// TIME-WAIT: both FINs are acknowledged, but old segments may still arrive.
    TimeWait,
    /// CLOSED: the connection has ended.
    Closed,
}

/// An event that changes the state of a synchronised connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Our FIN was sent.
    FinSent,
    /// Our FIN was acknowledged.
    FinAcked,
    /// The peer's FIN came in order.
    FinReceived,
    /// Either end has reset the connection, or it was given up.
    Reset,
}

impl State {
    /// The next state (RFC 9293 figure 5). A step that cannot happen in a state changes nothing: it is a repetition.
    #[must_use]
    pub const fn next(self, step: Step) -> Self {
        match (self, step) {
            (Self::TimeWait | Self::Closed | Self::Listen, _) => self,
            (_, Step::Reset) => Self::Closed,
            (Self::Established, Step::FinSent) => Self::FinWait1,
            (Self::Established, Step::FinReceived) => Self::CloseWait,
            (Self::FinWait1, Step::FinAcked) => Self::FinWait2,
            (Self::FinWait1, Step::FinReceived) => Self::Closing,
            (Self::FinWait2, Step::FinReceived) => Self::TimeWait,
            (Self::CloseWait, Step::FinSent) => Self::LastAck,
            (Self::Closing, Step::FinAcked) => Self::TimeWait,
            (Self::LastAck, Step::FinAcked) => Self::Closed,
            _ => self,
        }
    }

    /// The state with the record's flags taken into account: our FIN may have been sent in the meantime. If the peer's FIN came before
    /// it, this state contains that already, or will when the core's report is handled.
    #[must_use]
    pub(crate) const fn with_own_fin(self, flags: u32, closed_first: bool) -> Self {
        let is_sent = flags & state::FIN_SENT != 0;
        let is_second = flags & state::FIN_RECEIVED != 0 && !closed_first;
        match self {
            Self::Established if is_sent && !is_second => Self::FinWait1,
            Self::CloseWait if is_sent => Self::LastAck,
            _ => self,
        }
    }
}

/// The slow path's state of a flow.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Our end is `src`.
    pub(crate) tuple: FourTuple,
    pub(crate) owner: Owner,
    pub(crate) next_hop: IpAddr,
    /// The number of this connection among all that the service has made: see `FlowName`.
    pub(crate) birth: u32,
    pub(crate) state: State,
    /// The application has let go of the slot (released it).
    pub(crate) is_orphan: bool,
    /// The connection has ended: it is out of the flow table, and the core was told to let go.
    pub(crate) is_over: bool,
    /// Timer of retransmission and window probes.
    pub(crate) retransmit: Option<TimerId>,
    /// When the retransmission timer last expired.
    pub(crate) fired_at: Instant,
    /// When the first of the consecutive timeouts was found: Linux's `retrans_stamp`.
    pub(crate) silent_from: Instant,
    /// For the user timeout: the oldest byte not acknowledged, whether it is in flight (else held by the peer's window), and since when.
    pub(crate) waiting: Option<((SeqNumber, bool), Instant)>,
    /// Timer of keepalive, or of FIN-WAIT-2 for an orphan.
    pub(crate) aux: Option<TimerId>,
    pub(crate) options: FlowOptions,
    /// Unanswered probes of keepalive or of a closed window.
    pub(crate) probes: Probes,
    pub(crate) search: Search,
    pub(crate) path_timer: Option<TimerId>,
}

impl Connection {
    pub(crate) fn new(tuple: FourTuple, owner: Owner, next_hop: IpAddr, state: State) -> Self {
        Self {
            tuple,
            owner,
            next_hop,
            birth: 0,
            state,
            is_orphan: false,
            is_over: false,
            retransmit: None,
            fired_at: Instant::ZERO,
            silent_from: Instant::ZERO,
            waiting: None,
            aux: None,
            options: FlowOptions::default(),
            probes: Probes::default(),
            search: Search::default(),
            path_timer: None,
        }
    }
}

impl SlowPath {
    /// The core reports that our FIN was acknowledged, or that the peer's FIN has come.
    pub(crate) fn on_fin(&mut self, now: Instant, flow: FlowId, step: Step) {
        if !self.connections.contains_key(&flow) {
            return;
        }
        let (flags, closed_first) = self.with_flow(flow, |parts| (parts.rx.flags, parts.cold.closed_first));
        let Some(connection) = self.connections.get_mut(&flow).filter(|c| !c.is_over) else { return };
        let mut state = connection.state;
        // The core does not report when it sends our FIN, only, once both FINs are known, which was sent first. Taking ours for the
        // first would lead a passive closer to TIME-WAIT, which is the state of the active closer.
        if step == Step::FinAcked || closed_first {
            state = state.next(Step::FinSent);
        }
        state = state.next(step);
        connection.state = state.with_own_fin(flags, closed_first);
        self.settle(now, flow);
    }

    /// Ends the connection, or starts the timer of FIN-WAIT-2, as its state requires.
    fn settle(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow) else { return };
        match connection.state {
            State::TimeWait | State::Closed => self.end(now, flow, How::Finished),
            _ => self.limit_fin_wait_2(now, flow),
        }
    }

    /// The application has let go of a live flow's slot; its FIN, if it sent one, is queued after its data.
    pub(crate) fn on_app_closed(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow).filter(|c| !c.is_over) else { return };
        connection.options.keepalive = None;
        if let Some(timer) = connection.aux.take() {
            self.wheel.cancel(timer);
        }
        if !self.make_orphan(flow) {
            self.counters.add(Count::OrphanResets);
            return self.abort(now, flow);
        }
        let mask = state::FIN_QUEUED | state::FIN_SENT | state::FIN_ACKED;
        let (flags, closed_first) = self.with_flow(flow, |parts| (parts.rx.flags, parts.cold.closed_first));
        // A core may see in one turn that the slot is released before it sees the FIN, which the application has set first.
        if flags & mask == 0 && self.app_has(flow, half_flags::FIN) != Some(true) {
            // Without a FIN the flow would never end: the application broke the rules, or was killed while closing.
            return self.abort(now, flow);
        }
        if let Some(connection) = self.connections.get_mut(&flow) {
            connection.state = connection.state.with_own_fin(flags, closed_first);
        }
        self.settle(now, flow);
    }

    /// The application has asked for a reset.
    pub(crate) fn on_app_reset(&mut self, now: Instant, flow: FlowId) {
        if !self.connections.contains_key(&flow) {
            return;
        }
        if self.app_has(flow, half_flags::RELEASED) != Some(false) {
            self.make_orphan(flow);
        }
        self.abort(now, flow);
    }

    /// Whether the application has set that flag of its half. `None`: its region is gone.
    fn app_has(&self, flow: FlowId, flag: u32) -> Option<bool> {
        let owner = self.connections.get(&flow)?.owner;
        let region = self.region(owner.region)?;
        let (_, peer) = region.halves(owner.slot)?;
        // Acquire: pairs with the application's `stream::raise`.
        Some(peer.flags.load(Ordering::Acquire) & flag != 0)
    }

    /// Resets a flow: the peer gets a RST, the application ECONNRESET.
    pub fn abort(&mut self, now: Instant, flow: FlowId) {
        self.reset_peer(now, flow);
        self.end(now, flow, How::ResetByUs);
    }

    /// Sends a RST to the peer of a live flow.
    pub(crate) fn reset_peer(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get(&flow).filter(|c| !c.is_over) else { return };
        let (core, tuple) = (connection.owner.core, connection.tuple);
        let remains = self.with_flow(flow, remains_of);
        self.send_reset(now, core, tuple, &remains);
    }

    /// Ends a connection. Its tuple is free at once, except in TIME-WAIT.
    pub(crate) fn end(&mut self, now: Instant, flow: FlowId, how: How) {
        let Some(connection) = self.connections.get_mut(&flow).filter(|c| !c.is_over) else { return };
        if how != How::Finished {
            connection.state = connection.state.next(Step::Reset);
        }
        connection.is_over = true;
        let birth = connection.birth;
        self.orphans -= usize::from(connection.is_orphan);
        let (owner, tuple, is_orphan) = (connection.owner, connection.tuple, connection.is_orphan);
        let timers = [connection.retransmit.take(), connection.aux.take(), connection.path_timer.take()];
        timers.into_iter().flatten().for_each(|timer| {
            self.wheel.cancel(timer);
        });
        if connection.state == State::TimeWait {
            self.enter_time_wait(now, flow, tuple);
        }
        self.keeper.remove(flow);
        self.note_end(birth, flow);
        self.by_tuple.remove(&tuple);
        let flags = match how {
            How::Finished => 0,
            How::ResetByPeer | How::ResetByUs => half_flags::RESET,
            How::TimedOut(errno) => {
                half_flags::RESET | half_flags::FAILED | u32::from(errno) << half_flags::ERRNO_SHIFT
            }
        };
        if flags != 0 && !is_orphan {
            self.raise(owner.region, owner.slot, flags);
        }
        self.events.push_back(Event::Closed { flow, owner, how });
        self.output.command(owner.core, Command::Drop { flow });
    }

    fn enter_time_wait(&mut self, now: Instant, flow: FlowId, tuple: FourTuple) {
        let remains = self.with_flow(flow, remains_of);
        self.counters.add(Count::TimeWaits);
        if self.time_wait.insert(now, tuple, remains) {
            self.counters.add(Count::TimeWaitCrowded);
        }
    }

    /// The core has let go of a flow's record: the record becomes free.
    pub(crate) fn on_dropped(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.remove(&flow) else { return };
        let Owner { region, slot, .. } = connection.owner;
        self.keeper.release(flow);
        if let Some(parts) = self.region(region) {
            parts.set_flow(slot, None);
            // Unacknowledged bytes will never be consumed: from now on the application may reuse its send ring.
            if let Some((own, _)) = parts.halves(slot) {
                queue::stream::raise(own, half_flags::RELEASED);
            }
        }
        self.events.push_back(Event::Released { region, slot });
        self.remove_region_if_idle(now, region);
    }

    /// The application has released a slot (`Request::Closed`, or its death, after which the service has raised the missing flags in
    /// its half). Returns whether the slot is free, or will be at [`Event::Released`].
    pub fn release_slot(&mut self, region: u16, slot: u32) -> Release {
        let flow = self.region(region).and_then(|r| r.flow_of(slot));
        let Some(flow) = flow.filter(|flow| self.connections.contains_key(flow)) else {
            self.opening_at.get(&(region, slot)).copied().and_then(|id| self.take_opening(id));
            return Release::Free;
        };
        let Some(core) = self.connections.get(&flow).map(|c| c.owner.core) else { return Release::Free };
        // The core sees RELEASED in the slot and reports it.
        self.output.command(core, Command::Transmit { flow });
        Release::Pending
    }

    /// Sends an acknowledgement for a connection in TIME-WAIT.
    pub(crate) fn acknowledge_remains(
        &mut self,
        now: Instant,
        core: u8,
        tuple: FourTuple,
        remains: &Remains,
        mac: wire::MacAddr,
    ) {
        let (seq, ack): (SeqNumber, SeqNumber) = (remains.snd_nxt, remains.rcv_nxt);
        let options = remains.options(now);
        let (flags, window) = (wire::TcpFlags::ACK, 0);
        let segment =
            crate::handshake::Segment { tuple, seq, ack, flags, window, options, dscp: remains.dscp };
        // The peer sends again what was not answered.
        let _ = self.send_segment(now, core, &segment, crate::handshake::Via::Reply(mac));
    }
}

/// The state of a flow from which a control segment is built.
fn remains_of(parts: &mut FlowMut<'_>) -> Remains {
    Remains {
        snd_nxt: parts.tx.snd_max,
        rcv_nxt: parts.rx.rcv_nxt,
        ts_recent: parts.rx.has(state::TIMESTAMPS).then_some(parts.rx.ts_recent),
        ts_offset: parts.cold.ts_offset,
        dscp: parts.tx.traffic & class::DSCP,
    }
}

#[cfg(test)]
mod tests {
    use super::State::{
        CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, Listen, SynReceived, SynSent,
        TimeWait,
    };
    use super::*;

    /// RFC 9293 figure 5, state by step: FIN sent, FIN acknowledged, FIN received, reset.
    #[test]
    fn state_by_step() {
        let table = [
            (Listen, [Listen, Listen, Listen, Listen]),
            (SynSent, [SynSent, SynSent, SynSent, Closed]),
            (SynReceived, [SynReceived, SynReceived, SynReceived, Closed]),
            (Established, [FinWait1, Established, CloseWait, Closed]),
            (FinWait1, [FinWait1, FinWait2, Closing, Closed]),
            (FinWait2, [FinWait2, FinWait2, TimeWait, Closed]),
            (CloseWait, [LastAck, CloseWait, CloseWait, Closed]),
            (Closing, [Closing, TimeWait, Closing, Closed]),
            (LastAck, [LastAck, Closed, LastAck, Closed]),
            (TimeWait, [TimeWait, TimeWait, TimeWait, TimeWait]),
            (Closed, [Closed, Closed, Closed, Closed]),
        ];
        let steps = [Step::FinSent, Step::FinAcked, Step::FinReceived, Step::Reset];
        for (state, next) in table {
            assert_eq!(steps.map(|step| state.next(step)), next, "{state:?}");
        }
    }
}
