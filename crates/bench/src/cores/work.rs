//! RPCs on one core and on two: how many, and the processor time of each.

use crate::rig::{ClosedLoop, Lane, Setup, several};
use crate::{affinity, clock};
use anyhow::anyhow;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::thread;

const REQUEST: usize = 64;
/// The most frames in flight in each direction of a lane.
const FRAMES: usize = 512;

/// Where the work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// One core with a slow path.
    One,
    /// Two cores of one service.
    Two,
    /// Two services with one core each.
    Apart,
}

/// What a thread has done.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    rpcs: u64,
    cpu_ns: u64,
    wall_ns: u64,
}

/// What all threads of a run have done.
#[derive(Clone, Debug)]
pub struct Seen(Vec<Done>);

impl Seen {
    /// RPCs for each second by the clock.
    pub fn rate(&self) -> f64 {
        self.0.iter().map(|done| done.rpcs as f64 * 1e9 / done.wall_ns as f64).sum()
    }

    /// Processor time for each RPC, nanoseconds.
    pub fn ns_each(&self) -> f64 {
        let sum = |of: fn(&Done) -> u64| self.0.iter().map(of).sum::<u64>() as f64;
        sum(|done| done.cpu_ns) / sum(|done| done.rpcs)
    }

    /// Processors that the threads had.
    pub fn processors(&self) -> f64 {
        self.0.iter().map(|done| done.cpu_ns as f64 / done.wall_ns as f64).sum()
    }
}

/// Runs `connections` connections on each core for so many seconds.
///
/// # Errors
/// When memory or a thread cannot be had, or replies do not have the length that was asked for.
pub fn measure(place: Place, connections: u32, seconds: f64) -> anyhow::Result<Seen> {
    let setup = Setup { connections, frames: FRAMES, inline: true, is_metered: false };
    let lanes = match place {
        Place::One => several(1, setup, REQUEST)?,
        Place::Two => several(2, setup, REQUEST)?,
        Place::Apart => {
            let mut lanes = several(1, setup, REQUEST)?;
            lanes.extend(several(1, setup, REQUEST)?);
            lanes
        }
    };
    let (processors, pace) = (affinity::allowed(), Pace::new(lanes.len()));
    let time_ns = (seconds * 1e9) as u64;
    let results: Vec<anyhow::Result<Done>> = thread::scope(|scope| {
        let spawn = |(i, lane): (usize, Lane)| {
            let (pace, processor) = (&pace, processors.get(i).copied());
            scope.spawn(move || {
                // Where there are fewer processors than threads, they share.
                processor.map_or(Ok(()), |processor| affinity::pin(&[processor]))?;
                run(lane, connections, time_ns, pace)
            })
        };
        let threads: Vec<_> = lanes.into_iter().enumerate().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of the measurement panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    Ok(Seen(results.into_iter().collect::<anyhow::Result<_>>()?))
}

/// Until all threads have come to the same point each goes on serving: the first one's slow path serves all.
struct Pace {
    threads: usize,
    opened: AtomicUsize,
    measured: AtomicUsize,
}

impl Pace {
    fn new(threads: usize) -> Self {
        Self { threads, opened: AtomicUsize::new(0), measured: AtomicUsize::new(0) }
    }
}

/// One thread: opens its connections, warms up with the others, and measures.
fn run(mut lane: Lane, connections: u32, time_ns: u64, pace: &Pace) -> anyhow::Result<Done> {
    let opened = lane.establish(connections);
    let mut traffic = Traffic { lane, requests: ClosedLoop::new(REQUEST) };
    (0..connections).for_each(|connection| traffic.lane.far.request(connection));
    traffic.wait(&pace.opened, pace.threads);
    traffic.run(time_ns / 4);
    let before = (clock::now_ns(), cpu_ns(), traffic.requests.rpcs);
    traffic.run(time_ns);
    let done = Done {
        rpcs: traffic.requests.rpcs - before.2,
        cpu_ns: cpu_ns() - before.1,
        wall_ns: clock::now_ns() - before.0,
    };
    traffic.wait(&pace.measured, pace.threads);
    opened?;
    traffic.requests.check(connections, done.rpcs, traffic.lane.service.retransmitted())?;
    Ok(done)
}

/// The closed loop of one thread: each reply is followed by the next request.
struct Traffic {
    lane: Lane,
    requests: ClosedLoop,
}

impl Traffic {
    /// Goes on until so many threads have come here.
    fn wait(&mut self, come: &AtomicUsize, threads: usize) {
        come.fetch_add(1, AcqRel);
        while come.load(Acquire) < threads {
            self.run(100_000);
        }
    }

    fn run(&mut self, time_ns: u64) {
        let until = clock::now_ns() + time_ns;
        while clock::now_ns() < until {
            self.lane.service.round();
            self.requests.round(&mut self.lane.far);
        }
    }
}

/// Processor time of this thread, nanoseconds.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_answers() {
        for (place, threads) in [(Place::One, 1), (Place::Two, 2), (Place::Apart, 2)] {
            let seen = measure(place, 16, 0.02).expect("memory, threads and right replies");
            assert_eq!(seen.0.len(), threads);
            assert!(seen.0.iter().all(|done| done.rpcs > 0), "{seen:?}");
        }
    }
}
