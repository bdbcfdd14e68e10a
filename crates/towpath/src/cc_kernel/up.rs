//! The process that is up: the bridge's loop, its control socket, and signals.

use super::{DOWN, STATUS, Up};
use anyhow::{Context, bail};
use ccp_linux::{Bridge, Setup};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where agents of Portus listen unless they are told otherwise.
const PORTUS: &str = "/tmp/ccp/portus";
/// A process that asks and does not send its word is not waited for longer.
const PATIENCE: Duration = Duration::from_millis(100);

impl Up {
    pub(super) fn execute(&self) -> anyhow::Result<()> {
        let stop = service::signals().context("cannot watch signals")?;
        if self.flows.len() > ccp_linux::RULES_MAX {
            bail!("--flows may be given {} times at most", ccp_linux::RULES_MAX);
        }
        let control = self.folder.control();
        let listener = listen(&self.folder.folder, &control)?;
        let mut bridge = Bridge::up(&self.setup())?;
        // Callers wait for this line.
        eprintln!("towpath cc kernel: `{}` is up", self.name);
        let asked = loop {
            bridge.turn(&[stop.as_fd(), listener.as_fd()])?;
            bridge.notices().iter().for_each(|notice| eprintln!("towpath cc kernel: {notice}"));
            if is_readable(&stop) {
                break None;
            }
            if let Ok((mut line, _)) = listener.accept()
                && answer(&mut line, &bridge)?
            {
                break Some(line);
            }
        };
        let done = bridge.down();
        std::fs::remove_file(&control).context("cannot remove the control socket")?;
        if let (Some(mut line), Err(why)) = (asked, &done) {
            // A process that has gone away needs no answer.
            let _ = write!(line, "{why}");
        }
        Ok(done?)
    }

    fn setup(&self) -> Setup {
        let paths = if self.agents.is_empty() { vec![PathBuf::from(PORTUS)] } else { self.agents.clone() };
        Setup {
            name: self.name.clone(),
            rules: self.flows.clone(),
            socket: self.folder.folder.join("agents"),
            agents: paths.into_iter().map(|path| (path, Vec::new())).collect(),
            endpoint: ccp::Config {
                datapath: std::process::id(),
                own_uid: rustix::process::geteuid().as_raw(),
                allowed_uids: self.allow_uids.clone(),
                messages_per_second: self.reports,
                cwnd_max: self.window_max,
                rate_max: self.rate_max,
                flows_max: 65_536,
            },
        }
    }
}

/// Binds the control socket in a folder that only root can look into, in place of one that a killed process has left.
fn listen(folder: &Path, control: &Path) -> anyhow::Result<UnixListener> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o711).create(folder);
    made.with_context(|| format!("cannot make {}", folder.display()))?;
    if UnixStream::connect(control).is_ok() {
        bail!("it is up already: `towpath cc kernel status`, or `down` first");
    }
    match std::fs::remove_file(control) {
        Err(why) if why.kind() != ErrorKind::NotFound => bail!("cannot remove {}: {why}", control.display()),
        _ => {}
    }
    let listener =
        UnixListener::bind(control).with_context(|| format!("cannot bind {}", control.display()))?;
    std::fs::set_permissions(control, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers one process. True if it has asked to go down.
fn answer(line: &mut UnixStream, bridge: &Bridge) -> anyhow::Result<bool> {
    line.set_nonblocking(false)?;
    line.set_read_timeout(Some(PATIENCE))?;
    line.set_write_timeout(Some(PATIENCE))?;
    let mut word = [0; 16];
    let Ok(len) = line.read(&mut word) else { return Ok(false) };
    match &word[..len] {
        word if word == DOWN.as_bytes() => return Ok(true),
        word if word == STATUS.as_bytes() => {
            let text = serde_json::to_string(&bridge.status()?)?;
            // A process that reads no more has its own reasons.
            let _ = writeln!(line, "{text}");
        }
        _ => {}
    }
    Ok(false)
}

fn is_readable(fd: &impl AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).is_ok_and(|ready| ready > 0)
}
