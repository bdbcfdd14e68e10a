//! The TCP connections of channels, as the control thread makes them: which slot of the service's own region each has, and which core each lies
//! on. Moves no bytes.

use super::OWNER;
use super::control::{BACKLOG, TOKEN};
use super::engine::Say;
use crate::registry::Registry;
use crate::registry::memory::region::Use;
use channel::{ChannelId, SessionId};
use slowpath::{Connect, FlowOptions, PendingId};
use std::net::{IpAddr, SocketAddr};
use wire::{Endpoint, FourTuple};

/// Both ends of a channel's connection.
pub type Ends = [SocketAddr; 2];

/// The core for one more channel: of `cores` the one with the fewest channels of the same session, then with the fewest channels at all, then the
/// first. `used`: the core of each channel that there is, and whether it is of the same session.
fn core_for(cores: impl Iterator<Item = u8>, used: &[(u8, bool)]) -> Option<u8> {
    let count = |core: u8| {
        let on = || used.iter().filter(|(at, _)| *at == core);
        (on().filter(|(_, is_same)| *is_same).count(), on().count(), core)
    };
    cores.min_by_key(|core| count(*core))
}

impl Registry {
    /// The core that a connection with these ends is served by.
    fn core_of(&self, [local, remote]: Ends) -> u8 {
        self.tcp.slow.group_cores()[usize::from(FourTuple::new(local.into(), remote.into()).group())]
    }

    /// The core that a further channel of that session is to lie on. A channel's frames are all handled by the engine's core; its TCP is not.
    fn core_for_channel(&self, session: SessionId) -> Option<u8> {
        let channels = self.channels.as_ref()?;
        let own = self.regions.get(&channels.own)?;
        let core_and_session = |(slot, used): (u32, &Use)| match used {
            Use::Flow(flow) => Some((self.core_of(flow.ends), channels.placed.get(&slot) == Some(&session))),
            _ => None,
        };
        let used: Vec<_> = own.slots.iter().filter_map(core_and_session).collect();
        let mut cores = self.tcp.slow.group_cores().to_vec();
        cores.sort_unstable();
        cores.dedup();
        core_for(cores.into_iter(), &used)
    }

    /// Our end of a channel's connection to `remote`: with a port by which its group of flows is one of that core's, if there is such a port.
    fn end_on(&mut self, core: Option<u8>, remote: SocketAddr) -> Option<SocketAddr> {
        let (now, cores) = (self.tcp_now(), *self.tcp.slow.group_cores());
        let (any, remote) =
            (Endpoint::new(crate::registry::tcp::any_like(remote.ip()), 0), Endpoint::from(remote));
        let is_elsewhere = |local: Endpoint| {
            let group = usize::from(FourTuple::new(local, remote).group());
            core.is_some_and(|core| cores[group] != core)
        };
        let slow = &mut self.tcp.slow;
        let end = slow.choose_end(now, any, remote, is_elsewhere);
        let end = end.or_else(|_| slow.choose_end(now, any, remote, |_| false));
        end.inspect_err(|e| tracing::debug!(%remote, "no channel can be made: {e}"))
            .ok()
            .map(SocketAddr::from)
    }

    /// Makes the TCP connection of a channel of that session.
    pub fn make_channel(&mut self, channel: ChannelId, session: SessionId, peer: IpAddr) {
        let made = self.begin_channel(session, peer);
        self.say(Say::Made(channel, made));
    }

    fn begin_channel(&mut self, session: SessionId, peer: IpAddr) -> Option<u32> {
        let (own, port) = self.channels.as_ref().map(|channels| (channels.own, channels.port()))?;
        let remote = SocketAddr::new(peer, port);
        let core = self.core_for_channel(session);
        let local = self.end_on(core, remote)?;
        let (slot, owner) = self.take_flow_slot(own, self.new_flow(OWNER, [local, remote], None))?;
        let owner = slowpath::Owner { core: self.core_of([local, remote]), ..owner };
        let (local, remote) = (Some(local.into()), remote.into());
        let what = Connect { token: 0, local, remote, owner, options: FlowOptions::default() };
        if let Err(e) = self.tcp.slow.connect(self.tcp_now(), &what) {
            tracing::debug!(%peer, "no channel can be made: {e}");
            self.free_flow_slot(own, slot);
            return None;
        }
        self.channels.iter_mut().for_each(|channels| _ = channels.placed.insert(slot, session));
        Some(slot)
    }

    /// A peer has made a connection to the channel port.
    pub fn channel_arrives(&mut self, [local, remote]: [Endpoint; 2], pending: PendingId) {
        let now = self.tcp_now();
        self.tcp.slow.set_accept_room(TOKEN, BACKLOG as usize + 1);
        let Some(channels) = &self.channels else { return self.tcp.slow.refuse(now, pending) };
        let [local, peer] = [local, remote].map(SocketAddr::from);
        let (own, is_allowed) = (channels.own, channels.allows(peer));
        let Some((slot, owner)) = self.take_flow_slot(own, self.new_flow(OWNER, [local, peer], None)) else {
            return self.tcp.slow.refuse(now, pending);
        };
        if self.tcp.slow.accept(now, pending, owner).is_err() {
            return self.free_flow_slot(own, slot);
        }
        self.say(Say::Arrived(slot, peer.ip(), is_allowed));
    }

    /// The slot, in the service's own region, of a channel's connection to that peer: its numbers are those of the virtual sockets.
    pub fn channel_to(&self, peer: IpAddr) -> Option<(u16, u32)> {
        let own = self.regions.get(&self.channels.as_ref()?.own)?;
        let mut uses = own.slots.iter();
        let (slot, _) = uses
            .find(|(_, used)| matches!(used, Use::Flow(flow) if flow.ends[1].ip() == peer && !flow.closed))?;
        Some((own.memory.index, slot))
    }

    /// Both ends of the connection in that slot of the service's own region.
    pub fn channel_ends(&self, slot: u32) -> Option<Ends> {
        match self.regions.get(&self.channels.as_ref()?.own)?.slots.get(slot)? {
            Use::Flow(flow) => Some(flow.ends),
            _ => None,
        }
    }

    /// A slot of a plain connection is free; the engine may use the rings of a channel's connection again.
    pub fn channel_slot_freed(&mut self, region: u32, slot: u32) {
        if let Some(channels) = self.channels.as_mut().filter(|channels| channels.own == region) {
            channels.placed.remove(&slot);
            self.say(Say::Freed(slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_of_a_session_lie_on_different_cores() {
        let mut used = vec![(0, false), (0, false), (1, false)];
        let mut cores = Vec::new();
        for _ in 0..6 {
            let core = core_for(0..3, &used).unwrap();
            used.push((core, true));
            cores.push(core);
        }
        assert_eq!(cores, [2, 1, 0, 2, 1, 0], "each in turn, those with fewer other channels first");
        assert_eq!(core_for(0..1, &used), Some(0));
    }
}
