//! Parses the policy file. An error gives the line, the key, and what was expected there.

use super::{Namespace, Place, Rule};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most rules of one file: the control thread searches them at each listen and connect.
const RULES_MAX: usize = 1024;
/// Bounds of rates, bytes per second: a segment takes a second or two at the least.
const RATE_MIN: u64 = 1_000;
const RATE_MAX: u64 = 1_000_000_000_000;
/// The largest share: a turn of such an application is 4 MiB.
const SHARE_MAX: u16 = 64;

/// Names that the parser looks up on this machine.
pub trait Names {
    /// The number of the user with that name.
    fn user(&self, name: &str) -> Option<u32>;
    /// The number of the group with that name.
    fn group(&self, name: &str) -> Option<u32>;
    /// The number of the network namespace behind a file.
    fn namespace(&self, path: &str) -> Option<u64>;
}

/// An error in a policy file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// Line in the file, from 1.
    pub line: usize,
    /// The key; empty where the text is not TOML.
    pub key: String,
    /// What was expected, and what is there.
    pub expected: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, key, expected } = self;
        let colon = if key.is_empty() { "" } else { ": " };
        write!(f, "line {line}: {key}{colon}{expected}")
    }
}

/// Position of an error in the text, and what was expected; the line is counted later.
type Wrong = (Range<usize>, String);

type Value<'i> = Spanned<DeValue<'i>>;

/// Reads a policy file.
///
/// # Errors
/// The first error in the file.
pub fn parse(text: &str, names: &impl Names) -> Result<Vec<Rule>, Mistake> {
    let mistake = |span: Range<usize>, key: &str, expected: String| {
        let before = text.as_bytes().get(..span.start).unwrap_or(text.as_bytes());
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Mistake { line, key: key.to_owned(), expected }
    };
    let table = DeTable::parse(text)
        .map_err(|e| mistake(e.span().unwrap_or(0..0), "", format!("expected TOML: {}", e.message())))?;
    let mut rules = Vec::new();
    for (key, value) in table.get_ref() {
        let expected = "expected [[rule]] sections and nothing else".to_owned();
        let DeValue::Array(all) = value.get_ref() else {
            return Err(mistake(key.span(), key.get_ref(), expected));
        };
        if key.get_ref() != "rule" {
            return Err(mistake(key.span(), key.get_ref(), expected));
        }
        if all.len() > RULES_MAX {
            return Err(mistake(key.span(), "rule", format!("expected {RULES_MAX} rules at most")));
        }
        for one in all {
            let DeValue::Table(keys) = one.get_ref() else {
                return Err(mistake(one.span(), "rule", expected));
            };
            let mut rule = Rule::default();
            // In the file's order, so that the first error is reported.
            let mut keys: Vec<_> = keys.iter().collect();
            keys.sort_by_key(|(key, _)| key.span().start);
            for (key, value) in keys {
                set(&mut rule, key.get_ref(), key.span(), value, names)
                    .map_err(|(span, expected)| mistake(span, key.get_ref(), expected))?;
            }
            rules.push(rule);
        }
    }
    Ok(rules)
}

/// Parses the value of one key into `rule`. The key stands at `at`.
fn set(
    rule: &mut Rule,
    key: &str,
    at: Range<usize>,
    value: &Value<'_>,
    names: &impl Names,
) -> Result<(), Wrong> {
    match key {
        "user" => rule.users = Some(list(value, |v| id(v, "user", |name| names.user(name)))?),
        "group" => rule.groups = Some(list(value, |v| id(v, "group", |name| names.group(name)))?),
        "cgroup" => rule.cgroup = Some(cgroup(value)?),
        "namespace" => rule.namespace = namespace(value, names)?,
        "listen" => rule.listen = Some(places(value)?),
        "connect" => rule.connect = Some(places(value)?),
        "applications" => rule.applications = Some(number(value)?),
        "flows" => rule.flows = Some(number(value)?),
        "memory" => rule.memory = Some(memory(value)?),
        "connections_per_second" => rule.connections_per_second = Some(number(value)?),
        "rate" => rule.rate = Some(rate(value)?),
        "rate_per_process" => rule.rate_per_process = Some(rate(value)?),
        "rate_of_all" => rule.rate_of_all = Some(rate(value)?),
        "share" => rule.share = Some(share(value)?),
        _ => {
            let known = "user, group, cgroup, namespace, listen, connect, applications, flows, memory, \
                         connections_per_second, rate, rate_per_process, rate_of_all or share";
            return Err((at, format!("expected one of the keys {known}")));
        }
    }
    Ok(())
}

fn wrong<T>(value: &Value<'_>, expected: &str) -> Result<T, Wrong> {
    let found = match value.get_ref() {
        DeValue::String(text) => format!("`{}`", crate::registry::report::text::shown(text)),
        DeValue::Integer(number) => number.as_str().to_owned(),
        other => format!("a value of the type {}", other.type_str()),
    };
    Err((value.span(), format!("expected {expected} instead of {found}")))
}

/// The value as a whole number, if it is one that fits.
fn integer(value: &Value<'_>) -> Option<u64> {
    let number = value.get_ref().as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn number(value: &Value<'_>) -> Result<u32, Wrong> {
    let number = integer(value).and_then(|number| u32::try_from(number).ok()).filter(|n| *n < u32::MAX);
    number.map_or_else(|| wrong(value, "a whole number from 0 to 4294967294"), Ok)
}

/// Reads one value, or an array of values.
fn list<T>(value: &Value<'_>, read: impl Fn(&Value<'_>) -> Result<T, Wrong>) -> Result<Vec<T>, Wrong> {
    match value.get_ref() {
        DeValue::Array(all) => all.iter().map(read).collect(),
        _ => Ok(vec![read(value)?]),
    }
}

fn id(value: &Value<'_>, kind: &str, number_of: impl Fn(&str) -> Option<u32>) -> Result<u32, Wrong> {
    let by_name = || value.get_ref().as_str().and_then(number_of);
    let by_number = || integer(value).and_then(|number| u32::try_from(number).ok());
    by_name()
        .or_else(by_number)
        .map_or_else(|| wrong(value, &format!("the name or number of a {kind} of this machine")), Ok)
}

fn cgroup(value: &Value<'_>) -> Result<String, Wrong> {
    match value.get_ref().as_str() {
        Some(path) if path.starts_with('/') => Ok(path.to_owned()),
        _ => wrong(value, "the path of a control group like \"/system.slice/nginx.service\""),
    }
}

fn namespace(value: &Value<'_>, names: &impl Names) -> Result<Namespace, Wrong> {
    let found = match value.get_ref().as_str() {
        Some("own") => Some(Namespace::Own),
        Some("any") => Some(Namespace::Any),
        Some(path) if path.starts_with('/') => names.namespace(path).map(Namespace::Number),
        _ => None,
    };
    found.map_or_else(
        || {
            wrong(
                value,
                "\"own\", \"any\" or the path of a network namespace that there is, like \"/run/netns/web\"",
            )
        },
        Ok,
    )
}

fn memory(value: &Value<'_>) -> Result<u64, Wrong> {
    let of_text = |text: &str| {
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let shift = match unit.trim_start() {
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(1 << shift)
    };
    let bytes = integer(value).or_else(|| value.get_ref().as_str().and_then(of_text));
    bytes.map_or_else(|| wrong(value, "bytes as a number, or text like \"256 MiB\" with KiB, MiB or GiB"), Ok)
}

/// Parses `"200 Mbit/s"` or `"25 MB/s"`, as bytes per second.
fn rate(value: &Value<'_>) -> Result<NonZeroU64, Wrong> {
    let of_text = |text: &str| {
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let number = number.parse::<u64>().ok()?;
        let bytes = match unit.trim_start() {
            "kbit/s" => number.checked_mul(125),
            "Mbit/s" => number.checked_mul(125_000),
            "Gbit/s" => number.checked_mul(125_000_000),
            "kB/s" => number.checked_mul(1_000),
            "MB/s" => number.checked_mul(1_000_000),
            "GB/s" => number.checked_mul(1_000_000_000),
            _ => None,
        };
        bytes.filter(|bytes| (RATE_MIN..=RATE_MAX).contains(bytes)).and_then(NonZeroU64::new)
    };
    let expected = "text like \"200 Mbit/s\" or \"25 MB/s\" with kbit, Mbit, Gbit, kB, MB or GB, from 8 kbit/s to 1000 GB/s";
    value.get_ref().as_str().and_then(of_text).map_or_else(|| wrong(value, expected), Ok)
}

fn share(value: &Value<'_>) -> Result<u16, Wrong> {
    let number = integer(value).and_then(|number| u16::try_from(number).ok());
    let fitting = number.filter(|number| (1..=SHARE_MAX).contains(number));
    fitting.map_or_else(|| wrong(value, "a whole number from 1 to 64"), Ok)
}

fn places(value: &Value<'_>) -> Result<Vec<Place>, Wrong> {
    let DeValue::Array(all) = value.get_ref() else {
        return wrong(
            value,
            "an array of addresses with ports like [\"127.0.0.0/8:1024-65535\", \"*:8080\"]",
        );
    };
    let read = |one: &Value<'_>| {
        let place = one.get_ref().as_str().and_then(place);
        let expected =
            "ADDRESS, ADDRESS/PREFIX or *, and then perhaps :PORT or :FIRST-LAST (an IPv6 address in [])";
        place.map_or_else(|| wrong(one, expected), Ok)
    };
    all.iter().map(read).collect()
}

/// Parses `127.0.0.0/8:1024-65535`, `[fd00::]/8:80`, `10.0.0.1` or `*:8080`.
fn place(text: &str) -> Option<Place> {
    const ALL: RangeInclusive<u16> = 0..=u16::MAX;
    if let Some(rest) = text.strip_prefix('*') {
        let ports = if rest.is_empty() { ALL } else { ports(rest.strip_prefix(':')?)? };
        return Some(Place { network: None, ports });
    }
    let (ip, rest): (IpAddr, &str) = match text.strip_prefix('[') {
        Some(inside) => {
            let (ip, rest) = inside.split_once(']')?;
            (IpAddr::V6(ip.parse().ok()?), rest)
        }
        None => {
            let end = text.find(['/', ':']).unwrap_or(text.len());
            (IpAddr::V4(text[..end].parse().ok()?), &text[end..])
        }
    };
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let (prefix, rest) = match rest.strip_prefix('/') {
        Some(rest) => {
            let (prefix, ports) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
            (decimal(prefix).and_then(|prefix| u8::try_from(prefix).ok())?, ports)
        }
        None => (longest, rest),
    };
    let ports = if rest.is_empty() { ALL } else { ports(rest.strip_prefix(':')?)? };
    (prefix <= longest).then_some(Place { network: Some((ip, prefix)), ports })
}

/// Parses `80` or `80-90`.
pub fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (decimal(first)?, decimal(last)?);
    (first <= last).then_some(first..=last)
}

/// A decimal number of digits alone, without a sign.
fn decimal(text: &str) -> Option<u16> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}
