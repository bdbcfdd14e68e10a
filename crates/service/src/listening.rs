//! The control socket's path: made, guarded by a lock, and taken over from a service that died.

use crate::ServiceError;
use crate::config::Config;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 512;

/// The listening control socket. Dropping it removes the path.
#[derive(Debug)]
pub struct Listening {
    /// Accept here.
    pub fd: OwnedFd,
    path: PathBuf,
    /// Held as long as the service lives; the kernel frees it with the process, however it ends.
    _lock: OwnedFd,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Listening {
    /// Makes the folder, takes the lock, replaces a stale socket, binds and listens.
    pub fn open(config: &Config) -> Result<Self, ServiceError> {
        let path = config.control.clone();
        let failed =
            |doing, e: Errno| ServiceError::Control { control: path.clone(), doing, error: e.into() };
        folder(&path)?;
        let mut lock_path = path.clone().into_os_string();
        lock_path.push(".lock");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&lock_path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| failed("open the lock of", e))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ServiceError::AlreadyUp { pid: pid_behind(&path), control: path });
        }
        // With the lock held, whoever made this socket is dead.
        let _ = std::fs::remove_file(&path);
        let fd = socket().map_err(|e| failed("make a socket for", e))?;
        let address = SocketAddrUnix::new(&path).map_err(|e| failed("use the path", e))?;
        bind(&fd, &address).map_err(|e| failed("bind", e))?;
        let open = rustix::process::geteuid().is_root() && !config.private;
        let open = open || !(config.allow_uids.is_empty() && config.allow_gids.is_empty());
        let mode = if open { 0o666 } else { 0o600 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            .map_err(|error| ServiceError::Control { control: path.clone(), doing: "protect", error })?;
        listen(&fd, BACKLOG).map_err(|e| failed("listen at", e))?;
        Ok(Self { fd, path, _lock: lock })
    }
}

/// The process that listens at `path`.
fn pid_behind(path: &Path) -> Option<i32> {
    let fd = socket().ok()?;
    connect(&fd, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(rustix::net::sockopt::socket_peercred(&fd).ok()?.pid.as_raw_pid())
}

/// Makes the socket's folder if it is missing; refuses one that others could use to put their socket in our place.
fn folder(path: &Path) -> Result<(), ServiceError> {
    let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) else { return Ok(()) };
    let uid = rustix::process::geteuid();
    let mode = if uid.is_root() { 0o755 } else { 0o700 };
    let made = std::fs::DirBuilder::new().recursive(true).mode(mode).create(folder);
    let found = made.and_then(|()| std::fs::metadata(folder)).map_err(|error| ServiceError::Control {
        control: path.to_owned(),
        doing: "make the folder of",
        error,
    })?;
    let (owner, mode) = (found.uid(), found.permissions().mode());
    let sticky = mode & 0o1000 != 0;
    if (owner == uid.as_raw() || owner == 0) && (mode & 0o022 == 0 || sticky) {
        Ok(())
    } else {
        Err(ServiceError::ForeignFolder(folder.to_owned()))
    }
}
