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
}

impl Algorithm {
    /// The names, as they are read and printed; what stands in capitals is a number.
    pub const NAMES: &[&str] = &["reno", "cubic", "dctcp", "constant:BYTES"];

    /// True when the algorithm does not work without ECN: the handshake asks for it and agrees to it, whatever the configuration says.
    #[must_use]
    pub const fn needs_ecn(self) -> bool {
        matches!(self, Self::Dctcp)
    }

    /// True when the algorithm counts marked bytes, so that each acknowledgement must say exactly whether the data that it covers was
    /// marked (RFC 8257 section 3.2), instead of RFC 3168's latch.
    #[must_use]
    pub const fn wants_exact_echo(self) -> bool {
        matches!(self, Self::Dctcp)
    }

    /// True when the algorithm ignores congestion, so that it harms all other flows on its path: not for every user.
    #[must_use]
    pub const fn ignores_congestion(self) -> bool {
        matches!(self, Self::Constant(_))
    }
}

/// The text names no congestion control algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownAlgorithm;

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a congestion control is one of reno, cubic, dctcp, constant:BYTES")
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
            _ => match text.strip_prefix("constant:").map(u32::from_str) {
                Some(Ok(bytes)) if bytes > 0 => Ok(Self::Constant(bytes)),
                _ => Err(UnknownAlgorithm),
            },
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
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn names_round_trip() {
        for algorithm in [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp, Algorithm::Constant(65_536)] {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        for bad in ["", "Reno", "bbr", "constant", "constant:0", "constant:x"] {
            assert_eq!(bad.parse::<Algorithm>(), Err(UnknownAlgorithm), "{bad}");
        }
    }
}
