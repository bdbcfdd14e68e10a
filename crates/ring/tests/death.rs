//! The service ends: every call of a ring says so, and none hangs.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{PATIENCE, daemon};
use ring::{ConnectOptions, Error, Event, Kind, ListenOptions, Options, Ring, Service};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// All tests of a process share its registration.
static ONE: Mutex<()> = Mutex::new(());

#[test]
fn after_the_end_of_the_service_every_call_names_the_cause() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
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

/// What a busy program does: every call of it is one that asks the service, or one that uses what the service gave. Counts the calls.
fn busy(ring: &mut Ring, calls: &AtomicU32) -> Result<(), Error> {
    let count = || calls.fetch_add(1, Ordering::Relaxed);
    let mut events: Vec<Event> = Vec::new();
    loop {
        count();
        let listener = ring.listen((Ipv4Addr::LOCALHOST, 0).into(), ListenOptions::default(), 0)?;
        count();
        let address = ring.local_address(listener)?;
        let mut left = 3;
        for _ in 0..left {
            count();
            let ours = ring.connect(address, ConnectOptions::default(), 1)?;
            count();
            ring.conn(ours)?.write(b"bytes")?;
        }
        while left > 0 {
            count();
            ring.wait(Some(Duration::from_millis(20)), &mut events)?;
            for event in &events {
                count();
                match (event.kind, event.token) {
                    (Kind::Readable, 0) => {
                        let read = ring.conn(event.handle)?.read()?;
                        let n = read.len();
                        read.consume(n);
                        ring.conn(event.handle)?.close();
                    }
                    (Kind::Finished | Kind::Closed(_) | Kind::Failed(_), 1) => {
                        ring.conn(event.handle)?.close();
                        left -= 1;
                    }
                    _ => {}
                }
            }
        }
        count();
        ring.close_listener(listener)?;
    }
}

/// The service is killed in the middle of whatever call the program is in, again and again.
#[test]
fn a_service_that_dies_in_a_call_leaves_an_error_that_says_so() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut daemon = daemon();
    for round in 0..12 {
        let options = Options { control: Some(daemon.control.clone()), ..Options::default() };
        let mut ring = Service::open(options).unwrap().ring().unwrap();
        let calls = AtomicU32::new(0);
        let e = std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let e = busy(&mut ring, &calls).unwrap_err();
                // What it was told may have come before the end of the service: then it hears of the end at its next call.
                let end = Instant::now() + PATIENCE;
                let mut events = Vec::new();
                while ring.wait(Some(Duration::from_millis(20)), &mut events).is_ok() {
                    assert!(Instant::now() < end, "the ring does not notice, after {e:?}");
                }
                (e, ring.check())
            });
            let begun = Instant::now();
            while calls.load(Ordering::Relaxed) < round * 17 {
                assert!(begun.elapsed() < PATIENCE, "the program hangs");
                std::thread::yield_now();
            }
            daemon.end();
            program.join().unwrap()
        });
        assert_eq!(e.1, Err(Error::ServiceGone));
        let is_cause = matches!(e.0, Error::ServiceGone | Error::Ended(_) | Error::Full(_));
        assert!(is_cause, "round {round}: {:?}", e.0);
        daemon.start_again();
    }
}
