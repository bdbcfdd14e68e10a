//! Two connected processes: both through Towpath or both on the kernel, on one host or on two.

use super::actor::{Answer, BACKLOG};
use super::ask::{Ask, ROLE};
use crate::clock;
use crate::launch::{Service, TAP_ADDRESS, prove};
use crate::peer::{self, Peer};
use crate::tap::link::Link;
use crate::tap::namespace::Namespace;
use anyhow::Context;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Seconds allowed for the answer to a request.
pub(super) const PATIENCE: f64 = 60.0;
/// Connections opened by one request; both processes then wait for the next request.
const BATCH: u32 = 1_000;
// All connections of a batch fit into the backlog, in case the acceptor has not begun.
const _: () = assert!(BATCH < BACKLOG as u32);

/// Where the two processes run, and on which TCP.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// On one host, through this service.
    Towpath(&'a Service),
    /// As [`Towpath`](Self::Towpath), with `towpath run --profile latency`.
    TowpathForLatency(&'a Service),
    /// The listening process through the service, which has a TAP; the other on the kernel of the namespace at the TAP's other end.
    Tap(&'a Service, &'a Namespace),
    /// On one host's kernel, over loopback.
    Kernel,
    /// On the two kernels that a link joins.
    Link(&'a Link),
}

impl<'a> From<Option<&'a Service>> for Place<'a> {
    fn from(service: Option<&'a Service>) -> Self {
        service.map_or(Self::Kernel, Self::Towpath)
    }
}

impl<'a> Place<'a> {
    /// The system's name in results.
    fn name(self) -> &'static str {
        match self {
            Self::Towpath(_) | Self::TowpathForLatency(_) | Self::Tap(..) => "towpath",
            Self::Kernel => "kernel",
            Self::Link(_) => "kernel-link",
        }
    }

    /// The service, if connections must be accelerated.
    pub(super) fn service(self) -> Option<&'a Service> {
        match self {
            Self::Towpath(service) | Self::TowpathForLatency(service) | Self::Tap(service, _) => {
                Some(service)
            }
            Self::Kernel | Self::Link(_) => None,
        }
    }

    /// Starts a process. Number 0 is the listening one, which matters where the two run in different places.
    pub fn start(self, number: usize) -> anyhow::Result<Peer> {
        let program = peer::own_program()?;
        match self {
            Self::Towpath(service) => Peer::start_by(service.command_of(&program), ROLE),
            Self::TowpathForLatency(service) => {
                Peer::start_by(service.command_with(&["--profile", "latency"], &program), ROLE)
            }
            Self::Tap(service, _) if number == 0 => Peer::start_by(service.command_of(&program), ROLE),
            Self::Tap(_, namespace) => Peer::start_by(namespace.command_of(&program)?, ROLE),
            Self::Kernel => Peer::start(ROLE),
            Self::Link(link) => Peer::start_by(link.namespaces[number].command_of(&program)?, ROLE),
        }
    }

    /// The address at which the listening process is reached.
    fn address(self) -> Ipv4Addr {
        match self {
            Self::Towpath(_) | Self::TowpathForLatency(_) | Self::Kernel => Ipv4Addr::LOCALHOST,
            Self::Tap(..) => TAP_ADDRESS,
            Self::Link(link) => link.addresses[0],
        }
    }
}

/// Two processes with connections between them.
pub struct Pair<'a> {
    /// The system's name in results.
    pub name: &'static str,
    /// The process that connects and measures.
    near: Peer,
    /// The process that listens.
    far: Peer,
    /// The service, if connections must be accelerated.
    pub service: Option<&'a Service>,
    address: SocketAddrV4,
}

impl<'a> Pair<'a> {
    /// Starts both processes and opens one connection.
    pub fn start(place: impl Into<Place<'a>>) -> anyhow::Result<Self> {
        let place = place.into();
        let (far, near) = (place.start(0)?, place.start(1)?);
        let address = SocketAddrV4::new(place.address(), 0);
        let mut pair = Self { name: place.name(), near, far, service: place.service(), address };
        let bells = [eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?];
        let [near, far] = [&bells[0], &bells[1]].map(AsFd::as_fd);
        for (process, fds) in [(&pair.near, [near, far]), (&pair.far, [far, near])] {
            process.send(&Ask::Meet, &fds)?;
            process.receive_within::<Answer>(PATIENCE)?;
        }
        let port = *pair.far(&Ask::Listen(place.address()))?.first().context("no port")?;
        pair.address.set_port(port as u16);
        pair.connect(1)?;
        Ok(pair)
    }

    /// True if connections must be accelerated.
    pub fn is_accelerated(&self) -> bool {
        self.service.is_some()
    }

    /// The ids of both processes and of the service.
    pub fn pids(&self) -> Vec<u32> {
        let service = self.service.map(Service::pid);
        [self.near.pid(), self.far.pid()].into_iter().chain(service).collect()
    }

    /// The id of the listening process.
    pub fn far_pid(&self) -> u32 {
        self.far.pid()
    }

    /// The address at which the far process listens.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Sends a request to the near process and waits for its answer.
    pub fn near(&self, ask: &Ask) -> anyhow::Result<Answer> {
        self.near.send(ask, &[])?;
        self.near.receive_within(PATIENCE)
    }

    /// Sends a request to the far process and waits for its answer.
    pub fn far(&self, ask: &Ask) -> anyhow::Result<Answer> {
        self.far.send(ask, &[])?;
        self.far.receive_within(PATIENCE)
    }

    /// Sends a request to each process, to be done at the same time, and waits for both answers.
    pub fn both(&self, near: &Ask, far: &Ask) -> anyhow::Result<(Answer, Answer)> {
        self.near.send(near, &[])?;
        self.far.send(far, &[])?;
        Ok((self.near.receive_within(PATIENCE)?, self.far.receive_within(PATIENCE)?))
    }

    /// Opens `count` more connections and checks that they are accelerated if they must be. Returns nanoseconds without the check.
    pub fn connect(&self, count: u32) -> anyhow::Result<u64> {
        let before = self.accepted()?;
        let start = clock::now_ns();
        let mut left = count;
        while left > 0 {
            let now = left.min(BATCH);
            self.both(&Ask::Connect(self.address, now), &Ask::Accept(now))?;
            left -= now;
        }
        let elapsed_ns = clock::now_ns() - start;
        self.prove(count, before)?;
        Ok(elapsed_ns)
    }

    /// The number of accelerated connections that the far process has accepted; 0 without a service.
    pub fn accepted(&self) -> anyhow::Result<u64> {
        self.service.map_or(Ok(0), |service| service.accepted(Some(self.far.pid())))
    }

    /// Checks that enough of the last `count` connections were accelerated, if they must be. `before`: see [`accepted`](Self::accepted).
    pub fn prove(&self, count: u32, before: u64) -> anyhow::Result<()> {
        let accelerated = self.accepted()? - before;
        if self.is_accelerated() { prove(accelerated, count) } else { Ok(()) }
    }
}
