//! A lower bound for `echo` on its two cores: the cache lines of a 64-byte RPC move between the cores, the lines of its connection are read
//! and written, and nothing else is done.
//!
//! ```text
//!   far core                                    service's core
//!   request: descriptor, frame      4 lines -->  read; the flow's own lines; slot and receive ring written, 2 lines
//!   both read, own line, reply, 2 lines     -->  read; descriptor and frame written, 4 lines
//!   read, next request
//! ```
//! As in `echo`, one position publishes a whole batch; frames and rings are few and warm; and the lines of connections are accessed in
//! random order. There is no prefetch instruction: a program that prefetches may be below this floor.

use crate::samples::Samples;
use crate::{Options, Report, clock};
use base::Seed;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Connections, each with one RPC under way.
const FLOWS: [usize; 3] = [64, 1024, 64_000];
/// Cache lines of a descriptor and its frame.
const FRAME: usize = 4;
/// The most frames in flight, as in `echo`; other connections wait.
const FRAMES: usize = crate::echo::FRAMES;
/// Receive rings lent at once: the warm rings of a pool.
const RINGS: usize = 64;
/// Cache lines of a flow that only the service's core touches: a bucket of the table, the flow's record, its list entry.
const OWN_OF_FLOW: usize = 7;
/// Cache lines of a socket that only the application's core touches.
const OWN_OF_SOCKET: usize = 1;
/// The most RPCs in a batch, as `base::limits::BATCH`.
const BATCH: u64 = base::limits::BATCH as u64;

/// One cache line of 64 bytes.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Line([AtomicU64; 8]);

impl Line {
    #[inline]
    fn write(&self, value: u64) {
        self.0.iter().for_each(|word| word.store(value, Relaxed));
    }

    #[inline]
    fn read(&self) -> u64 {
        self.0.iter().map(|word| word.load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// Cache lines of one kind, in groups of `each` lines.
#[derive(Debug)]
struct Lines {
    lines: Box<[Line]>,
    each: usize,
}

impl Lines {
    fn new(places: usize, each: usize) -> Self {
        Self { lines: (0..places * each).map(|_| Line::default()).collect(), each }
    }

    #[inline]
    fn at(&self, number: usize) -> &[Line] {
        let place = number % (self.lines.len() / self.each);
        &self.lines[place * self.each..][..self.each]
    }

    #[inline]
    fn write(&self, number: usize, value: u64) {
        self.at(number).iter().for_each(|line| line.write(value));
    }

    #[inline]
    fn read(&self, number: usize) -> u64 {
        self.at(number).iter().map(Line::read).fold(0, u64::wrapping_add)
    }
}

/// Cache lines that one core writes and the other reads, and the number of RPCs published so far.
#[derive(Debug)]
struct Leg {
    /// Frames or rings, which RPCs use in turn.
    shared: Lines,
    /// One line of each connection: one side's half of its slot. `None` for frames.
    halves: Option<Lines>,
    position: Line,
}

impl Leg {
    fn of_frames(flows: usize) -> Self {
        Self { shared: Lines::new(flows.min(FRAMES), FRAME), halves: None, position: Line::default() }
    }

    fn of_slots(flows: usize) -> Self {
        let shared = Lines::new(flows.min(RINGS), 1);
        Self { shared, halves: Some(Lines::new(flows, 1)), position: Line::default() }
    }

    #[inline]
    fn write(&self, rpc: u64, flow: usize) {
        self.shared.write(rpc as usize, rpc);
        self.halves.iter().for_each(|halves| halves.write(flow, rpc));
    }

    #[inline]
    fn read(&self, rpc: u64, flow: usize) -> u64 {
        let half = self.halves.as_ref().map_or(0, |halves| halves.read(flow));
        self.shared.read(rpc as usize).wrapping_add(half)
    }

    /// Publishes the lines of all RPCs before `rpc`. Release: pairs with the Acquire load in `reached`.
    #[inline]
    fn announce(&self, rpc: u64) {
        self.position.0[0].store(rpc, Release);
    }

    #[inline]
    fn reached(&self) -> u64 {
        self.position.0[0].load(Acquire)
    }
}

#[derive(Debug)]
struct Shared {
    /// The order in which connections send: a random permutation.
    order: Vec<u32>,
    requests: Leg,
    told: Leg,
    answers: Leg,
    replies: Leg,
    stop: AtomicBool,
}

impl Shared {
    fn new(flows: usize) -> Self {
        let mut order: Vec<u32> = (0..flows as u32).collect();
        let mut random = Seed::new(flows as u64);
        (1..flows).rev().for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
        Self {
            order,
            requests: Leg::of_frames(flows),
            told: Leg::of_slots(flows),
            answers: Leg::of_slots(flows),
            replies: Leg::of_frames(flows),
            stop: AtomicBool::new(false),
        }
    }

    #[inline]
    fn flow(&self, rpc: u64) -> usize {
        self.order[rpc as usize % self.order.len()] as usize
    }

    /// Takes up to a batch of RPCs that `from` has published after `seen`, reads and writes the `own` lines of their connections, and
    /// publishes them on `to`. Returns a sum of all that was read, so that the compiler keeps the reads.
    #[inline]
    fn pass(&self, from: &Leg, own: Option<&Lines>, to: &Leg, seen: &mut u64) -> u64 {
        let end = from.reached().min(*seen + BATCH);
        if *seen == end {
            return 0;
        }
        let mut sum = 0u64;
        while *seen < end {
            let flow = self.flow(*seen);
            sum = sum.wrapping_add(from.read(*seen, flow));
            if let Some(own) = own {
                sum = sum.wrapping_add(own.read(flow));
                own.write(flow, *seen);
            }
            to.write(*seen, flow);
            *seen += 1;
        }
        to.announce(*seen);
        sum
    }
}

/// Runs the measurement `floor`.
///
/// # Errors
/// When a thread cannot be started.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("floor");
    let mut samples = Samples::default();
    for _ in 0..options.runs() {
        for flows in FLOWS {
            let floor = one(flows, Duration::from_secs_f64(options.seconds()))?;
            let case = format!("floor/n{flows}");
            samples.add(&case, "lines", "service's core", "ns", floor.service_ns);
            samples.add(&case, "lines", "application's end", "ns", floor.application_ns);
            samples.add(&case, "lines", "rate", "RPC/s", floor.rate);
        }
    }
    report.rows = samples.rows();
    report.note("nanoseconds of rounds that found work, per RPC: 6 lines of the other core's are read, 6 that it has read are written, 7 of the core's own are read and written; the application's end: 2 lines of the other core's are read, 2 that it has read are written, 1 of its own is read and written");
    Ok(report)
}

/// What one run has found.
struct Floor {
    /// Nanoseconds of the service's core per RPC.
    service_ns: f64,
    /// Nanoseconds of the application's end per RPC: from the doorbell to the published answer.
    application_ns: f64,
    /// RPCs answered per second of the run.
    rate: f64,
}

fn one(flows: usize, time: Duration) -> anyhow::Result<Floor> {
    let shared = Arc::new(Shared::new(flows));
    let sockets = Lines::new(flows, OWN_OF_SOCKET);
    let near = {
        let shared = shared.clone();
        std::thread::Builder::new().name("near".into()).spawn(move || serve(&shared, flows))?
    };
    let start = clock::now_ns();
    let until = start + time.as_nanos() as u64;
    // At most `FRAMES` RPCs are under way, as in `echo`.
    let most = flows.min(FRAMES) as u64;
    let (mut asked, mut heard, mut answered, mut answering_ns) = (0u64, 0u64, 0u64, 0u64);
    while clock::now_ns() < until {
        if asked < heard + most {
            while asked < heard + most {
                shared.requests.write(asked, shared.flow(asked));
                asked += 1;
            }
            shared.requests.announce(asked);
        }
        let (at, before) = (clock::now_ns(), answered);
        std::hint::black_box(shared.pass(&shared.told, Some(&sockets), &shared.answers, &mut answered));
        if answered > before {
            answering_ns += clock::now_ns() - at;
        }
        let end = shared.replies.reached();
        while heard < end {
            std::hint::black_box(shared.replies.read(heard, shared.flow(heard)));
            heard += 1;
        }
    }
    let rate = heard as f64 * 1e9 / (clock::now_ns() - start) as f64;
    shared.stop.store(true, Relaxed);
    let (spent, served) = near.join().map_err(|_| anyhow::anyhow!("the service's thread panicked"))?;
    Ok(Floor {
        service_ns: spent as f64 / served.max(1) as f64,
        application_ns: answering_ns as f64 / answered.max(1) as f64,
        rate,
    })
}

/// The service's thread. Returns its nanoseconds in rounds that found work, and the number of RPCs served.
fn serve(shared: &Shared, flows: usize) -> (u64, u64) {
    let own = Lines::new(flows, OWN_OF_FLOW);
    let (mut seen, mut served, mut spent) = (0u64, 0u64, 0u64);
    let mut at = clock::now_ns();
    while !shared.stop.load(Relaxed) {
        let before = (seen, served);
        std::hint::black_box(shared.pass(&shared.requests, Some(&own), &shared.told, &mut seen));
        std::hint::black_box(shared.pass(&shared.answers, None, &shared.replies, &mut served));
        let now = clock::now_ns();
        if (seen, served) != before {
            spent += now - at;
        }
        at = now;
    }
    (spent, served)
}
