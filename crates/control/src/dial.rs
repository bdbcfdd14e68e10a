//! Connects to the control socket, for the library and the command line. Both believe what the service says, so the socket's folder and the
//! user of the process at the other end are checked first. Sends nothing.
//!
//! Trusted users are root, the user of this process (its effective uid) and the user that [`TRUST_UID_ENV`] names; only root if the program has
//! more rights than its caller, whose user it may have become since. In a user namespace,
//! every user without a number there appears as uid 65534. That uid is trusted only where the namespace maps it, or where the variable
//! names it; otherwise it could be any user of the host.

use crate::credentials::peer_credentials;
use crate::{LineError, variables};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, statat};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::time::Duration;

/// Longest wait for an answer of the service, and for room to ask it; past it the service counts as silent.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Environment variable: the uid of one more user that is trusted to run the service.
pub const TRUST_UID_ENV: &str = "TOWPATH_TRUST_UID";
/// The uid that the kernel shows for a user without a number in this user namespace (`kernel.overflowuid` by default).
const OVERFLOW_UID: u32 = 65_534;

/// Why a control socket is not used, although it may exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distrust {
    /// The folder is a symbolic link.
    FolderIsLink,
    /// The folder belongs to this uid, which is not trusted: that user can put any socket there.
    FolderOf(u32),
    /// Users other than the folder's owner can replace the files in it.
    FolderIsOpen,
    /// The socket's path is a symbolic link.
    SocketIsLink,
    /// The program that listens there runs as this uid, which is not trusted.
    Peer(u32),
}

impl Display for Distrust {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::FolderIsLink => f.write_str("its folder is a symbolic link"),
            Self::FolderOf(uid) => {
                write!(f, "its folder belongs to user {uid}; {TRUST_UID_ENV}={uid} trusts that user")
            }
            Self::FolderIsOpen => f.write_str("other users may write to its folder (chmod go-w)"),
            Self::SocketIsLink => f.write_str("it is a symbolic link"),
            Self::Peer(uid) => {
                write!(f, "the service there is user {uid}'s; {TRUST_UID_ENV}={uid} trusts that user")
            }
        }
    }
}

/// Why there is no connection to a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DialError {
    /// The socket may belong to a user that is not trusted.
    Untrusted(Distrust),
    /// The kernel refused the connection with this errno.
    Os(Errno),
}

impl From<Errno> for DialError {
    fn from(e: Errno) -> Self {
        Self::Os(e)
    }
}

impl From<Distrust> for DialError {
    fn from(why: Distrust) -> Self {
        Self::Untrusted(why)
    }
}

impl From<DialError> for LineError {
    fn from(e: DialError) -> Self {
        match e {
            DialError::Untrusted(why) => Self::Untrusted(why),
            DialError::Os(e) => e.into(),
        }
    }
}

/// The users that are trusted to run the service.
#[derive(Clone, Copy, Debug)]
struct Trusted {
    own: u32,
    named: Option<u32>,
    /// True when this user namespace maps [`OVERFLOW_UID`] to a real user. Asked only when that user comes up: each fork dials.
    maps_overflow: fn() -> bool,
}

impl Trusted {
    fn here() -> Self {
        let named = variables::text(TRUST_UID_ENV).and_then(|uid| uid.trim().parse().ok());
        let maps_overflow = || {
            let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
            maps(&map, OVERFLOW_UID)
        };
        let own = if variables::is_secure() { 0 } else { rustix::process::geteuid().as_raw() };
        Self { own, named, maps_overflow }
    }

    fn has(&self, uid: u32) -> bool {
        let is_known = || uid != OVERFLOW_UID || (self.maps_overflow)();
        self.named == Some(uid) || (uid == 0 || uid == self.own) && is_known()
    }
}

/// True when a `uid_map` maps `uid` to a user of the namespace.
fn maps(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse::<u64>().ok());
        let (Some(Some(first)), _, Some(Some(count))) = (words.next(), words.next(), words.next()) else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(uid))
    })
}

/// Connects to the service at `path`.
///
/// # Errors
/// The kernel's errno, or the reason why the service there is not trusted.
pub fn dial(path: &Path) -> Result<OwnedFd, DialError> {
    dial_as(Trusted::here(), path, true)
}

/// As [`dial`], but fails with EAGAIN at once when as many wait for the service as may. The socket does not block.
///
/// # Errors
/// The same as those of [`dial`].
pub fn dial_at_once(path: &Path) -> Result<OwnedFd, DialError> {
    dial_as(Trusted::here(), path, false)
}

/// Checks only the folder of the socket `path`, for a caller that is about to create a socket there.
///
/// # Errors
/// The errors of [`dial`].
pub fn check_folder(path: &Path) -> Result<(), DialError> {
    look(Trusted::here(), path)
}

fn dial_as(trusted: Trusted, path: &Path, waits: bool) -> Result<OwnedFd, DialError> {
    look(trusted, path)?;
    let flags = if waits { SocketFlags::CLOEXEC } else { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK };
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    if waits {
        // A service that does not accept lets its queue run full.
        set_socket_timeout(&fd, Timeout::Send, Some(PATIENCE))?;
    }
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    // The credentials of the connection itself decide: the socket at the path may have been replaced since `look` checked the path.
    let uid = peer_credentials(&fd)?.uid;
    if trusted.has(uid) { Ok(fd) } else { Err(Distrust::Peer(uid).into()) }
}

/// Checks the folder and the socket by their names, before anything connects. Opens one descriptor at a time, because a second may not be
/// free.
fn look(trusted: Trusted, path: &Path) -> Result<(), DialError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = open(folder, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&folder)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::Symlink => return Err(Distrust::FolderIsLink.into()),
        _ => return Err(Errno::NOTDIR.into()),
    }
    if !trusted.has(stat.st_uid) {
        return Err(Distrust::FolderOf(stat.st_uid).into());
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    // In a sticky folder no user can replace another user's socket. A socket that another user created first is found by the check of its
    // peer.
    if mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX) {
        return Err(Distrust::FolderIsOpen.into());
    }
    let name = path.file_name().ok_or(Errno::INVAL)?;
    match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
            Err(Distrust::SocketIsLink.into())
        }
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Gid, Uid, chmod, chown, symlink};
    use rustix::net::{bind, listen};
    use std::path::PathBuf;

    const OTHER: u32 = 4_711;

    struct Place {
        folder: PathBuf,
        socket: PathBuf,
        _fd: OwnedFd,
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    /// A listening socket in a temporary folder of its own.
    fn place(name: &str) -> Place {
        let folder = std::env::temp_dir().join(format!("towpath-dial-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        chmod(&folder, Mode::RWXU).unwrap();
        let socket = folder.join("control.sock");
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&fd, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        listen(&fd, 5).unwrap();
        Place { folder, socket, _fd: fd }
    }

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Trust settings of a process with the uid `own`.
    fn user(own: u32) -> Trusted {
        Trusted { own, named: None, maps_overflow: || true }
    }

    fn distrust(trusted: Trusted, path: &Path) -> Option<Distrust> {
        match dial_as(trusted, path, true) {
            Ok(_) => None,
            Err(DialError::Untrusted(why)) => Some(why),
            Err(DialError::Os(e)) => panic!("{e}"),
        }
    }

    #[test]
    fn a_service_of_ones_own_is_believed() {
        let place = place("own");
        assert_eq!(distrust(user(own()), &place.socket), None);
        assert_eq!(
            dial_as(user(own()), &place.folder.join("none"), true).unwrap_err(),
            DialError::Os(Errno::NOENT)
        );
        assert_eq!(
            dial_as(user(own()), &place.folder.join("none/none"), true).unwrap_err(),
            DialError::Os(Errno::NOENT)
        );
    }

    #[test]
    fn a_folder_that_others_can_change_is_not_believed() {
        let place = place("open");
        chmod(&place.folder, Mode::RWXU | Mode::RWXO).unwrap();
        assert_eq!(distrust(user(own()), &place.socket), Some(Distrust::FolderIsOpen));
        chmod(&place.folder, Mode::RWXU | Mode::RWXG).unwrap();
        assert_eq!(distrust(user(own()), &place.socket), Some(Distrust::FolderIsOpen));
        chmod(&place.folder, Mode::RWXU | Mode::RWXO | Mode::SVTX).unwrap();
        assert_eq!(distrust(user(own()), &place.socket), None);
    }

    #[test]
    fn links_lead_nowhere() {
        let place = place("links");
        let link = place.folder.join("link.sock");
        symlink(&place.socket, &link).unwrap();
        assert_eq!(distrust(user(own()), &link), Some(Distrust::SocketIsLink));
        let folder = place.folder.join("folder");
        symlink(&place.folder, &folder).unwrap();
        assert_eq!(distrust(user(own()), &folder.join("control.sock")), Some(Distrust::FolderIsLink));
    }

    /// Needs root, to change the owner of files.
    #[test]
    fn a_folder_and_a_service_of_another_user_are_not_believed_unless_named() {
        if own() != 0 {
            return eprintln!("skipped: not root");
        }
        let place = place("other");
        chown(&place.folder, Some(Uid::from_raw(OTHER)), Some(Gid::from_raw(OTHER))).unwrap();
        assert_eq!(distrust(user(0), &place.socket), Some(Distrust::FolderOf(OTHER)));
        assert_eq!(distrust(Trusted { named: Some(OTHER), ..user(0) }, &place.socket), None);
        // The folder belongs to this user; the program that listens in it runs as another user.
        let theirs = place.folder.join("theirs.sock");
        let listener = {
            let theirs = theirs.clone();
            std::thread::spawn(move || {
                let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
                let fd = fd.unwrap();
                bind(&fd, &SocketAddrUnix::new(&theirs).unwrap()).unwrap();
                // The uid changes for this thread only: the kernel notes the user of a socket when it begins to listen.
                rustix::thread::set_thread_res_uid(
                    Uid::from_raw(OTHER),
                    Uid::from_raw(OTHER),
                    Uid::from_raw(OTHER),
                )
                .unwrap();
                listen(&fd, 5).unwrap();
                fd
            })
        };
        let _listens = listener.join().unwrap();
        chown(&place.folder, Some(Uid::ROOT), Some(Gid::ROOT)).unwrap();
        assert_eq!(distrust(user(0), &theirs), Some(Distrust::Peer(OTHER)));
        assert_eq!(distrust(Trusted { named: Some(OTHER), ..user(0) }, &theirs), None);
    }

    #[test]
    fn the_number_of_unknown_users_is_trusted_only_where_it_is_a_user() {
        assert!(maps("         0          0 4294967295\n", OVERFLOW_UID));
        assert!(
            !maps("0 1000 1\n1 100000 65533\n", OVERFLOW_UID) && maps("0 1000 1\n1 100000 65534\n", 65_534)
        );
        assert!(!maps("", 0) && !maps("0 1000", 0) && !maps("x y z", 0));
        let unknown = Trusted { maps_overflow: || false, ..user(OVERFLOW_UID) };
        assert!(!unknown.has(OVERFLOW_UID) && unknown.has(0) && user(OVERFLOW_UID).has(OVERFLOW_UID));
        assert!(Trusted { named: Some(OVERFLOW_UID), ..unknown }.has(OVERFLOW_UID));
        assert!(!user(1000).has(1001) && user(1000).has(0) && user(1000).has(1000));
    }
}
