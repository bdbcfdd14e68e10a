//! The ioctls of TAP descriptors and interfaces; the only file of this crate with unsafe code.

use libc::c_ulong;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Length in bytes of the union in `struct ifreq`.
const VALUE_LEN: usize = size_of::<libc::ifreq>() - libc::IFNAMSIZ;

/// `struct ifreq`: a name, and a union as bytes.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; VALUE_LEN],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

/// `struct in6_ifreq` of the kernel (linux/ipv6.h).
#[repr(C)]
struct AddressRequestV6 {
    address: [u8; 16],
    prefix: u32,
    index: i32,
}

/// An interface name that the kernel accepts: 1 to 15 bytes, ended by NUL.
#[derive(Clone, Copy)]
pub(crate) struct Name([u8; libc::IFNAMSIZ]);

impl Name {
    pub(crate) fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let is_good = (1..libc::IFNAMSIZ).contains(&bytes.len())
            && !matches!(name, "." | "..")
            && !bytes.iter().any(|b| matches!(b, b'/' | b':' | 0) || b.is_ascii_whitespace());
        let mut padded = [0; libc::IFNAMSIZ];
        is_good.then(|| {
            padded[..bytes.len()].copy_from_slice(bytes);
            Self(padded)
        })
    }

    pub(crate) fn text(&self) -> String {
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..len]).into_owned()
    }

    fn request(self) -> InterfaceRequest {
        InterfaceRequest { name: self.0, value: [0; VALUE_LEN] }
    }
}

/// # Safety
/// `argument` must be what the driver of `fd` expects for `request`: an integer, or a pointer to a live object of the size that
/// the request reads and writes.
unsafe fn ioctl(fd: BorrowedFd<'_>, request: c_ulong, argument: usize) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed; the caller guarantees the argument.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn interface(fd: BorrowedFd<'_>, request: c_ulong, argument: &mut InterfaceRequest) -> io::Result<()> {
    // SAFETY: all callers pass requests that take a `struct ifreq`; ours has its size and outlives the call.
    unsafe { ioctl(fd, request, std::ptr::from_mut(argument) as usize) }
}

/// Attaches `tun` as a queue of the TAP `name` (the kernel numbers a `%d` in it); returns the interface's name.
pub(crate) fn attach(
    tun: BorrowedFd<'_>,
    name: Name,
    multi_queue: bool,
    must_be_new: bool,
) -> io::Result<Name> {
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    if must_be_new {
        flags |= libc::IFF_TUN_EXCL;
    }
    let mut request = name.request();
    request.value[..2].copy_from_slice(&(flags as u16).to_ne_bytes());
    interface(tun, libc::TUNSETIFF, &mut request)?;
    Ok(Name(request.name))
}

/// Sets the length of the virtio header, and little-endian byte order on every machine.
pub(crate) fn set_header(tun: BorrowedFd<'_>, len: i32) -> io::Result<()> {
    let little_endian = 1i32;
    // SAFETY: both requests read one int through the pointer; the locals outlive the calls.
    unsafe {
        ioctl(tun, libc::TUNSETVNETHDRSZ, std::ptr::from_ref(&len) as usize)?;
        ioctl(tun, libc::TUNSETVNETLE, std::ptr::from_ref(&little_endian) as usize)
    }
}

/// Sets the offloads that the kernel may leave to us.
pub(crate) fn set_offload(tun: BorrowedFd<'_>, checksum: bool, segmentation: bool) -> io::Result<()> {
    let mut flags = 0;
    if checksum {
        flags |= libc::TUN_F_CSUM;
    }
    if segmentation {
        flags |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    }
    // SAFETY: the request takes its argument as an integer.
    unsafe { ioctl(tun, libc::TUNSETOFFLOAD, flags as usize) }
}

/// Has a program choose the queue of each frame to us.
pub(crate) fn set_steering(tun: BorrowedFd<'_>, program: RawFd) -> io::Result<()> {
    // SAFETY: the request reads one int through the pointer; the local outlives the call.
    unsafe { ioctl(tun, libc::TUNSETSTEERINGEBPF as c_ulong, std::ptr::from_ref(&program) as usize) }
}

/// Sets whether the interface outlives its descriptors.
pub(crate) fn set_persist(tun: BorrowedFd<'_>, persists: bool) -> io::Result<()> {
    // SAFETY: the request takes its argument as an integer.
    unsafe { ioctl(tun, libc::TUNSETPERSIST, usize::from(persists)) }
}

/// A socket in the current thread's network namespace, and the name of one interface there.
pub(crate) struct Interface {
    socket: OwnedFd,
    name: Name,
}

impl Interface {
    pub(crate) fn new(name: Name) -> io::Result<Self> {
        Ok(Self { socket: control_socket(rustix::net::AddressFamily::INET)?, name })
    }

    fn change(&self, request: c_ulong, value: &[u8]) -> io::Result<()> {
        let mut argument = self.name.request();
        argument.value[..value.len()].copy_from_slice(value);
        interface(self.socket.as_fd(), request, &mut argument)
    }

    fn ask(&self, request: c_ulong) -> io::Result<InterfaceRequest> {
        let mut argument = self.name.request();
        interface(self.socket.as_fd(), request, &mut argument).map(|()| argument)
    }

    pub(crate) fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        self.change(libc::SIOCSIFMTU, &i32::from(mtu).to_ne_bytes())
    }

    /// Allows at least `frames` frames in each queue of the kernel; a larger value that is already set stays.
    pub(crate) fn set_queue_len(&self, frames: u16) -> io::Result<()> {
        let now = self.ask(libc::SIOCGIFTXQLEN)?.value;
        if i32::from_ne_bytes([now[0], now[1], now[2], now[3]]) >= i32::from(frames) {
            return Ok(());
        }
        self.change(libc::SIOCSIFTXQLEN, &i32::from(frames).to_ne_bytes())
    }

    pub(crate) fn set_up(&self) -> io::Result<()> {
        let flags = self.ask(libc::SIOCGIFFLAGS)?.value;
        let flags = i16::from_ne_bytes([flags[0], flags[1]]) | libc::IFF_UP as i16;
        self.change(libc::SIOCSIFFLAGS, &flags.to_ne_bytes())
    }

    pub(crate) fn mac(&self) -> io::Result<[u8; 6]> {
        let answer = self.ask(libc::SIOCGIFHWADDR)?.value;
        let mut mac = [0; 6];
        mac.copy_from_slice(&answer[2..8]);
        Ok(mac)
    }

    pub(crate) fn index(&self) -> io::Result<u32> {
        let answer = self.ask(libc::SIOCGIFINDEX)?.value;
        Ok(u32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]))
    }

    pub(crate) fn set_address_v4(&self, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mask = Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0));
        self.change(libc::SIOCSIFADDR, &socket_address(address))?;
        self.change(libc::SIOCSIFNETMASK, &socket_address(mask))
    }

    pub(crate) fn set_address_v6(&self, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
        let socket = control_socket(rustix::net::AddressFamily::INET6)?;
        let index = self.index()? as i32;
        let request = AddressRequestV6 { address: address.octets(), prefix: u32::from(prefix), index };
        // SAFETY: on an IPv6 socket the request reads a `struct in6_ifreq`, which this is; it outlives the call.
        let result =
            unsafe { ioctl(socket.as_fd(), libc::SIOCSIFADDR, std::ptr::from_ref(&request) as usize) };
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other,
        }
    }
}

fn control_socket(family: rustix::net::AddressFamily) -> io::Result<OwnedFd> {
    use rustix::net::{SocketFlags, SocketType, socket_with};
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// `struct sockaddr_in` with family, port 0 and address.
fn socket_address(address: Ipv4Addr) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&address.octets());
    bytes
}

/// Moves the current thread into a new network namespace.
#[cfg(test)]
pub(crate) fn enter_new_network_namespace() -> io::Result<()> {
    // SAFETY: no memory is involved; only this thread's network changes, which is what the test wants.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
