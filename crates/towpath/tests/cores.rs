//! Groups of flows that move between the cores of a running service while its connections carry bytes: over a TAP that is steered, over one that
//! is not, and over packet sockets. Needs root, `ip` and `python3`; elsewhere each test says that it is skipped.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file: its helpers panic like its tests

#[path = "../../preload/tests/common/mod.rs"]
mod common;

use base::Seed;
use common::library;
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, move_into_link_name_space, remove_capability_from_bounding_set,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// For whatever a busy machine delays.
const PATIENCE: Duration = Duration::from_secs(120);
const OWN: &str = "10.82.0.2";
const PORT: u16 = 5000;
const CONNECTIONS: usize = 24;
/// Bytes that each connection sends and gets back, at least.
const BYTES: usize = 1 << 20;
/// Changes of the number of cores that each run sees at least.
const CHANGES: usize = 12;

/// A network namespace with a service of two cores, and a program that echoes what comes to the service's address.
struct World {
    name: String,
    folder: tempfile::TempDir,
    running: Vec<Child>,
}

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).output().is_ok_and(|done| done.status.success())
}

impl World {
    /// `None` where namespaces cannot be made, after a word that says so.
    fn new(name: &str) -> Option<Self> {
        let name = format!("twp-{name}-{}", std::process::id());
        let has_python = Command::new("python3").arg("--version").output().is_ok();
        if !(has_python && ip(&format!("netns add {name}"))) {
            println!("skipped: needs root, `ip`, network namespaces and python3");
            return None;
        }
        Some(Self { name, folder: tempfile::tempdir().unwrap(), running: Vec::new() })
    }

    /// Does `work` in a thread in the namespace, without `lost` for the programs that it starts.
    fn inside<T: Send>(&self, lost: CapabilitySet, work: impl FnOnce() -> T + Send) -> T {
        let there = move || {
            let place = std::fs::File::open(Path::new("/run/netns").join(&self.name)).unwrap();
            move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            lost.iter().for_each(|one| remove_capability_from_bounding_set(one).unwrap());
            work()
        };
        std::thread::scope(|scope| scope.spawn(there).join().unwrap())
    }

    fn towpath(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command.arg(name).arg("--control").arg(self.folder.path().join("service/control.sock"));
        command.env("TOWPATH_PRELOAD", library());
        command
    }

    /// Starts the service without the capabilities `lost`, and the program.
    fn serve(&mut self, arguments: &[&str], lost: CapabilitySet) {
        let mut up = self.towpath("up");
        up.args(["--address", &format!("{OWN}/24")]).args(arguments);
        let service = self.inside(lost, || up.spawn().unwrap());
        self.running.push(service);
        let end = Instant::now() + PATIENCE;
        while !self.towpath("stat").output().unwrap().status.success() {
            assert!(Instant::now() < end, "the service does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut echo = self.towpath("run");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/py/echo.py");
        echo.args(["--require", "--", "python3"]).arg(script).args([OWN, &PORT.to_string()]);
        let mut echo = self.inside(CapabilitySet::empty(), || echo.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(echo.stdout.take().unwrap()).lines();
        self.running.push(echo);
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        // The program goes on writing a line for each client.
        std::thread::spawn(move || lines.count());
    }

    fn cores(&self, arguments: &[&str]) -> Value {
        let output = self.towpath("cores").arg("--json").args(arguments).output().unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Changes the number of cores over and over while connections of the kernel's carry bytes through the program. Returns the last report.
    fn change_under_load(&self) -> Value {
        let (left, changes) = (AtomicUsize::new(CONNECTIONS), AtomicUsize::new(0));
        self.inside(CapabilitySet::empty(), || {
            std::thread::scope(|scope| {
                for number in 0..CONNECTIONS {
                    let (left, changes) = (&left, &changes);
                    scope.spawn(move || {
                        talk(number as u64, || changes.load(Ordering::Relaxed) >= CHANGES);
                        left.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                let end = Instant::now() + PATIENCE;
                while left.load(Ordering::Relaxed) > 0 {
                    assert!(Instant::now() < end, "connections hang: {}", self.cores(&[]));
                    let cores = ["1", "2"][changes.load(Ordering::Relaxed) % 2];
                    self.cores(&["--set", cores]);
                    while self.cores(&[])["moves_left"] != 0 {
                        assert!(Instant::now() < end, "a move does not end: {}", self.cores(&[]));
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        self.cores(&[])
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in self.running.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = ip(&format!("netns del {}", self.name));
    }
}

/// Sends bytes drawn by `seed`, in pieces of many sizes, and compares what comes back, until `is_over` says so and enough was sent.
fn talk(seed: u64, is_over: impl Fn() -> bool) {
    let mut rng = Seed::new(seed);
    let mut stream = TcpStream::connect((OWN, PORT)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sent = 0;
    while sent < BYTES || !is_over() {
        let len = 1 + (rng.below(64 << 10) >> rng.below(16)) as usize;
        let piece: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        let mut back = vec![0; len];
        // It is written whole before anything is read: so much fits into the buffers of both sides.
        stream.write_all(&piece).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert!(piece == back, "connection {seed}: other bytes come back after {sent}");
        sent += len;
    }
}

/// What each run must show: groups and flows have moved, and back; nothing is under way.
fn check(report: &Value, steering: &str) {
    let of = |core: usize, key: &str| report["cores"][core][key].as_u64().unwrap();
    assert!(report["steering"].as_str().unwrap().contains(steering), "{report}");
    assert!(report["moves"].as_u64().unwrap() >= CHANGES as u64 / 2, "{report}");
    assert!(of(0, "moved_out") > 0 && of(1, "moved_in") > 0 && of(1, "moved_out") > 0, "{report}");
    assert_eq!(of(0, "groups") + of(1, "groups"), 256, "{report}");
}

const TAP: [&str; 6] = ["--port", "tap", "--host-address", "10.82.0.1/24", "--cores", "2"];

#[test]
fn every_byte_arrives_over_a_steered_tap_while_groups_move() {
    let Some(mut world) = World::new("tap") else { return };
    world.serve(&TAP, CapabilitySet::empty());
    let report = world.change_under_load();
    check(&report, "a program of the TAP");
    let stat = world.towpath("stat").arg("--json").output().unwrap();
    let stat: Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(stat["cores"]["moves"], report["moves"]);
}

#[test]
fn every_byte_arrives_over_a_tap_that_cannot_be_steered() {
    let Some(mut world) = World::new("hash") else { return };
    world.serve(&TAP, CapabilitySet::BPF | CapabilitySet::SYS_ADMIN);
    check(&world.change_under_load(), "it needs CAP_BPF");
}

#[test]
fn every_byte_arrives_over_packet_sockets_while_groups_move() {
    let Some(mut world) = World::new("veth") else { return };
    let name = world.name.clone();
    for words in [
        format!("-n {name} link add v0 type veth peer name v1"),
        format!("-n {name} addr add 10.82.0.1/24 dev v0"),
        format!("-n {name} link set v0 up"),
        format!("-n {name} link set v1 up"),
    ] {
        assert!(ip(&words), "{words}");
    }
    world.serve(&["--port", "packet:v1", "--cores", "2"], CapabilitySet::empty());
    check(&world.change_under_load(), "a program of the group of packet sockets");
}

#[test]
fn ss_and_explain_show_the_core_of_each_connection_and_stat_none_where_there_is_one() {
    let Some(mut world) = World::new("shown") else { return };
    world.serve(&TAP, CapabilitySet::empty());
    let connections: Vec<TcpStream> = world.inside(CapabilitySet::empty(), || {
        (0..8).map(|_| TcpStream::connect((OWN, PORT)).unwrap()).collect()
    });
    world.cores(&["--set", "1"]);
    let end = Instant::now() + PATIENCE;
    while world.cores(&[])["moves_left"] != 0 {
        assert!(Instant::now() < end, "{}", world.cores(&[]));
    }
    let ss: Value =
        serde_json::from_slice(&world.towpath("ss").arg("--json").output().unwrap().stdout).unwrap();
    let flows: Vec<&Value> = ss.as_array().unwrap().iter().filter(|s| s["kind"] == "flow").collect();
    assert_eq!(flows.len(), connections.len());
    assert!(flows.iter().all(|flow| flow["core"] == 0 && flow["group"].is_u64()), "{ss}");
    let explained = world.towpath("explain").output().unwrap();
    let text = String::from_utf8_lossy(&explained.stdout);
    assert!(
        text.contains("core 0, group ") && text.contains("packets come to cores by a program of the TAP"),
        "{text}"
    );
    let text = world.towpath("cores").output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("1 of 2 cores serve flows (fixed)") && text.contains("it was asked for"), "{text}");
}
