//! One test's namespace: its addresses, the commands, the process that is up, and an agent.

use super::ROLE_TEST;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ccp_agent::{Agent, Runner};
use ccp_algorithms::aimd::Aimd;
use ccp_linux::Status;
use rustix::process::{Pid, Signal, kill_process};

/// For whatever a busy machine delays.
pub const PATIENCE: Duration = Duration::from_secs(60);
const ADDRESSES: [&str; 5] = ["10.77.0.1/32", "10.77.0.2/32", "10.77.0.3/32", "fd77::1/128", "fd77::2/128"];

/// Runs the role in a namespace of its own, or says why not.
pub fn in_namespace(role: &str) {
    if let Err(why) = ccp_linux::support() {
        return println!("skipped: {why}");
    }
    let may = Command::new("unshare").args(["-n", "-m", "ip", "-V"]).stdout(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        return println!("skipped: needs root, network namespaces and `ip` (iproute2)");
    }
    crate::role::play_in_namespace(ROLE_TEST, role);
}

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

/// AIMD of crate `ccp-algorithms` at the path in `AGENT`, until it is killed.
pub fn serve() {
    let path = PathBuf::from(std::env::var_os("AGENT").unwrap());
    let mut agent = Agent::new();
    agent.add(Aimd).unwrap();
    Runner::bind(&path).unwrap().run(&mut agent, &|| false, &mut |_| {}).unwrap();
}

fn has_ended_well(command: &mut Command) -> bool {
    command.status().unwrap().success()
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

    /// Kills it by SIGKILL; it is gone when this returns.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end.
    pub fn ends(&mut self) -> ExitStatus {
        until("the end of a process", || self.0.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The namespace that this process is in. Processes end before the folder goes.
pub struct Place {
    /// The name of the algorithm in the kernel, which knows one list for all namespaces.
    name: String,
    by_default: String,
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new(kind: char) -> Self {
        assert!(has_ended_well(Command::new("ip").args(["link", "set", "lo", "up"])));
        for address in ADDRESSES {
            assert!(has_ended_well(Command::new("ip").args(["address", "add", address, "dev", "lo"])));
        }
        let by_default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        Self {
            name: format!("tp{kind}{}", std::process::id()),
            by_default: by_default.trim().to_owned(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// What flows begin with on this host.
    pub fn by_default(&self) -> &str {
        &self.by_default
    }

    /// Another algorithm of the kernel's.
    pub fn another(&self) -> &'static str {
        if self.by_default == "reno" { "cubic" } else { "reno" }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn has_algorithm(&self) -> bool {
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
        known.split_whitespace().any(|name| name == self.name)
    }

    fn command(&self, words: &[&str], folder: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command.args(["cc", "kernel"]).args(words).arg("--folder").arg(folder);
        command
    }

    /// What a command prints that ends well.
    pub fn good(&self, words: &[&str]) -> String {
        let output = self.command(words, self.folder()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Why a command is refused.
    pub fn refusal(&self, words: &[&str]) -> String {
        self.refused(words, self.folder())
    }

    /// Why there is no second one in this folder, under this name.
    pub fn refused_up(&self, folder: &Path, name: &str) -> String {
        self.refused(&["up", "--name", name], folder)
    }

    fn refused(&self, words: &[&str], folder: &Path) -> String {
        let output = self.command(words, folder).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Loads the programs; flows that the rules name have been moved when this returns.
    pub fn up(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(&["up", "--name", &self.name], self.folder());
        command.args(arguments).arg("--agent").arg(self.folder().join("agent"));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut says = BufReader::new(child.stderr.take().unwrap());
        let up = Running(child);
        let mut line = String::new();
        says.read_line(&mut line).unwrap();
        assert_eq!(line, format!("towpath cc kernel: `{}` is up\n", self.name));
        // What it says later must find a reader.
        std::thread::spawn(move || std::io::copy(&mut says, &mut std::io::stderr()));
        up
    }

    pub fn status(&self) -> Status {
        serde_json::from_str(&self.good(&["status", "--json"])).unwrap()
    }

    /// Waits until the status is as wanted.
    pub fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) {
        until(what, || is_so(&self.status()).then_some(()));
    }

    pub fn start_agent(&self) -> Running {
        let mut command = crate::role::command(ROLE_TEST, "agent");
        command.env("AGENT", self.folder().join("agent")).stdout(Stdio::null());
        Running(command.spawn().unwrap())
    }
}
