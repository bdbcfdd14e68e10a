//! Memory control groups, version 1 or 2, that are removed when dropped.

use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// A memory control group.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    usage: &'static str,
}

impl MemoryGroup {
    /// Makes a group below the root of the hierarchy, limited to `limit` bytes. `None` without a memory controller or the right to use it.
    pub fn new(name: &str, limit: u64) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let v1 = root.join("memory/memory.limit_in_bytes").exists();
        let v2 = fs::read_to_string(root.join("cgroup.subtree_control"))
            .is_ok_and(|controllers| controllers.split_whitespace().any(|c| c == "memory"));
        let (parent, limit_file, usage) = match (v1, v2) {
            (true, _) => (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
            (_, true) => (root.to_owned(), "memory.max", "memory.current"),
            _ => return None,
        };
        let folder = parent.join(format!("towpath-bench-{}-{name}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let group = Self { folder, usage };
        fs::write(group.folder.join(limit_file), limit.to_string()).ok()?;
        Some(group)
    }

    /// Moves a process into the group.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add(&self, pid: u32) -> anyhow::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).context("cannot move a process")
    }

    /// Bytes charged to the group.
    ///
    /// # Errors
    /// When the kernel's file cannot be read.
    pub fn usage(&self) -> anyhow::Result<f64> {
        Ok(fs::read_to_string(self.folder.join(self.usage))?.trim().parse()?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The last process of the group may not have ended completely.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}
