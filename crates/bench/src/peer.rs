//! More processes of a measurement: this program, started again with a hidden name and a control socket as its standard input.

use crate::interrupt;
use anyhow::{Context, bail};
use control::Line;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Serialize, de::DeserializeOwned};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// `bench HIDDEN_NAME ROLE` starts a peer process.
pub const HIDDEN_NAME: &str = "__peer";

/// The path of this program's file.
///
/// # Errors
/// When it cannot be found.
pub fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

/// A peer process. Dropping it kills and reaps the process.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    line: Line,
}

impl Peer {
    /// Starts a peer process.
    ///
    /// # Errors
    /// When this program cannot be started again.
    pub fn start(role: &str) -> anyhow::Result<Self> {
        Self::start_by(Command::new(own_program()?), role)
    }

    /// Starts a peer process by a command that ends with [`own_program`] and runs it under the same process id.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub fn start_by(mut command: Command, role: &str) -> anyhow::Result<Self> {
        let (ours, theirs): (OwnedFd, OwnedFd) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let child = command
            .args(["bench", HIDDEN_NAME, role])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start this program again")?;
        Ok(Self { child, line: Line::new(ours) })
    }

    /// The peer's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a message with descriptors to the peer.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        self.line.send(message, fds, true).context("a peer process is gone")
    }

    /// Waits for a message from the peer.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn receive<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        Ok(self.line.receive(true).context("a peer process is gone")?.message)
    }

    /// Waits at most `seconds` for a message from the peer.
    ///
    /// # Errors
    /// When the peer is gone or silent, or on a signal after [`interrupt::watch`].
    pub fn receive_within<T: DeserializeOwned>(&self, seconds: f64) -> anyhow::Result<T> {
        if !interrupt::readable(Some(self.line.as_fd()), seconds)? {
            bail!("a peer process said nothing for {seconds:.0} s");
        }
        self.receive()
    }

    /// Waits until the peer closes its control socket, which it does when it ends, but at most `seconds`.
    ///
    /// # Errors
    /// On a signal after [`interrupt::watch`].
    pub fn wait(self, seconds: f64) -> anyhow::Result<()> {
        interrupt::readable(Some(self.line.as_fd()), seconds).map(|_| ())
    }

    /// Waits for the peer's end and returns its exit status.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn ended(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        Ok(self.child.wait()?)
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have ended already; either way it is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
