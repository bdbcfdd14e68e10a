//! The connection of a script, and the conversion between the script's numbers and those on the wire.
//!
//! In packets with SYN, sequence numbers are those of the script; in all others they count from the SYN. The script
//! chooses the initial number of its own side, the host that of its side.

use crate::segment::Segment;
use crate::syntax::{Tcp, TcpOption};
use std::collections::HashMap;
use wire::{Endpoint, TcpFlags};

/// How far the connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// A socket exists; it neither listens nor connects.
    Fresh,
    /// The host's socket listens.
    Listening,
    /// `connect` was called; its SYN was not yet expected by the script.
    Connecting,
    /// The script has expected the host's SYN.
    SynSent,
    /// The script has sent a SYN to the listener.
    SynReceived,
    /// The script has expected the host's SYN-ACK.
    SynAckSent,
    /// The handshake is complete.
    Open,
}

/// The connection; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) stage: Stage,
    /// The script's number of the socket, once there is one.
    pub(crate) fd: Option<i32>,
    /// Address and port of the host, once known.
    pub(crate) local: Option<Endpoint>,
    /// Address and port of the script's side.
    pub(crate) remote: Endpoint,
    script_isn: u32,
    live_isn: u32,
    remote_isn: u32,
    /// Outgoing timestamps: the script's value and the value on the wire.
    timestamps: HashMap<u32, u32>,
    first_timestamp: Option<(u32, u32)>,
}

impl Connection {
    pub(crate) fn new(fd: Option<i32>, remote: Endpoint, stage: Stage) -> Self {
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

    /// Takes the script's SYN to a listener at `local`.
    pub(crate) fn begin_passive(&mut self, local: Endpoint, seq: u32) {
        self.local = Some(local);
        self.remote_isn = seq;
    }

    /// Updates the stage of the handshake by a packet to the host.
    pub(crate) fn note_inbound(&mut self, tcp: &Tcp) {
        let flags = TcpFlags::from_bits(tcp.flags);
        match self.stage {
            Stage::SynAckSent if flags.contains(TcpFlags::ACK) => self.stage = Stage::Open,
            Stage::SynSent if flags.contains(TcpFlags::SYN) => {
                self.remote_isn = tcp.seq;
                // A SYN without ACK opens the connection from both sides: the host's SYN-ACK is still to come.
                if flags.contains(TcpFlags::ACK) {
                    self.stage = Stage::Open;
                }
            }
            _ => {}
        }
    }

    /// True when `segment` can belong to this connection; the host's first SYN determines the host's address and port.
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

    /// Updates the stage of the handshake: the script has expected `tcp`, and the host has sent `segment`.
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

    /// The number to add to a script's sequence number of the host's side to get the number on the wire.
    fn local_offset(&self, is_syn: bool) -> u32 {
        if is_syn { self.live_isn.wrapping_sub(self.script_isn) } else { self.live_isn }
    }

    fn remote_offset(&self, is_syn: bool) -> u32 {
        if is_syn { 0 } else { self.remote_isn }
    }

    /// The wire's number for a sequence number of the host that an ICMP message quotes.
    pub(crate) fn quoted(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.live_isn)
    }

    /// Sequence number, acknowledgement and options of a packet to the host, in wire numbers.
    ///
    /// # Errors
    /// The packet echoes a timestamp that the host has not sent.
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

    /// `segment` in script numbers; its timestamp stays as on the wire.
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

    /// Notes that the script's timestamp `script` was `live` on the wire. Returns `live` converted to script numbers by the first pair
    /// noted.
    pub(crate) fn learn_timestamp(&mut self, script: u32, live: u32) -> u32 {
        self.timestamps.insert(script, live);
        let (first_script, first_live) = *self.first_timestamp.get_or_insert((script, live));
        live.wrapping_sub(first_live).wrapping_add(first_script)
    }

    /// `live` converted to script numbers; `None` before the first timestamp.
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
