//! Flows that leave a core: no list of the core has them any more, so nothing acts on the next flow with the same id.

use crate::scene::{Scene, scene};
use base::Instant;
use core::sync::atomic::Ordering::Relaxed;
use flow::{Command, Exception};
use shm::application_flags::{CORK, NODELAY};

/// A flow that waits for several times: it delays an acknowledgement, it has a receive ring lent, and it holds a partial segment back.
fn listed() -> Scene {
    let mut s = scene();
    s.host.region.halves(5).unwrap().1.extra.store(NODELAY | CORK, Relaxed);
    s.host.ring(5);
    s.peer.data(0, 0, b"request");
    assert_eq!(s.poll(), []);
    assert_eq!(s.recv(), b"request");
    assert_eq!(s.send(b"held back"), []);
    let deadline = s.host.poll(s.now, &mut s.port).deadline;
    assert!(deadline < Instant::NEVER, "the core wakes up for the flow");
    s
}

/// Removes the flow, and checks that the core has said so and wakes up for it no more.
fn remove(mut s: Scene) {
    assert!(s.host.keeper.remove(s.id));
    s.host.commands.push(Command::Drop { flow: s.id }).unwrap();
    s.poll();
    assert!(s.host.log.iter().any(|e| matches!(e, Exception::Dropped { .. })));
    assert_eq!(s.host.poll(s.now, &mut s.port).deadline, Instant::NEVER);
}

#[test]
fn a_flow_that_leaves_is_in_no_list() {
    remove(listed());
}

#[test]
fn a_flow_that_is_forgotten_after_its_region_is_in_no_list() {
    let mut s = listed();
    s.host.commands.push(Command::RemoveRegion { index: 0 }).unwrap();
    s.poll();
    remove(s);
}
