//! The service ends: every call of a ring says so, and none hangs.

use crate::alone::alone;
use crate::common::{PATIENCE, daemon};
use ring::{ConnectOptions, Error, Kind, ListenOptions, Options, Service};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

#[test]
fn after_the_end_of_the_service_every_call_names_the_cause() {
    alone("death::after_the_end_of_the_service_every_call_names_the_cause", check);
}

fn check() {
    let mut daemon = daemon();
    let options = Options { control: Some(daemon.control.clone()), ..Options::default() };
    let service = Service::open(options.clone()).unwrap();
    let mut ring = service.ring().unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = ring.listen(any, ListenOptions::default(), 0).unwrap();
    let address = ring.local_address(listener).unwrap();
    let ours = ring.connect(address, ConnectOptions::default(), 0).unwrap();
    let mut events = Vec::new();
    let mut accepted = None;
    while accepted.is_none() {
        ring.wait(Some(PATIENCE), &mut events).unwrap();
        accepted = events.iter().find(|event| matches!(event.kind, Kind::Accepted { .. })).map(|e| e.handle);
    }
    daemon.end();
    // The sleep ends by itself, and each connection hears it once.
    let mut told = Vec::new();
    let start = Instant::now();
    let e = loop {
        assert!(start.elapsed() < PATIENCE, "the ring does not notice");
        match ring.wait(None, &mut events) {
            Ok(()) => told.extend(
                events.iter().filter(|e| matches!(e.kind, Kind::Closed(_))).map(|event| event.handle),
            ),
            Err(e) => break e,
        }
    };
    assert_eq!(e, Error::ServiceGone);
    told.sort_by_key(|handle| handle.to_bits());
    let mut both = [ours, accepted.unwrap()];
    both.sort_by_key(|handle| handle.to_bits());
    assert_eq!(told, both);
    assert_eq!(ring.conn(ours).unwrap_err(), Error::ServiceGone);
    assert_eq!(ring.poll(&mut events).unwrap_err(), Error::ServiceGone);
    assert_eq!(ring.arm().unwrap_err(), Error::ServiceGone);
    assert_eq!(ring.listen(any, ListenOptions::default(), 0).unwrap_err(), Error::ServiceGone);
    assert_eq!(ring.connect(address, ConnectOptions::default(), 0).unwrap_err(), Error::ServiceGone);
    assert_eq!(ring.close_listener(listener).unwrap_err(), Error::ServiceGone);
    assert_eq!(service.ring().unwrap_err(), Error::ServiceGone);
    assert!(matches!(Service::open(options.clone()), Err(Error::NoService(_))));
    drop(ring);
    daemon.start_again();
    let mut ring = Service::open(options).unwrap().ring().unwrap();
    assert!(ring.listen(any, ListenOptions::default(), 0).is_ok(), "a new service serves the same process");
}
