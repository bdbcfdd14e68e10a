//! Sends the script's packets to the host, and compares the host's packets with the script.

use super::{Due, Runner};
use crate::compare::{breaks, differences, join, packet_line, words};
use crate::connection::{Connection, Stage};
use crate::icmp;
use crate::machine::OTHERS;
use crate::network::Sent;
use crate::segment::{Segment, timestamps};
use crate::syntax::{Body, Ends, IpInfo, Micros, Packet, Tcp, Tos, Trouble};
use std::fmt::Write;
use wire::{Endpoint, TcpFlags, Timestamps};

/// How long to wait for a packet after its time, to tell a late packet from a missing one.
const PATIENCE: Micros = 2_000_000;
/// How long to wait for a packet with any time: longer than any timer of TCP.
const LONG_PATIENCE: Micros = 300_000_000;
/// Largest number of later packets shown in a failure.
const SHOWN: usize = 8;

impl Runner {
    fn ends(&self) -> Ends {
        self.settings.ends()
    }

    /// Sends a packet of the script to the host.
    pub(super) fn inject(&mut self, packet: &Packet) -> Result<(), Trouble> {
        let frames = match &packet.body {
            Body::Tcp(tcp) => self.tcp_frames(packet.ip, tcp)?,
            Body::Icmp(message) => {
                let ends = self.ends();
                let Some(connection) = &self.connection else {
                    return Err(self.fail("an ICMP message about no connection"));
                };
                let local = connection.local.unwrap_or(Endpoint::new(ends.local, 0));
                let built = icmp::frame(message, local, connection.remote, |seq| connection.quoted(seq));
                let frame = built.map_err(|what| self.fail(what))?;
                self.trace.push(format!("{:>17} < icmp {}", self.stamp(), message.kind));
                vec![frame]
            }
        };
        for frame in &frames {
            self.network.inject(frame);
        }
        self.network.settle();
        self.after_change()
    }

    fn stamp(&self) -> String {
        let now = self.network.now();
        format!("{}.{:06}", now / 1_000_000, now % 1_000_000)
    }

    /// The connection to which a packet of the script belongs; a SYN to a listener begins a new one.
    fn connection_for(&mut self, tcp: &Tcp) -> &mut Connection {
        let is_new = self.connection.as_ref().is_none_or(|c| c.stage == Stage::Listening);
        let ends = self.ends();
        if is_new {
            self.next_port += 1;
            let remote = Endpoint::new(ends.remote, self.next_port);
            let mut child = Connection::new(None, remote, Stage::SynReceived);
            child.begin_passive(Endpoint::new(ends.local, self.settings.bind_port), tcp.seq);
            self.connection = Some(child);
        }
        let remote = Endpoint::new(ends.remote, self.settings.connect_port);
        self.connection.get_or_insert_with(|| Connection::new(None, remote, Stage::Fresh))
    }

    fn tcp_frames(&mut self, ip: IpInfo, tcp: &Tcp) -> Result<Vec<Vec<u8>>, Trouble> {
        let (ends, is_scaled) = (self.ends(), self.settings.is_echo_scaled);
        let bind_port = self.settings.bind_port;
        let connection = self.connection_for(tcp);
        connection.note_inbound(tcp);
        let live = connection.to_live(tcp, is_scaled);
        let (remote, local) =
            (connection.remote, connection.local.unwrap_or(Endpoint::new(ends.local, bind_port)));
        let (seq, ack, options) = live.map_err(|why| self.fail(why))?;
        let (src, dst) = match tcp.ports {
            Some((from, to)) => (Endpoint::new(remote.addr, from), Endpoint::new(local.addr, to)),
            None => (remote, local),
        };
        let tos = match ip.tos {
            Tos::Ecn(bits) => bits,
            Tos::Byte(byte) => byte,
            Tos::Unsaid => 0,
            Tos::Ect01 => 2,
        };
        let segment = Segment {
            src,
            dst,
            tos,
            ttl: ip.ttl.unwrap_or(64),
            flow_label: ip.flow_label.unwrap_or(0),
            flags: tcp.flags,
            seq,
            ack,
            window: tcp.window.unwrap_or(0),
            urgent: tcp.urgent,
            options,
            payload: vec![0; tcp.len as usize],
        };
        self.trace.push(format!("{:>17} < {}", self.stamp(), words(tcp)));
        let host = crate::machine::HOST;
        let pieces = cut(&segment, self.settings.mss.map_or(usize::MAX, usize::from));
        let frames: Option<Vec<_>> = pieces.iter().map(|piece| piece.frame(OTHERS, host)).collect();
        frames.ok_or_else(|| self.fail("a packet that is too long for IP"))
    }

    /// Waits for a packet that the host must send, and checks it.
    pub(super) fn expect(&mut self, packet: &Packet, due: Due) -> Result<(), Trouble> {
        let Body::Tcp(tcp) = &packet.body else {
            return Err(self.unsupported("ICMP messages from the stack"));
        };
        let mut pieces = Vec::new();
        let mut len = 0;
        let at = loop {
            let Some(sent) = self.next_sent(due)? else {
                return Err(self.silence(tcp, &pieces, due));
            };
            let Some(connection) = &mut self.connection else {
                return Err(self.fail("no connection that could send this packet"));
            };
            connection.note_outbound(tcp, &sent.segment);
            let piece = connection.to_script(&sent.segment);
            self.trace.push(packet_line(sent.at, '>', &piece, connection));
            if let Some(before) = pieces.last()
                && let Some(why) = breaks(before, &piece, tcp.len as usize - len)
            {
                pieces.push(piece);
                return Err(self.mismatch(packet.ip, tcp, &pieces, &[why]));
            }
            len += piece.payload.len();
            pieces.push(piece);
            if len >= tcp.len as usize || self.settings.is_strict {
                break sent.at;
            }
        };
        let mut actual = join(&pieces).ok_or_else(|| self.fail("nothing was sent"))?;
        if self.is_inside_burst(at, &actual) {
            actual.flags |= tcp.flags & TcpFlags::PSH.bits();
        }
        self.judge(packet.ip, tcp, &pieces, actual)?;
        self.check_time(due, at, "this packet").map_err(|late| {
            let Some(connection) = &self.connection else { return late };
            let shown: String =
                pieces.iter().map(|p| format!("\n  {}", packet_line(at, '>', p, connection))).collect();
            match late.kind {
                crate::TroubleKind::Syntax(why) => self.fail(format!("{why}:{shown}")),
                crate::TroubleKind::Unsupported(_) => late,
            }
        })
    }

    /// True when the burst that contains `actual` continues behind it. The stack is free to choose the length of a burst, and sets PSH at
    /// its end; where only the script sees an end, PSH is not required.
    fn is_inside_burst(&self, at: Micros, actual: &Segment) -> bool {
        let (Some(next), Some(connection)) = (self.network.sent.front(), &self.connection) else {
            return false;
        };
        let next_seq = connection.to_script(&next.segment).seq;
        let is_next = next.at == at && next_seq == actual.seq.wrapping_add(actual.payload.len() as u32);
        is_next && !next.segment.payload.is_empty() && !actual.payload.is_empty() && !self.settings.is_strict
    }

    fn judge(
        &mut self,
        ip: IpInfo,
        tcp: &Tcp,
        pieces: &[Segment],
        mut actual: Segment,
    ) -> Result<(), Trouble> {
        let mut found = differences(ip, tcp, &actual);
        let expected = tcp.options.as_deref().and_then(timestamps);
        if let (Some(script), Some(live)) = (expected, actual.timestamps())
            && let Some(connection) = &mut self.connection
        {
            let value = connection.learn_timestamp(script.value, live.value);
            found.extend(self.timestamp_differences(script, Timestamps { value, ..live }));
        }
        if found.is_empty() {
            return Ok(());
        }
        actual.payload.clear();
        Err(self.mismatch(ip, tcp, pieces, &found))
    }

    /// Checks timestamps; a value may deviate by the tolerance for the time since the beginning.
    fn timestamp_differences(&self, expected: Timestamps, actual: Timestamps) -> Vec<String> {
        let mut found = Vec::new();
        let dynamic = (self.settings.tolerance_percent / 100.0 * self.network.now() as f64) as Micros;
        let tolerance = self.settings.tolerance.max(dynamic);
        let ticks = Micros::from(expected.value.wrapping_sub(actual.value).cast_signed().unsigned_abs());
        let tick = self.settings.timestamp_tick;
        if tick > 0 && ticks * tick > tolerance {
            found.push(format!("timestamp: {} expected, {} sent", expected.value, actual.value));
        }
        if self.settings.checks_echoes && expected.echo != actual.echo {
            found.push(format!("echo of timestamp: {} expected, {} sent", expected.echo, actual.echo));
        }
        found
    }

    /// The next packet of the connection; `None` when none comes in time.
    fn next_sent(&mut self, due: Due) -> Result<Option<Sent>, Trouble> {
        let limit =
            if due.is_any { self.network.now() + LONG_PATIENCE } else { due.to + due.tolerance + PATIENCE };
        loop {
            while let Some(sent) = self.network.sent.pop_front() {
                if self.connection.as_mut().is_some_and(|c| c.owns(&sent.segment)) {
                    return Ok(Some(sent));
                }
            }
            if !self.step(limit)? && self.network.now() >= limit {
                return Ok(None);
            }
        }
    }

    fn silence(&self, tcp: &Tcp, pieces: &[Segment], due: Due) -> Trouble {
        let mut why = format!("the stack did not send\n  expected: > {}", words(tcp));
        if !due.is_any {
            let _ = write!(why, "\n  by {:.6} s", (due.to + due.tolerance) as f64 / 1e6);
        }
        if let Some(connection) = &self.connection {
            for piece in pieces {
                let _ = write!(
                    why,
                    "\n  only:     {}",
                    packet_line(self.network.now(), '>', piece, connection).trim()
                );
            }
        }
        self.fail(why)
    }

    fn mismatch(&mut self, _ip: IpInfo, tcp: &Tcp, pieces: &[Segment], found: &[String]) -> Trouble {
        let mut why = format!("another packet than this one was sent\n  expected: > {}", words(tcp));
        for piece in pieces {
            let _ = write!(why, "\n  sent:     > {piece}");
        }
        for line in found {
            let _ = write!(why, "\n  {line}");
        }
        let later: Vec<Sent> = self.network.sent.drain(..).collect();
        if let Some(connection) = &mut self.connection {
            for sent in later.iter().filter(|s| connection.owns(&s.segment)).take(SHOWN).collect::<Vec<_>>() {
                let piece = connection.to_script(&sent.segment);
                let _ = write!(why, "\n  then:   {}", packet_line(sent.at, '>', &piece, connection));
            }
        }
        self.fail(why)
    }
}

/// Cuts `segment` into segments of at most `mss` bytes, as a network card would have received them.
fn cut(segment: &Segment, mss: usize) -> Vec<Segment> {
    if segment.payload.len() <= mss {
        return vec![segment.clone()];
    }
    let last_only = TcpFlags::FIN.bits() | TcpFlags::PSH.bits();
    let count = segment.payload.len().div_ceil(mss);
    let pieces = segment.payload.chunks(mss).enumerate().map(|(i, payload)| Segment {
        seq: segment.seq.wrapping_add((i * mss) as u32),
        flags: if i + 1 < count { segment.flags & !last_only } else { segment.flags },
        payload: payload.to_vec(),
        ..segment.clone()
    });
    pieces.collect()
}
