//! Active opens: SYN-SENT, and SYN-RECEIVED of a simultaneous open (RFC 9293 sections 3.10.7.3 and 3.5).

use crate::ecn::{Agreed, Asks, conclude_ecn};
use crate::event::{Connect, ConnectError, Event, Owner, errno};
use crate::handshake::{Born, Negotiated, Segment, Via};
use crate::ports::Standing;
use crate::timeouts::Timer;
use crate::wheel::TimerId;
use crate::{Count, FlowOptions, SlowPath};
use base::{Duration, Instant, SeqNumber};
use flow::{Challenged, state};
use shm::half_flags;
use std::net::IpAddr;
use wire::{Endpoint, FourTuple, TcpFlags, TcpPacket};

/// An active open under way.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) token: u64,
    /// Our end is `src`.
    pub(crate) tuple: FourTuple,
    pub(crate) owner: Owner,
    pub(crate) iss: SeqNumber,
    pub(crate) next_hop: IpAddr,
    pub(crate) options: FlowOptions,
    /// What our SYN asks for about ECN.
    pub(crate) asks: Asks,
    pub(crate) sent_at: Instant,
    pub(crate) tries: u8,
    timer: Option<TimerId>,
    /// The peer's SYN, in a simultaneous open: we are in SYN-RECEIVED.
    pub(crate) crossed: Option<Crossed>,
    /// When the peer was last challenged, in SYN-RECEIVED.
    challenged: Challenged,
    /// Error number from an ICMP message, reported if the open fails for want of an answer.
    pub(crate) soft_error: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossed {
    irs: SeqNumber,
    negotiated: Negotiated,
    snd_wnd: u32,
}

impl Opening {
    /// Time to wait for an answer before the next SYN is sent.
    pub(crate) fn timeout(&self, config: &crate::Config) -> Duration {
        config.syn_timeout.times(1 << self.tries.min(16))
    }
}

impl SlowPath {
    /// Begins an active open. Returns our end; the outcome comes as an event and as OPEN or FAILED in the slot.
    ///
    /// # Errors
    /// [`ConnectError`]: nothing was begun.
    pub fn connect(&mut self, now: Instant, what: &Connect) -> Result<Endpoint, ConnectError> {
        let tuple = self.choose_tuple(now, what.local, what.remote, |_| false)?;
        let is_slot = self.region(what.owner.region).is_some_and(|r| r.halves(what.owner.slot).is_some());
        if !is_slot || usize::from(what.owner.core) >= self.output.cores() {
            return Err(ConnectError::Malformed);
        }
        if self.openings.len() >= self.config.connecting_max {
            return Err(ConnectError::TooMany);
        }
        let next_hop = self.routes.lookup(tuple.dst.addr).ok_or(ConnectError::NoRoute)?.next_hop;
        let mut iss = self.secret.isn(now, &tuple);
        if let Some(remains) = self.time_wait.reuse_for_connect(&tuple) {
            self.counters.add(Count::TimeWaitReuses);
            iss = iss.later_of(remains.snd_nxt.plus(0x1_0002));
        }
        let opening = Opening {
            token: what.token,
            tuple,
            owner: what.owner,
            iss,
            next_hop,
            options: what.options,
            asks: self.asks_for(&what.options),
            sent_at: now,
            tries: 0,
            timer: None,
            crossed: None,
            challenged: Challenged::NEVER,
            soft_error: None,
        };
        let id = self.next_opening;
        self.next_opening += 1;
        self.openings.insert(id, opening);
        self.opening_of.insert(tuple, id);
        self.opening_at.insert((what.owner.region, what.owner.slot), id);
        self.counters.add(Count::ActiveOpens);
        self.send_syn(now, id);
        Ok(tuple.src)
    }

    /// Abandons an active open without notice to the peer or the application. True when there was one.
    pub fn cancel_connect(&mut self, token: u64) -> bool {
        let found = self.openings.iter().find(|(_, opening)| opening.token == token).map(|(&id, _)| id);
        found.and_then(|id| self.take_opening(id)).is_some()
    }

    /// Chooses our end of a connection to `remote` that does not go by a TCP connection of its own. `is_used` tells which ends other such
    /// connections have.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn choose_end(
        &mut self,
        now: Instant,
        local: Endpoint,
        remote: Endpoint,
        is_used: impl Fn(Endpoint) -> bool,
    ) -> Result<Endpoint, ConnectError> {
        Ok(self.choose_tuple(now, Some(local), remote, is_used)?.src)
    }

    fn choose_tuple(
        &mut self,
        now: Instant,
        local: Option<Endpoint>,
        remote: Endpoint,
        is_used: impl Fn(Endpoint) -> bool,
    ) -> Result<FourTuple, ConnectError> {
        if remote.port == 0 {
            return Err(ConnectError::Malformed);
        }
        if self.routes.owns(remote.addr) {
            return Err(ConnectError::Ourselves);
        }
        let route = self.routes.lookup(remote.addr).ok_or(ConnectError::NoRoute)?;
        let addr = local.map(|local| local.addr).filter(|addr| !addr.is_unspecified());
        let addr = addr.unwrap_or(route.source);
        if !self.routes.owns(addr) || addr.is_ipv4() != remote.addr.is_ipv4() {
            return Err(ConnectError::NotOurs);
        }
        let mut tuple = FourTuple::new(Endpoint::new(addr, local.map_or(0, |l| l.port)), remote);
        if tuple.src.port != 0 {
            let is_free =
                !self.is_taken(&tuple) && self.time_wait.is_free(now, &tuple) && !is_used(tuple.src);
            return if is_free { Ok(tuple) } else { Err(ConnectError::InUse) };
        }
        // `ports` is taken out of `self` while it asks about the tables of `self`.
        let mut ports = std::mem::replace(&mut self.ports, crate::EphemeralPorts::new(1..=1));
        let picked = ports.pick(&self.secret, &tuple, |port| {
            let src = Endpoint::new(addr, port);
            if is_used(src) { Standing::Taken } else { self.standing(now, &FourTuple { src, ..tuple }) }
        });
        self.ports = ports;
        tuple.src.port = picked.ok_or(ConnectError::NoPort)?;
        Ok(tuple)
    }

    /// Whether an ephemeral port is free for `tuple`; a tuple in TIME-WAIT is reused as with Linux's `tcp_tw_reuse`.
    fn standing(&self, now: Instant, tuple: &FourTuple) -> Standing {
        if self.is_taken(tuple) || self.listeners.find(&tuple.src).is_some() {
            return Standing::Taken;
        }
        match self.time_wait.contains(tuple) {
            false => Standing::Free,
            true if self.time_wait.is_free(now, tuple) => Standing::Spare,
            true => Standing::Taken,
        }
    }

    /// True when a connection in any state but TIME-WAIT uses the tuple.
    fn is_taken(&self, tuple: &FourTuple) -> bool {
        self.by_tuple.contains_key(tuple)
            || self.opening_of.contains_key(tuple)
            || self.listeners.id_of(tuple).is_some()
    }

    /// Sends a SYN, or a SYN-ACK if the peer's SYN has crossed ours, and sets the timer for the next one.
    fn send_syn(&mut self, now: Instant, id: u64) {
        let Some(opening) = self.openings.get_mut(&id) else { return };
        let (tuple, core, iss, asked) = (opening.tuple, opening.owner.core, opening.iss, opening.options);
        let (timeout, tries, asks) = (opening.timeout(&self.config), opening.tries, opening.asks);
        let answer = opening.crossed.as_mut().map(|crossed| {
            let flags = crossed.negotiated.syn_ack_flags(tries);
            (crossed.irs, flags, crossed.negotiated)
        });
        let (ack, flags, options) = match answer {
            None => {
                let flags = asks.flags(tries, self.needs_ecn(&asked));
                (SeqNumber(0), flags, self.syn_options(now, &tuple, &asked))
            }
            Some((irs, flags, agreed)) => {
                (irs.plus(1), flags, self.syn_ack_options(now, &tuple, &agreed, &asked))
            }
        };
        let window = asked.syn_window(self.flow_config());
        let dscp = asked.dscp(tuple.dst.addr);
        let segment = Segment { tuple, seq: iss, ack, flags, window, options, dscp };
        // A segment that could not be sent is sent again by its timer.
        let _ = self.send_segment(now, core, &segment, Via::Route);
        let timer = self.wheel.set(now.plus(timeout), Timer::Opening(id));
        if let Some(opening) = self.openings.get_mut(&id) {
            opening.timer = Some(timer);
        }
    }

    pub(crate) fn on_opening_timer(&mut self, now: Instant, id: u64) {
        let Some(opening) = self.openings.get_mut(&id) else { return };
        opening.timer = None;
        if opening.tries >= opening.options.syn_retries(&self.config) {
            let errno = opening.soft_error.unwrap_or(errno::ETIMEDOUT);
            return self.fail_opening(id, errno);
        }
        opening.tries += 1;
        self.counters.add(Count::SynRetransmits);
        self.send_syn(now, id);
    }

    /// Handles a segment for a connection in SYN-SENT or SYN-RECEIVED.
    pub(crate) fn on_opening_segment(
        &mut self,
        now: Instant,
        core: u8,
        id: u64,
        packet: &TcpPacket,
        frame: &[u8],
    ) {
        let Some(opening) = self.openings.get(&id) else { return };
        let (header, iss) = (&packet.header, opening.iss);
        let flags = header.flags;
        let is_good_ack = flags.contains(TcpFlags::ACK) && header.ack == iss.plus(1);
        if let Some(crossed) = opening.crossed {
            return self.on_crossed_segment(now, core, id, crossed, packet, frame);
        }
        // "If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless the RST bit is set)".
        if flags.contains(TcpFlags::ACK) && !is_good_ack {
            self.counters.add(Count::UnacceptableSegment);
            return self.answer_with_reset(now, core, packet, frame);
        }
        if flags.contains(TcpFlags::RST) {
            // "If the ACK was acceptable, signal to the user 'error: connection reset'"; else drop (RFC 5961 section 3.2).
            if is_good_ack {
                self.counters.add(Count::ResetsTaken);
                self.fail_opening(id, errno::ECONNREFUSED);
            } else {
                self.counters.add(Count::UnacceptableReset);
            }
            return;
        }
        if !flags.contains(TcpFlags::SYN) {
            self.counters.add(Count::UnacceptableSegment);
            return;
        }
        let is_silent = opening.asks.is_silent(opening.tries, self.needs_ecn(&opening.options));
        let ecn = match flags.contains(TcpFlags::ACK) {
            true => conclude_ecn(packet, opening.asks, is_silent),
            false if is_silent => Agreed::default(),
            // "Host A MUST then enter the same feedback mode as it would have entered had it been a responding host" (RFC 9768 section
            // 3.1.2).
            false => self.answer_ecn(packet, &opening.options),
        };
        let negotiated = self.negotiate(packet, &opening.options, ecn);
        let crossed = Crossed { irs: header.seq, negotiated, snd_wnd: u32::from(header.window) };
        if is_good_ack {
            self.opened(now, core, id, crossed, frame);
            return;
        }
        // "Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment".
        if let Some(opening) = self.openings.get_mut(&id) {
            opening.crossed = Some(crossed);
            if let Some(timer) = opening.timer.take() {
                self.wheel.cancel(timer);
            }
        }
        self.send_syn(now, id);
    }

    /// Handles a segment in SYN-RECEIVED after a simultaneous open.
    fn on_crossed_segment(
        &mut self,
        now: Instant,
        core: u8,
        id: u64,
        crossed: Crossed,
        packet: &TcpPacket,
        frame: &[u8],
    ) {
        let Some(opening) = self.openings.get(&id) else { return };
        let (header, iss) = (&packet.header, opening.iss);
        let window = u32::from(opening.options.syn_window(self.flow_config()));
        let is_within = header.seq.is_within(crossed.irs.plus(1), window);
        if header.flags.contains(TcpFlags::RST) {
            if header.seq == crossed.irs.plus(1) {
                self.counters.add(Count::ResetsTaken);
                return self.fail_opening(id, errno::ECONNREFUSED);
            }
            self.counters.add(Count::UnacceptableReset);
            if is_within {
                self.challenge_crossed(now, core, id, crossed, frame);
            }
            return;
        }
        // A SYN-ACK of the peer must repeat its SYN; a segment without SYN must lie in the window.
        let is_syn = header.flags.contains(TcpFlags::SYN);
        let is_acceptable = if is_syn { header.seq == crossed.irs } else { is_within };
        if !is_acceptable {
            self.counters.add(Count::UnacceptableSegment);
            return self.challenge_crossed(now, core, id, crossed, frame);
        }
        let is_good_ack = header.flags.contains(TcpFlags::ACK) && header.ack == iss.plus(1);
        if !is_good_ack {
            self.counters.add(Count::UnacceptableSegment);
            if header.flags.contains(TcpFlags::ACK) {
                self.answer_with_reset(now, core, packet, frame);
            }
            return;
        }
        let window = u32::from(header.window) << if is_syn { 0 } else { crossed.negotiated.shifts.0 };
        let is_data = !packet.payload.is_empty() && !is_syn;
        let owner = self.opened(now, core, id, Crossed { snd_wnd: window, ..crossed }, frame);
        if let Some(owner) = owner.filter(|_| is_data) {
            // Data that finds no room is lost, and the peer sends it again.
            let _ = self.return_frame(owner.core, frame);
        }
    }

    /// Sends a challenge ACK in SYN-RECEIVED (RFC 5961 section 4.2), if the connection was not challenged a moment ago.
    fn challenge_crossed(&mut self, now: Instant, core: u8, id: u64, crossed: Crossed, frame: &[u8]) {
        let Some(opening) = self.openings.get_mut(&id) else { return };
        if !opening.challenged.take(now) {
            return self.counters.add(Count::ChallengeLimited);
        }
        let (tuple, mac, shift) = (opening.tuple, crate::source_mac(frame), crossed.negotiated.shifts.1);
        let remains = crossed.negotiated.remains(&self.secret, tuple, opening.iss, crossed.irs);
        self.challenge(now, core, tuple, &remains, mac, shift);
    }

    /// The handshake is complete: installs the flow in ESTABLISHED.
    fn opened(&mut self, now: Instant, core: u8, id: u64, peer: Crossed, frame: &[u8]) -> Option<Owner> {
        let mut opening = self.take_opening(id)?;
        opening.owner.core = self.core_for(&opening.tuple, core);
        let took = now.since(opening.sent_at);
        let mac = self.neighbours.known(opening.next_hop).unwrap_or(crate::source_mac(frame));
        let born = Born {
            tuple: opening.tuple,
            owner: opening.owner,
            snd_nxt: opening.iss.plus(1),
            rcv_nxt: peer.irs.plus(1),
            snd_wnd: peer.snd_wnd,
            negotiated: peer.negotiated,
            rtt: (opening.tries == 0).then_some(took),
            repeats: opening.tries,
            took,
            since: opening.sent_at,
            mac,
            options: opening.options,
            is_active: true,
        };
        let Owner { region, slot, .. } = opening.owner;
        match self.give_birth(now, &born) {
            Ok(flow) => {
                // The end that opens a connection usually sends first, and may have no data with which to acknowledge the peer's reply.
                // So, as in Linux, acknowledgements are not delayed until the application has replied once.
                self.with_flow(flow, |parts| parts.rx.set(state::QUICK));
                self.events.push_back(Event::Established { token: opening.token, flow });
                Some(opening.owner)
            }
            Err(_) => {
                let remains = peer.negotiated.remains(&self.secret, opening.tuple, opening.iss, peer.irs);
                self.send_reset(now, core, opening.tuple, &remains);
                self.report_failure(opening.token, region, slot, errno::ENOBUFS);
                None
            }
        }
    }

    pub(crate) fn fail_opening(&mut self, id: u64, errno: u16) {
        if let Some(opening) = self.take_opening(id) {
            self.report_failure(opening.token, opening.owner.region, opening.owner.slot, errno);
        }
    }

    fn report_failure(&mut self, token: u64, region: u16, slot: u32, errno: u16) {
        self.counters.add(Count::FailedOpens);
        self.raise(region, slot, half_flags::FAILED | u32::from(errno) << half_flags::ERRNO_SHIFT);
        self.events.push_back(Event::ConnectFailed { token, errno });
    }

    pub(crate) fn take_opening(&mut self, id: u64) -> Option<Opening> {
        let opening = self.openings.remove(&id)?;
        self.opening_of.remove(&opening.tuple);
        self.opening_at.remove(&(opening.owner.region, opening.owner.slot));
        if let Some(timer) = opening.timer {
            self.wheel.cancel(timer);
        }
        Some(opening)
    }
}
