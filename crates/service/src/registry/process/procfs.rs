//! What `/proc` says about a process. The result affects only that process's own application.

/// The path of `pid`'s control group (version 2, or systemd's hierarchy of version 1); `None`: it is not visible.
pub fn cgroup(pid: i32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let of = |hierarchy: &str| text.lines().find_map(|line| line.split_once(hierarchy));
    of("0::").or_else(|| of(":name=systemd:")).map(|(_, path)| path.to_owned())
}
