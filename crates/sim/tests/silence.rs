//! A peer falls silent after it has said much: the host tries to reach it by its timers only, a segment at a time.

use base::{Duration, Seed};
use congestion::Algorithm;
use sim::silence::{Bulk, Saying, Silence, Terms, run};
use std::collections::BTreeMap;

/// Segments of the hole.
const LOST: u32 = 700;
/// Time between two reports.
const STEP: Duration = Duration::from_us(300);

const TERMS: Terms =
    Terms { mss: 400, sack: true, timestamps: false, loss_records: 512, algorithm: Algorithm::Cubic };

/// Segments of several sizes, a full pool and an empty one. A send ring of the simulator holds 2,100 segments of 400 bytes.
fn all() -> impl Iterator<Item = Terms> {
    let sizes = [400, 48];
    sizes.into_iter().flat_map(|mss| [512, 0].map(|loss_records| Terms { mss, loss_records, ..TERMS }))
}

/// Bytes of `n` segments.
fn of(terms: &Terms, n: u32) -> u32 {
    n * u32::from(terms.mss)
}

/// A connection with so many segments in flight.
fn in_flight(terms: &Terms, segments: u32) -> Bulk {
    let mut bulk = Bulk::open(terms).unwrap();
    bulk.fill(of(terms, segments)).unwrap();
    bulk
}

/// A report of the ranges between these segments.
fn reports(terms: &Terms, blocks: [(u32, u32); 3]) -> Saying {
    Saying { blocks: blocks.map(|(from, to)| (of(terms, from), of(terms, to))), ..Saying::default() }
}

/// A hole of `LOST` segments, and one growing report for each segment behind it.
fn report_a_hole(bulk: &mut Bulk, terms: &Terms) {
    for n in 1..=LOST {
        bulk.say(&reports(terms, [(LOST, LOST + n), (0, 0), (0, 0)])).unwrap();
        bulk.pass(STEP).unwrap();
    }
}

/// Reports every second segment of the first `segments`, so that there are more holes than a scoreboard has runs.
fn report_a_comb(bulk: &mut Bulk, terms: &Terms, segments: u32) {
    for n in (1..segments).step_by(6) {
        bulk.say(&reports(terms, [n, n + 2, n + 4].map(|n| (n, n + 1)))).unwrap();
        bulk.pass(STEP).unwrap();
    }
}

/// How often each byte came that came more than once.
fn most_repeated(bulk: &mut Bulk) -> u32 {
    let mut times = BTreeMap::new();
    bulk.take().iter().for_each(|got| *times.entry(got.from).or_insert(0) += 1);
    times.into_values().max().unwrap_or(0)
}

fn is_bounded(silence: &Silence) -> bool {
    silence.timeouts >= 3 && silence.after > 0
}

#[test]
fn a_hole_of_hundreds_of_segments_is_repaired_once_and_then_a_segment_for_each_timeout() {
    for terms in all() {
        let mut bulk = in_flight(&terms, 3 * LOST);
        bulk.take();
        report_a_hole(&mut bulk, &terms);
        assert!(most_repeated(&mut bulk) <= 2, "{terms:?}");
        let silence = bulk.be_silent(Duration::from_secs(10)).unwrap();
        assert!(is_bounded(&silence), "{terms:?} {silence:?}");
        let counters = bulk.counters();
        assert!(counters.runs_joined > 0, "{terms:?}: the repair has more runs than there is room for");
        bulk.end().unwrap();
    }
}

#[test]
fn after_a_timeout_one_segment_goes_however_full_the_scoreboard_is() {
    for terms in all() {
        let mut bulk = in_flight(&terms, 2000);
        report_a_comb(&mut bulk, &terms, 1800);
        let silence = bulk.be_silent(Duration::from_secs(10)).unwrap();
        assert!(is_bounded(&silence), "{terms:?} {silence:?}");
        bulk.end().unwrap();
    }
}

#[test]
fn a_killed_applications_flow_ends_though_its_peer_stays_silent_behind_a_hole() {
    for terms in all() {
        let mut bulk = in_flight(&terms, 3 * LOST);
        report_a_hole(&mut bulk, &terms);
        let silence = bulk.end().unwrap();
        assert!(is_bounded(&silence), "{terms:?} {silence:?}");
    }
}

/// The peer takes back what it has reported (RFC 2018 section 8), again and again.
#[test]
fn a_peer_that_forgets_its_reports_is_sent_everything_once_for_each_time() {
    for terms in all() {
        let mut bulk = in_flight(&terms, 1000);
        for _ in 0..20 {
            bulk.take();
            bulk.say(&reports(&terms, [(1, 200), (201, 400), (401, 600)])).unwrap();
            // It acknowledges up to the first range, and not the range.
            bulk.say(&Saying { ack: of(&terms, 1), ..Saying::default() }).unwrap();
            assert!(most_repeated(&mut bulk) <= 2, "{terms:?}");
            bulk.pass(STEP).unwrap();
        }
        let silence = bulk.be_silent(Duration::from_secs(10)).unwrap();
        assert!(is_bounded(&silence), "{terms:?} {silence:?}");
        bulk.end().unwrap();
    }
}

/// F-RTO (RFC 5682) and undo: the timeout was needless, and the next one comes into a scoreboard that is full again.
#[test]
fn a_needless_timeout_is_undone_and_the_next_silence_ends_as_any_other() {
    for terms in all() {
        let mut bulk = in_flight(&terms, 2000);
        report_a_comb(&mut bulk, &terms, 1800);
        bulk.be_silent(Duration::from_ms(700)).unwrap();
        let late =
            Saying { ack: of(&terms, 10), duplicate: of(&terms, 1), is_early: true, ..Saying::default() };
        bulk.say(&late).unwrap();
        report_a_comb(&mut bulk, &terms, 1000);
        let silence = bulk.be_silent(Duration::from_secs(10)).unwrap();
        assert!(is_bounded(&silence), "{terms:?} {silence:?}");
        bulk.end().unwrap();
    }
}

/// The body of the fuzz target `silent_peer`, with random bytes.
#[test]
fn whatever_a_peer_has_said_its_silence_is_met_by_timers_only() {
    let number = |name, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (first, count): (u64, u64) = (number("SEED", 0), number("SEEDS", 400));
    let mut timeouts = 0;
    for seed in first..first + count {
        let mut random = Seed::new(seed);
        let len = 8 + random.below(200);
        let bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        match run(&bytes) {
            Ok(silence) => timeouts += silence.timeouts,
            Err(what) => {
                panic!("{what}\nreplay: SEED={seed} SEEDS=1 cargo test -p towpath-sim --test all silence::")
            }
        }
    }
    assert!(timeouts > count, "silence was reached");
}
