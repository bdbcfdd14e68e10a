//! Starts `towpath`: the only module that knows its command-line flags.

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
/// Seconds allowed for the service's start and for each answer.
const PATIENCE: f64 = 10.0;

/// The kind of the service's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port<'a> {
    /// No port: connections within this host only.
    None,
    /// A TAP interface; its kernel side is in a network namespace.
    Tap {
        /// The network namespace's name.
        namespace: &'a str,
        /// True for checksum and segmentation offload.
        offloads: bool,
    },
    /// A packet socket on an existing interface.
    Packet {
        /// The argument of `towpath up --port`.
        interface: &'a str,
        /// The name of the interface's network namespace.
        namespace: &'a str,
        /// The service's address with prefix length.
        address: &'a str,
        /// More flags of `towpath up`.
        flags: &'a [&'a str],
    },
}

/// The service's address over TAP.
pub const TAP_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The kernel's address at the other end of the TAP.
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
/// When no such file is found.
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

/// The file name of the library that `towpath run` preloads.
pub const LIBRARY: &str = "libtowpath_preload.so";

/// The preload library beside the program to measure, if it lies there.
///
/// # Errors
/// When there is no such program.
pub fn library(options: &Options) -> anyhow::Result<Option<PathBuf>> {
    Ok(Some(towpath(options)?.with_file_name(LIBRARY)).filter(|path| path.is_file()))
}

/// Makes a temporary folder that only this user may enter. Dropping it deletes it with its contents.
///
/// # Errors
/// When a temporary folder cannot be made.
pub fn folder() -> anyhow::Result<TempDir> {
    let ours = fs::Permissions::from_mode(0o700);
    Builder::new()
        .prefix("towpath-bench-")
        .permissions(ours)
        .tempdir()
        .context("cannot make a temporary folder")
}

/// A running service with its own control socket in a private folder.
#[derive(Debug)]
pub struct Service {
    running: Running,
    towpath: PathBuf,
    control: PathBuf,
    folder: TempDir,
}

impl Service {
    /// Starts a service and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the last line of its log.
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
        Ok(Self { running, towpath, control, folder })
    }

    /// The service's process id.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// The path of the service's control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// The command `towpath WORD` for this service.
    pub fn tool(&self, word: &str) -> Command {
        let mut command = Command::new(&self.towpath);
        command.arg(word).arg("--control").arg(&self.control);
        command
    }

    /// A command that runs `program` through this service, under the same process id.
    ///
    /// # Errors
    /// When the program is not installed.
    pub fn command(&self, program: &str) -> anyhow::Result<Command> {
        Ok(self.command_of(&program::find(program)?))
    }

    /// As [`command`](Self::command), with the program's path.
    pub fn command_of(&self, program: &Path) -> Command {
        self.command_with(&[], program)
    }

    /// As [`command_of`](Self::command_of), with more flags of `towpath run`.
    pub fn command_with(&self, flags: &[&str], program: &Path) -> Command {
        let mut command = Command::new(&self.towpath);
        command.arg("run").arg("--control").arg(&self.control).args(flags).arg("--").arg(program);
        command
    }

    /// The output of `towpath stat --json`.
    ///
    /// # Errors
    /// When the service does not answer.
    pub fn statistics(&self) -> anyhow::Result<Value> {
        statistics(&self.towpath, &self.control)
    }

    /// The output of `towpath stat --json --cycles WORD`.
    ///
    /// # Errors
    /// When the service does not answer.
    pub fn cycles(&self, word: &str) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.towpath);
        command.arg("stat").arg("--control").arg(&self.control).args(["--json", "--cycles", word]);
        let finished = program::run(&mut command, PATIENCE)?;
        serde_json::from_str(&finished.stdout).context("`towpath stat --json --cycles` printed no JSON")
    }

    /// The number of accelerated connections accepted so far by the process `pid`, or by all processes if `None`.
    ///
    /// # Errors
    /// When the service does not answer.
    pub fn accepted(&self, pid: Option<u32>) -> anyhow::Result<u64> {
        self.sum("accepted", pid)
    }

    /// The number of accelerated connections made so far by the process `pid`, or by all processes if `None`.
    ///
    /// # Errors
    /// When the service does not answer.
    pub fn connected(&self, pid: Option<u32>) -> anyhow::Result<u64> {
        self.sum("connected", pid)
    }

    /// Lets programs of other users reach the control socket: at first the folder around it is closed to them.
    ///
    /// # Errors
    /// When the folder's permissions cannot be changed.
    pub fn admit_users(&self) -> anyhow::Result<()> {
        Ok(fs::set_permissions(self.folder.path(), fs::Permissions::from_mode(0o711))?)
    }

    /// The sum of one number of the per-process statistics.
    fn sum(&self, number: &str, pid: Option<u32>) -> anyhow::Result<u64> {
        let all = self.statistics()?;
        let processes =
            all["per_process"].as_array().context("no per_process in the service's statistics")?;
        let is_meant =
            |process: &&Value| pid.is_none_or(|pid| process["pid"].as_u64() == Some(u64::from(pid)));
        Ok(processes.iter().filter(is_meant).filter_map(|process| process[number].as_u64()).sum())
    }

    /// Stops the service and waits for its end.
    pub fn stop(self) {
        self.running.stop();
    }
}

/// Checks that at least [`ACCELERATED_SHARE`] of `count` connections were accelerated.
///
/// # Errors
/// When fewer were.
pub fn prove(accelerated: u64, count: u32) -> anyhow::Result<()> {
    if (accelerated as f64) < f64::from(count) * ACCELERATED_SHARE {
        bail!("only {accelerated} of {count} connections were accelerated");
    }
    Ok(())
}

/// The output of `towpath stat --json`.
fn statistics(towpath: &Path, control: &Path) -> anyhow::Result<Value> {
    let mut command = Command::new(towpath);
    command.arg("stat").arg("--control").arg(control).arg("--json");
    let finished = program::run(&mut command, PATIENCE)?;
    serde_json::from_str(&finished.stdout).context("`towpath stat --json` printed no JSON")
}
