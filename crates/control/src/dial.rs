//! A connected control socket, for the library and the command line alike. Both believe what comes from there, so the place and the
//! user at the other end are looked at first. Sends nothing.
//!
//! Trusted are root, the user of this process (its effective uid) and the one that [`TRUST_UID_ENV`] names. In a user namespace every
//! user that the namespace does not know looks like uid 65534. That number is trusted where the namespace maps it, or where the variable
//! names it; elsewhere it may be any user of the host.

use crate::LineError;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, statat};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fmt::{self, Display, Formatter};
use std::path::Path;

/// One more user, by number, that the service may belong to.
pub const TRUST_UID_ENV: &str = "TOWPATH_TRUST_UID";
/// What the kernel shows in place of a user without a number in this user namespace (`kernel.overflowuid` by default).
const OVERFLOW_UID: u32 = 65_534;

/// Why a control socket is not used, though it may be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distrust {
    /// The folder's name leads elsewhere.
    FolderIsLink,
    /// The folder belongs to that user: any socket may be put there by this user.
    FolderOf(u32),
    /// Users other than its owner can replace what is in the folder.
    FolderIsOpen,
    /// The socket's name leads elsewhere.
    SocketIsLink,
    /// The program that listens there is that user's.
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
    /// Another user may be there.
    Untrusted(Distrust),
    /// The kernel refused to connect, with this errno.
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

/// The users that a service may belong to so that it is believed.
#[derive(Clone, Copy, Debug)]
struct Trusted {
    own: u32,
    named: Option<u32>,
    /// [`OVERFLOW_UID`] is a user like any other here.
    maps_overflow: bool,
}

impl Trusted {
    fn here() -> Self {
        let named = std::env::var(TRUST_UID_ENV).ok().and_then(|uid| uid.trim().parse().ok());
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let maps_overflow = maps(&map, OVERFLOW_UID);
        Self { own: rustix::process::geteuid().as_raw(), named, maps_overflow }
    }

    fn has(&self, uid: u32) -> bool {
        let is_known = uid != OVERFLOW_UID || self.maps_overflow;
        self.named == Some(uid) || is_known && (uid == 0 || uid == self.own)
    }
}

/// True when a `uid_map` gives a user of the namespace that number.
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
/// As the kernel's, or why nothing there is believed.
pub fn dial(path: &Path) -> Result<OwnedFd, DialError> {
    dial_as(Trusted::here(), path)
}

/// Looks at the folder of the socket `path` alone, for a caller that is about to make a socket there.
///
/// # Errors
/// The same as those of [`dial`].
pub fn check_folder(path: &Path) -> Result<(), DialError> {
    look(Trusted::here(), path)
}

fn dial_as(trusted: Trusted, path: &Path) -> Result<OwnedFd, DialError> {
    look(trusted, path)?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    // What the kernel says of the connection itself: whatever came to stand at the path since the look is judged by this.
    let uid = socket_peercred(&fd)?.uid.as_raw();
    if trusted.has(uid) { Ok(fd) } else { Err(Distrust::Peer(uid).into()) }
}

/// The place by its name, before any byte or connection goes there. One descriptor at a time, for there may be no second.
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
    // In a sticky folder no user can replace another user's socket; a socket that another user has made first is told by its peer.
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

    /// A socket that listens in a folder of its own.
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

    /// A process of `own`, which is no root's service's client by accident.
    fn user(own: u32) -> Trusted {
        Trusted { own, named: None, maps_overflow: true }
    }

    fn distrust(trusted: Trusted, path: &Path) -> Option<Distrust> {
        match dial_as(trusted, path) {
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
            dial_as(user(own()), &place.folder.join("none")).unwrap_err(),
            DialError::Os(Errno::NOENT)
        );
        assert_eq!(
            dial_as(user(own()), &place.folder.join("none/none")).unwrap_err(),
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

    /// Needs root, to give things away.
    #[test]
    fn a_folder_and_a_service_of_another_user_are_not_believed_unless_named() {
        if own() != 0 {
            return eprintln!("skipped: not root");
        }
        let place = place("other");
        chown(&place.folder, Some(Uid::from_raw(OTHER)), Some(Gid::from_raw(OTHER))).unwrap();
        assert_eq!(distrust(user(0), &place.socket), Some(Distrust::FolderOf(OTHER)));
        assert_eq!(distrust(Trusted { named: Some(OTHER), ..user(0) }, &place.socket), None);
        // The folder is one's own, and the program that listens in it is another user's.
        let theirs = place.folder.join("theirs.sock");
        let listener = {
            let theirs = theirs.clone();
            std::thread::spawn(move || {
                let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
                let fd = fd.unwrap();
                bind(&fd, &SocketAddrUnix::new(&theirs).unwrap()).unwrap();
                // Of this thread alone: the kernel notes the user of a socket when it begins to listen.
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
        let unknown = Trusted { maps_overflow: false, ..user(OVERFLOW_UID) };
        assert!(!unknown.has(OVERFLOW_UID) && unknown.has(0) && user(OVERFLOW_UID).has(OVERFLOW_UID));
        assert!(Trusted { named: Some(OVERFLOW_UID), ..unknown }.has(OVERFLOW_UID));
        assert!(!user(1000).has(1001) && user(1000).has(0) && user(1000).has(1000));
    }
}
