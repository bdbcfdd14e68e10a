//! Several processes of one host in a circle: each is connected to the next one, and the last one to the first; all through
//! Towpath, or all on the kernel.

use super::actor::{Answer, Ask};
use super::pair::{PATIENCE, Place};
use crate::launch::{Service, prove};
use crate::peer::Peer;
use anyhow::Context;
use std::net::{Ipv4Addr, SocketAddrV4};

/// See the module.
pub struct Circle<'a> {
    members: Vec<Member>,
    /// Set when connections must be accelerated.
    service: Option<&'a Service>,
}

struct Member {
    peer: Peer,
    /// Where it listens.
    address: SocketAddrV4,
}

impl Member {
    fn start(place: Place<'_>, number: usize) -> anyhow::Result<Self> {
        let mut member =
            Self { peer: place.start(number)?, address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0) };
        member.begin(&Ask::Listen(Ipv4Addr::LOCALHOST))?;
        member.address.set_port(*member.end()?.first().context("no port")? as u16);
        Ok(member)
    }

    fn begin(&self, ask: &Ask) -> anyhow::Result<()> {
        self.peer.send(ask, &[])
    }

    fn end(&self) -> anyhow::Result<Answer> {
        self.peer.receive_within(PATIENCE)
    }
}

impl<'a> Circle<'a> {
    /// Starts so many and connects each to the next one so often, one after the other: of its connections the first has those to
    /// the next one before those from the last one, every other one those from the one before it first.
    pub fn start(system: Option<&'a Service>, count: usize, connections: u32) -> anyhow::Result<Self> {
        let place = Place::from(system);
        let members = (0..count).map(|number| Member::start(place, number)).collect::<Result<Vec<_>, _>>()?;
        let circle = Self { members, service: place.service() };
        for (i, member) in circle.members.iter().enumerate() {
            let next = &circle.members[(i + 1) % count];
            member.begin(&Ask::Connect(next.address, connections))?;
            next.begin(&Ask::Accept(connections))?;
            member.end()?;
            next.end()?;
        }
        circle.prove(count as u32 * connections)?;
        Ok(circle)
    }

    /// Everything that uses processors for it.
    pub fn pids(&self) -> Vec<u32> {
        let service = self.service.map(Service::pid);
        self.members.iter().map(|member| member.peer.pid()).chain(service).collect()
    }

    /// Has each do something, all at the same time.
    pub fn all(&self, asks: &[Ask]) -> anyhow::Result<Vec<Answer>> {
        self.members.iter().zip(asks).try_for_each(|(member, ask)| member.begin(ask))?;
        self.members.iter().map(Member::end).collect()
    }

    /// Enough of all connections are accelerated, where they must be.
    fn prove(&self, count: u32) -> anyhow::Result<()> {
        let Some(service) = self.service else { return Ok(()) };
        let accepted = self.members.iter().map(|member| service.accepted(Some(member.peer.pid())));
        prove(accepted.sum::<anyhow::Result<u64>>()?, count)
    }
}
