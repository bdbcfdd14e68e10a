//! Receive windows: how they grow, shrink, are bounded, and what they promise.

use crate::harness::{MAC_A, config};
use crate::scene::{MSS, Scene, scene_in, scene_with};
use base::Duration;
use fastpath::Cause;
use flow::state;
use port::Capabilities;
use shm::half_flags::WANT_SPACE;
use std::sync::atomic::Ordering;

/// The handshake's window: a unit of the scale is kept in reserve for rounding up.
pub const PROMISED: u32 = 65_535 - 127;

fn scene() -> Scene {
    scene_with(|i| i.rcv_wnd = PROMISED as u16, Capabilities::plain(1500, MAC_A), config())
}

/// A peer that uses the whole window, a round trip of 2 ms after the other.
pub struct Bulk {
    pub seq: u32,
    pub edge: u32,
    pub unit: u32,
    pub echoes: bool,
    /// Data of one frame at most.
    pub burst: u32,
}

impl Bulk {
    pub fn new() -> Self {
        Self { seq: 0, edge: PROMISED, unit: 128, echoes: true, burst: MSS }
    }

    /// One round trip: the peer sends `most` at most; the application reads when `reads`.
    pub fn round(&mut self, s: &mut Scene, most: u32, reads: bool) {
        let end = self.edge.min(self.seq.saturating_add(most));
        if self.echoes {
            s.peer.ts = Some((1, s.now.as_ms() as u32));
        }
        s.now = s.now.plus(Duration::from_ms(2));
        let mut count = 0;
        while self.seq < end {
            count += 1;
            let n = (end - self.seq).min(self.burst);
            s.peer.data(self.seq, 0, &vec![0; n as usize]);
            self.seq += n;
            if count % 20 == 0 || self.seq == end {
                self.look(s);
                if reads {
                    s.recv();
                }
            }
        }
        self.look(s);
    }

    fn look(&mut self, s: &mut Scene) {
        for got in s.poll() {
            let edge = got.ack + u32::from(got.window) * self.unit;
            assert!(edge + self.unit > self.edge, "the right edge moved left by more than rounding");
            self.edge = self.edge.max(edge);
        }
    }
}

/// So many flows of the same application, on which nothing comes.
fn others(s: &mut Scene, count: u16) {
    let (local, remote) = crate::harness::endpoints(false);
    for n in 0..count {
        let local = wire::Endpoint::new(local.addr, 3000 + n);
        let what = crate::harness::install(local, remote, 10 + u32::from(n), crate::harness::MAC_B, 0, 0);
        s.host.open(s.now, &what);
    }
}

/// The window as the flow sizes it.
pub fn window(s: &Scene) -> u32 {
    1 << s.host.keeper.lock(s.id).parts().rx.window_log2
}

#[test]
fn a_window_doubles_while_it_is_what_limits_the_sender() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    bulk.round(&mut s, u32::MAX, true); // The first is measured from the start of the flow on.
    let mut before = window(&s);
    while before < 2 << 20 {
        (0..3).for_each(|_| bulk.round(&mut s, u32::MAX, true));
        assert!(window(&s) > before, "{before}");
        before = window(&s);
    }
    assert_eq!(s.drops(Cause::NoMemory), 0);
}

#[test]
fn a_window_stays_when_the_sender_does_not_use_it_or_the_application_does_not_read() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    (0..50).for_each(|_| bulk.round(&mut s, 20_000, true));
    assert_eq!(window(&s), 64 << 10);
    let (mut s, mut bulk) = (scene(), Bulk::new());
    (0..50).for_each(|_| bulk.round(&mut s, u32::MAX, false));
    assert_eq!((window(&s), s.drops(Cause::NoMemory)), (64 << 10, 0));
    assert!((PROMISED..=64 << 10).contains(&bulk.seq), "{}", bulk.seq);
}

#[test]
fn a_peer_without_timestamps_is_measured_by_the_handshakes_round_trip() {
    let change = |i: &mut flow::Install| {
        i.features = 0;
        i.rcv_wnd = PROMISED as u16;
        i.rtt = Some(Duration::from_ms(2));
    };
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.peer.ts = None;
    let mut bulk = Bulk { echoes: false, ..Bulk::new() };
    (0..20).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert!(window(&s) >= 512 << 10, "{}", window(&s));
}

#[test]
fn a_window_of_a_short_path_grows_no_further_than_any_rate_needs() {
    for (rtt_us, most) in [(900, 4 << 20), (1_000, 8 << 20)] {
        let change = |i: &mut flow::Install| {
            i.rcv_wnd = PROMISED as u16;
            i.rtt = Some(Duration::from_us(rtt_us));
        };
        let config = flow::Config { receive_buffer_max: 8 << 20, ..config() };
        let mut s = scene_in(32, change, Capabilities::plain(1500, MAC_A), config);
        let mut bulk = Bulk::new();
        (0..40).for_each(|_| bulk.round(&mut s, u32::MAX, true));
        assert_eq!(window(&s), most, "{rtt_us} us");
    }
}

/// Each could be as large as any rate needs; all together need no more, and would only make the round trips longer.
#[test]
fn windows_of_short_paths_come_to_no_more_than_any_rate_needs_together() {
    for (rtt_us, most) in [(900, 512 << 10), (3_000, 512 << 10), (20_000, 8 << 20)] {
        let change = |i: &mut flow::Install| {
            i.rcv_wnd = PROMISED as u16;
            i.rtt = Some(Duration::from_us(rtt_us));
        };
        let config = flow::Config { receive_buffer_max: 8 << 20, ..config() };
        let mut s = scene_in(64, change, Capabilities::plain(1500, MAC_A), config);
        others(&mut s, 40);
        assert!(s.host.region.grant(31 << 20, 0, u64::MAX));
        let mut bulk = Bulk::new();
        (0..40).for_each(|_| bulk.round(&mut s, u32::MAX, true));
        assert_eq!(window(&s), most, "{rtt_us} us");
    }
}

/// "... shrinking the window ... the total of RCV.NXT + RCV.WND" never gets smaller (RFC 9293 section 3.8.6), and what was promised
/// is stored.
#[test]
fn an_idle_flow_is_offered_the_initial_window_next_and_keeps_what_it_was_promised() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    (0..15).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert!(window(&s) >= 1 << 20 && s.host.region.granted() > 900_000);
    (0..40).for_each(|_| drop(s.after(Duration::from_ms(100))));
    assert_eq!((window(&s), s.host.region.granted()), (64 << 10, 0));
    assert_eq!(s.host.keeper.lock(s.id).parts().rx.rx_ring << 1, 0, "an idle flow owns no ring");
    // All that was promised comes at once, and nobody reads.
    let promised = bulk.edge - bulk.seq;
    assert!(promised > 900_000);
    bulk.round(&mut s, u32::MAX, false);
    assert_eq!((bulk.seq, s.drops(Cause::NoMemory)), (bulk.edge, 0));
    assert_eq!(s.recv().len() as u32, promised);
    bulk.look(&mut s);
    assert!(bulk.edge - bulk.seq <= 64 << 10, "the next offer is the initial window");
    assert!(bulk.edge > bulk.seq);
}

/// `SO_RCVBUF`.
#[test]
fn a_flows_own_limit_caps_its_window() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    s.host.keeper.lock(s.id).parts().cold.limit_receive(200_000, 7);
    (0..30).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert!((150_000..=200_000).contains(&(bulk.edge - bulk.seq)), "{}", bulk.edge - bulk.seq);
    // Below the initial window: what was promised is used up first.
    let (mut s, mut bulk) = (scene(), Bulk::new());
    s.host.keeper.lock(s.id).parts().cold.limit_receive(10_000, 7);
    (0..9).for_each(|_| bulk.round(&mut s, 8_000, true));
    assert!((4_000..=10_000).contains(&(bulk.edge - bulk.seq)), "{}", bulk.edge - bulk.seq);
}

#[test]
fn the_windows_of_an_application_together_never_exceed_its_memory() {
    let mut s = scene();
    others(&mut s, 20);
    // 8 MiB of memory, of which others have 6 beside the first windows of all.
    let mut bulk = Bulk::new();
    assert!(s.host.region.grant(6 << 20, 0, u64::MAX));
    (0..30).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert_eq!(window(&s), 512 << 10, "the others have the rest");
    s.host.region.ungrant(6 << 20);
    (0..10).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert!(window(&s) > 1 << 20);
    // A flow that goes gives its share back.
    assert!(s.host.keeper.remove(s.id));
    s.host.commands.push(flow::Command::Drop { flow: s.id }).unwrap();
    s.poll();
    assert_eq!(s.host.region.granted(), 0);
}

/// Where the peer's port segments, all that a small window takes comes as one frame, and is unread when it is looked at.
#[test]
fn a_window_that_was_small_for_want_of_memory_grows_again_though_one_frame_fills_it() {
    let capabilities = Capabilities::plain(1500, MAC_A).with_tso();
    let mut s = scene_with(|i| i.rcv_wnd = PROMISED as u16, capabilities, config());
    let mut bulk = Bulk { burst: 40_000, ..Bulk::new() };
    s.host.keeper.lock(s.id).parts().rx.window_log2 = 13;
    (0..40).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert!(window(&s) >= 64 << 10, "{}", window(&s));
}

/// Who came first has the memory only as long as nobody else wants it; what was promised is kept (RFC 9293 section 3.8.6), which
/// `Bulk::look` asserts.
#[test]
fn a_large_window_makes_room_for_flows_that_come_later() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    others(&mut s, 7);
    (0..40).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    let before = window(&s);
    assert_eq!(before, 4 << 20);
    // Of 8 MiB it has nearly 4. Now others have 3, and what is left is less than its window.
    assert!(s.host.region.grant(3 << 20, 0, u64::MAX));
    (0..40).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert_eq!(window(&s), before / 2);
    let ring = s.host.keeper.lock(s.id).parts().rx.ring().map(|ring| ring.size());
    assert!(ring.is_none_or(|size| size <= u64::from(before)), "{ring:?}");
    assert_eq!(s.drops(Cause::NoMemory), 0);
}

/// A share is everybody's, whatever those on longer paths hold, or those whose applications have stopped reading.
#[test]
fn a_window_grows_up_to_its_share_whatever_others_have() {
    let change = |i: &mut flow::Install| {
        i.rcv_wnd = PROMISED as u16;
        i.rtt = Some(Duration::from_us(900));
    };
    let mut s = scene_in(64, change, Capabilities::plain(1500, MAC_A), config());
    others(&mut s, 15);
    assert!(s.host.region.grant(50 << 20, 0, u64::MAX));
    let mut bulk = Bulk::new();
    (0..40).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert_eq!(window(&s), 2 << 20);
}

/// Where the application has stopped reading, what it has unread stays, and its window is for others.
#[test]
fn a_window_that_nobody_reads_shrinks_and_comes_back() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    (0..40).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    let before = window(&s);
    assert!(before >= 1 << 20);
    (0..3).for_each(|_| bulk.round(&mut s, u32::MAX, false));
    (0..60).for_each(|_| drop(s.after(Duration::from_ms(100))));
    assert_eq!((window(&s), s.host.region.granted()), (64 << 10, 0));
    assert!(s.recv().len() > 900_000, "what was promised was kept");
    (0..60).for_each(|_| bulk.round(&mut s, u32::MAX, true));
    assert_eq!((window(&s), s.drops(Cause::NoMemory)), (before, 0));
}

/// Does the service say that it has no space for more?
fn is_full(s: &Scene) -> bool {
    let (own, _) = s.host.region.halves(s.sock.slot).unwrap();
    own.flags.load(Ordering::Relaxed) & WANT_SPACE != 0
}

#[test]
fn a_window_grows_for_an_application_that_waits_for_more_than_it_holds() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    s.host.raise(&s.sock, shm::low_water_flags(200_000));
    for _ in 0..10 {
        bulk.round(&mut s, u32::MAX, false);
        assert!(!is_full(&s) || bulk.seq >= 200_000, "{}", bulk.seq);
    }
    assert!(bulk.seq >= 262_144 && is_full(&s), "{}", bulk.seq);
    assert_eq!(s.drops(Cause::NoMemory), 0);
    // Little is left: it is closed no more, nor does a pause make it so.
    s.host.recv(&mut s.sock, bulk.seq as usize - 3_000);
    s.poll();
    assert!(!is_full(&s));
    s.after(Duration::from_secs(1));
    assert!(!is_full(&s));
}

#[test]
fn an_application_that_waits_for_more_than_any_window_holds_is_told_when_it_is_full() {
    let config = flow::Config { receive_buffer_max: 64 << 10, ..config() };
    let mut s = scene_with(|i| i.rcv_wnd = PROMISED as u16, Capabilities::plain(1500, MAC_A), config);
    let mut bulk = Bulk::new();
    s.host.raise(&s.sock, shm::low_water_flags(200_000));
    bulk.round(&mut s, 40_000, false);
    assert!(!is_full(&s), "there is room for more than one segment");
    s.host.news();
    bulk.round(&mut s, u32::MAX, false);
    assert!(is_full(&s) && s.host.news() == [s.sock.slot]);
    assert_eq!(s.recv().len(), bulk.seq as usize);
    s.poll();
    assert!(!is_full(&s));
}

/// "... the receiver's ... avoid advancing the right window edge in small increments" (RFC 9293 section 3.8.6.2.2).
#[test]
fn small_reads_of_a_full_window_open_it_by_segments_not_by_bytes() {
    let (mut s, mut bulk) = (scene(), Bulk::new());
    (0..3).for_each(|_| bulk.round(&mut s, u32::MAX, false));
    assert_eq!(bulk.edge, bulk.seq);
    let mut updates = vec![];
    for _ in 0..200 {
        let got = s.host.recv(&mut s.sock, 100);
        assert_eq!(got.len(), 100);
        for got in s.poll() {
            updates.push(got.ack + u32::from(got.window) * 128);
        }
    }
    assert!((2..=14).contains(&updates.len()), "{updates:?}");
    assert!(updates.windows(2).all(|w| w[1] >= w[0] + MSS), "{updates:?}");
    assert_eq!(s.host.keeper.lock(s.id).parts().rx.flags & state::POISONED, 0);
}
