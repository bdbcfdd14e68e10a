//! Timers of flows: retransmission with backoff, window probes, keepalive, giving up.

use crate::harness::*;
use base::{Duration, SeqNumber};
use flow::{Exception, FlowId, state};
use shm::half_flags;
use slowpath::{Count, Event, FlowOptions, How, Keepalive, errno};

/// The core has sent `bytes` and no timer ran.
fn sends(w: &mut World, flow: FlowId, bytes: u32) {
    let now = w.now;
    w.edit(flow, |parts| {
        parts.tx.snd_nxt = parts.tx.snd_nxt.plus(bytes);
        parts.tx.snd_max = parts.tx.snd_nxt;
        parts.cold.progress_at = now;
        parts.rx.set(state::TIMER_ARMED);
    });
    w.exception(Exception::Active { flow });
}

/// Times, in milliseconds from now, at which `wanted` was ordered, until `end`.
fn orders(w: &mut World, end: Duration, wanted: &Order) -> Vec<u64> {
    let start = w.now;
    let mut times = Vec::new();
    while w.now.since(start) < end {
        w.peer_is_there();
        w.pass(ms(10));
        while let Some(order) = w.orders.pop_front() {
            if order == *wanted {
                times.push(w.now.since(start).as_ms() / 10 * 10);
            }
        }
    }
    times
}

/// "restart the retransmission timer so that it will expire after RTO seconds" (RFC 6298 section 5.3): also one that waits for
/// the end of a backed-off timeout.
#[test]
fn an_answer_after_timeouts_takes_back_the_timer_that_was_backed_off() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| parts.cold.rto = ms(300));
    sends(&mut w, flow, 1000);
    assert_eq!(orders(&mut w, ms(2200), &Order::Transmit(flow)), [300, 900, 2100]);
    w.edit(flow, |parts| {
        parts.tx.snd_nxt = parts.tx.snd_max;
        parts.tx.snd_una = parts.tx.snd_max;
        parts.cold.backoff = 0;
    });
    sends(&mut w, flow, 1000);
    assert_eq!(orders(&mut w, ms(1000), &Order::Transmit(flow)), [300, 900]);
}

#[test]
fn what_is_acknowledged_in_time_is_left_alone() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    sends(&mut w, flow, 1000);
    let now = w.now;
    w.edit(flow, |parts| {
        parts.tx.snd_una = parts.tx.snd_max;
        parts.cold.progress_at = now;
    });
    w.pass(secs(5));
    assert!(w.orders.is_empty());
    assert!(!w.edit(flow, |parts| parts.rx.has(state::TIMER_ARMED)), "idle flows have no timer");
}

#[test]
fn retransmission_backs_off_and_gives_up() {
    let mut w = World::with(|config, _| config.retries = 5);
    let (flow, owner, una) = w.accepted(9);
    w.edit(flow, |parts| parts.cold.rto = ms(300));
    sends(&mut w, flow, 1000);
    let times = orders(&mut w, secs(30), &Order::Transmit(flow));
    assert_eq!(times, [300, 900, 2100, 4500, 9300]);
    assert!(matches!(w.event(), Event::Closed { how: How::TimedOut(errno::ETIMEDOUT), .. }));
    assert_eq!(w.errno(owner), u32::from(errno::ETIMEDOUT));
    assert_ne!(w.flags(owner) & half_flags::RESET, 0);
    w.edit(flow, |parts| {
        // The core takes note when it has heard what waits.
        assert_eq!((parts.tx.snd_nxt, parts.tx.snd_max), (SeqNumber(una), SeqNumber(una + 1000)));
        assert_ne!(parts.cold.recovery.expired_at, base::Instant::ZERO);
        assert_eq!(parts.cold.counters.timeouts, 6);
    });
}

#[test]
fn progress_resets_the_backoff() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| parts.cold.rto = ms(300));
    sends(&mut w, flow, 3000);
    assert_eq!(orders(&mut w, ms(1000), &Order::Transmit(flow)), [300, 900]);
    let now = w.now;
    w.edit(flow, |parts| {
        parts.tx.snd_una = parts.tx.snd_una.plus(1000);
        parts.cold.progress_at = now;
    });
    // The timer runs until the backed-off time, finds progress, and counts from there.
    let times = orders(&mut w, ms(3000), &Order::Transmit(flow));
    assert!(times[0] <= 1200 && times.len() >= 2, "{times:?}");
    assert!(w.edit(flow, |parts| parts.cold.backoff) <= 3);
}

#[test]
fn a_closed_window_is_probed_for_ever_while_the_peer_answers() {
    let mut w = World::with(|config, shared| {
        config.retries = 3;
        shared.rto_max = secs(2);
    });
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| {
        parts.cold.rto = ms(500);
        parts.tx.snd_wnd = 0;
        parts.rx.set(state::BLOCKED);
    });
    sends(&mut w, flow, 0);
    let mut probes = 0;
    for _ in 0..600 {
        w.pass(ms(100));
        let now = w.now;
        if w.orders.pop_front() == Some(Order::Probe(flow)) {
            probes += 1;
            w.pass(ms(1));
            w.edit(flow, |parts| parts.cold.heard_at = now.plus(ms(1)));
        }
    }
    assert!((25..40).contains(&probes), "{probes}");
    assert!(w.slow.poll_event().is_none());
    // Then it falls silent.
    w.pass(secs(60));
    assert!(matches!(w.event(), Event::Closed { how: How::TimedOut(_), .. }));
}

#[test]
fn keepalive_probes_and_gives_up() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    let keepalive = Keepalive { idle: secs(10), interval: secs(2), count: 3 };
    let options = slowpath::FlowOptions { keepalive: Some(keepalive), ..slowpath::FlowOptions::default() };
    w.slow.set_options(w.now, flow, &options);
    let now = w.now;
    w.edit(flow, |parts| parts.cold.heard_at = now.plus(secs(4)));
    let times = orders(&mut w, secs(30), &Order::Probe(flow));
    assert_eq!(times, [14_000, 16_000, 18_000]);
    assert!(matches!(w.event(), Event::Closed { how: How::TimedOut(errno::ETIMEDOUT), .. }));
    assert_eq!(w.count(Count::KeepaliveProbes), 3);
}

/// As Linux, `tcp_retries2` is a time, that of so many timeouts on a path of no length: a long path is given up no later. "R1 and R2
/// may be measured in time units or as a count of retransmissions" (RFC 9293 section 3.8.3).
#[test]
fn a_long_path_is_given_up_after_the_same_time() {
    for (rto, times) in [(200, vec![200, 600, 1400, 3000]), (2000, vec![2000])] {
        let mut w = World::with(|config, _| config.retries = 3);
        let (flow, _, _) = w.accepted(9);
        w.edit(flow, |parts| parts.cold.rto = ms(rto));
        sends(&mut w, flow, 1);
        assert_eq!(orders(&mut w, secs(20), &Order::Transmit(flow)), times);
        assert!(matches!(w.event(), Event::Closed { how: How::TimedOut(_), .. }));
    }
}

#[test]
fn orphans_are_given_up_sooner() {
    let mut w = World::with(|config, _| config.orphan_retries = 2);
    let (flow, owner, _) = w.accepted(9);
    w.edit(flow, |parts| {
        parts.cold.rto = ms(200);
        parts.rx.set(state::FIN_QUEUED | state::FIN_SENT);
    });
    sends(&mut w, flow, 1);
    w.exception(Exception::AppClosed { flow });
    assert_eq!(orders(&mut w, secs(5), &Order::Transmit(flow)), [200, 600, 1400]);
    assert!(matches!(w.event(), Event::Closed { how: How::TimedOut(_), .. }));
    assert_eq!(w.flags(owner), half_flags::OPEN, "nobody is there to be told");
}

/// The service was stopped for a minute: nothing that a timer would have found out in that time is known.
fn stop(w: &mut World) {
    w.now = w.now.plus(secs(60));
    w.slow.handle_timers(w.now);
    w.settle();
}

#[test]
fn keepalive_is_not_fooled_by_a_stop_of_the_service() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    let keepalive = Keepalive { idle: secs(10), interval: secs(1), count: 1 };
    w.slow.set_options(w.now, flow, &FlowOptions { keepalive: Some(keepalive), ..FlowOptions::default() });
    w.pass(ms(10_500));
    assert_eq!(w.count(Count::KeepaliveProbes), 1);
    stop(&mut w);
    assert!(w.slow.poll_event().is_none());
    // The core reads the answer, which has lain in the port.
    let now = w.now;
    w.edit(flow, |parts| parts.cold.heard_at = now);
    w.pass(secs(5));
    assert!(w.slow.poll_event().is_none());
    assert_eq!(w.count(Count::KeepaliveProbes), 1);
}

#[test]
fn the_user_timeout_is_not_fooled_by_a_stop_of_the_service() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    let user_timeout = Some(secs(20));
    w.slow.set_options(w.now, flow, &FlowOptions { user_timeout, ..FlowOptions::default() });
    sends(&mut w, flow, 1000);
    stop(&mut w);
    w.pass(secs(15));
    assert!(w.slow.poll_event().is_none(), "it was sent again after the stop, and may still be acknowledged");
    w.pass(secs(10));
    assert!(matches!(w.event(), Event::Closed { how: How::TimedOut(errno::ETIMEDOUT), .. }));
}

#[test]
fn a_late_timer_waits_for_the_cores_once() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    sends(&mut w, flow, 1000);
    stop(&mut w);
    assert!(w.orders.is_empty());
    w.pass(ms(20));
    assert_eq!(w.orders.iter().filter(|order| **order == Order::Transmit(flow)).count(), 1);
}
