//! Parses packets: TCP segments and ICMP messages.

use super::Parser;
use crate::lexer::Token;
use crate::syntax::{Body, Direction, Icmp, IpInfo, Packet, Tcp, TcpOption, Tos, Trouble};
use wire::TcpFlags;

impl Parser<'_> {
    pub(super) fn packet(&mut self) -> Result<Packet, Trouble> {
        let direction = if self.take_char('<') {
            Direction::In
        } else {
            self.expect_char('>')?;
            Direction::Out
        };
        let ip = self.ip_info()?;
        for encapsulation in ["ipv4", "ipv6", "gre", "GREv0", "mpls", "psp", "encap"] {
            if self.is_word(encapsulation) {
                return Err(Trouble::unsupported(self.line(), format!("packets in {encapsulation}")));
            }
        }
        if self.is_word("udp") {
            return Err(Trouble::unsupported(self.line(), "UDP packets"));
        }
        let body = if self.take_word("icmp") { Body::Icmp(self.icmp()?) } else { Body::Tcp(self.tcp()?) };
        Ok(Packet { direction, ip, body })
    }

    fn ip_info(&mut self) -> Result<IpInfo, Trouble> {
        let mut info = IpInfo::default();
        let close = match self.peek() {
            Some(Token::Char('[')) => ']',
            Some(Token::Char('(')) => ')',
            _ => return Ok(info),
        };
        self.at += 1;
        loop {
            let line = self.line();
            let word = self.word("ECN, tos, ttl or flowlabel")?;
            match word.as_str() {
                "noecn" => info.tos = Tos::Ecn(0),
                "ect1" => info.tos = Tos::Ecn(1),
                "ect0" => info.tos = Tos::Ecn(2),
                "ce" => info.tos = Tos::Ecn(3),
                "ect01" => info.tos = Tos::Ect01,
                "tos" => info.tos = Tos::Byte(self.number("tos")?),
                "ttl" => info.ttl = Some(self.number("ttl")?),
                "flowlabel" => info.flow_label = Some(self.number("flowlabel")?),
                _ => return Err(Trouble::syntax(line, format!("`{word}` says nothing of an IP header"))),
            }
            if self.take_char(close) {
                return Ok(info);
            }
            self.expect_char(',')?;
        }
    }

    fn tcp(&mut self) -> Result<Tcp, Trouble> {
        let mut tcp = Tcp { options: Some(Vec::new()), ..Tcp::default() };
        if matches!(self.peek(), Some(Token::Integer(_))) && self.peek_second() == Some(&Token::Char('>')) {
            let from = self.number("a port")?;
            self.at += 1;
            tcp.ports = Some((from, self.number("a port")?));
        }
        self.flags(&mut tcp)?;
        (tcp.seq, tcp.len) = self.range()?;
        if self.take_word("ack") {
            tcp.ack = Some(self.sequence("ack")?);
        }
        if self.take_word("win") {
            // `win *` means the same as no `win`.
            if !self.take_char('*') {
                tcp.window = Some(self.number("win")?);
            }
        }
        if self.take_word("urg") {
            tcp.urgent = self.number("urg")?;
        }
        if self.is_char('<') && self.begins_options() {
            self.at += 1;
            tcp.options = self.options()?;
        }
        Ok(tcp)
    }

    /// True when the `<` here opens TCP options. The `<` of an event follows a time, and is followed by flags.
    fn begins_options(&self) -> bool {
        matches!(self.peek_second(), Some(Token::Word(_) | Token::Ellipsis))
    }

    fn flags(&mut self, tcp: &mut Tcp) -> Result<(), Trouble> {
        let line = self.line();
        if self.take_char('-') {
            return Ok(());
        }
        let mut text = match self.peek() {
            Some(Token::Word(w)) => w.clone(),
            Some(Token::Integer(n)) => n.to_string(),
            _ => String::new(),
        };
        self.at += usize::from(!text.is_empty());
        if self.take_char('.') {
            text.push('.');
        }
        if text.is_empty() {
            return Err(self.unexpected("TCP flags"));
        }
        let mut flags = TcpFlags::NONE;
        for c in text.chars() {
            flags |= match c {
                'F' => TcpFlags::FIN,
                'S' => TcpFlags::SYN,
                'R' => TcpFlags::RST,
                'P' => TcpFlags::PSH,
                '.' => TcpFlags::ACK,
                'U' => TcpFlags::URG,
                'E' => TcpFlags::ECE,
                'W' => TcpFlags::CWR,
                'A' => TcpFlags::AE,
                digit @ '0'..='7' => {
                    tcp.has_ace = true;
                    TcpFlags::from_bits((digit as u16 - u16::from(b'0')) << 6)
                }
                _ => return Err(Trouble::syntax(line, format!("`{c}` is no TCP flag"))),
            };
        }
        tcp.flags = flags.bits();
        Ok(())
    }

    /// Parses a sequence number, modulo 2^32; a script may write a negative one.
    fn sequence(&mut self, what: &str) -> Result<u32, Trouble> {
        let line = self.line();
        let n = self.integer(what)?;
        if n > i64::from(u32::MAX) || n < -i64::from(u32::MAX) {
            return Err(Trouble::syntax(line, format!("{what}: {n} is out of range")));
        }
        Ok(n as u32)
    }

    /// Parses `first:last(length)`; returns first and length.
    fn range(&mut self) -> Result<(u32, u32), Trouble> {
        let line = self.line();
        let first = self.sequence("a sequence number")?;
        self.expect_char(':')?;
        let last = self.sequence("a sequence number")?;
        self.expect_char('(')?;
        let len: u16 = self.number("a length")?;
        self.expect_char(')')?;
        if last.wrapping_sub(first) != u32::from(len) {
            return Err(Trouble::syntax(line, format!("{first}:{last} is not {len} bytes long")));
        }
        Ok((first, u32::from(len)))
    }

    fn options(&mut self) -> Result<Option<Vec<TcpOption>>, Trouble> {
        let mut options = Vec::new();
        if self.peek() == Some(&Token::Ellipsis) {
            self.at += 1;
            self.expect_char('>')?;
            return Ok(None);
        }
        loop {
            options.push(self.option()?);
            if self.take_char('>') {
                break;
            }
            self.expect_char(',')?;
        }
        let len: usize = options.iter().map(crate::segment::option_len).sum();
        if !len.is_multiple_of(4) || len > 40 {
            let line = self.line();
            return Err(Trouble::syntax(
                line,
                format!("{len} bytes of TCP options: not a multiple of 4 up to 40"),
            ));
        }
        Ok(Some(options))
    }

    fn option(&mut self) -> Result<TcpOption, Trouble> {
        let line = self.line();
        let name = self.word("a TCP option")?;
        Ok(match name.as_str() {
            "nop" => TcpOption::Nop,
            "eol" => TcpOption::Eol,
            "mss" => TcpOption::Mss(self.number("mss")?),
            "wscale" => TcpOption::WindowScale(self.number("wscale")?),
            "sackOK" => TcpOption::SackOk,
            "sack" => self.sack()?,
            "TS" => {
                if !self.take_word("val") {
                    return Err(self.unexpected("`val`"));
                }
                let value = self.number("a timestamp")?;
                if !self.take_word("ecr") {
                    return Err(self.unexpected("`ecr`"));
                }
                TcpOption::Timestamps(value, self.number("a timestamp")?)
            }
            "FO" | "FOEXP" => return Err(Trouble::unsupported(line, "TCP fast open")),
            "md5" => return Err(Trouble::unsupported(line, "TCP MD5 signatures")),
            "ECN" => return Err(Trouble::unsupported(line, "the accurate ECN option")),
            _ => return Err(Trouble::syntax(line, format!("`{name}` is no TCP option"))),
        })
    }

    fn sack(&mut self) -> Result<TcpOption, Trouble> {
        let mut blocks = Vec::new();
        while matches!(self.peek(), Some(Token::Integer(_))) {
            let left = self.sequence("sack")?;
            self.expect_char(':')?;
            blocks.push((left, self.sequence("sack")?));
        }
        if blocks.is_empty() || blocks.len() > 4 {
            return Err(Trouble::syntax(self.line(), "one to four sack blocks"));
        }
        Ok(TcpOption::Sack(blocks))
    }

    fn icmp(&mut self) -> Result<Icmp, Trouble> {
        let kind = self.word("an ICMP type")?;
        let code = match self.peek() {
            Some(Token::Word(w)) if w != "mtu" && w != "id" => {
                let w = w.clone();
                self.at += 1;
                Some(w)
            }
            _ => None,
        };
        let mtu = if self.take_word("mtu") { Some(self.number("mtu")?) } else { None };
        if self.is_word("id") {
            return Err(Trouble::unsupported(self.line(), "ICMP echo packets"));
        }
        let mut quoted = None;
        if self.take_char('[') {
            if self.is_word("udp") || self.is_word("raw") {
                return Err(Trouble::unsupported(self.line(), "ICMP about packets that are not TCP"));
            }
            quoted = Some(self.range()?);
            self.expect_char(']')?;
        }
        Ok(Icmp { kind, code, mtu, quoted })
    }
}
