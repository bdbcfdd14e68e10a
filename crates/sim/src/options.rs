//! `setsockopt` and `getsockopt`: an option works, or fails with the errno that says so.

use crate::host::Host;
use crate::sockets::{Fd, Role};
use base::Duration;
use congestion::Algorithm;
use libc::{
    IPPROTO_IPV6, IPPROTO_TCP, IPV6_V6ONLY, SO_ERROR, SO_KEEPALIVE, SO_LINGER, SO_RCVBUF, SO_RCVTIMEO,
    SO_REUSEADDR, SO_SNDBUF, SO_SNDTIMEO, SOL_SOCKET, TCP_CONGESTION, TCP_DEFER_ACCEPT, TCP_INFO,
    TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_LINGER2, TCP_MAXSEG, TCP_NODELAY, TCP_QUICKACK, TCP_SYNCNT,
    TCP_USER_TIMEOUT,
};
use rustix::io::Errno;
use shm::application_flags::{NODELAY, QUICKACK};
use slowpath::{FlowOptions, Keepalive, Linger2};

/// `linux/tcp.h`; `libc` does not name it.
const TCP_INQ: i32 = 36;

/// What was set on a socket; an accepted one inherits it from its listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    no_delay: bool,
    quick_ack: Option<bool>,
    send_buffer: Option<u32>,
    keep_alive: bool,
    keep: KeepaliveTimes,
    /// All but keepalive, which is made of four options.
    flow: FlowOptions,
    /// Seconds; `None`: off.
    pub(crate) linger: Option<u32>,
    pub(crate) v6_only: bool,
    /// `TCP_INQ`: reads tell how much is left.
    pub(crate) tells_unread: bool,
}

#[derive(Clone, Debug, Default)]
struct KeepaliveTimes {
    idle_s: Option<u32>,
    interval_s: Option<u32>,
    count: Option<u8>,
}

impl Options {
    pub(crate) fn inherited(&self) -> Self {
        self.clone()
    }

    /// What the connection is told.
    pub(crate) fn of_flow(&self) -> FlowOptions {
        FlowOptions { keepalive: self.keepalive(), ..self.flow }
    }

    fn keepalive(&self) -> Option<Keepalive> {
        let default = Keepalive::default();
        let seconds = |s: u32| Duration::from_secs(u64::from(s));
        self.keep_alive.then(|| Keepalive {
            idle: self.keep.idle_s.map_or(default.idle, seconds),
            interval: self.keep.interval_s.map_or(default.interval, seconds),
            count: self.keep.count.unwrap_or(default.count),
        })
    }
}

fn int(value: &[u8]) -> Result<i32, Errno> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::INVAL)
}

/// A number of seconds or probes as Linux takes it: from 1 to `most`.
fn within(value: &[u8], most: i32) -> Result<u32, Errno> {
    match int(value)? {
        n if (1..=most).contains(&n) => Ok(n as u32),
        _ => Err(Errno::INVAL),
    }
}

impl Host {
    /// `setsockopt`.
    ///
    /// # Errors
    /// ENOPROTOOPT for what is not known, EINVAL for a value out of range.
    pub fn set_option(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let options = &mut self.sockets.get_mut(fd)?.options;
        match (level, name) {
            (IPPROTO_TCP, TCP_NODELAY) => options.no_delay = int(value)? != 0,
            (IPPROTO_TCP, TCP_INQ) => match int(value)? {
                on @ (0 | 1) => options.tells_unread = on != 0,
                _ => return Err(Errno::INVAL),
            },
            (IPPROTO_TCP, TCP_QUICKACK) => options.quick_ack = Some(int(value)? != 0),
            (IPPROTO_TCP, TCP_KEEPIDLE) => options.keep.idle_s = Some(within(value, 32_767)?),
            (IPPROTO_TCP, TCP_KEEPINTVL) => options.keep.interval_s = Some(within(value, 32_767)?),
            (IPPROTO_TCP, TCP_KEEPCNT) => options.keep.count = Some(within(value, 127)? as u8),
            (IPPROTO_TCP, TCP_CONGESTION) => {
                let name = std::str::from_utf8(value).map_err(|_| Errno::NOENT)?;
                options.flow.algorithm = Some(algorithm(name.trim_end_matches('\0'))?);
            }
            (IPPROTO_TCP, TCP_MAXSEG) => options.flow.max_segment = max_segment(int(value)?)?,
            (IPPROTO_TCP, TCP_USER_TIMEOUT) => {
                let ms = u64::try_from(int(value)?).map_err(|_| Errno::INVAL)?;
                options.flow.user_timeout = (ms > 0).then(|| Duration::from_ms(ms));
            }
            (IPPROTO_TCP, TCP_LINGER2) => options.flow.linger2 = linger2(int(value)?),
            (IPPROTO_TCP, TCP_SYNCNT) => options.flow.syn_retries = Some(within(value, 127)? as u8),
            (IPPROTO_TCP, TCP_DEFER_ACCEPT) => {
                let seconds = int(value)?.max(0) as u64;
                options.flow.defer_accept = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            // Linux doubles what it is told, for its own bookkeeping; of that half is the window.
            (SOL_SOCKET, SO_RCVBUF) => options.flow.receive_buffer = Some(int(value)?.max(0) as u32),
            (SOL_SOCKET, SO_KEEPALIVE) => options.keep_alive = int(value)? != 0,
            (SOL_SOCKET, SO_SNDBUF) => options.send_buffer = Some(int(value)?.max(0) as u32),
            (SOL_SOCKET, SO_LINGER) => {
                let seconds = int(value.get(4..).ok_or(Errno::INVAL)?)?;
                options.linger = (int(value)? != 0).then_some(seconds.max(0) as u32);
            }
            (IPPROTO_IPV6, IPV6_V6ONLY) => options.v6_only = int(value)? != 0,
            // Nothing waits here, and a port in TIME-WAIT may be listened on: true already.
            (SOL_SOCKET, SO_RCVTIMEO | SO_SNDTIMEO | SO_REUSEADDR) => {}
            _ => return Err(Errno::NOPROTOOPT),
        }
        self.apply_options(fd);
        Ok(())
    }

    /// Puts what was set in force, as far as there is a connection.
    pub(crate) fn apply_options(&mut self, fd: Fd) {
        let flow = self.flow(fd);
        let Ok(sock) = self.sockets.get(fd) else { return };
        let options = &sock.options;
        if let Some(link) = sock.stream() {
            link.advise(NODELAY, options.no_delay);
            options.quick_ack.into_iter().for_each(|on| link.advise(QUICKACK, on));
            options.send_buffer.into_iter().for_each(|bytes| link.limit_ring(bytes));
        }
        let told = options.of_flow();
        if let Role::Listener(_) = sock.role {
            self.slow.set_listener_options(u64::from(fd.0), &told);
        }
        if let Some(flow) = flow {
            self.slow.set_options(self.now, flow, &told);
        }
        self.touch();
    }

    /// `getsockopt`: bytes written.
    ///
    /// # Errors
    /// ENOPROTOOPT for what is not known.
    pub fn option(&mut self, fd: Fd, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        let value = match (level, name) {
            (IPPROTO_TCP, TCP_INFO) => return self.tcp_info(fd, out),
            (SOL_SOCKET, SO_ERROR) => match &self.sockets.get(fd)?.role {
                Role::Stream(link) => {
                    let _ = link.peer_flags();
                    link.take_error().map_or(0, Errno::raw_os_error)
                }
                _ => 0,
            },
            (IPPROTO_TCP, TCP_MAXSEG) => self.segment_size(fd)?,
            (IPPROTO_TCP, TCP_NODELAY) => i32::from(self.sockets.get(fd)?.options.no_delay),
            (IPPROTO_TCP, TCP_INQ) => i32::from(self.sockets.get(fd)?.options.tells_unread),
            _ => return Err(Errno::NOPROTOOPT),
        };
        let n = out.len().min(4);
        out[..n].copy_from_slice(&value.to_ne_bytes()[..n]);
        Ok(n)
    }

    /// As Linux lays it out, as much as there is room for.
    fn tcp_info(&self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        self.sockets.get(fd)?;
        let info =
            self.flow(fd).and_then(|flow| self.slow.info(self.now, flow)).ok_or(Errno::NOTCONN)?.encode();
        let n = out.len().min(info.len());
        out[..n].copy_from_slice(&info[..n]);
        Ok(n)
    }

    /// Payload bytes of a full segment; what was asked for, or 536 (RFC 9293 section 3.7.1), while there is no connection.
    fn segment_size(&self, fd: Fd) -> Result<i32, Errno> {
        let asked = self.sockets.get(fd)?.options.flow.max_segment.map_or(536, i32::from);
        let mss = self.flow(fd).and_then(|flow| {
            let mut guard = self.slow.flows().lock_briefly(flow)?;
            Some(i32::from(guard.parts().tx.mss))
        });
        Ok(mss.unwrap_or(asked))
    }
}

/// As Linux: none, or from 88 to 32,767.
fn max_segment(value: i32) -> Result<Option<u16>, Errno> {
    match value {
        0 => Ok(None),
        88..=32_767 => Ok(Some(value as u16)),
        _ => Err(Errno::INVAL),
    }
}

/// As Linux: nothing to wait for, the default, or seconds up to two minutes.
fn linger2(value: i32) -> Option<Linger2> {
    match value {
        ..0 => Some(Linger2::Reset),
        0 => None,
        s => Some(Linger2::Wait(Duration::from_secs(s.min(120) as u64))),
    }
}

fn algorithm(name: &str) -> Result<Algorithm, Errno> {
    name.parse().map_err(|_| Errno::NOENT)
}
