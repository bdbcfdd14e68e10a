//! The other processes of a hand-over: the one that answers, and the relay, which stands for the service.

use super::hop::{EventfdHop, Hop, Message, RegionHop, Relay, TcpHop};
use crate::{affinity, clock};
use anyhow::{Context, bail};
use control::{Line, RegionInfo};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::net::TcpStream;

/// First byte of a message that is only answered.
pub const PLAIN: u8 = 0;
/// First byte of a message at which the process notes its processor time, then answers.
pub const START: u8 = 1;
/// First byte of a message that the process answers before it reports its processor time and ends.
pub const STOP: u8 = 2;

/// Turns of spinning between two looks at the clock: about a microsecond.
const SPINS_PER_LOOK: u32 = 64;
/// Turns of yielding between two looks at the clock.
const YIELDS_PER_LOOK: u32 = 4;
/// The longest time of spinning: after it the other processes count as gone.
const SPIN_MAX_NS: u64 = 10_000_000_000;

/// A way to wait for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Waiting {
    /// Sleeps without spinning before.
    Block,
    /// Spins: looks for a message repeatedly.
    Spin,
    /// Calls `sched_yield` between looks.
    Yield,
    /// Spins for this many microseconds, then sleeps.
    SpinThenBlock(u32),
    /// Yields for this many microseconds, then sleeps.
    YieldThenBlock(u32),
}

impl Waiting {
    /// Receives a message, waiting this way.
    pub fn receive(self, hop: &mut impl Hop) -> anyhow::Result<Message> {
        let mut idle = Idle::new(self);
        loop {
            if let Some(message) = hop.try_receive()? {
                return Ok(message);
            }
            if idle.turn()? {
                hop.sleep()?;
            }
        }
    }
}

/// The state of one wait.
struct Idle {
    waiting: Waiting,
    turns: u32,
    since_ns: u64,
}

impl Idle {
    fn new(waiting: Waiting) -> Self {
        let since_ns = if waiting == Waiting::Block { 0 } else { clock::now_ns() };
        Self { waiting, turns: 0, since_ns }
    }

    /// Spins or yields once. True if the time to sleep has come.
    fn turn(&mut self) -> anyhow::Result<bool> {
        let limit_ns = match self.waiting {
            Waiting::Block => return Ok(true),
            Waiting::SpinThenBlock(us) => u64::from(us) * 1000,
            Waiting::YieldThenBlock(us) => u64::from(us) * 1000,
            Waiting::Spin | Waiting::Yield => SPIN_MAX_NS,
        };
        let turns_per_look = if matches!(self.waiting, Waiting::Yield | Waiting::YieldThenBlock(_)) {
            rustix::thread::sched_yield();
            YIELDS_PER_LOOK
        } else {
            std::hint::spin_loop();
            SPINS_PER_LOOK
        };
        self.turns = self.turns.wrapping_add(1);
        let look = self.turns.is_multiple_of(turns_per_look);
        let over = look && clock::now_ns() - self.since_ns >= limit_ns;
        if over && limit_ns == SPIN_MAX_NS {
            bail!("nothing came while spinning");
        }
        Ok(over)
    }
}

/// The task of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Part {
    /// Answer over a region. Descriptors: memfd, the eventfd that wakes this process, the eventfd that wakes the other side.
    Answer(RegionInfo),
    /// Relay between two regions. Descriptors as for [`Answer`](Self::Answer), for each region.
    Relay([RegionInfo; 2]),
    /// Answer over two eventfds: the first to read, the second to write.
    AnswerEventfd,
    /// Answer over a TCP connection to this port.
    AnswerTcp(u16),
}

/// The first message to a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The task of the process.
    pub part: Part,
    /// The process's way to wait.
    pub waiting: Waiting,
    /// The processors on which it may run.
    pub cpus: Vec<usize>,
}

/// A message from a process: 0 when it is ready; at its end the processor nanoseconds between START and STOP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Used(pub u64);

/// The main function of this process.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let received = line.receive::<Orders>(true)?;
    let (orders, mut fds) = (received.message, received.fds.into_iter());
    affinity::pin(&orders.cpus)?;
    let waiting = orders.waiting;
    let ready = || line.send(&Used(0), &[], true);
    let used = match orders.part {
        Part::Answer(info) => {
            let mut hop = region_hop(info, &mut fds)?;
            ready()?;
            answer(&mut hop, waiting)?
        }
        Part::AnswerEventfd => {
            let mut next = || fds.next().context("two eventfds");
            let mut hop = EventfdHop { ours: next()?, theirs: next()? };
            ready()?;
            answer(&mut hop, waiting)?
        }
        Part::AnswerTcp(port) => {
            let stream = TcpStream::connect(("127.0.0.1", port))?;
            let mut hop = TcpHop::new(stream, waiting == Waiting::Block)?;
            ready()?;
            answer(&mut hop, waiting)?
        }
        Part::Relay([a, b]) => {
            let ends = [region_hop(a, &mut fds)?, region_hop(b, &mut fds)?];
            let mut relay = Relay::new(ends)?;
            ready()?;
            relay_all(&mut relay, waiting)?
        }
    };
    line.send(&Used(used), &[], true)?;
    Ok(())
}

fn region_hop(info: RegionInfo, fds: &mut impl Iterator<Item = OwnedFd>) -> anyhow::Result<RegionHop> {
    let mut next = || fds.next().context("a memfd and two eventfds for each region");
    let (memfd, ours, theirs) = (next()?, next()?, next()?);
    RegionHop::new(&memfd, info, ours, theirs)
}

fn answer(hop: &mut impl Hop, waiting: Waiting) -> anyhow::Result<u64> {
    let mut started = 0;
    loop {
        let message = waiting.receive(hop)?;
        if message[0] == START {
            started = clock::process_cpu_ns();
        }
        hop.send(&message)?;
        if message[0] == STOP {
            return Ok(clock::process_cpu_ns() - started);
        }
    }
}

fn relay_all(relay: &mut Relay, waiting: Waiting) -> anyhow::Result<u64> {
    let (mut started, mut stops) = (0, 0);
    // STOP passes the relay twice: as request and as reply.
    while stops < 2 {
        let mut idle = Idle::new(waiting);
        let message = loop {
            if let Some(message) = relay.step()? {
                break message;
            }
            if idle.turn()? {
                relay.sleep()?;
            }
        };
        match message[0] {
            START if started == 0 => started = clock::process_cpu_ns(),
            STOP => stops += 1,
            _ => {}
        }
    }
    Ok(clock::process_cpu_ns() - started)
}
