//! A process with one ring that holds connections: it accepts them, or makes them.

use ::ring::{ConnectOptions, Event, Handle, Kind, ListenOptions, Options, Ring, Service};
use anyhow::{Context, bail};
use control::Line;
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

/// The role of this process.
pub const ROLE: &str = "ring-idle";

/// Connections begun at once.
const AT_ONCE: u32 = 128;
/// Time without a new connection after which the other process counts as gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request to the process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Listen at these addresses; the answer is where.
    Listen(Vec<SocketAddrV4>),
    /// Connect to these addresses in turns, from now on.
    Reach(Vec<SocketAddrV4>),
    /// Accept, or make, so many more connections.
    Open(u32),
}

/// An answer of a holder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Told {
    /// Where the process listens.
    pub addresses: Vec<SocketAddrV4>,
}

/// The main function of the process. It returns when the control socket is closed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let service = Service::open(Options::default())?;
    let mut holder = Holder { ring: service.ring()?, events: Vec::new(), targets: Vec::new(), made: 0 };
    while let Ok(asked) = line.receive::<Ask>(true) {
        let mut addresses = Vec::new();
        match asked.message {
            Ask::Listen(wanted) => addresses = holder.listen(wanted)?,
            Ask::Reach(targets) => holder.targets = targets,
            Ask::Open(count) if holder.targets.is_empty() => holder.accept(count)?,
            Ask::Open(count) => holder.connect(count)?,
        }
        line.send(&Told { addresses }, &[], true).context("the measurement is gone")?;
    }
    Ok(())
}

struct Holder {
    ring: Ring,
    events: Vec<Event>,
    /// Where it connects to; empty: it accepts.
    targets: Vec<SocketAddrV4>,
    /// Connections that it has begun.
    made: usize,
}

impl Holder {
    fn listen(&mut self, wanted: Vec<SocketAddrV4>) -> anyhow::Result<Vec<SocketAddrV4>> {
        let listen = |address| -> anyhow::Result<SocketAddrV4> {
            let listener: Handle = self.ring.listen(SocketAddr::V4(address), ListenOptions::default(), 0)?;
            match self.ring.local_address(listener)? {
                SocketAddr::V4(address) => Ok(address),
                SocketAddr::V6(_) => bail!("not IPv4"),
            }
        };
        wanted.into_iter().map(listen).collect()
    }

    fn accept(&mut self, count: u32) -> anyhow::Result<()> {
        let (end, mut last) = (self.ring.counters().accepted + u64::from(count), Instant::now());
        let mut before = 0;
        while self.ring.counters().accepted < end {
            self.ring.wait(Some(PATIENCE), &mut self.events)?;
            self.check()?;
            let now = self.ring.counters().accepted;
            if now != before {
                (before, last) = (now, Instant::now());
            } else if last.elapsed() > PATIENCE {
                bail!("no connection comes, {} are left", end - now);
            }
        }
        Ok(())
    }

    fn connect(&mut self, count: u32) -> anyhow::Result<()> {
        let (mut begun, mut connected) = (0, 0);
        while connected < count {
            while begun < count && begun - connected < AT_ONCE {
                let target = self.targets[self.made % self.targets.len()];
                let begin = self.ring.connect(SocketAddr::V4(target), ConnectOptions::default(), 0);
                begin.with_context(|| format!("connection {}", self.made))?;
                self.made += 1;
                begun += 1;
            }
            self.ring.wait(Some(PATIENCE), &mut self.events)?;
            self.check()?;
            let news = self.events.iter().filter(|event| event.kind == Kind::Connected).count();
            if self.events.is_empty() {
                bail!("no answer to {} connections", begun - connected);
            }
            connected += news as u32;
        }
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        let is_over =
            |event: &&Event| matches!(event.kind, Kind::Failed(_) | Kind::Closed(_) | Kind::Finished);
        match self.events.iter().find(is_over) {
            None => Ok(()),
            Some(event) => bail!("a connection has ended: {:?}", event.kind),
        }
    }
}
