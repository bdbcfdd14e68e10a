//! The socket towards agents: datagrams with the sender's address and credentials, sent without waiting; and pidfds, which say when an agent's
//! process has ended. It knows nothing of what the datagrams say.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use ccp::Sent;
use control::credentials::receive_datagram;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A message is at most 65,535 bytes, as its header says.
const DATAGRAM_MAX: usize = 65_536;

/// One datagram of an agent.
#[derive(Debug)]
pub struct Datagram {
    /// The path that the sender's socket is bound to.
    pub address: Vec<u8>,
    /// The number of the sender's process, by the kernel's word; 0: it is in another PID namespace.
    pub pid: u32,
    /// The user of the sender's process.
    pub uid: u32,
    /// The bytes that were sent.
    pub bytes: Vec<u8>,
}

/// The socket, and the processes of agents that are watched.
#[derive(Debug)]
pub struct Agents {
    socket: UnixDatagram,
    path: PathBuf,
    buffer: Vec<u8>,
    watched: BTreeMap<Vec<u8>, Watched>,
}

#[derive(Debug)]
struct Watched {
    pid: u32,
    end: OwnedFd,
}

impl Agents {
    /// Binds the socket at `path`, in place of one that a killed process has left.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        let socket = UnixDatagram::bind(path)?;
        socket.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        Ok(Self { socket, path: path.to_owned(), buffer: vec![0; DATAGRAM_MAX], watched: BTreeMap::new() })
    }

    /// The next datagram; `None`: there is none now. Those without an address or credentials are passed by.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn receive(&mut self) -> io::Result<Option<Datagram>> {
        loop {
            let got = match receive_datagram(&self.socket, &mut self.buffer, false) {
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if let (Some(sender), false) = (got.sender, got.address.is_empty()) {
                return Ok(Some(Datagram {
                    address: got.address,
                    pid: sender.pid.unsigned_abs(),
                    uid: sender.uid,
                    bytes: self.buffer[..got.len].to_vec(),
                }));
            }
        }
    }

    /// Sends a datagram to an agent's address, without waiting.
    pub fn send(socket: BorrowedFd<'_>, address: &[u8], datagram: &[u8]) -> Sent {
        let path = std::ffi::OsStr::from_bytes(address);
        let Ok(address) = SocketAddrUnix::new(path) else { return Sent::Gone };
        match rustix::net::sendto(socket, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &address) {
            Ok(_) => Sent::Taken,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Sent::Full,
            Err(_) => Sent::Gone,
        }
    }

    /// Watches process `pid` of the agent at `address`, in place of the one before; `None`: the agent has no process to watch.
    pub fn watch(&mut self, address: &[u8], pid: Option<u32>) {
        if self.watched.get(address).map(|watched| watched.pid) == pid {
            return;
        }
        self.watched.remove(address);
        let Some(pid) = pid else { return };
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let end = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        if let Some(end) = end {
            self.watched.insert(address.to_vec(), Watched { pid, end });
        }
    }

    /// Descriptors that are readable when an agent's process has ended, each with the agent's address.
    pub fn ends(&self) -> impl Iterator<Item = (&[u8], BorrowedFd<'_>)> {
        self.watched.iter().map(|(address, watched)| (address.as_slice(), watched.end.as_fd()))
    }
}

impl AsFd for Agents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // What cannot be removed is replaced at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}
