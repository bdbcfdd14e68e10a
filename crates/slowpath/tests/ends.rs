//! The end of connections: FIN in every order, half close, RST in each state, TIME-WAIT and its reuse.

use crate::harness::*;
use flow::{Exception, FlowId, state};
use shm::half_flags;
use slowpath::{Connect, Count, Event, How, Release, State};
use wire::{FourTuple, TcpOptions};

/// What the core does when our FIN goes out, is acknowledged, or the peer's comes; the application lets go.
#[derive(Clone, Copy)]
enum Does {
    Send,
    Acked,
    Receive,
    LetGo,
}

fn does(w: &mut World, flow: FlowId, what: Does) {
    match what {
        Does::Send => w.edit(flow, |parts| {
            parts.rx.set(state::FIN_QUEUED | state::FIN_SENT);
            parts.tx.snd_max = parts.tx.snd_max.plus(1);
            parts.tx.snd_nxt = parts.tx.snd_max;
        }),
        Does::Acked => {
            w.edit(flow, |parts| {
                parts.rx.set(state::FIN_ACKED);
                parts.tx.snd_una = parts.tx.snd_max;
            });
            w.exception(Exception::FinAcked { flow });
        }
        Does::Receive => {
            w.edit(flow, |parts| parts.rx.rcv_nxt = parts.rx.rcv_nxt.plus(1));
            // As the core says: whose FIN went out first.
            w.edit(flow, |parts| {
                let is_first = parts.rx.has(state::FIN_SENT) && !parts.rx.has(state::FIN_RECEIVED);
                parts.cold.closed_first |= is_first;
                parts.rx.set(state::FIN_RECEIVED);
            });
            w.exception(Exception::FinReceived { flow });
        }
        Does::LetGo => w.exception(Exception::AppClosed { flow }),
    }
}

fn state_of(w: &World, from: u16) -> Option<State> {
    let mut found = None;
    w.slow.for_each_socket(|socket| {
        if socket.remote == Some(peer(from)) {
            found = Some(socket.state);
        }
    });
    found
}

#[test]
fn close_in_every_order() {
    use Does::{Acked, LetGo, Receive, Send};
    let orders: [(&[Does], &[State], bool); 6] = [
        (&[Send, Acked, Receive], &[State::FinWait1, State::FinWait2, State::TimeWait], true),
        (&[Send, Receive, Acked], &[State::FinWait1, State::Closing, State::TimeWait], true),
        (&[Receive, Send, Acked], &[State::CloseWait, State::LastAck], false),
        (&[LetGo, Send, Acked, Receive], &[], true),
        (&[Send, LetGo, Acked, Receive], &[State::FinWait1, State::FinWait1, State::FinWait2], true),
        (&[Receive, Send, LetGo, Acked], &[State::CloseWait, State::LastAck, State::LastAck], false),
    ];
    for (number, (steps, states, is_time_wait)) in orders.into_iter().enumerate() {
        let mut w = World::new();
        let (flow, owner, _) = w.accepted(9);
        if number == 3 {
            // The FIN of a close is queued before the slot is let go.
            w.edit(flow, |parts| parts.rx.set(state::FIN_QUEUED));
        }
        for (i, step) in steps.iter().enumerate() {
            does(&mut w, flow, *step);
            if let Some(state) = states.get(i) {
                assert_eq!(state_of(&w, 9), Some(*state), "order {number} step {i}");
            }
        }
        assert!(matches!(w.event(), Event::Closed { how: How::Finished, .. }), "order {number}");
        assert_eq!(w.slow.sizes()[3], usize::from(is_time_wait), "order {number}");
        assert_eq!(w.orders.pop_back(), Some(Order::Drop(flow)));
        assert_eq!(w.flags(owner), half_flags::OPEN, "no error is shown");
        w.exception(Exception::Dropped { flow });
        assert!(matches!(w.event(), Event::Released { region: 0, slot } if slot == owner.slot));
        assert_eq!(w.slow.sizes()[2], 0);
        w.quiet();
        assert_eq!(w.slow.release_slot(0, owner.slot), Release::Free);
    }
}

/// The core answered the peer's FIN and sent ours before the slow path heard of either: the passive closer ends in LAST-ACK, and
/// TIME-WAIT is the active closer's (RFC 9293 figure 5).
#[test]
fn a_passive_closer_never_enters_time_wait_however_late_the_report() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| parts.rx.set(state::FIN_RECEIVED));
    does(&mut w, flow, Does::Send);
    does(&mut w, flow, Does::LetGo);
    w.exception(Exception::FinReceived { flow });
    assert_eq!(state_of(&w, 9), Some(State::LastAck));
    w.exception(Exception::FinAcked { flow });
    assert!(matches!(w.event(), Event::Closed { how: How::Finished, .. }));
    assert_eq!(w.slow.sizes()[3], 0);
}

#[test]
fn half_close_goes_on_for_ever_while_somebody_holds_it() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    does(&mut w, flow, Does::Send);
    does(&mut w, flow, Does::Acked);
    w.pass(secs(3600));
    assert_eq!(state_of(&w, 9), Some(State::FinWait2));
    assert!(w.slow.poll_event().is_none());
}

#[test]
fn an_abandoned_fin_wait_2_ends_after_a_minute() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    does(&mut w, flow, Does::Send);
    does(&mut w, flow, Does::LetGo);
    does(&mut w, flow, Does::Acked);
    w.pass(secs(59));
    assert!(w.slow.poll_event().is_none());
    w.pass(secs(2));
    assert!(matches!(w.event(), Event::Closed { how: How::Finished, .. }));
    assert_eq!(w.slow.sizes()[3], 0);
}

#[test]
fn letting_go_without_fin_resets() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    does(&mut w, flow, Does::LetGo);
    assert_eq!(w.next().header.flags, RST.with(ACK));
    assert!(matches!(w.event(), Event::Closed { how: How::ResetByUs, .. }));
}

#[test]
fn the_application_resets() {
    let mut w = World::new();
    let (flow, owner, snd_nxt) = w.accepted(9);
    w.exception(Exception::AppReset { flow });
    let reset = w.next();
    assert_eq!((reset.header.flags, reset.header.seq.0, reset.header.ack.0), (RST.with(ACK), snd_nxt, 101));
    assert!(matches!(w.event(), Event::Closed { how: How::ResetByUs, .. }));
    assert_eq!(w.slow.release_slot(0, owner.slot), Release::Pending);
    w.settle();
    w.exception(Exception::Dropped { flow });
    // A repeated report changes nothing.
    w.exception(Exception::AppClosed { flow });
    w.exception(Exception::Dropped { flow });
}

#[test]
fn data_after_close_is_answered_with_reset() {
    // Of a super-frame the slow path sees the beginning only.
    for data in [&b"for nobody"[..], &[1; 40_000]] {
        let mut w = World::new();
        let (flow, _, snd_nxt) = w.accepted(9);
        does(&mut w, flow, Does::Send);
        does(&mut w, flow, Does::LetGo);
        let tuple = FourTuple::new(peer(9), us(80));
        w.segment(tuple, ACK, 101, snd_nxt, TcpOptions::NONE, data);
        // Exactly where the peer stands: it has not yet acknowledged our FIN.
        let reset = w.next().header;
        assert_eq!((reset.flags, reset.seq.0), (RST, snd_nxt));
        assert!(matches!(w.event(), Event::Closed { how: How::ResetByUs, .. }));
        // So is what comes when nothing is left of it.
        w.segment(FourTuple::new(peer(10), us(80)), ACK, 101, 900, TcpOptions::NONE, data);
        assert_eq!(w.next().header.seq.0, 900);
        w.quiet();
    }
}

/// RFC 5961 section 3.2 in the synchronised states.
#[test]
fn reset_must_be_exact() {
    for steps in [&[][..], &[Does::Send], &[Does::Receive], &[Does::Send, Does::Acked]] {
        let mut w = World::new();
        let (flow, owner, _) = w.accepted(9);
        steps.iter().for_each(|step| does(&mut w, flow, *step));
        let expected = w.edit(flow, |parts| parts.rx.rcv_nxt.0);
        w.peer_sends(9, 80, RST, expected.wrapping_sub(1), 0);
        assert!(w.orders.is_empty(), "outside the window: dropped");
        w.peer_sends(9, 80, RST, expected + 1, 0);
        assert_eq!(w.orders.pop_front(), Some(Order::Ack(flow)), "inside: challenged");
        assert!(w.slow.poll_event().is_none());
        w.peer_sends(9, 80, RST, expected, 0);
        assert!(matches!(w.event(), Event::Closed { how: How::ResetByPeer, .. }));
        assert_eq!(w.flags(owner) & half_flags::RESET, half_flags::RESET);
        assert_eq!(w.slow.sizes()[3], 0);
        // A second reset finds nothing.
        w.peer_sends(9, 80, RST, expected, 0);
        w.quiet();
    }
}

/// A core has lost a RST for want of room before the connection had a flow: its peer is asked, and resets it again.
#[test]
fn a_peer_whose_reset_may_have_been_lost_in_the_handshake_is_asked() {
    let mut w = World::new();
    let mut accept = |from, is_lost| {
        let pending = w.offered(from);
        w.now = w.now.plus(ms(1));
        if is_lost {
            w.flows.note_reset_lost(w.now);
        }
        let owner = w.owner();
        let flow = w.slow.accept(w.now, pending, owner).unwrap();
        w.settle();
        w.now = w.now.plus(ms(1));
        w.orders.drain(..).any(|order| order == Order::Ack(flow))
    };
    assert_eq!([accept(9, false), accept(10, true), accept(11, false)], [false, true, false]);
}

/// A RST that came before the core knew of the flow, and that finds no room on its way back: the slow path judges it.
#[test]
fn a_reset_that_cannot_be_given_back_is_judged_at_once() {
    let mut w = World::new();
    let (_, owner, _) = w.accepted(9);
    let tuple = FourTuple::new(peer(9), us(80));
    let late = |flags| frame(tuple, flags, 101, 0, TcpOptions::NONE, &[]);
    let unknown = || flow::Exception::Frame { reason: flow::FrameReason::UnknownFlow };
    while w.count(Count::CoreBusy) == 0 {
        w.slow.handle_exception(w.now, 0, unknown(), &late(ACK));
    }
    w.slow.handle_exception(w.now, 0, unknown(), &late(RST));
    assert!(matches!(w.event(), Event::Closed { how: How::ResetByPeer, .. }));
    assert_eq!(w.flags(owner) & half_flags::RESET, half_flags::RESET);
}

/// RFC 5961 section 4.2, whatever the sequence number.
#[test]
fn syn_on_a_connection_is_challenged() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    for seq in [0, 100, 101, 1 << 31] {
        w.peer_sends(9, 80, SYN, seq, 0);
        assert_eq!(w.orders.pop_front(), Some(Order::Ack(flow)));
        w.pass(ms(500));
    }
    assert!(w.slow.poll_event().is_none());
}

#[test]
fn reset_in_syn_received() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 9).unwrap();
    w.peer_sends(9, 80, SYN, 100, 0);
    let iss = w.next().header.seq.0;
    // RFC 5961 section 3.2: in the window but not exact, it is challenged; outside it is dropped.
    w.peer_sends(9, 80, RST, 102, 0);
    let challenge = w.next();
    assert_eq!((challenge.header.flags, challenge.header.ack.0, w.slow.sizes()[0]), (ACK, 101, 1));
    w.peer_sends(9, 80, RST, 90, 0);
    w.quiet();
    // Another SYN in SYN-RECEIVED is challenged, and a peer that restarted answers that with the exact reset.
    w.pass(ms(500));
    w.peer_sends(9, 80, SYN, 777, 0);
    let challenge = w.next();
    assert_eq!((challenge.header.flags, challenge.header.ack.0), (ACK, 101));
    // An acknowledgement of what we never sent is reset itself.
    w.peer_sends(9, 80, ACK, 101, iss.wrapping_add(9));
    assert_eq!(w.next().header.flags, RST);
    w.peer_sends(9, 80, RST, 101, 0);
    assert_eq!(w.slow.sizes()[0], 0);
}

/// RFC 9293 section 3.5.2, "CLOSED": everything but RST is reset.
#[test]
fn strangers_are_reset_within_a_limit() {
    let mut w = World::with(|config, _| config.resets_per_second = 3);
    w.peer_sends(9, 81, ACK, 500, 900);
    let reset = w.next();
    assert_eq!((reset.header.flags, reset.header.seq.0), (RST, 900));
    w.peer_sends(9, 81, FIN, 500, 0);
    let reset = w.next();
    assert_eq!((reset.header.flags, reset.header.ack.0), (RST.with(ACK), 501));
    w.peer_sends(9, 81, RST, 500, 0);
    w.quiet();
    for _ in 0..10 {
        w.peer_sends(9, 81, ACK, 500, 900);
    }
    // Two to four in this second, of which two were sent before.
    let sent = w.sent.len();
    assert!(sent <= 2 && w.count(Count::ResetLimited) == 10 - sent as u64, "{sent}");
}

/// A connection of the peer's port 9 in TIME-WAIT; the record that it had.
pub fn in_time_wait(w: &mut World, has_timestamps: bool) -> FlowId {
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| {
        if has_timestamps {
            parts.rx.set(state::TIMESTAMPS);
            parts.rx.ts_recent = 5000;
        }
    });
    does(w, flow, Does::Send);
    does(w, flow, Does::Acked);
    does(w, flow, Does::Receive);
    assert!(matches!(w.event(), Event::Closed { .. }));
    w.exception(Exception::Dropped { flow });
    assert!(matches!(w.event(), Event::Released { .. }));
    flow
}

#[test]
fn time_wait_answers_a_repeated_fin_and_ends() {
    let mut w = World::new();
    in_time_wait(&mut w, false);
    w.pass(secs(59));
    w.peer_sends(9, 80, FIN_ACK, 101, 0);
    assert_eq!((w.next().header.flags, w.slow.sizes()[3]), (ACK, 1));
    w.pass(secs(59));
    assert_eq!(w.slow.sizes()[3], 1);
    w.pass(secs(2));
    assert_eq!(w.slow.sizes()[3], 0);
}

#[test]
fn time_wait_is_reused_by_a_later_syn() {
    let mut w = World::new();
    in_time_wait(&mut w, true);
    let tuple = FourTuple::new(peer(9), us(80));
    w.segment(tuple, SYN, 50, 0, TcpOptions::with_timestamps(4999, 0), &[]);
    assert_eq!(w.next().header.flags, ACK, "an old duplicate");
    w.segment(tuple, SYN, 50, 0, TcpOptions::with_timestamps(5001, 0), &[]);
    let answer = w.next();
    assert_eq!((answer.header.flags, answer.header.ack.0), (SYN_ACK, 51));
    assert_eq!((w.slow.sizes()[3], w.count(Count::TimeWaitReuses)), (0, 1));
}

#[test]
fn connect_reuses_time_wait_beyond_its_numbers() {
    let mut w = World::new();
    let (local, _) = w.connect(80);
    let iss = w.next().header.seq;
    let tuple = FourTuple::new(peer(80), local);
    w.segment(tuple, SYN_ACK, 500, iss.plus(1).0, options(), &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    does(&mut w, flow, Does::Send);
    does(&mut w, flow, Does::Acked);
    does(&mut w, flow, Does::Receive);
    let last = w.edit(flow, |parts| parts.tx.snd_max);
    let owner = w.owner();
    let what = Connect {
        token: 2,
        local: Some(local),
        remote: peer(80),
        owner,
        options: slowpath::FlowOptions::default(),
    };
    // Timestamps keep the two apart once the clock has moved on (RFC 6191).
    assert_eq!(w.slow.connect(w.now, &what), Err(slowpath::ConnectError::InUse));
    w.pass(ms(1001));
    assert_eq!(w.slow.connect(w.now, &what), Ok(local));
    w.settle();
    assert!(last.is_before(w.next().header.seq));
}

#[test]
fn a_region_goes_with_everything_in_it() {
    let mut w = World::new();
    let (one, _, _) = w.accepted(9);
    w.connect(80);
    w.sent.clear();
    w.slow.remove_region(w.now, 0);
    w.settle();
    assert_eq!(w.next().header.flags, RST.with(ACK));
    assert_eq!((w.slow.region_flows(0), w.slow.sizes()[1]), (1, 0));
    assert!(!w.orders.contains(&Order::RemoveRegion(0)));
    w.exception(Exception::Dropped { flow: one });
    assert_eq!(w.orders.pop_back(), Some(Order::RemoveRegion(0)));
    w.pass(ms(150));
    assert_eq!(w.orders.pop_back(), Some(Order::RemoveRegion(0)), "asked again until it comes back");
    let region = w.app.clone();
    w.exception(Exception::Drained { index: 0, region, pool: Box::default() });
    let drained =
        std::iter::from_fn(|| w.slow.poll_event()).any(|e| matches!(e, Event::RegionDrained { .. }));
    assert!(drained);
    let region = w.app.clone();
    assert!(w.slow.add_region(0, &region));
}
