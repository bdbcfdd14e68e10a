//! A network namespace with a service, and its commands. Needs root, `ip` and `python3`.

use crate::common::library;
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, move_into_link_name_space, remove_capability_from_bounding_set,
};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For whatever a busy machine delays.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// IPv4 address of the service in the namespace.
pub const OWN: &str = "10.82.0.2";
/// A TAP with two cores behind it.
pub const TAP: [&str; 6] = ["--port", "tap", "--host-address", "10.82.0.1/24", "--cores", "2"];

/// A network namespace with a service and programs.
pub struct World {
    /// Name of the network namespace, as `ip netns` knows it.
    pub name: String,
    /// A folder for the service's files.
    pub folder: tempfile::TempDir,
    /// The service, then the programs.
    pub running: Vec<Child>,
    /// Where the service writes its log; `None`: where this test writes.
    pub log: Option<std::fs::File>,
    /// What the service sees instead of `/proc/stat` and `/proc/pressure/cpu`.
    pub machine: Option<[PathBuf; 2]>,
}

/// Runs `ip` with these words. True: it has done what they say.
pub fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).output().is_ok_and(|done| done.status.success())
}

impl World {
    /// `None` where namespaces cannot be made, after a word that says so.
    pub fn new(name: &str) -> Option<Self> {
        let name = format!("twp-{name}-{}", std::process::id());
        let has_python = Command::new("python3").arg("--version").output().is_ok();
        if !(has_python && ip(&format!("netns add {name}"))) {
            println!("skipped: needs root, `ip`, network namespaces and python3");
            return None;
        }
        Some(Self {
            name,
            folder: tempfile::tempdir().unwrap(),
            running: Vec::new(),
            log: None,
            machine: None,
        })
    }

    /// Does `work` in a thread in the namespace, without `lost` for the programs that it starts.
    pub fn inside<T: Send>(&self, lost: CapabilitySet, work: impl FnOnce() -> T + Send) -> T {
        let there = move || {
            let place = std::fs::File::open(Path::new("/run/netns").join(&self.name)).unwrap();
            move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            lost.iter().for_each(|one| remove_capability_from_bounding_set(one).unwrap());
            work()
        };
        std::thread::scope(|scope| scope.spawn(there).join().unwrap())
    }

    /// Has the service that is started next write its log to a file, and returns the file's path.
    pub fn keep_log(&mut self) -> PathBuf {
        let log = self.folder.path().join("log");
        self.log = Some(std::fs::File::create(&log).unwrap());
        log
    }

    /// A subcommand for the service.
    pub fn towpath(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command.arg(name).arg("--control").arg(self.folder.path().join("service/control.sock"));
        command.env("TOWPATH_PRELOAD", library());
        command
    }

    /// The command that starts the service, without arguments.
    fn up(&self) -> Command {
        let up = self.towpath("up");
        let Some([stat, pressure]) = &self.machine else { return up };
        let shown =
            "mount --bind $0 /proc/stat && mount --bind $1 /proc/pressure/cpu && shift && exec \"$@\"";
        let mut shell = Command::new("unshare");
        shell
            .args(["-m", "sh", "-c", shown])
            .args([stat, pressure])
            .arg(up.get_program())
            .args(up.get_args());
        up.get_envs().for_each(|(name, value)| _ = shell.env(name, value.unwrap_or_default()));
        shell
    }

    /// Starts the service without the capabilities `lost`.
    pub fn serve(&mut self, arguments: &[&str], lost: CapabilitySet) {
        let mut up = self.up();
        up.args(["--address", &format!("{OWN}/24")]).args(arguments);
        if let Some(log) = &self.log {
            up.stdout(log.try_clone().unwrap()).stderr(log.try_clone().unwrap());
        }
        let service = self.inside(lost, || up.spawn().unwrap());
        self.running.push(service);
        let end = Instant::now() + PATIENCE;
        while !self.towpath("stat").output().unwrap().status.success() {
            let ended = self.running.last_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "the service does not start: {ended:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a Python program over the service, and waits until it says `ready`.
    pub fn start(&mut self, script: &str, arguments: &[&str]) {
        let mut program = self.towpath("run");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/py").join(script);
        program.args(["--require", "--", "python3"]).arg(script).args(arguments);
        let mut program =
            self.inside(CapabilitySet::empty(), || program.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        self.running.push(program);
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        // The program may go on writing lines.
        std::thread::spawn(move || lines.count());
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
