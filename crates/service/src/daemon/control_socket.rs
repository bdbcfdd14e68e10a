//! The path of the control socket: created, guarded by a lock, and taken over from a service that has died.

use crate::ServiceError;
use crate::config::Config;
use crate::privilege::User;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Gid, Uid, getegid};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Most connections to the control socket that wait to be accepted.
const BACKLOG: i32 = 512;

/// The listening control socket. Dropping it removes the path, if the socket there is still its own.
#[derive(Debug)]
pub struct Listening {
    /// The listening socket, non-blocking.
    pub fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file.
    made: Option<(u64, u64)>,
    /// Lock of the path, held while the service lives; the kernel releases it when the process ends, in whatever way.
    _lock: OwnedFd,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.made.is_some() && self.made == identity(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn lock_name(path: &Path) -> OsString {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    name
}

/// Device and inode of what is at `path`; `None`: nothing is there.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Listening {
    /// Makes the folder, takes the lock, replaces a stale socket and binds. Lock and socket belong to the user that the service becomes.
    /// Connections are refused until [`begin`](Self::begin).
    pub fn open(config: &Config) -> Result<Self, ServiceError> {
        folder(&config.control, config.user.as_ref())?;
        let os = |error| ServiceError::Os { doing: "act as the user that --user names", error };
        match &config.user {
            Some(user) => user.act(|| Self::bind(config)).map_err(os)?,
            None => Self::bind(config),
        }
    }

    fn bind(config: &Config) -> Result<Self, ServiceError> {
        let path = config.control.clone();
        let failed =
            |doing, e: Errno| ServiceError::Control { control: path.clone(), doing, error: e.into() };
        let address = SocketAddrUnix::new(&path).map_err(|e| failed("use the path", e))?;
        // Before the lock: beside a file that is no control socket not even a lock is created.
        occupant(&path)?;
        let lock_path = path.with_file_name(lock_name(&path));
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&lock_path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| failed("open the lock of", e))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ServiceError::AlreadyUp { pid: pid_behind(&path), control: path });
        }
        match occupant(&path)? {
            // A service would hold the lock, so the socket is another program's.
            Some(Occupant::Live) => {
                return Err(failed("take the socket of another program at", Errno::ADDRINUSE));
            }
            Some(Occupant::Stale) => rustix::fs::unlink(&path).map_err(|e| failed("replace", e))?,
            None => {}
        }
        let fd = socket().map_err(|e| failed("make a socket for", e))?;
        bind(&fd, &address).map_err(|e| failed("bind", e))?;
        let made = identity(&path);
        let open = config.is_open() || !(config.allow_uids.is_empty() && config.allow_gids.is_empty());
        let mode = if open { 0o666 } else { 0o600 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            .map_err(|error| ServiceError::Control { control: path.clone(), doing: "protect", error })?;
        Ok(Self { fd, path, made, _lock: lock })
    }

    /// Begins to listen. Called last at start: a program that can connect finds a working service, and `up --detach` takes the first
    /// connection as proof that the start is complete.
    pub fn begin(&self) -> Result<(), ServiceError> {
        listen(&self.fd, BACKLOG).map_err(|e| ServiceError::Control {
            control: self.path.clone(),
            doing: "listen at",
            error: e.into(),
        })
    }
}

/// State of a socket that is at the path already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Occupant {
    /// A program listens on it.
    Live,
    /// No program listens on it.
    Stale,
}

/// Looks at what is at `path`. Anything but a socket is an error, because it is not the service's to remove.
fn occupant(path: &Path) -> Result<Option<Occupant>, ServiceError> {
    let failed = |doing, error| ServiceError::Control { control: path.to_owned(), doing, error };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("look at", e)),
        Ok(found) if !found.file_type().is_socket() => return Err(ServiceError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    let fd = socket().map_err(|e| failed("make a socket for", e.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|e| failed("use the path", e.into()))?;
    match connect(&fd, &address) {
        Err(Errno::CONNREFUSED) => Ok(Some(Occupant::Stale)),
        Err(Errno::NOENT) => Ok(None),
        // A full backlog, another socket type, no permission: a program may listen there.
        _ => Ok(Some(Occupant::Live)),
    }
}

/// Number of the process that listens at `path`; `None`: no process does.
pub fn pid_behind(path: &Path) -> Option<i32> {
    let fd = socket().ok()?;
    connect(&fd, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(rustix::net::sockopt::socket_peercred(&fd).ok()?.pid.as_raw_pid())
}

/// Default folder of a root service's control socket. Only root can create it or give it away.
const OF_ROOT: &str = "/run/towpath";

/// Makes the socket's folder if it is missing; refuses one where other users could replace the socket. The user that the service becomes
/// must be able to remove the socket, so a new folder, and root's default one, are given to that user.
fn folder(path: &Path, user: Option<&User>) -> Result<(), ServiceError> {
    let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) else { return Ok(()) };
    let uid = rustix::process::geteuid();
    let mode = if uid.is_root() { 0o755 } else { 0o700 };
    let failed = |doing| move |error| ServiceError::Control { control: path.to_owned(), doing, error };
    let is_new = make(folder, mode).map_err(failed("make the folder of"))?;
    let found = std::fs::metadata(folder).map_err(failed("look at the folder of"))?;
    let is_ours = is_new || uid.is_root() && folder == Path::new(OF_ROOT);
    let (next, group) = user.map_or((uid, getegid()), |user| (user.uid, user.gid));
    let (owner, mode) = (found.uid(), found.permissions().mode());
    let sticky = mode & 0o1000 != 0;
    let is_trusted = [0, uid.as_raw(), next.as_raw()].contains(&owner) || is_ours;
    if !is_trusted || mode & 0o022 != 0 && !sticky {
        return Err(ServiceError::ForeignFolder(folder.to_owned()));
    }
    if owner == next.as_raw() || user.is_some() && mode & 0o1002 == 0o1002 {
        return Ok(());
    }
    match (is_ours, user) {
        (true, _) => give(folder, &lock_name(path), next, group).map_err(failed("hand over the folder of")),
        (false, Some(_)) => Err(ServiceError::FolderOfOthers(folder.to_owned())),
        (false, None) => Ok(()),
    }
}

/// Makes `folder` and its parents. True when it did not exist: then no other process has put anything into it.
fn make(folder: &Path, mode: u32) -> std::io::Result<bool> {
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(mode);
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        builder.recursive(true).create(above)?;
    }
    match builder.recursive(false).create(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        other => other.map(|()| true),
    }
}

/// Gives `folder` to that user and group, and a lock that an earlier service has left there. Does not follow symbolic links.
fn give(folder: &Path, lock: &OsStr, uid: Uid, gid: Gid) -> std::io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags | OFlags::DIRECTORY, Mode::empty())?;
    if let Ok(lock) = rustix::fs::openat(&folder, lock, flags, Mode::empty()) {
        let found = rustix::fs::fstat(&lock)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink == 1 {
            rustix::fs::fchown(lock, Some(uid), Some(gid))?;
        }
    }
    Ok(rustix::fs::fchown(folder, Some(uid), Some(gid))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use tempfile::TempDir;

    /// A folder that only this user can write to.
    fn folder() -> TempDir {
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o700)).tempdir().unwrap()
    }

    fn open(path: &Path) -> Result<Listening, ServiceError> {
        let options = Options { control: Some(path.to_owned()), ..Options::default() };
        let opened = Listening::open(&options.resolve().unwrap())?;
        opened.begin()?;
        Ok(opened)
    }

    #[test]
    fn what_is_no_socket_stays() {
        let folder = folder();
        let path = folder.path().join("precious");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(open(&path), Err(ServiceError::NoSocket(at)) if at == path));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert!(!folder.path().join("precious.lock").exists());
    }

    #[test]
    fn a_live_socket_of_another_program_stays_and_a_stale_one_goes() {
        let folder = folder();
        let path = folder.path().join("foreign.sock");
        let foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let text = open(&path).unwrap_err().to_string();
        assert!(text.contains("another program") && text.contains("foreign.sock"), "{text}");
        assert!(path.exists());
        drop(foreign);
        drop(open(&path).unwrap());
        assert!(!path.exists(), "its own socket goes with the service");
    }

    #[test]
    fn nothing_connects_before_the_start_is_over() {
        let folder = folder();
        let path = folder.path().join("early.sock");
        let options = Options { control: Some(path.clone()), ..Options::default() };
        let opened = Listening::open(&options.resolve().unwrap()).unwrap();
        assert!(path.exists() && pid_behind(&path).is_none(), "the start may still fail");
        assert!(matches!(open(&path), Err(ServiceError::AlreadyUp { pid: None, .. })), "the place is taken");
        opened.begin().unwrap();
        assert_eq!(pid_behind(&path), Some(std::process::id() as i32));
    }

    #[test]
    fn the_second_service_is_told_the_first_ones_process() {
        let folder = folder();
        let path = folder.path().join("twice.sock");
        let first = open(&path).unwrap();
        let own = std::process::id() as i32;
        assert!(matches!(open(&path), Err(ServiceError::AlreadyUp { pid: Some(pid), .. }) if pid == own));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(first);
        assert!(path.exists(), "only its own socket is removed");
    }
}
