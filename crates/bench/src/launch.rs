//! How Towpath itself is started: the only place that knows the flags of its command line.

use crate::Options;
use crate::program::{self, Running};
use anyhow::{Context, bail};
use serde_json::Value;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::{Builder, TempDir};

/// Share of a measurement's connections that must be accelerated for its numbers to count.
const ACCELERATED_SHARE: f64 = 0.95;
/// Seconds until the service answers, or has answered.
const PATIENCE: f64 = 10.0;

/// What the service's packets go through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port<'a> {
    /// Nothing: same host only.
    None,
    /// A TAP whose kernel side is in the network namespace of that name.
    Tap {
        /// Where the kernel is the peer.
        namespace: &'a str,
        /// Checksum and segmentation offload.
        offloads: bool,
    },
    /// An interface that exists.
    Packet {
        /// As `towpath up --port` takes it.
        interface: &'a str,
        /// Where it is.
        namespace: &'a str,
        /// The service's, with prefix length.
        address: &'a str,
        /// Further flags.
        flags: &'a [&'a str],
    },
}

/// The service's own address over TAP.
pub const TAP_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The kernel's at the other end.
pub const TAP_HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

impl<'a> Port<'a> {
    fn flags(self) -> Vec<&'a str> {
        match self {
            Self::None => vec!["--port", "none"],
            Self::Tap { namespace, offloads } => {
                let mut flags = vec!["--port", "tap", "--port-name", "tp0", "--netns", namespace];
                flags.extend(["--address", "10.77.0.2/24", "--host-address", "10.77.0.1/24"]);
                if !offloads {
                    flags.extend(["--no-checksum-offload", "--no-gso"]);
                }
                flags
            }
            Self::Packet { interface, namespace, address, flags } => {
                let own = ["--port", interface, "--netns", namespace, "--address", address];
                [own.as_slice(), flags].concat()
            }
        }
    }
}

/// The `towpath` program to measure.
///
/// # Errors
/// When it is nowhere.
pub fn towpath(options: &Options) -> anyhow::Result<PathBuf> {
    if let Some(path) = &options.towpath {
        return path.canonicalize().with_context(|| format!("no program {}", path.display()));
    }
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    if own.file_name().is_some_and(|name| name == "towpath") {
        return Ok(own);
    }
    let beside = own.with_file_name("towpath");
    if beside.is_file() {
        return Ok(beside);
    }
    bail!("no `towpath` beside {}: build it, or name it with --towpath", own.display())
}

/// A folder of our own that only this user may enter, gone with everything in it when dropped.
///
/// # Errors
/// When there is no place for temporary files.
pub fn folder() -> anyhow::Result<TempDir> {
    let ours = fs::Permissions::from_mode(0o700);
    Builder::new()
        .prefix("towpath-bench-")
        .permissions(ours)
        .tempdir()
        .context("cannot make a temporary folder")
}

/// A running service of our own, on a control socket that nobody else knows.
#[derive(Debug)]
pub struct Service {
    running: Running,
    towpath: PathBuf,
    control: PathBuf,
    _folder: TempDir,
}

impl Service {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// With the last line that the service said.
    pub fn start(options: &Options, port: Port<'_>) -> anyhow::Result<Self> {
        let towpath = towpath(options)?;
        let folder = folder()?;
        let control = folder.path().join("control.sock");
        let log = folder.path().join("log");
        let mut command = Command::new(&towpath);
        command.arg("up").arg("--control").arg(&control).args(port.flags()).env_remove("LD_PRELOAD");
        command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let mut running = Running::start(&mut command)?;
        let answers = |control: &Path| statistics(&towpath, control).ok();
        program::until(PATIENCE, "the start of the service", || {
            running.has_ended().map(|_| false).or_else(|| answers(&control).map(|_| true))
        })
        .and_then(|up| if up { Ok(()) } else { bail!("the service did not start") })
        .with_context(|| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            said.lines().last().unwrap_or("it said nothing").trim_start_matches("towpath: ").to_owned()
        })?;
        Ok(Self { running, towpath, control, _folder: folder })
    }

    /// The service's process.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// A command that runs `program` through it, under the same process id.
    ///
    /// # Errors
    /// When the program is not installed.
    pub fn command(&self, program: &str) -> anyhow::Result<Command> {
        Ok(self.command_of(&program::find(program)?))
    }

    /// The same of the program at that place.
    pub fn command_of(&self, program: &Path) -> Command {
        self.command_with(&[], program)
    }

    /// The same with further flags of `towpath run`.
    pub fn command_with(&self, flags: &[&str], program: &Path) -> Command {
        let mut command = Command::new(&self.towpath);
        command.arg("run").arg("--control").arg(&self.control).args(flags).arg("--").arg(program);
        command
    }

    /// What `towpath stat --json` says.
    ///
    /// # Errors
    /// When the service does not say.
    pub fn statistics(&self) -> anyhow::Result<Value> {
        statistics(&self.towpath, &self.control)
    }

    /// What `towpath stat --json --cycles WORD` says.
    ///
    /// # Errors
    /// When the service does not say.
    pub fn cycles(&self, word: &str) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.towpath);
        command.arg("stat").arg("--control").arg(&self.control).args(["--json", "--cycles", word]);
        let finished = program::run(&mut command, PATIENCE)?;
        serde_json::from_str(&finished.stdout).context("`towpath stat --json --cycles` printed no JSON")
    }

    /// Accelerated connections accepted so far, by the process `pid` or (`None`) by all.
    ///
    /// # Errors
    /// When the service does not say.
    pub fn accepted(&self, pid: Option<u32>) -> anyhow::Result<u64> {
        self.sum("accepted", pid)
    }

    /// Accelerated connections that the process `pid` has made so far.
    ///
    /// # Errors
    /// When the service does not say.
    pub fn connected(&self, pid: u32) -> anyhow::Result<u64> {
        self.sum("connected", Some(pid))
    }

    /// One of the numbers that are told of each process.
    fn sum(&self, number: &str, pid: Option<u32>) -> anyhow::Result<u64> {
        let all = self.statistics()?;
        let processes =
            all["per_process"].as_array().context("no per_process in the service's statistics")?;
        let is_meant =
            |process: &&Value| pid.is_none_or(|pid| process["pid"].as_u64() == Some(u64::from(pid)));
        Ok(processes.iter().filter(is_meant).filter_map(|process| process[number].as_u64()).sum())
    }

    /// Stops it and waits for it.
    pub fn stop(self) {
        self.running.stop();
    }
}

/// Enough of so many connections were accelerated.
///
/// # Errors
/// When they were not.
pub fn prove(accelerated: u64, count: u32) -> anyhow::Result<()> {
    if (accelerated as f64) < f64::from(count) * ACCELERATED_SHARE {
        bail!("only {accelerated} of {count} connections were accelerated");
    }
    Ok(())
}

/// What `towpath stat --json` says.
fn statistics(towpath: &Path, control: &Path) -> anyhow::Result<Value> {
    let mut command = Command::new(towpath);
    command.arg("stat").arg("--control").arg(control).arg("--json");
    let finished = program::run(&mut command, PATIENCE)?;
    serde_json::from_str(&finished.stdout).context("`towpath stat --json` printed no JSON")
}
