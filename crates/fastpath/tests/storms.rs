//! A full scoreboard: what was sent again is noted whatever room there is, so that nothing is sent again and again, and the timeout comes.

use crate::harness::{MAC_A, config};
use crate::peer::Got;
use crate::scene::{IRS, MSS, Scene, scene_in};
use base::{Duration, SeqNumber};
use congestion::{Algorithm, Window};
use flow::{Episode, Kind};
use port::Capabilities;
use std::collections::{BTreeMap, BTreeSet};

/// Segments that are lost, and that are reported behind them.
const LOST: u32 = 700;
/// Between two reports.
const STEP: Duration = Duration::from_us(300);

/// A flow with twice `LOST` segments in flight, numbered from 0 on.
fn in_flight(loss_records: u16) -> Scene {
    let config = flow::Config { loss_records, ..config() };
    let mut s = scene_in(16, |what| what.snd_wnd = 8 << 20, Capabilities::plain(1500, MAC_A), config);
    s.peer.window = u16::MAX;
    let bytes = vec![7; (2 * LOST * MSS) as usize];
    assert_eq!(s.host.send(&mut s.sock, &bytes, 4 << 20), bytes.len());
    // The flow has been idle: it begins with the initial window.
    s.poll();
    {
        let mut guard = s.host.keeper.lock(s.id);
        let f = guard.parts();
        // A window that a program has left is as large as what was in flight then.
        f.cold.window.give_to_program();
        f.cold.window.set_programmed(8 << 20);
        f.cold.window.take_from_program(s.now, 4 << 20, false);
        f.tx.cwnd = f.cold.window.cwnd();
    }
    s.peer.ack(0, 0);
    for _ in 0..4 * LOST {
        s.after(Duration::from_us(1));
    }
    assert_eq!(s.host.keeper.lock(s.id).parts().tx.in_flight() as usize, bytes.len());
    s
}

fn count(times: &mut BTreeMap<u32, u32>, got: &[Got]) {
    got.iter().for_each(|got| *times.entry(got.seq).or_default() += 1);
}

#[test]
fn a_hole_with_more_repairs_than_runs_is_repaired_once_and_the_timeout_comes() {
    for loss_records in [64, 0] {
        let mut s = in_flight(loss_records);
        let mut times = BTreeMap::new();
        for n in 1..=LOST {
            s.now = s.now.plus(STEP);
            s.reports(0, &[(LOST, LOST + n)]);
            let got = s.poll();
            let each: BTreeSet<_> = got.iter().map(|got| got.seq).collect();
            assert_eq!(each.len(), got.len(), "{loss_records}: a segment twice after one report");
            count(&mut times, &got);
        }
        // Without a record the times of repairs are not kept apart, so that one may be repeated after a later report.
        assert!(loss_records == 0 || times.len() > 100 && times.values().all(|n| *n == 1), "{times:?}");
        let before = times.clone();
        // Silence: the probes, and then a segment for each timeout.
        for _ in 0..20_000 {
            let timeouts = s.host.timeouts;
            let got = s.after(STEP);
            if s.host.timeouts > 1 && timeouts == s.host.timeouts {
                assert!(got.len() <= 1, "{loss_records}: {} segments", got.len());
            }
            count(&mut times, &got);
        }
        assert!(s.host.timeouts >= 3, "{loss_records}: {} timeouts", s.host.timeouts);
        let most = times.iter().map(|(seq, n)| n - before.get(seq).unwrap_or(&0)).max();
        assert!(most <= Some(s.host.timeouts + 5), "{loss_records}: {most:?} times");
    }
}

/// A report that finds no room counts as not heard: neither its bytes nor its times, which would be older each time that it is repeated.
#[test]
fn a_report_that_finds_no_room_is_no_news() {
    let mut s = in_flight(0);
    // What is late is not lost yet.
    s.host.keeper.lock(s.id).parts().cold.recovery.is_reordered = true;
    s.now = s.now.plus(STEP);
    let mut refused = 0;
    for n in 0..10 {
        let known = |s: &Scene| {
            let r = s.cold().recovery;
            (r.held, r.rack_at, r.rack_end, r.rack_rtt_us, r.reordering, r.reorderings)
        };
        let before = known(&s);
        s.reports(0, &[(20 * n + 10, 20 * n + 11)]);
        s.poll();
        let after = known(&s);
        if before.0 == after.0 {
            refused += 1;
            assert_eq!(before, after, "report {n}");
        }
    }
    assert!(refused > 3, "{refused} found no room");
}

/// "The loss window, LW, ... equals 1 full-sized segment" (RFC 5681 section 3.1 in short), also where no timeout changes the window itself.
#[test]
fn a_window_that_no_timeout_changes_lets_one_segment_go_for_each_until_the_peer_is_heard() {
    for is_program in [false, true] {
        let mut s = in_flight(64);
        {
            let mut guard = s.host.keeper.lock(s.id);
            let f = guard.parts();
            if is_program {
                f.cold.window.give_to_program();
                f.cold.window.set_programmed(4 << 20);
            } else {
                f.cold.window = Window::new(Algorithm::Constant(4 << 20), MSS as u16, s.now);
            }
            f.tx.cwnd = f.cold.window.cwnd();
        }
        let mut times = BTreeMap::new();
        while s.host.timeouts < 4 {
            count(&mut times, &s.after(STEP));
            if is_program {
                // A program decides whenever it runs, and an agent whenever it likes.
                s.host.keeper.lock(s.id).parts().decide(4 << 20, 0);
            }
        }
        assert_eq!(s.host.timeouts, 4);
        let sum: u32 = times.values().sum();
        assert!(sum <= 6, "{is_program}: {times:?}");
        s.reports(1, &[]);
        s.now = s.now.plus(STEP);
        let mut heard = s.poll().len();
        if is_program {
            s.host.keeper.lock(s.id).parts().decide(4 << 20, 0);
        }
        heard += (0..50).map(|_| s.after(Duration::from_us(1)).len()).sum::<usize>();
        assert!(heard > 100, "{is_program}: {heard}");
    }
}

/// A report that everything came twice undoes an episode (RFC 4015). If each did, each segment of the peer would turn all that is lost to
/// unknown and back.
#[test]
fn reports_that_everything_came_twice_undo_one_episode_for_what_is_in_flight() {
    let mut s = in_flight(64);
    let comb: Vec<_> = (0..200).map(|n| (3 * n + 1, 3 * n + 2)).collect();
    for teeth in comb.chunks(3) {
        s.reports(0, teeth);
        s.now = s.now.plus(STEP);
        s.poll();
    }
    let mut most = 0;
    for _ in 0..100 {
        // A first block that is a part of the second reports a duplicate.
        s.reports(0, &[(0, 600), (0, 601)]);
        s.now = s.now.plus(STEP);
        most = most.max(s.poll().len());
    }
    let counters = s.host.core.counters();
    assert_eq!((counters.duplicates_reported, counters.undone), (100, 1));
    // It is believed again of what was not in flight then.
    s.reports(2 * LOST, &[]);
    s.poll();
    s.send(&[7; 10 * MSS as usize]);
    let una = 2 * LOST;
    for block in [(una + 4, una + 10), (una + 3, una + 10)] {
        s.reports(una, &[block]);
        s.now = s.now.plus(STEP);
        s.poll();
    }
    s.reports(una, &[(una, una + 10), (una, una + 10)]);
    s.poll();
    assert_eq!(s.host.core.counters().undone, 2);
}

/// Send times are microseconds modulo 2^32 and come back after 71 minutes; those of the last loss must not lie ahead of those of the next.
#[test]
fn a_loss_long_after_another_is_repaired_once_and_the_timeout_comes() {
    for minutes in [20, 36, 40, 60, 71, 75, 110, 125] {
        let mut s = in_flight(64);
        s.reports(0, &[(1, 2 * LOST)]);
        s.now = s.now.plus(STEP);
        s.poll();
        s.now = s.now.plus(STEP);
        s.reports(2 * LOST, &[]);
        s.poll();
        assert_eq!(s.cold().recovery.episode, Episode::None);
        s.now = s.now.plus(Duration::from_secs(60 * minutes));
        let bytes = vec![7; (100 * MSS) as usize];
        assert_eq!(s.host.send(&mut s.sock, &bytes, 4 << 20), bytes.len());
        for _ in 0..100 {
            s.after(Duration::from_us(1));
        }
        let una = 2 * LOST;
        assert!(s.host.keeper.lock(s.id).parts().tx.in_flight() >= 6 * MSS);
        s.now = s.now.plus(STEP);
        s.reports(una, &[(una + 4, una + 6)]);
        let mut times = BTreeMap::new();
        count(&mut times, &s.poll());
        for _ in 0..2_000 {
            count(&mut times, &s.after(STEP));
        }
        let most = times.values().max();
        assert!(s.host.timeouts >= 1 && most <= Some(&(s.host.timeouts + 5)), "{minutes}: {times:?}");
    }
}

/// RFC 2018 section 3: a block reports data that was received. One whose edges lie half of the number space apart compares as one within any
/// window, edge by edge.
#[test]
fn a_report_that_goes_round_half_of_the_number_space_is_no_report() {
    let mut s = in_flight(64);
    let una = SeqNumber(IRS);
    let (left, right) = (una.plus(0x7A00_0000), una.minus(0x3000_0000));
    assert!(una.is_before(left) && left.is_before(right) && right.is_before(una.plus(2 * LOST * MSS)));
    s.peer.sack = vec![(left.since(una), right.since(una))];
    s.peer.ack(0, 0);
    s.poll();
    assert_eq!(s.cold().recovery.held, 0);
    s.reports(0, &[(3, 5)]);
    s.poll();
    let runs = s.cold().recovery.runs;
    let held: Vec<_> = runs.iter().filter(|run| run.kind == Kind::Held && run.left != run.right).collect();
    assert_eq!((held.len(), s.cold().recovery.held), (usize::from(s.cold().loss_record == 0), 2 * MSS));
}
