//! What a ring hears when every place for a connection is taken, and that a place which is given back can be used again.

use crate::alone::alone;
use crate::common::{PATIENCE, service_with};
use ring::{ConnectOptions, Error, Event, Handle, Kind, ListenOptions, Options, Ring, Service};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

/// Places of a region; the first is not a connection's.
const SLOTS: u32 = 64;

/// What has become of a connection that `ring` has begun: the handles of both ends, or why it is not made.
fn meet(ring: &mut Ring, ours: Handle) -> Result<[Handle; 2], Kind> {
    let end = Instant::now() + PATIENCE;
    let (mut events, mut theirs, mut is_made): (Vec<Event>, _, _) = (Vec::new(), None, false);
    loop {
        ring.wait(Some(PATIENCE), &mut events).unwrap();
        for event in &events {
            match event.kind {
                Kind::Accepted { .. } => theirs = Some(event.handle),
                Kind::Connected if event.handle == ours => is_made = true,
                kind @ (Kind::Failed(_) | Kind::Closed(_) | Kind::Finished) if event.handle == ours => {
                    return Err(kind);
                }
                _ => {}
            }
        }
        if let Some(theirs) = theirs.filter(|_| is_made) {
            return Ok([ours, theirs]);
        }
        assert!(Instant::now() < end, "{ours:?} is neither made nor refused: {theirs:?}, {is_made}");
    }
}

/// Makes a connection of the ring with itself.
fn one(ring: &mut Ring, address: SocketAddr) -> Result<[Handle; 2], String> {
    let ours = match ring.connect(address, ConnectOptions::default(), 0) {
        Ok(ours) => ours,
        Err(e @ (Error::Full(_) | Error::KernelOnly(_) | Error::Refused(_))) => return Err(e.to_string()),
        Err(e) => panic!("{e:?} is no reason"),
    };
    meet(ring, ours).map_err(|kind| {
        ring.conn(ours).unwrap().close();
        format!("{kind:?}")
    })
}

#[test]
fn a_full_ring_names_the_limit_and_its_connections_go_on() {
    alone("full::a_full_ring_names_the_limit_and_its_connections_go_on", check);
}

fn check() {
    let place = service_with(service::Options { region_slots: Some(SLOTS), ..service::Options::default() });
    let options = Options { control: Some(place.control.clone()), ..Options::default() };
    let mut ring = Service::open(options).unwrap().ring().unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = ring.listen(any, ListenOptions::default(), 0).unwrap();
    let address = ring.local_address(listener).unwrap();
    let mut made = Vec::new();
    let why = loop {
        match one(&mut ring, address) {
            Ok(both) => made.push(both),
            Err(why) => break why,
        }
        assert!(made.len() < SLOTS as usize, "no limit");
    };
    assert!(made.len() >= SLOTS as usize / 4 && !why.is_empty(), "{} connections, then {why}", made.len());
    // Those that are made carry bytes.
    for [ours, theirs] in &made {
        ring.conn(*ours).unwrap().write(b"x").unwrap();
        let end = Instant::now() + PATIENCE;
        let mut events = Vec::new();
        while ring.conn(*theirs).unwrap().read().unwrap().is_empty() {
            ring.wait(Some(PATIENCE), &mut events).unwrap();
            assert!(Instant::now() < end, "a byte does not come");
        }
    }
    // Places that are given back are used again.
    for [ours, theirs] in made.drain(..) {
        ring.conn(ours).unwrap().close();
        ring.conn(theirs).unwrap().close();
    }
    let end = Instant::now() + PATIENCE;
    while let Err(why) = one(&mut ring, address) {
        assert!(Instant::now() < end, "{why}, though every connection is closed");
    }
}
