//! Rates of the policy file, from the file to the wire: programs send as much as they can to the kernel's TCP over a TAP. Needs root, `ip` and `python3`;
//! elsewhere each test says that it is skipped.

use crate::cores::world::{PATIENCE, TAP, World};
use rustix::thread::CapabilitySet;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The rate, bits for each second.
const RATE: u64 = 20_000_000;
/// What may go at once after a pause, for each process.
const BURST: u64 = 64 << 10;
/// The bytes that must come at the peer.
const BYTES: u64 = 5_000_000;

/// Starts the service with a rule, and so many programs with two connections together. Returns the time from before the first of them started until
/// `BYTES` had come at the peer: no less than the sending took, however busy the machine is.
fn time_of(world: &mut World, rule: &str, programs: usize) -> Duration {
    let file = world.folder.path().join("policy.toml");
    std::fs::write(&file, format!("[[rule]]\n{rule}\n")).unwrap();
    let policy = ["--policy", file.to_str().unwrap()];
    world.serve(&[&TAP[..], &policy].concat(), CapabilitySet::empty());
    let listener = world.inside(CapabilitySet::empty(), || TcpListener::bind("10.82.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port().to_string();
    let (come, begun) = (AtomicU64::new(0), Instant::now());
    let connections = (2 / programs).to_string();
    std::thread::scope(|scope| {
        for _ in 0..programs {
            world.start("bulk.py", &["10.82.0.1", &port, &connections]);
        }
        let peers: Vec<TcpStream> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        for peer in &peers {
            let (mut peer, come) = (peer.try_clone().unwrap(), &come);
            // So that a failure ends this thread, too.
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            scope.spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(count @ 1..) = peer.read(&mut bytes) {
                    come.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
        while come.load(Ordering::Relaxed) < BYTES {
            assert!(begun.elapsed() < PATIENCE, "{come:?} bytes have come");
            std::thread::sleep(Duration::from_millis(5));
        }
        let took = begun.elapsed();
        peers.iter().for_each(|peer| peer.shutdown(std::net::Shutdown::Both).unwrap());
        took
    })
}

/// No more than the rate comes at the peer.
fn check(name: &str, key: &str, programs: usize) {
    let Some(mut world) = World::new(name) else { return };
    let took = time_of(&mut world, &format!("{key} = \"{} Mbit/s\"", RATE / 1_000_000), programs);
    let least = Duration::from_nanos((BYTES - 2 * BURST) * 8 * 1_000_000_000 / RATE);
    assert!(took >= least, "{BYTES} bytes in {took:?}, not {least:?}");
}

#[test]
fn two_connections_of_a_process_send_no_more_than_the_rate_of_the_process() {
    check("process", "rate_per_process", 1);
}

#[test]
fn two_processes_of_a_user_send_no_more_than_the_rate_of_the_user() {
    check("user", "rate", 2);
}

#[test]
fn two_processes_that_a_rule_fits_send_no_more_than_the_rate_of_all() {
    check("all", "rate_of_all", 2);
}
