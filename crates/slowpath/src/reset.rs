//! RST and challenge ACKs: sent within limits, and a RST accepted only if exact (RFC 9293 section 3.5.2, RFC 5961).

use crate::event::How;
use crate::handshake::{Segment, Via};
use crate::time_wait::Remains;
use crate::{Count, FlowOptions, SlowPath, source_mac};
use base::{Instant, SeqNumber};
use flow::{Command, FlowId, ResetVerdict, class};
use std::net::IpAddr;
use wire::{FourTuple, MacAddr, TcpFlags, TcpOptions, TcpPacket};

impl SlowPath {
    /// Answers a segment of no connection with a RST, unless it is a RST itself:
    /// "If the ACK bit is off, sequence number zero is used, `<SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>`. If the ACK bit is on,
    /// `<SEQ=SEG.ACK><CTL=RST>`."
    pub(crate) fn answer_with_reset(&mut self, now: Instant, core: u8, packet: &TcpPacket, frame: &[u8]) {
        let header = &packet.header;
        if header.flags.contains(TcpFlags::RST) {
            return;
        }
        let tuple = packet.tuple().reversed();
        if !self.reset_limit.take(now, &self.secret, tuple.dst.addr) {
            self.counters.add(Count::ResetLimited);
            return;
        }
        let (seq, ack) = if header.flags.contains(TcpFlags::ACK) {
            (header.ack, None)
        } else {
            (SeqNumber(0), Some(header.seq.plus(header.sequence_len(packet.payload.len()))))
        };
        self.put_reset(now, core, &reset(tuple, seq, ack), Via::Reply(source_mac(frame)));
    }

    /// Resets a connection of ours. Not limited, because each connection is reset once. "If an <RST> is being generated because of a user
    /// abort, and Snd.TS.OK is set, then a Timestamps option SHOULD be included" (RFC 7323 section 5.2).
    pub(crate) fn send_reset(&mut self, now: Instant, core: u8, tuple: FourTuple, state: &Remains) {
        let options = state.options(now);
        let dscp = state.dscp;
        let segment = Segment { options, dscp, ..reset(tuple, state.snd_nxt, Some(state.rcv_nxt)) };
        self.put_reset(now, core, &segment, Via::Route);
    }

    /// Resets a flow that got data after its application let go: "if the user closed ... and data is received ... the TCP endpoint SHOULD
    /// send a RST to show that data was lost" (RFC 9293 MAY-1, SHLD-3). Its number is the one that the peer has acknowledged last, which
    /// is exactly what it expects; our own next number may be further on.
    pub(crate) fn on_late_data(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get(&flow).filter(|c| !c.is_over) else { return };
        let (core, tuple) = (connection.owner.core, connection.tuple);
        let (dscp, seq) = self.with_flow(flow, |parts| (parts.tx.traffic & class::DSCP, parts.tx.snd_una));
        let segment = Segment { dscp, ..reset(tuple, seq, None) };
        self.put_reset(now, core, &segment, Via::Route);
        self.end(now, flow, How::ResetByUs);
    }

    fn put_reset(&mut self, now: Instant, core: u8, segment: &Segment, via: Via) {
        if self.send_segment(now, core, segment, via) {
            self.counters.add(Count::ResetsSent);
        }
    }

    /// Sends a challenge ACK for a connection without a flow record, within the limit of its peer. The caller has asked the connection's own.
    pub(crate) fn challenge(
        &mut self,
        now: Instant,
        core: u8,
        tuple: FourTuple,
        state: &Remains,
        mac: MacAddr,
        shift: u8,
    ) {
        if !self.may_challenge(now, tuple.dst.addr) {
            return;
        }
        // Scaled, unlike the SYN's window (RFC 7323 section 2.2), to the right edge that the SYN-ACK promised.
        let window = FlowOptions::default().syn_window(self.flow_config()) >> shift;
        let (seq, ack, flags, options) = (state.snd_nxt, state.rcv_nxt, TcpFlags::ACK, state.options(now));
        let segment = Segment { tuple, seq, ack, flags, window, options, dscp: state.dscp };
        // The peer sends again what was not answered.
        let _ = self.send_segment(now, core, &segment, Via::Reply(mac));
    }

    /// Whether the peer may be challenged once more in this second (RFC 5961 section 7); counts.
    #[must_use]
    pub(crate) fn may_challenge(&mut self, now: Instant, peer: IpAddr) -> bool {
        let may = self.challenge_limit.take(now, &self.secret, peer);
        self.counters.add(if may { Count::Challenges } else { Count::ChallengeLimited });
        may
    }

    /// The core has received the peer's RST with the exact sequence number expected.
    pub(crate) fn on_peer_reset(&mut self, now: Instant, flow: FlowId) {
        if self.connections.get(&flow).is_some_and(|c| !c.is_over) {
            self.counters.add(Count::ResetsTaken);
            self.end(now, flow, How::ResetByPeer);
        }
    }

    /// The core has received a SYN, or a RST in the window but not exact: "TCP endpoints MUST send a challenge ACK to the remote peer"
    /// (RFC 5961 sections 3.2 and 4.2). The core has asked the connection's own limit.
    pub(crate) fn on_challenge(&mut self, now: Instant, flow: FlowId) {
        let Some(c) = self.connections.get(&flow) else { return };
        let (core, peer) = (c.owner.core, c.tuple.dst.addr);
        if self.may_challenge(now, peer) {
            self.output.command(core, Command::Ack { flow });
        }
    }

    /// Handles a RST that could not be returned to the core of its flow.
    pub(crate) fn on_flow_rst(&mut self, now: Instant, flow: FlowId, packet: &TcpPacket) {
        let (verdict, may_challenge) = self.with_flow(flow, |parts| {
            let verdict = parts.rx.judge_reset(packet.header.seq);
            (verdict, verdict == ResetVerdict::Possible && parts.cold.challenged.take(now))
        });
        match verdict {
            ResetVerdict::Exact => self.on_peer_reset(now, flow),
            ResetVerdict::Possible if may_challenge => self.on_challenge(now, flow),
            ResetVerdict::Possible => self.counters.add(Count::ChallengeLimited),
            ResetVerdict::Stray => self.counters.add(Count::UnacceptableReset),
        }
    }
}

/// A RST that acknowledges `ack`, if there is one.
fn reset(tuple: FourTuple, seq: SeqNumber, ack: Option<SeqNumber>) -> Segment {
    let flags = if ack.is_some() { TcpFlags::RST.with(TcpFlags::ACK) } else { TcpFlags::RST };
    let (ack, options) = (ack.unwrap_or(SeqNumber(0)), TcpOptions::NONE);
    Segment { tuple, seq, ack, flags, window: 0, options, dscp: 0 }
}
