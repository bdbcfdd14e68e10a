//! Where the policy file is and how it is read; names of users, groups and network namespaces of this machine.

use super::{Mistake, Names, Rule, parse};
use crate::{sys, threads};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Policy file of a public root service that is given no other.
pub const DEFAULT: &str = "/etc/towpath/policy.toml";
/// Most bytes of a policy file.
const LEN_MAX: u64 = 1 << 20;

/// Where the rules are read from, at start and at each reload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// From no file: there are no rules.
    Nowhere,
    /// From this file, if it exists.
    Perhaps(PathBuf),
    /// From this file, which must exist.
    File(PathBuf),
}

impl Source {
    /// The path of the file with the rules.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Nowhere => None,
            Self::Perhaps(path) | Self::File(path) => Some(path),
        }
    }

    /// Reads the rules. After its start a service can enter no other network namespace: with `is_start` false only namespaces that were
    /// looked up at start have numbers.
    ///
    /// # Errors
    /// Why the rules cannot be read, with the file's name and the line.
    pub fn read(&self, is_start: bool) -> Result<Vec<Rule>, String> {
        let Some(path) = self.path() else { return Ok(Vec::new()) };
        if matches!(self, Self::Perhaps(_)) && matches!(path.try_exists(), Ok(false)) {
            return Ok(Vec::new());
        }
        let text = text_of(path).map_err(|e| format!("the policy {}: {e}", path.display()))?;
        let told = |mistake: Mistake| format!("the policy {}, {mistake}", path.display());
        parse(&text, &SystemNames::read(is_start)).map_err(told)
    }
}

/// Text of a file that only root and the service's own user may write. Does not wait for the writer of a FIFO, whatever the path leads to; a file
/// system may make it wait, so that after the start only helper threads call it.
fn text_of(path: &Path) -> Result<String, String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::ACCESS => {
            "the service's user may not read it, or its folder was made after the service's start".to_owned()
        }
        e => format!("cannot be read: {e}"),
    })?;
    let file = std::fs::File::from(fd);
    let meta = file.metadata().map_err(|e| format!("cannot be read: {e}"))?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_file() || meta.len() > LEN_MAX {
        return Err(format!("expected a file of at most {LEN_MAX} bytes"));
    }
    if !(meta.uid() == 0 || meta.uid() == own) || meta.mode() & 0o022 != 0 {
        return Err(
            "other users may write it: `chmod go-w` it, and let root or the service's user own it".to_owned()
        );
    }
    let mut text = String::new();
    file.take(LEN_MAX).read_to_string(&mut text).map_err(|e| format!("cannot be read: {e}"))?;
    Ok(text)
}

/// The names in `/etc/passwd` and `/etc/group`. Users and groups from other sources must be given by number in the policy file. A file that was
/// replaced since the service's start is closed to it (`privilege::landlock`): its names are those of the start then.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SystemNames {
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
    /// The service is starting: it may enter network namespaces.
    is_start: bool,
}

/// Inode and number of the network namespaces that were looked up at start, by path.
static ENTERED: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::new(BTreeMap::new());

/// The names that could be read last, of both files.
static KNOWN: Mutex<BTreeMap<&str, HashMap<String, u32>>> = Mutex::new(BTreeMap::new());

/// The numbers of a file, as they are now or, where it cannot be read any more, as they were.
fn known(path: &'static str) -> HashMap<String, u32> {
    let now = numbers(path);
    let Ok(mut known) = KNOWN.lock() else { return now.unwrap_or_default() };
    if let Some(now) = now {
        known.insert(path, now);
    }
    known.get(path).cloned().unwrap_or_default()
}

/// First and third column of a file with columns separated by colons: names and numbers.
fn numbers(path: &str) -> Option<HashMap<String, u32>> {
    let text = std::fs::read_to_string(path).ok()?;
    let entry = |line: &str| {
        let mut columns = line.split(':');
        Some((columns.next()?.to_owned(), columns.nth(1)?.parse().ok()?))
    };
    Some(text.lines().filter_map(entry).collect())
}

impl SystemNames {
    /// Reads the files of users and of groups.
    #[must_use]
    pub fn read(is_start: bool) -> Self {
        Self { users: known("/etc/passwd"), groups: known("/etc/group"), is_start }
    }
}

impl Names for SystemNames {
    fn user(&self, name: &str) -> Option<u32> {
        self.users.get(name).copied()
    }

    fn group(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// The number of the network namespace behind `path` (`SO_NETNS_COOKIE`): a new thread enters the namespace and asks.
    fn namespace(&self, path: &str) -> Option<u64> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let inode = rustix::fs::fstat(&file).ok()?.st_ino;
        let mut entered = ENTERED.lock().ok()?;
        if let Some((_, number)) = entered.get(path).filter(|(known, _)| *known == inode) {
            return Some(*number);
        }
        if !self.is_start {
            return None;
        }
        let look = move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), kind).ok().map(|()| sys::own_namespace())
        };
        let number = threads::start("towpath-netns", "a look into a namespace", look)
            .ok()?
            .join()
            .ok()?
            .filter(|number| *number != 0)?;
        entered.insert(path.to_owned(), (inode, number));
        Some(number)
    }
}
