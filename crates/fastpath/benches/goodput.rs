//! Goodput over a bad path: two stacks, a link with rate, delay, queue and a seeded fault process, in virtual time.
//! `cargo bench -p towpath-fastpath --bench goodput [-- RTT_US [RATE_MBIT]] [ROW..]`; the same seeds give the same numbers. Words
//! pick the rows that contain all of them.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A measurement prints, and panics when it cannot be made.

#[path = "../tests/harness/mod.rs"]
mod harness;
#[path = "../tests/harness/path.rs"]
mod path;

use base::{Duration, Instant};
use harness::{Host, MAC_A, MAC_B, Sock, install};
use path::{Fault, Path};
use port::Capabilities;
use wire::Endpoint;

const SECONDS: u64 = 4;
const SEEDS: u64 = 5;

fn ends(i: u16) -> (Endpoint, Endpoint) {
    (Endpoint::new([10, 0, 0, 1].into(), 80), Endpoint::new([10, 0, 0, 2].into(), 1024 + i))
}

struct Result {
    mbit: f64,
    timeouts: u32,
    recoveries: u64,
    again: f64,
}

fn run(flows: u16, fault: Fault, rtt: Duration, mbit: u64, seed: u64, features: u32) -> Result {
    let capabilities = Capabilities::plain(1500, MAC_A).with_checksum();
    let mut path = Path::new(capabilities, mbit, rtt, fault, seed);
    let config = || flow::Config { flows: 256, regions: 4, ..flow::Config::default() };
    let (mut a, mut b) = (
        Host::with_slots(config(), capabilities, 256, 256),
        Host::with_slots(config(), capabilities, 256, 256),
    );
    let mut pairs: Vec<(Sock, Sock)> = (0..flows)
        .map(|i| {
            let (ea, eb) = ends(i);
            let what = |from, to, mac| flow::Install {
                rtt: Some(rtt),
                features,
                ..install(from, to, u32::from(i), mac, 7, 7)
            };
            (a.open(Instant::ZERO, &what(ea, eb, MAC_B)).1, b.open(Instant::ZERO, &what(eb, ea, MAC_A)).1)
        })
        .collect();
    let bytes = vec![5u8; 1 << 20];
    // Room for four round trips at full rate, shared by the flows: what reordering wants, and more than loss lets a flow use.
    let round_trip = (rtt.as_us() * mbit / 8) as usize;
    let ring = (4 * round_trip / usize::from(flows)).next_power_of_two().clamp(1 << 20, 8 << 20);
    let (mut now, mut got) = (Instant::from_ns(1_000_000), 0u64);
    let end = now.plus(Duration::from_secs(SECONDS));
    while now < end {
        for (sender, receiver) in &mut pairs {
            a.send(sender, &bytes, ring);
            got += b.recv(receiver, usize::MAX).len() as u64;
        }
        let next = path.step(now, [&mut a, &mut b]);
        now = next.min(now.plus(Duration::from_ms(1))).max(now.plus(Duration::from_us(2)));
    }
    let c = a.core.counters();
    Result {
        mbit: got as f64 * 8.0 / 1e6 / SECONDS as f64,
        timeouts: a.timeouts,
        recoveries: c.recoveries,
        again: c.retransmitted_bytes as f64 * 100.0 / c.bytes_out.max(1) as f64,
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let rtt = Duration::from_us(numbers.first().copied().unwrap_or(1000));
    let rate = numbers.get(1).copied().unwrap_or(1000);
    let is_word = |a: &String| !a.starts_with('-') && a.parse::<u64>().is_err();
    let words: Vec<String> = std::env::args().skip(1).filter(is_word).collect();
    let sack = flow::state::TIMESTAMPS | flow::state::SACK;
    println!(
        "goodput in Mbit/s of {rate}, RTT {} us, mean of {SEEDS} seeds; timeouts, recoveries, % of bytes sent again",
        rtt.as_us()
    );
    for (what, flows, features) in
        [("1 flow", 1, sack), ("1 flow, no SACK", 1, flow::state::TIMESTAMPS), ("20 flows", 20, sack)]
    {
        for fault in Fault::ALL {
            let row = format!("{what:16} {:16}", fault.name());
            if !words.iter().all(|word| row.contains(word.as_str())) {
                continue;
            }
            let all: Vec<Result> =
                (0..SEEDS).map(|seed| run(flows, fault, rtt, rate, seed, features)).collect();
            let mean = |of: fn(&Result) -> f64| all.iter().map(of).sum::<f64>() / SEEDS as f64;
            println!(
                "{row} {:8.1} {:8.1} {:8.1} {:6.2}",
                mean(|r| r.mbit),
                mean(|r| f64::from(r.timeouts)),
                mean(|r| r.recoveries as f64),
                mean(|r| r.again),
            );
        }
    }
}
