//! The windows of bulk flows while other applications receive in bulk, too.

use crate::harness::{MAC_A, config};
use crate::scene::{Scene, scene_with};
use crate::windows::{Bulk, PROMISED, window};
use base::Duration;
use fastpath::Cause;
use flow::{BulkFlows, Receivers};
use port::Capabilities;

/// Bytes of a first window, and of the least one.
const FIRST: u32 = 64 << 10;
const LEAST: u32 = 16 << 10;

fn scene() -> Scene {
    scene_with(|i| i.rcv_wnd = PROMISED as u16, Capabilities::plain(1500, MAC_A), config())
}

fn receivers(s: &Scene) -> Receivers {
    s.host.keeper.flows().receivers().clone()
}

/// Counts in more bulk flows of the same application than its share has least windows.
fn crowd(s: &Scene) {
    (0..1024).for_each(|_| s.host.region.bulk().add(4096, &receivers(s)));
}

/// Another application receives in bulk.
fn rival(s: &Scene) -> BulkFlows {
    let rival = BulkFlows::default();
    rival.add(4 << 20, &receivers(s));
    rival
}

fn rounds(s: &mut Scene, bulk: &mut Bulk, count: usize) {
    (0..count).for_each(|_| bulk.round(s, u32::MAX, true));
}

/// `Bulk::look` asserts that the right edge never moves left (RFC 9293 section 3.8.6).
#[test]
fn one_of_a_thousand_bulk_flows_has_the_least_window_beside_another_application_and_all_without_it() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    crowd(&s);
    rounds(&mut s, &mut bulk, 20);
    let alone = window(&s);
    assert!(alone >= 1 << 20, "the windows of a single application are not touched: {alone}");
    let rival = rival(&s);
    rounds(&mut s, &mut bulk, 40);
    assert_eq!(window(&s), LEAST);
    let before = bulk.seq;
    rounds(&mut s, &mut bulk, 10);
    assert!(bulk.seq - before >= 10 * LEAST / 2, "half of it comes in each round trip at least");
    assert!(bulk.edge - bulk.seq >= LEAST / 2, "and the next half is offered");
    rival.remove(4 << 20, &receivers(&s));
    rounds(&mut s, &mut bulk, 60);
    assert!(window(&s) >= alone, "{}", window(&s));
    assert_eq!(s.drops(Cause::NoMemory), 0);
}

/// A sender waits with a segment that the window does not hold, until its persist timer fires.
#[test]
fn the_least_window_holds_two_segments_of_any_size() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    s.host.keeper.lock(s.id).parts().cold.rcv_mss = 8948;
    crowd(&s);
    let _rival = rival(&s);
    rounds(&mut s, &mut bulk, 60);
    assert_eq!(window(&s), 32 << 10);
    assert!(bulk.edge - bulk.seq >= 2 * 8948);
}

#[test]
fn a_flow_of_requests_keeps_its_first_window_beside_bulk_flows() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    crowd(&s);
    let _rival = rival(&s);
    for _ in 0..50 {
        bulk.round(&mut s, 60_000, true);
        s.after(Duration::from_ms(30));
        assert!(window(&s) >= FIRST, "{}", window(&s));
    }
}

#[test]
fn a_bulk_flow_that_pauses_is_offered_a_first_window_again_and_counts_no_more() {
    for (pause_ms, sends) in [(400, true), (3_000, false)] {
        let (mut s, mut bulk) = (scene(), Bulk::new());
        crowd(&s);
        let others = s.host.region.bulk().windows();
        let _rival = rival(&s);
        rounds(&mut s, &mut bulk, 40);
        assert_eq!((window(&s), s.host.region.bulk().windows()), (LEAST, others + u64::from(LEAST)));
        for _ in 0..pause_ms / 100 {
            s.after(Duration::from_ms(100));
        }
        if sends {
            // A small request.
            bulk.round(&mut s, 100, true);
        }
        assert_eq!((window(&s), s.host.region.bulk().windows()), (FIRST, others), "{pause_ms} ms");
    }
}

#[test]
fn a_bulk_flow_that_ends_counts_no_more() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    rounds(&mut s, &mut bulk, 20);
    let _rival = rival(&s);
    assert!(receivers(&s).are_several());
    assert!(s.host.keeper.remove(s.id));
    s.host.commands.push(flow::Command::Drop { flow: s.id }).unwrap();
    s.poll();
    assert!(!receivers(&s).are_several() && s.host.region.bulk().windows() == 0);
}
