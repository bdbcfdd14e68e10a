//! Test helpers of this crate: a port that consists of two queues in memory, and hand-made TCP frames.

use crate::headers::{Layout, write};
use crate::{Batch, Capabilities, Checksum, Gso, GsoKind, Lent, PacketBuf, Port, Stats, Wait};
use std::collections::VecDeque;

/// A port with two queues in memory as its network; the test reads and writes them.
#[derive(Default)]
pub(crate) struct Queues {
    pub incoming: VecDeque<PacketBuf>,
    pub outgoing: Vec<PacketBuf>,
    /// Number of frames that may still be sent.
    pub room: usize,
    pub reserved: PacketBuf,
    pub stats: Stats,
}

impl Port for Queues {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(1500, [2, 0, 0, 0, 0, 1])
    }
    fn receive(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        while let (Some(slot), Some(packet)) = (batch.slot(), self.incoming.pop_front()) {
            assert!(slot.copy_from(&packet));
            self.stats.count_received(packet.len());
            batch.push_slot();
        }
        batch.len()
    }
    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.reserved.clear();
        (self.room > 0).then_some(&mut self.reserved)
    }
    fn commit_with(&mut self, payload: Lent<'_>) {
        assert!(self.reserved.append(payload));
        self.room -= 1;
        self.stats.count_sent(self.reserved.len());
        let mut sent = PacketBuf::with_capacity(self.reserved.len());
        assert!(sent.copy_from(&self.reserved));
        self.outgoing.push(sent);
    }
    fn flush(&mut self) {}
    fn arm(&mut self) -> Wait {
        Wait::Readable
    }
    fn stats(&self) -> Stats {
        self.stats
    }
}

/// A TCP frame over IPv4 or IPv6 with `options` bytes of TCP options; its checksum is partial, as a stack leaves it to a port.
pub(crate) fn tcp(v4: bool, flags: u8, seq: u32, options: usize, payload: &[u8]) -> PacketBuf {
    let (ip, tcp) = if v4 { (14, 34) } else { (14, 54) };
    let headers = tcp + 20 + options;
    let mut packet = PacketBuf::new();
    packet.set_len(headers + payload.len());
    let len = packet.len();
    let frame = packet.frame_mut();
    frame[..headers].fill(0);
    frame[headers..].copy_from_slice(payload);
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    if v4 {
        write(frame, 12, &[0x08, 0x00, 0x45, 0]);
        write(frame, ip + 2, &((len - ip) as u16).to_be_bytes());
        write(frame, ip + 4, &[0xFF, 0xFE, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = sum(&[&frame[ip..tcp]]);
        write(frame, ip + 10, &(!sum).to_be_bytes());
    } else {
        write(frame, 12, &[0x86, 0xDD, 0x60]);
        write(frame, ip + 4, &((len - tcp) as u16).to_be_bytes());
        write(frame, ip + 6, &[6, 64, 0xFD]);
        write(frame, ip + 23, &[1, 0xFD]);
        write(frame, ip + 39, &[2]);
    }
    write(frame, tcp, &[0x12, 0x67, 0, 80]);
    write(frame, tcp + 4, &seq.to_be_bytes());
    write(frame, tcp + 12, &[((20 + options) * 4) as u8, flags, 1, 0]);
    frame[tcp + 20..headers].fill(1);
    let layout = Layout::of(frame).expect("made a TCP frame");
    let sum = sum(&[&pseudo_header(frame, &layout)]);
    write(frame, tcp + 16, &sum.to_be_bytes());
    packet.meta.checksum = Checksum::Partial { start: tcp as u16, offset: 16 };
    packet
}

/// Marks the frame as a super-frame with segments of `segment_size` bytes.
pub(crate) fn super_frame(mut packet: PacketBuf, segment_size: u16) -> PacketBuf {
    let layout = Layout::of(packet.frame()).expect("is a TCP frame");
    let kind = if layout.v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    packet.meta.gso = Some(Gso { kind, segment_size, header_len: layout.payload as u16, ecn: false });
    packet
}

/// True when the IP and TCP checksums of a complete frame are right.
pub(crate) fn checksums_are_right(frame: &[u8]) -> bool {
    let layout = Layout::of(frame).expect("is a TCP frame");
    let tcp = sum(&[&pseudo_header(frame, &layout), &frame[layout.tcp..]]);
    let ip = if layout.v4 { sum(&[&frame[layout.ip..layout.tcp]]) } else { 0xFFFF };
    tcp == 0xFFFF && ip == 0xFFFF
}

/// The one's complement sum, word by word: an oracle for the fast implementation.
fn sum(parts: &[&[u8]]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let add = |sum: u32, word: u32| (sum + word) % 0xFFFF;
    let sum = parts.iter().flat_map(|part| part.chunks(2)).map(word).fold(0, add);
    // Zero has two representations; the sum of data that is not all zero is 0xFFFF.
    if sum == 0 { 0xFFFF } else { sum as u16 }
}

fn pseudo_header(frame: &[u8], layout: &Layout) -> Vec<u8> {
    let addresses = if layout.v4 { layout.ip + 12..layout.ip + 20 } else { layout.ip + 8..layout.ip + 40 };
    [&frame[addresses], &[0, 6], &((frame.len() - layout.tcp) as u32).to_be_bytes()].concat()
}
