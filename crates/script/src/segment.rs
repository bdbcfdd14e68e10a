//! TCP segments as scripts see them: every option in its position, with padding; conversion to and from frames, and to text.

use crate::syntax::TcpOption;
use base::SeqNumber;
use std::fmt::{self, Write};
use std::net::IpAddr;
use wire::{
    Body, Ecn, Endpoint, IpParameters, IpProtocol, MacAddr, Packet, RxChecksum, TcpFlags, TcpHeader,
    Timestamps, checksum, emit_ip,
};

/// One segment with the fields of its IP packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub(crate) src: Endpoint,
    pub(crate) dst: Endpoint,
    /// DSCP and ECN, as one byte.
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) flow_label: u32,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) options: Vec<TcpOption>,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    /// Parses the TCP segment in `frame`; `None` if there is none, or it is damaged.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let packet = Packet::parse(frame, RxChecksum::Verify).ok()?;
        let Body::Tcp(tcp) = packet.body else { return None };
        let ip = frame.get(packet.ethernet.header_len()..)?;
        let bytes = tcp.ip.payload.of(frame);
        let (header, offset) = TcpHeader::parse(bytes).ok()?;
        let word = u32::from_be_bytes(*ip.first_chunk()?);
        let (tos, flow_label) = match tcp.ip.src {
            IpAddr::V4(_) => ((word >> 16) as u8, 0),
            IpAddr::V6(_) => ((word >> 20) as u8, word & 0xF_FFFF),
        };
        Some(Self {
            src: Endpoint::new(tcp.ip.src, header.src_port),
            dst: Endpoint::new(tcp.ip.dst, header.dst_port),
            tos,
            ttl: tcp.ip.hop_limit,
            flow_label,
            flags: header.flags.bits(),
            seq: header.seq.0,
            ack: header.ack.0,
            window: header.window,
            urgent: header.urgent,
            options: parse_options(bytes.get(TcpHeader::LEN..offset)?),
            payload: tcp.payload.of(frame).to_vec(),
        })
    }

    pub(crate) fn has(&self, flag: TcpFlags) -> bool {
        TcpFlags::from_bits(self.flags).intersects(flag)
    }

    pub(crate) fn timestamps(&self) -> Option<Timestamps> {
        timestamps(&self.options)
    }

    /// Builds the frame from `src_mac` to `dst_mac`. `None` when it is too long for IP.
    pub(crate) fn frame(&self, src_mac: MacAddr, dst_mac: MacAddr) -> Option<Vec<u8>> {
        let options: Vec<u8> = self.options.iter().flat_map(option_bytes).collect();
        let header_len = TcpHeader::LEN + options.len();
        let mut parameters = IpParameters::new(src_mac, dst_mac);
        (parameters.dscp, parameters.ecn) = (self.tos >> 2, Ecn::from_bits(self.tos));
        (parameters.hop_limit, parameters.flow_label) = (self.ttl, self.flow_label);
        let len = header_len + self.payload.len();
        let mut frame = vec![0; 64 + len];
        let start =
            emit_ip(&parameters, self.src.addr, self.dst.addr, IpProtocol::TCP, len, &mut frame).ok()?;
        let header = TcpHeader {
            src_port: self.src.port,
            dst_port: self.dst.port,
            seq: SeqNumber(self.seq),
            ack: SeqNumber(self.ack),
            flags: TcpFlags::from_bits(self.flags),
            window: self.window,
            urgent: self.urgent,
        };
        let segment = frame.get_mut(start..start + len)?;
        header.emit(&wire::TcpOptions::NONE, segment).ok()?;
        // The upper half of byte 12 is the header's length in words of four bytes.
        segment[12] = (segment[12] & 0x0F) | ((header_len / 4) as u8) << 4;
        segment[TcpHeader::LEN..header_len].copy_from_slice(&options);
        segment[header_len..].copy_from_slice(&self.payload);
        let pseudo = checksum::pseudo(self.src.addr, self.dst.addr, IpProtocol::TCP, len)?;
        if !checksum::fill(pseudo, segment, TcpHeader::CHECKSUM_OFFSET) {
            return None;
        }
        frame.truncate(start + len);
        Some(frame)
    }
}

/// The script's notation, without time and direction.
impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tos & 3 {
            1 => f.write_str("[ect1] ")?,
            2 => f.write_str("[ect0] ")?,
            3 => f.write_str("[ce] ")?,
            _ => {}
        }
        let end = self.seq.wrapping_add(self.payload.len() as u32);
        write!(f, "{} {}:{}({})", flag_letters(self.flags), self.seq, end, self.payload.len())?;
        if self.has(TcpFlags::ACK) {
            write!(f, " ack {}", self.ack)?;
        }
        write!(f, " win {}", self.window)?;
        if self.urgent != 0 {
            write!(f, " urg {}", self.urgent)?;
        }
        if !self.options.is_empty() {
            write!(f, " <{}>", option_words(&self.options))?;
        }
        Ok(())
    }
}

/// Letters of the flags, such as `FP.`; `-` for none.
pub(crate) fn flag_letters(flags: u16) -> String {
    const LETTERS: [(TcpFlags, char); 9] = [
        (TcpFlags::FIN, 'F'),
        (TcpFlags::SYN, 'S'),
        (TcpFlags::RST, 'R'),
        (TcpFlags::PSH, 'P'),
        (TcpFlags::URG, 'U'),
        (TcpFlags::ECE, 'E'),
        (TcpFlags::CWR, 'W'),
        (TcpFlags::AE, 'A'),
        (TcpFlags::ACK, '.'),
    ];
    let flags = TcpFlags::from_bits(flags);
    let letters: String =
        LETTERS.iter().filter(|(flag, _)| flags.intersects(*flag)).map(|(_, c)| *c).collect();
    if letters.is_empty() { "-".to_owned() } else { letters }
}

/// The options as scripts write them between `<` and `>`.
pub(crate) fn option_words(options: &[TcpOption]) -> String {
    let mut words = String::new();
    for option in options {
        if !words.is_empty() {
            words.push(',');
        }
        // Writing to a string cannot fail.
        let _ = match option {
            TcpOption::Eol => write!(words, "eol"),
            TcpOption::Nop => write!(words, "nop"),
            TcpOption::Mss(n) => write!(words, "mss {n}"),
            TcpOption::WindowScale(n) => write!(words, "wscale {n}"),
            TcpOption::SackOk => write!(words, "sackOK"),
            TcpOption::Sack(blocks) => {
                let _ = write!(words, "sack");
                blocks.iter().try_for_each(|(left, right)| write!(words, " {left}:{right}"))
            }
            TcpOption::Timestamps(value, echo) => write!(words, "TS val {value} ecr {echo}"),
            TcpOption::Other(kind, data) => {
                let _ = write!(words, "option {kind}");
                data.iter().try_for_each(|byte| write!(words, " {byte:02x}"))
            }
        };
    }
    words
}

/// Length of an option in bytes.
pub(crate) fn option_len(option: &TcpOption) -> usize {
    match option {
        TcpOption::Eol | TcpOption::Nop => 1,
        TcpOption::Mss(_) => 4,
        TcpOption::WindowScale(_) => 3,
        TcpOption::SackOk => 2,
        TcpOption::Sack(blocks) => 2 + 8 * blocks.len(),
        TcpOption::Timestamps(..) => 10,
        TcpOption::Other(_, data) => 2 + data.len(),
    }
}

pub(crate) fn timestamps(options: &[TcpOption]) -> Option<Timestamps> {
    options.iter().find_map(|option| match option {
        &TcpOption::Timestamps(value, echo) => Some(Timestamps { value, echo }),
        _ => None,
    })
}

fn option_bytes(option: &TcpOption) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(option_len(option));
    let kind = match option {
        TcpOption::Eol => return vec![0],
        TcpOption::Nop => return vec![1],
        TcpOption::Mss(_) => 2,
        TcpOption::WindowScale(_) => 3,
        TcpOption::SackOk => 4,
        TcpOption::Sack(_) => 5,
        TcpOption::Timestamps(..) => 8,
        TcpOption::Other(kind, _) => *kind,
    };
    bytes.extend([kind, option_len(option) as u8]);
    match option {
        TcpOption::Mss(n) => bytes.extend(n.to_be_bytes()),
        TcpOption::WindowScale(n) => bytes.push(*n),
        TcpOption::Sack(blocks) => {
            for (left, right) in blocks {
                bytes.extend(left.to_be_bytes());
                bytes.extend(right.to_be_bytes());
            }
        }
        TcpOption::Timestamps(value, echo) => {
            bytes.extend(value.to_be_bytes());
            bytes.extend(echo.to_be_bytes());
        }
        TcpOption::Other(_, data) => bytes.extend(data),
        TcpOption::Eol | TcpOption::Nop | TcpOption::SackOk => {}
    }
    bytes
}

/// Parses all options in order. An option with a wrong length ends the list, and contains the remaining bytes.
fn parse_options(bytes: &[u8]) -> Vec<TcpOption> {
    let mut options = Vec::new();
    let mut rest = bytes;
    while let [kind, tail @ ..] = rest {
        rest = match (*kind, tail.first().map(|len| usize::from(*len))) {
            (0, _) => {
                options.push(TcpOption::Eol);
                tail
            }
            (1, _) => {
                options.push(TcpOption::Nop);
                tail
            }
            (kind, Some(len)) if len >= 2 && len <= rest.len() => {
                options.push(parse_option(kind, &rest[2..len]));
                &rest[len..]
            }
            (kind, _) => {
                options.push(TcpOption::Other(kind, tail.to_vec()));
                &[]
            }
        };
    }
    options
}

fn parse_option(kind: u8, data: &[u8]) -> TcpOption {
    let word = |at: usize| data[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    match (kind, data) {
        (2, &[a, b]) => TcpOption::Mss(u16::from_be_bytes([a, b])),
        (3, &[shift]) => TcpOption::WindowScale(shift),
        (4, []) => TcpOption::SackOk,
        (5, data) if !data.is_empty() && data.len() % 8 == 0 => {
            TcpOption::Sack((0..data.len() / 8).map(|i| (word(8 * i), word(8 * i + 4))).collect())
        }
        (8, data) if data.len() == 8 => TcpOption::Timestamps(word(0), word(4)),
        _ => TcpOption::Other(kind, data.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::Segment;
    use crate::syntax::TcpOption;
    use std::net::{IpAddr, Ipv6Addr};
    use wire::{Endpoint, MacAddr};

    fn segment(src: IpAddr, dst: IpAddr) -> Segment {
        Segment {
            src: Endpoint::new(src, 8080),
            dst: Endpoint::new(dst, 40_000),
            tos: 0x12,
            ttl: 63,
            flow_label: 0,
            flags: 0x18,
            seq: u32::MAX,
            ack: 7,
            window: 1,
            urgent: 0,
            options: vec![
                TcpOption::Nop,
                TcpOption::Nop,
                TcpOption::Sack(vec![(1, 2), (3, 4)]),
                TcpOption::Other(254, vec![1, 2]),
                TcpOption::Mss(1460),
                TcpOption::WindowScale(8),
                TcpOption::Eol,
            ],
            payload: vec![0; 5],
        }
    }

    #[test]
    fn options_keep_their_order_and_padding_through_a_frame() {
        let v4 = segment("192.168.0.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let v6 = segment(Ipv6Addr::LOCALHOST.into(), "2001:db8::1".parse().unwrap());
        for segment in [v4, v6] {
            let frame = segment.frame(MacAddr([2; 6]), MacAddr([4; 6])).unwrap();
            assert_eq!(Segment::parse(&frame), Some(segment));
        }
    }

    #[test]
    fn words_are_those_of_a_script() {
        let mut s = segment("192.168.0.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        s.options.truncate(3);
        assert_eq!(s.to_string(), "[ect0] P. 4294967295:4(5) ack 7 win 1 <nop,nop,sack 1:2 3:4>");
    }
}
