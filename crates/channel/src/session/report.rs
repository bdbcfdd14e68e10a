//! What reports and tests see of a session. Changes nothing.

use core::net::IpAddr;
use std::collections::BTreeMap;

use super::{Counters, Session};
use crate::channel::Channel;
use crate::scheduler::ChannelState;
use crate::transport::ChannelId;

impl Session {
    /// The state of each channel, for reports and for tests.
    pub fn channels(&self) -> impl Iterator<Item = ChannelState> {
        self.channels.iter().map(Channel::state)
    }

    /// The channels with the addresses of the peer that they go to.
    pub fn channels_by_address(&self) -> impl Iterator<Item = (ChannelId, IpAddr, ChannelState)> {
        self.channels.iter().map(|channel| (channel.id, channel.address, channel.state()))
    }

    /// How many sockets have sent their latest bytes over each channel, by the channel's number. Looks at every socket.
    #[must_use]
    pub fn sockets_by_channel(&self) -> BTreeMap<u32, usize> {
        let mut all = BTreeMap::new();
        for on in self.sockets.iter().filter_map(|socket| socket.sending.on()) {
            *all.entry(on.0).or_default() += 1;
        }
        all
    }

    /// Number of addresses of the peer.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.paths.len()
    }

    /// What the session has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The name of the policy that places chunks.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.scheduler.name()
    }

    /// Checks what must hold between two calls.
    ///
    /// # Errors
    /// A description of what does not hold.
    pub fn check(&self) -> Result<(), String> {
        let unconfirmed: u64 = self.channels.iter().map(|channel| channel.unconfirmed).sum();
        let under_way: u64 = self.sockets.iter().map(|socket| socket.sending.under_way()).sum();
        if unconfirmed != under_way {
            return Err(format!("{unconfirmed} bytes unconfirmed on channels, {under_way} of sockets"));
        }
        for socket in self.sockets.iter() {
            let (sending, receiving) = (&socket.sending, &socket.receiving);
            let is_ordered = sending.acked <= sending.placed
                && sending.placed <= sending.head
                && sending.placed <= sending.edge
                && receiving.next <= receiving.edge;
            let is_bounded = sending.runs() <= crate::limits::RUNS_MAX
                && receiving.intervals() <= crate::limits::INTERVALS_MAX;
            if !(is_ordered && is_bounded) {
                return Err(format!("{socket:?}"));
            }
        }
        let entries = self.sockets.len();
        let queues = [self.control.len(), self.ready.len(), self.news.len(), self.acks.len()];
        let places = self.sockets.places_len();
        if queues.iter().any(|len| *len > places) || self.opens.len() > entries {
            return Err(format!("queues {queues:?} of {places} places, {} OPENs", self.opens.len()));
        }
        Ok(())
    }
}
