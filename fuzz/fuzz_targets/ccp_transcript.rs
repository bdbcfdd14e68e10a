//! Any file as a recording of agents: datagrams or the first line that is wrong, and a replay that ends, with a result or a word.
#![no_main]

use ccp_try::transcript::{Said, Way, read, written};
use ccp_try::{Contestant, replay};
use libfuzzer_sys::fuzz_target;

/// The algorithm that replays: it has a timer and several programs.
const ALGORITHM: &str = "ccp:bbr";
/// Datagrams of a replay at most, so that one input takes no longer than a moment.
const SAID_MAX: usize = 200;

fuzz_target!(|data: &[u8]| {
    let Some((way, rest)) = data.split_first() else { return };
    let all = if way & 1 == 0 { built(rest) } else { parsed(rest) };
    let contestant = Contestant::named(ALGORITHM).expect("known");
    let agent = all.first().map(|said| said.agent.clone());
    if let Ok(replayed) = replay(&all[..all.len().min(SAID_MAX)], agent.as_deref(), &contestant) {
        assert!(replayed.flows + replayed.left_out <= data.len() + 1);
        assert!(!replayed.json().is_null());
    }
});

/// The text behind the right first line; what is read is written and read again as the same.
fn parsed(bytes: &[u8]) -> Vec<Said> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Vec::new() };
    let _ = read(text);
    let text = format!("{}{text}", written(&[]));
    match read(&text) {
        Ok(all) => {
            assert_eq!(read(&written(&all)).as_ref(), Ok(&all));
            all
        }
        Err(why) => {
            let line: usize = why.split([' ', ':']).nth(1).and_then(|line| line.parse().ok()).expect("its line");
            assert!((2..=text.matches('\n').count() + 1).contains(&line), "{why}");
            Vec::new()
        }
    }
}

/// Datagrams of any bytes at any times, both ways: length, way and time, then the bytes.
fn built(mut bytes: &[u8]) -> Vec<Said> {
    let (mut all, mut ns) = (Vec::new(), 0_u64);
    while let [len, kind, later, rest @ ..] = bytes {
        let (datagram, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        bytes = rest;
        ns = ns.saturating_add(u64::from(*later) << (kind >> 2 & 63));
        let way = if kind & 1 == 0 { Way::ToAgent } else { Way::FromAgent };
        let said = Said::new(ns, way, if kind & 2 == 0 { "one" } else { "two" }, datagram);
        assert_eq!(said.bytes().as_deref(), Ok(datagram));
        all.push(said);
    }
    assert_eq!(read(&written(&all)).as_ref(), Ok(&all));
    all
}
