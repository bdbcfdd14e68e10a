//! What `/proc` says about a process. The result affects only that process's own application.

use crate::registry::process::number::Number;
use control::credentials::process_inode;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The path of a process's control group (version 2, or systemd's hierarchy of version 1); `None`: it is not visible.
pub fn cgroup(process: Number) -> Option<String> {
    let pid = Pid::from_raw(process.pid)?;
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).ok()?;
    // Afterwards: if the number is the process's now, it was then.
    let is_it = || Some(process_inode(pidfd_open(pid, PidfdFlags::empty()).ok()?)? == process.inode);
    if process.inode != 0 && is_it() != Some(true) {
        return None;
    }
    let of = |hierarchy: &str| text.lines().find_map(|line| line.split_once(hierarchy));
    of("0::").or_else(|| of(":name=systemd:")).map(|(_, path)| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    #[test]
    fn a_control_group_is_that_of_the_process_itself_and_of_no_other_with_its_number() {
        let pid = getpid().as_raw_pid();
        let own = pidfd_open(getpid(), PidfdFlags::empty()).ok().and_then(process_inode);
        let here = Number { pid, application: 1, inode: own.unwrap_or(0) };
        if std::path::Path::new("/proc/self/cgroup").exists() {
            let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
            assert!(cgroup(here).is_none_or(|path| text.contains(&path)));
        }
        assert_eq!(cgroup(Number { pid: 0, ..here }), None, "a process of another namespace is none here");
        if let Some(own) = own {
            assert_eq!(
                cgroup(Number { inode: own + 1, ..here }),
                None,
                "the number is another process's now"
            );
        }
    }
}
