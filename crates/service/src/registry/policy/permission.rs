//! The policy in force: its answers about registered processes, and how it is read again.

use crate::registry::local::shown::Shown;
use crate::registry::log_limit::log_for;
use crate::registry::policy::{Limits, Refusal, Rule, Subject};
use crate::registry::process::descriptors::{Charge, IN_FLIGHT, Payer};
use crate::registry::process::procfs;
use crate::registry::registration::Credentials;
use crate::registry::report;
use crate::registry::{Answer, Registry};
use control::KernelReason;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::net::SocketAddr;

/// Most characters of an error in the policy file that are sent to the command line, so that they fit a message.
const MISTAKE_LEN: usize = 1024;

/// Most listeners of one user at one port number, whatever their addresses: a search for the listener of an address goes through all of
/// them.
pub const LISTENERS_MOST: usize = if cfg!(test) { 48 } else { 1024 };

/// A refusal. The kernel gets the socket, unless the address is the service's own, which the kernel does not have.
fn refused(is_own: bool, errno: Errno, reason: KernelReason) -> Option<Answer> {
    Some(if is_own { Answer::refused(errno, &reason.to_string()) } else { Answer::kernel(reason) })
}

/// True for the numbers of root and of the service's own user. They may administer the service where they are not in a container.
pub fn is_privileged(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Most of `all` that one user may have where the policy sets no limit: who does not administer the service leaves a quarter to others.
fn fair(is_administrator: bool, all: u32) -> u32 {
    if is_administrator { all } else { all - all / 4 }
}

impl Registry {
    /// The policy's view of a process that is not registered.
    pub fn subject_of(&self, who: Credentials) -> Subject {
        let cgroup = if self.policy.asks_for_cgroups() { procfs::cgroup(who.number(0)) } else { None };
        Subject { uid: who.uid, gid: who.gid, cgroup, namespace: who.namespace }
    }

    /// The policy's view of a registered process.
    pub fn subject(&self, application: u32) -> Option<Subject> {
        let a = self.applications.get(&application)?;
        Some(Subject { uid: a.uid, gid: a.gid, cgroup: a.cgroup.clone(), namespace: a.namespace })
    }

    /// True when one more process of this user may register, promise a child, or ask for a report. A promised child counts as a process:
    /// `is_counted` says that this is one.
    pub fn admits(&self, who: Credentials, is_counted: bool) -> bool {
        let subject = self.subject_of(who);
        let most = self
            .policy
            .limits(&subject)
            .applications
            .min(fair(who.is_administrator, self.config.max_applications));
        let has = self.applications.values().filter(|a| a.uid == who.uid).count();
        self.policy.admits(&subject)
            && has + self.promised_of(who.uid) < most as usize + usize::from(is_counted)
    }

    /// Charges the user at the other end of a control line. `None`: it has its share of the service's descriptors.
    pub fn charge_line(&mut self, who: Credentials) -> Option<Charge> {
        let payer = Payer { uid: who.uid, has_share: !who.is_administrator };
        // Those in flight to an administrator are few, and the limit may be small.
        let count = if who.is_administrator { 1 } else { 1 + IN_FLIGHT };
        self.descriptors.charge(payer, count, self.ports.held())
    }

    /// Charges the user with a line that is closed as soon as can be.
    pub fn charge_closing(&mut self, who: Credentials) -> Charge {
        self.descriptors.charge_anyway(Payer { uid: who.uid, has_share: !who.is_administrator })
    }

    /// Charges the user of a process. `None`: it has its share.
    pub fn charge(&mut self, application: u32, count: usize) -> Option<Charge> {
        let who = self.applications.get(&application)?.payer();
        self.descriptors.charge(who, count, self.ports.held())
    }

    /// True when the application may have one more connection over the port; an ordinary user leaves some to other users.
    pub fn may_have_flow(&self, application: u32) -> bool {
        let Some(a) = self.applications.get(&application) else { return true };
        let of_user = self.applications.values().filter(|other| other.uid == a.uid);
        of_user.map(|other| other.flows).sum::<u32>() < fair(a.is_administrator, self.config.link.flows)
    }

    /// The refusal of a `Listen`, if the policy forbids that socket to listen.
    pub fn refuses_listen(&mut self, id: u32, shown: &Shown) -> Option<Answer> {
        let (local, v6_only) = (shown.local, shown.v6_only);
        let subject = Subject { namespace: shown.namespace, ..self.subject(id)? };
        let is_own = self.tcp.owns(local.ip());
        if let Err(refusal) = self.policy.may_listen(&subject, local, v6_only) {
            return self.refusal(is_own, &refusal);
        }
        let is_new = self.listeners.of_socket(shown.cookie).is_none();
        if is_new && self.listeners.count_at(local.port(), subject.uid) >= LISTENERS_MOST {
            return refused(is_own, Errno::NOBUFS, KernelReason::TooManyListeners);
        }
        self.exceeds(&subject, is_own)
    }

    /// The refusal of a `Connect`, if the policy forbids it to a socket of that network namespace.
    pub fn refuses_connect(&mut self, id: u32, namespace: u64, remote: SocketAddr) -> Option<Answer> {
        let subject = Subject { namespace, ..self.subject(id)? };
        let is_own = self.tcp.owns(remote.ip());
        if let Err(refusal) = self.policy.may_connect(&subject, remote) {
            return self.refusal(is_own, &refusal);
        }
        let rate = self.policy.limits(&subject).new_connections_per_second;
        if !self.rates.begin(subject.uid, rate, self.now) {
            return refused(is_own, Errno::AGAIN, KernelReason::PolicyRate);
        }
        self.exceeds(&subject, is_own)
    }

    fn refusal(&mut self, is_own: bool, refusal: &Refusal) -> Option<Answer> {
        log_for!(self.log_limit, self.now, refusal.uid, info, "{refusal}");
        let reason = match refusal.rule {
            Some(rule) => KernelReason::Rule(rule as u32),
            None => KernelReason::OtherNamespace,
        };
        refused(is_own, Errno::ACCESS, reason)
    }

    /// The refusal of one more connection or listener, if the user has as much as it may.
    fn exceeds(&self, subject: &Subject, is_own: bool) -> Option<Answer> {
        let uid = subject.uid;
        let Limits { flows, memory, .. } = self.policy.limits(subject);
        if flows < u32::MAX {
            let of_user = self.applications.values().filter(|a| a.uid == uid);
            if of_user.map(|a| u64::from(a.sockets)).sum::<u64>() >= u64::from(flows) {
                return refused(is_own, Errno::AGAIN, KernelReason::PolicyConnections);
            }
        }
        if memory < u64::MAX && self.memory_of_user(uid) >= memory {
            return refused(is_own, Errno::NOBUFS, KernelReason::PolicyMemory);
        }
        None
    }

    /// Bytes of shared memory in use by regions that processes of the user own or share.
    fn memory_of_user(&self, uid: u32) -> u64 {
        let is_its = |id: &u32| self.applications.get(id).is_some_and(|a| a.uid == uid);
        let own = self.regions.values().filter(|r| is_its(&r.owner)).map(|r| r.memory.fd.as_fd());
        let pairs = self.pairs.values().filter(|p| p.parties.iter().any(is_its)).map(|p| p.fd.as_fd());
        own.chain(pairs).map(|fd| rustix::fs::fstat(fd).map_or(0, |s| s.st_blocks as u64 * 512)).sum()
    }

    /// True for a process that may be lent slots, and so connect without asking: no limit of the policy counts its connections.
    pub fn may_be_lent(&self, application: u32) -> bool {
        let limits = self.subject(application).map(|subject| self.policy.limits(&subject));
        limits.is_some_and(|l| {
            l.new_connections_per_second == u32::MAX && l.flows == u32::MAX && l.memory == u64::MAX
        })
    }

    /// What bounds the sending of a process from its registration on.
    pub fn sending_limits(&mut self, application: u32) -> flow::Limits {
        let Some(subject) = self.subject(application) else { return flow::Limits::none() };
        self.buckets.limits(subject.uid, &self.policy.sending(&subject))
    }

    /// Puts rules in force that were read again, for `Report::Reload` or SIGHUP, and returns the report's answer. A file with an error
    /// changes nothing.
    pub fn put_in_force(&mut self, rules: Result<Vec<Rule>, String>) -> Answer {
        let rules = match rules {
            Ok(rules) => rules,
            Err(mistake) => {
                tracing::error!("the policy stays as it was: {mistake}");
                let text = format!("the policy stays as it was: {mistake}");
                return Answer::refused(
                    Errno::INVAL,
                    &crate::registry::report::text::bounded(&text, MISTAKE_LEN),
                );
            }
        };
        let before = self.policy.len();
        self.policy = self.policy.with_rules(rules);
        if self.policy.asks_for_cgroups() {
            for a in self.applications.values_mut() {
                a.cgroup = procfs::cgroup(a.process.number);
            }
        }
        // The old rules allowed the direct connections: processes must ask again.
        self.revoke_all();
        let path = self.config.policy_source.path().map(|path| path.display().to_string());
        tracing::info!(rules = self.policy.len(), path, "the policy is read anew");
        let told = serde_json::json!({ "policy": path, "rules": self.policy.len(), "rules_before": before });
        report::answer_of(serde_json::to_vec(&told))
    }
}
