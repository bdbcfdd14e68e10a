//! Common parts of IPv4 and IPv6: protocol numbers and the ECN field.

/// The protocol of an IP payload: the protocol field of IPv4, the next header field of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// IPv6 hop-by-hop options header.
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// The routing header of IPv6.
    pub const ROUTING: Self = Self(43);
    /// The fragment header of IPv6.
    pub const FRAGMENT: Self = Self(44);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// IPv6: no header follows.
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options header.
    pub const DESTINATION_OPTIONS: Self = Self(60);
}

/// The ECN field (RFC 3168 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not-ECT: the transport does not use ECN.
    #[default]
    NotEct = 0,
    /// ECT(1): ECN-capable transport, bits 01.
    Ect1 = 1,
    /// ECT(0): ECN-capable transport, bits 10.
    Ect0 = 2,
    /// CE: a router has marked the packet because of congestion.
    Ce = 3,
}

impl Ecn {
    /// The field in the low two bits of the traffic class or TOS byte.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The field as two bits.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}
