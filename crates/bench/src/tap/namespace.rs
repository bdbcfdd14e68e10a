//! Network namespaces of our own, gone when dropped.

use crate::program;
use anyhow::{Context, bail};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Seconds that `ip` may take.
const IP_LIMIT: f64 = 10.0;

/// Runs `ip` with these arguments.
///
/// # Errors
/// What `ip` says.
pub fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let result = program::run(Command::new(program::find("ip")?).args(arguments), IP_LIMIT);
    result.map(|_| ()).with_context(|| format!("ip {}", arguments.join(" ")))
}

/// A named network namespace whose loopback is up.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one.
    ///
    /// # Errors
    /// Without root, or without `ip`.
    pub fn new() -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces and TAP interfaces need root: run it again with sudo");
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-{}-{number}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Self { name };
        ip(&["-n", namespace.name(), "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs `program` in it, under the same process id.
    ///
    /// # Errors
    /// When `ip` or the program is not installed.
    pub fn command(&self, program: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(program::find("ip")?);
        command.args(["netns", "exec", &self.name]).arg(program::find(program)?);
        Ok(command)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Interfaces in it go with it; failing leaves an empty namespace.
        let _ = ip(&["netns", "del", &self.name]);
    }
}
