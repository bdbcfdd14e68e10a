//! One request to a running service.

use crate::numbers;
use anyhow::{Context, anyhow, bail};
use control::credentials::{peer_credentials, peer_process};
use control::{DialError, Line, LineError, Received, Reply, Report, Request, ToApplication, ToService, dial};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for the end of a service that was told to leave.
const PATIENCE: Duration = Duration::from_secs(5);

/// True if a service answers at `path`.
pub fn is_up(path: &Path) -> bool {
    dial(path).is_ok()
}

/// The error for a service that cannot be reached, with advice.
pub fn unreachable(path: &Path, e: DialError) -> anyhow::Error {
    let path = path.display();
    let e = match e {
        DialError::Untrusted(why) => return anyhow!("the service at {path} is not trusted: {why}"),
        DialError::Os(e) => e,
    };
    match e {
        Errno::NOENT | Errno::CONNREFUSED => {
            anyhow!("no service at {path}; `towpath up` starts one, --control names another place")
        }
        Errno::ACCESS | Errno::PERM => {
            anyhow!("no right to use {path}; ask its owner, or use a service of your own with --control")
        }
        e => anyhow!("cannot reach the service at {path}: {e}"),
    }
}

/// Says where the log of a service is.
fn see_log(path: &Path) -> String {
    let log = crate::up::log_path(path);
    if log.is_file() { format!("see its log: {}", log.display()) } else { "see its log".to_owned() }
}

/// Sends a request for a report and returns the reply with its descriptors, and the line: the service takes a report's text back when the line is
/// closed.
fn ask(path: &Path, report: Report) -> anyhow::Result<(Reply, Vec<OwnedFd>, Line)> {
    let line = Line::new(dial(path).map_err(|e| unreachable(path, e))?);
    line.send(&ToService { number: 1, request: Request::Report(report) }, &[], true)?;
    loop {
        match line.receive::<ToApplication>(true) {
            Ok(Received { message: ToApplication::Reply(1, reply), fds, .. }) => {
                return Ok((reply, fds, line));
            }
            Ok(_) => {}
            Err(LineError::Closed) => bail!("the service at {} hung up; {}", path.display(), see_log(path)),
            Err(e) => bail!("{e}; is the service of the same version?"),
        }
    }
}

/// A report of the service as JSON, with the numbers that processes have for this one.
pub fn report(path: &Path, report: Report) -> anyhow::Result<serde_json::Value> {
    match ask(path, report)? {
        (Reply::Text, fds, line) => {
            let fd = fds.into_iter().next().context("the service sent no text")?;
            rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
            let mut text = String::new();
            std::fs::File::from(fd).read_to_string(&mut text)?;
            // A part of it is no JSON either.
            let mut told = serde_json::from_str(&text)
                .context("the service's report is no JSON: was it read later than 10 s after it was made?")?;
            numbers::translate(&mut told, line.as_fd());
            Ok(told)
        }
        (Reply::Refused { reason, .. }, ..) => bail!("the service refuses: {reason}"),
        _ => bail!("the service gave another answer than asked for; is it of the same version?"),
    }
}

/// Makes the service read its policy file again, and prints the result.
pub fn reload(path: &Path) -> anyhow::Result<()> {
    let told = report(path, Report::Reload)?;
    let (policy, rules) = (told["policy"].as_str().unwrap_or("-"), &told["rules"]);
    // The service of root reads its usual file where that exists. One that is not there, and never was, is told as an error.
    if Path::new(policy).exists() || told["rules_before"] != 0 {
        return crate::table::print(&format!("policy {policy}: {rules} rules"));
    }
    bail!(
        "there is no policy file {policy}, and no rule is in force; write the file and reload again, or name one with \
         `towpath up --policy FILE`"
    )
}

/// Makes the service shut down, and waits until it has.
pub fn down(path: &Path) -> anyhow::Result<()> {
    let process = process_of(path);
    match ask(path, Report::Shutdown)? {
        (Reply::Done, ..) => {}
        (Reply::Refused { reason, .. }, ..) => bail!("the service refuses: {reason}"),
        _ => bail!("the service gave another answer than asked for; is it of the same version?"),
    }
    if !has_ended(path, process)? {
        bail!("the service at {} does not leave; {}", path.display(), see_log(path));
    }
    Ok(())
}

/// Waits until the service has ended. Its interface goes with the last of its descriptors, after the control socket: so the end of its process
/// is waited for, where it can be seen. False: it has not ended after `PATIENCE`.
fn has_ended(path: &Path, process: Option<OwnedFd>) -> anyhow::Result<bool> {
    if let Some(process) = process {
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        return Ok(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))? > 0);
    }
    let end = Instant::now() + PATIENCE;
    while is_up(path) {
        if end < Instant::now() {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// The process of the service at `path`. `None`: before Linux 6.5 this process cannot see one in another PID namespace.
fn process_of(path: &Path) -> Option<OwnedFd> {
    let line = dial(path).ok()?;
    let by_number =
        || pidfd_open(Pid::from_raw(peer_credentials(&line).ok()?.pid)?, PidfdFlags::empty()).ok();
    peer_process(&line).ok().or_else(by_number)
}
