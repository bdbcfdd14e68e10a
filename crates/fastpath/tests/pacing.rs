//! The pacer: what goes at once, and what has its time.

use crate::harness::{MAC_A, config};
use crate::scene::scene_with;
use base::Duration;
use port::Capabilities;

/// Pacing in the window's decision: what a lone message may send at once, and the rate after it.
#[test]
fn a_paced_flow_sends_a_burst_at_once_and_then_keeps_its_rate() {
    // Without a round-trip time nothing but the pacer has a time.
    let change = |i: &mut flow::Install| {
        i.pace_rate = 1_448_000;
        i.rtt = None;
        i.window =
            congestion::Window::new(congestion::Algorithm::Constant(1 << 20), 1448, base::Instant::ZERO);
        i.snd_wnd = 1 << 20;
    };
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    let total = 46 + 10;
    let mut sent = 0;
    assert_eq!(s.host.send(&mut s.sock, &vec![1; total * 1448], 128 << 10), total * 1448);
    let start = s.now;
    let mut first = 0;
    while sent < total {
        loop {
            let got = s.poll().len();
            sent += got;
            if got == 0 {
                break;
            }
        }
        first = if first == 0 { sent } else { first };
        let deadline = s.host.poll(s.now, &mut s.port).deadline;
        if sent < total {
            assert!(deadline > s.now.plus(Duration::from_us(1)), "it sleeps in between");
            s.now = deadline;
        }
    }
    // 64 KiB, the bucket overdrawn by a segment; then one segment per millisecond.
    assert_eq!(first, 46);
    let took = s.now.since(start).as_us();
    assert!((9_000..10_500).contains(&took), "{took}");
    // After a pause a lone message goes at once again.
    s.peer.ack(0, total as u32 * 1448);
    s.poll();
    s.after(Duration::from_ms(100));
    assert_eq!(s.host.send(&mut s.sock, &[2; 14_480], 128 << 10), 14_480);
    assert_eq!(s.poll().len(), 10);
}

/// As above, with an application that limits the rate: less goes at once, and congestion control may only slow it further.
#[test]
fn an_application_may_limit_the_rate_of_a_flow() {
    let change = |i: &mut flow::Install| {
        i.rtt = None;
        i.window =
            congestion::Window::new(congestion::Algorithm::Constant(1 << 20), 1448, base::Instant::ZERO);
        i.snd_wnd = 1 << 20;
    };
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.host.keeper.lock(s.id).parts().cold.limit_pace(1_448_000);
    let total = 11 + 20;
    assert_eq!(s.host.send(&mut s.sock, &vec![1; total * 1448], 128 << 10), total * 1448);
    let (start, mut sent) = (s.now, s.poll().len());
    assert_eq!(sent, 11, "ten segments, the bucket overdrawn by one");
    while sent < total {
        s.now = s.host.poll(s.now, &mut s.port).deadline.min(s.now.plus(Duration::from_ms(1)));
        sent += s.poll().len();
        // Acknowledgements leave the limit alone.
        s.peer.ack(0, sent as u32 * 1448);
    }
    let took = s.now.since(start).as_us();
    assert!((19_000..20_500).contains(&took), "{took}");
    let mut guard = s.host.keeper.lock(s.id);
    let cold = guard.parts().cold;
    assert_eq!(cold.pace_rate, 1_448_000);
    cold.set_pace(1_000);
    assert_eq!(cold.pace_rate, 1_000);
    cold.limit_pace(0);
    assert_eq!(cold.pace_rate, 0);
}

/// A rate that congestion control decides: the initial window goes at once, as long as no rate is known and after a pause, then pairs of
/// segments at the rate.
#[test]
fn a_rate_that_is_decided_is_kept_and_a_lone_request_waits_for_nothing() {
    // 1448 kB per second: a segment per millisecond.
    let change = |i: &mut flow::Install| {
        i.window = congestion::Window::new(congestion::Algorithm::Rate(11_584), 1448, base::Instant::ZERO);
        i.snd_wnd = 1 << 20;
    };
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    assert_eq!(s.host.send(&mut s.sock, &[1; 1448], 128 << 10), 1448);
    assert_eq!(s.poll().len(), 1);
    s.after(Duration::from_ms(2));
    s.peer.ack(0, 1448);
    s.poll();
    s.after(Duration::from_ms(30));
    let total = 10 + 2 + 20;
    assert_eq!(s.host.send(&mut s.sock, &vec![1; total * 1448], 128 << 10), total * 1448);
    let (start, mut sent) = (s.now, s.poll().len());
    assert!((10..=12).contains(&sent), "{sent}: the initial window and a pair");
    let mut most = 0;
    while sent < total {
        s.now = s.host.poll(s.now, &mut s.port).deadline.min(s.now.plus(Duration::from_ms(1)));
        let now = s.poll().len();
        (sent, most) = (sent + now, most.max(now));
        s.peer.ack(0, (1 + sent) as u32 * 1448);
    }
    let took = s.now.since(start).as_us();
    assert!((17_000..21_500).contains(&took), "{took}");
    assert!(most <= 3, "{most}: pairs, and the rest of one where an acknowledgement comes in between");
    s.poll();
    s.after(Duration::from_ms(30));
    for _ in 0..10 {
        // Small requests, one after the other, on the way of header prediction: none of them waits.
        assert_eq!(s.host.send(&mut s.sock, &[2; 1000], 128 << 10), 1000);
        assert_eq!(s.poll().len(), 1);
    }
}
