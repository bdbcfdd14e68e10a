//! Each row of `docs/privileges.md` by a service that starts with the capabilities of its features and no others: what it has left once it
//! serves, in every thread, and that a connection works; and the service as the installed unit starts it. Needs root and network namespaces.

use crate::common::library;
use control::{CoresWish, Line, Report, Request, ToService};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, move_into_link_name_space, remove_capability_from_bounding_set,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For whatever a busy machine delays.
const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 7000;
const EVERY: &str = "every service, `--port none` and private ones too";
const BOUNDING: &str = "an empty bounding set";
const HELD: &str = "ports held for connections inside this host";
const USER: &str = "`--user USER`";

/// A network namespace of this name, gone when dropped.
struct Namespace(String);

impl Namespace {
    /// `None` where this process may not make one.
    fn new(name: &str) -> Option<Self> {
        let name = format!("twp-may-{name}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        made.is_ok_and(|made| made.status.success()).then_some(Self(name))
    }

    fn ip(&self, words: &str) {
        let done = Command::new("ip").args(["-n", &self.0]).args(words.split(' ')).status().unwrap();
        assert!(done.success(), "ip {words}");
    }

    /// Does `work` in a thread that is there, and has lost all other capabilities for the programs that it starts.
    fn inside<T: Send>(&self, left: CapabilitySet, work: impl FnOnce() -> T + Send) -> T {
        let there = move || {
            let place = std::fs::File::open(Path::new("/run/netns").join(&self.0)).unwrap();
            move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            limit(left);
            work()
        };
        std::thread::scope(|scope| scope.spawn(there).join().unwrap())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn limit(left: CapabilitySet) {
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if !left.contains(one) {
            // The kernel says EINVAL for numbers beyond its last.
            let _ = remove_capability_from_bounding_set(one);
        }
    }
}

/// What the page says of the row with a feature that begins so: capabilities at start, and kept.
fn row(feature: &str) -> [CapabilitySet; 2] {
    let page = service::privileges();
    let line =
        page.lines().find(|line| line.strip_prefix("| ").is_some_and(|line| line.starts_with(feature)));
    let columns: Vec<&str> = line.expect(feature).split(" | ").collect();
    [columns[1], columns[2]].map(|column| {
        let names = column.split([' ', '`']).filter_map(|word| word.strip_prefix("CAP_"));
        names.map(|name| CapabilitySet::from_name(name).expect(name)).collect()
    })
}

/// What the rows take, at start and afterwards, and keep.
fn rows(features: &[&str]) -> [CapabilitySet; 2] {
    let empty = CapabilitySet::empty();
    features.iter().map(|feature| row(feature)).fold([empty, empty], |[all, kept], [at_start, also_kept]| {
        [all | at_start | also_kept, kept | also_kept]
    })
}

struct Service {
    running: Child,
    folder: tempfile::TempDir,
}

fn control(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("service/control.sock")
}

/// A folder that every user may pass.
fn folder() -> tempfile::TempDir {
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    tempfile::Builder::new().permissions(open).tempdir().unwrap()
}

impl Service {
    fn start(arguments: &[&str]) -> Self {
        let folder = folder();
        let mut up = Command::new(env!("CARGO_BIN_EXE_towpath"));
        up.arg("up").arg("--control").arg(control(&folder)).args(arguments);
        let mut service = Self { running: up.spawn().unwrap(), folder };
        let end = Instant::now() + PATIENCE;
        while !service.command("stat").output().unwrap().status.success() {
            assert!(service.running.try_wait().unwrap().is_none(), "the service has ended");
            assert!(Instant::now() < end, "the service does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        service
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command.arg(name).arg("--control").arg(control(&self.folder));
        // A service is believed without it, whatever user it has become: root has called `listen`.
        command.env_remove("TOWPATH_TRUST_UID");
        command
    }

    fn run(&self, program: &str) -> Command {
        let mut command = self.command("run");
        command.args(["--require", "--"]).arg(compile(self.folder.path(), program));
        command.env("TOWPATH_PRELOAD", library());
        command
    }

    /// Checks every thread; there are the control thread and a core at least.
    fn check(&self, kept: CapabilitySet, user: Option<u32>) {
        let kept = format!("{:016x}", kept.bits());
        let nothing = "0".repeat(16);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.running.id())).unwrap();
        let threads: Vec<PathBuf> = tasks.map(|task| task.unwrap().path().join("status")).collect();
        assert!(threads.len() > 1);
        for thread in threads {
            let text = std::fs::read_to_string(thread).unwrap();
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
                line.expect(name).to_owned()
            };
            for (name, expected) in [
                ("CapEff", &kept),
                ("CapPrm", &kept),
                ("CapInh", &nothing),
                ("CapBnd", &nothing),
                ("CapAmb", &nothing),
                ("NoNewPrivs", &"1".to_owned()),
                ("Seccomp", &"2".to_owned()),
            ] {
                assert_eq!(&field(name), expected, "{name} of {text}");
            }
            let uid = user.unwrap_or(0).to_string();
            assert!(field("Uid").split('\t').all(|each| each == uid), "{text}");
        }
    }

    /// Ends it as an init system does. Its socket goes with it.
    fn end(mut self) {
        let pid = Pid::from_child(&self.running);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.running.wait().unwrap().success());
        assert!(!control(&self.folder).exists(), "the control socket is removed");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}

fn compile(folder: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = folder.join(name);
    let status =
        Command::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]).status();
    assert!(status.expect("a C compiler is installed by `make setup`").success());
    program
}

/// A server behind the port answers a client of the kernel's, which `inside` brings to where the port's other end is.
fn answers(service: &Service, server: impl FnOnce(&mut Command) -> Child, address: &str, inside: &Namespace) {
    let mut command = service.run("answer");
    command.arg(PORT.to_string()).stdout(Stdio::piped());
    let mut server = server(&mut command);
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let answer = inside.inside(CapabilitySet::all(), || {
        let mut client = TcpStream::connect((address, PORT)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"with little right").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    });
    assert_eq!(answer, "with little right");
    assert!(server.wait().unwrap().success());
}

/// With and without `--user`: what is added to the features and arguments, and the user that results.
fn users() -> Vec<(Vec<&'static str>, Option<u32>)> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let nobody =
        passwd.lines().find_map(|line| line.strip_prefix("nobody:")?.split(':').nth(1)?.parse().ok());
    match nobody {
        Some(uid) => vec![(vec![], None), (vec!["--user", "nobody"], Some(uid))],
        None => vec![(vec![], None)],
    }
}

/// For each user a service with these features, with no other capability than theirs from its start on.
fn each(features: &[&str], arguments: &[&str], place: &Namespace, test: impl Fn(&Service)) {
    for (more, user) in users() {
        let mut features = [features, &[EVERY, BOUNDING, HELD]].concat();
        features.extend(user.map(|_| USER));
        let [all, kept] = rows(&features);
        let arguments = [arguments, &more].concat();
        let service = place.inside(all, || Service::start(&arguments));
        service.check(kept, user);
        test(&service);
        service.check(kept, user);
        service.end();
    }
}

/// A namespace, or a word why there is none.
fn namespace(name: &str) -> Option<Namespace> {
    let made = Namespace::new(name);
    if made.is_none() {
        println!("skipped: needs root, `ip` and network namespaces");
    }
    made
}

#[test]
fn a_service_without_a_port_needs_no_capability() {
    let Some(place) = namespace("none") else { return };
    place.ip("link set lo up");
    each(&[], &["--port", "none"], &place, |service| {
        let mut echo = service.run("echo");
        let echo = echo.stdin(Stdio::null());
        assert!(place.inside(CapabilitySet::all(), || echo.status()).unwrap().success());
    });
}

#[test]
fn a_tap_is_made_with_one_capability_that_is_given_up() {
    let Some(place) = namespace("tap") else { return };
    let arguments = ["--port", "tap", "--address", "10.78.0.2/24", "--host-address", "10.78.0.1/24"];
    each(&["`--port tap`"], &arguments, &place, |service| {
        let server = |command: &mut Command| place.inside(CapabilitySet::all(), || command.spawn().unwrap());
        answers(service, server, "10.78.0.2", &place);
    });
}

#[test]
fn a_tap_is_steered_with_a_second_capability_that_is_given_up() {
    let Some(place) = namespace("steered") else { return };
    let arguments =
        ["--port", "tap", "--cores", "2", "--address", "10.78.2.2/24", "--host-address", "10.78.2.1/24"];
    for (features, steering) in [
        (&["`--port tap`", "groups of flows brought to cores"][..], "a program of the TAP"),
        (&["`--port tap`"][..], "it needs CAP_BPF"),
    ] {
        each(features, &arguments, &place, |service| {
            let cores = service.command("cores").output().unwrap();
            let text = String::from_utf8_lossy(&cores.stdout);
            assert!(text.contains(steering), "{text}");
            let server =
                |command: &mut Command| place.inside(CapabilitySet::all(), || command.spawn().unwrap());
            answers(service, server, "10.78.2.2", &place);
        });
    }
}

#[test]
fn a_packet_socket_is_opened_with_one_capability_that_is_given_up() {
    let Some(place) = namespace("packet") else { return };
    for words in [
        "link add v0 type veth peer name v1",
        "addr add 10.79.0.1/24 dev v0",
        "link set v0 up",
        "link set v1 up",
    ] {
        place.ip(words);
    }
    let arguments = ["--port", "packet:v1", "--address", "10.79.0.2/24"];
    each(&["`--port packet:INTERFACE`"], &arguments, &place, |service| {
        let server = |command: &mut Command| place.inside(CapabilitySet::all(), || command.spawn().unwrap());
        answers(service, server, "10.79.0.2", &place);
    });
}

#[test]
fn a_port_in_another_namespace_takes_the_right_to_enter_it() {
    let (Some(place), Some(far)) = (namespace("near"), namespace("far")) else { return };
    let arguments =
        ["--port", "tap", "--netns", &far.0, "--address", "10.78.1.2/24", "--host-address", "10.78.1.1/24"];
    each(&["`--port tap`", "`--netns NAME`"], &arguments, &place, |service| {
        let server = |command: &mut Command| place.inside(CapabilitySet::all(), || command.spawn().unwrap());
        answers(service, server, "10.78.1.2", &far);
    });
}

/// The capabilities that the installed unit starts the service with.
fn of_unit() -> CapabilitySet {
    let unit = include_str!("../../../scripts/towpath.service.in");
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.unwrap().split(' ').map(|name| name.strip_prefix("CAP_").unwrap());
    names.map(|name| CapabilitySet::from_name(name).expect(name)).collect()
}

/// Copies of program and library where every user can read them.
fn for_all_users(folder: &tempfile::TempDir) -> [PathBuf; 2] {
    [Path::new(env!("CARGO_BIN_EXE_towpath")), &library()].map(|file| {
        let copy = folder.path().join(file.file_name().unwrap());
        std::fs::copy(file, &copy).unwrap();
        copy
    })
}

/// The bytes reach a core that the service has begun to use after it had given everything up.
#[test]
fn as_the_unit_starts_it_every_user_believes_the_service_and_a_second_core_receives() {
    let Some(place) = namespace("unit") else { return };
    let [(_, None), (as_user, Some(uid))] = &users()[..] else {
        return println!("skipped: there is no user nobody");
    };
    for words in [
        "link add v0 type veth peer name v1",
        "addr add 10.83.0.1/24 dev v0",
        "link set v0 up",
        "link set v1 up",
    ] {
        place.ip(words);
    }
    let arguments =
        [&["--port", "packet:v1", "--address", "10.83.0.2/24", "--cores", "auto:2"], &as_user[..]].concat();
    let service = place.inside(of_unit(), || Service::start(&arguments));
    service.check(CapabilitySet::empty(), Some(*uid));
    let [program, library] = for_all_users(&service.folder);
    let server = |command: &mut Command| {
        // An ordinary user, for whom no variable says whom to believe.
        let mut ordinary = Command::new("setpriv");
        ordinary.args(["--reuid", "4711", "--regid", "4711", "--clear-groups"]).arg(&program);
        ordinary.args(command.get_args()).env("TOWPATH_PRELOAD", &library).env_remove("TOWPATH_TRUST_UID");
        place.inside(CapabilitySet::all(), || ordinary.stdout(Stdio::piped()).spawn().unwrap())
    };
    let cores = |arguments: &[&str]| -> serde_json::Value {
        let output = service.command("cores").arg("--json").args(arguments).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    cores(&["--set", "2"]);
    while cores(&[])["moves_left"] != 0 {}
    let before = cores(&[])["cores"][1]["packets"].as_u64().unwrap();
    // Each connection is of a group of flows, of which the second core has half.
    for _ in 0..32 {
        answers(&service, server, "10.83.0.2", &place);
    }
    let after = cores(&[]);
    assert_eq!(after["tables_refused"], 0, "{after}");
    assert!(after["cores"][1]["packets"].as_u64().unwrap() > before, "{after}");
    service.check(CapabilitySet::empty(), Some(*uid));
    service.end();
}

/// The helper has the same rights as the program, but the kernel does not say of it that its caller has fewer.
#[test]
fn a_program_with_more_rights_than_its_caller_hands_the_library_s_variables_to_no_helper() {
    let [_, (_, Some(uid))] = &users()[..] else { return println!("skipped: there is no user nobody") };
    let folder = folder();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/variables.c");
    let program = folder.path().join("variables");
    let of_test = std::env::current_exe().unwrap();
    let folder_of_tests = of_test.parent().unwrap();
    for name in ["libtowpath_preload.so", "libtowpath.so"] {
        let copy = folder.path().join(name);
        let of_tests = [folder_of_tests.join(name), folder_of_tests.parent().unwrap().join(name)];
        let newest = of_tests
            .iter()
            .filter(|file| file.exists())
            .max_by_key(|file| file.metadata().unwrap().modified().unwrap());
        std::fs::copy(newest.expect("both are built with the workspace"), &copy).unwrap();
        let mut link = Command::new("cc");
        link.args(["-O1", "-Wall", "-Werror", "-Wl,--no-as-needed", "-o"]).args([&program, &source]);
        let run = format!("-Wl,-rpath,{}", folder.path().display());
        assert!(link.arg(&copy).arg(run).status().unwrap().success());
        let bits = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&program, mode).unwrap();
        };
        let run = || {
            let mut command = Command::new(&program);
            command.arg(&program).arg0("program").env_remove("TOWPATH_PRELOAD");
            command.envs([("TOWPATH_CONTROL", "/mine"), ("TOWPATH_TRUST_UID", "4711")]);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let all = "TOWPATH_CONTROL=/mine TOWPATH_TRUST_UID=4711";
        bits(0o755);
        assert_eq!(run(), format!("program secure 0: {all}\nhelper secure 0: {all}\n"), "{name}");
        if std::os::unix::fs::chown(&program, Some(*uid), None).is_err() {
            return println!("skipped: needs root");
        }
        bits(0o4755);
        let says = run();
        if says.starts_with("program secure 0") {
            return println!("skipped: files here give no rights (nosuid)");
        }
        assert_eq!(says, "program secure 1:\nhelper secure 0:\n", "{name}");
    }
}

/// The bytes of a request on a control line.
fn bytes_of(report: Report) -> Vec<u8> {
    let kind = rustix::net::SocketType::SEQPACKET;
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None).unwrap();
    Line::new(ours).send(&ToService { number: 1, request: Request::Report(report) }, &[], true).unwrap();
    let mut bytes = [0; 256];
    let len = rustix::io::read(&theirs, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// Sends the bytes that it is given to a socket, and writes the answer.
const SEND: &str = "import socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(sys.argv[1])
line.send(bytes.fromhex(sys.argv[2]))
sys.stdout.buffer.write(line.recv(4096))";

/// The number of root is not enough: a container may have it.
#[test]
fn root_in_another_pid_namespace_does_not_end_the_service_and_in_another_network_it_does() {
    let Some(place) = namespace("administrator") else { return };
    if Command::new("python3").arg("--version").output().is_err() {
        return println!("skipped: needs python3");
    }
    let mut service = place.inside(CapabilitySet::all(), || Service::start(&["--port", "none"]));
    let asks = |flags: &[&str], report: Report| {
        let hex: String = bytes_of(report).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut unshare = Command::new("unshare");
        unshare.args(flags).args(["python3", "-c", SEND]).arg(control(&service.folder)).arg(hex);
        let output = unshare.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let container = ["--pid", "--fork", "--mount-proc"];
    for report in [Report::Shutdown, Report::Reload, Report::Cores(CoresWish::Fixed(1))] {
        let said = asks(&container, report.clone());
        assert!(said.contains("only the service's own user and root"), "{report:?}: {said}");
    }
    assert!(service.running.try_wait().unwrap().is_none(), "it serves on");
    let said = asks(&["--net"], Report::Shutdown);
    assert!(!said.contains("only"), "{said}");
    assert!(service.running.wait().unwrap().success());
}

#[test]
fn a_folder_that_the_user_cannot_write_to_is_refused() {
    let folder = folder();
    let mut up = Command::new(env!("CARGO_BIN_EXE_towpath"));
    up.args(["up", "--user", "nobody", "--control"]).arg(folder.path().join("control.sock"));
    let output = up.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = if rustix::process::geteuid().is_root() { "does not belong to the user" } else { "by root" };
    assert!(!output.status.success() && said.contains(reason), "{said}");
}
