//! What the kernel says about the process at the other end of a UNIX socket. All that asks the kernel for credentials asks here.
//!
//! The number of a process belongs to a PID namespace: two containers may both have a process 7, and a process that the reader's namespace does
//! not contain has the number 0 for it. So a number is for people to read. What stands for a process is its line, a descriptor of it
//! ([`peer_process`]), or what that descriptor is called in the whole system ([`process_inode`]).

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::sync::OnceLock;

/// The process at the other end of a UNIX socket, or the sender of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Its number in this process's PID namespace; 0: it is not in there.
    pub pid: i32,
    /// Its user, in this process's user namespace.
    pub uid: u32,
    /// That user's primary group.
    pub gid: u32,
}

/// A datagram that was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Bytes that were put into the buffer.
    pub len: usize,
    /// The path that the sender's socket is bound to; empty: to none.
    pub address: Vec<u8>,
    /// The sender (`SCM_CREDENTIALS`); `None`: the socket does not ask for it (`SO_PASSCRED`).
    pub sender: Option<Credentials>,
    /// The datagram came with more than that: with descriptors, which are closed.
    pub has_more: bool,
}

impl From<libc::ucred> for Credentials {
    fn from(of: libc::ucred) -> Self {
        Self { pid: of.pid, uid: of.uid, gid: of.gid }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)
}

/// Asks for an option of a socket into `value`.
fn ask<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, mut value: T) -> Result<T, Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: the value has room for `len` bytes, and both live as long as the call. The callers' types are plain numbers, of any bits.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, to, &raw mut len) };
    if result == 0 { Ok(value) } else { Err(last_error()) }
}

/// The process at the other end of a connected UNIX socket (`SO_PEERCRED`): the one that connected, or called `listen`.
///
/// # Errors
/// What the kernel says.
pub fn peer_credentials(socket: impl AsFd) -> Result<Credentials, Errno> {
    // Not by rustix: its type for the number of a process cannot be 0.
    Ok(ask(socket.as_fd(), libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })?.into())
}

/// A descriptor of that process (`SO_PEERPIDFD`), in whatever PID namespace it is.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.5; others when the process has ended.
pub fn peer_process(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let fd: RawFd = ask(socket.as_fd(), libc::SO_PEERPIDFD, -1)?;
    // SAFETY: the call returned a new descriptor that has no other owner.
    if fd < 0 { Err(Errno::BADF) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// The inode number of a process's descriptor, which no other process of the system has or gets, in whatever
/// namespace. `None` before Linux 6.9, where all these descriptors have one inode.
#[must_use]
pub fn process_inode(process: impl AsFd) -> Option<u64> {
    /// The file system of descriptors that have no inode of their own.
    static WITHOUT_INODES: OnceLock<Option<u64>> = OnceLock::new();
    let device = || Some(fstat(eventfd(0, EventfdFlags::CLOEXEC).ok()?).ok()?.st_dev);
    let without = (*WITHOUT_INODES.get_or_init(device))?;
    let found = fstat(process).ok()?;
    (found.st_dev != without).then_some(found.st_ino)
}

/// The numbers of a process, by a descriptor of it: one for each PID namespace from that of the reader's `/proc` down to the process's own. Empty: it
/// has ended, or is in none of these.
#[must_use]
pub fn numbers_of(process: impl AsFd) -> Vec<i32> {
    let path = format!("/proc/self/fdinfo/{}", process.as_fd().as_raw_fd());
    numbers_in(&std::fs::read_to_string(path).unwrap_or_default())
}

/// False when the numbers in `/proc` are those of a PID namespace above this process's. Without a free descriptor nothing of that can be read: true.
#[must_use]
pub fn has_own_proc() -> bool {
    numbers_in(&std::fs::read_to_string("/proc/self/status").unwrap_or_default()).len() < 2
}

fn numbers_in(text: &str) -> Vec<i32> {
    let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let numbers = numbers.split_whitespace().map(|number| number.parse().ok().filter(|number| *number > 0));
    numbers.collect::<Option<_>>().unwrap_or_default()
}

/// Receives a datagram of a UNIX socket with its sender, without waiting. `is_look`: the datagram stays in the socket's queue.
///
/// # Errors
/// What the kernel says; EAGAIN when there is none.
pub fn receive_datagram(socket: impl AsFd, buffer: &mut [u8], is_look: bool) -> Result<Datagram, Errno> {
    const ROOM: usize = {
        // SAFETY: arithmetic alone.
        let bytes = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as libc::c_uint) } as usize;
        bytes.div_ceil(size_of::<u64>())
    };
    let mut control = [0u64; ROOM];
    // SAFETY: plain numbers, for which zeros are valid.
    let (mut name, mut message): (libc::sockaddr_un, libc::msghdr) = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | if is_look { libc::MSG_PEEK } else { 0 };
    // SAFETY: name, buffer and control live as long as the call, and have the lengths that are said.
    let len = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(len).map_err(|_| last_error())?;
    // SAFETY: the kernel has written the control buffer as far as `msg_controllen` says. There is room for one entry, the credentials, which are
    // plain numbers; the kernel writes them before all others.
    let sender = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        let is_sender = !first.is_null()
            && (*first).cmsg_level == libc::SOL_SOCKET
            && (*first).cmsg_type == libc::SCM_CREDENTIALS;
        is_sender.then(|| libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned().into())
    };
    // A name in the file system ends with 0; one that begins with 0 is no path.
    let bytes =
        (message.msg_namelen as usize).saturating_sub(std::mem::offset_of!(libc::sockaddr_un, sun_path));
    let path = name.sun_path.iter().take(bytes).map(|byte| *byte as u8).take_while(|byte| *byte != 0);
    let has_more = message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(Datagram { len, address: path.collect(), sender, has_more })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_passcred;
    use rustix::process::{Pid, PidfdFlags, getgid, getpid, getuid, pidfd_open};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    fn own() -> Credentials {
        Credentials { pid: getpid().as_raw_pid(), uid: getuid().as_raw(), gid: getgid().as_raw() }
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(peer_credentials(&near), Ok(own()));
    }

    #[test]
    fn a_process_has_a_number_for_each_namespace() {
        let info =
            |numbers: &str| numbers_in(&format!("pos:\t0\nflags:\t02000002\nPid:\t7\nNSpid:\t{numbers}\n"));
        assert_eq!((info("7"), info("7\t1")), (vec![7], vec![7, 1]));
        for unknown in ["0", "-1", "", "0\t7"] {
            assert_eq!(info(unknown), [0; 0], "{unknown}");
        }
        assert_eq!(numbers_in("pos:\t0\n"), [0; 0]);
        let own = getpid().as_raw_pid();
        assert_eq!(has_own_proc(), numbers_of(pidfd_open(getpid(), PidfdFlags::empty()).unwrap()) == [own]);
    }

    #[test]
    fn a_process_has_one_inode_number_and_no_other_has_it() {
        let inode_of = |pid| process_inode(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let (this, that) = (inode_of(getpid()), inode_of(Pid::from_raw(child.id() as i32).unwrap()));
        drop(child.stdin.take());
        child.wait().unwrap();
        let Some(this) = this else {
            return println!("skipped: before Linux 6.9 processes have no inode numbers");
        };
        assert!(that.is_some_and(|that| that != this));
        assert_eq!(inode_of(getpid()), Some(this));
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(peer_process(&near).ok().and_then(process_inode), Some(this));
        assert_eq!(process_inode(eventfd(0, EventfdFlags::CLOEXEC).unwrap()), None);
    }

    #[test]
    fn a_datagram_comes_with_its_sender_and_without_descriptors() {
        let folder = std::env::temp_dir().join(format!("towpath-credentials-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (here, there) = (folder.join("here"), folder.join("there"));
        let (service, agent) = (UnixDatagram::bind(&here).unwrap(), UnixDatagram::bind(&there).unwrap());
        let mut buffer = [0; 8];
        assert_eq!(receive_datagram(&service, &mut buffer, false), Err(Errno::AGAIN));
        set_socket_passcred(&service, true).unwrap();
        agent.send_to(b"hello", &here).unwrap();
        let address = there.as_os_str().as_encoded_bytes().to_vec();
        let expected = Datagram { len: 5, address, sender: Some(own()), has_more: false };
        for is_look in [true, true, false] {
            assert_eq!(receive_datagram(&service, &mut buffer, is_look).as_ref(), Ok(&expected));
            assert_eq!(&buffer[..5], b"hello");
        }
        assert_eq!(receive_datagram(&service, &mut buffer, false), Err(Errno::AGAIN));
        // Without a name.
        UnixDatagram::unbound().unwrap().send_to(b"", &here).unwrap();
        let nameless = receive_datagram(&service, &mut buffer, false).unwrap();
        assert_eq!((nameless.len, nameless.address, nameless.sender), (0, Vec::new(), Some(own())));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn descriptors_that_come_with_a_datagram_are_told_and_not_received() {
        let (near, far) = UnixDatagram::pair().unwrap();
        set_socket_passcred(&near, true).unwrap();
        let (mut end, shown) = std::io::pipe().unwrap();
        let shows = [shown.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
        ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&shows));
        let part = [rustix::io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&far, &part, &mut ancillary, rustix::net::SendFlags::empty()).unwrap();
        drop(shown);
        for is_look in [true, false] {
            let got = receive_datagram(&near, &mut [0; 8], is_look).unwrap();
            assert_eq!((got.len, got.sender, got.has_more), (1, Some(own()), true));
        }
        // No descriptor of the pipe's other end is left.
        assert_eq!(std::io::Read::read(&mut end, &mut [0]).unwrap(), 0);
    }
}
