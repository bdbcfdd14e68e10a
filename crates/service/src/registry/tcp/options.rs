//! Socket options on their way to the slow path.

use crate::registry::choice::Choice;
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::tcp::{Carrier, Flow};
use crate::registry::{Answer, Registry};
use control::{CongestionName, FlowSubject, Reply, SocketOptions};
use slowpath::FlowOptions;
use std::net::SocketAddr;

impl Registry {
    /// Sets options of a socket. A slot that the socket has left meanwhile is no offence.
    pub fn set_options(&mut self, id: u32, region: u32, slot: u32, told: &SocketOptions) -> Answer {
        if let Some(listener) = self.listeners.all.get(&region) {
            if self.accepts(id, listener) {
                self.set_listener_options(region, told);
            }
            return Answer::Silent;
        }
        let (Some(a), Some(r)) = (self.applications.get(&id), self.regions.get(&region)) else {
            return Answer::Silent;
        };
        // A forked child may use its parent's connections.
        if !a.descends_from(r.owner) {
            return Answer::Offence(format!("options for region {region}, which is a stranger's"));
        }
        let (key, _) = self.origin_of(SlotKey { region, slot });
        let Some(flow) = self.flow_at(key).copied() else { return Answer::Silent };
        // Rules count when a flow begins: only another choice of the socket's own is one of the flow.
        let choice = if told.congestion.is_some() && told.congestion != flow.asked {
            self.choice_of(flow.application, flow.ends, told.congestion)
        } else {
            flow.choice
        };
        let Some(r) = self.regions.get_mut(&key.region) else { return Answer::Silent };
        if let Some(Use::Flow(flow)) = r.slots.get_mut(key.slot) {
            flow.asked = told.congestion.or(flow.asked);
        }
        let index = r.memory.index;
        let options = self.flow_options(told, choice);
        self.tcp.slow.set_slot_options(self.tcp_now(), index, key.slot, &options);
        self.give_law(key, choice);
        Answer::Silent
    }

    /// Answers `Request::Congestion`: whether the program's user may choose that name.
    pub fn judge_congestion(&self, id: u32, name: CongestionName) -> Answer {
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        match self.choices.judge(name, a.uid) {
            Ok(_) => Answer::plain(Reply::Done),
            Err(errno) => Answer::refused(errno, "there is no such congestion control, or not for this user"),
        }
    }

    /// What decides about a flow of that application.
    pub fn choice_of(
        &self,
        application: u32,
        [local, remote]: [SocketAddr; 2],
        asked: Option<CongestionName>,
    ) -> Choice {
        self.choices.choose(&self.flow_subject(application, local, Some(remote)), asked)
    }

    /// A plain connection of that application, with its own address and the peer's, and the congestion control that its socket has chosen.
    pub fn new_flow(&self, application: u32, ends: [SocketAddr; 2], asked: Option<CongestionName>) -> Flow {
        let choice = self.choice_of(application, ends, asked);
        Flow { application, closed: false, ends, carrier: Carrier::Tcp, why: None, asked, choice, name: None }
    }

    /// A flow of that application, as rules see it. The application may have ended.
    pub fn flow_subject(
        &self,
        application: u32,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> FlowSubject<'_> {
        let process = self.applications.get(&application).map(|a| &a.process);
        FlowSubject {
            app: process.map_or("-", |process| process.process.as_str()),
            uid: process.map_or(0, |process| process.uid),
            local,
            remote,
        }
    }

    /// A socket's options for the slow path, with the algorithm that the choice stands for.
    pub fn flow_options(&self, told: &SocketOptions, choice: Choice) -> FlowOptions {
        FlowOptions { algorithm: Some(self.choices.algorithm(choice.law)), ..FlowOptions::from(told) }
    }

    fn set_listener_options(&mut self, id: u32, told: &SocketOptions) {
        let Some(listener) = self.listeners.all.get_mut(&id) else { return };
        listener.asked = told.congestion;
        listener.options = FlowOptions::from(told);
        self.tcp_options(id);
    }
}
