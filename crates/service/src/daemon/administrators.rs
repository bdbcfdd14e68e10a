//! Who administers the service: root, and the service's own user, in the service's own user and PID namespace. Root of a container that has no
//! user namespace has the same number, and is not the host's administrator; nor is a program that has put itself into a sandbox.
//!
//! Where the kernel cannot say, a process is no administrator. A network namespace of its own changes nothing.

use crate::daemon::Service;
use crate::daemon::helpers::Asker;
use crate::registry::Answer;
use crate::registry::policy::permission::is_privileged;
use crate::registry::registration::Credentials;
use crate::sys;
use control::{CongestionAsk, CoresWish, Reply, Report};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::read_to_string;

/// The report of cycles that does not change the counting.
const LOOK: Report = Report::Cycles(control::Counting::AsItIs);

/// True when the process that made this control line administers the service. `pid` and `uid`: what `SO_PEERCRED` says of it.
pub fn is_administrator(line: BorrowedFd<'_>, pid: i32, uid: u32) -> bool {
    is_privileged(uid) && process(line, pid).is_ok_and(|process| is_of_own_namespaces(&process))
}

/// The process that made the line. The kernel has kept it with the line since Linux 6.5; before, its number is asked for, as early as can be.
fn process(line: BorrowedFd<'_>, pid: i32) -> Result<OwnedFd, Errno> {
    match sys::peer_process(line) {
        Err(Errno::NOPROTOOPT) => pidfd_open(Pid::from_raw(pid).ok_or(Errno::SRCH)?, PidfdFlags::empty()),
        other => other,
    }
}

/// True for a process that lives in the PID namespace and in the user namespace of the service.
fn is_of_own_namespaces(process: &OwnedFd) -> bool {
    let number = || only_number(&read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?);
    let map = |process: &str| read_to_string(format!("/proc/{process}/uid_map")).ok();
    let (Some(pid), Some(own)) = (number(), map("self")) else { return false };
    let its = map(&pid.to_string());
    // The second time, because only as long as the process lives the number is its own.
    its.is_some_and(|its| its == own) && number() == Some(pid)
}

/// The number of a process by the `fdinfo` of its descriptor; `None`: it has ended, is outside of the PID namespace of the service (number 0), or is
/// in one inside (it has further numbers there).
fn only_number(fdinfo: &str) -> Option<i32> {
    let mut numbers = fdinfo.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace();
    let number = numbers.next()?.parse().ok().filter(|number| *number > 0)?;
    numbers.next().is_none().then_some(number)
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
            Report::Reload => return Err(Box::new(self.read_policy(Some(asker)))),
            report => return Ok(report),
        }
        tracing::info!(pid = who.pid, "told to leave");
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
    fn a_number_counts_that_is_the_only_one() {
        let info =
            |numbers: &str| only_number(&format!("pos:\t0\nflags:\t02000002\nPid:\t7\nNSpid:\t{numbers}\n"));
        assert_eq!(
            [info("7"), info("7\t1"), info("0"), info("-1"), info("")],
            [Some(7), None, None, None, None]
        );
        assert_eq!(only_number("pos:\t0\n"), None);
    }

    #[test]
    fn the_services_user_is_an_administrator_and_others_are_not() {
        let (line, _other) = UnixStream::pair().unwrap();
        let (pid, uid) = (getpid().as_raw_pid(), geteuid().as_raw());
        assert!(is_administrator(line.as_fd(), pid, uid));
        assert!(!is_administrator(line.as_fd(), pid, uid + 4_711));
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
