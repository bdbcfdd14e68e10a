//! What backends need of the system before there is a port: the interface's network namespace, an address.

use rustix::rand::GetRandomFlags;
use rustix::thread::LinkNameSpaceType;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;

/// Does `work` in the network namespace `name`: a name as in `ip netns`, or a path. Descriptors opened there stay there.
///
/// # Errors
/// The namespace does not exist or may not be entered; `work` was not done then.
pub fn in_namespace<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new("/run/netns").join(name) };
    let file = File::open(path)?;
    // A thread's namespace cannot be given back without further rights, so a thread is spent on it.
    let work_there = || -> io::Result<T> {
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    thread::scope(|scope| match scope.spawn(work_there).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A random Ethernet address of one station, locally administered.
///
/// # Errors
/// The kernel has no randomness yet.
pub fn random_mac() -> io::Result<[u8; 6]> {
    let mut mac = [0; 6];
    rustix::rand::getrandom(&mut mac, GetRandomFlags::empty())?;
    // IEEE 802: the second bit says locally administered, the first would say group.
    mac[0] = (mac[0] & 0xFC) | 0x02;
    Ok(mac)
}
