//! Groups of flows that move between the cores of a running service while its connections carry bytes: over a TAP that is steered, over one that
//! is not, and over packet sockets. Needs root, `ip` and `python3`; elsewhere each test says that it is skipped.

pub mod world;

use base::Seed;
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{CapabilitySet, CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wire::{Endpoint, FourTuple};
use world::{OWN, PATIENCE, TAP, World, ip};

const PORT: u16 = 5000;
const CONNECTIONS: usize = 24;
/// Bytes that each connection sends and gets back, at least.
const BYTES: usize = 1 << 20;
/// Changes of the number of cores that each run sees at least.
const CHANGES: usize = 12;
/// The TAP into which they send.
const INTERFACE: &str = "flooded";
/// Programs that flood, at least: more than a core takes.
const FLOODS: usize = 3;

/// Says that something is over when it goes out of scope, also by a panic: threads that wait for that end, and the test with them.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One fewer is left when this goes out of scope, also by a panic.
struct OneFewer<'a>(&'a AtomicUsize);

impl Drop for OneFewer<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl World {
    /// Starts the service without the capabilities `lost`, and a program that echoes.
    fn serve_echo(&mut self, arguments: &[&str], lost: CapabilitySet) {
        self.serve(arguments, lost);
        self.start("echo.py", &[OWN, &PORT.to_string()]);
    }

    /// The report of `towpath cores` with these arguments.
    fn cores(&self, arguments: &[&str]) -> Value {
        let output = self.towpath("cores").arg("--json").args(arguments).output().unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// What a subcommand prints.
    fn text(&self, name: &str) -> String {
        String::from_utf8(self.towpath(name).env("COLUMNS", "1000").output().unwrap().stdout).unwrap()
    }

    /// Waits until the report of `towpath cores` is as `is_so` says, and returns it.
    fn until(&self, what: &str, is_so: impl FnMut(&Value) -> bool) -> Value {
        let mut is_so = is_so;
        let end = Instant::now() + PATIENCE;
        loop {
            let all = self.cores(&[]);
            if is_so(&all) {
                return all;
            }
            assert!(Instant::now() < end, "{what}: {all}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts a program that sends frames with a wrong checksum to the service. Returns when it begins.
    fn flood(&self) -> Flood {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/py/flood.py");
        let mut flood = Command::new("python3");
        flood.args([script, INTERFACE, OWN]).stdout(Stdio::piped());
        let mut flood = self.inside(CapabilitySet::empty(), || flood.spawn().unwrap());
        flood.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        Flood(flood)
    }

    /// Changes the number of cores over and over while connections of the kernel's carry bytes through the program. Returns the last report.
    fn change_under_load(&self) -> Value {
        let (left, changes) = (AtomicUsize::new(CONNECTIONS), AtomicUsize::new(0));
        let is_over = AtomicBool::new(false);
        self.inside(CapabilitySet::empty(), || {
            std::thread::scope(|scope| {
                let _end = AtEnd(&is_over);
                for number in 0..CONNECTIONS {
                    let (left, changes, is_over) = (&left, &changes, &is_over);
                    scope.spawn(move || {
                        let _left = OneFewer(left);
                        talk(number as u64, || {
                            changes.load(Ordering::Relaxed) >= CHANGES || is_over.load(Ordering::Relaxed)
                        });
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

/// Sends bytes drawn by `seed`, in pieces of many sizes, and compares what comes back, until `is_over` says so and enough was sent.
fn talk(seed: u64, is_over: impl Fn() -> bool) {
    exchange(&TcpStream::connect((OWN, PORT)).unwrap(), seed, is_over);
}

/// As [`talk`], over a connection.
fn exchange(mut stream: &TcpStream, seed: u64, is_over: impl Fn() -> bool) {
    let mut rng = Seed::new(seed);
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

#[test]
fn every_byte_arrives_over_a_steered_tap_while_groups_move() {
    let Some(mut world) = World::new("tap") else { return };
    world.serve_echo(&TAP, CapabilitySet::empty());
    let report = world.change_under_load();
    check(&report, "a program of the TAP");
    let stat = world.towpath("stat").arg("--json").output().unwrap();
    let stat: Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(stat["cores"]["moves"], report["moves"]);
}

/// The log, `towpath cores` and `towpath explain` say what the service does instead, and why.
#[test]
fn every_byte_arrives_over_a_tap_that_cannot_be_steered() {
    let Some(mut world) = World::new("hash") else { return };
    let log = world.keep_log();
    world.serve_echo(&TAP, CapabilitySet::BPF | CapabilitySet::SYS_ADMIN);
    check(&world.change_under_load(), "it needs CAP_BPF");
    let _connection = world.inside(CapabilitySet::empty(), || TcpStream::connect((OWN, PORT)).unwrap());
    let says = |text: &String| text.contains("it needs CAP_BPF") && text.contains("cores hand packets on");
    let end = Instant::now() + PATIENCE;
    loop {
        let logged = std::fs::read_to_string(&log).unwrap();
        let told = [logged, world.text("cores"), world.text("explain")];
        // The service may not have heard yet that the connection is there.
        if told.iter().all(says) {
            break;
        }
        assert!(Instant::now() < end, "{told:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Cores that come and go by themselves are not worth handing packets on: without steering there is one, and it serves.
#[test]
fn cores_that_follow_the_load_need_a_port_that_is_steered() {
    let Some(mut world) = World::new("unsteered") else { return };
    let log = world.keep_log();
    let arguments = ["--port", "tap", "--host-address", "10.82.0.1/24", "--cores", "auto:2"];
    world.serve_echo(&arguments, CapabilitySet::BPF | CapabilitySet::SYS_ADMIN);
    let report = world.cores(&[]);
    assert_eq!((&report["serving"], &report["most"]), (&1.into(), &1.into()), "{report}");
    let mut connection = world.inside(CapabilitySet::empty(), || TcpStream::connect((OWN, PORT)).unwrap());
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.write_all(b"served").unwrap();
    let mut answer = [0; 6];
    connection.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"served");
    for text in [std::fs::read_to_string(&log).unwrap(), report["steering"].to_string()] {
        assert!(text.contains("it needs CAP_BPF") && text.contains("one core serves all flows"), "{text}");
    }
}

/// A connection from a port for which the core of its group is `core`, when two cores serve.
fn connect_to_core(core: u8, group: Option<u8>) -> (TcpStream, u8) {
    let here = |port| Endpoint::new("10.82.0.1".parse().unwrap(), port);
    let there = Endpoint::new(OWN.parse().unwrap(), PORT);
    let group_of = |port: &u16| FourTuple::new(here(*port), there).group();
    let fits = |port: &u16| group.map_or(group_of(port) % 2 == core, |group| group_of(port) == group);
    let mut ports = (2_000..30_000).filter(fits);
    loop {
        let port = ports.next().expect("a port of that group is free");
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let bound = rustix::net::bind(&socket, &SocketAddrV4::new([10, 82, 0, 1].into(), port));
        if bound.is_ok() {
            rustix::net::connect(&socket, &SocketAddrV4::new(OWN.parse().unwrap(), PORT)).unwrap();
            return (socket.into(), group_of(&port));
        }
    }
}

/// Eight connections of one group send and receive without pause; connections of the other core's groups carry every byte meanwhile, and no
/// group moves.
#[test]
fn connections_of_other_groups_go_on_while_one_group_is_flooded() {
    let Some(mut world) = World::new("flood") else { return };
    world.serve_echo(&TAP, CapabilitySet::empty());
    let left = AtomicUsize::new(CONNECTIONS / 2);
    world.inside(CapabilitySet::empty(), || {
        let (first, group) = connect_to_core(0, None);
        let mut flood = vec![first];
        flood.extend((1..8).map(|_| connect_to_core(0, Some(group)).0));
        std::thread::scope(|scope| {
            for (number, stream) in flood.into_iter().enumerate() {
                let left = &left;
                scope.spawn(move || exchange(&stream, number as u64, || left.load(Ordering::Relaxed) == 0));
            }
            for number in 0..CONNECTIONS / 2 {
                let left = &left;
                scope.spawn(move || {
                    let _left = OneFewer(left);
                    let (stream, group) = connect_to_core(1, None);
                    exchange(&stream, 100 + number as u64, || true);
                    assert_eq!(group % 2, 1);
                });
            }
        });
    });
    let report = world.cores(&[]);
    let of = |core: usize, key: &str| report["cores"][core][key].as_u64().unwrap();
    assert!(of(0, "packets") > 0 && of(1, "packets") > 0, "{report}");
    assert_eq!((of(0, "lost") + of(1, "lost"), &report["moves"]), (0, &0.into()), "{report}");
    assert_eq!((of(0, "groups"), of(1, "groups")), (128, 128), "{report}");
}

/// A program that is killed when this goes out of scope.
struct Flood(Child);

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The machine that the service is shown: processors that are always idle, and no program that waits for one. So the load alone decides, however
/// busy the machine is that this test runs on.
struct Idle {
    stat: std::fs::File,
    begun: Instant,
}

impl Idle {
    fn show(world: &mut World) -> Self {
        let [stat, pressure] = ["stat", "pressure"].map(|name| world.folder.path().join(name));
        std::fs::write(&pressure, "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n").unwrap();
        let idle = Self { stat: std::fs::File::create(&stat).unwrap(), begun: Instant::now() };
        idle.go_on();
        world.machine = Some([stat, pressure]);
        idle
    }

    /// Writes the idle time until now, in hundredths of a second.
    fn go_on(&self) {
        let ticks = self.begun.elapsed().as_millis() / 10;
        let lines = (0..CpuSet::MAX_CPU).map(|cpu| format!("cpu{cpu} 0 0 0 {ticks:>12} 0 0 0 0 0 0\n"));
        self.stat.write_all_at(lines.collect::<String>().as_bytes(), 0).unwrap();
    }
}

/// Frames that a core receives and drops keep it busy: a second one comes, and goes when they end. Connections carry every byte meanwhile.
#[test]
fn a_core_comes_with_the_load_and_goes_with_it() {
    if sched_getaffinity(None).unwrap().count() < 2 {
        return println!("skipped: needs two processors");
    }
    if !Path::new("/proc/pressure/cpu").exists() {
        return println!("skipped: needs /proc/pressure/cpu, which the kernel lacks");
    }
    let Some(mut world) = World::new("load") else { return };
    let idle = Idle::show(&mut world);
    let port = format!("tap:{INTERFACE}");
    let arguments = ["--port", &port, "--host-address", "10.82.0.1/24", "--cores", "auto:2"];
    world.serve_echo(&arguments, CapabilitySet::empty());
    assert_eq!(world.cores(&[])["serving"], 1);
    let floods = FLOODS.max(sched_getaffinity(None).unwrap().count() as usize / 2).min(8);
    let streams: Vec<TcpStream> = world.inside(CapabilitySet::empty(), || {
        (0..4).map(|_| TcpStream::connect((OWN, PORT)).unwrap()).collect()
    });
    let is_over = [const { AtomicBool::new(false) }; 2];
    std::thread::scope(|scope| {
        let [load_is_over, all_is_over] = &is_over;
        let _ends = (AtEnd(load_is_over), AtEnd(all_is_over));
        scope.spawn(move || {
            while !all_is_over.load(Ordering::Relaxed) {
                idle.go_on();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        for (number, stream) in streams.iter().enumerate() {
            scope.spawn(move || exchange(stream, number as u64, || load_is_over.load(Ordering::Relaxed)));
        }
        let begun = Instant::now();
        let floods: Vec<Flood> = (0..floods).map(|_| world.flood()).collect();
        // The load goes on for a second: where there is a processor for it, the core proves itself, and stays.
        world.until("a core comes", |all| {
            let first = all["changes"].as_array().unwrap().last();
            first.is_some_and(|first| first["cores"] == 2 && first["ago_ms"].as_u64() >= Some(1_000))
        });
        let report = world.cores(&[]);
        let first = report["changes"].as_array().unwrap().last().unwrap()["ago_ms"].as_u64().unwrap();
        let added = begun.elapsed().saturating_sub(Duration::from_millis(first));
        let ended = Instant::now();
        drop(floods);
        load_is_over.store(true, Ordering::Relaxed);
        world.until("it goes", |all| all["serving"] == 1 && all["moves_left"] == 0);
        let removed = ended.elapsed().saturating_sub(ago(&world.cores(&[])));
        println!("a core came {added:?} after the load, and went {removed:?} after its end (0: before it)");
    });
    // It may have come once more, for the last bytes of the load.
    let report = world.until("one core has all flows", |all| {
        all["serving"] == 1 && all["moves_left"] == 0 && all["cores"][1]["flows"] == 0
    });
    streams.iter().for_each(|stream| exchange(stream, 9, || true));
    let changes = report["changes"].as_array().unwrap();
    let first = changes.last().unwrap();
    assert_eq!((&first["why"], &first["cores"]), (&"busy".into(), &2.into()), "{report}");
    // Where the floods leave no processor for it, it may go before they end.
    assert!(["idle", "brought-nothing"].contains(&changes[0]["why"].as_str().unwrap()), "{report}");
    assert!(report["moves"].as_u64().unwrap() >= 2, "{report}");
    assert_eq!(
        (&report["cores"][0]["groups"], &report["cores"][1]["flows"]),
        (&256.into(), &0.into()),
        "{report}"
    );
    let stat: Value =
        serde_json::from_slice(&world.towpath("stat").arg("--json").output().unwrap().stdout).unwrap();
    assert!(stat["cores"]["moves"].as_u64() >= report["moves"].as_u64(), "{stat}");
}

/// Time since the last change.
fn ago(report: &Value) -> Duration {
    Duration::from_millis(report["changes"][0]["ago_ms"].as_u64().unwrap())
}

/// The service's threads may run on one of its processors only from now on.
fn take_processors_away(service: &Child) {
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    for task in std::fs::read_dir(format!("/proc/{}/task", service.id())).unwrap() {
        let name = task.unwrap().file_name();
        let thread = Pid::from_raw(name.to_str().unwrap().parse().unwrap());
        sched_setaffinity(thread, &one).unwrap();
    }
}

#[test]
fn one_core_serves_when_processors_are_taken_away_and_connections_live_on() {
    if sched_getaffinity(None).unwrap().count() < 2 {
        return println!("skipped: needs two processors");
    }
    let Some(mut world) = World::new("less") else { return };
    world.serve_echo(
        &["--port", "tap", "--host-address", "10.82.0.1/24", "--cores", "auto:2"],
        CapabilitySet::empty(),
    );
    world.cores(&["--set", "2"]);
    let is_over = AtomicBool::new(false);
    world.inside(CapabilitySet::empty(), || {
        std::thread::scope(|scope| {
            let _end = AtEnd(&is_over);
            for number in 0..CONNECTIONS {
                let is_over = &is_over;
                scope.spawn(move || talk(number as u64, || is_over.load(Ordering::Relaxed)));
            }
            world.until("two cores serve flows", |all| {
                all["moves_left"] == 0 && (0..2).all(|core| all["cores"][core]["flows"].as_u64() > Some(0))
            });
            take_processors_away(&world.running[0]);
            world.cores(&["--set", "auto"]);
            world.until("one core has all flows", |all| {
                all["moves_left"] == 0 && all["serving"] == 1 && all["cores"][1]["flows"] == 0
            });
        });
    });
    let report = world.cores(&[]);
    assert_eq!(
        (&report["processors"], &report["changes"][0]["why"]),
        (&1.into(), &"fewer-processors".into())
    );
    assert!(world.text("cores").contains("the service may use fewer processors"), "{report}");
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
    // The second socket begins to receive under load, when the service has given up its capabilities.
    world.serve_echo(&["--port", "packet:v1", "--cores", "auto:2"], CapabilitySet::empty());
    let report = world.change_under_load();
    check(&report, "a program of the group of packet sockets");
    // Handed on by the first core, packets would come as well.
    assert_eq!(report["tables_refused"], 0, "{report}");
    assert!(report["cores"][1]["packets"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn more_cores_than_there_are_are_refused_with_what_to_do() {
    let Some(mut world) = World::new("more") else { return };
    world.serve(&TAP, CapabilitySet::empty());
    let done = world.towpath("cores").args(["--set", "99"]).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(
        !done.status.success() && said.contains("2 of the 99 cores") && said.contains("--cores 14"),
        "{said}"
    );
    assert_eq!(world.cores(&[])["serving"], 2, "a refusal changes nothing");
}

#[test]
fn ss_and_explain_show_the_core_of_each_connection_and_stat_none_where_there_is_one() {
    let Some(mut world) = World::new("shown") else { return };
    world.serve_echo(&TAP, CapabilitySet::empty());
    let connections: Vec<TcpStream> = world.inside(CapabilitySet::empty(), || {
        (0..8).map(|_| TcpStream::connect((OWN, PORT)).unwrap()).collect()
    });
    world.cores(&["--set", "1"]);
    world.until("no move is left", |all| all["moves_left"] == 0);
    let ss: Value =
        serde_json::from_slice(&world.towpath("ss").arg("--json").output().unwrap().stdout).unwrap();
    let flows: Vec<&Value> =
        ss["sockets"].as_array().unwrap().iter().filter(|s| s["kind"] == "flow").collect();
    assert_eq!(flows.len(), connections.len());
    assert!(flows.iter().all(|flow| flow["core"] == 0 && flow["group"].is_u64()), "{ss}");
    let text = world.text("explain");
    assert!(
        text.contains("core 0, group ") && text.contains("packets come to cores by a program of the TAP"),
        "{text}"
    );
    let text = world.text("cores");
    assert!(text.contains("1 of 2 cores serve flows (fixed)") && text.contains("it was asked for"), "{text}");
}
