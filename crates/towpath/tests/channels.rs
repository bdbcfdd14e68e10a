//! Two services in two network namespaces, joined by a veth pair, and ordinary programs over channels between them. Needs root, `ip` and
//! `python3`; elsewhere each test says that it is skipped.

use crate::common::library;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// For whatever a busy machine delays.
const PATIENCE: Duration = Duration::from_secs(120);
const PORT: &str = "7117";
const ADDRESSES: [&str; 2] = ["10.81.0.1", "10.81.0.2"];
/// The kernel's address in the second namespace.
const STRANGER: &str = "10.81.0.3/24";
const PEERS: &str = "10.81.0.0/24";
/// The pairs of interfaces of the two ways.
const WAYS: [&str; 2] = ["a", "b"];
/// Addresses of the two hosts on the second way.
const SECOND: [&str; 2] = ["10.82.0.1", "10.82.0.2"];

/// The log's words for a session that has had no channel for ten seconds.
const LONELY: &str = "no channel could be made";
/// A machine on which a service takes longer to start than its peer waits for it (15 s and more) may have the scene so many times.
const TRIES: usize = 5;
/// A service that starts in that time is there before its peer gives up a session without channels, which takes ten seconds.
const IN_TIME: Duration = Duration::from_secs(5);

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A started program and the lines that it prints.
struct Program {
    running: Running,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
        Self { running, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("a line").unwrap()
    }

    /// The lines up to `last`, which must come.
    fn until(&mut self, last: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.lines.next() {
                Some(line) if line.as_ref().unwrap() == last => return lines,
                Some(line) => lines.push(line.unwrap()),
                None => panic!("{last} does not come after {lines:?}: {:?}", self.running.0.wait()),
            }
        }
    }
}

/// Two hosts: a namespace and a service each.
struct World {
    names: [String; 2],
    folder: tempfile::TempDir,
    services: [Option<Running>; 2],
}

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).output().is_ok_and(|done| done.status.success())
}

impl World {
    /// `None` where namespaces cannot be made, after a word that says so.
    fn new(name: &str) -> Option<Self> {
        let names = [0, 1].map(|host| format!("twp-{name}{host}-{}", std::process::id()));
        let has_python = Command::new("python3").arg("--version").output().is_ok();
        let folder = tempfile::tempdir().unwrap();
        let world = Self { names, folder, services: [None, None] };
        let [a, b] = &world.names;
        let is_made = has_python && ip(&format!("netns add {a}")) && ip(&format!("netns add {b}"));
        if !is_made {
            println!("skipped: needs root, `ip`, network namespaces and python3");
            return None;
        }
        assert!(ip(&format!("link add v0 netns {a} type veth peer name v1 netns {b}")));
        for (name, link) in [(a, "v0"), (b, "v1")] {
            assert!(ip(&format!("-n {name} link set lo up")) && ip(&format!("-n {name} link set {link} up")));
        }
        assert!(ip(&format!("-n {b} addr add {STRANGER} dev v1")));
        Some(world)
    }

    /// Two hosts with two addresses each. Their kernels carry the frames of each address over a pair of its own, `a` or `b`: to the service a
    /// kernel is the other station of its link, which answers for the other host's addresses.
    fn with_two_ways(name: &str) -> Option<Self> {
        let mut world = Self::new(name)?;
        let [a, b] = world.names.clone();
        for way in WAYS {
            assert!(ip(&format!("link add {way}0 netns {a} type veth peer name {way}1 netns {b}")));
        }
        for host in 0..2 {
            let name = &world.names[host];
            let link = ["v0", "v1"][host];
            assert!(ip(&format!("-n {name} link del {link}")) || host == 1, "both ends go at once");
            assert!(ip(&format!("-n {name} link add {link} type veth peer name w")));
            assert!(ip(&format!("-n {name} link set {link} up")) && ip(&format!("-n {name} link set w up")));
            for network in ["10.81.0.254/24", "10.82.0.254/24"] {
                assert!(ip(&format!("-n {name} addr add {network} dev w")));
            }
            for (way, network) in WAYS.iter().zip(["10.83.0", "10.84.0"]) {
                assert!(ip(&format!("-n {name} addr add {network}.{}/24 dev {way}{host}", host + 1)));
            }
            let set = "cd /proc/sys/net/ipv4; echo 1 > ip_forward; echo 1 > conf/w/proxy_arp; echo 0 > neigh/w/proxy_delay";
            assert!(world.command(host, "sh").args(["-c", set]).status().unwrap().success());
        }
        WAYS.iter().for_each(|way| world.set_way(way, true));
        for (host, second) in SECOND.iter().enumerate() {
            let (second, of) =
                (format!("{second}/24"), |at: usize| format!("{}+{}", ADDRESSES[at], SECOND[at]));
            let (peers, hosts) = (format!("{PEERS},10.82.0.0/24"), format!("{},{}", of(0), of(1)));
            world.serve(
                host,
                &["--address", &second, "--channel-peers", &peers, "--channel-addresses", &hosts],
            );
        }
        Some(world)
    }

    /// Opens a way, or closes it, at both hosts.
    fn set_way(&self, way: &str, is_up: bool) {
        for host in 0..2 {
            let (name, link) = (&self.names[host], format!("{way}{host}"));
            assert!(ip(&format!("-n {name} link set {link} {}", if is_up { "up" } else { "down" })));
        }
        for host in (0..2).filter(|_| is_up) {
            let (name, other) = (&self.names[host], host ^ 1);
            let (to, by) =
                if way == WAYS[0] { (ADDRESSES[other], "10.83.0") } else { (SECOND[other], "10.84.0") };
            assert!(ip(&format!("-n {name} route add {to}/32 via {by}.{} dev {way}{host}", other + 1)));
        }
    }

    /// Both hosts with channels, and these arguments.
    fn with_channels(name: &str, arguments: &[&str]) -> Option<Self> {
        let mut world = Self::new(name)?;
        for host in 0..2 {
            world.serve(host, &[&["--channel-peers", PEERS], arguments].concat());
        }
        Some(world)
    }

    fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], program]);
        command.env("TOWPATH_PRELOAD", library());
        command
    }

    fn towpath(&self, host: usize, name: &str) -> Command {
        let mut command = self.command(host, env!("CARGO_BIN_EXE_towpath"));
        command.arg(name).arg("--control").arg(self.folder.path().join(format!("{host}/control.sock")));
        command
    }

    /// Starts the service of host 1 again. How long that took.
    fn serve_timed(&mut self, arguments: &[&str]) -> Duration {
        let began = Instant::now();
        self.serve(1, arguments);
        began.elapsed()
    }

    fn serve(&mut self, host: usize, arguments: &[&str]) {
        let mut up = self.towpath(host, "up");
        let address = format!("{}/24", ADDRESSES[host]);
        // A service that starts anew is the same station for its peer.
        let mac = format!("02:00:00:00:81:0{host}");
        up.args(["--port", &format!("packet:v{host}"), "--address", &address, "--mac", &mac]).args(arguments);
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path(host)).unwrap();
        let service = Running(up.stderr(log).spawn().unwrap());
        self.services[host] = Some(service);
        self.wait("the service starts", || self.towpath(host, "stat").output().unwrap().status.success());
    }

    /// Both hosts start anew, with channels, and know nothing of each other.
    fn renew(&mut self) {
        self.services = [None, None];
        (0..2).for_each(|host| self.serve(host, &["--channel-peers", PEERS]));
    }

    fn log_path(&self, host: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("log{host}"))
    }

    /// What the services of that host have written to their log.
    fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.log_path(host)).unwrap_or_default()
    }

    fn wait(&self, what: &str, mut is: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is() {
            assert!(Instant::now() < end, "{what} does not happen: {}", self.report(0, "channels"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn report(&self, host: usize, name: &str) -> Value {
        let output = self.towpath(host, name).arg("--json").output().unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// A program of ours on that host with accelerated sockets; `wish`: its `TOWPATH_CHANNEL`.
    fn run(&self, host: usize, wish: &str, script: &str, arguments: &[&str]) -> Program {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/py").join(script);
        let mut command = self.towpath(host, "run");
        command.args(["--require", "--", "python3"]).arg(path).args(arguments);
        Program::start(command.env("TOWPATH_CHANNEL", wish))
    }

    /// A program of ours on the kernel's TCP of that host.
    fn run_on_kernel(&self, host: usize, script: &str, arguments: &[&str]) -> Program {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/py").join(script);
        Program::start(self.command(host, "python3").arg(path).args(arguments))
    }

    fn echo(&self, host: usize, more: &[&str]) -> Program {
        let mut echo = self.run(host, "never", "echo.py", &[&[ADDRESSES[host], "5000"], more].concat());
        assert_eq!(echo.line(), "ready");
        echo
    }

    /// Loads the echo server at `to` from the other host. Returns the ports of the connections.
    fn load(&self, to: usize, wish: &str, more: &[&str]) -> Vec<String> {
        let arguments = [&[ADDRESSES[to], "5000"], more].concat();
        let mut load = self.run(to ^ 1, wish, "load.py", &arguments);
        let ports = load.until("done");
        assert!(load.running.0.wait().unwrap().success());
        ports
    }

    fn opened(&self, host: usize) -> u64 {
        self.report(host, "channels")["counted"]["opened"].as_u64().unwrap()
    }

    /// What the report of `host` says of the other one.
    fn standing(&self, host: usize) -> (String, String) {
        let report = self.report(host, "channels");
        let peer =
            report["peers"].as_array().unwrap().iter().find(|peer| peer["peer"] == ADDRESSES[host ^ 1]);
        let word = |key: &str| peer.map_or("", |peer| peer[key].as_str().unwrap_or("")).to_owned();
        (word("standing"), word("why"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.services = [None, None];
        if std::thread::panicking() {
            (0..2).for_each(|host| println!("log of host {host}:\n{}", self.log(host)));
        }
        self.names.iter().for_each(|name| _ = ip(&format!("netns del {name}")));
    }
}

#[test]
fn programs_of_two_hosts_talk_over_channels_in_both_directions() {
    let Some(world) = World::with_channels("both", &[]) else { return };
    for server in 0..2 {
        let mut echo = world.echo(server, &[]);
        let ports = world.load(server, "require", &[]);
        let seen: Vec<String> = ports.iter().map(|_| echo.line()).collect();
        let expected = ports.iter().map(|port| format!("{}:{port}", ADDRESSES[server ^ 1]));
        assert!(expected.eq(seen), "getpeername is the peer's address and port");
        assert_eq!(world.opened(server ^ 1), ports.len() as u64);
        let before = world.opened(server ^ 1);
        world.load(server, "never", &[]);
        assert_eq!(world.opened(server ^ 1), before, "`never` is plain TCP");
    }
    let report = world.report(0, "channels");
    assert_eq!(report["counted"]["unserved"], 0);
    assert_eq!(report["counted"]["violations"], 0);
    world.wait("all sockets end", || world.report(0, "channels")["counted"]["sockets"] == 0);
}

#[test]
fn with_two_cores_channels_lie_on_both_and_every_byte_arrives() {
    let Some(world) = World::with_channels("cores", &["--cores", "2", "--channel-count", "2"]) else {
        return;
    };
    let _echo = world.echo(1, &[]);
    let mut hold = world.run(0, "require", "hold.py", &[ADDRESSES[1], "5000"]);
    assert_eq!(hold.line(), "held");
    for host in 0..2 {
        // For the second channel a port is chosen by which it belongs to the other core; both hosts give groups to cores in the same way.
        world.wait("the channels lie on both cores", || {
            let sessions = world.report(host, "channels")["sessions"].clone();
            let channels = sessions
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|session| session["channels"].as_array().unwrap());
            let mut cores: Vec<_> = channels.map(|channel| channel["core"].as_u64()).collect();
            cores.sort_unstable();
            cores == [Some(0), Some(1)]
        });
    }
    for wish in ["never", "require"] {
        // Several ports of the peer, so that frames come to both cores.
        (0..2).for_each(|_| drop(world.load(1, wish, &[])));
    }
    assert_eq!(world.report(1, "channels")["counted"]["violations"], 0);
}

#[test]
fn a_rule_says_which_connections_go_by_channel_and_explain_says_why() {
    let rules = ["--channel-rules", "10.81.0.0/24:5000=latency"];
    let Some(world) = World::with_channels("rule", &rules) else { return };
    let _echo = world.echo(1, &[]);
    // The first connection to an unknown peer is plain, and has the peer asked.
    world.load(1, "", &[]);
    world.wait("the peer answers", || world.standing(0).0 == "speaks");
    let mut hold = world.run(0, "", "hold.py", &[ADDRESSES[1], "5000"]);
    assert_eq!(hold.line(), "held");
    let socket = &world.report(0, "channels")["sockets"][0];
    assert_eq!(
        (&socket["remote"], &socket["why"]),
        (&"10.81.0.2:5000".into(), &"rule 1 of --channel-rules".into())
    );
    let lines = world.report(0, "ss")["sockets"].clone();
    let line = lines.as_array().unwrap().iter().find(|line| line["kind"] == "channel");
    assert_eq!(line.unwrap()["state"], "ESTABLISHED");
    let sessions = world.report(1, "channels")["sessions"].clone();
    assert!(sessions.as_array().unwrap().iter().any(|session| session["class"] == "latency"), "{sessions}");
    let explained = world.report(0, "explain").to_string();
    assert!(explained.contains("by channel: rule 1 of --channel-rules"), "{explained}");
}

/// Only a TCP connection of its own obeys the rate of a program, whichever side has connected.
#[test]
fn a_program_with_a_bounded_rate_uses_plain_tcp_in_both_directions() {
    let Some(mut world) = World::new("rate") else { return };
    let policy = world.folder.path().join("policy.toml");
    std::fs::write(&policy, "[[rule]]\nrate = \"1 Gbit/s\"\n").unwrap();
    world.serve(0, &["--channel-peers", PEERS]);
    world.serve(1, &["--channel-peers", PEERS, "--policy", policy.to_str().unwrap()]);
    for (client, why) in [(0, "the peer takes this socket by plain TCP only"), (1, "--policy bounds")] {
        let _echo = world.echo(client ^ 1, &[]);
        if client == 0 {
            // This session asks for channels, so that the peer is known; the connection itself is the second one.
            world.load(1, "prefer", &[]);
            world.wait("the peer answers", || world.standing(0).0 == "speaks");
        }
        let mut hold = world.run(client, "prefer", "hold.py", &[ADDRESSES[client ^ 1], "5000"]);
        assert_eq!(hold.line(), "held");
        let explained = world.report(client, "explain").to_string();
        assert!(explained.contains(why), "{explained}");
        world.load(client ^ 1, "prefer", &[]);
        let mut refused = world.run(client, "require", "hold.py", &[ADDRESSES[client ^ 1], "5000"]);
        assert!(!refused.running.0.wait().unwrap().success(), "`require` does not become plain");
    }
    assert_eq!(world.opened(1), 0, "no socket of the bounded program goes by channel");
}

#[test]
fn a_peer_without_channels_is_spoken_to_by_plain_tcp() {
    let Some(mut world) = World::new("lone") else { return };
    world.serve(0, &["--channel-peers", PEERS]);
    world.serve(1, &[]);
    let _echo = world.echo(1, &[]);
    world.load(1, "prefer", &[]);
    let mut hold = world.run(0, "prefer", "hold.py", &[ADDRESSES[1], "5000"]);
    assert_eq!(hold.line(), "held");
    let explained = world.report(0, "explain").to_string();
    assert!(explained.contains("plain TCP: the peer"), "{explained}");
    assert_eq!(world.opened(0), 0);
    world.wait("the peer counts as silent", || world.standing(0).0 == "silent");
}

#[test]
fn a_peer_with_another_secret_is_spoken_to_by_plain_tcp() {
    let Some(mut world) = World::new("secret") else { return };
    for host in 0..2 {
        let file = world.folder.path().join(format!("secret{host}"));
        std::fs::write(&file, format!("{host}").repeat(32)).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        world.serve(host, &["--channel-peers", PEERS, "--channel-secret", file.to_str().unwrap()]);
    }
    let _echo = world.echo(1, &[]);
    world.load(1, "prefer", &[]);
    world.wait("the peer counts as silent", || world.standing(0).0 == "silent");
    assert!(world.standing(0).1.contains("secret"), "{:?}", world.standing(0));
    let line = "refused by the peer: the secrets differ";
    world.wait("the refusal is in the log", || world.log(1).contains(line));
    let refused = &world.report(1, "channels")["counted"]["greetings_refused"];
    assert_eq!((world.log(1).matches(line).count(), refused.as_u64()), (1, Some(1)));
    world.load(1, "prefer", &[]);
    assert_eq!(world.opened(0), 0);
    let mut hold = world.run(0, "require", "hold.py", &[ADDRESSES[1], "5000"]);
    assert!(!hold.running.0.wait().unwrap().success(), "`require` fails where there is no channel");
}

#[test]
fn garbage_at_the_channel_port_disturbs_nobody() {
    let Some(world) = World::with_channels("garbage", &[]) else { return };
    let _echo = world.echo(0, &[]);
    let mut hold = world.run(1, "require", "hold.py", &[ADDRESSES[0], "5000"]);
    assert_eq!(hold.line(), "held");
    let mut garbage = world.run_on_kernel(1, "garbage.py", &[ADDRESSES[0], PORT]);
    let number: u64 = garbage.until("done")[0].parse().unwrap();
    world.load(0, "require", &[]);
    let counted = || world.report(0, "channels")["counted"].clone();
    // Those that say nothing are given up after 5 s.
    world.wait("all of it is refused", || counted()["greetings_refused"].as_u64() >= Some(number));
    assert_eq!(counted()["greetings_refused"], number, "each is counted once");
    assert_eq!((&counted()["violations"], &counted()["sockets"]), (&0.into(), &1.into()));
    let log = world.log(0);
    for reason in [
        "refused: no version of the protocol in common",
        "the peer broke the rules: frame of unknown type 255",
        "the peer broke the rules: HELLO with contradictory fields",
        "has not ended its handshake",
    ] {
        let lines = log.lines().filter(|line| line.contains("10.81.0.3") && line.contains(reason)).count();
        assert_eq!(lines, 1, "{reason}: each reason once: {log}");
    }
}

#[test]
fn a_reader_that_stops_holds_up_no_other_socket() {
    let Some(world) = World::with_channels("stop", &[]) else { return };
    let _echo = world.echo(1, &["stop"]);
    world.load(1, "require", &["stopped"]);
}

/// The session of `host` with so many sockets as programs have opened there.
fn session_of(world: &World, host: usize) -> Value {
    let report = world.report(host, "channels");
    let sessions = report["sessions"].as_array().unwrap();
    sessions.iter().find(|session| session["opener"] == true).cloned().unwrap_or_default()
}

#[test]
fn one_or_all_of_a_sessions_connections_die_and_no_socket_notices() {
    let Some(world) = World::with_channels("kill", &["--channel-count", "3"]) else { return };
    let _echo = world.echo(1, &[]);
    let mut hold = world.run(0, "require", "hold.py", &[ADDRESSES[1], "5000"]);
    assert_eq!(hold.line(), "held");
    let channels = || session_of(&world, 0)["channels"].as_array().map_or(0, Vec::len);
    let lost = || session_of(&world, 0)["channels_lost"].as_u64().unwrap();
    world.wait("the session has three channels", || channels() == 3);
    assert_eq!(session_of(&world, 0)["channels_why"], "--channel-count");
    for count in [1, 3] {
        let dead = lost() + count;
        // A reset that comes late has a number that is not the next any more, one without frames to answer does not come at all, and the killer
        // may see the last frame of a connection that has died before: then it is tried once more.
        world.wait("the connections are dead", || {
            let left = dead.saturating_sub(lost());
            if left > 0 {
                // The frames of a load show what is to be killed; each byte of the load is checked.
                let mut killer = world.run_on_kernel(1, "rst.py", &["v1", PORT, &left.to_string()]);
                let mut load = world.run(0, "require", "load.py", &[ADDRESSES[1], "5000"]);
                load.until("done");
                assert!(load.running.0.wait().unwrap().success());
                assert!(killer.line().starts_with("sees"));
            }
            left == 0
        });
        world.wait("there are three channels again", || channels() == 3);
    }
    let counted = &world.report(0, "channels")["counted"];
    assert_eq!((&counted["violations"], &counted["unserved"]), (&0.into(), &0.into()));
    let sockets = world.report(0, "channels")["sockets"].as_array().unwrap().len();
    assert_eq!(sockets, 1, "the held socket is as it was");
}

/// The ends of the channels of that session, without ports, in order.
fn ends_of(session: &Value) -> Vec<[String; 2]> {
    let channels = session["channels"].as_array().cloned().unwrap_or_default();
    let address = |end: &Value| end.as_str().unwrap_or("").split(':').next().unwrap_or("").to_owned();
    let mut all: Vec<_> =
        channels.iter().map(|channel| [address(&channel["local"]), address(&channel["remote"])]).collect();
    all.sort();
    all
}

#[test]
fn channels_go_over_all_addresses_and_one_that_dies_takes_no_socket_with_it() {
    let Some(world) = World::with_two_ways("ways") else { return };
    let _echo = world.echo(1, &[]);
    let mut hold = world.run(0, "require", "hold.py", &[ADDRESSES[1], "5000"]);
    assert_eq!(hold.line(), "held");
    let ends = [0, 1].map(|way| [0, 1].map(|host| [ADDRESSES, SECOND][way][host].to_owned()));
    let both = || ends_of(&session_of(&world, 0)) == ends;
    for dead in 0..2 {
        world.wait("each address has a channel", both);
        world.load(1, "require", &[]);
        world.set_way(WAYS[dead], false);
        // Each byte is checked, of sockets that are opened before the death is known, too.
        world.load(1, "require", &[]);
        let alive = ends[dead ^ 1].clone();
        world.wait("all channels go over the other address", || {
            ends_of(&session_of(&world, 0)) == [alive.clone(), alive.clone()]
        });
        world.load(1, "require", &[]);
        world.set_way(WAYS[dead], true);
    }
    world.wait("each address has a channel again", both);
    let report = world.report(0, "channels");
    let counted = &report["counted"];
    assert_eq!((&counted["violations"], &counted["unserved"]), (&0.into(), &0.into()));
    assert_eq!(report["sockets"].as_array().unwrap().len(), 1, "the held socket is as it was");
    assert_eq!(session_of(&world, 0)["channels_why"], "one for each address of the peer");
}

/// The service of host 1 ends, or dies and starts anew. Why its session is over at host 0, and how long the start took. The first is true if by
/// the restart, the second if because it had no channel for ten seconds.
fn end_of_a_service(world: &mut World, is_killed: bool) -> ([bool; 2], Duration) {
    let _echo = world.echo(1, &[]);
    let mut hold = world.run(0, "require", "hold.py", &[ADDRESSES[1], "5000"]);
    assert_eq!(hold.line(), "held");
    let reasons = ["the peer's service has started anew", LONELY];
    let count = |world: &World| reasons.map(|reason| world.log(0).matches(reason).count());
    let before = count(world);
    if !is_killed {
        assert!(world.towpath(1, "down").status().unwrap().success());
    }
    // Killed, if it lives.
    world.services[1] = None;
    let took = world.serve_timed(&["--channel-peers", PEERS]);
    assert_eq!(hold.line(), "104", "ECONNRESET");
    world.wait("the reason is in the log", || !is_killed || count(world) != before);
    let after = count(world);
    ([0, 1].map(|reason| after[reason] > before[reason]), took)
}

#[test]
fn the_end_and_the_death_of_a_peers_service_reset_its_sockets() {
    let Some(mut world) = World::with_channels("death", &[]) else { return };
    assert_eq!(end_of_a_service(&mut world, false).0, [false; 2], "{}", world.log(0));
    // The reason says that it was at once: a death without a restart is found by the PING and ten seconds without a channel.
    let is_at_once = (0..TRIES).find_map(|_| {
        world.renew();
        let (why, took) = end_of_a_service(&mut world, true);
        // On a very busy machine the new service may come too late to be the reason.
        (took < IN_TIME || why[0]).then_some(why == [true, false])
    });
    assert_eq!(is_at_once, Some(true), "{}", world.log(0));
}

#[test]
fn a_socket_becomes_plain_tcp_when_its_session_is_lost_before_the_peer_has_accepted_it() {
    let Some(mut world) = World::with_channels("plain", &[]) else { return };
    let is_lost_later = (0..TRIES).find_map(|_| {
        world.renew();
        let echo = world.echo(1, &[]);
        world.load(1, "require", &[]);
        let opened = world.opened(0);
        drop(echo);
        // The host is there again, without channels. The other one believes that it has a session with it.
        world.services[1] = None;
        let took = world.serve_timed(&[]);
        let _echo = world.echo(1, &[]);
        // Each byte is checked. The first connection waits until no channel can be made for ten seconds.
        world.load(1, "prefer", &[]);
        let unserved = world.report(0, "channels")["counted"]["unserved"].as_u64();
        assert_eq!(unserved, Some(world.opened(0) - opened), "what was to go by channel became plain");
        // A service that comes after ten seconds finds no session any more.
        let is_lost_later = world.opened(0) > opened;
        (took < IN_TIME || is_lost_later).then_some(is_lost_later)
    });
    assert_eq!(is_lost_later, Some(true), "it was to go by channel");
    let mut hold = world.run(0, "require", "hold.py", &[ADDRESSES[1], "5000"]);
    assert!(!hold.running.0.wait().unwrap().success(), "`require` does not become plain");
}

#[test]
fn a_proved_peer_that_breaks_the_rules_loses_its_session_and_no_other_is_disturbed() {
    let Some(mut world) = World::new("breach") else { return };
    let (file, secret) = (world.folder.path().join("secret"), "a secret of both services");
    std::fs::write(&file, secret).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for host in 0..2 {
        world.serve(host, &["--channel-peers", PEERS, "--channel-secret", file.to_str().unwrap()]);
    }
    let _echo = world.echo(0, &[]);
    let mut hold = world.run(1, "require", "hold.py", &[ADDRESSES[0], "5000"]);
    assert_eq!(hold.line(), "held");
    let arguments = [ADDRESSES[0], PORT, secret, "5000"];
    let breaches = world.run_on_kernel(1, "breach.py", &arguments).until("done");
    world.load(0, "require", &[]);
    let counted = || world.report(0, "channels")["counted"].clone();
    assert_eq!(counted()["violations"].as_u64(), Some(breaches.len() as u64), "{breaches:?}");
    assert_eq!(counted()["greetings_refused"], 0);
    let log = world.log(0);
    for reason in [
        "frame of unknown type 99",
        "Data frame with a body of 61441 bytes",
        "frame of socket 3, which was never opened",
        "credit ends at",
        "confirms 1000000, which was never sent",
        "OPEN of socket 7 where 1 had to come",
        "PONG that answers no PING",
    ] {
        let is_it = |line: &str| line.contains("is over: the peer broke the rules") && line.contains(reason);
        assert!(log.lines().any(is_it), "{reason}: {log}");
    }
    world.wait("its sockets are gone", || counted()["sockets"] == 1);
    let stat = world.towpath(0, "stat").output().unwrap();
    let stat = String::from_utf8_lossy(&stat.stdout).into_owned();
    assert!(stat.contains("sessions ended for a peer's fault 7"), "{stat}");
}

#[test]
fn two_users_share_no_channel() {
    let Some(world) = World::with_channels("users", &[]) else { return };
    // The service's folder is open to all users; the one around it is the test's.
    std::fs::set_permissions(world.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let _echo = world.echo(1, &[]);
    let held = ["0", "12345", "12345"].map(|uid| {
        let mut hold = world.run(0, "require", "hold.py", &[ADDRESSES[1], "5000", uid]);
        assert_eq!(hold.line(), "held");
        hold
    });
    let report = world.report(0, "channels");
    let sessions = report["sessions"].as_array().unwrap().iter();
    let mut users: Vec<_> =
        sessions.map(|session| (session["uid"].as_u64(), session["sockets"].as_u64())).collect();
    users.sort_unstable();
    assert_eq!(users, [(Some(0), Some(1)), (Some(12_345), Some(2))]);
    let channels = report["counted"]["channels"].as_u64();
    assert_eq!(channels, Some(2), "one for each user");
    drop(held);
}

#[test]
fn options_of_a_socket_mean_what_the_document_says_and_what_is_written_arrives_though_the_service_ends() {
    let Some(mut world) = World::with_channels("leave", &[]) else { return };
    let mut sink = world.run(1, "never", "sink.py", &[ADDRESSES[1], "5000"]);
    assert_eq!(sink.line(), "ready");
    let leave = |world: &World, more: &[&str]| {
        let mut leave = world.run(0, "require", "leave.py", &[&[ADDRESSES[1], "5000"], more].concat());
        assert_eq!(leave.line(), "established segments", "TCP_INFO");
        assert_eq!(leave.line(), "left");
    };
    leave(&world, &["1000"]);
    assert_eq!(sink.line(), "1000 end");
    leave(&world, &["1000", "abort"]);
    assert!(sink.line().ends_with(" 104"), "SO_LINGER 0 is a reset");
    assert_eq!(world.opened(0), 2);
    leave(&world, &["20000"]);
    assert!(world.towpath(0, "down").status().unwrap().success());
    assert_eq!(sink.line(), "20000 end");
    world.services[0] = None;
}
