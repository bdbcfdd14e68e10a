//! `setsockopt`, `getsockopt` and `ioctl`: an option works, or fails with the errno of Linux.

use crate::host::Host;
use crate::sockets::{Fd, Role};
use base::Duration;
use congestion::Algorithm;
use control::TcpInfo;
use endpoint::Endpoint as Stream;
use libc::{
    IP_FREEBIND, IP_MTU_DISCOVER, IP_TOS, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_TCLASS, IPV6_V6ONLY,
    SO_ACCEPTCONN, SO_ERROR, SO_KEEPALIVE, SO_LINGER, SO_MAX_PACING_RATE, SO_OOBINLINE, SO_RCVBUF,
    SO_RCVLOWAT, SO_RCVTIMEO, SO_REUSEADDR, SO_SNDBUF, SO_SNDTIMEO, SO_TYPE, SOL_SOCKET, TCP_CONGESTION,
    TCP_CORK, TCP_DEFER_ACCEPT, TCP_INFO, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_LINGER2, TCP_MAXSEG,
    TCP_NODELAY, TCP_NOTSENT_LOWAT, TCP_QUICKACK, TCP_SYNCNT, TCP_USER_TIMEOUT,
};
use rustix::io::Errno;
use slowpath::{FlowOptions, Keepalive, Linger2, Owner};
use std::num::NonZeroU64;

/// From `linux/tcp.h`; `libc` does not define it.
const TCP_INQ: i32 = 36;
/// From `asm-generic/sockios.h`; `libc` does not define it.
pub const SIOCATMARK: u64 = 0x8905;

/// The options set on a socket; an accepted socket inherits them from its listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    no_delay: bool,
    cork: bool,
    quick_ack: Option<bool>,
    /// `SO_OOBINLINE`: urgent bytes stay in the stream.
    is_inline: bool,
    /// `SO_RCVLOWAT`, bytes; 0 means 1.
    low_water: u32,
    send_buffer: Option<u32>,
    /// `TCP_NOTSENT_LOWAT`, bytes; 0: the host's default.
    not_sent_low: u32,
    keep_alive: bool,
    keep: KeepaliveTimes,
    /// The options of the flow, except keepalive (built from four options) and the two DSCP fields below.
    flow: FlowOptions,
    /// `IP_TOS`, without the two ECN bits.
    tos: u8,
    /// `IPV6_TCLASS`, without the two ECN bits.
    traffic_class: u8,
    /// `IP_FREEBIND`: the socket may bind an address that the host does not have.
    pub(crate) is_free_bind: bool,
    /// `SO_LINGER`, seconds; `None`: off.
    pub(crate) linger: Option<u32>,
    pub(crate) v6_only: bool,
    /// `TCP_INQ`: reads report the number of bytes left.
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

    /// The options in the form in which TCP takes them.
    pub(crate) fn of_flow(&self) -> FlowOptions {
        let (dscp_v4, dscp_v6) = (self.tos >> 2, self.traffic_class >> 2);
        FlowOptions { keepalive: self.keepalive(), dscp_v4, dscp_v6, ..self.flow }
    }

    /// The `TCP_NOTSENT_LOWAT` in force; `default` is the host's.
    const fn low_mark(&self, default: u32) -> u32 {
        if self.not_sent_low == 0 { default } else { self.not_sent_low }
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

impl Options {
    /// Stores an option that takes effect when the host applies the socket's options.
    fn set(&mut self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        match (level, name) {
            (IPPROTO_TCP, TCP_INQ) => match int(value)? {
                on @ (0 | 1) => self.tells_unread = on != 0,
                _ => return Err(Errno::INVAL),
            },
            (IPPROTO_TCP, TCP_KEEPIDLE) => self.keep.idle_s = Some(within(value, 32_767)?),
            (IPPROTO_TCP, TCP_KEEPINTVL) => self.keep.interval_s = Some(within(value, 32_767)?),
            (IPPROTO_TCP, TCP_KEEPCNT) => self.keep.count = Some(within(value, 127)? as u8),
            (IPPROTO_TCP, TCP_CONGESTION) => {
                let name = std::str::from_utf8(value).map_err(|_| Errno::NOENT)?;
                self.flow.algorithm = Some(algorithm(name.trim_end_matches('\0'))?);
            }
            (IPPROTO_TCP, TCP_MAXSEG) => self.flow.max_segment = max_segment(int(value)?)?,
            (IPPROTO_TCP, TCP_USER_TIMEOUT) => {
                let ms = u64::try_from(int(value)?).map_err(|_| Errno::INVAL)?;
                self.flow.user_timeout = (ms > 0).then(|| Duration::from_ms(ms));
            }
            (IPPROTO_TCP, TCP_LINGER2) => self.flow.linger2 = linger2(int(value)?),
            (IPPROTO_TCP, TCP_SYNCNT) => self.flow.syn_retries = Some(within(value, 127)? as u8),
            (IPPROTO_TCP, TCP_DEFER_ACCEPT) => {
                let seconds = int(value)?.max(0) as u64;
                self.flow.defer_accept = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            (SOL_SOCKET, SO_RCVBUF) => self.flow.receive_buffer = Some(buffer(int(value)?)),
            (SOL_SOCKET, SO_KEEPALIVE) => self.keep_alive = int(value)? != 0,
            (SOL_SOCKET, SO_MAX_PACING_RATE) => {
                let rate = int(value)? as u32;
                self.flow.max_pacing_rate = NonZeroU64::new(u64::from(rate)).filter(|_| rate != u32::MAX);
            }
            (SOL_SOCKET, SO_SNDBUF) => self.send_buffer = Some(buffer(int(value)?)),
            (SOL_SOCKET, SO_LINGER) => {
                let seconds = int(value.get(4..).ok_or(Errno::INVAL)?)?;
                self.linger = (int(value)? != 0).then_some(seconds.max(0) as u32);
            }
            (IPPROTO_IPV6, IPV6_V6ONLY) => self.v6_only = int(value)? != 0,
            // The application cannot set the ECN bits.
            (IPPROTO_IP, IP_TOS) => self.tos = byte_or_int(value)? as u8 & !3,
            (IPPROTO_IP, IP_MTU_DISCOVER) => {
                self.flow.may_fragment = match byte_or_int(value)? {
                    libc::IP_PMTUDISC_DONT => true,
                    libc::IP_PMTUDISC_WANT | libc::IP_PMTUDISC_DO => false,
                    _ => return Err(Errno::INVAL),
                };
            }
            (IPPROTO_IP, IP_FREEBIND) => self.is_free_bind = byte_or_int(value)? != 0,
            (IPPROTO_IPV6, IPV6_TCLASS) => {
                self.traffic_class = match int(value)? {
                    -1 => 0,
                    class => u8::try_from(class).map_err(|_| Errno::INVAL)? & !3,
                };
            }
            // Nothing blocks here, and listening on a port in TIME-WAIT is always allowed: these have no effect.
            (SOL_SOCKET, SO_RCVTIMEO | SO_SNDTIMEO | SO_REUSEADDR) => {}
            _ => return Err(Errno::NOPROTOOPT),
        }
        Ok(())
    }

    /// `SO_RCVLOWAT` as the kernel stores it when `wanted` bytes are asked for: at most half of the receive buffer.
    fn low_water_for(&self, wanted: i32) -> u32 {
        let most = self.flow.receive_buffer.map_or(LOW_WATER_MAX, |n| doubled(n).max(RECEIVE_BUFFER_MIN) / 2);
        // The kernel reads a negative number as a large one.
        (if wanted < 0 { most } else { wanted.min(most) }) as u32
    }

    /// `getsockopt` for options that are a number and do not depend on the connection.
    fn get(&self, level: i32, name: i32) -> Result<i32, Errno> {
        let ms = |time: Duration| (time.as_ns() / 1_000_000) as i32;
        let default = Keepalive::default();
        let seconds = |set: Option<u32>, default: Duration| set.map_or(ms(default) / 1_000, |s| s as i32);
        Ok(match (level, name) {
            (IPPROTO_TCP, TCP_NODELAY) => i32::from(self.no_delay),
            (IPPROTO_TCP, TCP_CORK) => i32::from(self.cork),
            (IPPROTO_TCP, TCP_INQ) => i32::from(self.tells_unread),
            (IPPROTO_TCP, TCP_QUICKACK) => i32::from(self.quick_ack.unwrap_or(true)),
            (IPPROTO_TCP, TCP_KEEPIDLE) => seconds(self.keep.idle_s, default.idle),
            (IPPROTO_TCP, TCP_KEEPINTVL) => seconds(self.keep.interval_s, default.interval),
            (IPPROTO_TCP, TCP_KEEPCNT) => i32::from(self.keep.count.unwrap_or(default.count)),
            (IPPROTO_TCP, TCP_USER_TIMEOUT) => self.flow.user_timeout.map_or(0, ms),
            (IPPROTO_TCP, TCP_SYNCNT) => i32::from(self.flow.syn_retries.unwrap_or(SYN_RETRIES)),
            (IPPROTO_TCP, TCP_DEFER_ACCEPT) => self.flow.defer_accept.map_or(0, deferred),
            (IPPROTO_TCP, TCP_LINGER2) => match self.flow.linger2 {
                Some(Linger2::Reset) => -1,
                Some(Linger2::Wait(time)) => ms(time) / 1_000,
                None => FIN_TIMEOUT_S,
            },
            (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => self.not_sent_low as i32,
            (SOL_SOCKET, SO_KEEPALIVE) => i32::from(self.keep_alive),
            (SOL_SOCKET, SO_OOBINLINE) => i32::from(self.is_inline),
            (SOL_SOCKET, SO_MAX_PACING_RATE) => {
                self.flow.max_pacing_rate.map_or(-1, |rate| rate.get() as i32)
            }
            (SOL_SOCKET, SO_RCVLOWAT) => self.low_water.max(1) as i32,
            (SOL_SOCKET, SO_TYPE) => libc::SOCK_STREAM,
            (SOL_SOCKET, SO_SNDBUF) => {
                self.send_buffer.map_or(SEND_BUFFER, |n| doubled(n).max(SEND_BUFFER_MIN))
            }
            (SOL_SOCKET, SO_RCVBUF) => {
                self.flow.receive_buffer.map_or(RECEIVE_BUFFER, |n| doubled(n).max(RECEIVE_BUFFER_MIN))
            }
            (IPPROTO_IPV6, IPV6_V6ONLY) => i32::from(self.v6_only),
            (IPPROTO_IP, IP_TOS) => i32::from(self.tos),
            (IPPROTO_IP, IP_MTU_DISCOVER) if self.flow.may_fragment => libc::IP_PMTUDISC_DONT,
            (IPPROTO_IP, IP_MTU_DISCOVER) => libc::IP_PMTUDISC_WANT,
            (IPPROTO_IP, IP_FREEBIND) => i32::from(self.is_free_bind),
            (IPPROTO_IPV6, IPV6_TCLASS) => i32::from(self.traffic_class),
            _ => return Err(Errno::NOPROTOOPT),
        })
    }
}

/// The kernel's defaults (ip-sysctl): `tcp_syn_retries`, `tcp_fin_timeout`, `tcp_wmem`, `tcp_rmem`, and the common value of `wmem_max`
/// and `rmem_max`.
const SYN_RETRIES: u8 = 6;
const FIN_TIMEOUT_S: i32 = 60;
const SEND_BUFFER: i32 = 16_384;
const RECEIVE_BUFFER: i32 = 131_072;
const BUFFER_MAX: i32 = 212_992;
/// Half of the size to which a receive buffer may grow, bytes.
const LOW_WATER_MAX: i32 = 16 << 20;
/// The same minimum as in the socket library.
const SEND_BUFFER_MIN: i32 = endpoint::send_buffer::BUFFER_MIN as i32;
/// "The minimum (doubled) value for this option is 256" (socket(7)); 2304 is what present kernels return.
const RECEIVE_BUFFER_MIN: i32 = 2_304;

/// The requested buffer size, limited as in the kernel; the kernel reads a negative number as a large one.
fn buffer(value: i32) -> u32 {
    if value < 0 { BUFFER_MAX as u32 } else { value.min(BUFFER_MAX) as u32 }
}

/// "The kernel doubles this value (to allow space for bookkeeping overhead) when it is set using setsockopt(2), and this doubled value
/// is returned by getsockopt(2)" (socket(7)).
fn doubled(bytes: u32) -> i32 {
    (bytes * 2) as i32
}

/// `TCP_DEFER_ACCEPT` as Linux returns it: rounded up to the time of a number of SYN-ACK retransmissions at 1, 2, 4, ... seconds, at
/// most two minutes apart.
fn deferred(time: Duration) -> i32 {
    let wanted = time.as_ns() / 1_000_000_000;
    let (mut interval, mut sum) = (1, 1);
    while sum < wanted {
        interval = (interval * 2).min(120);
        sum += interval;
    }
    sum as i32
}

fn copy(from: &[u8], out: &mut [u8]) -> usize {
    let n = out.len().min(from.len());
    out[..n].copy_from_slice(&from[..n]);
    n
}

fn int(value: &[u8]) -> Result<i32, Errno> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::INVAL)
}

/// IPv4 options may be given as one byte or as an int.
fn byte_or_int(value: &[u8]) -> Result<i32, Errno> {
    int(value).or_else(|_| value.first().map(|byte| i32::from(*byte)).ok_or(Errno::INVAL))
}

/// Number of seconds or probes as Linux accepts it: from 1 to `most`.
fn within(value: &[u8], most: i32) -> Result<u32, Errno> {
    match int(value)? {
        n if (1..=most).contains(&n) => Ok(n as u32),
        _ => Err(Errno::INVAL),
    }
}

impl Host {
    /// `setsockopt` for a socket of this host.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown option, EINVAL for a value out of range.
    pub fn set_option(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        if self.set_link_option(fd, level, name, value)? {
            return Ok(());
        }
        self.sockets.get_mut(fd)?.options.set(level, name, value)?;
        self.apply_options(fd);
        Ok(())
    }

    /// Sets the option if it is one that the connection's sender or receiver obeys from the next call on, and tells the connection at once,
    /// if there is one. Returns false for every other option.
    fn set_link_option(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<bool, Errno> {
        let options = &mut self.sockets.get_mut(fd)?.options;
        match (level, name) {
            (IPPROTO_TCP, TCP_NODELAY) => {
                let on = int(value)? != 0;
                options.no_delay = on;
                self.advise(fd, |link| link.set_no_delay(on))?;
            }
            (IPPROTO_TCP, TCP_CORK) => {
                let on = int(value)? != 0;
                options.cork = on;
                self.advise(fd, |link| link.set_cork(on))?;
            }
            (IPPROTO_TCP, TCP_QUICKACK) => {
                let on = int(value)? != 0;
                options.quick_ack = Some(on);
                self.advise(fd, |link| link.set_quick_ack(on))?;
            }
            (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
                options.not_sent_low = int(value)? as u32;
                let low = options.low_mark(self.not_sent_low);
                self.advise(fd, |link| link.set_lowat(low))?;
            }
            (SOL_SOCKET, SO_OOBINLINE) => {
                let on = int(value)? != 0;
                options.is_inline = on;
                self.advise(fd, |link| link.set_inline(on))?;
            }
            (SOL_SOCKET, SO_RCVLOWAT) => {
                let mark = options.low_water_for(int(value)?);
                options.low_water = mark;
                self.advise(fd, |link| link.set_low_water(mark))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Calls `say` with the connection at once, if there is one.
    fn advise(&mut self, fd: Fd, say: impl FnOnce(&Stream)) -> Result<(), Errno> {
        if let Some(link) = self.sockets.get(fd)?.stream() {
            say(link);
        }
        self.touch();
        Ok(())
    }

    /// Applies the options that were set before there was a connection.
    pub(crate) fn apply_advice(&mut self, fd: Fd) {
        let Ok(sock) = self.sockets.get(fd) else { return };
        let (options, Some(link)) = (&sock.options, sock.stream()) else { return };
        if options.no_delay {
            link.set_no_delay(true);
        }
        if options.cork {
            link.set_cork(true);
        }
        link.set_lowat(options.low_mark(self.not_sent_low));
        link.set_inline(options.is_inline);
        link.set_low_water(options.low_water);
        options.quick_ack.into_iter().for_each(|on| link.set_quick_ack(on));
    }

    /// Puts the options in force, if there is a connection or a listener.
    pub(crate) fn apply_options(&mut self, fd: Fd) {
        let flow = self.flow(fd);
        let Ok(sock) = self.sockets.get(fd) else { return };
        let options = &sock.options;
        if let Some(link) = sock.stream() {
            options.send_buffer.into_iter().for_each(|bytes| link.set_buffer(bytes));
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

    /// `ioctl` for requests that return a number; `None` for others.
    #[must_use]
    pub fn told(&self, fd: Fd, request: u64) -> Option<usize> {
        match request {
            SIOCATMARK => Some(usize::from(self.is_at_mark(fd))),
            libc::FIONREAD => Some(self.unread(fd)),
            libc::TIOCOUTQ => Some(self.unsent(fd)),
            _ => None,
        }
    }

    /// `getsockopt`; returns the number of bytes written to `out`.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown option.
    pub fn option(&mut self, fd: Fd, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        let value = match (level, name) {
            (IPPROTO_TCP, TCP_INFO) => return self.tcp_info(fd, out),
            (IPPROTO_TCP, TCP_CONGESTION) => {
                let mut name = self.congestion(fd)?.to_string().into_bytes();
                // Linux returns 16 bytes, padded with zeros.
                name.resize(16, 0);
                return Ok(copy(&name, out));
            }
            (SOL_SOCKET, SO_LINGER) => {
                let linger = self.sockets.get(fd)?.options.linger;
                let (on, seconds) = (i32::from(linger.is_some()), linger.unwrap_or(0));
                return Ok(copy(&[on.to_ne_bytes(), seconds.to_ne_bytes()].concat(), out));
            }
            (SOL_SOCKET, SO_ERROR) => match &self.sockets.get(fd)?.role {
                Role::Stream(link) => {
                    let _ = link.peer_flags();
                    link.take_error().map_or(0, Errno::raw_os_error)
                }
                _ => 0,
            },
            (SOL_SOCKET, SO_ACCEPTCONN) => i32::from(matches!(self.sockets.get(fd)?.role, Role::Listener(_))),
            (IPPROTO_TCP, TCP_MAXSEG) => self.segment_size(fd)?,
            _ => self.sockets.get(fd)?.options.get(level, name)?,
        };
        Ok(copy(&value.to_ne_bytes(), out))
    }

    /// The congestion control that the connection uses, or will use.
    fn congestion(&self, fd: Fd) -> Result<Algorithm, Errno> {
        let wanted = self.sockets.get(fd)?.options.flow.algorithm;
        let used = self.flow(fd).and_then(|flow| {
            let mut guard = self.slow.flows().lock_briefly(flow)?;
            Some(guard.parts().cold.window.algorithm())
        });
        Ok(used.or(wanted).unwrap_or(self.algorithm))
    }

    /// `TCP_INFO` in Linux's layout, cut to the length of `out`.
    fn tcp_info(&self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        let info = match &self.sockets.get(fd)?.role {
            Role::Fresh => TcpInfo::unconnected(),
            Role::Listener(listener) => listener.info(),
            Role::Stream(link) => {
                let Owner { region, slot, .. } = self.owner(link.slot());
                self.slow.slot_info(self.now, region, slot).unwrap_or_else(TcpInfo::unconnected)
            }
        };
        Ok(copy(&info.encode(), out))
    }

    /// Payload bytes of a full segment; without a connection the requested size, or 536 (RFC 9293 section 3.7.1).
    fn segment_size(&self, fd: Fd) -> Result<i32, Errno> {
        let asked = self.sockets.get(fd)?.options.flow.max_segment.map_or(536, i32::from);
        let mss = self.flow(fd).and_then(|flow| {
            let mut guard = self.slow.flows().lock_briefly(flow)?;
            Some(i32::from(guard.parts().tx.mss))
        });
        Ok(mss.unwrap_or(asked))
    }
}

/// The range of Linux: 0 for none, or from 88 to 32,767.
fn max_segment(value: i32) -> Result<Option<u16>, Errno> {
    match value {
        0 => Ok(None),
        88..=32_767 => Ok(Some(value as u16)),
        _ => Err(Errno::INVAL),
    }
}

/// As Linux: negative: do not wait; 0: the default; else seconds, at most two minutes.
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
