//! Network namespaces of our own, gone when dropped.

use crate::program;
use anyhow::{Context, bail};
use std::path::Path;
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

/// Says so where there is no root.
///
/// # Errors
/// Then.
pub fn need_root() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces and TAP interfaces need root: run it again with sudo");
    }
    Ok(())
}

/// Names begin so; the process id and a number follow.
const PREFIX: &str = "towpath-";

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
        need_root()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // It is dropped, and so deleted, also when something comes between.
        let namespace = Self { name: format!("{PREFIX}{}-{number}", std::process::id()) };
        ip(&["netns", "add", &namespace.name])?;
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
        self.command_of(&program::find(program)?)
    }

    /// The same of the program at that place.
    ///
    /// # Errors
    /// When `ip` is not installed.
    pub fn command_of(&self, program: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(program::find("ip")?);
        command.args(["netns", "exec", &self.name]).arg(program);
        Ok(command)
    }

    /// Deletes what a measurement that was killed left behind.
    pub fn remove_orphans() {
        let names = std::fs::read_dir("/run/netns").into_iter().flatten();
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for name in names.filter(|name| is_orphan(name, |pid| Path::new("/proc").join(pid).exists())) {
            // Somebody may have been faster.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

/// True when it was named here by a process that is no more.
fn is_orphan(name: &str, is_alive: impl Fn(&str) -> bool) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    parts.is_some_and(|(pid, number)| is_number(pid) && is_number(number) && !is_alive(pid))
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Interfaces in it go with it; failing leaves an empty namespace.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

#[cfg(test)]
mod tests {
    use super::is_orphan;

    #[test]
    fn only_our_names_of_dead_processes_are_orphans() {
        let is_alive = |pid: &str| pid == "7";
        let found = |name| is_orphan(name, is_alive);
        assert!(found("towpath-8-0"));
        assert!(
            !found("towpath-7-0") && !found("towpath-web-0") && !found("towpath-8") && !found("other-8-0")
        );
    }
}
