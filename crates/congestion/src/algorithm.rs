//! The congestion control algorithms and their names.

use core::fmt;
use core::str::FromStr;

/// A congestion control algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Algorithm {
    /// RFC 5681 with RFC 6582's recovery.
    Reno,
    /// RFC 9438, slow start left by HyStart++ (RFC 9406). Linux's default, and ours.
    #[default]
    Cubic,
    /// RFC 8257: for networks that mark early, such as a data centre's.
    Dctcp,
    /// A window of so many bytes, whatever happens. For measurements on private links.
    Constant(u32),
    /// DCTCP's law applied to a rate, once for each control interval (TAS paper, section 3.2).
    RateDctcp,
    /// A rate from the gradient of the round-trip time (SIGCOMM 2015).
    Timely,
    /// Version 1: a rate and a window from a model of the path (ACM Queue 14(5), 2016).
    Bbr,
    /// A rate of so many kilobits per second, whatever happens. For measurements on private links.
    Rate(u32),
}

impl Algorithm {
    /// The names, as they are read and printed; what stands in capitals is a number.
    pub const NAMES: &[&str] =
        &["reno", "cubic", "dctcp", "dctcp-rate", "timely", "bbr", "constant:BYTES", "rate:KBIT"];

    /// True when the algorithm does not work without ECN: the handshake asks for it and agrees to it, whatever the configuration says.
    #[must_use]
    pub const fn needs_ecn(self) -> bool {
        matches!(self, Self::Dctcp | Self::RateDctcp)
    }

    /// True when the algorithm slows down for echoes of congestion. Others must not ask for ECN: marks would stand in for losses that
    /// they would have heard of (RFC 3168 section 5).
    #[must_use]
    pub const fn heeds_marks(self) -> bool {
        matches!(self, Self::Reno | Self::Cubic | Self::Dctcp | Self::RateDctcp)
    }

    /// True when the algorithm decides a rate: its state is a [`RateLaw`](crate::RateLaw) beside the window.
    #[must_use]
    pub const fn decides_rate(self) -> bool {
        matches!(self, Self::RateDctcp | Self::Timely | Self::Bbr | Self::Rate(_))
    }

    /// True when the algorithm counts marked bytes, so that each acknowledgement must say exactly whether the data that it covers was
    /// marked (RFC 8257 section 3.2), instead of RFC 3168's latch.
    #[must_use]
    pub const fn wants_exact_echo(self) -> bool {
        self.needs_ecn()
    }

    /// True when the algorithm ignores congestion, so that it harms all other flows on its path: not for every user.
    #[must_use]
    pub const fn ignores_congestion(self) -> bool {
        matches!(self, Self::Constant(_) | Self::Rate(_))
    }
}

/// The text names no congestion control algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownAlgorithm;

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a congestion control is one of ")?;
        let mut names = Algorithm::NAMES.iter();
        names.next().map_or(Ok(()), |first| f.write_str(first))?;
        names.try_for_each(|name| write!(f, ", {name}"))
    }
}

impl core::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        match text {
            "reno" => Ok(Self::Reno),
            "cubic" => Ok(Self::Cubic),
            "dctcp" => Ok(Self::Dctcp),
            "dctcp-rate" => Ok(Self::RateDctcp),
            "timely" => Ok(Self::Timely),
            "bbr" => Ok(Self::Bbr),
            _ => {
                let (name, number) = text.split_once(':').ok_or(UnknownAlgorithm)?;
                match (name, number.parse()) {
                    ("constant", Ok(bytes)) if bytes > 0 => Ok(Self::Constant(bytes)),
                    ("rate", Ok(kbit)) if kbit > 0 => Ok(Self::Rate(kbit)),
                    _ => Err(UnknownAlgorithm),
                }
            }
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reno => f.write_str("reno"),
            Self::Cubic => f.write_str("cubic"),
            Self::Dctcp => f.write_str("dctcp"),
            Self::Constant(bytes) => write!(f, "constant:{bytes}"),
            Self::RateDctcp => f.write_str("dctcp-rate"),
            Self::Timely => f.write_str("timely"),
            Self::Bbr => f.write_str("bbr"),
            Self::Rate(kbit) => write!(f, "rate:{kbit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn each_name_is_read_and_the_message_has_all() {
        let text = UnknownAlgorithm.to_string();
        for name in Algorithm::NAMES {
            let given = name.replace("BYTES", "65536").replace("KBIT", "1000");
            assert!(given.parse::<Algorithm>().is_ok(), "{name}");
            assert!(text.contains(name), "{text}");
        }
    }

    #[test]
    fn names_round_trip() {
        let all = [
            Algorithm::Reno,
            Algorithm::Cubic,
            Algorithm::Dctcp,
            Algorithm::Constant(65_536),
            Algorithm::RateDctcp,
            Algorithm::Timely,
            Algorithm::Bbr,
            Algorithm::Rate(10_000),
        ];
        for algorithm in all {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        for bad in ["", "Reno", "bbr2", "constant", "constant:0", "constant:x", "rate:0", "rate:"] {
            assert_eq!(bad.parse::<Algorithm>(), Err(UnknownAlgorithm), "{bad}");
        }
    }
}
