//! Socket options on their way to the slow path.

use crate::memory::slot_key::SlotKey;
use crate::registry::{Answer, Registry};
use control::SocketOptions;
use slowpath::FlowOptions;

impl Registry {
    /// Sets options of a socket. A slot that the socket has left meanwhile is no offence.
    pub fn set_options(&mut self, id: u32, region: u32, slot: u32, told: &SocketOptions) -> Answer {
        let options = FlowOptions::from(told);
        if let Some(listener) = self.listeners.all.get(&region) {
            if self.accepts(id, listener) {
                self.set_listener_options(region, options);
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
        let Some(index) = self.regions.get(&key.region).map(|r| r.memory.index) else {
            return Answer::Silent;
        };
        self.tcp.slow.set_slot_options(self.tcp.now(), index, key.slot, &options);
        Answer::Silent
    }

    fn set_listener_options(&mut self, id: u32, options: FlowOptions) {
        let Some(listener) = self.listeners.all.get_mut(&id) else { return };
        let before = std::mem::replace(&mut listener.options, options);
        if before.defer_accept != options.defer_accept {
            // Direct connectors do not wait for first bytes.
            listener.revoke();
        }
        self.tcp_options(id);
    }
}
