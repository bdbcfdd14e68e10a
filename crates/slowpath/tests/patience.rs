//! How long a connection waits: user timeout, keepalive, orphans, FIN-WAIT-2, deferred accepts, and how often it challenges.

use crate::harness::*;
use base::Duration;
use control::DeferAccept;
use flow::{Exception, FlowId, state};
use slowpath::{Count, Event, FlowOptions, How, Keepalive, Linger2, errno};
use wire::{FourTuple, TcpOptions};

fn told(w: &mut World, flow: FlowId, change: impl FnOnce(&mut FlowOptions)) {
    let mut options = *w.slow.options(flow).unwrap();
    change(&mut options);
    w.slow.set_options(w.now, flow, &options);
    w.settle();
}

/// The core has sent `bytes` just now.
fn sends(w: &mut World, flow: FlowId, bytes: u32) {
    let now = w.now;
    w.edit(flow, |parts| {
        parts.tx.snd_max = parts.tx.snd_max.plus(bytes);
        parts.tx.snd_nxt = parts.tx.snd_max;
        parts.cold.progress_at = now;
        parts.rx.set(state::TIMER_ARMED);
    });
    w.exception(Exception::Active { flow });
}

fn closed(w: &mut World) -> Option<How> {
    std::iter::from_fn(|| w.slow.poll_event()).find_map(|event| match event {
        Event::Closed { how, .. } => Some(how),
        _ => None,
    })
}

/// RFC 9293 section 3.8.3: "The Timeout ... if data is not successfully delivered to the destination within the timeout period,
/// the connection will be aborted"; to the millisecond, not at the next retransmission.
#[test]
fn user_timeout_ends_a_connection_whose_data_is_not_acknowledged() {
    let mut w = World::new();
    let (flow, owner, _) = w.accepted(9);
    told(&mut w, flow, |o| o.user_timeout = Some(secs(5)));
    w.pass(secs(100));
    sends(&mut w, flow, 1000);
    w.pass(ms(4_998));
    assert_eq!(closed(&mut w), None);
    w.pass(ms(20));
    assert_eq!(closed(&mut w), Some(How::TimedOut(errno::ETIMEDOUT)));
    assert_eq!(w.errno(owner), u32::from(errno::ETIMEDOUT));
}

#[test]
fn user_timeout_starts_anew_with_every_acknowledgement_of_data() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    told(&mut w, flow, |o| o.user_timeout = Some(secs(5)));
    sends(&mut w, flow, 10_000);
    for _ in 0..4 {
        w.pass(secs(4));
        let now = w.now;
        w.edit(flow, |parts| {
            parts.tx.snd_una = parts.tx.snd_una.plus(1000);
            parts.cold.progress_at = now;
        });
    }
    assert_eq!(closed(&mut w), None);
    w.pass(secs(6));
    assert_eq!(closed(&mut w), Some(How::TimedOut(errno::ETIMEDOUT)));
}

/// A peer that answers every probe but never opens its window is kept for ever (MUST-35), unless the user timeout says
/// otherwise, as in Linux.
#[test]
fn user_timeout_bounds_zero_window_probing_of_a_peer_that_answers() {
    for timeout in [None, Some(secs(30))] {
        let mut w = World::new();
        let (flow, _, _) = w.accepted(9);
        told(&mut w, flow, |o| o.user_timeout = timeout);
        w.edit(flow, |parts| parts.rx.set(state::BLOCKED | state::TIMER_ARMED));
        w.exception(Exception::Active { flow });
        for _ in 0..200 {
            w.pass(secs(1));
            let now = w.now;
            w.edit(flow, |parts| parts.cold.heard_at = now);
        }
        let expected = timeout.map(|_| How::TimedOut(errno::ETIMEDOUT));
        assert_eq!(closed(&mut w), expected);
    }
}

/// With a user timeout that decides when a silent peer is given up, else the number of probes; either way the peer is told,
/// as by Linux.
#[test]
fn keepalive_gives_up_by_count_or_by_user_timeout_and_resets() {
    let keepalive = Keepalive { idle: secs(10), interval: secs(2), count: 3 };
    for (timeout, ends_after) in [(None, 16), (Some(secs(11)), 12), (Some(secs(21)), 22)] {
        let mut w = World::new();
        let (flow, _, _) = w.accepted(9);
        told(&mut w, flow, |o| (o.keepalive, o.user_timeout) = (Some(keepalive), timeout));
        w.pass(ms(ends_after * 1000 - 100));
        assert_eq!((closed(&mut w), w.sent.len()), (None, 0), "{timeout:?}");
        w.pass(ms(200));
        assert_eq!(closed(&mut w), Some(How::TimedOut(errno::ETIMEDOUT)));
        assert!(w.next().header.flags.contains(RST));
    }
}

/// An application closes; its FIN is sent and acknowledged.
fn abandoned(w: &mut World, flow: FlowId) {
    w.edit(flow, |parts| {
        parts.rx.set(state::FIN_QUEUED | state::FIN_SENT | state::FIN_ACKED);
        parts.tx.snd_max = parts.tx.snd_max.plus(1);
        (parts.tx.snd_nxt, parts.tx.snd_una) = (parts.tx.snd_max, parts.tx.snd_max);
    });
    w.exception(Exception::AppClosed { flow });
    w.exception(Exception::FinAcked { flow });
}

#[test]
fn linger2_says_how_long_an_orphan_waits_in_fin_wait_2() {
    for (linger2, wait) in [(None, secs(60)), (Some(Linger2::Wait(secs(7))), secs(7))] {
        let mut w = World::new();
        let (flow, _, _) = w.accepted(9);
        told(&mut w, flow, |o| o.linger2 = linger2);
        abandoned(&mut w, flow);
        w.pass(Duration::from_ns(wait.as_ns() - 2_000_000));
        assert_eq!((closed(&mut w), w.slow.orphans()), (None, 1));
        w.pass(ms(4));
        assert_eq!((closed(&mut w), w.slow.orphans()), (Some(How::Finished), 0));
        w.quiet();
    }
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    told(&mut w, flow, |o| o.linger2 = Some(Linger2::Reset));
    abandoned(&mut w, flow);
    assert_eq!(closed(&mut w), Some(How::ResetByUs));
    assert!(w.next().header.flags.contains(RST));
}

#[test]
fn orphans_beyond_the_limit_are_reset() {
    let mut w = World::with(|config, _| config.orphans_max = 2);
    let flows: Vec<FlowId> = (0..4).map(|i| w.accepted(9 + i).0).collect();
    for flow in &flows {
        w.edit(*flow, |parts| parts.rx.set(state::FIN_QUEUED));
        w.exception(Exception::AppClosed { flow: *flow });
    }
    assert_eq!((w.slow.orphans(), w.count(Count::OrphanResets), w.sent.len()), (2, 2, 2));
    w.exception(Exception::FinAcked { flow: flows[0] });
    w.exception(Exception::FinReceived { flow: flows[0] });
    assert_eq!(w.slow.orphans(), 1, "who is over counts no more");
}

/// `TCP_DEFER_ACCEPT`: the service is not told before there is something to read, or its time is up.
#[test]
fn a_deferred_connection_is_offered_with_its_first_data() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 9).unwrap();
    w.slow.set_listener_options(
        1,
        &FlowOptions { defer_accept: DeferAccept::from_seconds(10), ..FlowOptions::default() },
    );
    w.peer_sends(9, 80, SYN, 100, 0);
    let ack = w.next().header.seq.0.wrapping_add(1);
    w.peer_sends(9, 80, ACK, 101, ack);
    assert!(w.slow.poll_event().is_none());
    w.pass(secs(9));
    w.quiet();
    w.segment(FourTuple::new(peer(9), us(80)), ACK, 101, ack, TcpOptions::NONE, b"hello");
    assert!(matches!(w.event(), Event::Incoming { .. }));
    // Another that stays silent: after ten seconds one SYN-ACK asks again, and the answer is taken as it is.
    w.peer_sends(10, 80, SYN, 100, 0);
    let ack = w.next().header.seq.0.wrapping_add(1);
    w.peer_sends(10, 80, ACK, 101, ack);
    w.pass(ms(10_002));
    assert_eq!(w.next().header.flags, SYN_ACK);
    w.quiet();
    w.peer_sends(10, 80, ACK, 101, ack);
    assert!(matches!(w.event(), Event::Incoming { .. }));
}

/// `TCP_SYNCNT` and the times of SYNs: 1, 2, 4, ... seconds.
#[test]
fn a_syn_is_repeated_as_often_as_the_socket_says() {
    for (count, ends_after) in [(1u8, 3), (3, 15), (6, 127)] {
        let mut w = World::new();
        let owner = w.owner();
        let options = FlowOptions { syn_retries: Some(count), ..FlowOptions::default() };
        let what = slowpath::Connect { token: 1, local: None, remote: peer(80), owner, options };
        w.slow.connect(w.now, &what).unwrap();
        w.settle();
        for _ in 0..ends_after {
            w.pass(ms(990));
            w.peer_is_there();
        }
        w.pass(ms(ends_after * 10 - 10));
        assert_eq!(w.count(Count::SynRetransmits), u64::from(count));
        assert!(w.slow.poll_event().is_none());
        w.pass(ms(20));
        assert!(matches!(w.event(), Event::ConnectFailed { errno: errno::ETIMEDOUT, .. }));
    }
}

/// `TCP_MAXSEG`: "MSS both ways": announced, and never exceeded.
#[test]
fn max_segment_is_announced_and_obeyed() {
    let mut w = World::new();
    let owner = w.owner();
    let options = FlowOptions {
        max_segment: Some(700),
        receive_buffer: Some(4000),
        algorithm: Some(congestion::Algorithm::Reno),
        ..FlowOptions::default()
    };
    let what = slowpath::Connect { token: 1, local: None, remote: peer(80), owner, options };
    let local = w.slow.connect(w.now, &what).unwrap();
    w.settle();
    let syn = w.next();
    assert_eq!((syn.options.mss, syn.header.window), (Some(700), 4000));
    let ack = syn.header.seq.0.wrapping_add(1);
    let plain = TcpOptions { mss: Some(1460), ..TcpOptions::NONE };
    w.segment(FourTuple::new(peer(80), local), SYN_ACK, 500, ack, plain, &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    let algorithm = |w: &World| w.edit(flow, |parts| parts.cold.window.algorithm());
    assert_eq!(w.edit(flow, |parts| parts.tx.mss), 700);
    assert_eq!(algorithm(&w), congestion::Algorithm::Reno);
    told(&mut w, flow, |o| o.algorithm = Some(congestion::Algorithm::Dctcp));
    assert_eq!(algorithm(&w), congestion::Algorithm::Dctcp);
    assert!(w.edit(flow, |parts| parts.rx.has(state::EXACT_ECN)));
}

/// For `time`, with the peer answering every order like `wanted` a millisecond later when it `answers`. How many there were.
fn probed(w: &mut World, flow: FlowId, time: Duration, wanted: &Order, answers: bool) -> u32 {
    let (end, mut count) = (w.now.plus(time), 0);
    while w.now < end {
        w.peer_is_there();
        w.pass(ms(100));
        let before = count;
        count += std::iter::from_fn(|| w.orders.pop_front()).filter(|order| order == wanted).count() as u32;
        if answers && count > before {
            w.pass(ms(1));
            let now = w.now;
            w.edit(flow, |parts| parts.cold.heard_at = now);
        }
    }
    count
}

/// "It is extremely important to remember that ACK segments that contain no data are not reliably transmitted by TCP. Consequently, if
/// a keep-alive mechanism is implemented, it MUST NOT interpret failure to respond to any specific probe as a dead connection" (RFC
/// 9293 section 3.8.4): a row of them that is as long as the application says, however the two times of the probes compare.
#[test]
fn any_answer_begins_the_count_of_keepalive_probes_anew() {
    for (idle, interval) in [(10, 2), (2, 2), (1, 3), (60, 60)] {
        let mut w = World::new();
        let (flow, _, _) = w.accepted(9);
        let keepalive = Some(Keepalive { idle: secs(idle), interval: secs(interval), count: 3 });
        told(&mut w, flow, |o| o.keepalive = keepalive);
        let gap = idle.max(interval);
        let probes = probed(&mut w, flow, secs(20 * gap), &Order::Probe(flow), true);
        assert!((18..=20).contains(&probes), "{idle} {interval}: {probes}");
        // Two that are lost, and an answer to the third.
        probed(&mut w, flow, secs(gap + interval), &Order::Probe(flow), false);
        probed(&mut w, flow, secs(2 * gap), &Order::Probe(flow), true);
        assert_eq!(closed(&mut w), None, "{idle} {interval}");
        let probes = probed(&mut w, flow, secs(2 * gap + 4 * interval), &Order::Probe(flow), false);
        assert_eq!((probes, closed(&mut w)), (3, Some(How::TimedOut(errno::ETIMEDOUT))), "{idle} {interval}");
    }
}

/// The relative with a user timeout, which ends what was probed and is silent, and that only.
#[test]
fn a_user_timeout_shorter_than_the_idle_time_spares_a_peer_that_answers() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    let keepalive = Some(Keepalive { idle: secs(10), interval: secs(20), count: 3 });
    told(&mut w, flow, |o| (o.keepalive, o.user_timeout) = (keepalive, Some(secs(5))));
    assert!(probed(&mut w, flow, secs(400), &Order::Probe(flow), true) >= 10);
    assert_eq!(closed(&mut w), None);
    assert_eq!(probed(&mut w, flow, secs(45), &Order::Probe(flow), false), 1);
    assert_eq!(closed(&mut w), Some(How::TimedOut(errno::ETIMEDOUT)));
}

/// What `TCP_INFO` calls `tcpi_probes` is the same count.
#[test]
fn probes_that_were_answered_are_told_no_more() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    let keepalive = Some(Keepalive { idle: secs(10), interval: secs(2), count: 9 });
    told(&mut w, flow, |o| o.keepalive = keepalive);
    let probes = |w: &World| w.slow.info(w.now, flow).unwrap().probes;
    w.pass(secs(15));
    assert_eq!(probes(&w), 3);
    let now = w.now;
    w.edit(flow, |parts| parts.cold.heard_at = now);
    assert_eq!(probes(&w), 0);
}

/// A closed window is probed by a timer of its own; its probes find out the same.
#[test]
fn keepalive_is_silent_while_a_closed_window_is_probed() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    told(&mut w, flow, |o| o.keepalive = Some(Keepalive { idle: secs(1), interval: secs(1), count: 2 }));
    w.edit(flow, |parts| {
        parts.tx.snd_wnd = 0;
        parts.rx.set(state::BLOCKED | state::TIMER_ARMED);
    });
    w.exception(Exception::Active { flow });
    probed(&mut w, flow, secs(30), &Order::Probe(flow), true);
    assert_eq!((w.count(Count::KeepaliveProbes), closed(&mut w)), (0, None));
    assert!(w.count(Count::WindowProbes) > 4);
}

/// The peer closes its window behind data that is under way and answers each repetition for ten minutes.
fn closed_behind_data(w: &mut World, flow: FlowId) {
    w.edit(flow, |parts| (parts.tx.snd_wnd, parts.cold.rto) = (0, ms(300)));
    sends(w, flow, 4000);
    assert!(probed(w, flow, secs(600), &Order::Transmit(flow), true) >= 10);
    assert_eq!(closed(w), None);
}

/// As Linux (`tcp_retransmit_timer`), which looks for a black hole, and for another way to the peer, only while the window is open:
/// answers show that segments arrive.
#[test]
fn a_peer_without_room_that_answers_is_no_black_hole() {
    for answers in [true, false] {
        let mut w = World::new();
        let (flow, _, _) = w.accepted(9);
        w.edit(flow, |parts| (parts.tx.mss, parts.tx.snd_wnd, parts.cold.rto) = (1460, 0, ms(300)));
        sends(&mut w, flow, 4000);
        probed(&mut w, flow, secs(60), &Order::Transmit(flow), answers);
        assert_eq!(w.count(Count::BlackHolesSuspected) > 0, !answers, "{answers}");
    }
}

/// The time after which silence ends a connection begins with the silence, not with the first repetition into a closed window.
#[test]
fn answers_from_behind_a_closed_window_begin_the_time_of_silence_anew() {
    let mut w = World::with(|config, shared| {
        config.retries = 5;
        shared.rto_max = secs(2);
    });
    let (flow, _, _) = w.accepted(9);
    closed_behind_data(&mut w, flow);
    // It opens, and what is sent then is lost.
    w.edit(flow, |parts| parts.tx.snd_wnd = 10_000);
    let before = w.now;
    while closed(&mut w).is_none() {
        w.peer_is_there();
        w.pass(ms(100));
    }
    assert!(w.now.since(before) > secs(5), "{:?}", w.now.since(before));
}

/// As Linux (`tcp_rtx_probe0_timed_out`): a program that sets a user timeout "does not want" answers without progress to prolong it.
#[test]
fn the_user_timeout_bounds_answers_from_behind_a_closed_window() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    told(&mut w, flow, |o| o.user_timeout = Some(secs(10)));
    w.edit(flow, |parts| (parts.tx.snd_wnd, parts.cold.rto) = (0, ms(300)));
    sends(&mut w, flow, 1000);
    probed(&mut w, flow, secs(9), &Order::Transmit(flow), true);
    assert_eq!(closed(&mut w), None);
    probed(&mut w, flow, secs(2), &Order::Transmit(flow), true);
    assert_eq!(closed(&mut w), Some(How::TimedOut(errno::ETIMEDOUT)));
}
