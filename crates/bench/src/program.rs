//! Other programs, unmodified: finds and starts them, waits for them with a limit, and ends them at the latest when dropped.

use crate::{clock, cpu, interrupt};
use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;

/// The path of the program `name`.
///
/// # Errors
/// When it is not installed; the message says how to install it.
pub fn find(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    let found = std::env::split_paths(&path).chain(beside).map(|dir| dir.join(name)).find(|p| p.is_file());
    found.with_context(|| format!("{name} is not installed: run `make setup` or `scripts/setup bench`"))
}

/// A program that runs until this value is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
}

impl Running {
    /// Starts the program with an empty standard input. Its output goes where `command` says.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, name })
    }

    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The program's standard output, if its command asked for a pipe.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The program's standard error, if its command asked for a pipe.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// The program's exit status, if it has ended already.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends SIGTERM, waits at most a second for the program's end, then kills it.
    pub fn stop(mut self) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // The program may have ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = wait_until_ended(pid, 1.0);
        }
        self.end();
    }

    /// Waits for the end of a program that was started at `start`. It may run for `limit` seconds.
    fn until_ended(&mut self, start: u64, limit: f64) -> anyhow::Result<(ExitStatus, Ended)> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
        let is_over = wait_until_ended(pid, limit)?;
        let wall_ns = clock::now_ns() - start;
        // Read them before the process is reaped: afterwards they are lost.
        let (cpu_ns, faults) = (cpu::process_ns(self.pid()), cpu::minor_faults(self.pid()));
        if !is_over {
            bail!("{} did not end within {limit:.0} s", self.name);
        }
        let ended = Ended { wall_ns, cpu_ns: cpu_ns.unwrap_or(0), faults: faults.unwrap_or(0) };
        Ok((self.child.wait()?, ended))
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

/// The results of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The program's standard output.
    pub stdout: String,
    /// Processor time used, in nanoseconds.
    pub cpu_ns: u64,
    /// Duration of the run in nanoseconds.
    pub wall_ns: u64,
}

/// Runs a program to its end.
///
/// # Errors
/// When the program fails, with a line of its output; or when it still runs after `limit` seconds, which kills it.
pub fn run(command: &mut Command, limit: f64) -> anyhow::Result<Finished> {
    let start = clock::now_ns();
    let mut running = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let stdout = collect(running.child.stdout.take());
    let stderr = collect(running.child.stderr.take());
    let (status, Ended { wall_ns, cpu_ns, .. }) = running.until_ended(start, limit)?;
    let text = |reader: thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    if !status.success() {
        bail!("{} failed ({status}): {}", running.name, reason(&stdout, &stderr));
    }
    Ok(Finished { stdout, cpu_ns, wall_ns })
}

/// What a program that has ended took.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Time from the call that starts it until its end is seen, in nanoseconds.
    pub wall_ns: u64,
    /// Processor time used, in nanoseconds.
    pub cpu_ns: u64,
    /// Page faults that needed no disk.
    pub faults: u64,
}

/// Runs a program to its end, as [`run`] does, and reads nothing of its output: no thread of this process disturbs the measurement.
///
/// # Errors
/// When the program fails, or still runs after `limit` seconds, which kills it.
pub fn start_to_end(command: &mut Command, limit: f64) -> anyhow::Result<Ended> {
    let start = clock::now_ns();
    let mut running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let (status, ended) = running.until_ended(start, limit)?;
    if !status.success() {
        bail!("{} failed ({status})", running.name);
    }
    Ok(ended)
}

/// The most telling line of a failed program's output: the last line of standard error, else the last about an error, else the last.
fn reason<'a>(stdout: &'a str, stderr: &'a str) -> &'a str {
    let last = |text: &'a str| text.lines().rfind(|line| !line.trim().is_empty());
    let about_error = || stdout.lines().rfind(|line| line.contains("error"));
    last(stderr).or_else(about_error).or_else(|| last(stdout)).unwrap_or("it said nothing").trim()
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // On a read error, keep the bytes read before it.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// True if the process ended within `limit` seconds. It is not reaped.
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

/// Repeats `attempt` every 5 ms until it returns a value.
///
/// # Errors
/// When it returns none for `limit` seconds (`what` is part of the message), or on a signal after [`interrupt::watch`].
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
    fn a_start_is_measured_to_its_end_and_a_failure_is_none() {
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit $CODE";
        let run = |code| start_to_end(Command::new("sh").args(["-c", script]).env("CODE", code), 10.0);
        let ended = run("0").unwrap();
        assert!(ended.cpu_ns > 1_000_000 && ended.cpu_ns <= 2 * ended.wall_ns && ended.faults > 10);
        assert!(run("3").is_err());
        assert!(start_to_end(Command::new("sleep").arg("60"), 0.05).is_err());
    }

    #[test]
    fn failure_and_hanging_are_errors_that_name_the_program() {
        let failed = run(Command::new("sh").args(["-c", "echo no such luck >&2; exit 3"]), 10.0);
        assert!(failed.unwrap_err().to_string().contains("no such luck"));
        let hung = run(Command::new("sleep").arg("60"), 0.05);
        assert!(hung.unwrap_err().to_string().contains("sleep did not end"));
    }
}
