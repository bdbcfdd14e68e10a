//! A port that writes one line per packet to a callback.

use crate::headers::{Layout, network, read_u16, read_u32};
use crate::staged::Staged;
use crate::{Batch, Capabilities, Checksum, Lent, Look, PacketBuf, Port, Stats, Wait};
use base::Instant;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Received from the network.
    Received,
    /// Sent to the network.
    Sent,
}

/// One packet as one line of text without a newline; the text is made only when it is written.
///
/// `0.001250 > 10.0.0.1:80 10.0.0.2:4711 [.P] seq 1 ack 2 win 502 len 100 partial gso 1448`
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Time of the packet.
    pub now: Instant,
    /// Direction of the packet.
    pub direction: Direction,
    /// The packet with its metadata.
    pub packet: &'a PacketBuf,
}

/// A port around a port that passes every packet to `sink` as a [`Line`].
///
/// ```
/// # use port::{Direction, Line, PacketBuf};
/// # let packet = PacketBuf::with_capacity(64);
/// let sink = |line: Line<'_>| eprintln!("{line}");
/// # sink(Line { now: base::Instant::ZERO, direction: Direction::Sent, packet: &packet });
/// ```
#[derive(Debug)]
pub struct Tracer<P, F> {
    inner: P,
    sink: F,
    staged: Staged,
    now: Instant,
}

impl<P: Port, F: FnMut(Line<'_>) + Send> Tracer<P, F> {
    /// Passes the packets of `inner` to `sink`.
    pub fn new(inner: P, sink: F) -> Self {
        Self { inner, sink, staged: Staged::default(), now: Instant::ZERO }
    }

    /// The wrapped port, without the tracer.
    pub fn into_inner(self) -> P {
        self.inner
    }
}

impl<P: Port, F: FnMut(Line<'_>) + Send> Tracer<P, F> {
    /// Shows the received packets to the sink.
    fn show(&mut self, batch: &Batch) {
        for packet in batch.packets() {
            (self.sink)(Line { now: self.now, direction: Direction::Received, packet });
        }
    }
}

impl<P: Port, F: FnMut(Line<'_>) + Send> Port for Tracer<P, F> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, batch: &mut Batch) -> usize {
        let count = self.inner.receive(batch);
        self.show(batch);
        count
    }

    fn waiting_most(&self) -> usize {
        self.inner.waiting_most()
    }

    fn receive_ahead(&mut self, batch: &mut Batch, look: &mut dyn FnMut(&[u8]) -> Look) -> usize {
        let count = self.inner.receive_ahead(batch, look);
        self.show(batch);
        count
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.staged.reserve(&mut self.inner)
    }

    fn commit_with(&mut self, payload: Lent<'_>) {
        let (sink, now) = (&mut self.sink, self.now);
        self.staged.commit(payload, &mut self.inner, |packet| {
            sink(Line { now, direction: Direction::Sent, packet });
        });
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn arm(&mut self) -> Wait {
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.inner.set_now(now);
    }

    fn next_deadline(&self) -> Instant {
        self.inner.next_deadline()
    }

    fn failure(&self) -> Option<io::Error> {
        self.inner.failure()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.now.as_us();
        let arrow = if self.direction == Direction::Received { '<' } else { '>' };
        write!(f, "{}.{:06} {arrow} ", us / 1_000_000, us % 1_000_000)?;
        let frame = self.packet.frame();
        match Layout::of(frame) {
            Some(layout) => write_tcp(f, frame, &layout)?,
            None => write_other(f, frame)?,
        }
        match self.packet.meta.checksum {
            Checksum::Unknown => {}
            Checksum::Valid => f.write_str(" valid")?,
            Checksum::Partial { .. } => f.write_str(" partial")?,
        }
        match self.packet.meta.gso {
            Some(gso) => write!(f, " gso {}", gso.segment_size),
            None => Ok(()),
        }
    }
}

fn write_tcp(f: &mut fmt::Formatter<'_>, frame: &[u8], layout: &Layout) -> fmt::Result {
    let Layout { ip, tcp, payload, v4 } = *layout;
    for (address, port) in [(0, tcp), (1, tcp + 2)] {
        let port = read_u16(frame, port).unwrap_or(0);
        if v4 {
            let bits = read_u32(frame, ip + 12 + address * 4).unwrap_or(0);
            write!(f, "{}:{port} ", Ipv4Addr::from_bits(bits))?;
        } else {
            let at = ip + 8 + address * 16;
            let bytes: [u8; 16] = frame[at..at + 16].try_into().unwrap_or([0; 16]);
            write!(f, "[{}]:{port} ", Ipv6Addr::from(bytes))?;
        }
    }
    f.write_str("[")?;
    for (bit, letter) in "FSRP.UEW".chars().enumerate() {
        if frame[tcp + 13] >> bit & 1 == 1 {
            write!(f, "{letter}")?;
        }
    }
    let (seq, ack) = (read_u32(frame, tcp + 4).unwrap_or(0), read_u32(frame, tcp + 8).unwrap_or(0));
    let window = read_u16(frame, tcp + 14).unwrap_or(0);
    // Padding of short Ethernet frames does not count as payload.
    let ip_len =
        if v4 { read_u16(frame, ip + 2) } else { read_u16(frame, ip + 4).map(|len| len.saturating_add(40)) };
    let end = frame.len().min(ip + usize::from(ip_len.unwrap_or(0)));
    write!(f, "] seq {seq} ack {ack} win {window} len {}", end.saturating_sub(payload))
}

fn write_other(f: &mut fmt::Formatter<'_>, frame: &[u8]) -> fmt::Result {
    match network(frame) {
        Some((0x0806, at)) => {
            let operation = if read_u16(frame, at + 6) == Some(1) { "request" } else { "reply" };
            let target = read_u32(frame, at + 24).unwrap_or(0);
            write!(f, "arp {operation} {} ", Ipv4Addr::from_bits(target))?;
        }
        Some((ethertype, _)) => write!(f, "ethertype {ethertype:#06x} ")?,
        None => f.write_str("short ")?,
    }
    write!(f, "{} bytes", frame.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Queues, super_frame, tcp};

    #[test]
    fn every_packet_is_one_line() {
        let (tx, lines) = std::sync::mpsc::channel();
        let inner = Queues { room: 1, ..Queues::default() };
        let mut port = Tracer::new(inner, move |line: Line<'_>| tx.send(line.to_string()).expect("open"));
        port.set_now(Instant::from_ns(1_002_003_000));
        let frame = super_frame(tcp(true, 0x18, 7, 0, &[0; 3000]), 1460);
        assert!(port.reserve().expect("room").copy_from(&frame));
        port.commit();
        port.commit();
        assert!(port.reserve().is_none());
        assert_eq!(port.inner.outgoing.len(), 1);
        port.inner.incoming.push_back(tcp(false, 0x02, 1, 0, &[]));
        let mut short = PacketBuf::with_capacity(64);
        assert!(short.fill(&[1, 2, 3]));
        port.inner.incoming.push_back(short);
        assert_eq!(port.receive(&mut Batch::new()), 2);
        let lines: Vec<String> = lines.try_iter().collect();
        assert_eq!(
            lines,
            [
                "1.002003 > 10.0.0.1:4711 10.0.0.2:80 [P.] seq 7 ack 0 win 256 len 3000 partial gso 1460",
                "1.002003 < [fd00::1]:4711 [fd00::2]:80 [S] seq 1 ack 0 win 256 len 0 partial",
                "1.002003 < short 3 bytes",
            ]
        );
    }
}
