//! What the control loop asks and tells the registry, beside requests, timers and deaths: the registry's fields are not the loop's.

use crate::config::Config;
use crate::cores::Command;
use crate::registry::Registry;
use crate::registry::agents::Agents;
use crate::registry::log_limit::LogLimit;
use crate::registry::memory::Memory;
use crate::registry::output::Output;
use crate::registry::registration::Credentials;
use crate::registry::report::profile_switch::Part;
use rustix::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that a look at a region's slow-path doorbell costs, for the account of its user.
const BELL: Duration = Duration::from_micros(5);

impl Registry {
    /// Sets up what a service may have: the port's description for reports, and the congestion control by other processes.
    pub fn set_up(&mut self, port: String, agents: Option<Agents>) {
        self.port = port;
        self.tcp.slow.watch_flows(agents.is_some());
        self.agents = agents;
    }

    /// The time at which all that follows happens.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// The time of what happens now.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The work that begins now is counted as this part of the loop's.
    pub fn begin(&mut self, part: Part) {
        self.counting.enter(part);
    }

    /// The configuration that the service was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Description of the port.
    pub fn port(&self) -> &str {
        &self.port
    }

    /// Bounds the log lines that a user causes, and says the time for it.
    pub fn log_limit(&mut self) -> (&mut LogLimit, Instant) {
        (&mut self.log_limit, self.now)
    }

    /// The descriptor that becomes readable when a watched listening socket has ended.
    pub fn ended_listeners(&self) -> Option<BorrowedFd<'_>> {
        self.listeners.alive.ends()
    }

    /// The descriptor that becomes readable when an agent has something to say; `None`: the service has no agents.
    pub fn agents_set(&self) -> Option<BorrowedFd<'_>> {
        self.agents.as_ref().map(Agents::set)
    }

    /// True when the process on that control line is registered.
    pub fn is_registered(&self, application: u32) -> bool {
        self.applications.contains_key(&application)
    }

    /// True when a process is registered, or a child of one may still say hello.
    pub fn has_applications(&self) -> bool {
        !(self.applications.is_empty() && self.promises.is_empty())
    }

    /// True when a program that has just been started may yet ask for a connection or listener that was left with the service.
    pub fn keeps_what_was_left(&self) -> bool {
        !self.trusts.is_empty() || self.deserted().next().is_some()
    }

    /// Number of control lines without a hello that the policy allows that user.
    pub fn unfinished_hellos_most(&self, who: Credentials) -> usize {
        self.policy.limits(&self.subject_of(who)).unfinished_hellos as usize
    }

    /// Counts a process that is detached because it misbehaved.
    pub fn count_detached(&mut self) {
        self.statistics.detached += 1;
    }

    /// Forgets a process at the service's end, when nothing follows from it any more.
    pub fn forget(&mut self, application: u32) {
        self.applications.remove(&application);
    }

    /// Notes that a region that two processes share is sealed.
    pub fn note_sealed(&mut self, region: u32) {
        if let Some(pair) = self.pairs.get_mut(region) {
            pair.note_sealed();
        }
    }

    /// What is to be done next; `None`: nothing.
    pub fn next_output(&self) -> Option<Output> {
        self.outputs.take()
    }

    /// True when something is to be done.
    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Passes a command on to a core.
    pub fn pass_on(&self, core: usize, command: Command) {
        self.cores[core].say(command);
    }

    /// The memory of an application region.
    pub fn memory_of_region(&self, region: u32) -> Option<Arc<Memory>> {
        self.regions.get(&region).map(|region| region.memory.clone())
    }

    /// The slow-path doorbell of that region must be looked at: its waker was written, or it rang again while it was looked at.
    pub fn note_unheard(&mut self, region: u32) {
        self.unheard.add(region);
    }

    /// Takes some of the regions with doorbells to look at. The users of these regions are charged with the time that a look takes.
    pub fn take_unheard(&mut self) -> Vec<u32> {
        let some = self.unheard.take();
        for region in some.iter().filter_map(|region| self.regions.get(region)) {
            self.outputs.add(Output::Spent(region.uid, BELL));
        }
        some
    }
}
