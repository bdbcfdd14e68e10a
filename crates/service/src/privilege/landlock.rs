//! Bounds the service by objects instead of calls (Landlock, Documentation/userspace-api/landlock.rst of Linux): files that it may read or
//! remove, no TCP connection of its own, no signal and no abstract socket of a process outside. A filter for system calls cannot do that,
//! because it does not see paths and addresses.
//!
//! An older kernel knows less, or nothing. The service says so in its log and serves all the same: the filter and the rights of its user bound
//! it then.

use super::sys::{self, Handled};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::path::PathBuf;

/// What the service does at a place while it serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Reads the file, or files anywhere below the folder.
    Read,
    /// Removes files anywhere below the folder.
    Remove,
}

/// A file or folder that is open to the service while it serves. All others are closed, whatever their modes say. A rule belongs to the inode:
/// a file that another one replaces is no longer open, so that what is replaced is opened by its folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The path at the service's start.
    pub path: PathBuf,
    /// What is allowed there.
    pub to: Use,
}

impl Place {
    /// The place at this path.
    pub fn new(to: Use, path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), to }
    }
}

/// The rights to files of `linux/landlock.h`.
mod right {
    /// `LANDLOCK_ACCESS_FS_READ_FILE`
    pub const READ_FILE: u64 = 1 << 2;
    /// `LANDLOCK_ACCESS_FS_REMOVE_FILE`
    pub const REMOVE_FILE: u64 = 1 << 5;
    /// Number of the rights from bit 0 on that version 1 knows: execute, write, read, list, remove, make.
    pub const FIRST: u32 = 13;
    /// The versions that added one right each: to move between folders, to truncate, ioctls of devices.
    pub const ADDED_BY: [u32; 3] = [2, 3, 5];
    /// `LANDLOCK_ACCESS_NET_CONNECT_TCP`. Not `BIND_TCP`: the service holds ports.
    pub const CONNECT_TCP: u64 = 1 << 1;
    /// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET` and `LANDLOCK_SCOPE_SIGNAL`
    pub const SCOPES: u64 = 1 << 0 | 1 << 1;
}

/// The versions with which connections, and scopes, came.
const CONNECTS_SINCE: u32 = 4;
const SCOPES_SINCE: u32 = 6;

/// All that a kernel with this version can refuse.
fn handled_by(version: u32) -> Handled {
    let rights = right::FIRST + right::ADDED_BY.iter().filter(|since| **since <= version).count() as u32;
    let since = |first: u32, all: u64| if first <= version { all } else { 0 };
    Handled {
        files: (1 << rights) - 1,
        connections: since(CONNECTS_SINCE, right::CONNECT_TCP),
        scopes: since(SCOPES_SINCE, right::SCOPES),
    }
}

/// What a kernel with this version does not bound; version 0: it has no Landlock, or none that this service may use.
fn lacks(version: u32) -> Option<&'static str> {
    match version {
        0 => Some("this kernel bounds neither files nor signals of the service (Landlock, Linux 5.13)"),
        1..CONNECTS_SINCE => Some(
            "this kernel bounds files of the service, but not connections (Linux 6.7) and signals (6.12)",
        ),
        CONNECTS_SINCE..SCOPES_SINCE => {
            Some("this kernel bounds files and connections of the service, but not signals (Linux 6.12)")
        }
        _ => None,
    }
}

/// Leaves only these places open to this thread and the threads that it starts from now on. NoNewPrivs must be set.
pub fn install(places: &[Place]) -> Result<(), Errno> {
    let version = sys::landlock_version();
    if let Some(lacks) = lacks(version) {
        tracing::warn!("{lacks}: its filter of system calls and its user's rights do what they can");
    }
    if version == 0 {
        return Ok(());
    }
    let opened: Vec<(OwnedFd, u64)> = places.iter().filter_map(rule).collect();
    sys::restrict(&handled_by(version), &opened)
}

/// The place's inode and its rights; `None`: there is no such file, or it is in a folder where the service cannot look.
fn rule(place: &Place) -> Option<(OwnedFd, u64)> {
    let rights = match place.to {
        Use::Read => right::READ_FILE,
        Use::Remove => right::REMOVE_FILE,
    };
    match open(&place.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(inode) => Some((inode, rights)),
        Err(error) => {
            tracing::debug!("{} stays closed to the service: {error}", place.path.display());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_is_asked_for_what_it_knows_and_the_rest_is_said() {
        let of = handled_by;
        assert_eq!(of(1), Handled { files: 0x1FFF, connections: 0, scopes: 0 });
        assert_eq!([2, 3, 4, 5].map(|version| of(version).files), [0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF]);
        assert_eq!([3, 4].map(|version| of(version).connections), [0, right::CONNECT_TCP]);
        assert_eq!([5, 6, 7].map(|version| of(version).scopes), [0, 3, 3]);
        assert!((0..SCOPES_SINCE).all(|version| lacks(version).is_some()));
        assert_eq!([lacks(SCOPES_SINCE), lacks(u32::MAX)], [None, None]);
    }
}
