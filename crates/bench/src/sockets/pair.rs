//! Two processes that are connected with each other: both through Towpath, or both on the kernel.

use super::actor::{Answer, Ask, ROLE};
use crate::launch::Service;
use crate::peer::{self, Peer};
use anyhow::{Context, bail};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd;

/// Longest answer to anything that is asked, seconds.
const PATIENCE: f64 = 60.0;
/// Connections opened before the next are: fewer than the backlog of `std`'s listeners.
const BATCH: u32 = 100;
/// Share of the connections that must be accelerated for numbers to count.
const ACCELERATED_SHARE: f64 = 0.95;

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
    port: u16,
}

impl<'a> Pair<'a> {
    /// Starts both, through `service` or (`None`) on the kernel, and connects them once.
    pub fn start(service: Option<&'a Service>) -> anyhow::Result<Self> {
        let start = || match service {
            Some(service) => Peer::start_by(service.command_of(&peer::own_program()?), ROLE),
            None => Peer::start(ROLE),
        };
        let name = if service.is_some() { "towpath" } else { "kernel" };
        let mut pair = Self { name, near: start()?, far: start()?, service, port: 0 };
        let bells = [eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?];
        let [near, far] = [&bells[0], &bells[1]].map(AsFd::as_fd);
        for (process, fds) in [(&pair.near, [near, far]), (&pair.far, [far, near])] {
            process.send(&Ask::Meet, &fds)?;
            process.receive_within::<Answer>(PATIENCE)?;
        }
        pair.port = *pair.far(&Ask::Listen)?.first().context("no port")? as u16;
        pair.connect(1)?;
        Ok(pair)
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

    /// Where the far one listens.
    pub fn port(&self) -> u16 {
        self.port
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

    /// Opens so many further connections, and proves what carries them.
    pub fn connect(&self, count: u32) -> anyhow::Result<()> {
        let before = self.accepted()?;
        let mut left = count;
        while left > 0 {
            let now = left.min(BATCH);
            self.both(&Ask::Connect(self.port, now), &Ask::Accept(now))?;
            left -= now;
        }
        self.prove(count, before)
    }

    /// Accelerated connections that the far one has accepted.
    pub fn accepted(&self) -> anyhow::Result<u64> {
        self.service.map_or(Ok(0), |service| service.accepted(Some(self.far.pid())))
    }

    /// Enough of the last `count` connections were accelerated, where they must be.
    pub fn prove(&self, count: u32, before: u64) -> anyhow::Result<()> {
        let accelerated = self.accepted()? - before;
        if self.is_accelerated() && (accelerated as f64) < f64::from(count) * ACCELERATED_SHARE {
            bail!("only {accelerated} of {count} connections were accelerated");
        }
        Ok(())
    }
}
