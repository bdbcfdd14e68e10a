//! The path of the control socket: created, guarded by a lock, and taken over from a service that has died.

use crate::ServiceError;
use crate::config::Config;
use crate::privilege::User;
use control::credentials::peer_credentials;
use control::{Line, Report, Request, ToApplication, ToService};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Uid, getegid};
use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Most connections to the control socket that wait to be accepted.
pub const BACKLOG: i32 = 512;

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

    /// Begins to listen. Called when nothing is left that may fail for the user's sake, and while the service still has the rights of the user
    /// that started it: programs believe a service of root's, and the kernel shows them (`SO_PEERCRED`) the user that called `listen`. What
    /// connects from now on waits until the service is ready.
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

/// Number of the process that listens at `path`, 0 if it is in another PID namespace; `None`: no process does.
pub fn pid_behind(path: &Path) -> Option<i32> {
    let fd = socket().ok()?;
    connect(&fd, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(peer_credentials(&fd).ok()?.pid)
}

/// Default folder of a root service's control socket. Only root can create it or give it away.
const OF_ROOT: &str = "/run/towpath";
/// Modes of a folder of root's: for a service that stays root, and for one that becomes a user of its group. That user may make and remove files
/// of its own there, and none of others; so programs believe the folder as root's, and the service can remove its socket.
const PLAIN: u32 = 0o755;
const SHARED: u32 = 0o1775;

/// Makes the socket's folder if it is missing; refuses one where other users could replace the socket, and one from which the user that the
/// service becomes could not remove it. A new folder, and root's default one, are made so that programs of all users believe them.
fn folder(path: &Path, user: Option<&User>) -> Result<(), ServiceError> {
    let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) else { return Ok(()) };
    let uid = rustix::process::geteuid();
    let mode = if uid.is_root() { PLAIN } else { 0o700 };
    let failed = |doing| move |error| ServiceError::Control { control: path.to_owned(), doing, error };
    let is_new = make(folder, mode).map_err(failed("make the folder of"))?;
    if uid.is_root() && (is_new || folder == Path::new(OF_ROOT)) {
        return prepare(folder, path, user).map_err(failed("prepare the folder of"));
    }
    let found = std::fs::metadata(folder).map_err(failed("look at the folder of"))?;
    let next = user.map_or(uid, |user| user.uid);
    let (owner, mode) = (found.uid(), found.permissions().mode());
    let sticky = mode & 0o1000 != 0;
    if ![0, uid.as_raw(), next.as_raw()].contains(&owner) || mode & 0o022 != 0 && !sticky {
        return Err(ServiceError::ForeignFolder(folder.to_owned()));
    }
    let Some(user) = user else { return Ok(()) };
    let is_shared = sticky && (mode & 0o002 != 0 || mode & 0o020 != 0 && found.gid() == user.gid.as_raw());
    if owner == next.as_raw() || is_shared {
        Ok(())
    } else {
        Err(ServiceError::FolderOfOthers(folder.to_owned()))
    }
}

/// Number of the process of the service at `path` that has answered, 0 if it is in another PID namespace. A service listens before it is ready, and answers when it is; this waits
/// for it. `None`: no service does, or it has ended.
pub fn pid_answering(path: &Path) -> Option<i32> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    connect(&fd, &SocketAddrUnix::new(path).ok()?).ok()?;
    let pid = peer_credentials(&fd).ok()?.pid;
    let line = Line::new(fd);
    line.send(&ToService { number: 1, request: Request::Report(Report::Statistics) }, &[], true).ok()?;
    // It may refuse this user the report, and is ready all the same.
    line.receive::<ToApplication>(true).ok().map(|_| pid)
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

/// Makes `folder` root's, and shared with the group of the user that the service becomes. Lock and socket that an earlier service has left there
/// become that user's. Does not follow symbolic links.
fn prepare(folder: &Path, path: &Path, user: Option<&User>) -> std::io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags | OFlags::DIRECTORY, Mode::empty())?;
    let (uid, gid) = user.map_or((Uid::ROOT, getegid()), |user| (user.uid, user.gid));
    for name in [&*lock_name(path), path.file_name().unwrap_or_default()] {
        let Ok(left) = rustix::fs::openat(&folder, name, flags | OFlags::PATH, Mode::empty()) else {
            continue;
        };
        let found = rustix::fs::fstat(&left)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        let is_ours = matches!(kind, FileType::RegularFile | FileType::Socket) && found.st_nlink == 1;
        if is_ours && found.st_uid != uid.as_raw() {
            rustix::fs::chownat(&left, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
    }
    let found = rustix::fs::fstat(&folder)?;
    if (found.st_uid, found.st_gid) != (0, gid.as_raw()) {
        rustix::fs::fchown(&folder, Some(Uid::ROOT), Some(gid))?;
    }
    Ok(rustix::fs::fchmod(&folder, Mode::from_raw_mode(if user.is_some() { SHARED } else { PLAIN }))?)
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
