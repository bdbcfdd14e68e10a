//! Numbers with units, read and written exactly: rates, times, amounts, probabilities.

use crate::config::Amount;
use crate::probability::Probability;
use base::Duration;

/// Units with their value in the smallest unit, the largest first.
type Units = [(&'static str, u64)];

pub(crate) const RATE: &Units = &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];
pub(crate) const TIME: &Units = &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
const BYTES: &Units = &[("mb", 1_000_000), ("kb", 1_000), ("b", 1)];
const BYTES_BINARY: &Units = &[("mib", 1 << 20), ("kib", 1 << 10)];

/// Reads a decimal number as a multiple of `1 / scale`. `None` if it is not a number or not an exact multiple.
fn decimal(text: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 18 || text.ends_with('.') {
        return None;
    }
    let tenths = 10u128.pow(fraction.len() as u32);
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scaled = part * u128::from(scale);
    if !scaled.is_multiple_of(tenths) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(scale)?.checked_add(u64::try_from(scaled / tenths).ok()?)
}

/// Reads a number with one of `units`; the result is in the smallest unit.
pub(crate) fn parse(text: &str, units: &Units) -> Option<u64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let &(_, scale) = units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?;
    decimal(number, scale)
}

/// Writes `value` in the largest unit of which it is a multiple.
pub(crate) fn print(value: u64, units: &Units) -> String {
    let fits = |(_, scale): &&(&str, u64)| value.is_multiple_of(*scale) && (value > 0 || *scale == 1);
    units
        .iter()
        .find(fits)
        .map_or_else(|| value.to_string(), |(name, scale)| format!("{}{name}", value / scale))
}

/// Reads a time such as `1.5ms` (s, ms, us, ns), as in a link's text form. 0 needs no unit.
#[must_use]
pub fn time(text: &str) -> Option<Duration> {
    let ns = if text == "0" { Some(0) } else { parse(text, TIME) };
    // The sum of a few such times must not overflow an `Instant`.
    ns.filter(|&ns| ns < u64::MAX / 16).map(Duration::from_ns)
}

/// Reads bytes such as `150kb` or `4mib` (b, kb, mb, kib, mib), as in a link's text form.
#[must_use]
pub fn bytes(text: &str) -> Option<u64> {
    parse(text, BYTES).or_else(|| parse(text, BYTES_BINARY))
}

/// Reads packets such as `100p`, or bytes such as `150kb`.
pub(crate) fn amount(text: &str) -> Option<Amount> {
    if let Some(number) = text.strip_suffix(['p', 'P']) {
        return number.parse().ok().map(Amount::Packets);
    }
    bytes(text).map(Amount::Bytes)
}

/// Writes packets such as `100p`, or bytes such as `150kb`.
pub(crate) fn print_amount(amount: Amount) -> String {
    match amount {
        Amount::Packets(packets) => format!("{packets}p"),
        Amount::Bytes(bytes) => print(bytes, BYTES),
    }
}

/// Reads a probability in percent, such as `1.5%`.
pub(crate) fn probability(text: &str) -> Option<Probability> {
    let parts = decimal(text.strip_suffix('%')?, u64::from(Probability::percent(1).parts()))?;
    let parts = u32::try_from(parts).ok()?;
    (parts <= Probability::ALWAYS.parts()).then(|| Probability::per_billion(parts))
}

/// Writes a probability in percent.
pub(crate) fn print_probability(probability: Probability) -> String {
    let percent = Probability::percent(1).parts();
    let (whole, part) = (probability.parts() / percent, probability.parts() % percent);
    if part == 0 {
        return format!("{whole}%");
    }
    let fraction = format!("{part:07}");
    format!("{whole}.{}%", fraction.trim_end_matches('0'))
}
