//! The service is killed while a program is in its calls: the next call says so, and none hangs.

use crate::alone::alone;
use crate::common::{PATIENCE, daemon};
use ring::{ConnectOptions, Error, Event, Kind, ListenOptions, Options, Ring, Service};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

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
    alone("killed::a_service_that_dies_in_a_call_leaves_an_error_that_says_so", check);
}

fn check() {
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
