//! Values of socket options: how `setsockopt` passes them, which of them Linux accepts, and what Linux returns from `getsockopt`.
//!
//! The socket library leaves the last two to the kernel's socket behind each descriptor. The simulator has no such socket: there
//! [`Rule::check`] and [`Rule::answer`] stand for the kernel.

use control::CongestionName;
use libc::IPPROTO_IP;
use rustix::io::Errno;
use std::time::Duration;

/// Longest time limit in seconds, in place of any longer one: it can be added to the present time without overflow.
const LONGEST_S: u64 = 100 * 365 * 24 * 3600;

/// Linux's defaults of `tcp_fin_timeout` (ip-sysctl) and of the limit of `TCP_LINGER2`, seconds.
const FIN_TIMEOUT_S: i32 = 60;
const LINGER2_MAX_S: i32 = 120;
/// The common value of `wmem_max` and `rmem_max`, bytes.
const BUFFER_MAX: i32 = 212_992;

/// An int at the beginning of `value`.
#[must_use]
pub fn int(value: &[u8]) -> Option<i32> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
}

/// Copies an option's value to `out`, cut to its length. Returns the number of bytes.
pub fn put(out: &mut [u8], value: &[u8]) -> usize {
    let n = out.len().min(value.len());
    out[..n].copy_from_slice(&value[..n]);
    n
}

/// Copies the name of a congestion control to `out`, as [`put`]. Linux: 16 bytes, zeros included, and at least one of them.
pub fn put_congestion(out: &mut [u8], name: &str) -> usize {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(15);
    bytes.resize(16, 0);
    put(out, &bytes)
}

fn long(value: &[u8], at: usize) -> Option<i64> {
    value.get(at..)?.first_chunk().map(|bytes| i64::from_ne_bytes(*bytes))
}

/// An int; options of level `IPPROTO_IP` may also be given as one byte.
pub(crate) fn number(level: i32, value: &[u8]) -> Option<i32> {
    let byte = || value.first().filter(|_| level == IPPROTO_IP).map(|byte| i32::from(*byte));
    int(value).or_else(byte)
}

/// A time limit as the kernel has accepted it (`struct timeval`); `None`: no limit. A negative time means at once.
pub(crate) fn timeval(value: &[u8]) -> Option<Duration> {
    let (s, us) = (long(value, 0)?, u32::try_from(long(value, 8)?).ok()?);
    match u64::try_from(s) {
        Ok(0) if us == 0 => None,
        Ok(s) => Some(Duration::new(s.min(LONGEST_S), us.min(999_999) * 1_000)),
        Err(_) => Some(Duration::ZERO),
    }
}

/// Seconds of a `struct linger`; `None`: off. As the kernel reads it: a negative number is a large one.
pub(crate) fn linger(value: &[u8]) -> Option<u32> {
    let seconds = value.get(4..).and_then(int).unwrap_or(0) as u32;
    int(value).is_some_and(|on| on != 0).then_some(seconds)
}

/// The value of `IPV6_TCLASS`, where -1 means the default.
pub(crate) fn traffic_class(value: Option<i32>) -> u8 {
    value.map_or(0, |value| if value < 0 { 0 } else { value as u8 })
}

/// `SO_MAX_PACING_RATE` in bytes per second, from four or eight bytes; 0: no limit (all ones in the option).
pub(crate) fn pacing_rate(value: &[u8]) -> u64 {
    let short = || int(value).map_or(u64::MAX, |n| if n == -1 { u64::MAX } else { u64::from(n as u32) });
    let rate = long(value, 0).map_or_else(short, |n| n as u64);
    if rate == u64::MAX { 0 } else { rate }
}

/// A buffer's size as Linux returns it, at least `least` bytes. "The kernel doubles this value (to allow space for bookkeeping overhead) when
/// it is set using setsockopt(2), and this doubled value is returned by getsockopt(2)" (socket(7)). A negative number is a large one.
pub(crate) fn doubled(value: i32, least: i32) -> i32 {
    let bytes = if value < 0 { BUFFER_MAX } else { value.min(BUFFER_MAX) };
    (bytes * 2).max(least)
}

/// Which values of an option Linux accepts, and what it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// Any int: on or off.
    Switch,
    /// An int from `least` to `most`; `default`: the value when the option is not set.
    Number { default: i32, least: i32, most: i32 },
    /// Bytes of a buffer; `default` and `least` are as returned, that is, doubled.
    Buffer { default: i32, least: i32 },
    /// `IP_TOS`: the lowest byte of any int, without the ECN bits, which the application cannot set.
    Tos,
    /// `IPV6_TCLASS`: -1 for the default, or a byte, without the ECN bits.
    Class,
    /// A segment's size: 0 for none, or from 88 to 32,767 bytes.
    Segment,
    /// `TCP_LINGER2`. Negative: do not wait; 0: the default; else seconds.
    Linger2,
    /// The value of `SO_LINGER`, a `struct linger`.
    Linger,
    /// A time, as a `struct timeval`.
    Time,
    /// The name of a congestion control.
    Congestion,
    /// Only the kernel's own sockets know this option.
    Kernel,
}

impl Rule {
    /// True when Linux accepts `value` for an option of `level`.
    ///
    /// # Errors
    /// Linux's: EINVAL for a value out of range, ENOENT for an unknown name, ENOPROTOOPT for an option that is not modelled.
    pub(crate) fn check(self, level: i32, value: &[u8]) -> Result<(), Errno> {
        let number = number(level, value).ok_or(Errno::INVAL);
        let is_valid = match self {
            Self::Switch | Self::Buffer { .. } | Self::Linger2 | Self::Tos => number.is_ok(),
            Self::Number { least, most, .. } => (least..=most).contains(&number?),
            Self::Class => (-1..=255).contains(&number?),
            Self::Segment => matches!(number?, 0 | 88..=32_767),
            Self::Linger => value.len() >= size_of::<libc::linger>(),
            Self::Time => value.len() >= size_of::<libc::timeval>(),
            Self::Congestion if value.is_empty() => false,
            // Which names exist, the host knows.
            Self::Congestion => CongestionName::of_option(value).map(|_| true).ok_or(Errno::NOENT)?,
            Self::Kernel => return Err(Errno::NOPROTOOPT),
        };
        if is_valid { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// What `getsockopt` returns for an option that was set to `set`; `None`: the option is no int.
    pub(crate) fn answer(self, set: Option<i32>) -> Option<i32> {
        Some(match self {
            Self::Switch => i32::from(set.is_some_and(|on| on != 0)),
            Self::Number { default, .. } => set.unwrap_or(default),
            Self::Buffer { default, least } => set.map_or(default, |bytes| doubled(bytes, least)),
            Self::Tos => set.unwrap_or(0) & 0xfc,
            Self::Class => i32::from(traffic_class(set) & !3),
            Self::Segment => set.unwrap_or(0),
            Self::Linger2 => match set.unwrap_or(0) {
                ..0 => -1,
                0 => FIN_TIMEOUT_S,
                seconds => seconds.min(LINGER2_MAX_S),
            },
            Self::Linger | Self::Time | Self::Congestion | Self::Kernel => return None,
        })
    }
}
