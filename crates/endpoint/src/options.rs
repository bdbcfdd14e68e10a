//! What a stream socket's options mean: which part of the system obeys each, which of them an accepted socket inherits, and how a
//! connection and the service are told.
//!
//! ```text
//!   setsockopt --> the kernel accepts (socket library), or Options::accept (simulator)
//!              --> Options::note       kept, to be inherited, repeated or told later
//!              --> Endpoint::obey      at once, By::Connection
//!              --> Options::told       a message to the service, By::Service
//! ```

use crate::Endpoint;
use crate::option_values::{Rule, doubled, int};
use crate::option_values::{linger, number, pacing_rate, timeval, traffic_class};
use crate::send_buffer::BUFFER_MIN;
use control::{AppType, ChannelWish, CongestionName, DeferAccept, SocketOptions};
use libc::*;
use libc::{IPPROTO_IP as IP, IPPROTO_IPV6 as IPV6, IPPROTO_TCP as TCP, SOL_SOCKET as SOCKET};
use rustix::io::Errno;
use std::time::Duration;

/// From `linux/tcp.h`; `libc` does not define it.
pub const TCP_INQ: i32 = 36;

/// Level of options that only Towpath has: its name in ASCII. A kernel's own socket refuses it with ENOPROTOOPT.
pub const SOL_TOWPATH: i32 = 0x5450;
/// What matters on this connection, an int: 0 nothing said, 1 latency, 2 throughput ([`AppType`]).
pub const TOWPATH_APP_TYPE: i32 = 1;

/// Options that make `recvmsg` report when the bytes came. Where times have 64 bits the last two numbers equal the first two.
const STAMPS: [i32; 4] = [SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW];

/// A socket option, as `setsockopt` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// `SOL_SOCKET`, `IPPROTO_TCP`, and so on.
    pub level: i32,
    /// The option's number at that level.
    pub name: i32,
}

impl Name {
    /// The option `name` of `level`.
    #[must_use]
    pub const fn new(level: i32, name: i32) -> Self {
        Self { level, name }
    }

    /// The part of the system that obeys this option, if an accepted socket inherits it; `None` for any other option.
    #[must_use]
    pub fn obeyed_by(self) -> Option<By> {
        inherited(self).map(|(by, _)| by)
    }

    /// True for an option that asks for the time at which bytes came.
    #[must_use]
    pub fn is_stamp(self) -> bool {
        self.level == SOCKET && STAMPS.contains(&self.name)
    }

    /// True when Linux keeps another value than the one that was set: a low-water mark is at most half of the receive buffer (which grows
    /// with it), a window clamp has a minimum, and a deferral time is rounded to a sum of retransmission timeouts.
    #[must_use]
    pub fn is_capped(self) -> bool {
        matches!((self.level, self.name), (SOCKET, SO_RCVLOWAT) | (TCP, TCP_WINDOW_CLAMP | TCP_DEFER_ACCEPT))
    }

    /// The option that holds the value of this one.
    #[must_use]
    pub fn kept_as(self) -> Self {
        match (self.level, self.name) {
            (SOCKET, SO_SNDBUFFORCE) => Self::new(SOCKET, SO_SNDBUF),
            (SOCKET, SO_RCVBUFFORCE) => Self::new(SOCKET, SO_RCVBUF),
            _ => self,
        }
    }
}

/// The part of the system that obeys an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The service's TCP, which is told at once when the option is set.
    Service,
    /// The connection's sender or receiver, from the next call on: see [`Endpoint::obey`].
    Connection,
    /// The calls of the socket library, or the kernel for its socket.
    Library,
}

const fn number_of(default: i32, least: i32, most: i32) -> Rule {
    Rule::Number { default, least, most }
}

const fn any_of(default: i32) -> Rule {
    number_of(default, i32::MIN, i32::MAX)
}

/// Linux's defaults of `tcp_wmem`; and the least value that it returns, with the same minimum as in `send_buffer`.
const SEND_BUFFER: Rule = Rule::Buffer { default: 16_384, least: BUFFER_MIN as i32 };
/// The same for `tcp_rmem`. "The minimum (doubled) value for this option is 256" (socket(7)); present kernels return 2304.
const RECEIVE_BUFFER: Rule = Rule::Buffer { default: 131_072, least: RECEIVE_BUFFER_MIN };
const RECEIVE_BUFFER_MIN: i32 = 2_304;
/// Half of the size to which a receive buffer may grow, bytes.
const LOW_WATER_MAX: i32 = 16 << 20;

/// The options that a socket accepted from a listener inherits, with Linux's defaults (ip-sysctl, tcp(7)): the part of the system that obeys
/// the option, and its values. `None` for any other option.
fn inherited(option: Name) -> Option<(By, Rule)> {
    use By::{Connection, Library, Service};
    use Rule::{Class, Congestion, Kernel, Linger, Linger2, Segment, Switch, Time, Tos};
    Some(match (option.level, option.name) {
        (SOCKET, SO_KEEPALIVE) => (Service, Switch),
        (TCP, TCP_KEEPIDLE) => (Service, number_of(7_200, 1, 32_767)),
        (TCP, TCP_KEEPINTVL) => (Service, number_of(75, 1, 32_767)),
        (TCP, TCP_KEEPCNT) => (Service, number_of(9, 1, 127)),
        (TCP, TCP_USER_TIMEOUT) => (Service, number_of(0, 0, i32::MAX)),
        (TCP, TCP_SYNCNT) => (Service, number_of(6, 1, 127)),
        (TCP, TCP_DEFER_ACCEPT) => (Service, any_of(0)),
        (TCP, TCP_CONGESTION) => (Service, Congestion),
        (TCP, TCP_MAXSEG) => (Service, Segment),
        (TCP, TCP_LINGER2) => (Service, Linger2),
        (TCP, TCP_WINDOW_CLAMP) => (Service, Kernel),
        (SOCKET, SO_RCVBUF) => (Service, RECEIVE_BUFFER),
        (SOCKET, SO_MAX_PACING_RATE) => (Service, any_of(-1)),
        (SOCKET, SO_PRIORITY) => (Service, Kernel),
        (SOL_TOWPATH, TOWPATH_APP_TYPE) => (Service, number_of(0, 0, 2)),
        (IP, IP_TOS) => (Service, Tos),
        (IPV6, IPV6_TCLASS) => (Service, Class),
        (IP, IP_MTU_DISCOVER) => (Service, number_of(IP_PMTUDISC_WANT, IP_PMTUDISC_DONT, IP_PMTUDISC_DO)),
        (SOCKET, SO_SNDBUF) => (Connection, SEND_BUFFER),
        (SOCKET, SO_RCVLOWAT) => (Connection, any_of(1)),
        (TCP, TCP_NOTSENT_LOWAT) => (Connection, any_of(0)),
        (TCP, TCP_NODELAY | TCP_CORK) | (SOCKET, SO_OOBINLINE) => (Connection, Switch),
        (SOCKET, SO_RCVTIMEO | SO_SNDTIMEO) => (Library, Time),
        (SOCKET, SO_LINGER) => (Library, Linger),
        (TCP, TCP_INQ) => (Library, number_of(0, 0, 1)),
        (SOCKET, SO_REUSEADDR) | (IP, IP_FREEBIND) | (IPV6, IPV6_V6ONLY) => (Library, Switch),
        (
            SOCKET,
            SO_ZEROCOPY | SO_DONTROUTE | SO_BROADCAST | SO_REUSEPORT | SO_MARK | SO_BUSY_POLL
            | SO_PREFER_BUSY_POLL | SO_RXQ_OVFL,
        )
        | (TCP, TCP_SAVE_SYN | TCP_THIN_LINEAR_TIMEOUTS)
        | (IP, IP_TTL | IP_RECVERR | IP_RECVTOS | IP_PKTINFO | IP_MINTTL | IP_BIND_ADDRESS_NO_PORT)
        | (IPV6, IPV6_UNICAST_HOPS | IPV6_MTU_DISCOVER | IPV6_RECVERR | IPV6_RECVPKTINFO) => {
            (Library, Kernel)
        }
        _ if option.is_stamp() => (Library, Kernel),
        _ => return None,
    })
}

/// Inherited options that apply to the listener only: an accepted socket does not get them.
const NOT_PASSED_ON: [Name; 2] = [Name::new(SOCKET, SO_PRIORITY), Name::new(TCP, TCP_DEFER_ACCEPT)];

/// The options that were set on a socket, in the order in which they were set, with their values as Linux has accepted them.
#[derive(Clone, Debug, Default)]
pub struct Options(Vec<(Name, Box<[u8]>)>);

impl Options {
    /// Remembers an option that a later socket or connection is to have.
    pub fn note(&mut self, option: Name, value: &[u8]) {
        if inherited(option).is_some() {
            self.0.retain(|(other, _)| *other != option);
            self.0.push((option, value.into()));
        }
    }

    /// All options that were set.
    pub fn all(&self) -> impl Iterator<Item = (Name, &[u8])> {
        self.0.iter().map(|(option, value)| (*option, &value[..]))
    }

    /// The options that sockets accepted from this listener inherit.
    pub fn passed_on(&self) -> impl Iterator<Item = (Name, &[u8])> {
        self.all().filter(|(option, _)| !NOT_PASSED_ON.contains(option))
    }

    /// The value of an option that was set.
    #[must_use]
    pub fn find(&self, level: i32, name: i32) -> Option<&[u8]> {
        let option = Name::new(level, name);
        self.all().find(|(other, _)| *other == option).map(|(_, value)| value)
    }

    fn number(&self, level: i32, name: i32) -> Option<i32> {
        number(level, self.find(level, name)?)
    }

    /// The congestion control that was chosen by `TCP_CONGESTION`.
    #[must_use]
    pub fn congestion(&self) -> Option<CongestionName> {
        self.find(TCP, TCP_CONGESTION).and_then(CongestionName::of_option)
    }

    /// True when the option was set to a number other than 0.
    #[must_use]
    pub fn is_on(&self, level: i32, name: i32) -> bool {
        self.number(level, name).is_some_and(|on| on != 0)
    }

    /// `SO_LINGER` in seconds; `None`: off.
    #[must_use]
    pub fn linger(&self) -> Option<u32> {
        linger(self.find(SOCKET, SO_LINGER)?)
    }

    /// Longest time that a receive waits (`SO_RCVTIMEO`); `None`: no limit.
    #[must_use]
    pub fn receive_limit(&self) -> Option<Duration> {
        timeval(self.find(SOCKET, SO_RCVTIMEO)?)
    }

    /// Longest time that a send waits (`SO_SNDTIMEO`); `None`: no limit.
    #[must_use]
    pub fn send_limit(&self) -> Option<Duration> {
        timeval(self.find(SOCKET, SO_SNDTIMEO)?)
    }

    /// The option that is on of those that ask for the time at which bytes came; `None`: no time is wanted.
    #[must_use]
    pub fn stamp(&self) -> Option<i32> {
        // The option that was set last counts; if that switched it off, all of them are off.
        let (Name { name, .. }, value) = self.0.iter().rfind(|(option, _)| option.is_stamp())?;
        int(value).filter(|on| *on != 0).map(|_| *name)
    }

    /// Applies the options that were set before `link` was made.
    pub fn apply_to(&self, link: &Endpoint) {
        if self.find(TCP, TCP_NOTSENT_LOWAT).is_none() {
            // Unless the program has set it, the system's default applies.
            link.set_lowat(0);
        }
        for (option, value) in self.all() {
            int(value).into_iter().for_each(|number| _ = link.obey(option, number));
        }
    }

    /// The options that the service's TCP obeys.
    #[must_use]
    pub fn told(&self) -> SocketOptions {
        let socket = |name| self.number(SOCKET, name).unwrap_or(0);
        let tcp = |name| self.number(TCP, name).unwrap_or(0);
        // Linux has checked the ranges; a value too large for the message becomes its largest value.
        let short = |value: i32| value.clamp(0, i32::from(i16::MAX)) as u16;
        let byte = |value: i32| value.clamp(0, i32::from(u8::MAX)) as u8;
        // Bytes that the peer may send ahead; 0: the service's default.
        let limits = [socket(SO_RCVBUF), tcp(TCP_WINDOW_CLAMP)].into_iter().filter(|bytes| *bytes > 0);
        SocketOptions {
            keep_alive: socket(SO_KEEPALIVE) != 0,
            keep_idle: short(tcp(TCP_KEEPIDLE)),
            keep_interval: short(tcp(TCP_KEEPINTVL)),
            keep_count: byte(tcp(TCP_KEEPCNT)),
            user_timeout: tcp(TCP_USER_TIMEOUT).max(0) as u32,
            max_segment: short(tcp(TCP_MAXSEG)),
            receive_buffer: limits.min().unwrap_or(0) as u32,
            max_pacing_rate: self.find(SOCKET, SO_MAX_PACING_RATE).map_or(0, pacing_rate),
            linger2: tcp(TCP_LINGER2).clamp(-1, i32::from(i16::MAX)) as i16,
            syn_count: byte(tcp(TCP_SYNCNT)),
            defer_accept: short(tcp(TCP_DEFER_ACCEPT)),
            congestion: self.congestion(),
            tos: self.number(IP, IP_TOS).unwrap_or(0) as u8,
            may_fragment: self.number(IP, IP_MTU_DISCOVER) == Some(IP_PMTUDISC_DONT),
            traffic_class: traffic_class(self.number(IPV6, IPV6_TCLASS)),
            priority: byte(self.number(SOCKET, SO_PRIORITY).unwrap_or(0)),
            app_type: AppType::of(self.number(SOL_TOWPATH, TOWPATH_APP_TYPE).unwrap_or(0)),
            reuse_address: self.is_on(SOCKET, SO_REUSEADDR),
            // The program's, not the socket's: the request for a connection names it.
            channel: ChannelWish::Unset,
        }
    }
}

/// The part of the kernel, for hosts without a kernel's socket.
impl Options {
    /// The int that Linux keeps when `value` is set; `None`: the value itself.
    ///
    /// # Errors
    /// Linux's: EINVAL for a value out of range, ENOENT for an unknown name, ENOPROTOOPT for an option that is not modelled.
    pub fn accept(&self, option: Name, value: &[u8]) -> Result<Option<i32>, Errno> {
        let Name { level, name } = option;
        let (_, rule) = inherited(option).ok_or(Errno::NOPROTOOPT)?;
        rule.check(level, value)?;
        let number = number(level, value).unwrap_or(0);
        Ok(match (level, name) {
            (TCP, TCP_DEFER_ACCEPT) => Some(DeferAccept::rounded(number)),
            (SOCKET, SO_RCVLOWAT) => {
                let buffer = self.number(SOCKET, SO_RCVBUF);
                let most = buffer.map_or(LOW_WATER_MAX, |bytes| doubled(bytes, RECEIVE_BUFFER_MIN) / 2);
                // Linux reads a negative number as a large one.
                Some(if number < 0 { most } else { number.clamp(1, most) })
            }
            _ => None,
        })
    }

    /// The int that `getsockopt` returns for an option that does not depend on the connection.
    ///
    /// # Errors
    /// ENOPROTOOPT for any other option.
    pub fn answer(&self, option: Name) -> Result<i32, Errno> {
        let (_, rule) = inherited(option).ok_or(Errno::NOPROTOOPT)?;
        rule.answer(self.number(option.level, option.name)).ok_or(Errno::NOPROTOOPT)
    }
}

impl Endpoint {
    /// Obeys an option with the value `number`, if it is one of [`By::Connection`]. True when threads that wait for this connection must look
    /// again afterwards.
    pub fn obey(&self, option: Name, number: i32) -> bool {
        let on = number != 0;
        match (option.level, option.name) {
            (TCP, TCP_NODELAY) => self.set_no_delay(on),
            (TCP, TCP_CORK) => self.set_cork(on),
            (TCP, TCP_QUICKACK) => self.set_quick_ack(on),
            (TCP, TCP_LINGER2) => self.set_linger2(number),
            (TCP, TCP_NOTSENT_LOWAT) => self.set_lowat(number as u32),
            (SOCKET, SO_OOBINLINE) => self.set_inline(on),
            (SOCKET, SO_RCVLOWAT) => {
                self.set_low_water(number as u32);
                return true;
            }
            // As Linux reads it: a negative number is a large one. A larger buffer may have room for threads that wait for space.
            (SOCKET, SO_SNDBUF) => {
                self.set_buffer(number as u32);
                return true;
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
