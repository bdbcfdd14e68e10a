//! `towpath cc kernel`: CCP's programs and agents for the kernel's own TCP. `up` stays in the foreground; `status` and `down` ask it over a
//! socket in its folder.

use anyhow::{Context, bail};
use ccp_linux::Status;
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::table::print;

#[cfg(feature = "kernel")]
mod up;

pub const HELP: &str = "Examples:\n  \
towpath cc kernel up                                   run the programs of agents for flows that choose `towpath_ccp`\n  \
towpath cc kernel up --flows all                       ... and move all live flows of this host to them\n  \
towpath cc kernel up --flows to=10.0.0.0/8,port=443 --flows port=80 --agent /tmp/ccp/portus\n  \
towpath cc kernel status\n  \
towpath cc kernel down                                 every flow goes back to the algorithm that it had";

/// Words of the control socket.
const STATUS: &str = "status\n";
const DOWN: &str = "down\n";
/// Only root may look into it.
const FOLDER: &str = "/run/towpath-kernel";

#[derive(Debug, Args)]
pub struct Kernel {
    #[command(subcommand)]
    what: What,
}

/// Where the process that is up has its sockets.
#[derive(Debug, Args)]
struct Folder {
    /// Folder of the control socket and of the socket that agents answer to
    #[arg(long, value_name = "PATH", default_value = FOLDER)]
    folder: PathBuf,
}

impl Folder {
    fn control(&self) -> PathBuf {
        self.folder.join("control")
    }
}

#[derive(Debug, Subcommand)]
enum What {
    /// Load the programs into the kernel, and serve agents until a signal or `down`
    #[command(after_help = HELP)]
    Up(Box<Up>),
    /// Give all flows back and unload the programs
    Down {
        #[command(flatten)]
        folder: Folder,
    },
    /// List agents, and flows with what decides about each
    Status {
        #[command(flatten)]
        folder: Folder,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
// Without the loader the arguments are read for their mistakes only: `support` refuses before they are used.
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
struct Up {
    #[command(flatten)]
    folder: Folder,
    /// Live and new flows to move: all, port=N (either end), to=ADDRESS[/PREFIX] (the peer), or both with a comma; may be repeated
    #[arg(long, value_name = "RULE")]
    flows: Vec<ccp_linux::Rule>,
    /// Path of an agent's socket; may be repeated [default: /tmp/ccp/portus]
    #[arg(long = "agent", value_name = "PATH")]
    agents: Vec<PathBuf>,
    /// Name of the congestion control in the kernel
    #[arg(long, default_value = ccp_linux::NAME)]
    name: String,
    /// Reports and new flows told per second, to all agents together
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    reports: u32,
    /// User whose processes may be agents, beside root; may be repeated
    #[arg(long = "allow-uid", value_name = "UID")]
    allow_uids: Vec<u32>,
    /// The largest window that an agent may set, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1..))]
    window_max: u64,
    /// The largest rate that an agent may set, bytes per second
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, value_parser = clap::value_parser!(u64).range(1..))]
    rate_max: u64,
}

impl Kernel {
    pub fn execute(self) -> anyhow::Result<()> {
        match self.what {
            What::Up(up) => {
                ccp_linux::support()?;
                up.execute()
            }
            What::Down { folder } => {
                // The answer comes when all flows are back.
                let answer = ask(&folder.control(), DOWN)?;
                if answer.is_empty() { Ok(()) } else { bail!("{answer}") }
            }
            What::Status { folder, json } => {
                let answer = ask(&folder.control(), STATUS)?;
                if json {
                    return print(answer.trim_end());
                }
                let status: Status =
                    serde_json::from_str(&answer).context("the process that is up answers nonsense")?;
                print(show(&status).trim_end())
            }
        }
    }
}

#[cfg(not(feature = "kernel"))]
impl Up {
    fn execute(&self) -> anyhow::Result<()> {
        bail!(ccp_linux::Unsupported::NotBuilt)
    }
}

/// Asks the process that is up.
fn ask(control: &Path, word: &str) -> anyhow::Result<String> {
    let mut line = UnixStream::connect(control)
        .with_context(|| format!("nothing is up at {}: `towpath cc kernel up`", control.display()))?;
    line.write_all(word.as_bytes())?;
    let mut answer = String::new();
    line.read_to_string(&mut answer)?;
    Ok(answer)
}

fn show(status: &Status) -> String {
    let mut text = format!(
        "{} is up (process {}): {} flows, {} reports, {} fallbacks\n",
        status.name,
        status.pid,
        status.flows.len(),
        status.reports,
        status.fallbacks
    );
    for agent in &status.agents {
        let process = match agent.pid {
            Some(pid) => format!("process {pid}"),
            None if agent.is_there => "there, in another PID namespace".to_owned(),
            None => "not there".to_owned(),
        };
        let _ = writeln!(text, "agent {}: {process}, {} programs", agent.address, agent.programs);
    }
    for flow in &status.flows {
        let _ = writeln!(
            text,
            "{} -> {}  {}  cwnd {} rate {} rtt {} us, {} runs, {} faults, {} clamps, {} reports, commands {}/{}",
            flow.local,
            flow.peer,
            flow.standing,
            flow.cwnd,
            flow.rate,
            flow.rtt_us,
            flow.runs,
            flow.faults,
            flow.clamps,
            flow.reports,
            flow.commands_applied,
            flow.commands
        );
    }
    text
}
