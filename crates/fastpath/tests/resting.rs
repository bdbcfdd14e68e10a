//! Applications that are silent for a while: the core does not look at their doorbells until it is told that they have rung.

use crate::scene::{Scene, scene};
use base::Duration;
use queue::{Doorbell, Wake};
use shm::Side;

/// A scene with an application that rests.
fn resting() -> Scene {
    let mut s = scene();
    s.poll();
    s.host.core.rest();
    assert!(!s.host.core.has_resting(), "it has just come");
    s.after(Duration::from_ms(2));
    s.host.core.rest();
    assert!(s.host.core.has_resting());
    s
}

/// The application writes and rings. True: its ring says that the core's eventfd must be written.
fn writes(s: &mut Scene, bytes: &[u8]) -> bool {
    let region = s.host.region.clone();
    let bell = Doorbell::of(region.region(), Side::Zero, 0).unwrap();
    let needs = bell.wake() == Wake::Needed;
    assert_eq!(s.host.send(&mut s.sock, bytes, 64 << 10), bytes.len());
    needs
}

#[test]
fn a_resting_application_is_heard_when_its_eventfd_was_written() {
    let mut s = resting();
    assert!(writes(&mut s, b"request"));
    assert_eq!(s.poll(), []);
    s.host.core.rouse(0);
    assert_eq!(s.poll().len(), 1);
    assert!(!s.host.core.has_resting());
    assert!(!writes(&mut s, b"another"), "the core looks again");
    assert_eq!(s.poll().len(), 1);
}

#[test]
fn an_application_with_news_rests_no_longer() {
    let mut s = resting();
    s.peer.data(0, 0, b"request");
    s.poll();
    assert_eq!(s.recv(), b"request");
    assert!(!writes(&mut s, b"answer"), "no eventfd is written");
    assert_eq!(s.poll().len(), 1);
}

#[test]
fn an_application_that_rang_before_it_was_to_rest_is_heard() {
    let mut s = scene();
    s.after(Duration::from_ms(2));
    assert!(!writes(&mut s, b"request"));
    s.host.core.rest();
    assert!(!s.host.core.has_resting());
    assert_eq!(s.poll().len(), 1);
}

#[test]
fn the_cores_own_eventfd_is_enough() {
    let mut s = resting();
    s.host.core.rouse_rung();
    assert!(s.host.core.has_resting(), "it has not rung");
    assert!(writes(&mut s, b"request"));
    s.host.core.rouse_rung();
    assert_eq!(s.poll().len(), 1);
}

#[test]
fn a_core_sleeps_and_wakes_beside_resting_applications() {
    let mut s = resting();
    assert!(s.host.core.prepare_sleep());
    s.host.core.awake();
    assert!(s.host.core.has_resting(), "a sleep rouses no application");
    assert!(writes(&mut s, b"request"));
    s.host.core.rouse(0);
    assert!(!s.host.core.prepare_sleep(), "it is to be heard first");
    assert_eq!(s.poll().len(), 1);
}
