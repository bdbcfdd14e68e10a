//! What `/proc` says about a process: its network namespace, what it has open, and whether its kernel socket really listens where it
//! claims. An application's word alone would let it take the connections of another.

use crate::listeners::canonical;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use std::fs::DirEntry;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The state column of a listening socket.
const LISTEN: &str = "0A";

/// The network namespace of `pid`, or of this process where that may not be seen.
pub fn namespace(pid: i32) -> u64 {
    let inode = |path: String| std::fs::metadata(path).map(|m| m.ino());
    inode(format!("/proc/{pid}/ns/net")).or_else(|_| inode("/proc/self/ns/net".to_owned())).unwrap_or(0)
}

/// What stands behind each descriptor of `pid`, as far as that may be seen.
pub fn descriptors(pid: i32) -> impl Iterator<Item = PathBuf> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd"));
    // What is closed meanwhile is nothing.
    let name = |entry: std::io::Result<DirEntry>| entry.and_then(|entry| std::fs::read_link(entry.path()));
    all.into_iter().flatten().map(move |entry| name(entry).unwrap_or_default())
}

/// True when `socket` listens at exactly `local`, in `pid`'s network namespace, which is `namespace`.
pub fn listens(pid: i32, namespace: u64, socket: &OwnedFd, local: SocketAddr) -> bool {
    let at = rustix::net::getsockname(socket).ok().and_then(|at| SocketAddr::try_from(at).ok());
    let is_there = at.is_some_and(|at| canonical(at) == local);
    if !is_there || sockopt::socket_acceptconn(socket) != Ok(true) {
        return false;
    }
    // Where it is not our own namespace, the kernel is asked what that one has: it goes through all connections to say so.
    let is_here =
        sys::namespace_cookie(socket.as_fd()).is_some_and(|cookie| own() == Some((cookie, namespace)));
    is_here || rustix::fs::fstat(socket).is_ok_and(|stat| is_listed(pid, stat.st_ino, local))
}

/// The kernel's two names for the network namespace of this process: of its sockets, and in `/proc`.
fn own() -> Option<(u64, u64)> {
    static NAMES: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    *NAMES.get_or_init(|| {
        let any = socket(AddressFamily::UNIX, SocketType::STREAM, None).ok()?;
        Some((sys::namespace_cookie(any.as_fd())?, namespace(rustix::process::getpid().as_raw_pid())))
    })
}

/// True when in `pid`'s network namespace the socket with that inode listens at exactly `local`.
fn is_listed(pid: i32, inode: u64, local: SocketAddr) -> bool {
    ["tcp", "tcp6"].into_iter().any(|table| {
        let Ok(file) = std::fs::File::open(format!("/proc/{pid}/net/{table}")) else { return false };
        let lines = BufReader::new(file).lines().skip(1).map_while(Result::ok);
        // The kernel lists the listening sockets first.
        let mut listening = lines.map_while(|line| parse(&line));
        listening.any(|listener| listener == (local, inode))
    })
}

/// Address and inode of a line of a listening socket.
fn parse(line: &str) -> Option<(SocketAddr, u64)> {
    let mut columns = line.split_ascii_whitespace();
    let (ip, port) = columns.nth(1)?.split_once(':')?;
    let state = columns.nth(1)?;
    let inode = columns.nth(5)?.parse().ok()?;
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (i, word) in bytes.chunks_mut(4).enumerate() {
                let value = u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok()?;
                word.copy_from_slice(&value.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    (state == LISTEN).then_some((SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?), inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_descriptors_stand_for_is_told() {
        let file = std::env::current_exe().unwrap();
        let _open = std::fs::File::open(&file).unwrap();
        assert!(descriptors(std::process::id() as i32).any(|name| name == file));
        assert!(descriptors(-1).next().is_none());
    }

    #[test]
    fn a_listening_socket_is_found_by_its_inode() {
        let pid = std::process::id() as i32;
        for place in ["127.0.0.1:0", "[::]:0"] {
            let Ok(socket) = TcpListener::bind(place) else { continue };
            let local = socket.local_addr().unwrap();
            let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
            assert!(is_listed(pid, inode, local), "{local}");
            assert!(!is_listed(pid, inode + 1, local));
            let socket = OwnedFd::from(socket);
            let elsewhere = SocketAddr::new(local.ip(), local.port() ^ 1);
            let here = namespace(pid);
            assert!(listens(pid, here, &socket, local) && !listens(pid, here, &socket, elsewhere));
            assert!(listens(pid, here + 1, &socket, local), "looked up");
            assert!(!listens(-1, here + 1, &socket, local), "nobody's");
            drop(socket);
            assert!(!is_listed(pid, inode, local));
            let bound = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            rustix::net::bind(&bound, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
            let place = SocketAddr::try_from(rustix::net::getsockname(&bound).unwrap()).unwrap();
            assert!(!listens(pid, here, &bound, place), "it does not listen");
        }
    }
}
