//! The one connection that a script is about, and how its numbers are those of the wire.
//!
//! In packets with SYN, sequence numbers are as the script writes them; in all others they count from the SYN. The script
//! chooses its own side's first number, the host chooses its own.

use crate::segment::Segment;
use crate::syntax::{Tcp, TcpOption};
use std::collections::HashMap;
use std::net::IpAddr;
use wire::TcpFlags;

/// How far the script has brought the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// A socket, no more.
    Fresh,
    /// The host listens.
    Listening,
    /// `connect` was called, its SYN not yet looked at.
    Connecting,
    /// The host's SYN was expected.
    SynSent,
    /// The script's SYN went to a listener.
    SynReceived,
    /// The host's SYN-ACK was expected.
    SynAckSent,
    /// Past the handshake.
    Open,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) stage: Stage,
    /// The descriptor, in script numbers, once there is one.
    pub(crate) fd: Option<i32>,
    /// The host's end, once known.
    pub(crate) local: Option<(IpAddr, u16)>,
    /// The script's end.
    pub(crate) remote: (IpAddr, u16),
    script_isn: u32,
    live_isn: u32,
    remote_isn: u32,
    /// Outgoing timestamps: what the script wrote and what was on the wire.
    timestamps: HashMap<u32, u32>,
    first_timestamp: Option<(u32, u32)>,
}

impl Connection {
    pub(crate) fn new(fd: Option<i32>, remote: (IpAddr, u16), stage: Stage) -> Self {
        Self {
            stage,
            fd,
            local: None,
            remote,
            script_isn: 0,
            live_isn: 0,
            remote_isn: 0,
            timestamps: HashMap::new(),
            first_timestamp: None,
        }
    }

    /// The script's SYN to a listener at `local`.
    pub(crate) fn begin_passive(&mut self, local: (IpAddr, u16), seq: u32) {
        self.local = Some(local);
        self.remote_isn = seq;
    }

    /// A packet to the host: what it means for the handshake.
    pub(crate) fn note_inbound(&mut self, tcp: &Tcp) {
        let flags = TcpFlags::from_bits(tcp.flags);
        match self.stage {
            Stage::SynAckSent if flags.contains(TcpFlags::ACK) => self.stage = Stage::Open,
            Stage::SynSent if flags.contains(TcpFlags::SYN) => {
                self.remote_isn = tcp.seq;
                // A SYN without ACK opens from both sides: the host's SYN-ACK is still to come.
                if flags.contains(TcpFlags::ACK) {
                    self.stage = Stage::Open;
                }
            }
            _ => {}
        }
    }

    /// True when the host may have sent `segment` on this connection; the first SYN tells the host's end.
    pub(crate) fn owns(&mut self, segment: &Segment) -> bool {
        if segment.dst != self.remote {
            return false;
        }
        match self.local {
            Some(local) => segment.src == local,
            None if matches!(self.stage, Stage::Connecting | Stage::SynSent) && is_first_syn(segment) => {
                self.local = Some(segment.src);
                self.live_isn = segment.seq;
                true
            }
            None => false,
        }
    }

    /// The script expects `tcp`, and `segment` came: what it means for the handshake.
    pub(crate) fn note_outbound(&mut self, tcp: &Tcp, segment: &Segment) {
        let flags = TcpFlags::from_bits(tcp.flags);
        match self.stage {
            Stage::Connecting if flags.contains(TcpFlags::SYN) => {
                self.script_isn = tcp.seq;
                self.stage = Stage::SynSent;
            }
            Stage::SynReceived if flags.contains(TcpFlags::SYN | TcpFlags::ACK) => {
                self.script_isn = tcp.seq;
                self.live_isn = segment.seq;
                self.stage = Stage::SynAckSent;
            }
            _ => {}
        }
    }

    /// What is added to a script's number of the host's side to have the wire's.
    fn local_offset(&self, is_syn: bool) -> u32 {
        if is_syn { self.live_isn.wrapping_sub(self.script_isn) } else { self.live_isn }
    }

    fn remote_offset(&self, is_syn: bool) -> u32 {
        if is_syn { 0 } else { self.remote_isn }
    }

    /// The host's sequence number that an ICMP message quotes.
    pub(crate) fn quoted(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.live_isn)
    }

    /// Sequence numbers, acknowledgement, options of a packet to the host in the wire's numbers.
    ///
    /// # Errors
    /// An echo of a timestamp that the host has not sent.
    pub(crate) fn to_live(&self, tcp: &Tcp, is_scaled: bool) -> Result<(u32, u32, Vec<TcpOption>), String> {
        let flags = TcpFlags::from_bits(tcp.flags);
        let is_syn = flags.contains(TcpFlags::SYN);
        let seq = tcp.seq.wrapping_add(self.remote_offset(is_syn));
        let local = self.local_offset(is_syn);
        let has_ack = flags.contains(TcpFlags::ACK);
        let ack = if has_ack { tcp.ack.unwrap_or(0).wrapping_add(local) } else { tcp.ack.unwrap_or(0) };
        let mut options = tcp.options.clone().unwrap_or_default();
        for option in &mut options {
            match option {
                TcpOption::Sack(blocks) => shift(blocks, local),
                TcpOption::Timestamps(_, echo) if flags.contains(TcpFlags::ACK) => {
                    *echo = self.live_echo(*echo, is_scaled)?;
                }
                _ => {}
            }
        }
        Ok((seq, ack, options))
    }

    fn live_echo(&self, echo: u32, is_scaled: bool) -> Result<u32, String> {
        match (self.timestamps.get(&echo), self.first_timestamp) {
            (Some(live), _) => Ok(*live),
            (None, Some((script, live))) if is_scaled => Ok(echo.wrapping_sub(script).wrapping_add(live)),
            _ => Err(format!("no packet from the stack carried the timestamp {echo} that this one echoes")),
        }
    }

    /// `segment` in script numbers, its timestamp still the wire's.
    pub(crate) fn to_script(&self, segment: &Segment) -> Segment {
        let is_syn = segment.has(TcpFlags::SYN);
        let mut mapped = segment.clone();
        mapped.seq = segment.seq.wrapping_sub(self.local_offset(is_syn));
        let remote = self.remote_offset(is_syn);
        if segment.has(TcpFlags::ACK) {
            mapped.ack = segment.ack.wrapping_sub(remote);
        }
        for option in &mut mapped.options {
            if let TcpOption::Sack(blocks) = option {
                shift(blocks, remote.wrapping_neg());
            }
        }
        mapped
    }

    /// The script expected the timestamp `script` and `live` was sent: both stand for the same from now on. The timestamp
    /// that the first such pair makes of `live`.
    pub(crate) fn learn_timestamp(&mut self, script: u32, live: u32) -> u32 {
        self.timestamps.insert(script, live);
        let (first_script, first_live) = *self.first_timestamp.get_or_insert((script, live));
        live.wrapping_sub(first_live).wrapping_add(first_script)
    }

    /// `live` as the script would write it, where that is known.
    pub(crate) fn script_timestamp(&self, live: u32) -> Option<u32> {
        self.first_timestamp.map(|(script, first)| live.wrapping_sub(first).wrapping_add(script))
    }
}

fn is_first_syn(segment: &Segment) -> bool {
    segment.has(TcpFlags::SYN) && !segment.has(TcpFlags::ACK)
}

fn shift(blocks: &mut [(u32, u32)], by: u32) {
    for (left, right) in blocks {
        *left = left.wrapping_add(by);
        *right = right.wrapping_add(by);
    }
}
