//! Addresses as C has them.

use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The address at `at`, of `len` bytes; `None`: it is no IPv4 or IPv6 address.
///
/// # Safety
/// `at` is readable for `len` bytes, or null.
pub(crate) unsafe fn read(at: *const libc::sockaddr, len: libc::socklen_t) -> Option<SocketAddr> {
    let has = |size: usize| !at.is_null() && len as usize >= size;
    if !has(size_of::<libc::sa_family_t>()) {
        return None;
    }
    // SAFETY: readable by the caller's promise; no alignment is assumed.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if has(size_of::<libc::sockaddr_in>()) => {
            // SAFETY: as above, and long enough.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some((IpAddr::V4(ip), u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if has(size_of::<libc::sockaddr_in6>()) => {
            // SAFETY: as above, and long enough.
            let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The address as a `sockaddr_storage`.
pub(crate) fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: a plain structure for which zeros are valid.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let at = (&raw mut storage).cast::<libc::sockaddr>();
    match address {
        SocketAddr::V4(v4) => {
            let to = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a `sockaddr_storage` has room and alignment for every address.
            unsafe { at.cast::<libc::sockaddr_in>().write(to) };
        }
        SocketAddr::V6(v6) => {
            let to = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { at.cast::<libc::sockaddr_in6>().write(to) };
        }
    }
    storage
}
