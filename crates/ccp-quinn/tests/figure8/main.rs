//! Figure 8 of the CCP paper with QUIC: the same algorithms (`ccp-algorithms`, one file each) over the same bottleneck, on released quinn and on
//! Towpath, both in virtual time. `towpath bench ccp-kernel` has the same on the kernel and on Towpath, by the clock.
//! `cargo test -p towpath-ccp-quinn --test figure8 -- --nocapture` shows the numbers.

mod agent;
mod path;
mod plain;

use ccp_try::{Contestant, Race};
use path::Seen;

const SECONDS: u64 = 30;
/// What comes before is slow start.
const FROM: f64 = 3.0;
/// Payload of a full TCP segment.
const SEGMENT: f64 = 1448.0;

/// What a datapath made of an algorithm.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Of the program at the receiver, Mbit/s.
    goodput: f64,
    /// Mean window, bytes; and the median of what is left of it where it falls by more than a tenth between two looks.
    window: f64,
    back_off: f64,
    /// Mean wait in the bottleneck's queue, milliseconds.
    wait_ms: f64,
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

fn back_off(windows: &[f64]) -> f64 {
    let pairs = windows.iter().zip(windows.iter().skip(1));
    let mut left: Vec<f64> = pairs.map(|(before, after)| after / before).filter(|left| *left < 0.9).collect();
    left.sort_by(f64::total_cmp);
    left.get(left.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What the same looks say, whichever datapath they are of: bytes received, window, wait.
fn figures(looks: &[Seen]) -> Figures {
    let looks: Vec<&Seen> = looks.iter().filter(|seen| seen.seconds >= FROM).collect();
    let (first, last) = (looks[0], looks[looks.len() - 1]);
    let windows: Vec<f64> = looks.iter().map(|seen| seen.window).collect();
    Figures {
        goodput: (last.received - first.received) as f64 * 8e-6 / (last.seconds - first.seconds),
        window: mean(windows.iter().copied()),
        back_off: back_off(&windows),
        wait_ms: mean(looks.iter().map(|seen| seen.wait_ms)),
    }
}

/// The same algorithm on Towpath, by the code of `towpath cc try`.
fn on_towpath(algorithm: &str, link: &str) -> Figures {
    let options =
        ccp_try::Options { link: link.to_owned(), seconds: SECONDS as f64, ..ccp_try::Options::default() };
    let contestant = Contestant::named(&format!("ccp:{algorithm}")).expect("known");
    let trial = options.trial(contestant, None).expect("a good link");
    let race: Race = trial.run().races.remove(0);
    let every = race.every.as_ns() as f64 / 1e9;
    let looks: Vec<Seen> = (race.flows[0].samples.iter().zip(&race.waits).zip(1..))
        .map(|((sample, wait), look)| Seen {
            seconds: f64::from(look) * every,
            window: f64::from(sample.cwnd),
            received: sample.received,
            wait_ms: wait.as_ns() as f64 / 1e6,
        })
        .collect();
    figures(&looks)
}

fn compared(algorithm: &str, link: &str) -> [Figures; 2] {
    let both = [figures(&path::run(algorithm, link, SECONDS)), on_towpath(algorithm, link)];
    for (datapath, of) in ["quinn", "towpath"].iter().zip(&both) {
        eprintln!(
            "{algorithm} over {link} on {datapath}: {:.2} Mbit/s, window {:.1} segments, back-off {:.2}, wait {:.1} ms",
            of.goodput,
            of.window / SEGMENT,
            of.back_off,
            of.wait_ms
        );
    }
    both
}

fn is_near(one: f64, other: f64, share: f64) -> bool {
    (one / other - 1.0).abs() <= share
}

/// CCP paper, figure 8: 24 Mbit/s, 20 ms.
#[test]
fn cubic_is_the_same_on_quinn_as_on_towpath() {
    let [quinn, towpath] = compared("cubic", "24mbit,20ms,1bdp");
    assert!(quinn.goodput >= 0.9 * 24.0, "{quinn:?}");
    assert!((0.65..=0.75).contains(&quinn.back_off), "{quinn:?}");
    assert!(is_near(quinn.goodput, towpath.goodput, 0.05), "{quinn:?} {towpath:?}");
    assert!(is_near(quinn.window, towpath.window, 0.1), "{quinn:?} {towpath:?}");
}

/// CCP paper, figure 8 and section 6.2: 12 Mbit/s, 25 ms.
#[test]
fn copa_keeps_the_queue_short_on_quinn_as_on_towpath() {
    let [quinn, towpath] = compared("copa", "12mbit,25ms,4bdp");
    assert!(quinn.goodput >= 8.2, "{quinn:?}");
    assert!(quinn.wait_ms <= 15.0, "{quinn:?}");
    assert!(is_near(quinn.goodput, towpath.goodput, 0.1), "{quinn:?} {towpath:?}");
}
