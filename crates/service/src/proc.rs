//! What `/proc` says about a process: what it has open. Decides nothing that concerns another application.

use std::fs::DirEntry;
use std::path::PathBuf;

/// The path of `pid`'s control group (version 2, or of the hierarchy of systemd's); `None`: it cannot be seen.
pub fn cgroup(pid: i32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let of = |hierarchy: &str| text.lines().find_map(|line| line.split_once(hierarchy));
    of("0::").or_else(|| of(":name=systemd:")).map(|(_, path)| path.to_owned())
}

/// What stands behind each descriptor of `pid`, as far as that may be seen.
pub fn descriptors(pid: i32) -> impl Iterator<Item = PathBuf> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd"));
    // What is closed meanwhile is nothing.
    let name = |entry: std::io::Result<DirEntry>| entry.and_then(|entry| std::fs::read_link(entry.path()));
    all.into_iter().flatten().map(move |entry| name(entry).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_descriptors_stand_for_is_told() {
        let file = std::env::current_exe().unwrap();
        let _open = std::fs::File::open(&file).unwrap();
        assert!(descriptors(std::process::id() as i32).any(|name| name == file));
        assert!(descriptors(-1).next().is_none());
    }
}
