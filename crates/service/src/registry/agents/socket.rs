//! The service's datagram socket towards agents: which process has sent what, as the kernel says, and sending without waiting.
//!
//! A datagram may carry descriptors, which the kernel closes when the datagram is read, and closing may wait: a TCP socket with `SO_LINGER`
//! does. So each datagram is looked at first, and one with descriptors is read, and dropped, by a thread of its own. Until that thread is done
//! the socket is not watched: it would be readable all the time.

use crate::ServiceError;
use crate::config::AgentSettings;
use crate::cores::wakers::{new_eventfd, write_eventfd};
use crate::daemon::control_socket::identity;
use crate::threads;
use ccp::{Sender, Sent};
use control::credentials::receive_datagram;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind,
    connect, recvmsg, sendto, socket_with, sockopt,
};
use rustix::process::Uid;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the socket is called in the set of descriptors.
const TOKEN: u64 = 0;
/// Datagrams taken in one turn, so that a flood does not keep the control thread from others.
const TURN: usize = 64;
/// Bytes of the longest datagram that is read whole; a program of 256 instructions needs 4.4 KB.
const DATAGRAM_MAX: usize = 32 << 10;

/// The socket. Dropping it removes the path, if the socket there is still its own.
#[derive(Debug)]
pub struct AgentSocket {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    /// Device and inode of the socket file.
    made: Option<(u64, u64)>,
    buffer: Box<[u8]>,
    /// A thread reads and drops one datagram with descriptors; until it is done nothing else is read.
    is_dropping: Arc<AtomicBool>,
    /// That thread writes this eventfd when it is done.
    dropped: Arc<OwnedFd>,
    /// The socket is in the set of descriptors that wake the control thread.
    is_watched: bool,
}

impl Drop for AgentSocket {
    fn drop(&mut self) {
        if self.made.is_some() && self.made == identity(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

fn wrong(path: &Path, what: &str) -> ServiceError {
    ServiceError::Congestion(format!("--cc-socket {}: {what}", path.display()))
}

impl AgentSocket {
    /// Binds the socket, in place of one that a dead service has left.
    pub fn open(settings: &AgentSettings, own: Uid) -> Result<Self, ServiceError> {
        let path = settings.socket.clone();
        let failed = |what: &str, e: Errno| wrong(&path, &format!("cannot {what}: {e}"));
        check_folder(&path, own)?;
        make_room(&path)?;
        let address = SocketAddrUnix::new(&path).map_err(|e| failed("use the path", e))?;
        let fd = socket().map_err(|e| failed("make a socket", e))?;
        sockopt::set_socket_passcred(&fd, true).map_err(|e| failed("ask for credentials", e))?;
        bind(&fd, &address).map_err(|e| failed("bind it", e))?;
        let made = identity(&path);
        // Credentials decide in any case; without other users none of theirs can fill the socket's queue.
        let mode = if settings.allow_uids.is_empty() { 0o600 } else { 0o666 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            .map_err(|e| wrong(&path, &format!("cannot protect it: {e}")))?;
        let buffer = vec![0; DATAGRAM_MAX].into_boxed_slice();
        let dropped = new_eventfd().map_err(|e| failed("make an eventfd", e))?;
        let (is_dropping, is_watched) = (Arc::default(), false);
        Ok(Self { fd: Arc::new(fd), path, made, buffer, is_dropping, dropped, is_watched })
    }

    /// Adds to `set` what is ready when [`Self::receive`] has something to do.
    pub fn join(&mut self, set: BorrowedFd<'_>) -> Result<(), Errno> {
        // Edge-triggered and never read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(set, &self.dropped, epoll::EventData::new_u64(TOKEN), flags)?;
        self.watch(set)
    }

    /// Watches the socket in `set`, but not while a thread drops what came by it.
    fn watch(&mut self, set: BorrowedFd<'_>) -> Result<(), Errno> {
        let is_wanted = !self.is_dropping.load(Ordering::Acquire);
        match (self.is_watched, is_wanted) {
            (false, true) => {
                epoll::add(set, &self.fd, epoll::EventData::new_u64(TOKEN), epoll::EventFlags::IN)?;
            }
            (true, false) => epoll::delete(set, &self.fd)?,
            _ => {}
        }
        self.is_watched = is_wanted;
        Ok(())
    }

    /// Sends a datagram to the socket at `address`, without waiting.
    pub fn send(&mut self, address: &[u8], datagram: &[u8]) -> Sent {
        let Ok(to) = SocketAddrUnix::new(address) else { return Sent::Gone };
        match sendto(&self.fd, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to) {
            Ok(_) => Sent::Taken,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Sent::Full,
            Err(_) => Sent::Gone,
        }
    }

    /// Gives the datagrams that have come to `take`, as many as one turn is for. `set` is ready while there are more that can be taken.
    pub fn receive(&mut self, set: BorrowedFd<'_>, take: &mut dyn FnMut(Sender<'_>, &[u8])) {
        for _ in 0..TURN {
            if self.is_dropping.load(Ordering::Acquire) {
                break;
            }
            match receive_datagram(&self.fd, &mut [], true) {
                Ok(datagram) if !datagram.has_more => {}
                Ok(_) => {
                    self.drop_next();
                    break;
                }
                Err(_) => break,
            }
            if read(self.fd.as_fd(), &mut self.buffer, take).is_err() {
                break;
            }
        }
        if let Err(e) = self.watch(set) {
            tracing::error!("agents of congestion control are not heard: {e}");
        }
    }

    fn drop_next(&mut self) {
        let (fd, is_dropping, dropped) = (self.fd.clone(), self.is_dropping.clone(), self.dropped.clone());
        let work = move || {
            let mut none = RecvAncillaryBuffer::default();
            let _ = recvmsg(&*fd, &mut [IoSliceMut::new(&mut [])], &mut none, RecvFlags::DONTWAIT);
            is_dropping.store(false, Ordering::Release);
            write_eventfd(dropped.as_fd());
        };
        self.is_dropping.store(true, Ordering::Release);
        if threads::start("agents-drop", "the thread that drops an agent's descriptors", work).is_err() {
            // Without a thread the datagram stays, and is looked at again.
            self.is_dropping.store(false, Ordering::Release);
        }
    }
}

/// Reads one datagram without descriptors. One that is longer than the buffer is given as far as it goes: its messages are malformed.
fn read(fd: BorrowedFd<'_>, buffer: &mut [u8], take: &mut dyn FnMut(Sender<'_>, &[u8])) -> Result<(), Errno> {
    let got = receive_datagram(fd, buffer, false)?;
    let Some(credentials) = got.sender else { return Ok(()) };
    // A socket without a path is no agent's: the endpoint counts it.
    let sender = Sender { address: &got.address, pid: credentials.pid.unsigned_abs(), uid: credentials.uid };
    take(sender, buffer.get(..got.len).unwrap_or_default());
    Ok(())
}

/// Makes the socket's folder if it is missing, and refuses one that others than root and the service's user could change.
fn check_folder(path: &Path, own: Uid) -> Result<(), ServiceError> {
    let folder = path.parent().ok_or_else(|| wrong(path, "give the path of a file"))?;
    std::fs::create_dir_all(folder).map_err(|e| wrong(path, &format!("cannot make its folder: {e}")))?;
    let found =
        std::fs::metadata(folder).map_err(|e| wrong(path, &format!("cannot look at its folder: {e}")))?;
    let is_trusted = found.uid() == 0 || found.uid() == own.as_raw();
    if is_trusted && found.permissions().mode() & 0o022 == 0 {
        return Ok(());
    }
    let folder = folder.display();
    Err(wrong(
        path,
        &format!(
            "other users could replace it: give a path in a folder of root's or the service's user (`chmod go-w {folder}`)"
        ),
    ))
}

/// Removes the socket of a service that is dead. Anything else that is there stays.
fn make_room(path: &Path) -> Result<(), ServiceError> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(found) if found.file_type().is_socket() => {}
        _ => {
            return Err(wrong(
                path,
                "something that is no socket is there; it is left as it is: give another path",
            ));
        }
    }
    let is_stale = socket()
        .and_then(|fd| connect(&fd, &SocketAddrUnix::new(path)?))
        .is_err_and(|e| e == Errno::CONNREFUSED);
    if !is_stale {
        return Err(wrong(path, "another program has a socket there: give another path"));
    }
    std::fs::remove_file(path).map_err(|e| wrong(path, &format!("cannot replace an old socket: {e}")))
}

#[cfg(test)]
mod tests;
