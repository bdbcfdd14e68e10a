//! The packet that an ICMP error quotes: its flow, and a sequence number by which to check that the flow sent it.

use base::SeqNumber;

use crate::{Endpoint, FourTuple, IpProtocol, Ipv4Header, Ipv6Header, skip_extensions};

error_enum! {
    /// Why the packet quoted in an ICMP error names no TCP flow.
    QuotedError {
        /// the quoted packet ends before its TCP ports and sequence number
        Truncated,
        /// the quoted packet is malformed
        Malformed,
        /// the quoted packet is not TCP
        NotTcp,
        /// the quoted packet is not the first fragment
        Fragment,
    }
}

/// The flow and sequence number of a TCP segment of ours that an ICMP error quotes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QuotedFlow {
    /// Source and destination as we sent them; `src` is our end.
    pub tuple: FourTuple,
    /// The segment's sequence number; the error is valid only if that number is in flight (RFC 5927 section 4.1).
    pub seq: SeqNumber,
}

impl QuotedFlow {
    /// Reads a quoted IPv4 packet: a header and at least 8 bytes behind it (RFC 792).
    ///
    /// # Errors
    /// Any [`QuotedError`] can occur.
    pub fn parse_v4(bytes: &[u8]) -> Result<Self, QuotedError> {
        let header = Ipv4Header::parse_unverified(bytes).map_err(|_| QuotedError::Malformed)?;
        if header.fragment_offset != 0 {
            return Err(QuotedError::Fragment);
        }
        let rest = bytes.get(header.header_len()..).ok_or(QuotedError::Truncated)?;
        Self::parse_ports(header.src.into(), header.dst.into(), header.protocol, rest)
    }

    /// Reads a quoted IPv6 packet: headers and at least 8 bytes behind them.
    ///
    /// # Errors
    /// Any [`QuotedError`] can occur.
    pub fn parse_v6(bytes: &[u8]) -> Result<Self, QuotedError> {
        let header = Ipv6Header::parse_quoted(bytes).map_err(|_| QuotedError::Malformed)?;
        let payload = bytes.get(Ipv6Header::LEN..).ok_or(QuotedError::Truncated)?;
        let upper = skip_extensions(header.next_header, payload).map_err(|_| QuotedError::Malformed)?;
        let rest = payload.get(upper.offset..).ok_or(QuotedError::Truncated)?;
        Self::parse_ports(header.src.into(), header.dst.into(), upper.protocol, rest)
    }

    fn parse_ports(
        src: core::net::IpAddr,
        dst: core::net::IpAddr,
        protocol: IpProtocol,
        rest: &[u8],
    ) -> Result<Self, QuotedError> {
        if protocol != IpProtocol::TCP {
            return Err(QuotedError::NotTcp);
        }
        let h = rest.first_chunk::<8>().ok_or(QuotedError::Truncated)?;
        let tuple = FourTuple {
            src: Endpoint::new(src, u16::from_be_bytes([h[0], h[1]])),
            dst: Endpoint::new(dst, u16::from_be_bytes([h[2], h[3]])),
        };
        Ok(Self { tuple, seq: SeqNumber(u32::from_be_bytes([h[4], h[5], h[6], h[7]])) })
    }
}
