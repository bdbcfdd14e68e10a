//! Differentiated services: what the application asked for stands in every segment.

use crate::harness::*;
use slowpath::{Connect, FlowOptions};

/// The code points of what was sent over IPv4, in order.
fn classes(w: &mut World) -> Vec<u8> {
    w.sent.drain(..).map(|frame| frame[15] >> 2).collect()
}

/// "The application layer MUST be able to specify the Differentiated Services field for segments that are sent on a connection", it
/// "SHOULD be able to change" it, and TCP "SHOULD pass the current ... value without change to the IP layer" (RFC 9293 section
/// 3.9.1.9): an opener's, a listener's, and what is left of both.
#[test]
fn the_service_class_stands_in_every_segment_from_the_syn_on() {
    let mut w = World::new();
    w.peer_is_there();
    let asked = |dscp_v4| FlowOptions { dscp_v4, dscp_v6: 1, ..FlowOptions::default() };
    let owner = w.owner();
    let what = Connect { token: 7, local: None, remote: peer(80), owner, options: asked(46) };
    let local = w.slow.connect(w.now, &what).unwrap();
    w.settle();
    w.pass(secs(1));
    assert_eq!(classes(&mut w), [46, 46], "SYN, twice");
    w.slow.listen(us(81), 2, 8).unwrap();
    w.slow.set_listener_options(2, &asked(10));
    w.peer_sends(4000, 81, SYN, 100, 0);
    assert_eq!(classes(&mut w), [10], "SYN-ACK");
    assert_ne!(local.port, 81);
    let (flow, _, _) = w.accepted(4001);
    w.slow.set_options(w.now, flow, &asked(20));
    assert_eq!(w.edit(flow, |parts| parts.tx.traffic & flow::class::DSCP), 20, "what the core puts on data");
    w.sent.clear();
    w.slow.abort(w.now, flow);
    w.settle();
    assert_eq!(classes(&mut w), [20], "RST");
}
