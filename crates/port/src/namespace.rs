//! System functions that backends need before a port exists: the interface's network namespace, and a random address.

use rustix::rand::GetRandomFlags;
use rustix::thread::LinkNameSpaceType;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;

/// Runs `work` in the network namespace `name`: a name as in `ip netns`, or a path. Descriptors opened by `work` stay in that namespace.
///
/// # Errors
/// The namespace does not exist or cannot be entered; then `work` has not run.
pub fn in_namespace<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new("/run/netns").join(name) };
    let file = File::open(path)?;
    // A thread cannot return to its namespace without further rights, so a new thread runs `work`.
    let work_there = || -> io::Result<T> {
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    thread::scope(|scope| match scope.spawn(work_there).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A random unicast Ethernet address, locally administered.
///
/// # Errors
/// The kernel's random generator is not ready.
pub fn random_mac() -> io::Result<[u8; 6]> {
    let mut mac = [0; 6];
    rustix::rand::getrandom(&mut mac, GetRandomFlags::empty())?;
    // IEEE 802: bit 1 of the first byte means locally administered, bit 0 means group.
    mac[0] = (mac[0] & 0xFC) | 0x02;
    Ok(mac)
}
