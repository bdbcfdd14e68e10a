//! What goes to agents: READY, CREATE, reports and ends of flows, in datagrams that never wait for a reader; and what a full socket leads to.

use base::{Duration, Instant};
use ccp_wire::Message;

use crate::agent::{Farewell, end_of};
use crate::command::{Command, Reason};
use crate::config::{GATHER, GRACE_MIN, GRACE_ROUND_TRIPS, KNOCK, KNOCK_AGAIN, RETRY};
use crate::endpoint::Endpoint;
use crate::flow::Place;
use crate::notice::Notice;

/// What became of a datagram that was sent without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The agent's socket has it.
    Taken,
    /// The agent's socket is full (EAGAIN). The same datagram is tried again.
    Full,
    /// There is no socket at that address (ECONNREFUSED, ENOENT), or it cannot be reached.
    Gone,
}

/// Sends a datagram (second argument) to an address (first argument), without waiting.
pub type Send<'s> = &'s mut dyn FnMut(&[u8], &[u8]) -> Sent;

impl Endpoint {
    /// Sends what may go now, and lets flows fall back when their time is over. Call it after each input and at [`Self::next_deadline`].
    pub fn drive(&mut self, now: Instant, send: Send<'_>) {
        self.budget.refill(now);
        let indices: Vec<usize> = self.agents.keys().copied().collect();
        for index in &indices {
            self.knock(now, *index, send);
        }
        // One more round for flows of an agent that turned out to be gone: they may have another one. Each agent is lost once.
        loop {
            for index in &indices {
                self.flush_rested(now, *index, send);
                self.send_farewells(now, *index, send);
                self.fall_back_overdue(now, *index);
            }
            self.send_queue(now, send);
            for index in &indices {
                self.flush_rested(now, *index, send);
            }
            if self.queue.is_empty() || !self.budget.has_room() {
                return;
            }
        }
    }

    /// When [`Self::drive`] has something to do, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let agents = self.agents.values().map(|agent| {
            let is_tried = agent.process.is_none() || agent.full_since.is_some();
            let grace = agent.graces.first().map_or(Instant::NEVER, |(at, _)| *at);
            let gathered = if agent.datagram.is_empty() { Instant::NEVER } else { agent.rests_until };
            grace.min(if is_tried { agent.try_at } else { gathered })
        });
        let queue = if self.queue.is_empty() { Instant::NEVER } else { self.budget.ready_at() };
        agents.fold(queue, Instant::min)
    }

    /// READY, to an agent that has not spoken yet.
    fn knock(&mut self, now: Instant, index: usize, send: Send<'_>) {
        let Some(agent) = self.agents.get_mut(&index) else { return };
        if agent.process.is_some() || now < agent.try_at {
            return;
        }
        let mut ready = Vec::new();
        Message::Ready { datapath: self.config.datapath }.encode(&mut ready).expect("READY is short");
        let is_taken = send(&agent.address, &ready) == Sent::Taken;
        agent.try_at = now.plus(if is_taken { KNOCK_AGAIN } else { KNOCK });
    }

    /// Sends the agent's datagram, unless reports still gather in it.
    fn flush_rested(&mut self, now: Instant, index: usize, send: Send<'_>) {
        if self.agents.get(&index).is_some_and(|agent| agent.rests_until <= now) {
            self.flush(now, index, send);
        }
    }

    /// Sends the agent's datagram. True if it is empty now.
    fn flush(&mut self, now: Instant, index: usize, send: Send<'_>) -> bool {
        let Some(agent) = self.agents.get_mut(&index) else { return false };
        if agent.datagram.is_empty() {
            return true;
        }
        if agent.full_since.is_some() && now < agent.try_at {
            return false;
        }
        match send(&agent.address, &agent.datagram) {
            Sent::Taken => self.taken(now, index),
            Sent::Full => self.full(now, index),
            Sent::Gone => {
                self.lose(now, index, Reason::AgentDied);
                if let Some(agent) = self.agents.get_mut(&index) {
                    agent.try_at = now.plus(KNOCK);
                }
            }
        }
        self.agents.get(&index).is_some_and(|agent| agent.datagram.is_empty())
    }

    /// The agent reads: its flows may report again, and those that waited take their turn.
    fn taken(&mut self, now: Instant, index: usize) {
        let Some(agent) = self.agents.get_mut(&index) else { return };
        self.journal.counters.datagrams += 1;
        let others = agent.reporting.len().saturating_sub(1) as u64;
        let gathers = GATHER.0.as_ns() * others;
        agent.rests_until = now.plus(Duration::from_ns(gathers).min(GATHER.1));
        agent.datagram.clear();
        agent.full_since = None;
        let was_stalled = std::mem::take(&mut agent.is_stalled);
        let graces = std::mem::take(&mut agent.graces);
        self.queue.extend(agent.waiting.drain(..));
        for number in agent.reporting.drain(..) {
            if let Some(flow) = self.flows.get_mut(&number) {
                flow.is_in_datagram = false;
                self.commands.push_back(Command::Accept { flow: flow.id });
            }
        }
        for (_, number) in graces {
            if let Some(flow) = self.flows.get_mut(&number) {
                flow.grace = None;
            }
        }
        if was_stalled {
            self.settle_all();
        }
    }

    /// The agent's socket had no room.
    fn full(&mut self, now: Instant, index: usize) {
        let Some(agent) = self.agents.get_mut(&index) else { return };
        let is_first = agent.full_since.is_none();
        let since = *agent.full_since.get_or_insert(now);
        let reporting = if is_first { agent.reporting.clone() } else { Vec::new() };
        self.journal.counters.full += u64::from(is_first);
        for number in reporting {
            self.begin_grace(now, number, index);
        }
        let Some(agent) = self.agents.get_mut(&index) else { return };
        let is_awaited = !agent.graces.is_empty() || now.since(since) < GRACE_MIN;
        agent.try_at = now.plus(if is_awaited { RETRY } else { KNOCK });
    }

    /// A report of the flow has found no room: the flow falls back if that lasts.
    fn begin_grace(&mut self, now: Instant, number: u32, index: usize) {
        let Some(flow) = self.flows.get_mut(&number) else { return };
        let Some(agent) = self.agents.get_mut(&index) else { return };
        if flow.grace.is_none() {
            let round_trips = Duration::from_ns(flow.rtt.as_ns().saturating_mul(GRACE_ROUND_TRIPS));
            let at = now.plus(round_trips.max(GRACE_MIN));
            flow.grace = Some(at);
            agent.graces.insert((at, number));
        }
    }

    fn fall_back_overdue(&mut self, now: Instant, index: usize) {
        while let Some(agent) = self.agents.get_mut(&index)
            && let Some((at, number)) = agent.graces.first().copied()
            && at <= now
        {
            agent.graces.pop_first();
            let address = agent.address.clone();
            if !std::mem::replace(&mut agent.is_stalled, true) {
                let reason = Reason::AgentStalled;
                self.journal.tell(Notice::AgentLost { agent: address, reason, flows: 1 });
            }
            self.fall_back(number, Reason::AgentStalled);
        }
    }

    /// Ends of flows, each behind the last report of the flow. They need no budget: each flow has one.
    fn send_farewells(&mut self, now: Instant, index: usize, send: Send<'_>) {
        while let Some(agent) = self.agents.get_mut(&index)
            && agent.full_since.is_none()
            && let Some(farewell) = agent.farewells.pop_front()
        {
            let last = farewell.report.as_ref().map(|report| report.message(farewell.flow));
            let end = end_of(farewell.flow);
            let first = last.as_ref().unwrap_or(&end);
            if !agent.has_room(first) {
                agent.farewells.push_front(farewell);
                if !self.flush(now, index, send) {
                    return;
                }
                continue;
            }
            agent.append(first);
            if last.is_some() {
                self.journal.counters.reports += 1;
                agent.farewells.push_front(Farewell { report: None, ..farewell });
            }
        }
    }

    /// CREATEs and reports, as many as the budget allows, one of each flow in turn.
    fn send_queue(&mut self, now: Instant, send: Send<'_>) {
        while let Some(number) = self.queue.pop_front() {
            let Some(flow) = self.flows.get_mut(&number) else { continue };
            let Some(index) = flow.agent() else { continue };
            let Some(agent) = self.agents.get_mut(&index) else { continue };
            if agent.full_since.is_some() {
                agent.waiting.push_back(number);
                if flow.report.is_some() {
                    self.begin_grace(now, number, index);
                }
                continue;
            }
            if !self.budget.has_room() {
                self.queue.push_front(number);
                return;
            }
            let report = flow.report;
            let message = match &report {
                _ if !flow.is_told => Message::Create { flow: number, create: flow.create },
                Some(report) => report.message(number),
                None => {
                    flow.is_queued = false;
                    continue;
                }
            };
            if !agent.has_room(&message) {
                // Full, gone or empty: the next turn sees what became of it.
                self.queue.push_front(number);
                self.flush(now, index, send);
                continue;
            }
            agent.append(&message);
            self.budget.take();
            flow.is_queued = false;
            if flow.is_told {
                flow.report = None;
                flow.is_in_datagram = true;
                agent.reporting.push(number);
                self.journal.counters.reports += 1;
            } else {
                flow.is_told = true;
                debug_assert!(
                    matches!(flow.place, Place::At { program: None, .. }),
                    "programs follow CREATE"
                );
                self.journal.counters.creates += 1;
            }
        }
    }
}
