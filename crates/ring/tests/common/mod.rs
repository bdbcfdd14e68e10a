//! A service in a thread of the test, and ordinary programs under the preload library as peers.
#![allow(dead_code, missing_docs)]

pub mod kv;
#[path = "../../../preload/tests/common/mod.rs"]
mod preloaded;
#[path = "../../../service/tests/common/thread.rs"]
mod thread;

use service::Options;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A test that waits longer than this hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Place {
    pub folder: tempfile::TempDir,
    pub control: PathBuf,
}

/// A service of its own, as long as the test lives.
pub fn service() -> Place {
    service_with(Options::default())
}

/// As [`service`], with more options.
pub fn service_with(more: Options) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("service/control.sock");
    let options = Options {
        control: Some(control.clone()),
        region_slots: more.region_slots.or(Some(1024)),
        region_mib: more.region_mib.or(Some(8)),
        ..more
    };
    let config = options.resolve().unwrap();
    thread::serve(config);
    Place { folder, control }
}

/// The folder of the workspace's programs and libraries.
pub fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().to_owned()
}

impl Place {
    /// `program`, an ordinary one, under the preload library.
    pub fn ordinary(&self, program: impl AsRef<Path>) -> Command {
        let library = preloaded::library();
        let mut command = Command::new(program.as_ref());
        command.env("LD_PRELOAD", library).env("TOWPATH_CONTROL", &self.control);
        command.env("TOWPATH_REQUIRE", "1");
        command
    }

    /// Starts an example, a server.
    pub fn example(&self, name: &str) -> Server {
        self.start(Command::new(built().join("examples").join(name)).arg("127.0.0.1:0"))
    }

    /// Starts a server, and reads from its first line where it listens.
    pub fn start(&self, command: &mut Command) -> Server {
        let command = command.env("TOWPATH_CONTROL", &self.control).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let address = read_address(&mut lines);
        Server { child, address, lines }
    }

    /// Compiles `tests/c/<name>.c`.
    pub fn compile(&self, name: &str) -> PathBuf {
        self.compile_at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c"))
    }

    /// Compiles an ordinary program of one file.
    pub fn compile_at(&self, source: &Path) -> PathBuf {
        compile_to(self.folder.path(), source)
    }
}

/// Compiles an ordinary program of one file into `folder`.
pub fn compile_to(folder: &Path, source: &Path) -> PathBuf {
    let program = folder.join(source.file_stem().unwrap());
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, source]);
    assert!(compiler.status().expect("a C compiler is installed by `make setup`").success());
    program
}

/// True if the program is installed; else says that what needs it is skipped.
pub fn has(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        eprintln!("skipped: {program} is not installed");
    }
    is_there
}

/// An example that serves, until dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    lines: BufReader<ChildStderr>,
}

impl Server {
    /// The address at the end of the server's next line.
    pub fn next_address(&mut self) -> SocketAddr {
        read_address(&mut self.lines)
    }
}

/// The address at the end of a line: `name: listens at 127.0.0.1:1234`.
fn read_address(lines: &mut BufReader<ChildStderr>) -> SocketAddr {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line.trim().rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("the server says {line}"))
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program prints, if it ends in time and well.
pub fn output(command: &mut Command) -> String {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{status}: {stdout}{stderr}");
    stdout
}

/// A service in a process of its own, which can be killed.
pub struct Daemon {
    folder: tempfile::TempDir,
    pub control: PathBuf,
    child: Child,
}

/// Starts the program `towpath`.
pub fn daemon() -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("service/control.sock");
    let child = start(&control);
    Daemon { folder, control, child }
}

fn start(control: &Path) -> Child {
    let program = built().join("towpath");
    let mut command = Command::new(&program);
    command.args(["up", "--control"]).arg(control).args(["--region-slots", "1024", "--region-mib", "8"]);
    let child =
        command.stderr(Stdio::null()).spawn().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let end = Instant::now() + PATIENCE;
    while !is_served(control) {
        assert!(Instant::now() < end, "the service does not start");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

/// True when a service listens there.
fn is_served(control: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let address = SocketAddrUnix::new(control).unwrap();
    let probe = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&probe, &address).is_ok()
}

impl Daemon {
    pub fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn start_again(&mut self) {
        self.child = start(&self.control);
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
