//! The cost of handing a request over and back: directly, through a third process, and through the kernel; blocking and spinning; on one
//! core, on two, and wherever the scheduler likes. The policy of spinning and sleeping follows from it.

pub mod far;
mod hop;

use crate::peer::Peer;
use crate::samples::{Sample, Samples};
use crate::{Options, Report, affinity, clock};
use anyhow::Context;
use control::RegionInfo;
use far::{Orders, PLAIN, Part, START, STOP, Used, Waiting};
use hdrhistogram::Histogram;
use hop::{EventfdHop, Hop, Message, RegionHop, TcpHop};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use shm::Region;
use std::net::TcpListener;

/// The role of the other processes.
pub const ROLE: &str = "handover";

/// The mechanism that carries messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum System {
    Pair,
    Relay,
    Eventfd,
    Tcp,
}

impl System {
    const ALL: [Self; 4] = [Self::Pair, Self::Relay, Self::Eventfd, Self::Tcp];

    fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Relay => "relay",
            Self::Eventfd => "eventfd",
            Self::Tcp => "kernel-tcp",
        }
    }

    /// True if the system supports this way to wait: an eventfd read always sleeps, and TCP sleeps only in the read itself.
    fn can(self, waiting: Waiting) -> bool {
        match self {
            Self::Pair | Self::Relay => true,
            Self::Eventfd => waiting == Waiting::Block,
            Self::Tcp => matches!(waiting, Waiting::Block | Waiting::Spin | Waiting::Yield),
        }
    }
}

const WAITINGS: [(&str, Waiting); 6] = [
    ("block", Waiting::Block),
    ("spin", Waiting::Spin),
    ("yield", Waiting::Yield),
    ("spin-5us-block", Waiting::SpinThenBlock(5)),
    ("spin-50us-block", Waiting::SpinThenBlock(50)),
    ("yield-20us-block", Waiting::YieldThenBlock(20)),
];

/// Runs the measurement `spike-handover`.
///
/// # Errors
/// When a process cannot be started or stops answering.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("spike-handover");
    let all = affinity::allowed();
    let first = *all.first().context("no processor")?;
    let mut places: Vec<(&str, [Vec<usize>; 3])> =
        vec![("one-core", [vec![first], vec![first], vec![first]])];
    if let Some(&second) = all.get(1) {
        // The relay runs on the second core, which stands for the service's, with the answering process.
        places.push(("two-cores", [vec![first], vec![second], vec![second]]));
        places.push(("unpinned", [all.clone(), all.clone(), all.clone()]));
    } else {
        report.note("one processor only: nothing to place on two");
    }
    // A hand-over is short: a fraction of the usual time gives a stable median.
    let seconds = options.seconds() / 8.0;
    let mut samples = Samples::default();
    for _ in 0..options.runs() {
        for (place, cpus) in &places {
            for (name, waiting) in WAITINGS {
                let case = format!("handover/64B/{place}/{name}");
                for system in System::ALL.into_iter().filter(|s| s.can(waiting)) {
                    let result = one(system, waiting, cpus, seconds);
                    let result = result.with_context(|| format!("{case} over {}", system.name()))?;
                    for (metric, value) in [("p50", result.p50), ("p99", result.p99)] {
                        let sample = Sample { value, ..result.used };
                        samples.add(&case, system.name(), metric, "ns", sample);
                    }
                }
            }
        }
    }
    affinity::pin(&all)?;
    report.note("a round trip: 64 bytes there and back; in `two-cores` the relay runs on the core of the answering side");
    report.rows = samples.rows();
    report.ratios = samples.ratios("pair", &["relay", "kernel-tcp"]);
    Ok(report)
}

struct Outcome {
    p50: f64,
    p99: f64,
    used: Sample,
}

/// A region with an eventfd for each side.
struct Shared {
    info: RegionInfo,
    memfd: OwnedFd,
    wakes: [OwnedFd; 2],
    _creator: Region,
}

impl Shared {
    fn new(pair: bool) -> anyhow::Result<Self> {
        let info = RegionInfo { id: 1, pair, slots: 64, data_len: 1 << 20, side: 0, is_own: true };
        let (creator, memfd) = Region::create(info.params())?;
        let make = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self { info, memfd, wakes: [make()?, make()?], _creator: creator })
    }

    fn info(&self, side: u8) -> RegionInfo {
        RegionInfo { side, ..self.info }
    }

    fn fds(&self, side: u8) -> [BorrowedFd<'_>; 3] {
        let side = usize::from(side);
        [self.memfd.as_fd(), self.wakes[side].as_fd(), self.wakes[1 - side].as_fd()]
    }

    fn hop(&self, side: u8) -> anyhow::Result<RegionHop> {
        let [_, ours, theirs] = self.fds(side);
        RegionHop::new(&self.memfd, self.info(side), ours.try_clone_to_owned()?, theirs.try_clone_to_owned()?)
    }
}

/// Runs one case. `cpus`: processors of the asking, the answering and the relaying process.
fn one(system: System, waiting: Waiting, cpus: &[Vec<usize>; 3], seconds: f64) -> anyhow::Result<Outcome> {
    affinity::pin(&cpus[0])?;
    let orders = |part, i: usize| Orders { part, waiting, cpus: cpus[i].clone() };
    match system {
        System::Pair => {
            let shared = Shared::new(true)?;
            let mut hop = shared.hop(0)?;
            let far = start(&orders(Part::Answer(shared.info(1)), 1), &shared.fds(1))?;
            ask(&mut hop, waiting, seconds, &[far])
        }
        System::Relay => {
            let (ours, theirs) = (Shared::new(false)?, Shared::new(false)?);
            let mut hop = ours.hop(1)?;
            let far = start(&orders(Part::Answer(theirs.info(1)), 1), &theirs.fds(1))?;
            let fds = [ours.fds(0), theirs.fds(0)].concat();
            let relay = start(&orders(Part::Relay([ours.info(0), theirs.info(0)]), 2), &fds)?;
            ask(&mut hop, waiting, seconds, &[far, relay])
        }
        System::Eventfd => {
            let make = || eventfd(0, EventfdFlags::CLOEXEC);
            let mut hop = EventfdHop { ours: make()?, theirs: make()? };
            let far = start(&orders(Part::AnswerEventfd, 1), &[hop.theirs.as_fd(), hop.ours.as_fd()])?;
            ask(&mut hop, waiting, seconds, &[far])
        }
        System::Tcp => {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            let far = start(&orders(Part::AnswerTcp(listener.local_addr()?.port()), 1), &[])?;
            let mut hop = TcpHop::new(listener.accept()?.0, waiting == Waiting::Block)?;
            ask(&mut hop, waiting, seconds, &[far])
        }
    }
}

/// Starts a process and waits until it is ready.
fn start(orders: &Orders, fds: &[BorrowedFd<'_>]) -> anyhow::Result<Peer> {
    let peer = Peer::start(ROLE)?;
    peer.send(orders, fds)?;
    peer.receive::<Used>()?;
    Ok(peer)
}

fn round_trip(hop: &mut impl Hop, waiting: Waiting, kind: u8) -> anyhow::Result<()> {
    let mut message: Message = [7; 64];
    message[0] = kind;
    hop.send(&message)?;
    waiting.receive(hop).map(|_| ())
}

fn ask(hop: &mut impl Hop, waiting: Waiting, seconds: f64, others: &[Peer]) -> anyhow::Result<Outcome> {
    let mut histogram: Histogram<u64> = Histogram::new(3)?;
    let span_ns = (seconds * 1e9) as u64;
    let warm_until = clock::now_ns() + span_ns / 5;
    while clock::now_ns() < warm_until {
        round_trip(hop, waiting, PLAIN)?;
    }
    round_trip(hop, waiting, START)?;
    let (cpu, began) = (clock::process_cpu_ns(), clock::now_ns());
    let mut now = began;
    while now < began + span_ns {
        round_trip(hop, waiting, PLAIN)?;
        let after = clock::now_ns();
        histogram.record(after - now)?;
        now = after;
    }
    let mut cpu_ns = clock::process_cpu_ns() - cpu;
    round_trip(hop, waiting, STOP)?;
    for other in others {
        cpu_ns += other.receive::<Used>()?.0;
    }
    Ok(Outcome {
        p50: histogram.value_at_quantile(0.5) as f64,
        p99: histogram.value_at_quantile(0.99) as f64,
        used: Sample {
            value: 0.0,
            cores: Some(cpu_ns as f64 / (now - began) as f64),
            cpu_ns: Some(cpu_ns as f64 / histogram.len() as f64),
        },
    })
}
