//! The arguments of `towpath bench loss`, besides those that every measurement takes.

use super::point::{Mishap, Point};
use crate::Options;
use base::Duration;
use clap::{Parser, ValueEnum};
use link::LinkConfig;
use std::path::PathBuf;

/// Default number of seeds: a result has 20.
const SEEDS: u16 = 20;
const QUICK_SEEDS: u16 = 3;

/// The algorithm of both senders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Algorithm {
    /// RFC 9438.
    Cubic,
    /// RFC 5681.
    Reno,
}

impl Algorithm {
    /// The congestion control's name, the same for Towpath and the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
        }
    }
}

/// How to measure goodput under loss.
#[derive(Parser, Clone, Debug)]
#[command(no_binary_name = true, disable_version_flag = true)]
pub struct Arguments {
    #[command(flatten)]
    pub common: Options,
    /// Numbers of flows.
    #[arg(long, value_delimiter = ',', default_value = "1,100", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub flows: Vec<u16>,
    /// Mishaps: shares of lost segments like 0.5%, `reorder` (5 %, late by half a round trip), `burst` (1 % in bursts of 3.3).
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0%,0.1%,0.5%,1%,2%,5%,reorder,burst",
        value_name = "MISHAP"
    )]
    pub loss: Vec<Mishap>,
    /// Round-trip times, set by the link.
    #[arg(long, value_delimiter = ',', default_value = "100us,1ms,20ms", value_name = "TIME", value_parser = time)]
    pub rtt: Vec<Duration>,
    /// Rate of the link in both directions, or `unlimited`: then processors are what limits.
    #[arg(long, default_value = "1gbit", value_name = "RATE", value_parser = rate)]
    pub rate: String,
    /// Congestion control of both senders.
    #[arg(long, value_enum, default_value_t = Algorithm::Cubic)]
    pub algorithm: Algorithm,
    /// The mishaps strike acknowledgements too, not only data.
    #[arg(long)]
    pub both_ways: bool,
    /// The receiver's kernel does without SACK, so both senders repair by acknowledgements alone: the go-back-N line of Figure 7.
    #[arg(long)]
    pub no_sack: bool,
    /// Number of the first seed.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub first_seed: u64,
    /// Keep every pair of runs in FILE, a line each, and do not repeat what is there already.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Stop after about so long and print what there is; --resume goes on.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub at_most: Option<u64>,
}

impl Arguments {
    /// The default arguments: the whole matrix.
    pub fn all(common: &Options) -> Self {
        let defaults = Self::parse_from(std::iter::empty::<String>());
        Self { common: common.clone(), ..defaults }
    }

    /// The seeds of the links, one for each pair of runs.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let count = self.common.runs.unwrap_or(if self.common.quick { QUICK_SEEDS } else { SEEDS });
        (self.first_seed..).take(usize::from(count))
    }

    /// Every point of the matrix, in the order of `--rtt`.
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &rtt in &self.rtt {
            for &flows in &self.flows {
                for mishap in &self.loss {
                    points.push(Point { mishap: mishap.clone(), flows, rtt });
                }
            }
        }
        points
    }

    /// Seconds over which goodput is measured: enough round trips for losses to happen.
    pub fn seconds(&self, rtt: Duration) -> f64 {
        let steady = (150.0 * rtt.as_ns() as f64 / 1e9).max(1.0);
        self.common.seconds.unwrap_or(if self.common.quick { steady / 2.0 } else { steady })
    }

    /// Seconds before that, until slow start is over and the first losses are repaired.
    pub fn warm_up(&self, rtt: Duration) -> f64 {
        (40.0 * rtt.as_ns() as f64 / 1e9).max(0.3)
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = link::parse_time(text).filter(|time| Duration::from_us(2) <= *time);
    time.ok_or_else(|| "is no time like 1ms or 100us".to_owned())
}

fn rate(text: &str) -> Result<String, String> {
    if text != "unlimited" {
        format!("rate={text}").parse::<LinkConfig>().map_err(|error| error.to_string())?;
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_whole_matrix() {
        let arguments = Arguments::try_parse_from(std::iter::empty::<&str>()).unwrap();
        assert_eq!((arguments.points().len(), arguments.seeds().count()), (48, 20));
        let cases: Vec<String> = arguments.points().iter().map(Point::case).collect();
        assert!(cases.contains(&"loss/0.5%/flows100/rtt1ms".to_owned()), "{cases:?}");
        assert!(cases.contains(&"burst/flows1/rtt100us".to_owned()), "{cases:?}");
    }

    #[test]
    fn a_rate_or_mishap_that_the_link_does_not_know_is_refused() {
        for wrong in
            [["--rate", "fast"], ["--loss", "1"], ["--loss", "150%"], ["--rtt", "1"], ["--flows", "0"]]
        {
            assert!(Arguments::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
        assert!(Arguments::try_parse_from(["--rate", "unlimited", "--seeds", "2"]).is_ok());
    }
}
