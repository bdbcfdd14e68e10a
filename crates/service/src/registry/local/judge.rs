//! Asks the kernel which of its sockets would get a connection. `sock_diag` looks the socket up as for a SYN, so wildcards, exact
//! addresses, `IPV6_V6ONLY`, `SO_REUSEPORT` and sockets that no longer listen count as on Linux, and no application has to be believed. The
//! question takes no socket lock. It covers the service's own network namespace only.
//!
//! ```text
//!   nlmsghdr 16: length u32 | type u16 | flags u16 | sequence u32 | port 0 u32
//!   inet_diag_req_v2: 16 family u8 | 17 protocol u8 | 18 extensions u8 | 19 - | 20 states u32
//!     inet_diag_sockid: 24 source port, 26 destination port, big endian | 28 source 16 bytes | 44 destination 16 bytes
//!                       60 interface u32 | 64 cookie 2 u32
//!   reply inet_diag_msg: 16 family u8 | 17 state u8 | 18 timer u8 | 19 retransmits u8 | 20 inet_diag_sockid | ...
//! ```

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::net::{IpAddr, SocketAddr};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const TCP_LISTEN: u8 = 10;
const REQUEST_LEN: usize = 72;
/// Offset of the cookie in the reply, inside its `inet_diag_sockid`.
const REPLY_COOKIE: usize = 20 + 40;
const REPLY_LEAST: usize = REPLY_COOKIE + 8;

/// A `NETLINK_SOCK_DIAG` socket and the number of its last request.
#[derive(Debug)]
pub struct Judge {
    socket: OwnedFd,
    sequence: u32,
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The request for the socket at `local` that would get a connection from `from`.
fn question(sequence: u32, local: SocketAddr, from: SocketAddr) -> [u8; REQUEST_LEN] {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut b = [0; REQUEST_LEN];
    b[0..4].copy_from_slice(&(REQUEST_LEN as u32).to_ne_bytes());
    b[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    b[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    b[8..12].copy_from_slice(&sequence.to_ne_bytes());
    b[16] = family.as_raw() as u8;
    b[17] = rustix::net::ipproto::TCP.as_raw().get() as u8;
    b[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    b[24..26].copy_from_slice(&local.port().to_be_bytes());
    b[26..28].copy_from_slice(&from.port().to_be_bytes());
    b[28..44].copy_from_slice(&octets(local.ip()));
    b[44..60].copy_from_slice(&octets(from.ip()));
    // INET_DIAG_NOCOOKIE: the socket's cookie is not known.
    b[64..72].fill(0xff);
    b
}

/// The cookie of the listening socket in the reply to `sequence`. `None`: no socket listens. `Err(AGAIN)`: it is the reply to another
/// request.
fn answer(sequence: u32, b: &[u8]) -> Result<Option<u64>, Errno> {
    let word = |at: usize| b.get(at..at + 4).and_then(|w| w.first_chunk()).map(|w| u32::from_ne_bytes(*w));
    let kind = b.get(4..6).and_then(|w| w.first_chunk()).map(|w| u16::from_ne_bytes(*w));
    if word(8) != Some(sequence) {
        return Err(Errno::AGAIN);
    }
    match (kind, word(16)) {
        (Some(NLMSG_ERROR), Some(error)) => match Errno::from_raw_os_error((error as i32).wrapping_neg()) {
            // No such socket.
            Errno::NOENT => Ok(None),
            other => Err(other),
        },
        (Some(SOCK_DIAG_BY_FAMILY), _) if b.len() >= REPLY_LEAST => {
            let [low, high] = [0, 4].map(|at| u64::from(word(REPLY_COOKIE + at).unwrap_or(0)));
            Ok((b[17] == TCP_LISTEN).then_some(low | high << 32))
        }
        _ => Err(Errno::PROTO),
    }
}

impl Judge {
    /// Opens the socket and sends a first request, to see whether the kernel answers.
    pub fn open() -> rustix::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG))?;
        let mut judge = Self { socket, sequence: 0 };
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        judge.listener(nowhere, nowhere).inspect_err(|e| {
            tracing::debug!("the kernel does not tell by sock_diag which socket listens: {e}");
        })?;
        Ok(judge)
    }

    /// The cookie of the socket that would get a connection from `from` to `to`; `None`: no socket listens.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn listener(&mut self, to: SocketAddr, from: SocketAddr) -> rustix::io::Result<Option<u64>> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        send(&self.socket, &question(self.sequence, to, from), SendFlags::DONTWAIT)?;
        loop {
            // The kernel has queued its reply when `send` returns.
            let mut bytes = [0; 512];
            let (_, n) = recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT)?;
            match answer(self.sequence, &bytes[..n.min(512)]) {
                // A late reply to an earlier request.
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::net::TcpListener;

    #[test]
    fn the_kernel_names_the_socket_that_gets_a_connection() {
        let Ok(mut judge) = Judge::open() else { return };
        let exact = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = exact.local_addr().unwrap();
        let from: SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert_eq!(judge.listener(to, from).unwrap(), Some(sockopt::socket_cookie(&exact).unwrap()));
        let elsewhere = SocketAddr::new("127.0.0.2".parse().unwrap(), to.port());
        assert_eq!(judge.listener(elsewhere, from).unwrap(), None);
        rustix::net::shutdown(&exact, rustix::net::Shutdown::Read).unwrap();
        assert_eq!(judge.listener(to, from).unwrap(), None, "it listens no more");
        drop(exact);
        let Ok(dual) = TcpListener::bind("[::]:0") else { return };
        let (port, cookie) = (dual.local_addr().unwrap().port(), sockopt::socket_cookie(&dual).unwrap());
        for (to, from) in [("127.0.0.9", "127.0.0.1"), ("::1", "::1")] {
            let [to, from] =
                [(to, port), (from, 9)].map(|(ip, port)| SocketAddr::new(ip.parse().unwrap(), port));
            assert_eq!(judge.listener(to, from).unwrap(), Some(cookie), "{to}");
        }
    }

    #[test]
    fn answers_are_believed_only_as_a_whole() {
        let mut b = [0; 88];
        b[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        b[8..12].copy_from_slice(&7u32.to_ne_bytes());
        b[17] = TCP_LISTEN;
        b[REPLY_COOKIE] = 5;
        assert_eq!(answer(7, &b), Ok(Some(5)));
        assert_eq!(answer(8, &b), Err(Errno::AGAIN));
        (0..REPLY_LEAST).for_each(|len| assert!(answer(7, &b[..len]).is_err(), "{len}"));
        b[17] = 1;
        assert_eq!(answer(7, &b), Ok(None), "a connection is no listener");
    }
}
