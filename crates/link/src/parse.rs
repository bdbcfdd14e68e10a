//! Reads the text form of a link.

use crate::config::{
    Amount, Burst, Flap, LinkConfig, Loss, Outage, PacketRange, QUEUE_PACKETS_DEFAULT, Reorder,
};
use crate::probability::Probability;
use crate::quantity::{RATE, amount, parse, probability, time};
use crate::trace::Trace;
use base::{Duration, Instant};
use std::fmt;
use std::str::FromStr;

const KEYS: &str = "rate trace delay jitter queue ecn loss reorder duplicate corrupt truncate mtu down flap";
const A_TIME: &str = "is a time with a unit, as in 1.5ms (s, ms, us, ns)";
const A_PROBABILITY: &str = "is a probability in percent, as in 0.1%, with at most seven decimals";

/// The reason why a text does not describe a link, and what to write instead. The message names the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    key: String,
    what: String,
}

impl ParseError {
    pub(crate) fn new(key: &str, what: &str) -> Self {
        Self { key: key.to_owned(), what: what.to_owned() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link: {}: {}", self.key, self.what)
    }
}

impl std::error::Error for ParseError {}

impl FromStr for LinkConfig {
    type Err = ParseError;

    /// Reads the text form without traces, since those are in files.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text, |_| Err("cannot be read here: traces are for `towpath link`".to_owned()))
    }
}

impl LinkConfig {
    /// Reads the text form; `load` returns the content of the file that `trace=` names.
    ///
    /// # Errors
    /// The first key that is wrong, and what to write instead.
    pub fn parse(
        text: &str,
        mut load: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, ParseError> {
        let mut config = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        let text = text.trim();
        let parts = if matches!(text, "" | "perfect") { "" } else { text };
        for part in parts.split(',').filter(|_| !parts.is_empty()) {
            let (key, value) = part.split_once('=').map_or((part.trim(), ""), |(k, v)| (k.trim(), v.trim()));
            if !KEYS.split(' ').any(|known| known == key) {
                return Err(ParseError::new(key, &format!("is no key; there are: {KEYS}")));
            }
            if seen.contains(&key) {
                return Err(ParseError::new(key, "is given twice"));
            }
            seen.push(key);
            let set =
                if key == "trace" { config.set_trace(value, &mut load) } else { config.set(key, value) };
            set.map_err(|what| ParseError::new(key, &format!("{what}; got {value:?}")))?;
        }
        if config.has_queue() && !seen.contains(&"queue") {
            config.queue_packets = Some(QUEUE_PACKETS_DEFAULT);
        }
        config.check()?;
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "rate" => {
                let rate = parse(value, RATE)
                    .ok_or("is a rate with a unit, as in 10gbit (gbit, mbit, kbit, bit)")?;
                self.rate_bits_per_second = Some(rate);
            }
            "delay" => self.delay = time(value).ok_or(A_TIME)?,
            "jitter" => self.jitter = time(value).ok_or(A_TIME)?,
            "queue" => self.set_queue(value)?,
            "ecn" => {
                self.ecn_threshold = Some(amount(value).ok_or("is an amount of queue, as in 65p or 100kb")?);
            }
            "loss" => self.loss = loss(value)?,
            "reorder" => self.reorder = reorder(value)?,
            "duplicate" => self.duplicate = probability(value).ok_or(A_PROBABILITY)?,
            "corrupt" => self.corrupt = probability(value).ok_or(A_PROBABILITY)?,
            "truncate" => self.truncate = probability(value).ok_or(A_PROBABILITY)?,
            "mtu" => self.mtu = Some(value.parse().map_err(|_| "is a number of bytes, as in 1400")?),
            "down" => self.outages = outages(value)?,
            _ => self.flap = Some(flap(value)?),
        }
        Ok(())
    }

    fn set_trace(
        &mut self,
        value: &str,
        load: &mut impl FnMut(&str) -> Result<String, String>,
    ) -> Result<(), String> {
        let trace = Trace::parse(value, &load(value)?).map_err(|e| e.to_string())?;
        self.trace = Some(trace);
        Ok(())
    }

    fn set_queue(&mut self, value: &str) -> Result<(), String> {
        if value == "none" {
            return if self.has_queue() {
                Ok(())
            } else {
                Err("none goes after the rate= or trace= that needs it".into())
            };
        }
        for part in value.split('/') {
            match amount(part) {
                Some(Amount::Packets(packets)) if self.queue_packets.is_none() => {
                    self.queue_packets = Some(packets);
                }
                Some(Amount::Bytes(bytes)) if self.queue_bytes.is_none() => self.queue_bytes = Some(bytes),
                _ => {
                    return Err(
                        "is packets, bytes or both, as in 100p, 150kb, 100p/150kb, or none for no limit"
                            .into(),
                    );
                }
            }
        }
        Ok(())
    }
}

fn loss(value: &str) -> Result<Loss, String> {
    if let Some(list) = value.strip_prefix("list:") {
        let ranges: Option<Vec<_>> = list.split('+').map(range).collect();
        return ranges.map(Loss::List).ok_or_else(|| "is a list of packet numbers, as in list:1+7-9".into());
    }
    let Some(parameters) = value.strip_prefix("burst:") else {
        let what = format!("{A_PROBABILITY}, or burst:ENTER/LEAVE[/LOSS_BAD[/LOSS_GOOD]], or list:1+7-9");
        return probability(value).map(Loss::Random).ok_or(what);
    };
    let parts: Option<Vec<Probability>> = parameters.split('/').map(probability).collect();
    let what = "is the probabilities burst:ENTER/LEAVE[/LOSS_BAD[/LOSS_GOOD]], as in burst:0.1%/30%";
    match parts.as_deref() {
        Some(&[enter, leave, ref rest @ ..]) if rest.len() <= 2 => Ok(Loss::Burst(Burst {
            enter,
            leave,
            loss_bad: rest.first().copied().unwrap_or(Probability::ALWAYS),
            loss_good: rest.get(1).copied().unwrap_or(Probability::NEVER),
        })),
        _ => Err(what.to_owned()),
    }
}

fn range(text: &str) -> Option<PacketRange> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(PacketRange { first: first.parse().ok()?, last: last.parse().ok()? })
}

/// Two values separated by a slash.
fn pair<A, B>(value: &str, a: impl Fn(&str) -> Option<A>, b: impl Fn(&str) -> Option<B>) -> Option<(A, B)> {
    let (first, second) = value.split_once('/')?;
    Some((a(first)?, b(second)?))
}

/// A time by which no packet is late is no property of the link: a link that prints itself leaves it out.
fn reorder(value: &str) -> Result<Reorder, String> {
    pair(value, probability, time)
        .map(|(probability, extra)| match probability.is_never() {
            true => Reorder::default(),
            false => Reorder { probability, extra },
        })
        .ok_or_else(|| "is how often and by how much a packet is late, as in 5%/1ms".into())
}

fn flap(value: &str) -> Result<Flap, String> {
    pair(value, time, time)
        .map(|(up, down)| Flap { up, down })
        .ok_or_else(|| "is how long the link is up and how long down, as in 9s/1s".into())
}

fn outages(value: &str) -> Result<Vec<Outage>, String> {
    let at = |duration: Duration| Instant::ZERO.plus(duration);
    let one = |text: &str| {
        let (from, to) = text.split_once('-')?;
        Some(Outage { from: at(time(from)?), to: at(time(to)?) })
    };
    let all: Option<Vec<_>> = value.split('+').map(one).collect();
    all.ok_or_else(|| "is times when the link is down, as in 2s-3s+7s-8s".into())
}

#[cfg(test)]
mod tests;
