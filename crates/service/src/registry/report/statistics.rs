//! Counts of accelerated sockets and of sockets that fell back to the kernel, by process and reason.

use crate::registry::process::number::Number;
use control::KernelReason;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Most ended processes that are listed one by one.
pub(super) const ENDED_MAX: usize = 256;
/// Most different reasons kept for one process, and for a sum of processes; sockets with further reasons count under [`OTHER`].
const REASONS_MAX: (usize, usize) = (16, 64);
/// The reason under which sockets count when there is no room for theirs.
const OTHER: &str = "other";

/// Counts of one process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Process {
    /// How a reader finds the process.
    #[serde(flatten)]
    pub number: Number,
    /// Command of the process.
    pub process: String,
    /// User of the process.
    pub uid: u32,
    /// False when the process has ended.
    pub alive: bool,
    /// Accelerated sockets: connections made or accepted, and listeners.
    pub accelerated: u64,
    /// Those of `accelerated` that are connections made by the process.
    pub connected: u64,
    /// Those of `accelerated` that are connections to its listeners.
    pub accepted: u64,
    /// Those of `accelerated` that are listeners.
    pub listeners: u64,
    /// Sockets that fell back to the kernel.
    pub fallen_back: u64,
    /// Those of `fallen_back` by reason.
    pub by_reason: BTreeMap<String, u64>,
    /// Connects given to the kernel because no socket listened there; they made no connection.
    pub refused: u64,
    /// Messages that the process has sent to the service, without its first. Direct connects send none.
    pub requests: u64,
}

impl Process {
    /// Counts a socket that fell back.
    pub fn fell_back(&mut self, reason: KernelReason) {
        self.fallen_back += 1;
        count(&mut self.by_reason, &reason.to_string(), 1, REASONS_MAX.0);
    }

    /// A socket that had fallen back for `reason` is accelerated after all.
    pub fn came_back(&mut self, reason: KernelReason) {
        let reason = reason.to_string();
        let reason = reason.as_str();
        self.fallen_back -= 1;
        let key = if self.by_reason.contains_key(reason) { reason } else { OTHER };
        if let Some(count) = self.by_reason.get_mut(key) {
            *count -= 1;
            self.by_reason.retain(|_, count| *count > 0);
        }
    }
}

/// Counts of all processes, also of those that have ended.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    pub(super) ended: VecDeque<Process>,
    /// Sums of the ended processes that are no longer listed.
    pub forgotten: Process,
    /// Number of applications detached for misbehaviour.
    pub detached: u64,
    /// Bytes that relays have copied.
    pub relayed_bytes: u64,
    /// Number of ports that the service holds in the kernel for connections within the host, each with a descriptor.
    pub held_ports: usize,
}

impl Statistics {
    /// Moves the counts of a process that has ended to the list of ended ones.
    pub fn end(&mut self, mut process: Process) {
        process.alive = false;
        self.ended.push_front(process);
        if self.ended.len() > ENDED_MAX
            && let Some(old) = self.ended.pop_back()
        {
            add(&mut self.forgotten, &old);
        }
    }
}

/// Adds all counts of a process to a sum.
pub(super) fn add(sum: &mut Process, p: &Process) {
    // Names every field, so that a new one is not forgotten here.
    let Process {
        number: _,
        process: _,
        uid: _,
        alive: _,
        accelerated,
        connected,
        accepted,
        listeners,
        fallen_back,
        by_reason,
        refused,
        requests,
    } = p;
    sum.accelerated += accelerated;
    sum.connected += connected;
    sum.accepted += accepted;
    sum.listeners += listeners;
    sum.fallen_back += fallen_back;
    sum.refused += refused;
    sum.requests += requests;
    for (reason, n) in by_reason {
        count(&mut sum.by_reason, reason, *n, REASONS_MAX.1);
    }
}

/// Adds `n` sockets to their reason, or to [`OTHER`] when there is no room for it.
fn count(by_reason: &mut BTreeMap<String, u64>, reason: &str, n: u64, most: usize) {
    let has_room = by_reason.contains_key(reason) || by_reason.len() < most;
    *by_reason.entry(if has_room { reason } else { OTHER }.to_owned()).or_default() += n;
}
