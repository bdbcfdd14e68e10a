//! Every state by what may arrive out of the blue, with the answer on the wire; and half-open connections found out.

use crate::harness::*;
use flow::{Exception, FlowId, state};
use slowpath::{Event, State};
use wire::{FourTuple, TcpFlags, TcpOptions};

/// A world with one connection in that state: the peer's tuple, the sequence number expected from it, and our next one.
fn reach(wanted: State) -> (World, FourTuple, u32, u32) {
    let mut w = World::new();
    let tuple = FourTuple::new(peer(9), us(80));
    match wanted {
        State::Closed => return (w, tuple, 101, 0),
        State::Listen => {
            w.slow.listen(us(80), 1, 9).unwrap();
            return (w, tuple, 101, 0);
        }
        State::SynSent => {
            let (local, _) = w.connect(9);
            let iss = w.next().header.seq.0;
            return (w, FourTuple::new(peer(9), local), 101, iss.wrapping_add(1));
        }
        State::SynReceived => {
            w.slow.listen(us(80), 1, 9).unwrap();
            w.peer_sends(9, 80, SYN, 100, 0);
            let iss = w.next().header.seq.0;
            return (w, tuple, 101, iss.wrapping_add(1));
        }
        _ => {}
    }
    let (flow, _, next) = w.accepted(9);
    let (mut ours, mut expected) = (next, 101);
    let (sent, acked, received) = (
        |w: &mut World| fin_sent(w, flow),
        |w: &mut World| fin_acked(w, flow),
        |w: &mut World| fin_received(w, flow),
    );
    let steps: &[&dyn Fn(&mut World)] = match wanted {
        State::FinWait1 => &[&sent],
        State::FinWait2 => &[&sent, &acked],
        State::Closing => &[&sent, &received],
        State::CloseWait => &[&received],
        State::LastAck => &[&received, &sent],
        State::TimeWait => &[&sent, &acked, &received],
        _ => &[],
    };
    steps.iter().for_each(|step| step(&mut w));
    if wanted != State::TimeWait {
        (ours, expected) = w.edit(flow, |parts| (parts.tx.snd_max.0, parts.rx.rcv_nxt.0));
    } else {
        (ours, expected) = (ours.wrapping_add(1), expected + 1);
    }
    w.orders.clear();
    w.sent.clear();
    (w, tuple, expected, ours)
}

fn fin_sent(w: &mut World, flow: FlowId) {
    w.edit(flow, |parts| {
        parts.rx.set(state::FIN_QUEUED | state::FIN_SENT);
        parts.tx.snd_max = parts.tx.snd_max.plus(1);
    });
}

fn fin_acked(w: &mut World, flow: FlowId) {
    w.edit(flow, |parts| parts.rx.set(state::FIN_ACKED));
    w.exception(Exception::FinAcked { flow });
}

fn fin_received(w: &mut World, flow: FlowId) {
    w.edit(flow, |parts| {
        parts.cold.closed_first = parts.rx.has(state::FIN_SENT);
        parts.rx.set(state::FIN_RECEIVED);
        parts.rx.rcv_nxt = parts.rx.rcv_nxt.plus(1);
    });
    w.exception(Exception::FinReceived { flow });
}

fn state_of(w: &World) -> State {
    let (mut found, mut listens) = (None, false);
    w.slow.for_each_socket(|socket| match socket.remote {
        Some(_) => found = Some(socket.state),
        None => listens = true,
    });
    found.unwrap_or(if listens { State::Listen } else { State::Closed })
}

/// What is seen of the answer: frames by their flags, and a core's order to acknowledge.
fn answer(w: &mut World) -> &'static str {
    if w.orders.iter().any(|order| matches!(order, Order::Ack(_))) {
        return "ack";
    }
    let Some(flags) = (!w.sent.is_empty()).then(|| w.next().header.flags) else { return "-" };
    match flags {
        f if f.contains(SYN_ACK) => "syn-ack",
        f if f.contains(RST) => "rst",
        f if f.contains(ACK) => "ack",
        _ => "other",
    }
}

/// RFC 9293 section 3.10.7 with RFC 5961 sections 3.2 and 4.2 and RFC 1337: RST exactly expected, in the window, beyond
/// it; SYN; each with the state after it.
#[test]
fn state_by_reset_and_syn() {
    use State::{
        CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, Listen, SynReceived, SynSent,
        TimeWait,
    };
    let alive = |s| [("-", Closed), ("ack", s), ("-", s), ("ack", s)];
    let table = [
        (Closed, [("-", Closed), ("-", Closed), ("-", Closed), ("rst", Closed)]),
        (Listen, [("-", Listen), ("-", Listen), ("-", Listen), ("syn-ack", SynReceived)]),
        // The acknowledgement alone decides; a SYN crosses ours.
        (SynSent, [("-", Closed), ("-", Closed), ("-", Closed), ("syn-ack", SynReceived)]),
        (SynReceived, [("-", Listen), ("ack", SynReceived), ("-", SynReceived), ("ack", SynReceived)]),
        (Established, alive(Established)),
        (FinWait1, alive(FinWait1)),
        (FinWait2, alive(FinWait2)),
        (CloseWait, alive(CloseWait)),
        (Closing, alive(Closing)),
        (LastAck, alive(LastAck)),
        (TimeWait, [("-", TimeWait), ("-", TimeWait), ("-", TimeWait), ("syn-ack", SynReceived)]),
    ];
    for (from, row) in table {
        for (i, (said, to)) in row.into_iter().enumerate() {
            let (mut w, tuple, expected, ours) = reach(from);
            assert_eq!(state_of(&w), if from == TimeWait { TimeWait } else { from });
            let distance = [0, 1, 1 << 30, 5][i];
            let (flags, ack) = if i == 3 { (SYN, 0) } else { (RST.with(ACK), ours) };
            w.segment(tuple, flags, expected + distance, ack, TcpOptions::NONE, &[]);
            assert_eq!(answer(&mut w), said, "{from:?}, event {i}");
            let after = state_of(&w);
            // Accepted connections leave their listener behind.
            let to = if to == Closed && after == Listen { Listen } else { to };
            assert_eq!(after, to, "{from:?}, event {i}");
        }
    }
}

/// RFC 9293 section 3.5.1, figure 9: the peer has crashed and opens anew with the same ports: challenged, it resets what we
/// still held, and its next SYN opens.
#[test]
fn a_peer_that_crashed_finds_the_half_open_connection() {
    let (mut w, tuple, expected, _) = reach(State::Established);
    w.segment(tuple, SYN, 400_000, 0, TcpOptions::NONE, &[]);
    assert_eq!(answer(&mut w), "ack");
    // "<SEQ=SEG.ACK><CTL=RST>", as it is in SYN-SENT and did not expect our acknowledgement.
    w.segment(tuple, RST, expected, 0, TcpOptions::NONE, &[]);
    assert_eq!(state_of(&w), State::Listen);
    w.sent.clear();
    w.segment(tuple, SYN, 400_000, 0, TcpOptions::NONE, &[]);
    let flags: TcpFlags = w.next().header.flags;
    assert_eq!(flags, SYN_ACK);
}

/// Figure 10: we have crashed; what the peer sends to a connection that we know nothing of is reset.
#[test]
fn a_segment_for_a_connection_lost_in_a_crash_is_reset() {
    let mut w = World::new();
    w.peer_sends(9, 80, ACK, 100, 300);
    let reset = w.next();
    assert_eq!((reset.header.flags, reset.header.seq.0), (RST, 300));
}

/// Figure 8: an old duplicate SYN gets as far as SYN-RECEIVED; the peer's reset takes it back to LISTEN, and its new SYN is
/// taken.
#[test]
fn an_old_duplicate_syn_is_recovered_from() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 9).unwrap();
    w.peer_sends(9, 80, SYN, 90, 0);
    assert_eq!(w.next().header.ack.0, 91);
    w.peer_sends(9, 80, RST, 91, 0);
    assert_eq!(state_of(&w), State::Listen);
    w.peer_sends(9, 80, SYN, 100, 0);
    let answer = w.next();
    assert_eq!(answer.header.ack.0, 101);
    w.peer_sends(9, 80, ACK, 101, answer.header.seq.0.wrapping_add(1));
    assert!(matches!(w.event(), Event::Incoming { .. }));
}
