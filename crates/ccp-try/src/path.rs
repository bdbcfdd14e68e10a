//! The bottleneck of a trial, and how people write it: `48mbit,20ms,2bdp`, and then what the text form of a link has.

use base::Duration;
use link::{LinkConfig, ParseError, Trace};
use std::fmt;
use std::str::FromStr;

/// Bytes of a full packet's frame; a queue below a few of them carries nothing.
const FRAME: u64 = 1514;
/// How many times its mean rate a trace's line is taken to have for as long as a round trip.
const TRACE_PEAK: u64 = 4;
/// An example of the text form.
const EXAMPLE: &str = "48mbit,20ms,1bdp";

/// A bottleneck: one direction has rate, queue and mishaps, and half of the round trip is the delay of each.
#[derive(Clone, PartialEq, Debug)]
pub struct Path {
    /// The direction towards the receiver, which has the queue.
    pub link: LinkConfig,
    /// Round trip without any queue.
    pub rtt: Duration,
}

/// The reason why a text is no path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BadPath {
    /// The text does not begin with a rate, a round trip and a queue.
    Form {
        /// The part that is wrong or missing.
        part: String,
        /// What should be there.
        expected: &'static str,
    },
    /// What follows is no property of a link, or together they are no link.
    Link(ParseError),
}

impl fmt::Display for BadPath {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form { part, expected } => {
                write!(to, "`{part}` is no {expected}; a link is RATE,RTT,QUEUE as in {EXAMPLE}")
            }
            Self::Link(why) => why.fmt(to),
        }
    }
}

impl std::error::Error for BadPath {}

impl FromStr for Path {
    type Err = BadPath;

    /// Reads `RATE,RTT,QUEUE` and further properties of the link. The queue is packets (`100p`), bytes (`150kb`), or a multiple of rate times
    /// round trip (`2bdp`).
    fn from_str(text: &str) -> Result<Self, BadPath> {
        let wrong = |part: &str, expected| BadPath::Form { part: part.to_owned(), expected };
        let mut parts = text.split(',').map(str::trim);
        let rate = parts.next().unwrap_or_default();
        let rtt = parts.next().unwrap_or_default();
        let rtt =
            link::parse_time(rtt).filter(|rtt| *rtt > Duration::ZERO).ok_or(wrong(rtt, "round-trip time"))?;
        let (queues, rest): (Vec<&str>, Vec<&str>) = parts.partition(|part| is_queue(part));
        let [queue] = queues[..] else {
            return Err(wrong(&queues.join(","), "single queue"));
        };
        let mut form = vec![format!("rate={rate}"), format!("delay={}ns", rtt.as_ns() / 2)];
        if !queue.ends_with("bdp") {
            form.push(format!("queue={queue}"));
        }
        form.extend(rest.into_iter().map(str::to_owned));
        let mut link: LinkConfig = form.join(",").parse().map_err(BadPath::Link)?;
        if let Some(products) = queue.strip_suffix("bdp") {
            let rate = link.rate_bits_per_second.ok_or(wrong(rate, "rate"))?;
            let products: f64 = products.parse().map_err(|_| wrong(queue, "queue"))?;
            let bytes = products * rate as f64 * rtt.as_ns() as f64 / 8e9;
            if !(bytes >= FRAME as f64 && bytes < 1e12) {
                return Err(wrong(queue, "queue with room for a packet"));
            }
            (link.queue_packets, link.queue_bytes) = (None, Some(bytes as u64));
        }
        Ok(Self { link, rtt })
    }
}

impl Path {
    /// The same path with a line that sends at the times of `trace`; the queue stays as long as it is.
    #[must_use]
    pub fn following(mut self, trace: Trace) -> Self {
        (self.link.rate_bits_per_second, self.link.trace) = (None, Some(trace));
        self
    }

    /// Bytes that a flow which fills line and queue has in flight, twice: the sender must go on while a loss is repaired, and the receiver
    /// keeps what comes after it.
    pub(crate) fn buffer(&self) -> u64 {
        let trace = || self.link.trace.as_ref().map_or(0, |trace| TRACE_PEAK * trace.rate_mean());
        let rate = self.link.rate_bits_per_second.unwrap_or_else(trace);
        let product = u128::from(rate) * u128::from(self.rtt.as_ns()) / 8_000_000_000;
        let packets = self.link.queue_packets.map_or(0, |packets| packets as u64 * FRAME);
        let queue = packets.max(self.link.queue_bytes.unwrap_or(0));
        u64::try_from(2 * (product + u128::from(queue))).unwrap_or(u64::MAX)
    }

    /// The way back: the same delay, and nothing else.
    pub(crate) fn back(&self) -> LinkConfig {
        LinkConfig::delayed(self.link.delay)
    }

    /// Bits per second that the bottleneck can carry, if it has a rate.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        self.link.rate_bits_per_second
    }
}

impl fmt::Display for Path {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}, round trip {} ms", self.link, self.rtt.as_us() as f64 / 1000.0)
    }
}

/// True for a part that says how long the queue is.
fn is_queue(part: &str) -> bool {
    let is_number = part.starts_with(|c: char| c.is_ascii_digit());
    is_number && !part.contains('=') && link::parse_time(part).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_rate_round_trip_and_queue() {
        let path: Path = "48mbit,20ms,2bdp".parse().expect("good");
        assert_eq!(path.rate(), Some(48_000_000));
        assert_eq!((path.link.delay, path.rtt), (Duration::from_ms(10), Duration::from_ms(20)));
        assert_eq!((path.link.queue_bytes, path.link.queue_packets), (Some(240_000), None));
        let path: Path = "10gbit,100us,200p,ecn=65p,loss=0.1%".parse().expect("good");
        assert_eq!(path.link.queue_packets, Some(200));
        assert!(path.link.ecn_threshold.is_some());
    }

    #[test]
    fn a_trace_takes_the_place_of_the_rate() {
        let trace = Trace::parse("cell", "1\n5\n").expect("good");
        let path = "48mbit,20ms,2bdp".parse::<Path>().expect("good").following(trace);
        assert!(path.rate().is_none() && path.link.trace.is_some());
        assert_eq!(path.link.queue_bytes, Some(240_000));
        path.link.check().expect("a link");
    }

    #[test]
    fn mistakes_are_told() {
        for (text, says) in [
            ("", "RATE,RTT,QUEUE"),
            ("48mbit", "round-trip time"),
            ("48mbit,0,1bdp", "round-trip time"),
            ("48mbit,20ms", "single queue"),
            ("48mbit,20ms,1bdp,20p", "single queue"),
            ("48mbit,20ms,0bdp", "room for a packet"),
            ("48mbit,20ms,1e30bdp", "room for a packet"),
            ("48,20ms,1bdp", "rate"),
            ("48mbit,20ms,1bdp,los=1%", "is no key"),
        ] {
            let error = text.parse::<Path>().expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
