//! Passive opens: SYN at a listener, SYN-RECEIVED, and the service's answer to an offered connection.

use crate::event::{AcceptError, Event, ListenError, Owner, PendingId};
use crate::handshake::{Born, Segment, Via};
use crate::listeners::HalfOpen;
use crate::time_wait::Remains;
use crate::timeouts::Timer;
use crate::{Count, FlowOptions, SlowPath, source_mac};
use base::{Duration, Instant, SeqNumber};
use flow::{Challenged, FlowId, state};
use wire::{Endpoint, TcpFlags, TcpPacket};

impl SlowPath {
    /// Listens on `at`; the unspecified address stands for all of ours of its family. The accept queue takes `backlog` + 1 connections
    /// at first; later the service sets its room with [`set_accept_room`](Self::set_accept_room).
    ///
    /// # Errors
    /// [`ListenError`], when the address is not ours or has a listener.
    pub fn listen(&mut self, at: Endpoint, token: u64, backlog: u32) -> Result<(), ListenError> {
        if !(at.addr.is_unspecified() || self.routes.owns(at.addr)) {
            return Err(ListenError::NotOurs);
        }
        if self.listeners.add(at, token, backlog) { Ok(()) } else { Err(ListenError::InUse) }
    }

    /// Removes the listener on `at` and resets its half-open connections, even offered ones. False when there is no listener.
    pub fn unlisten(&mut self, now: Instant, at: Endpoint) -> bool {
        let Some(half_open) = self.listeners.remove(&at) else { return false };
        for half_open in half_open {
            self.reset_half_open(now, &half_open);
        }
        true
    }

    /// Sets to `room` how many more connections the accept queue of listener `token` takes. Each `Incoming` uses one up.
    pub fn set_accept_room(&mut self, token: u64, room: usize) {
        self.listeners.of_token(token).for_each(|listener| listener.room = room);
    }

    /// Accepts a pending connection into `owner`'s slot; its halves must be zeroed. The slot shows OPEN, and data that came before
    /// is on its way to the core.
    ///
    /// # Errors
    /// [`AcceptError`]: the slot is not used.
    pub fn accept(&mut self, now: Instant, pending: PendingId, owner: Owner) -> Result<FlowId, AcceptError> {
        let half_open = self.take_half_open(pending.0).ok_or(AcceptError::Gone)?;
        let next_hop = self.routes.lookup(half_open.tuple.dst.addr).map(|route| route.next_hop);
        let known = next_hop.and_then(|hop| self.neighbours.known(hop));
        let options = self.listeners.get_mut(&half_open.listener).map(|l| l.options).unwrap_or_default();
        let owner = Owner { core: self.core_for(&half_open.tuple, half_open.core), ..owner };
        let took = half_open.established_at.since(half_open.sent_at);
        let is_timed = half_open.tries == 0 && !half_open.is_from_cookie && !half_open.is_deferred;
        let born = Born {
            tuple: half_open.tuple,
            owner,
            snd_nxt: half_open.iss.plus(1),
            rcv_nxt: half_open.irs.plus(1),
            snd_wnd: half_open.snd_wnd,
            negotiated: half_open.negotiated,
            rtt: is_timed.then_some(took),
            repeats: if half_open.is_deferred { 0 } else { half_open.tries },
            took,
            is_active: false,
            since: half_open.began(),
            mac: known.unwrap_or(half_open.mac),
            options,
        };
        let flow = match self.give_birth(now, &born) {
            Ok(flow) => flow,
            Err(error) => {
                self.reset_half_open(now, &half_open);
                return Err(AcceptError::NoFlow(error));
            }
        };
        self.counters.add(Count::PassiveOpens);
        for frame in &half_open.early {
            let _: bool = self.return_frame(owner.core, frame);
        }
        Ok(flow)
    }

    /// Refuses a pending connection with a RST.
    pub fn refuse(&mut self, now: Instant, pending: PendingId) {
        if let Some(half_open) = self.take_half_open(pending.0) {
            self.reset_half_open(now, &half_open);
        }
    }

    /// The accept queue turned out to be full: as in Linux, the final acknowledgement is dropped; the peer's next segment, or its
    /// answer to our next SYN-ACK, offers the connection again.
    pub fn postpone(&mut self, now: Instant, pending: PendingId) {
        let timeout = now.plus(self.config.syn_timeout);
        self.listeners.forget_early(pending.0);
        if let Some(half_open) = self.listeners.entry(pending.0) {
            half_open.is_offered = false;
            half_open.timer = Some(self.wheel.set(timeout, Timer::HalfOpen(pending.0)));
            self.counters.add(Count::AcceptQueueFull);
        }
    }

    /// Handles a SYN of no connection. `before`: the final state of the connection in TIME-WAIT that this SYN reuses.
    pub(crate) fn on_syn(
        &mut self,
        now: Instant,
        core: u8,
        packet: &TcpPacket,
        frame: &[u8],
        before: Option<Remains>,
    ) {
        let tuple = packet.tuple().reversed();
        let Some(at) = self.listeners.find(&tuple.src) else {
            self.counters.add(Count::NoListener);
            return self.answer_with_reset(now, core, packet, frame);
        };
        let most = self.config.half_open_per_listener;
        let Some(listener) = self.listeners.get_mut(&at) else { return };
        // As Linux, drop the SYN when the accept queue is full: the peer tries again, and no connection is refused.
        if listener.room == 0 {
            self.counters.add(Count::AcceptQueueFull);
            return;
        }
        let (is_full, options) = (listener.is_full(most), listener.options);
        // A peer with a connection in TIME-WAIT is no spoofed flood; and a cookie could not avoid its old sequence numbers.
        if before.is_none() {
            if self.wants_cookie(is_full) {
                return self.answer_with_cookie(now, core, at, packet, frame);
            }
            if is_full || self.listeners.half_open_len() >= self.config.half_open_max {
                self.counters.add(Count::HalfOpenFull);
                return;
            }
        }
        let ecn = self.answer_ecn(packet, &options);
        let mut iss = self.secret.isn(now, &tuple);
        if let Some(remains) = before {
            iss = iss.later_of(remains.snd_nxt.plus(0x1_0002));
        }
        let half_open = HalfOpen {
            tuple,
            listener: at,
            iss,
            irs: packet.header.seq,
            negotiated: self.negotiate(packet, &options, ecn),
            snd_wnd: u32::from(packet.header.window),
            mac: source_mac(frame),
            core,
            tries: 0,
            is_offered: false,
            is_deferred: false,
            is_from_cookie: false,
            sent_at: now,
            established_at: now,
            challenged: Challenged::NEVER,
            timer: None,
            early: Vec::new(),
        };
        if let Some(id) = self.listeners.open(half_open) {
            self.wait_for_final_ack(now, id);
            self.send_syn_ack(now, id);
        }
    }

    /// Sets the timer after which the next SYN-ACK is due. Only the timer itself sets it again: a peer that repeats its SYN must not keep the
    /// connection half-open for ever.
    fn wait_for_final_ack(&mut self, now: Instant, id: u64) {
        let Some(tries) = self.listeners.entry(id).map(|half_open| half_open.tries) else { return };
        let timer = self.wheel.set(now.plus(self.syn_ack_timeout(tries)), Timer::HalfOpen(id));
        self.listeners.set_timer(id, timer);
    }

    fn send_syn_ack(&mut self, now: Instant, id: u64) {
        let Some(asked) = self.listener_options(id) else { return };
        let window = asked.syn_window(self.flow_config());
        let Some(half_open) = self.listeners.entry(id) else { return };
        let flags = half_open.negotiated.syn_ack_flags(half_open.tries);
        let (tuple, iss, irs, agreed) = (half_open.tuple, half_open.iss, half_open.irs, half_open.negotiated);
        let (core, mac) = (half_open.core, half_open.mac);
        let options = self.syn_ack_options(now, &tuple, &agreed, &asked);
        let segment =
            Segment { tuple, seq: iss, ack: irs.plus(1), flags, window, options, dscp: agreed.dscp };
        // The timer, which runs already, sends it again.
        let _ = self.send_segment(now, core, &segment, Via::Reply(mac));
    }

    /// Options of the listener of a half-open connection.
    fn listener_options(&mut self, id: u64) -> Option<FlowOptions> {
        let at = self.listeners.entry(id)?.listener;
        self.listeners.get_mut(&at).map(|listener| listener.options)
    }

    pub(crate) fn on_half_open_timer(&mut self, now: Instant, id: u64) {
        let Some(half_open) = self.listeners.entry(id) else { return };
        half_open.timer = None;
        if half_open.is_offered {
            return;
        }
        if half_open.tries >= self.config.syn_ack_retries {
            self.counters.add(Count::HalfOpenExpired);
            self.take_half_open(id);
            return;
        }
        half_open.tries += 1;
        let (at, sent_at) = (half_open.listener, half_open.sent_at);
        self.wait_for_final_ack(now, id);
        // A flood has come since: a peer that did not answer is most likely part of it, so do not send it a second packet for its one
        // SYN. A real peer that missed our SYN-ACK repeats its SYN, which is answered.
        let is_flooded =
            self.listeners.get_mut(&at).and_then(|l| l.cookie_at).is_some_and(|at| at >= sent_at);
        if !is_flooded {
            self.counters.add(Count::SynAckRetransmits);
            self.send_syn_ack(now, id);
        }
    }

    fn syn_ack_timeout(&self, tries: u8) -> Duration {
        self.config.syn_timeout.times(1 << tries.min(16))
    }

    /// Handles a segment for a connection in SYN-RECEIVED (RFC 9293 section 3.10.7.4 with RFC 5961).
    pub(crate) fn on_half_open_segment(
        &mut self,
        now: Instant,
        core: u8,
        id: u64,
        packet: &TcpPacket,
        frame: &[u8],
    ) {
        let Some(asked) = self.listener_options(id) else { return };
        let window = u32::from(asked.syn_window(self.flow_config()));
        let is_able = self.speaks_accurately();
        let Some(half_open) = self.listeners.entry(id) else { return };
        let (header, expected, iss) = (&packet.header, half_open.irs.plus(1), half_open.iss);
        let flags = header.flags;
        if flags.contains(TcpFlags::RST) {
            if header.seq == expected {
                self.counters.add(Count::ResetsTaken);
                self.take_half_open(id);
                return;
            }
            self.counters.add(Count::UnacceptableReset);
            if header.seq.is_within(expected, window) {
                // RFC 5961 section 3.2: in the window but not exact: "the receiver MUST send an ACK (challenge ACK)".
                self.challenge_half_open(now, core, id);
            }
            return;
        }
        if flags.contains(TcpFlags::SYN) {
            // The same SYN again: our SYN-ACK was lost; answered as often as the peer may be challenged. Another SYN: a challenge ACK (RFC 5961
            // section 4.2), which makes a peer that has restarted reset the old connection.
            if header.seq == half_open.irs && !flags.contains(TcpFlags::ACK) && !half_open.is_offered {
                if half_open.negotiated.syn_again(packet, is_able).is_err() {
                    self.counters.add(Count::EcnContradictions);
                    return self.refuse(now, PendingId(id));
                }
                if !half_open.challenged.take(now) {
                    return self.counters.add(Count::ChallengeLimited);
                }
                self.counters.add(Count::SynAckRetransmits);
                half_open.tries = half_open.tries.max(1);
                return self.send_syn_ack(now, id);
            }
            self.counters.add(Count::UnacceptableSegment);
            return self.challenge_half_open(now, core, id);
        }
        if !flags.contains(TcpFlags::ACK) {
            self.counters.add(Count::UnacceptableSegment);
            return;
        }
        if header.ack != iss.plus(1) {
            self.counters.add(Count::UnacceptableSegment);
            return self.answer_with_reset(now, core, packet, frame);
        }
        let has_old_timestamp = half_open.negotiated.features & state::TIMESTAMPS != 0
            && packet
                .options
                .timestamps
                .is_some_and(|t| SeqNumber(t.value).is_before(SeqNumber(half_open.negotiated.ts_recent)));
        if !header.seq.is_within(expected, window) || has_old_timestamp {
            self.counters.add(Count::UnacceptableSegment);
            return self.challenge_half_open(now, core, id);
        }
        self.on_final_ack(now, core, id, packet, frame);
    }

    /// Sends a challenge ACK in SYN-RECEIVED, if the connection was not challenged a moment ago.
    fn challenge_half_open(&mut self, now: Instant, core: u8, id: u64) {
        let Some(half_open) = self.listeners.entry(id) else { return };
        if !half_open.challenged.take(now) {
            return self.counters.add(Count::ChallengeLimited);
        }
        let (tuple, mac, shift) = (half_open.tuple, half_open.mac, half_open.negotiated.shifts.1);
        let remains = half_open.negotiated.remains(&self.secret, tuple, half_open.iss, half_open.irs);
        self.challenge(now, core, tuple, &remains, mac, shift);
    }

    pub(crate) fn on_final_ack(&mut self, now: Instant, core: u8, id: u64, packet: &TcpPacket, frame: &[u8]) {
        let Some(half_open) = self.listeners.entry(id) else { return };
        let (is_new, at, tuple) = (!half_open.is_offered, half_open.listener, half_open.tuple);
        let header = &packet.header;
        let is_data = !packet.payload.is_empty() || header.flags.contains(TcpFlags::FIN);
        if is_new {
            half_open.negotiated.take_final(packet);
        }
        if is_new && !is_data && self.is_deferred(now, id) {
            return;
        }
        if is_new {
            let Some(listener) = self.listeners.get_mut(&at) else { return };
            if listener.room == 0 {
                // As Linux with `tcp_abort_on_overflow` 0: the peer is not reset; our next SYN-ACK makes it acknowledge again.
                self.counters.add(Count::AcceptQueueFull);
                return;
            }
            listener.room -= 1;
            let event = Event::Incoming {
                token: listener.token,
                local: tuple.src,
                remote: tuple.dst,
                pending: PendingId(id),
            };
            self.events.push_back(event);
        }
        let Some(half_open) = self.listeners.entry(id) else { return };
        half_open.core = core;
        if is_new {
            (half_open.is_offered, half_open.established_at) = (true, now);
            half_open.snd_wnd = u32::from(header.window) << half_open.negotiated.shifts.0;
            // "If SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent, then record SEG.TSval in TS.Recent" (RFC 7323 section
            // 4.3): the first data echoes this segment, not the SYN.
            if let Some(ts) = packet.options.timestamps.filter(|_| header.seq == half_open.irs.plus(1)) {
                half_open.negotiated.ts_recent = ts.value;
            }
            half_open.timer.take().and_then(|timer| self.wheel.cancel(timer));
        }
        if is_data && !self.listeners.keep_early(id, frame) {
            self.counters.add(Count::EarlyData);
        }
    }

    /// `TCP_DEFER_ACCEPT`: as in Linux, a final acknowledgement without data is dropped until the time is up. No SYN-ACK is repeated
    /// before; then one makes the peer acknowledge again.
    fn is_deferred(&mut self, now: Instant, id: u64) -> bool {
        let Some(rule) = self.listener_options(id).and_then(|options| options.defer_accept) else {
            return false;
        };
        let Some(half_open) = self.listeners.entry(id) else { return false };
        let left = rule.left(now.since(half_open.sent_at));
        let Some(left) = left.filter(|_| !half_open.is_from_cookie) else { return false };
        half_open.is_deferred = true;
        let old = half_open.timer.take();
        old.and_then(|timer| self.wheel.cancel(timer));
        let timer = self.wheel.set(now.plus(left), Timer::HalfOpen(id));
        self.listeners.set_timer(id, timer);
        true
    }

    pub(crate) fn take_half_open(&mut self, id: u64) -> Option<HalfOpen> {
        let mut half_open = self.listeners.take(id)?;
        half_open.timer.take().and_then(|timer| self.wheel.cancel(timer));
        Some(half_open)
    }

    fn reset_half_open(&mut self, now: Instant, half_open: &HalfOpen) {
        half_open.timer.and_then(|timer| self.wheel.cancel(timer));
        let HalfOpen { tuple, core, iss, irs, negotiated, .. } = *half_open;
        let remains = negotiated.remains(&self.secret, tuple, iss, irs);
        self.send_reset(now, core, tuple, &remains);
    }
}
