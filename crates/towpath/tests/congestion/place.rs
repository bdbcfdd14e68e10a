//! One test's namespace: link, service, programs, agents, and the kernel's end.

use super::ROLE_TEST;
use rustix::process::{Gid, Pid, Signal, Uid, kill_process};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For whatever a busy machine delays.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// One BDP of queue.
const LINK: &str = "rate=24mbit,delay=10ms,queue=40p";

pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The module of crate `ccp-python`, if it was built in this profile.
pub fn python_module() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_towpath")).with_file_name("libtowpath_cc.so");
    [beside.clone(), beside.with_file_name("deps/libtowpath_cc.so")].into_iter().find(|path| path.exists())
}

/// A process that is killed when dropped.
pub struct Running(Child);

impl Running {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does `work` in a thread that has become the user.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let there = move || {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(there).join().unwrap())
}

fn system(words: &str) {
    let mut words = words.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success());
}

/// The namespace that this process is in, with a link and a service. Processes end before the folder goes.
pub struct Place {
    service: Running,
    _link: Running,
    folder: tempfile::TempDir,
    /// Where agents are looked for; the first one serves `ccp`.
    agents: Vec<PathBuf>,
}

impl Place {
    pub fn new(arguments: &[&str]) -> Self {
        Self::make(arguments, &[])
    }

    /// An agent is looked for at `agent`: below the test's folder, or below `/tmp/ccp`.
    pub fn with_agents(arguments: &[&str], agent: &str) -> Self {
        Self::make(arguments, &[("ccp", agent)])
    }

    /// Agents by the names that they serve, and where each is looked for.
    pub fn with_named_agents(arguments: &[&str], agents: &[(&str, &str)]) -> Self {
        Self::make(arguments, agents)
    }

    fn make(arguments: &[&str], agents: &[(&str, &str)]) -> Self {
        let link = ["link", "tap:cc-left", "tap:cc-right", "--both", LINK];
        let mut link = Command::new(env!("CARGO_BIN_EXE_towpath"))
            .args(link)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(link.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("is up"), "{line}");
        system("ip address add 10.80.0.2/24 dev cc-right");
        for name in ["lo", "cc-left", "cc-right"] {
            system(&format!("ip link set {name} up"));
        }
        // Every user may pass it.
        let open = std::fs::Permissions::from_mode(0o755);
        let folder = tempfile::Builder::new().permissions(open).tempdir().unwrap();
        let place_of = |agent: &str| match agent.starts_with("/tmp") {
            true => PathBuf::from(agent),
            false => folder.path().join(&agent[1..]),
        };
        let named: Vec<(&str, PathBuf)> =
            agents.iter().map(|(name, agent)| (*name, place_of(agent))).collect();
        let mut up = Command::new(env!("CARGO_BIN_EXE_towpath"));
        up.args(["up", "--port", "packet:cc-left", "--address", "10.80.0.3/24", "--control"]);
        up.arg(folder.path().join("service/c")).args(arguments).stdout(Stdio::null());
        if !named.is_empty() {
            let places = named.iter().map(|(name, place)| format!("{name}={}", place.display()));
            up.arg("--cc-socket").arg(folder.path().join("agents/cc"));
            up.arg("--cc-agents").arg(places.collect::<Vec<_>>().join(","));
        }
        let service = Running(up.spawn().unwrap());
        let agents = named.into_iter().map(|(_, place)| place).collect();
        let mut place = Self { service, _link: Running(link), folder, agents };
        until("the service", || {
            assert!(place.service.0.try_wait().unwrap().is_none(), "the service has ended");
            place.command(&["stat"]).output().unwrap().status.success().then_some(())
        });
        place
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command.args(words).env("TOWPATH_CONTROL", self.folder.path().join("service/c"));
        command
    }

    /// What a command answers.
    pub fn json(&self, words: &[&str]) -> Value {
        let output = self.command(words).arg("--json").output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Why a command is refused.
    pub fn refusal(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub fn explained(&self) -> String {
        String::from_utf8(self.command(&["explain"]).env("COLUMNS", "1000").output().unwrap().stdout).unwrap()
    }

    fn flows(&self) -> Vec<Value> {
        let all = self.json(&["ss"])["sockets"].take();
        all.as_array().unwrap().iter().filter(|row| row["kind"] == "flow").cloned().collect()
    }

    /// The only flow that is established.
    pub fn flow(&self) -> Value {
        let mut flows = self.flows();
        flows.retain(|row| row["state"] == "ESTABLISHED");
        assert_eq!(flows.len(), 1, "{flows:?}");
        flows.remove(0)
    }

    /// The name of the flow to that port of the kernel's.
    pub fn flow_to(&self, port: u16) -> String {
        let remote = format!("10.80.0.2:{port}");
        let flow = self.flows().into_iter().find(|row| row["remote"] == remote.as_str()).unwrap();
        format!("{}-{remote}", flow["local"].as_str().unwrap())
    }

    /// Waits until `cc show` of a flow is as wanted.
    pub fn until(&self, flow: &str, what: &str, mut is_so: impl FnMut(&Value) -> bool) {
        let mut last = Value::Null;
        let end = Instant::now() + PATIENCE;
        while !is_so(&last) {
            assert!(Instant::now() < end, "{what} does not come: {last}");
            last = self.json(&["cc", "show", flow]);
        }
    }

    /// The C program, compiled.
    fn chosen(&self) -> PathBuf {
        let program = self.folder.path().join("chosen");
        if !program.exists() {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/chosen.c");
            let mut cc = Command::new("cc");
            cc.args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]);
            assert!(cc.status().expect("a C compiler is installed by `make setup`").success());
        }
        program
    }

    /// Starts the accelerated program.
    pub fn start(&self, way: &str, address: &str, port: u16, name: &str) -> Program {
        let mut command = self.command(&["run", "--require", "--"]);
        command.arg(self.chosen()).args([way, address, &port.to_string(), name]);
        command.env("TOWPATH_PRELOAD", crate::common::library());
        Program::of(&mut command)
    }

    /// Starts the accelerated program as another user, from copies of what that user may not be able to reach.
    pub fn start_as(&self, uid: u32, port: u16, name: &str) -> Program {
        let copy = |from: &Path, name: &str| {
            let to = self.folder.path().join(name);
            std::fs::copy(from, &to).unwrap();
            to
        };
        let towpath = copy(Path::new(env!("CARGO_BIN_EXE_towpath")), "towpath");
        let library = copy(&crate::common::library(), "library.so");
        let mut command = Command::new(towpath);
        command.args(["run", "--require", "--"]).arg(self.chosen());
        command.args(["connect", "10.80.0.2", &port.to_string(), name]).env("TOWPATH_PRELOAD", library);
        command.env("TOWPATH_CONTROL", self.folder.path().join("service/c")).current_dir("/");
        Program::of(command.uid(uid).gid(uid))
    }

    /// Starts the test's own agent.
    pub fn start_agent(&self) -> Running {
        self.start_agent_that("serves")
    }

    pub fn start_agent_that(&self, what: &str) -> Running {
        self.start_agent_at(0, what)
    }

    /// Starts the test's own agent at the place of that index.
    pub fn start_agent_at(&self, index: usize, what: &str) -> Running {
        let mut command = crate::role::command(ROLE_TEST, "agent");
        Running(
            command
                .env("AGENT", &self.agents[index])
                .env("AGENT_THAT", what)
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    /// Starts the example of crate `ccp-python` as an agent of live flows.
    pub fn start_python(&self) -> Running {
        let module = self.folder.path().join("towpath_cc.abi3.so");
        std::os::unix::fs::symlink(python_module().unwrap(), &module).unwrap();
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ccp-python/examples");
        let paths = std::env::join_paths([self.folder.path(), &examples]).unwrap();
        let run = "import sys, towpath_cc, aimd; towpath_cc.Agent(aimd.Aimd).run(path=sys.argv[1])";
        let mut command = Command::new("python3");
        command.args(["-c", run]).arg(&self.agents[0]);
        command.env("PYTHONPATH", paths).env("PYTHONDONTWRITEBYTECODE", "1");
        Running(command.spawn().unwrap())
    }

    /// Records what the service and its agents say; the file is there when the service has agreed.
    pub fn record(&self) -> (Running, PathBuf) {
        let file = self.folder.path().join("agents.rec");
        let mut command = self.command(&["cc", "record"]);
        let recorder = Running(command.arg(&file).stdout(Stdio::null()).spawn().unwrap());
        until("the recording", || file.exists().then_some(()));
        (recorder, file)
    }

    /// The service's socket towards agents.
    pub fn agents_socket(&self) -> PathBuf {
        self.folder.path().join("agents/cc")
    }

    /// A socket at the agent's place.
    pub fn be_agent(&self) -> UnixDatagram {
        let _ = std::fs::remove_file(&self.agents[0]);
        UnixDatagram::bind(&self.agents[0]).unwrap()
    }

    /// A socket at the agent's place, of another user, in a folder of that user, which the service may write to.
    pub fn be_agent_of(&self, uid: u32) -> UnixDatagram {
        let path = &self.agents[0];
        let folder = path.parent().unwrap();
        std::fs::create_dir(folder).unwrap();
        std::os::unix::fs::chown(folder, Some(uid), Some(uid)).unwrap();
        as_user(uid, || {
            let socket = UnixDatagram::bind(path).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
            socket
        })
    }

    /// A `/tmp/ccp` of this namespace alone, and there the link by which agents that put it in front of all paths find the service.
    pub fn make_portus_folder(&self) {
        std::fs::create_dir_all("/tmp/ccp").unwrap();
        system("mount -t tmpfs none /tmp/ccp");
        let first = self.folder.path().iter().nth(1).unwrap();
        std::os::unix::fs::symlink(Path::new("/").join(first), Path::new("/tmp/ccp").join(first)).unwrap();
    }

    pub fn start_released(&self, program: &Path) -> Running {
        let mut command = Command::new(program);
        command.args(["--ipc", "unix"]).stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }
}

/// The accelerated program: it sends a pattern until its input ends.
pub struct Program {
    child: Running,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn of(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child: Running(child), output }
    }

    pub fn lines(&mut self, count: usize) -> Vec<String> {
        let mut line = || {
            let mut line = String::new();
            self.output.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        (0..count).map(|_| line()).collect()
    }

    /// Ends the sending: its last words are `word`, and what it has sent has come to `peer`, byte by byte.
    pub fn ends_with(&mut self, word: &str, peer: Peer) {
        drop(self.child.0.stdin.take());
        let said = self.lines(2);
        assert_eq!(said, [word.to_owned(), format!("sent {}", peer.end())]);
        assert!(self.child.0.wait().unwrap().success());
    }
}

/// The kernel's end of a connection; it checks the bytes that come.
pub struct Peer {
    port: u16,
    received: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Peer {
    pub fn listen() -> Self {
        let listener = TcpListener::bind("10.80.0.2:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Self::with(port, move || listener.accept().unwrap().0)
    }

    pub fn connect(to: &'static str) -> Self {
        Self::with(0, move || TcpStream::connect(to).unwrap())
    }

    fn with(port: u16, begin: impl FnOnce() -> TcpStream + Send + 'static) -> Self {
        let received = Arc::new(AtomicU64::new(0));
        let count = received.clone();
        let thread = std::thread::spawn(move || check(begin(), &count));
        Self { port, received, thread }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Waits until more bytes have come.
    pub fn until_moved(&self) {
        let before = self.received();
        until("another byte", || (self.received() > before).then_some(()));
    }

    /// All bytes, once the sender has finished.
    fn end(self) -> u64 {
        self.thread.join().expect("every byte is as it was sent");
        self.received.load(Ordering::Relaxed)
    }
}

fn check(mut stream: TcpStream, count: &AtomicU64) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0_u64;
    loop {
        let got = stream.read(&mut buffer).unwrap();
        if got == 0 {
            return stream.flush().unwrap();
        }
        assert!(buffer[..got].iter().zip(at..).all(|(byte, at)| u64::from(*byte) == at % 251), "at {at}");
        at += got as u64;
        count.store(at, Ordering::Relaxed);
    }
}
