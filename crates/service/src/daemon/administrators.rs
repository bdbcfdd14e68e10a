//! Who administers the service: root, and the service's own user, in the service's own user and PID namespace. Root of a container that has no
//! user namespace has the same number, and is not the host's administrator; nor is a program that has put itself into a sandbox.
//!
//! Where the kernel cannot say, a process is no administrator. A network namespace of its own changes nothing.

use crate::daemon::Service;
use crate::daemon::helpers::Asker;
use crate::registry::Answer;
use crate::registry::policy::permission::is_privileged;
use crate::registry::registration::Credentials;
use control::credentials::{self, numbers_of, peer_process};
use control::{CongestionAsk, CoresWish, Reply, Report};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::read_to_string;

/// The report of cycles that does not change the counting.
const LOOK: Report = Report::Cycles(control::Counting::AsItIs);

/// What the kernel says of the process that made this control line, but for the line's network namespace.
pub fn credentials(line: BorrowedFd<'_>) -> Result<Credentials, Errno> {
    let credentials::Credentials { pid, uid, gid } = credentials::peer_credentials(line)?;
    let process = process(line, pid);
    let is_administrator = is_privileged(uid) && process.as_ref().is_some_and(is_of_own_namespaces);
    let inode = process.and_then(credentials::process_inode).unwrap_or(0);
    Ok(Credentials { pid, inode, uid, gid, namespace: 0, is_administrator })
}

/// The process that made the line. The kernel has kept it with the line since Linux 6.5; before, its number is asked for, as early as can be.
/// `None`: it has ended, or there is no descriptor for it.
fn process(line: BorrowedFd<'_>, pid: i32) -> Option<OwnedFd> {
    match peer_process(line) {
        Err(Errno::NOPROTOOPT) => pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok(),
        other => other.ok(),
    }
}

/// True for a process that lives in the PID namespace and in the user namespace of the service.
fn is_of_own_namespaces(process: &OwnedFd) -> bool {
    // A process of a namespace above has none, and one of a namespace inside has further numbers there.
    let number = || match numbers_of(process)[..] {
        [number] => Some(number),
        _ => None,
    };
    let map = |process: &str| read_to_string(format!("/proc/{process}/uid_map")).ok();
    let (Some(pid), Some(own)) = (number(), map("self")) else { return false };
    let its = map(&pid.to_string());
    // The second time, because only as long as the process lives the number is its own.
    its.is_some_and(|its| its == own) && number() == Some(pid)
}

impl Service {
    /// Lets users that the policy admits read reports; only the service's own user and root may change or end it. Returns the report that
    /// is to be made, or the answer.
    pub(crate) fn permit(
        &mut self,
        who: Credentials,
        report: Report,
        asker: Asker,
    ) -> Result<Report, Box<Answer>> {
        let refused = |errno, why| Err(Box::new(Answer::refused(errno, why)));
        if !self.registry.admits(who, false) {
            return refused(Errno::ACCESS, "the service's policy does not admit this user");
        }
        if report == LOOK || !changes_service(&report) {
            return Ok(report);
        }
        if !who.is_administrator {
            let reason = "only the service's own user and root may end it, or change what it does; not from a container or sandbox";
            return refused(Errno::PERM, reason);
        }
        match report {
            Report::Shutdown => {}
            Report::Reload if self.registry.config().policy_source.path().is_none() => {
                let reason = "it has no policy file to read; start it with `towpath up --policy FILE`";
                return refused(Errno::NOENT, reason);
            }
            Report::Reload => return Err(Box::new(self.read_policy(Some(asker)))),
            report => return Ok(report),
        }
        tracing::info!(pid = %who.number(0), "told to leave");
        self.over = true;
        Err(Box::new(Answer::plain(Reply::Done)))
    }
}

/// True for a report that ends the service, or changes what it does.
const fn changes_service(report: &Report) -> bool {
    match report {
        Report::Shutdown | Report::Reload | Report::Cycles(_) => true,
        Report::Congestion(ask) => {
            matches!(**ask, CongestionAsk::Set { .. } | CongestionAsk::Transcript { .. })
        }
        Report::Cores(wish) => !matches!(wish, CoresWish::AsItIs),
        Report::Sockets | Report::Statistics | Report::Explain | Report::Channels => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::process::{geteuid, getpid};
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command, Stdio};

    #[test]
    fn the_services_user_is_an_administrator_and_others_are_not() {
        let (line, _other) = UnixStream::pair().unwrap();
        let who = credentials(line.as_fd()).unwrap();
        assert_eq!((who.pid, who.uid), (getpid().as_raw_pid(), geteuid().as_raw()));
        assert!(who.is_administrator && !is_privileged(who.uid + 4_711));
    }

    /// A process of this user, after `unshare` with these flags; it waits. `None`: it cannot be had here.
    fn unshared(flags: &[&str]) -> Option<(Child, OwnedFd)> {
        let mut command = Command::new("unshare");
        let child = command.args(flags).arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.ok()?;
        // It answers when it is there.
        std::io::Write::write_all(child.stdin.as_mut()?, b"x").ok()?;
        std::io::Read::read_exact(child.stdout.as_mut()?, &mut [0]).ok()?;
        let below = read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).ok()?;
        let pid = below.split_whitespace().next().map_or(Some(child.id() as i32), |pid| pid.parse().ok())?;
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        Some((child, process))
    }

    #[test]
    fn another_pid_or_user_namespace_makes_no_administrator_and_another_network_does() {
        for (flags, is_one) in
            [(&["--net"][..], true), (&["--pid", "--fork"], false), (&["--user", "--map-root-user"], false)]
        {
            match unshared(flags) {
                Some((mut child, process)) => {
                    assert_eq!(is_of_own_namespaces(&process), is_one, "{flags:?}");
                    drop(child.stdin.take());
                    child.wait().unwrap();
                    assert!(!is_of_own_namespaces(&process), "a process that has ended");
                }
                None => println!("{flags:?} skipped: namespaces cannot be made here"),
            }
        }
    }
}
