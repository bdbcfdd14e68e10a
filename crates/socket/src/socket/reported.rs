//! Options for which the kernel's answer about the placeholder must be corrected. Never changes an option.

use crate::socket::Sock;
use endpoint::options::Name;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::host::HOST;
use session::sys;

/// Offset of `tcpi_unacked` in `struct tcp_info`, bytes: for a listener, the connections that wait for `accept`.
const UNACKED_AT: usize = 24;

/// `getsockopt`: the kernel's answer, corrected. `None`: it needs no correction; the kernel was not asked.
pub fn get(sock: &Sock, fd: RawFd, option: Name, out: &mut [u8]) -> Option<Result<usize, Errno>> {
    match (option.level, option.name) {
        // No send finds more room than the longest ring has: a program that relied on more would wait for ever.
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if session::present().is_some() => {
            Some(change(fd, option, out, 0, |bytes| bytes.min(HOST.ring_most())))
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            let waiting = sock.listener()?.queue.accepting().count() as u32;
            // The kernel's number covers its own queue only.
            Some(change(fd, option, out, UNACKED_AT, |own| own.saturating_add(waiting)))
        }
        _ => None,
    }
}

/// Asks the kernel and changes the 32-bit number at byte `at` of its answer, if it reaches that far.
fn change(
    fd: RawFd,
    Name { level, name }: Name,
    out: &mut [u8],
    at: usize,
    change: impl FnOnce(u32) -> u32,
) -> Result<usize, Errno> {
    let n = sys::getsockopt(fd, level, name, out)?;
    if let Some(field) = out[..n].get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *field = change(u32::from_ne_bytes(*field)).to_ne_bytes();
    }
    Ok(n)
}
