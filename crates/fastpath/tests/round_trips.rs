//! Round-trip times where segments are missing or late, and the windows that depend on them.

use crate::harness::{MAC_A, config};
use crate::scene::{MSS, Scene, scene_with};
use base::Duration;
use flow::state;
use port::Capabilities;

const BOTH: u32 = state::SACK | state::TIMESTAMPS;

fn us(us: u64) -> Duration {
    Duration::from_us(us)
}

/// The handshake took 8 ms.
fn scene(features: u32) -> Scene {
    let change = |i: &mut flow::Install| (i.rtt, i.features) = (Some(us(8_000)), features);
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.peer.ts = (features & state::TIMESTAMPS != 0).then_some((1, 0));
    s
}

impl Scene {
    /// Segments once overtook each other by more than half a round trip: RACK waits for late ones.
    fn is_reordered(&mut self, places: u16) {
        let mut record = self.host.keeper.lock(self.id);
        let recovery = &mut record.parts().cold.recovery;
        (recovery.is_reordered, recovery.reordering, recovery.reo_mult) = (true, places, 4);
        recovery.reo_persist = 16;
    }
    /// The peer acknowledges `ack` segments and reports `blocks`, `us` microseconds later.
    fn hears(&mut self, after: u64, ack: u32, blocks: &[(u32, u32)]) {
        self.now = self.now.plus(us(after));
        self.reports(ack, blocks);
        self.poll();
    }
    /// A flow of which one round trip of 8 ms is measured, with `n` segments in flight, numbered from 1 on.
    fn with_in_flight(mut self, n: usize) -> Self {
        self.peer.ack(0, 0);
        assert_eq!(self.send(&[7; MSS as usize]).len(), 1);
        self.hears(8_000, 1, &[]);
        assert_eq!(self.cold().srtt_us, 8_000);
        assert_eq!(self.send(&vec![7; n * MSS as usize]).len(), n);
        self
    }
}

/// What is reported has arrived now, whatever is missing before it; what is acknowledged together with it later has not. The smoothed
/// time is that of the oldest, the least that of the newest.
#[test]
fn what_is_reported_is_timed_and_what_waited_for_a_late_segment_is_not() {
    let mut s = scene(BOTH).with_in_flight(1);
    s.is_reordered(9);
    s.now = s.now.plus(us(2_000));
    s.send(&[7; 2 * MSS as usize]);
    s.hears(6_000, 1, &[(2, 4)]);
    let cold = s.cold();
    assert_eq!((cold.srtt_us, cold.rtt_us_min), (8_000 - 8_000 / 8 + 6_000 / 8, 6_000));
    s.hears(4_000, 4, &[]);
    let expected = cold.srtt_us - cold.srtt_us / 8 + 12_000 / 8;
    assert_eq!(s.cold().srtt_us, expected, "segment 1 took 12 ms; 3, that was being timed, did not");
    assert_eq!((s.cold().rtt_us_min, s.cold().counters.retransmits), (6_000, 0));
}

/// Karn's rule, where a repetition is acknowledged together with what was sent once and waited for it.
#[test]
fn nothing_is_timed_by_an_acknowledgement_that_covers_a_repetition() {
    let mut s = scene(state::SACK).with_in_flight(6);
    s.hears(8_000, 1, &[(2, 5)]);
    let before = (s.cold().srtt_us, s.cold().rttvar_us, s.cold().rtt_us_min);
    assert_eq!(s.cold().counters.retransmits, 1);
    s.hears(9_000, 7, &[]);
    assert_eq!((s.cold().srtt_us, s.cold().rttvar_us, s.cold().rtt_us_min), before);
}

/// The same without SACK: duplicates say that segments have arrived, not which. With timestamps the echo tells when the segment was
/// sent that filled the gap: "RTTM ... is computed as ... the current time minus TSecr" (RFC 7323 section 4.1 in short).
#[test]
fn without_reports_a_timestamp_times_what_filled_the_gap() {
    let mut s = scene(state::TIMESTAMPS).with_in_flight(2);
    let stamp = s.cold().timestamp(s.now);
    s.hears(8_000, 1, &[]);
    s.hears(12_000, 1, &[]);
    s.peer.ts = Some((2, stamp + 4));
    let before = s.cold().srtt_us;
    s.hears(0, 3, &[]);
    assert_eq!(s.cold().srtt_us, before - before / 8 + 16_000 / 8, "not the 20 ms since they were sent");
}

/// Where segments are known to overtake each other the window grows by what is reported, too, as Linux's: else a flow with holes all the
/// time would never grow. Where that is not known a hole is a loss, and "limited transmit" only.
#[test]
fn with_reordering_known_the_window_grows_by_reports() {
    for (places, grown) in [(3, 0), (9, 2)] {
        let mut s = scene(BOTH);
        s.is_reordered(places);
        let mut s = s.with_in_flight(10);
        s.send(&vec![7; 20 * MSS as usize]);
        let before = s.cwnd();
        s.hears(8_000, 1, &[(2, 4)]);
        assert_eq!((s.cwnd() - before, s.cold().counters.retransmits), (grown, 0), "{places} places");
    }
}

/// A window that the peer's keeps from being used does not grow beyond twice what was used (RFC 9438 section 5.8; RFC 7661), though
/// it was full at first.
#[test]
fn a_window_behind_the_peers_does_not_grow() {
    let mut s = scene(BOTH);
    s.peer.window = 192; // 24 KiB.
    let mut s = s.with_in_flight(10);
    s.send(&vec![7; 30 * MSS as usize]);
    let room = 24 * 1024 / MSS;
    let mut ack = 1;
    for _ in 0..30 {
        ack += 2;
        s.hears(4_000, ack, &[]);
        s.send(&[7; 2 * MSS as usize]);
    }
    assert!(s.cwnd() <= 2 * room + 2, "{} of {room}", s.cwnd());
}

/// What waits for a distant time costs no turn before it: with tens of thousands of flows in flight, turns in between were most of the work.
#[test]
fn a_flow_that_waits_for_long_is_left_alone() {
    let change = |i: &mut flow::Install| (i.rtt, i.features) = (Some(us(100_000)), BOTH);
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    assert_eq!(s.send(&[7; 100]).len(), 1);
    // "PTO = 2 * SRTT" and the peer's time: nothing is due before.
    let due = s.now.plus(us(202_000));
    let mut turns = 0;
    while s.now < due {
        let deadline = s.host.poll(s.now, &mut s.port).deadline;
        assert!(s.now < deadline, "no busy waiting");
        s.now = deadline;
        turns += 1;
    }
    assert!(turns <= 3, "{turns} turns");
}
