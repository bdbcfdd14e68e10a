//! The state of all sessions at one moment, for `towpath channels`. Changes nothing.

use super::ends::Ends;
use super::flows::Flows;
use super::scale::Scale;
use channel::Hub;
use channel::hub::{Census, Refusals};
use channel::lane::Class;
use channel::session::Counters;
use std::net::IpAddr;

/// One channel of a session.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSeen {
    /// Number of the channel in its session.
    pub number: u32,
    /// The address of the peer.
    pub address: IpAddr,
    /// The slot of its connection in the service's own region.
    pub slot: Option<u32>,
    /// The core with the connection.
    pub core: Option<usize>,
    /// Sockets that sent their latest bytes over it.
    pub sockets: usize,
    /// Bytes that wait for the channel's connection.
    pub unsent: usize,
    /// Bytes that the peer's sockets have not confirmed.
    pub unconfirmed: u64,
    /// Segments that its connection has sent again.
    pub retransmits: Option<u32>,
}

/// One session with another service, as it stands.
#[derive(Clone, Debug)]
pub struct SessionSeen {
    /// The identifier of the session.
    pub id: u128,
    /// The service at the other side.
    pub peer: IpAddr,
    /// What its sockets need most.
    pub class: Class,
    /// True: this side has opened it.
    pub is_opener: bool,
    /// The user of this host with its sockets, if they are one user's.
    pub user: Option<u32>,
    /// The policy that places chunks on channels.
    pub policy: &'static str,
    /// The number of channels that it should have, and why; `None`: the peer decides.
    pub wanted: Option<(usize, &'static str)>,
    /// Its channels that are past their handshake.
    pub channels: Vec<ChannelSeen>,
    /// Number of its virtual sockets.
    pub sockets: usize,
    /// What it has done.
    pub counters: Counters,
}

/// One virtual socket of an application of this host.
#[derive(Clone, Copy, Debug)]
pub struct SocketSeen {
    /// The identifier of the session.
    pub session: u128,
    /// The identifier in the session.
    pub socket: u32,
    /// Id of the application region.
    pub region: u32,
    /// The slot in that region.
    pub slot: u32,
    /// Bytes that the peer may still send.
    pub credit: u64,
    /// Bytes written that the peer's socket does not have.
    pub queue: u64,
}

/// The state of an engine.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All sessions with other services.
    pub sessions: Vec<SessionSeen>,
    /// All virtual sockets of this host's applications.
    pub sockets: Vec<SocketSeen>,
    /// What the hub keeps.
    pub census: Census,
    /// What peers did wrong.
    pub refusals: Refusals,
    /// Writes outside the credit, an error of this service: none.
    pub beyond_credit: u64,
}

/// Looks at everything once.
pub fn snapshot(hub: &Hub, flows: &Flows, ends: &Ends, scale: &Scale) -> Snapshot {
    let sessions = hub.sessions().filter_map(|(id, session)| {
        let about = hub.about(id)?;
        let on = session.sockets_by_channel();
        let channels = session.channels_by_address().map(|(id, address, channel)| ChannelSeen {
            number: channel.number(),
            sockets: on.get(&channel.number()).copied().unwrap_or(0),
            retransmits: flows.retransmits(id),
            address,
            slot: flows.slot_of(id),
            core: flows.core_of(id),
            unsent: channel.unsent,
            unconfirmed: channel.unconfirmed,
        });
        Some(SessionSeen {
            id: id.0,
            peer: about.peer,
            class: about.class,
            is_opener: about.is_opener,
            user: about.user,
            policy: session.policy(),
            wanted: scale.wanted(id),
            channels: channels.collect(),
            sockets: session.sockets(),
            counters: session.counters(),
        })
    });
    let sockets = ends.iter().filter(|end| !end.is_over).map(|end| {
        let ((region, slot), (credit, queue)) = (end.place(), end.report());
        SocketSeen { session: end.at.session.0, socket: end.at.socket, region, slot, credit, queue }
    });
    Snapshot {
        sessions: sessions.collect(),
        sockets: sockets.collect(),
        census: hub.census(),
        refusals: hub.refusals(),
        beyond_credit: ends.beyond_credit,
    }
}
