//! What two ends agree on, whichever options either of them has: every combination, as client and as server.

use crate::harness::*;
use flow::{FlowId, state};
use slowpath::{Event, FlowOptions};
use wire::{FourTuple, TcpOptions};

/// The peer's side of one combination: bits 0 to 3 for MSS, window scale, SACK, timestamps.
fn offer(bits: u8) -> TcpOptions {
    let has = |bit: u8| bits >> bit & 1 == 1;
    let stamped = if has(3) { TcpOptions::with_timestamps(1000, 0) } else { TcpOptions::NONE };
    TcpOptions {
        mss: has(0).then_some(1300),
        window_scale: has(1).then_some(3),
        sack_permitted: has(2),
        ..stamped
    }
}

fn world(own: u8) -> World {
    World::with(|_, shared| {
        shared.window_scaling = own & 1 == 1;
        shared.sack = own >> 1 & 1 == 1;
        shared.timestamps = own >> 2 & 1 == 1;
    })
}

/// The peer connects with `offer`: our answer's options and the flow.
fn passive(w: &mut World, offer: TcpOptions) -> (TcpOptions, FlowId) {
    w.slow.listen(us(80), 1, 10).unwrap();
    let tuple = FourTuple::new(peer(9), us(80));
    w.segment(tuple, SYN, 100, 0, offer, &[]);
    let answer = w.next();
    let stamps = answer.options.timestamps.map(|t| TcpOptions::with_timestamps(1001, t.value));
    w.segment(tuple, ACK, 101, answer.header.seq.0 + 1, stamps.unwrap_or(TcpOptions::NONE), &[]);
    let Event::Incoming { pending, .. } = w.event() else { panic!() };
    let owner = w.owner();
    (answer.options, w.slow.accept(w.now, pending, owner).unwrap())
}

/// We connect, and the peer answers with `offer`: our SYN's options and the flow.
fn active(w: &mut World, offer: TcpOptions) -> (TcpOptions, FlowId) {
    let (local, _) = w.connect(80);
    let syn = w.next();
    w.segment(FourTuple::new(peer(80), local), SYN_ACK, 500, syn.header.seq.0 + 1, offer, &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    (syn.options, flow)
}

#[test]
fn every_combination_of_options_in_either_role() {
    for own in 0..8u8 {
        for peers in 0..16u8 {
            let offered = offer(peers);
            // RFC 7323 section 1.3: "both sides must send Window Scale options in their <SYN> segments"; the same holds for
            // the others.
            let (scaled, sack) = (own & peers >> 1 & 1 == 1, own >> 1 & peers >> 2 & 1 == 1);
            let stamped = own >> 2 & peers >> 3 & 1 == 1;
            for is_active in [false, true] {
                let mut w = world(own);
                let what = format!("own {own:03b} peer {peers:04b} active {is_active}");
                let (ours, flow) = if is_active { active(&mut w, offered) } else { passive(&mut w, offered) };
                assert_eq!(ours.mss, Some(1460), "MSS is always announced (RFC 9293 SHLD-5)");
                let sent = (ours.window_scale.is_some(), ours.sack_permitted, ours.timestamps.is_some());
                let wanted = if is_active {
                    (own & 1 == 1, own & 2 != 0, own & 4 != 0)
                } else {
                    (scaled, sack, stamped)
                };
                assert_eq!(sent, wanted, "{what}: an answer has what was offered only");
                w.edit(flow, |parts| {
                    let (rx, tx) = (&parts.rx, &parts.tx);
                    assert_eq!((rx.has(state::SACK), rx.has(state::TIMESTAMPS)), (sack, stamped), "{what}");
                    let shifts = if scaled { (3, w.flows.config().window_shift()) } else { (0, 0) };
                    assert_eq!((tx.snd_shift, rx.rcv_shift), shifts, "{what}");
                    // "If an MSS Option is not received at connection setup, TCP implementations MUST assume a default send MSS
                    // of 536" (RFC 9293 MUST-15).
                    let mss = if peers & 1 == 1 { 1300 } else { 536 };
                    assert_eq!(tx.mss, mss - if stamped { 12 } else { 0 }, "{what}");
                    // RFC 7323 section 4.3: the latest segment in order counts, which here is the peer's last ACK.
                    assert!(!stamped || rx.ts_recent == if is_active { 1000 } else { 1001 }, "{what}");
                    // The window of a SYN is never scaled (RFC 7323 section 2.2), that of what follows is.
                    let wanted = if scaled && !is_active { 5000 << 3 } else { 5000 };
                    assert_eq!(tx.snd_wnd, wanted, "{what}");
                });
            }
        }
    }
}

#[test]
fn segment_sizes_at_their_boundaries() {
    for (announced, wanted) in [
        (None, 536),
        (Some(0), 536),
        (Some(1), 48),
        (Some(48), 48),
        (Some(536), 536),
        (Some(1460), 1460),
        (Some(65_535), 1460),
    ] {
        let mut w = World::new();
        let (_, flow) = passive(&mut w, TcpOptions { mss: announced, ..TcpOptions::NONE });
        assert_eq!(w.edit(flow, |parts| parts.tx.mss), wanted, "{announced:?}");
    }
}

/// RFC 9293 section 3.7.1: 1220 for IPv6.
#[test]
fn without_the_option_ipv6_peers_take_1220_bytes() {
    let mut w = World::new();
    let end = |addr: &str, port| wire::Endpoint::new(addr.parse().unwrap(), port);
    let (ours, theirs) = (end("fd00::2", 80), end("fd00::1", 9));
    w.slow.listen(ours, 1, 10).unwrap();
    w.segment(FourTuple::new(theirs, ours), SYN, 100, 0, TcpOptions::NONE, &[]);
    let answer = w.next();
    assert_eq!(answer.options.mss, Some(1440));
    w.segment(FourTuple::new(theirs, ours), ACK, 101, answer.header.seq.0 + 1, TcpOptions::NONE, &[]);
    let Event::Incoming { pending, .. } = w.event() else { panic!() };
    let owner = w.owner();
    let flow = w.slow.accept(w.now, pending, owner).unwrap();
    assert_eq!(w.edit(flow, |parts| parts.tx.mss), 1220);
}

#[test]
fn what_the_application_asked_for_bounds_both_directions() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 10).unwrap();
    w.slow.set_listener_options(1, &FlowOptions { max_segment: Some(900), ..FlowOptions::default() });
    w.segment(
        FourTuple::new(peer(9), us(80)),
        SYN,
        100,
        0,
        TcpOptions { mss: Some(1460), ..TcpOptions::NONE },
        &[],
    );
    assert_eq!(w.next().options.mss, Some(900));
}

#[test]
fn a_shift_beyond_fourteen_is_fourteen() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 10).unwrap();
    let tuple = FourTuple::new(peer(9), us(80));
    let mut bytes = frame(tuple, SYN, 100, 0, TcpOptions { window_scale: Some(14), ..TcpOptions::NONE }, &[]);
    // NOP, kind 3, length 3, shift; the checksum is the core's to check.
    assert_eq!(bytes[54..58], [1, 3, 3, 14]);
    bytes[57] = 255;
    w.raw(&bytes);
    let answer = w.next();
    w.peer_sends(9, 80, ACK, 101, answer.header.seq.0 + 1);
    let Event::Incoming { pending, .. } = w.event() else { panic!() };
    let owner = w.owner();
    let flow = w.slow.accept(w.now, pending, owner).unwrap();
    // "If a Window Scale option is received with a shift.cnt value larger than 14, the TCP SHOULD log the error but MUST use 14
    // instead of the specified value" (RFC 7323 section 2.3).
    assert_eq!(w.edit(flow, |parts| parts.tx.snd_shift), 14);
}
