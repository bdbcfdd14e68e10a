//! What `echo` cannot do without on its two cores: the cache lines of a 64-byte RPC change sides, and nothing else is done.
//!
//! ```text
//!   far core                                    service's core
//!   request: descriptor, frame      4 lines -->  read; slot and receive ring written, 2 lines
//!   both read, reply written, 2 lines       -->  read; descriptor and frame written, 4 lines
//!   read, next request
//! ```
//! Everything that a batch publishes is announced by one position, as there. No instruction hints at what is needed next: what the
//! processor overlaps by itself is the floor, what is fetched ahead may lie below it.

use crate::samples::Samples;
use crate::{Options, Report, clock};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// RPCs under way: a batch of each is on either side.
const FLOWS: [usize; 2] = [64, 1024];
/// Lines of a descriptor and its frame.
const FRAME: usize = 4;
/// Lines of a flow that each side writes: its half of the slot, 64 bytes of payload.
const SLOT: usize = 2;
/// RPCs of a batch at most, as `base::limits::BATCH`.
const BATCH: u64 = base::limits::BATCH as u64;

/// A cache line.
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

/// Lines that one side writes and the other reads, so many for each RPC under way, and how many RPCs have got so far.
#[derive(Debug)]
struct Leg {
    lines: Box<[Line]>,
    each: usize,
    position: Line,
}

impl Leg {
    fn new(flows: usize, each: usize) -> Self {
        Self { lines: (0..flows * each).map(|_| Line::default()).collect(), each, position: Line::default() }
    }

    #[inline]
    fn of(&self, rpc: u64) -> &[Line] {
        let flow = rpc as usize % (self.lines.len() / self.each);
        &self.lines[flow * self.each..][..self.each]
    }

    #[inline]
    fn write(&self, rpc: u64) {
        self.of(rpc).iter().for_each(|line| line.write(rpc));
    }

    #[inline]
    fn read(&self, rpc: u64) -> u64 {
        self.of(rpc).iter().map(Line::read).fold(0, u64::wrapping_add)
    }

    /// Pairs with the Acquire in `reached`: the lines before the position that announces them.
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
    requests: Leg,
    told: Leg,
    answers: Leg,
    replies: Leg,
    stop: AtomicBool,
}

/// Takes what has come on `from` since `seen`, a batch at most, and passes it on. What was read is returned, so that it is read.
#[inline]
fn pass(from: &Leg, to: &Leg, seen: &mut u64) -> u64 {
    let end = from.reached().min(*seen + BATCH);
    if *seen == end {
        return 0;
    }
    let mut sum = 0u64;
    while *seen < end {
        sum = sum.wrapping_add(from.read(*seen));
        to.write(*seen);
        *seen += 1;
    }
    to.announce(*seen);
    sum
}

/// The measurement `floor`.
///
/// # Errors
/// When no thread is to be had.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("floor");
    let mut samples = Samples::default();
    for _ in 0..options.runs() {
        for flows in FLOWS {
            let ns = one(flows, Duration::from_secs_f64(options.seconds()))?;
            samples.add(&format!("floor/n{flows}"), "lines", "service's core", "ns", ns);
        }
    }
    report.rows = samples.rows();
    report.note("nanoseconds of rounds that found work, per RPC: 6 lines of the other core's are read and 6 that it has read are written");
    Ok(report)
}

/// Nanoseconds of the service's core for each RPC.
fn one(flows: usize, time: Duration) -> anyhow::Result<f64> {
    let shared = Arc::new(Shared {
        requests: Leg::new(flows, FRAME),
        told: Leg::new(flows, SLOT),
        answers: Leg::new(flows, SLOT),
        replies: Leg::new(flows, FRAME),
        stop: AtomicBool::new(false),
    });
    let near = {
        let shared = shared.clone();
        std::thread::Builder::new().name("near".into()).spawn(move || serve(&shared))?
    };
    let until = clock::now_ns() + time.as_nanos() as u64;
    let (mut asked, mut heard, mut answered) = (0u64, 0u64, 0u64);
    while clock::now_ns() < until {
        if asked < heard + flows as u64 {
            while asked < heard + flows as u64 {
                shared.requests.write(asked);
                asked += 1;
            }
            shared.requests.announce(asked);
        }
        std::hint::black_box(pass(&shared.told, &shared.answers, &mut answered));
        let end = shared.replies.reached();
        while heard < end {
            std::hint::black_box(shared.replies.read(heard));
            heard += 1;
        }
    }
    shared.stop.store(true, Relaxed);
    let (spent, served) = near.join().map_err(|_| anyhow::anyhow!("the service's thread panicked"))?;
    Ok(spent as f64 / served.max(1) as f64)
}

/// The service's side: its time in rounds that found work, and the RPCs served.
fn serve(shared: &Shared) -> (u64, u64) {
    let (mut seen, mut served, mut spent) = (0u64, 0u64, 0u64);
    let mut at = clock::now_ns();
    while !shared.stop.load(Relaxed) {
        let before = (seen, served);
        std::hint::black_box(pass(&shared.requests, &shared.told, &mut seen));
        std::hint::black_box(pass(&shared.answers, &shared.replies, &mut served));
        let now = clock::now_ns();
        if (seen, served) != before {
            spent += now - at;
        }
        at = now;
    }
    (spent, served)
}
