//! The socket options and ioctls of packet sockets, and memory shared with the kernel.

use libc::{c_int, c_ulong};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// The properties of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub index: i32,
    pub mac: [u8; 6],
    pub mtu: i32,
    pub is_up: bool,
    pub is_ethernet: bool,
}

/// `struct tpacket_stats` (linux/if_packet.h): counts since the last read.
#[repr(C)]
#[derive(Default)]
struct Statistics {
    packets: u32,
    drops: u32,
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A non-blocking packet socket that is not bound and receives nothing.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// The properties of the interface `name`, in the namespace of `socket`.
pub(crate) fn facts(socket: &OwnedFd, name: &str) -> io::Result<Facts> {
    let ask = |request: c_ulong| -> io::Result<libc::ifreq> {
        // SAFETY: `ifreq` is plain data, for which all zeros is a valid value.
        let mut argument: libc::ifreq = unsafe { std::mem::zeroed() };
        if argument.ifr_name.len() <= name.len() || name.is_empty() || name.bytes().any(|b| b == 0) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        argument.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
        // SAFETY: the requests below read and write one `ifreq`, which outlives the call; the name ends with a zero.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut argument) })?;
        Ok(argument)
    };
    let (index, mtu) = (ask(libc::SIOCGIFINDEX)?, ask(libc::SIOCGIFMTU)?);
    let (flags, hardware) = (ask(libc::SIOCGIFFLAGS)?, ask(libc::SIOCGIFHWADDR)?);
    // SAFETY: each request has filled the member that is read here.
    let (index, mtu, flags, hardware) = unsafe {
        let hardware = hardware.ifr_ifru.ifru_hwaddr;
        (index.ifr_ifru.ifru_ifindex, mtu.ifr_ifru.ifru_mtu, flags.ifr_ifru.ifru_flags, hardware)
    };
    let mut mac = [0; 6];
    mac.iter_mut().zip(hardware.sa_data).for_each(|(to, from)| *to = from as u8);
    Ok(Facts {
        index,
        mac,
        mtu,
        is_up: c_int::from(flags) & libc::IFF_UP != 0,
        is_ethernet: hardware.sa_family == libc::ARPHRD_ETHER,
    })
}

fn set_option<T>(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of a value that outlives the call; all callers pass plain data.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len)
    })
}

/// Sets the sizes of the receive and send buffers in bytes; they are smaller if this process may not set that much.
pub(crate) fn set_buffers(socket: &OwnedFd, bytes: c_int) -> io::Result<()> {
    for (forced, asked) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        set_option(socket.as_fd(), libc::SOL_SOCKET, forced, &bytes)
            .or_else(|_| set_option(socket.as_fd(), libc::SOL_SOCKET, asked, &bytes))?;
    }
    Ok(())
}

/// Sets a virtio-net header in front of each frame, in both directions, and excludes frames that this host sends.
pub(crate) fn set_frames(socket: &OwnedFd) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1 as &c_int)?;
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1 as &c_int)
}

/// Attaches a filter: the socket gets only frames for which the program returns a number other than 0.
pub(crate) fn set_filter(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // The pointer is valid for the call, during which the kernel copies the instructions.
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Sets up a receive ring of `slots` slots of `slot` bytes, version 2 of the layout; the socket keeps the whole of each frame that is
/// longer than a slot.
pub(crate) fn set_ring(socket: &OwnedFd, slot: u32, slots: u32, block: u32) -> io::Result<()> {
    let version = libc::tpacket_versions::TPACKET_V2 as c_int;
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &1 as &c_int)?;
    let request = libc::tpacket_req {
        tp_block_size: block,
        tp_block_nr: slots / (block / slot),
        tp_frame_size: slot,
        tp_frame_nr: slots,
    };
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// Removes the receive ring, which must not be mapped any more.
pub(crate) fn clear_ring(socket: BorrowedFd<'_>) -> io::Result<()> {
    let none = libc::tpacket_req { tp_block_size: 0, tp_block_nr: 0, tp_frame_size: 0, tp_frame_nr: 0 };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &none)
}

/// Maps the receive ring of `len` bytes.
pub(crate) fn map(socket: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses; existing memory is not touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, socket.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Unmaps the memory that [`map`] returned.
///
/// # Safety
/// `map` returned `at` for the same `len`, and nothing uses it any more.
pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::munmap(at.as_ptr().cast(), len) };
}

/// All protocols, none, and one that no frame has (reserved, RFC 1701): what a socket that [`bind`] binds receives. A socket that has had another
/// cannot go back to none.
pub(crate) const ALL: u16 = libc::ETH_P_ALL as u16;
pub(crate) const NONE: u16 = 0;
pub(crate) const UNUSED: u16 = 0xFFFF;

/// Binds the socket: from now on it sends to interface `index`, and gets all frames of that, or none.
pub(crate) fn bind(socket: &OwnedFd, index: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is plain data, for which all zeros is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads one `sockaddr_ll`, which outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })
}

/// Makes interface `index` promiscuous while the socket is open.
pub(crate) fn set_promiscuous(socket: &OwnedFd, index: i32) -> io::Result<()> {
    let kind = libc::PACKET_MR_PROMISC as u16;
    let membership = libc::packet_mreq { mr_ifindex: index, mr_type: kind, mr_alen: 0, mr_address: [0; 8] };
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

/// Makes the socket a member of the group with `id`, or of a new one, and returns the group's id. The group's program chooses the member for each
/// frame, and until it has a program the first member gets them all.
pub(crate) fn join_group(socket: &OwnedFd, id: Option<u16>) -> io::Result<u16> {
    // The group has its own setting for outgoing frames, which replaces that of the members.
    let mut flags = libc::PACKET_FANOUT_CBPF | FANOUT_FLAG_IGNORE_OUTGOING;
    if id.is_none() {
        flags |= libc::PACKET_FANOUT_FLAG_UNIQUEID;
    }
    let value = u32::from(id.unwrap_or(0)) | (flags << 16);
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, &value)?;
    group(socket)
}

/// The id of the group that the socket is a member of.
pub(crate) fn group(socket: &OwnedFd) -> io::Result<u16> {
    let mut given = 0u32;
    option(socket.as_fd(), libc::PACKET_FANOUT, &mut given)?;
    Ok(given as u16)
}

/// Gives the group of `socket` a program in the place of the one before. Returns when no processor runs that one any more.
pub(crate) fn set_group_program(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // The pointer is valid for the call, during which the kernel copies the instructions.
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program)
}

/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING` (linux/if_packet.h).
const FANOUT_FLAG_IGNORE_OUTGOING: u32 = 0x4000;

/// Reads a `SOL_PACKET` option.
///
/// # Errors
/// The kernel does not know the option.
fn option<T>(socket: BorrowedFd<'_>, option: c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let to = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `len` bytes to a value of plain data that outlives the call.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, to, &raw mut len) })
}

/// Number of frames that found the socket's buffer full since the last call.
pub(crate) fn drops(socket: BorrowedFd<'_>) -> u64 {
    let mut statistics = Statistics::default();
    match option(socket, libc::PACKET_STATISTICS, &mut statistics) {
        Ok(()) => u64::from(statistics.drops),
        Err(_) => 0,
    }
}

/// Moves the current thread into a new network namespace.
#[cfg(test)]
pub(crate) fn enter_new_network_namespace() -> io::Result<()> {
    // SAFETY: no memory is involved; only this thread's network changes, which is what the test wants.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}
