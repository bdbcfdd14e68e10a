//! Network namespaces that are deleted when dropped.

use crate::program;
use anyhow::{Context, bail};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Seconds allowed for a call of `ip`.
const IP_LIMIT: f64 = 10.0;

/// Runs `ip` with these arguments.
///
/// # Errors
/// The message of `ip`.
pub fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let result = program::run(Command::new(program::find("ip")?).args(arguments), IP_LIMIT);
    result.map(|_| ()).with_context(|| format!("ip {}", arguments.join(" ")))
}

/// Checks that the user is root.
///
/// # Errors
/// When the user is not root; the message says what to do.
pub fn need_root() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces and TAP interfaces need root: run it again with sudo");
    }
    Ok(())
}

/// The prefix of namespaces' names; the process id and a number follow.
const PREFIX: &str = "towpath-";

/// A named network namespace with its loopback interface up.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace.
    ///
    /// # Errors
    /// When the user is not root, or `ip` is missing.
    pub fn new() -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        need_root()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Made before the calls of `ip`, so that it is deleted if one of them fails.
        let namespace = Self { name: format!("{PREFIX}{}-{number}", std::process::id()) };
        ip(&["netns", "add", &namespace.name])?;
        ip(&["-n", namespace.name(), "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The namespace's name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs `program` in the namespace, under the same process id.
    ///
    /// # Errors
    /// When `ip` or the program is not installed.
    pub fn command(&self, program: &str) -> anyhow::Result<Command> {
        self.command_of(&program::find(program)?)
    }

    /// As [`command`](Self::command), with the program's path.
    ///
    /// # Errors
    /// When `ip` is not installed.
    pub fn command_of(&self, program: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(program::find("ip")?);
        command.args(["netns", "exec", &self.name]).arg(program);
        Ok(command)
    }

    /// Deletes namespaces left behind by a killed measurement.
    pub fn remove_orphans() {
        let names = std::fs::read_dir("/run/netns").into_iter().flatten();
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for name in names.filter(|name| is_orphan(name, |pid| Path::new("/proc").join(pid).exists())) {
            // Another process may have deleted it already.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

/// True if the name is one of ours and its process does not exist any more.
fn is_orphan(name: &str, is_alive: impl Fn(&str) -> bool) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    parts.is_some_and(|(pid, number)| is_number(pid) && is_number(number) && !is_alive(pid))
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The namespace's interfaces are deleted with it. If the call fails, an empty namespace stays.
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
