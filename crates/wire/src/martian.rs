//! Checks for addresses that no valid packet has on a wire (RFC 1122 section 3.2.1.3, RFC 6890).
//!
//! Subnet broadcast addresses are not found here: that needs the interface's prefix.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::DropReason;

/// Checks the addresses of any IP packet that came over a wire. Multicast and the limited broadcast are allowed as
/// destination; the unspecified IPv6 address is allowed as source (duplicate address detection).
///
/// # Errors
/// `MartianSource`, `MartianDestination`, `LoopbackOnWire` or `LandAttack`.
#[inline]
pub fn check_addresses(src: IpAddr, dst: IpAddr) -> Result<(), DropReason> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => check_v4(src, dst),
        (IpAddr::V6(src), IpAddr::V6(dst)) => check_v6(&src, &dst),
        _ => Err(DropReason::MartianDestination),
    }
}

/// Checks the addresses of a TCP segment that came over a wire: both ends must be single hosts (RFC 9293, MUST-57 and
/// MUST-63).
///
/// # Errors
/// The errors of [`check_addresses`].
#[inline]
pub fn check_tcp_addresses(src: IpAddr, dst: IpAddr) -> Result<(), DropReason> {
    check_addresses(src, dst)?;
    if src.is_unspecified() {
        return Err(DropReason::MartianSource);
    }
    let is_group = match dst {
        IpAddr::V4(dst) => dst.is_multicast() || dst.is_broadcast(),
        IpAddr::V6(dst) => dst.is_multicast(),
    };
    if is_group { Err(DropReason::MartianDestination) } else { Ok(()) }
}

#[inline]
fn check_v4(src: Ipv4Addr, dst: Ipv4Addr) -> Result<(), DropReason> {
    let (from, to) = (src.octets()[0], dst.octets()[0]);
    if from == 127 || to == 127 {
        return Err(DropReason::LoopbackOnWire);
    }
    // From 224.0.0.0 on: multicast, reserved addresses (240.0.0.0/4) and the limited broadcast.
    if from == 0 || from >= 224 {
        return Err(DropReason::MartianSource);
    }
    if to == 0 || (to >= 240 && !dst.is_broadcast()) {
        return Err(DropReason::MartianDestination);
    }
    if src == dst { Err(DropReason::LandAttack) } else { Ok(()) }
}

#[inline]
fn check_v6(src: &Ipv6Addr, dst: &Ipv6Addr) -> Result<(), DropReason> {
    let is_mapped = |address: &Ipv6Addr| address.to_ipv4_mapped().is_some();
    if src.is_loopback() || dst.is_loopback() {
        return Err(DropReason::LoopbackOnWire);
    }
    if src.is_multicast() || is_mapped(src) {
        return Err(DropReason::MartianSource);
    }
    if dst.is_unspecified() || is_mapped(dst) {
        return Err(DropReason::MartianDestination);
    }
    if src == dst { Err(DropReason::LandAttack) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::{check_addresses, check_tcp_addresses};
    use crate::DropReason::{LandAttack, LoopbackOnWire, MartianDestination, MartianSource};
    use core::net::IpAddr;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn martians_are_named() {
        let table = [
            ("10.0.0.1", "10.0.0.2", Ok(())),
            ("10.0.0.1", "255.255.255.255", Ok(())),
            ("10.0.0.1", "224.0.0.1", Ok(())),
            ("0.0.0.0", "10.0.0.2", Err(MartianSource)),
            ("0.1.2.3", "10.0.0.2", Err(MartianSource)),
            ("224.0.0.1", "10.0.0.2", Err(MartianSource)),
            ("240.0.0.1", "10.0.0.2", Err(MartianSource)),
            ("255.255.255.255", "10.0.0.2", Err(MartianSource)),
            ("127.0.0.1", "10.0.0.2", Err(LoopbackOnWire)),
            ("10.0.0.1", "127.1.2.3", Err(LoopbackOnWire)),
            ("10.0.0.1", "0.0.0.0", Err(MartianDestination)),
            ("10.0.0.1", "250.0.0.1", Err(MartianDestination)),
            ("10.0.0.1", "10.0.0.1", Err(LandAttack)),
            ("fe80::1", "fe80::2", Ok(())),
            ("::", "ff02::1:ff00:1", Ok(())),
            ("ff02::1", "fe80::2", Err(MartianSource)),
            ("::ffff:10.0.0.1", "fe80::2", Err(MartianSource)),
            ("::1", "fe80::2", Err(LoopbackOnWire)),
            ("fe80::1", "::", Err(MartianDestination)),
            ("fe80::1", "fe80::1", Err(LandAttack)),
        ];
        for (src, dst, expected) in table {
            assert_eq!(check_addresses(ip(src), ip(dst)), expected, "{src} -> {dst}");
        }
    }

    #[test]
    fn tcp_needs_single_hosts_at_both_ends() {
        for (src, dst, expected) in [
            ("10.0.0.1", "10.0.0.2", Ok(())),
            ("10.0.0.1", "224.0.0.1", Err(MartianDestination)),
            ("10.0.0.1", "255.255.255.255", Err(MartianDestination)),
            ("::", "fe80::1", Err(MartianSource)),
            ("fe80::1", "ff02::1", Err(MartianDestination)),
        ] {
            assert_eq!(check_tcp_addresses(ip(src), ip(dst)), expected, "{src} -> {dst}");
        }
    }
}
