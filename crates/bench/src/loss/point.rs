//! A point of the matrix, and the text form of its link.

use base::Duration;
use link::LinkConfig;
use std::fmt;
use std::str::FromStr;

/// Share of reordered segments: one in twenty, as the issue asks. RACK (RFC 8985) tolerates a quarter of a round trip at first.
const REORDER: f64 = 0.05;
/// The Gilbert-Elliott model: probabilities to enter and to leave the bad state, in which every segment is lost.
const ENTER: f64 = 0.003;
const LEAVE: f64 = 0.3;

/// A disturbance of segments by the link.
#[derive(Clone, PartialEq, Debug)]
pub enum Mishap {
    /// Loses this share of segments, each independently. The text as given: `0.5%`.
    Loss(String),
    /// Delivers 5 % of segments half a round trip late.
    Reorder,
    /// Loses 1 % of segments in bursts of 3.3 on average.
    Burst,
}

impl FromStr for Mishap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "reorder" => Ok(Self::Reorder),
            "burst" => Ok(Self::Burst),
            _ => {
                let share = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
                share.filter(|p| (0.0..50.0).contains(p)).ok_or("is no share below 50%, reorder or burst")?;
                format!("loss={text}").parse::<LinkConfig>().map_err(|error| error.to_string())?;
                Ok(Self::Loss(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for Mishap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss(share) => write!(f, "loss/{share}"),
            Self::Reorder => f.write_str("reorder"),
            Self::Burst => f.write_str("burst"),
        }
    }
}

impl Mishap {
    /// The mishap in the link's text form, with a comma before it; empty for no loss.
    fn spec(&self, rtt: Duration) -> String {
        match self {
            Self::Loss(_) if self.share() == 0.0 => String::new(),
            Self::Loss(share) => format!(",loss={share}"),
            Self::Reorder => format!(",reorder={}%/{}ns", REORDER * 100.0, rtt.as_ns() / 2),
            Self::Burst => format!(",loss=burst:{}%/{}%", ENTER * 100.0, LEAVE * 100.0),
        }
    }

    /// The share of segments that the mishap affects in the long run.
    pub fn share(&self) -> f64 {
        match self {
            Self::Loss(share) => {
                share.trim_end_matches('%').parse().map_or(0.0, |percent: f64| percent / 100.0)
            }
            Self::Reorder => REORDER,
            Self::Burst => ENTER / (ENTER + LEAVE),
        }
    }

    /// The variance of the number of affected segments over that of independent events: for bursts of mean length 1 / LEAVE.
    pub fn clumping(&self) -> f64 {
        if *self == Self::Burst { 2.0 / LEAVE } else { 1.0 }
    }
}

/// One point of the matrix: mishap, number of flows, and round-trip time.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    pub mishap: Mishap,
    pub flows: u16,
    pub rtt: Duration,
}

impl Point {
    /// The point's name in results.
    pub fn case(&self) -> String {
        let ns = self.rtt.as_ns();
        let rtt = match ns {
            _ if ns.is_multiple_of(1_000_000) => format!("{}ms", ns / 1_000_000),
            _ if ns.is_multiple_of(1_000) => format!("{}us", ns / 1_000),
            _ => format!("{ns}ns"),
        };
        format!("{}/flows{}/rtt{rtt}", self.mishap, self.flows)
    }

    /// The text form of the link without the mishap (used for both directions), then with the mishap.
    pub fn links(&self, rate: &str) -> (String, String) {
        let rate = if rate == "unlimited" { String::new() } else { format!("rate={rate},") };
        let clean = format!("{rate}delay={}ns", self.rtt.as_ns() / 2);
        let struck = clean.clone() + &self.mishap.spec(self.rtt);
        (clean, struck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_is_one_that_the_emulator_reads() {
        for mishap in ["0%", "0.1%", "5%", "reorder", "burst"] {
            let point = Point { mishap: mishap.parse().unwrap(), flows: 1, rtt: Duration::from_us(100) };
            for rate in ["1gbit", "unlimited"] {
                let (clean, struck) = point.links(rate);
                let [clean, struck] = [clean, struck].map(|text| text.parse::<LinkConfig>().unwrap());
                assert_eq!(clean.delay, Duration::from_us(50));
                assert_eq!(clean == struck, mishap == "0%", "{mishap}");
            }
        }
    }
}
