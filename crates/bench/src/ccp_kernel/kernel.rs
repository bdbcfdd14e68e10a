//! A `towpath cc kernel up` process: programs for flows of the kernel that choose its name.

use crate::program::{self, Running};
use anyhow::{Context, bail};
use ccp_linux::Status;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};

/// Seconds allowed for the agent to be seen.
const PATIENCE: f64 = 10.0;

/// The running process. Its flows go back to the host's default when it is stopped.
#[derive(Debug)]
pub struct Programs {
    running: Running,
    control: PathBuf,
    name: String,
    /// Kept open so that the process can go on writing to it.
    _stderr: BufReader<ChildStderr>,
}

impl Programs {
    /// Loads the programs, and waits until the agent at `agent` has installed its own.
    ///
    /// # Errors
    /// What the process says when it does not start.
    pub fn up(towpath: &Path, folder: &Path, agent: &Path) -> anyhow::Result<Self> {
        let name = format!("tp_bench{}", std::process::id() % 1_000_000);
        let mut command = Command::new(towpath);
        command.args(["cc", "kernel", "up", "--name", &name, "--reports", "100000"]);
        command.arg("--folder").arg(folder).arg("--agent").arg(agent);
        let mut running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
        let mut stderr = BufReader::new(running.take_stderr().context("its messages")?);
        let mut said = String::new();
        stderr.read_line(&mut said)?;
        if !said.contains("is up") {
            bail!("`towpath cc kernel up` did not start: {}", said.trim());
        }
        let programs = Self { running, control: folder.join("control"), name, _stderr: stderr };
        program::until(PATIENCE, "the agent's programs in the kernel's datapath", || {
            let status = programs.status().ok()?;
            status.agents.iter().any(|agent| agent.programs > 0).then_some(())
        })?;
        Ok(programs)
    }

    /// The name by which flows choose the programs (TCP_CONGESTION).
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn status(&self) -> anyhow::Result<Status> {
        let mut line = UnixStream::connect(&self.control)?;
        line.write_all(b"status\n")?;
        let mut answer = String::new();
        line.read_to_string(&mut answer)?;
        serde_json::from_str(&answer).context("`towpath cc kernel up` answers nonsense")
    }

    /// Gives all flows back and unloads the programs.
    pub fn down(self) {
        self.running.stop();
    }
}
