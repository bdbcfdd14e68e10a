//! Two processes that are connected with each other: both through Towpath, or both on the kernel, of one host or of two.

use super::actor::{Answer, Ask, BACKLOG, ROLE};
use crate::clock;
use crate::launch::{Service, TAP_ADDRESS, prove};
use crate::peer::{self, Peer};
use crate::tap::link::Link;
use crate::tap::namespace::Namespace;
use anyhow::Context;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Longest answer to anything that is asked, seconds.
pub(super) const PATIENCE: f64 = 60.0;
/// Connections opened before the next are: both processes wait for us in between.
const BATCH: u32 = 1_000;
// The acceptor may not have begun when the last of them is made.
const _: () = assert!(BATCH < BACKLOG as u32);

/// Where processes run, and on what.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// On one host, through it.
    Towpath(&'a Service),
    /// The same with `towpath run --profile latency`.
    TowpathForLatency(&'a Service),
    /// The one that listens on Towpath behind its TAP, the other on the kernel of that namespace, where the TAP ends.
    Tap(&'a Service, &'a Namespace),
    /// On one host's kernel, over loopback.
    Kernel,
    /// On two kernels.
    Link(&'a Link),
}

impl<'a> From<Option<&'a Service>> for Place<'a> {
    fn from(service: Option<&'a Service>) -> Self {
        service.map_or(Self::Kernel, Self::Towpath)
    }
}

impl<'a> Place<'a> {
    /// As results name it.
    fn name(self) -> &'static str {
        match self {
            Self::Towpath(_) | Self::TowpathForLatency(_) | Self::Tap(..) => "towpath",
            Self::Kernel => "kernel",
            Self::Link(_) => "kernel-link",
        }
    }

    /// Set when connections must be accelerated.
    pub(super) fn service(self) -> Option<&'a Service> {
        match self {
            Self::Towpath(service) | Self::TowpathForLatency(service) | Self::Tap(service, _) => {
                Some(service)
            }
            Self::Kernel | Self::Link(_) => None,
        }
    }

    /// Starts one; on two kernels number 0 is the one that listens.
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

    /// Where the one that listens is reached.
    fn address(self) -> Ipv4Addr {
        match self {
            Self::Towpath(_) | Self::TowpathForLatency(_) | Self::Kernel => Ipv4Addr::LOCALHOST,
            Self::Tap(..) => TAP_ADDRESS,
            Self::Link(link) => link.addresses[0],
        }
    }
}

/// See the module.
pub struct Pair<'a> {
    /// As results name it.
    pub name: &'static str,
    /// The one that measures, and connects.
    near: Peer,
    /// The other, which listens.
    far: Peer,
    /// Set when connections must be accelerated.
    pub service: Option<&'a Service>,
    address: SocketAddrV4,
    /// Where the near one's further connections come from, unless the kernel chooses.
    from: Option<Ipv4Addr>,
}

impl<'a> Pair<'a> {
    /// Starts both there, and connects them once.
    pub fn start(place: impl Into<Place<'a>>) -> anyhow::Result<Self> {
        let place = place.into();
        let (far, near) = (place.start(0)?, place.start(1)?);
        let address = SocketAddrV4::new(place.address(), 0);
        let mut pair = Self { name: place.name(), near, far, service: place.service(), address, from: None };
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

    /// The same; further connections come from that address.
    pub fn start_from(place: impl Into<Place<'a>>, from: Ipv4Addr) -> anyhow::Result<Self> {
        Ok(Self { from: Some(from), ..Self::start(place)? })
    }

    /// True when the connections must be.
    pub fn is_accelerated(&self) -> bool {
        self.service.is_some()
    }

    /// Everything that uses processors for it.
    pub fn pids(&self) -> Vec<u32> {
        let service = self.service.map(Service::pid);
        [self.near.pid(), self.far.pid()].into_iter().chain(service).collect()
    }

    /// The process that listens.
    pub fn far_pid(&self) -> u32 {
        self.far.pid()
    }

    /// Where the far one listens.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Has the near one do something.
    pub fn near(&self, ask: &Ask) -> anyhow::Result<Answer> {
        self.near.send(ask, &[])?;
        self.near.receive_within(PATIENCE)
    }

    /// Has the far one do something.
    pub fn far(&self, ask: &Ask) -> anyhow::Result<Answer> {
        self.far.send(ask, &[])?;
        self.far.receive_within(PATIENCE)
    }

    /// Has both do something at the same time.
    pub fn both(&self, near: &Ask, far: &Ask) -> anyhow::Result<(Answer, Answer)> {
        self.near.send(near, &[])?;
        self.far.send(far, &[])?;
        Ok((self.near.receive_within(PATIENCE)?, self.far.receive_within(PATIENCE)?))
    }

    /// Opens so many further connections, and proves what carries them. How long it took, nanoseconds, without the proof.
    pub fn connect(&self, count: u32) -> anyhow::Result<u64> {
        let before = self.accepted()?;
        let start = clock::now_ns();
        let mut left = count;
        while left > 0 {
            let now = left.min(BATCH);
            let connect = match self.from {
                Some(from) => Ask::ConnectFrom(from, self.address, now),
                None => Ask::Connect(self.address, now),
            };
            self.both(&connect, &Ask::Accept(now))?;
            left -= now;
        }
        let elapsed_ns = clock::now_ns() - start;
        self.prove(count, before)?;
        Ok(elapsed_ns)
    }

    /// Accelerated connections that the far one has accepted.
    pub fn accepted(&self) -> anyhow::Result<u64> {
        self.service.map_or(Ok(0), |service| service.accepted(Some(self.far.pid())))
    }

    /// Enough of the last `count` connections were accelerated, where they must be.
    pub fn prove(&self, count: u32, before: u64) -> anyhow::Result<()> {
        let accelerated = self.accepted()? - before;
        if self.is_accelerated() { prove(accelerated, count) } else { Ok(()) }
    }
}
