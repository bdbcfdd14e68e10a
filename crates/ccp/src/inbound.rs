//! What comes from agents: the sender, what it asks for, and whether it may.

use base::Instant;
use ccp_vm::{EVENTS_MAX, INSTRUCTIONS_MAX, Program};
use ccp_wire::{Events, Fields, Instructions, Message, messages};

use crate::agent::Process;
use crate::command::{Bounded, Command, Reason};
use crate::endpoint::Endpoint;
use crate::flow::Place;
use crate::notice::Notice;

/// Where a datagram came from. The kernel vouches for all of it (`recvmsg`, `SCM_CREDENTIALS`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender<'a> {
    /// The path that the sender's socket is bound to.
    pub address: &'a [u8],
    /// The number of the sender's process.
    pub pid: u32,
    /// The user of the sender's process.
    pub uid: u32,
}

impl Endpoint {
    /// A datagram has come. What is wrong with it is counted; it can change only flows of its agent.
    pub fn receive(&mut self, now: Instant, sender: Sender<'_>, datagram: &[u8]) {
        let Some(index) = self.index_of(sender.address) else {
            self.journal.counters.unknown_senders += 1;
            return;
        };
        if !self.config.is_allowed(sender.uid) {
            self.journal.counters.refused_users += 1;
            return;
        }
        let is_new = self.welcome(now, index, Process { pid: sender.pid, uid: sender.uid });
        for message in messages(datagram) {
            match message {
                Ok(message @ Message::Install { program, events, instructions }) => {
                    self.install(index, program, events, instructions, &message);
                }
                Ok(Message::Update { flow, fields }) => self.change(index, flow, None, fields),
                Ok(Message::Change { flow, program, fields }) => {
                    self.change(index, flow, Some(program), fields);
                }
                Ok(Message::Create { .. } | Message::Measure { .. } | Message::Ready { .. }) => {
                    self.journal.counters.malformed += 1;
                }
                Err(why) => {
                    self.journal.counters.malformed += 1;
                    let agent = sender.address.to_vec();
                    self.journal.tell(Notice::Misunderstood { agent, why });
                }
            }
        }
        if is_new {
            self.settle_all();
        }
    }

    /// True if the process is another one than before. The flows of the one before fall back.
    fn welcome(&mut self, now: Instant, index: usize, process: Process) -> bool {
        let Some(agent) = self.agents.get(&index) else { return false };
        if agent.process == Some(process) {
            return false;
        }
        if agent.process.is_some() {
            self.lose(now, index, Reason::AgentDied);
        }
        if let Some(agent) = self.agents.get_mut(&index) {
            agent.process = Some(process);
            let agent = agent.address.clone();
            self.journal.tell(Notice::AgentCame { agent, uid: process.uid });
        }
        true
    }

    fn install(
        &mut self,
        index: usize,
        number: u32,
        events: Events<'_>,
        instructions: Instructions<'_>,
        message: &Message<'_>,
    ) {
        let Some(agent) = self.agents.get_mut(&index) else { return };
        // One item more than allowed is enough to refuse the rest unseen.
        let instructions: Vec<_> = instructions.iter().take(INSTRUCTIONS_MAX + 1).collect();
        let events: Vec<_> = events.iter().take(EVENTS_MAX + 1).collect();
        match Program::verify(&instructions, &events) {
            Ok(program) => {
                let mut bytes = Vec::with_capacity(message.encoded_len());
                message.encode(&mut bytes).expect("it came in a datagram");
                agent.programs.insert(number, program, bytes);
                self.journal.counters.installs += 1;
            }
            Err(refusal) => {
                let agent = agent.address.clone();
                self.journal.counters.refused_programs += 1;
                self.journal.tell(Notice::ProgramRefused { agent, program: number, refusal });
            }
        }
    }

    /// Sets fields of a flow, behind a change of its program if there is one. Nothing is done by halves.
    fn change(&mut self, index: usize, number: u32, program: Option<u32>, fields: Fields<'_>) {
        let counters = &mut self.journal.counters;
        let of_agent = self.flows.get_mut(&number).filter(|flow| flow.is_at(index) && flow.is_told);
        let Some(flow) = of_agent else {
            counters.unknown_flows += 1;
            return;
        };
        let Some(bounded) = Bounded::of(fields, &flow.bounds) else {
            counters.refused_fields += 1;
            return;
        };
        let changes = bounded.changes;
        let command = match program {
            Some(number) => {
                let chosen = self.agents.get_mut(&index).and_then(|agent| agent.programs.choose(number));
                let Some(program) = chosen else {
                    counters.unknown_programs += 1;
                    return;
                };
                flow.place = Place::At { agent: index, program: Some(number) };
                Command::Program { flow: flow.id, program, number, changes, bounds: flow.bounds }
            }
            None if matches!(flow.place, Place::At { program: None, .. }) => {
                counters.unknown_programs += 1;
                return;
            }
            None => Command::Change { flow: flow.id, changes },
        };
        self.commands.push_back(command);
        if bounded.clamps > 0 {
            counters.clamps += bounded.clamps;
            let flow = flow.id;
            self.journal.tell(Notice::Clamped { flow });
        }
    }
}
