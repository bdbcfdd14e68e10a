//! Conversion between bytes and typed headers: Ethernet, VLAN, ARP, IPv4, IPv6, ICMP, ICMPv6, TCP with its options, and their checksums.
//!
//! ```text
//! frame --Packet::parse--> Ethernet [VLAN] -> ARP
//!                                          -> IPv4 | IPv6 [extensions] -> TCP [options] | ICMP | other
//!                     \--> DropReason: why the frame goes no further, countable by name
//! ```
//!
//! Every `parse` accepts hostile bytes and returns a header, or an error that names the fault; `parse` reads back
//! unchanged what `emit` has written. Nothing here allocates, panics on input, keeps state or looks up a route.
#![no_std]
#![forbid(unsafe_code)]

/// Declares an error enum; the doc comments of its variants are its messages.
macro_rules! error_enum {
    ($(#[doc = $head:literal])+ $name:ident { $(#[doc = $message:literal] $variant:ident,)+ }) => {
        $(#[doc = $head])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $name {
            $(#[doc = $message] $variant,)+
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $message.trim_ascii(),)+
                })
            }
        }

        impl core::error::Error for $name {}
    };
}

mod addressee;
mod arp;
pub mod checksum;
mod common;
mod drop_reason;
mod endpoint;
mod ethernet;
mod frame;
mod group;
mod icmpv4;
mod icmpv6;
mod ip;
mod ipv4;
mod ipv6;
mod mac;
mod martian;
mod packet;
mod quoted;
mod shorten;
mod tcp;
mod tcp_options;

pub use addressee::Addressee;
pub use arp::{ArpError, ArpOperation, ArpPacket};
pub use checksum::Sum;
pub use common::{CommonHeaders, CommonSegment};
pub use drop_reason::DropReason;
pub use endpoint::{Endpoint, FourTuple};
pub use ethernet::{EtherType, EthernetError, EthernetHeader, VlanTag};
pub use frame::{FrameError, IpParameters, TxChecksum, emit_ip, emit_tcp, tcp_headers_len};
pub use group::{GROUP_FACTOR, GROUPS};
pub use icmpv4::{Icmpv4Error, Icmpv4Message, code};
pub use icmpv6::{Icmpv6Error, Icmpv6Message};
pub use ip::{Ecn, IpProtocol};
pub use ipv4::{Ipv4Error, Ipv4Header};
pub use ipv6::{Ipv6Error, Ipv6Header, UpperLayer, skip_extensions};
pub use mac::{MacAddr, MacError};
pub use martian::{check_addresses, check_tcp_addresses};
pub use packet::{Body, IpPacket, Packet, RxChecksum, Span, TcpPacket};
pub use quoted::{QuotedError, QuotedFlow};
pub use shorten::shorten;
pub use tcp::{TcpError, TcpFlags, TcpHeader};
pub use tcp_options::{SackBlock, SackBlocks, TcpOptions, TcpOptionsError, Timestamps, timestamps_only};
