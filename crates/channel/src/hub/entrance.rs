//! Places for channels that have come in and not yet proved themselves. Peers that have proved themselves before have places of their own, which
//! no other peer can take.
//!
//! ```text
//!   stranger (not named by the configuration)   STRANGERS_MAX places      is told why it is refused
//!   newcomer                                    GREETINGS_MAX places
//!   known (has proved itself before)            GREETINGS_MAX places
//! ```
//! A channel always gets a place. If there is none left, the network with the most channels in these places loses one of them, first one that has
//! not asked yet, and otherwise by lot ([`Fair`]): silent peers take places from each other.

use base::Seed;
use core::net::IpAddr;

use crate::fair::Fair;
use crate::limits::{GREETINGS_MAX, GREETINGS_OF_PEER, KNOWN_MAX, STRANGERS_MAX};
use crate::transport::ChannelId;

/// The places of a hub, and the peers that it knows.
#[derive(Debug)]
pub(super) struct Entrance {
    strangers: Fair<ChannelId>,
    newcomers: Fair<ChannelId>,
    known: Fair<ChannelId>,
    /// The addresses of peers that have proved themselves.
    proved: Fair<()>,
}

impl Entrance {
    /// All places are free, and no peer is known. `seed` decides which peer loses a place.
    pub const fn new(mut seed: Seed) -> Self {
        Self {
            strangers: Fair::new(STRANGERS_MAX, GREETINGS_OF_PEER, Seed::new(seed.next_u64())),
            newcomers: Fair::new(GREETINGS_MAX, GREETINGS_OF_PEER, Seed::new(seed.next_u64())),
            known: Fair::new(GREETINGS_MAX, GREETINGS_OF_PEER, Seed::new(seed.next_u64())),
            proved: Fair::new(KNOWN_MAX, 1, Seed::new(seed.next_u64())),
        }
    }

    /// A channel comes in, and gets a place. Returns the channel that has lost its place to it.
    pub fn enter(&mut self, channel: ChannelId, peer: IpAddr, is_allowed: bool) -> Option<ChannelId> {
        let places = match is_allowed {
            false => &mut self.strangers,
            true if self.proved.has(peer) => &mut self.known,
            true => &mut self.newcomers,
        };
        places.push(peer, channel)
    }

    /// The channel has asked as the rules say.
    pub fn has_asked(&mut self, channel: ChannelId, peer: IpAddr) {
        for places in [&mut self.newcomers, &mut self.known] {
            places.has_spoken(peer, &channel);
        }
    }

    /// The handshake of a channel is over. Nothing happens if it has lost its place before.
    pub fn leave(&mut self, channel: ChannelId, peer: IpAddr) {
        // The peer may have become known since the channel came in.
        _ = [&mut self.newcomers, &mut self.known, &mut self.strangers]
            .into_iter()
            .any(|places| places.remove(peer, &channel));
    }

    /// The peer has proved itself over a channel.
    pub fn know(&mut self, peer: IpAddr) {
        self.proved.push(peer, ());
    }
}
