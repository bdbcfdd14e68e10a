//! Two namespaces with a pair of interfaces between them, and the parts that run inside. All of it is gone when the stage is dropped.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ccp_linux::Status;

use super::roles::{ANSWER, PART, PEER};

/// A part that says nothing for so long is broken.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Stage {
    name: String,
    folder: tempfile::TempDir,
}

/// One process inside a namespace.
pub struct Part {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: Option<ChildStdin>,
}

fn ip(arguments: &str) -> bool {
    let run = Command::new("ip").args(arguments.split(' ')).stderr(Stdio::inherit()).status();
    run.is_ok_and(|status| status.success())
}

impl Stage {
    /// `None`, with a word, where it cannot be built.
    pub fn set(what: &str) -> Option<Self> {
        if let Err(why) = ccp_linux::support() {
            eprintln!("skipped: {why}");
            return None;
        }
        if !Command::new("ip").arg("-V").output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: there is no `ip` (iproute2)");
            return None;
        }
        let name = format!("{what}{}", std::process::id());
        let stage = Self { folder: tempfile::tempdir().expect("a folder"), name };
        let (a, b) = (stage.space('a'), stage.space('b'));
        for command in [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add va type veth peer name vb netns {b}"),
            format!("-n {a} addr add 10.77.0.1/24 dev va"),
            format!("-n {b} addr add {PEER}/24 dev vb"),
            format!("-n {a} link set va up"),
            format!("-n {b} link set vb up"),
        ] {
            assert!(ip(&command), "ip {command}");
        }
        Some(stage)
    }

    /// The name of the algorithm in the kernel, and of this stage.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn agent_path(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    pub fn has_algorithm(&self) -> bool {
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        known.expect("readable").split_whitespace().any(|name| name == self.name)
    }

    /// The user-space half, beside the source; it is up when this returns.
    pub fn bridge(&self, rules: &[&str]) -> Bridge {
        let part = self.part('a', "bridge", &[("RULES", &rules.join(" "))]);
        Bridge(part.when("up"))
    }

    /// The receiver, which checks every byte; it listens when this returns.
    pub fn sink(&self, bytes: u64) -> Part {
        self.part('b', "sink", &[("BYTES", &bytes.to_string()), ("FLOWS", "1")]).when("listening")
    }

    /// The receiver of so many flows, each of any length.
    pub fn sink_of(&self, flows: u32) -> Part {
        self.part('b', "sink", &[("BYTES", "0"), ("FLOWS", &flows.to_string())]).when("listening")
    }

    /// A sender of so many bytes.
    pub fn source(&self, bytes: u64) -> Part {
        self.part('a', "source", &[("BYTES", &bytes.to_string()), ("ALGORITHMS", "")])
    }

    /// So many senders, which swap between these algorithms.
    pub fn swapping_source(&self, flows: u32, algorithms: &str) -> Part {
        self.part('a', "source", &[("FLOWS", &flows.to_string()), ("ALGORITHMS", algorithms)])
    }

    /// A sender that goes on until it is stopped.
    pub fn long_source(&self) -> Source {
        Source(self.part('a', "long_source", &[]).when("connected"))
    }

    fn space(&self, end: char) -> String {
        format!("ccp-{}-{end}", self.name)
    }

    fn part(&self, end: char, role: &str, variables: &[(&str, &str)]) -> Part {
        let test = std::env::current_exe().expect("this program");
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.space(end)])
            .arg(test)
            .args(["--exact", "flows::part", "--nocapture", "--test-threads=1"])
            .env(PART, role)
            .env("NAME", &self.name)
            .env("FOLDER", self.folder.path())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`ip` is there");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        let hears = child.stdin.take();
        Part { child, says, hears }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for end in ['a', 'b'] {
            ip(&format!("netns del {}", self.space(end)));
        }
    }
}

impl Part {
    /// Waits for the part's next answer.
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.says.read_line(&mut line).expect("readable") > 0,
                "a part has ended without an answer"
            );
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim().to_owned();
            }
        }
    }

    fn when(mut self, word: &str) -> Self {
        assert_eq!(self.answer(), word);
        self
    }

    fn ask(&mut self, word: &str) -> String {
        let hears = self.hears.as_mut().expect("open until the end");
        writeln!(hears, "{word}").expect("it lives");
        self.answer()
    }

    /// Its last answer, once it has ended well.
    pub fn finish(mut self) -> String {
        self.hears = None;
        let answer = self.answer();
        let mut rest = String::new();
        while self.says.read_line(&mut rest).expect("readable") > 0 {}
        assert!(self.child.wait().expect("ends").success(), "{rest}");
        answer
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Bridge(Part);

impl Bridge {
    pub fn status(&mut self) -> Status {
        serde_json::from_str(&self.0.ask("status")).expect("a status")
    }

    /// Waits until the status is as wanted.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Status) -> bool) {
        let begin = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {status:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn down(mut self) {
        assert_eq!(self.0.ask("down"), "down");
    }

    /// Kills the process by SIGKILL, so that it cannot give its flows back.
    pub fn kill(mut self) {
        // `ip netns exec` becomes the program that it starts.
        self.0.child.kill().expect("it lives");
        self.0.child.wait().expect("it ends");
    }
}

pub struct Source(Part);

impl Source {
    /// The algorithm that the kernel says the flow has.
    pub fn algorithm(&mut self) -> String {
        self.0.ask("algorithm")
    }

    /// Waits until the kernel says that the flow has this algorithm.
    pub fn until_algorithm(&mut self, name: &str) {
        let begin = Instant::now();
        loop {
            let present = self.algorithm();
            if present == name {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "the flow is on {present}, not on {name}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn stop(self) {
        assert_eq!(self.0.finish(), "stopped");
    }
}
