//! What `/proc` says about a process. Decides nothing that concerns another application.

/// The path of `pid`'s control group (version 2, or of the hierarchy of systemd's); `None`: it cannot be seen.
pub fn cgroup(pid: i32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let of = |hierarchy: &str| text.lines().find_map(|line| line.split_once(hierarchy));
    of("0::").or_else(|| of(":name=systemd:")).map(|(_, path)| path.to_owned())
}
