//! Calls that have no safe wrapper: signals as a descriptor, a thread's own descriptor table, and socket options; and the kernel's random bytes.

use crate::ServiceError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;

/// Value of the option in `linux/in.h`.
const IP_LOCAL_PORT_RANGE: libc::c_int = 51;

/// Blocks SIGTERM, SIGINT and SIGHUP for this thread and the threads that it starts. Returns a descriptor that is readable when one of them
/// has come.
pub fn signals() -> Result<OwnedFd, Errno> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the set is initialised and the signal numbers are valid.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: the set is initialised; a null old set is allowed.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if error != 0 {
        return Err(Errno::from_raw_os_error(error));
    }
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS));
    }
    // SAFETY: signalfd returned a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Descriptors from this number on are high.
const HIGH: RawFd = 4096;

/// Another descriptor of the same, under a number that is higher than most others, if the limit allows: see [`separate_descriptors`].
pub fn high(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, HIGH).or_else(|_| rustix::io::fcntl_dupfd_cloexec(fd, 0))
}

/// Gives the calling thread its own descriptor table with `own` and `keep`, under the same numbers, and `/dev/null`, for reading, as
/// standard input, output and error. Returns `own`, which belongs to the thread alone from then on.
///
/// The kernel copies no descriptor below both (since Linux 6.12; before, for a moment): what others close then is closed. So both are [`high`].
pub fn separate_descriptors(own: RawFd, keep: &[RawFd]) -> Result<OwnedFd, Errno> {
    fn ok(result: i64) -> Result<i64, Errno> {
        let error = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS);
        if result < 0 { Err(error()) } else { Ok(result) }
    }
    let mut kept: Vec<u32> = keep.iter().chain([&own]).map(|fd| *fd as u32).collect();
    kept.sort_unstable();
    let (mut first, mut how) = (0, libc::CLOSE_RANGE_UNSHARE);
    for last in kept.into_iter().map(Some).chain([None]) {
        let end = last.map_or(u32::MAX, |fd| fd.wrapping_sub(1));
        if first <= end && last != Some(0) {
            // SAFETY: the thread has just begun: no code in it expects a descriptor of the old table. From the first call on it has a table
            // of its own, in which nothing uses these numbers.
            ok(unsafe { libc::syscall(libc::SYS_close_range, first, end, how) })?;
            how = 0;
        }
        first = last.map_or(u32::MAX, |fd| fd + 1);
    }
    // For reading: the service's filter refuses opening for writing. Writes to it fail like writes to a closed descriptor.
    // SAFETY: the path is a C string.
    let null = ok(i64::from(unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }))?;
    for number in (0..3).filter(|number| i64::from(*number) != null) {
        // SAFETY: both are numbers of this thread's own table.
        ok(i64::from(unsafe { libc::dup2(null as RawFd, number) }))?;
    }
    // SAFETY: the number is open in this thread's table, which nothing else closes.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

/// The number of the network namespace of a socket (`SO_NETNS_COOKIE`); `None` before Linux 5.14.
pub fn namespace_cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let to = (&raw mut cookie).cast();
    // SAFETY: the value has room for `len` bytes, and both live as long as the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, to, &raw mut len)
    };
    (result == 0).then_some(cookie)
}

/// The kernel chooses the socket's port among these (`IP_LOCAL_PORT_RANGE`, ip(7)); 0 to 0: among all that it may choose.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.3.
pub fn set_local_port_range(socket: BorrowedFd<'_>, ports: RangeInclusive<u16>) -> Result<(), Errno> {
    let value = u32::from(*ports.end()) << 16 | u32::from(*ports.start());
    let from = (&raw const value).cast();
    // SAFETY: the value has the given length and lives as long as the call.
    let result = unsafe {
        let len = size_of_val(&value) as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, from, len)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS))
    }
}

/// Bytes that a socket has sent and its peer has not read (`SIOCOUTQ`), as the kernel counts them: at least 256 for each message. Takes no lock.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> u32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int, which lives as long as the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { bytes.unsigned_abs() } else { 0 }
}

/// True when a socket may take a message: its peer has few to read. As epoll reports it.
pub fn has_room(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut look = [PollFd::new(&socket, PollFlags::OUT)];
    let looked = poll(&mut look, Some(&Timespec::default()));
    looked.is_ok() && look[0].revents().contains(PollFlags::OUT)
}

/// The number of the network namespace of this process; 0 before Linux 5.14.
pub fn own_namespace() -> u64 {
    let any = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
    any.ok().and_then(|socket| namespace_cookie(socket.as_fd())).unwrap_or(0)
}

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> Result<[u8; N], ServiceError> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(n) if n == N => Ok(bytes),
        Ok(_) => Err(ServiceError::Os { doing: "read random numbers", error: Errno::AGAIN }),
        Err(error) => Err(ServiceError::Os { doing: "read random numbers", error }),
    }
}
