//! Several processes of one host in a circle: each is connected to the next, the last one to the first; all through Towpath or all on the
//! kernel.

use super::actor::Answer;
use super::ask::Ask;
use super::pair::{PATIENCE, Place};
use crate::launch::{Service, prove};
use crate::peer::Peer;
use anyhow::Context;
use std::net::{Ipv4Addr, SocketAddrV4};

/// The processes of a circle, connected.
pub struct Circle<'a> {
    members: Vec<Member>,
    /// The service, if connections must be accelerated.
    service: Option<&'a Service>,
}

struct Member {
    peer: Peer,
    /// The address at which this process listens.
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
    /// Starts `count` processes and opens `connections` connections from each to the next, one process after the other. So the first
    /// process made its connections to the next before it accepted those from the last; every other process accepted those from the one
    /// before it first.
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

    /// The ids of all processes that work for the circle, including the service.
    pub fn pids(&self) -> Vec<u32> {
        let service = self.service.map(Service::pid);
        self.members.iter().map(|member| member.peer.pid()).chain(service).collect()
    }

    /// Sends each process its request, all at the same time, and waits for all answers.
    pub fn all(&self, asks: &[Ask]) -> anyhow::Result<Vec<Answer>> {
        self.members.iter().zip(asks).try_for_each(|(member, ask)| member.begin(ask))?;
        self.members.iter().map(Member::end).collect()
    }

    /// Checks that enough of the `count` connections are accelerated, if they must be.
    fn prove(&self, count: u32) -> anyhow::Result<()> {
        let Some(service) = self.service else { return Ok(()) };
        let accepted = self.members.iter().map(|member| service.accepted(Some(member.peer.pid())));
        prove(accepted.sum::<anyhow::Result<u64>>()?, count)
    }
}
