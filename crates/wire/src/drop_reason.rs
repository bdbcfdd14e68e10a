//! The reasons for which a frame is dropped, with names for counters.

use crate::{
    ArpError, EthernetError, Icmpv4Error, Icmpv6Error, Ipv4Error, Ipv6Error, TcpError, TcpOptionsError,
};

/// Declares each reason once: its variant, its name in metrics, and its message.
macro_rules! drop_reasons {
    ($($(#[doc = $message:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a frame was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $message])+ $variant,)+
        }

        impl DropReason {
            /// All reasons, in the order of [`Self::index`].
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];
            /// The number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// The reason's name in metrics and listings.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The sentence that explains the reason.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($message),+).trim_ascii(),)+
                }
            }
        }
    };
}

drop_reasons! {
    /// the frame ends before a header, or before the length that its IP header states
    Truncated = "truncated",
    /// the frame is larger than any port handles
    Oversized = "oversized",
    /// a length field contradicts another or the minimum for its header
    BadLength = "bad_length",
    /// the IP version does not match the EtherType
    BadVersion = "bad_version",
    /// the IPv4 header checksum is wrong
    BadIpChecksum = "bad_ip_checksum",
    /// the TCP, ICMP or ICMPv6 checksum is wrong
    BadChecksum = "bad_checksum",
    /// the packet is a fragment, and fragments are not reassembled
    Fragment = "fragment",
    /// an IPv6 extension header cannot be skipped
    UnsupportedExtension = "unsupported_extension",
    /// a TCP option's length is impossible
    MalformedOption = "malformed_option",
    /// an ARP packet is not a request or reply about IPv4 over Ethernet
    MalformedArp = "malformed_arp",
    /// a neighbour discovery message is malformed
    MalformedNeighbor = "malformed_neighbor",
    /// a neighbour discovery message came from beyond the link: its hop limit is not 255
    NeighborHopLimit = "neighbor_hop_limit",
    /// the source address cannot be a sender's
    MartianSource = "martian_source",
    /// the destination address cannot be a receiver's
    MartianDestination = "martian_destination",
    /// a loopback address came over a wire
    LoopbackOnWire = "loopback_on_wire",
    /// source and destination address are the same
    LandAttack = "land_attack",
    /// the frame is for another Ethernet address
    ForeignMac = "foreign_mac",
    /// the packet is for another IP address
    ForeignAddress = "foreign_address",
    /// nothing here speaks the frame's EtherType
    UnknownEtherType = "unknown_ethertype",
    /// nothing here speaks the packet's IP protocol
    UnknownProtocol = "unknown_protocol",
}

impl DropReason {
    /// The reason's index in an array of [`Self::COUNT`] counters.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl core::fmt::Display for DropReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.message())
    }
}

impl core::error::Error for DropReason {}

impl From<EthernetError> for DropReason {
    fn from(_: EthernetError) -> Self {
        Self::Truncated
    }
}

impl From<ArpError> for DropReason {
    fn from(error: ArpError) -> Self {
        match error {
            ArpError::Truncated | ArpError::BufferTooSmall => Self::Truncated,
            ArpError::UnsupportedKind | ArpError::UnknownOperation => Self::MalformedArp,
        }
    }
}

impl From<Ipv4Error> for DropReason {
    fn from(error: Ipv4Error) -> Self {
        match error {
            Ipv4Error::Truncated | Ipv4Error::BufferTooSmall => Self::Truncated,
            Ipv4Error::WrongVersion => Self::BadVersion,
            Ipv4Error::BadLength | Ipv4Error::FieldOutOfRange => Self::BadLength,
            Ipv4Error::BadChecksum => Self::BadIpChecksum,
        }
    }
}

impl From<Ipv6Error> for DropReason {
    fn from(error: Ipv6Error) -> Self {
        match error {
            Ipv6Error::Truncated | Ipv6Error::BufferTooSmall => Self::Truncated,
            Ipv6Error::WrongVersion => Self::BadVersion,
            Ipv6Error::BadLength | Ipv6Error::FieldOutOfRange => Self::BadLength,
            Ipv6Error::Fragment => Self::Fragment,
            Ipv6Error::UnsupportedExtension | Ipv6Error::TooManyExtensions => Self::UnsupportedExtension,
        }
    }
}

impl From<TcpError> for DropReason {
    fn from(error: TcpError) -> Self {
        match error {
            TcpError::Truncated | TcpError::BufferTooSmall => Self::Truncated,
            TcpError::BadLength | TcpError::OptionsTooLong => Self::BadLength,
        }
    }
}

impl From<TcpOptionsError> for DropReason {
    fn from(_: TcpOptionsError) -> Self {
        Self::MalformedOption
    }
}

impl From<Icmpv4Error> for DropReason {
    fn from(error: Icmpv4Error) -> Self {
        match error {
            Icmpv4Error::Truncated | Icmpv4Error::BufferTooSmall => Self::Truncated,
            Icmpv4Error::BadChecksum => Self::BadChecksum,
        }
    }
}

impl From<Icmpv6Error> for DropReason {
    fn from(error: Icmpv6Error) -> Self {
        match error {
            Icmpv6Error::Truncated | Icmpv6Error::BufferTooSmall => Self::Truncated,
            Icmpv6Error::BadChecksum => Self::BadChecksum,
            Icmpv6Error::Malformed => Self::MalformedNeighbor,
            Icmpv6Error::TooLong => Self::BadLength,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DropReason;

    #[test]
    fn reasons_have_distinct_names_and_places() {
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), i);
            assert!(!reason.message().is_empty());
            assert_eq!(DropReason::ALL.iter().filter(|other| other.name() == reason.name()).count(), 1);
        }
    }
}
