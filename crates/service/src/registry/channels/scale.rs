//! How many channels each session of this service has: a number of the configuration, or as the load of the cores asks. The crate `channel`
//! decides ([`Scaling`]); this file asks it, once a tick.

use super::flows::Flows;
use crate::cores::shares::Shares;
use base::{Duration, Instant};
use channel::limits::CHANNELS_MAX;
use channel::scaling::{Advice, Congestion, Load, Scaling};
use channel::{ChannelId, Hub, Session, SessionId};
use elastic::load::Loads;
use std::collections::HashMap;
use std::sync::Arc;

/// Time between two looks at the load.
const TICK: Duration = Duration::from_ms(10);
/// Ticks that are further apart say nothing about each other: the engine had nothing to do between them.
const TICKS_APART: Duration = Duration::from_ms(25);
/// The index of the core with the hub, which handles all channels' frames.
const HUB_CORE: usize = 0;
/// Busy time per thousand below which a core can carry one more channel.
const FREE: u32 = 300;

/// What is known of one session.
#[derive(Debug, Default)]
struct Scaled {
    scaling: Scaling,
    wanted: usize,
    /// Number of addresses of the peer: each has a channel, whatever the load is.
    least: usize,
    why: &'static str,
}

/// The number of channels of each session that this side has opened, and what the others' openers are told of the network.
#[derive(Debug)]
pub struct Scale {
    /// The number that the configuration names; `None`: as the load asks.
    fixed: Option<usize>,
    shares: Shares,
    at: Instant,
    all: HashMap<SessionId, Scaled>,
    /// Sessions that peers have opened.
    theirs: HashMap<SessionId, Congestion>,
    /// Bytes are under way, or an opener believes that the network is full: the next tick comes after 10 ms. Otherwise the engine would look only
    /// when an acknowledgement has just opened the congestion window.
    is_active: bool,
}

/// Why a session has as many channels as it has, for reports.
mod why {
    pub const FIXED: &str = "--channel-count";
    pub const START: &str = "its core has time left";
    pub const ADDRESSES: &str = "one for each address of the peer";
    pub const FULL: &str = "its core is full and another one is free";
    pub const IDLE: &str = "its cores have time left";
    pub const NETWORK: &str = "the network is the limit";
}

impl Scale {
    /// No sessions yet. `fixed`: the number of channels of each session, instead of one that follows the load.
    pub fn new(fixed: Option<usize>, loads: Arc<Loads>) -> Self {
        let shares = Shares::new(loads, Instant::ZERO);
        let (all, theirs) = (HashMap::new(), HashMap::new());
        Self { fixed, shares, at: Instant::ZERO, all, theirs, is_active: false }
    }

    /// Asks for the number of channels of every session, if a tick is due.
    pub fn tick(&mut self, now: Instant, hub: &mut Hub, flows: &Flows) {
        if now < self.at {
            return;
        }
        self.at = now.plus(TICK);
        let is_continued = self.shares.look(now) < TICKS_APART;
        let is_ours = |id: &SessionId| hub.about(*id).is_some_and(|about| about.is_opener);
        let (ids, theirs): (Vec<SessionId>, Vec<SessionId>) =
            hub.sessions().map(|(id, _)| id).partition(is_ours);
        self.all.retain(|id, _| hub.about(*id).is_some());
        self.theirs.retain(|id, _| hub.about(*id).is_some());
        let has_bytes = |id: &SessionId| {
            hub.view(*id).is_some_and(|session| session.channels().any(|channel| channel.unconfirmed > 0))
        };
        let followed = if self.fixed.is_none() { &ids[..] } else { &[] };
        self.is_active = followed.iter().chain(&theirs).any(has_bytes);
        self.tell_openers(theirs, hub, flows);
        for id in ids {
            let addresses = hub.view(id).map_or(1, Session::addresses);
            let scaled = self.all.entry(id).or_insert_with(|| Scaled::new(self.fixed, addresses));
            if self.fixed.is_none() {
                if !is_continued {
                    scaled.scaling = Scaling::default();
                }
                let is_acceptor_congested = hub.view(id).is_some_and(Session::is_acceptor_congested);
                let load = load(&self.shares, flows, hub.channels_of(id));
                let congested = if is_acceptor_congested { 1_000 } else { load.congested };
                scaled.follow(&Load { congested, ..load });
            }
            let wanted = scaled.wanted;
            if let Some(session) = hub.session(id) {
                session.want_channels(now, wanted);
            }
        }
    }

    /// The opener decides about the channels, and sees the congestion windows of its own side alone: it is told of those of this side.
    fn tell_openers(&mut self, theirs: Vec<SessionId>, hub: &mut Hub, flows: &Flows) {
        for id in theirs {
            let congested = load(&self.shares, flows, hub.channels_of(id)).congested;
            let is = self.theirs.entry(id).or_default().look(congested);
            self.is_active |= is;
            if let Some(session) = hub.session(id) {
                session.note_congested(is);
            }
        }
    }

    /// When the next tick is due. Without bytes under way, and without a session that could have fewer channels, none is, until the engine works
    /// again.
    pub fn deadline(&self) -> Instant {
        let has_more = self.fixed.is_none() && self.all.values().any(|scaled| scaled.wanted > scaled.least);
        if has_more || self.is_active { self.at } else { Instant::NEVER }
    }

    /// The number of channels that a session should have, and why; `None`: the peer has opened it, and decides.
    pub fn wanted(&self, session: SessionId) -> Option<(usize, &'static str)> {
        self.all.get(&session).map(|scaled| (scaled.wanted, scaled.why))
    }
}

impl Scaled {
    fn new(fixed: Option<usize>, addresses: usize) -> Self {
        let start = if addresses > 1 { why::ADDRESSES } else { why::START };
        Self {
            wanted: fixed.unwrap_or(addresses),
            least: addresses,
            why: fixed.map_or(start, |_| why::FIXED),
            ..Self::default()
        }
    }

    fn follow(&mut self, load: &Load) {
        // Channels to further addresses are counted as one: they do not share a bottleneck.
        match self.scaling.advise(self.wanted + 1 - self.least, load) {
            Advice::Stay => {}
            Advice::More => (self.wanted, self.why) = ((self.wanted + 1).min(CHANNELS_MAX), why::FULL),
            Advice::Fewer => (self.wanted, self.why) = (self.wanted - 1, why::IDLE),
            Advice::One => (self.wanted, self.why) = (self.least, why::NETWORK),
        }
    }
}

/// What the channels of one session and their cores have done since the last tick.
fn load(shares: &Shares, flows: &Flows, channels: impl Iterator<Item = ChannelId>) -> Load {
    let seen: Vec<_> = channels.filter_map(|channel| flows.seen(channel)).collect();
    let is_used = |core: usize| core == HUB_CORE || seen.iter().any(|seen| seen.core == core);
    let used = shares.cores().filter(|core| is_used(*core));
    let congested = seen.iter().filter(|seen| seen.is_congested).count();
    Load {
        busy: used.map(|core| shares.of(core)).max().unwrap_or(0),
        congested: (1_000 * congested / seen.len().max(1)) as u32,
        has_free_core: shares.cores().any(|core| !is_used(core) && shares.of(core) < FREE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Load = Load { busy: 990, congested: 0, has_free_core: true };

    #[test]
    fn one_channel_more_for_a_full_core_and_one_alone_for_a_full_network() {
        let mut scaled = Scaled::new(None, 1);
        (0..5).for_each(|_| scaled.follow(&FULL));
        assert_eq!((scaled.wanted, scaled.why), (2, why::FULL));
        scaled.follow(&Load { congested: 500, ..FULL });
        assert_eq!((scaled.wanted, scaled.why), (1, why::NETWORK));
    }

    #[test]
    fn each_address_keeps_its_channel_whatever_the_load_is() {
        let mut scaled = Scaled::new(None, 3);
        assert_eq!((scaled.wanted, scaled.why), (3, why::ADDRESSES));
        (0..5).for_each(|_| scaled.follow(&FULL));
        assert_eq!((scaled.wanted, scaled.why), (4, why::FULL));
        scaled.follow(&Load { congested: 500, ..FULL });
        assert_eq!(scaled.wanted, 3);
        (0..1_000).for_each(|_| scaled.follow(&Load { busy: 0, ..FULL }));
        assert_eq!(scaled.wanted, 3);
    }
}
