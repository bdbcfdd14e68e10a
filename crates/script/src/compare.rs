//! Compares the packets that a script expects with those that the stack has sent.

use crate::connection::Connection;
use crate::segment::{Segment, flag_letters, option_words};
use crate::syntax::{IpInfo, Micros, Tcp, TcpOption, Tos};
use std::fmt::Write;
use wire::TcpFlags;

/// Flags that may differ between the segments that make up one packet of the script.
const OF_THE_LAST: TcpFlags =
    TcpFlags::from_bits(TcpFlags::FIN.bits() | TcpFlags::PSH.bits() | TcpFlags::CWR.bits());

/// The reason why `piece` cannot follow `before` within one packet of the script; `None` if it can. `missing` bytes of that packet are
/// still to come.
pub(crate) fn breaks(before: &Segment, piece: &Segment, missing: usize) -> Option<String> {
    let flags = |s: &Segment| TcpFlags::from_bits(s.flags).without(OF_THE_LAST);
    if flags(before) != flags(piece) {
        return Some("the flags of the pieces differ".to_owned());
    }
    if piece.seq != before.seq.wrapping_add(before.payload.len() as u32) {
        return Some(format!("{} does not follow on the piece before", piece.seq));
    }
    if (before.ack, before.window, before.urgent) != (piece.ack, piece.window, piece.urgent) {
        return Some("acknowledgement or window of the pieces differ".to_owned());
    }
    if piece.payload.len() < missing && piece.payload.len() != before.payload.len() {
        return Some(format!(
            "a piece of {} bytes behind one of {}",
            piece.payload.len(),
            before.payload.len()
        ));
    }
    None
}

/// Joins the segments into one: sequence number and CWR of the first, all other fields of the last.
pub(crate) fn join(pieces: &[Segment]) -> Option<Segment> {
    let (first, last) = (pieces.first()?, pieces.last()?);
    let cwr = TcpFlags::from_bits(first.flags & TcpFlags::CWR.bits());
    let flags = TcpFlags::from_bits(last.flags).without(TcpFlags::CWR).with(cwr).bits();
    let payload = pieces.iter().flat_map(|p| p.payload.iter().copied()).collect();
    Some(Segment { seq: first.seq, flags, payload, ..last.clone() })
}

/// The differences between `expected` and `actual`, which has script numbers.
pub(crate) fn differences(ip: IpInfo, expected: &Tcp, actual: &Segment) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |name: &str, expected: u32, actual: u32| {
        if expected != actual {
            found.push(format!("{name}: {expected} expected, {actual} sent"));
        }
    };
    check("sequence number", expected.seq, actual.seq);
    check("payload bytes", expected.len, actual.payload.len() as u32);
    if let Some(ack) = expected.ack
        && actual.has(TcpFlags::ACK)
    {
        check("ack", ack, actual.ack);
    }
    if let Some(window) = expected.window {
        check("win", window.into(), actual.window.into());
    }
    check("urg", expected.urgent.into(), actual.urgent.into());
    if let Some(ttl) = ip.ttl {
        check("ttl", ttl.into(), actual.ttl.into());
    }
    match ip.tos {
        Tos::Unsaid => {}
        Tos::Ecn(bits) => check("ECN", bits.into(), (actual.tos & 3).into()),
        Tos::Byte(byte) => check("tos", byte.into(), actual.tos.into()),
        Tos::Ect01 if matches!(actual.tos & 3, 1 | 2) => {}
        Tos::Ect01 => found.push(format!("ECN: 1 or 2 expected, {} sent", actual.tos & 3)),
    }
    if expected.flags != actual.flags {
        let (expected, actual) = (flag_letters(expected.flags), flag_letters(actual.flags));
        found.insert(0, format!("flags: {expected} expected, {actual} sent"));
    }
    if actual.payload.iter().any(|byte| *byte != 0) {
        found.push("payload: other bytes than were written".to_owned());
    }
    if let Some(options) = &expected.options
        && !same_options(options, &actual.options)
    {
        let words = |options: &[TcpOption]| format!("<{}>", option_words(options));
        found.push(format!("options: {} expected, {} sent", words(options), words(&actual.options)));
    }
    found
}

/// True when both have the same kinds in the same order with the same values. Timestamps are compared elsewhere.
fn same_options(expected: &[TcpOption], actual: &[TcpOption]) -> bool {
    expected.len() == actual.len()
        && expected.iter().zip(actual).all(|pair| match pair {
            (TcpOption::Timestamps(..), TcpOption::Timestamps(..)) => true,
            (expected, actual) => expected == actual,
        })
}

/// The expected packet in the script's notation.
pub(crate) fn words(expected: &Tcp) -> String {
    let end = expected.seq.wrapping_add(expected.len);
    let mut text = format!("{} {}:{end}({})", flag_letters(expected.flags), expected.seq, expected.len);
    // Writing to a string cannot fail.
    if let Some(ack) = expected.ack {
        let _ = write!(text, " ack {ack}");
    }
    if let Some(window) = expected.window {
        let _ = write!(text, " win {window}");
    }
    if expected.urgent != 0 {
        let _ = write!(text, " urg {}", expected.urgent);
    }
    match &expected.options {
        None => text.push_str(" <...>"),
        Some(options) if options.is_empty() => {}
        Some(options) => {
            let _ = write!(text, " <{}>", option_words(options));
        }
    }
    text
}

/// One packet with its time and direction in the script's notation; known timestamps are converted to script numbers.
pub(crate) fn packet_line(at: Micros, direction: char, segment: &Segment, connection: &Connection) -> String {
    let mut segment = segment.clone();
    if direction == '>' {
        for option in &mut segment.options {
            if let TcpOption::Timestamps(value, _) = option {
                *value = connection.script_timestamp(*value).unwrap_or(*value);
            }
        }
    }
    format!("{:>10}.{:06} {direction} {segment}", at / 1_000_000, at % 1_000_000)
}
