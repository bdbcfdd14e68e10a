//! Other programs, run unmodified: found, started, waited for with a limit, and never left behind.

use crate::{clock, cpu, interrupt};
use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;

/// Where `name` is, or a line that says how to get it.
///
/// # Errors
/// When it is not installed.
pub fn find(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    let found = std::env::split_paths(&path).chain(beside).map(|dir| dir.join(name)).find(|p| p.is_file());
    found.with_context(|| format!("{name} is not installed: run `make setup` or `scripts/setup bench`"))
}

/// A program that runs until it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
}

impl Running {
    /// Starts it without input; what it prints goes nowhere unless `command` says otherwise.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, name })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it prints, when its command asked for a pipe.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// What it says, when its command asked for a pipe.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Its exit status, if it has ended already.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it to leave, by SIGTERM, and waits at most a second; then ends it.
    pub fn stop(mut self) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // It may have left by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = wait_until_ended(pid, 1.0);
        }
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// What it printed.
    pub stdout: String,
    /// Processor time it used.
    pub cpu_ns: u64,
    /// How long it ran.
    pub wall_ns: u64,
}

/// Runs a program to its end.
///
/// # Errors
/// When it fails, with the last line of what it said; or still runs after `limit` seconds, when it is killed.
pub fn run(command: &mut Command, limit: f64) -> anyhow::Result<Finished> {
    let start = clock::now_ns();
    let mut running = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let stdout = collect(running.child.stdout.take());
    let stderr = collect(running.child.stderr.take());
    let pid = i32::try_from(running.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
    let ended = wait_until_ended(pid, limit)?;
    let wall_ns = clock::now_ns() - start;
    // Before it is reaped: afterwards nobody knows.
    let cpu_ns = cpu::process_ns(running.pid()).unwrap_or(0);
    if !ended {
        bail!("{} did not end within {limit:.0} s", running.name);
    }
    let status = running.child.wait()?;
    let text = |reader: thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    if !status.success() {
        bail!("{} failed ({status}): {}", running.name, reason(&stdout, &stderr));
    }
    Ok(Finished { stdout, cpu_ns, wall_ns })
}

/// The line that says most: the last one of standard error, else one about an error, else the last one.
fn reason<'a>(stdout: &'a str, stderr: &'a str) -> &'a str {
    let last = |text: &'a str| text.lines().rfind(|line| !line.trim().is_empty());
    let about_error = || stdout.lines().rfind(|line| line.contains("error"));
    last(stderr).or_else(about_error).or_else(|| last(stdout)).unwrap_or("it said nothing").trim()
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// True when the process ended within `limit` seconds; it is not reaped.
fn wait_until_ended(pid: Pid, limit: f64) -> anyhow::Result<bool> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let until = clock::now_ns() + (limit * 1e9) as u64;
    loop {
        let left = until.saturating_sub(clock::now_ns());
        let timeout =
            Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Repeats `attempt` every few milliseconds until it gives something.
///
/// # Errors
/// When it gives nothing for `limit` seconds, `what` saying what was waited for; or on a signal that is watched for.
pub fn until<T>(limit: f64, what: &str, mut attempt: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let end = clock::now_ns() + (limit * 1e9) as u64;
    loop {
        if let Some(found) = attempt() {
            return Ok(found);
        }
        if clock::now_ns() > end {
            bail!("{what} did not happen within {limit:.0} s");
        }
        interrupt::pause(0.005)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ended_leaves_its_output_and_its_time() {
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done";
        let finished = run(Command::new("sh").args(["-c", script]), 10.0).unwrap();
        assert_eq!(finished.stdout, "done\n");
        assert!(finished.cpu_ns > 1_000_000 && finished.cpu_ns <= 2 * finished.wall_ns);
    }

    #[test]
    fn failure_and_hanging_are_errors_that_name_the_program() {
        let failed = run(Command::new("sh").args(["-c", "echo no such luck >&2; exit 3"]), 10.0);
        assert!(failed.unwrap_err().to_string().contains("no such luck"));
        let hung = run(Command::new("sleep").arg("60"), 0.05);
        assert!(hung.unwrap_err().to_string().contains("sleep did not end"));
    }
}
