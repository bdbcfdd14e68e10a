//! The loop: receive packets, decide their fates, send what is due, sleep until shortly before the next packet is due.

use crate::end::Place;
use crate::lane::Lane;
use crate::report::{Direction, Report};
use base::{Duration, Instant, Seed};
use link::LinkConfig;
use port::{Batch, Port, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

/// A sleep ends this long before the next packet is due, and the thread yields until then: a virtual machine wakes up to some tens of
/// microseconds late.
const AWAKE: Duration = Duration::from_us(60);
/// The interval at which a link that is never idle checks whether it must stop.
const LOOK: Duration = Duration::from_ms(5);
/// Segments of one super-frame that arrive within this time of each other leave as one frame, as a card's interrupt moderation would
/// deliver them.
const SLACK: Duration = Duration::from_us(20);
/// The most batches taken from one side before the other side's turn.
const BATCHES: usize = 4;

/// The reason why a link ended.
#[derive(Debug)]
pub enum Failure {
    /// An end cannot be opened.
    Open {
        /// The end that cannot be opened.
        place: Place,
        /// The reason, and what to do.
        why: String,
    },
    /// An interface does not exist any more.
    Gone {
        /// The end with this interface.
        place: Place,
        /// The error that the kernel reports.
        error: std::io::Error,
    },
    /// The kernel refuses to wait.
    Wait(Errno),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { place, why } => write!(f, "{place}: {why}"),
            Self::Gone { place, error } => write!(f, "{place}: the interface is gone ({error})"),
            Self::Wait(error) => write!(f, "cannot wait for packets: {error}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Two interfaces with a link between them.
pub struct Emulator {
    places: [Place; 2],
    ends: [Box<dyn Port>; 2],
    /// The forward and the backward direction.
    lanes: [Lane; 2],
    seed: u64,
    batch: Batch,
    start_ns: u64,
}

fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Emulator {
    /// Opens both ends. The link's time begins now.
    ///
    /// # Errors
    /// When an end cannot be opened.
    pub fn open(places: [Place; 2], configs: [LinkConfig; 2], seed: u64) -> Result<Self, Failure> {
        let open = |place: &Place| place.open().map_err(|why| Failure::Open { place: place.clone(), why });
        let ends = [open(&places[0])?, open(&places[1])?];
        let mut seeds = Seed::new(seed);
        let lanes = configs.map(|config| Lane::new(config, seeds.next_u64(), SLACK));
        Ok(Self { places, ends, lanes, seed, batch: Batch::new(), start_ns: clock_ns() })
    }

    /// The counters so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let [a, b] = &self.ends;
        Report {
            seconds: self.now().as_us() as f64 / 1e6,
            seed: self.seed,
            forward: Direction::of(&self.lanes[0], a, b),
            backward: Direction::of(&self.lanes[1], b, a),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_ns(clock_ns() - self.start_ns)
    }

    /// Carries packets until the time `until` (returns false) or until `stop` is readable (returns true).
    ///
    /// # Errors
    /// When an interface does not exist any more, or the kernel refuses to wait.
    pub fn run(&mut self, until: Instant, stop: BorrowedFd<'_>) -> Result<bool, Failure> {
        // By default the kernel may wake a thread 50 us late to save wake-ups. If this cannot be set, delays are less exact.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        // The link must not be delayed by other processes: on a busy machine its packets would wait for a core.
        let _ = rustix::process::setpriority_process(None, -20);
        let mut looked = Instant::ZERO;
        loop {
            let has_worked = self.turn();
            let now = self.now();
            if until <= now {
                return Ok(false);
            }
            if LOOK <= now.since(looked) {
                looked = now;
                if self.wait(Duration::ZERO, stop)? {
                    return Ok(true);
                }
            }
            if has_worked {
                continue;
            }
            let due = self.lanes.iter().map(Lane::next_deadline).min().unwrap_or(Instant::NEVER).min(until);
            if due.since(now) <= AWAKE {
                rustix::thread::sched_yield();
                continue;
            }
            let time = Duration::from_ns(due.since(now).as_ns() - AWAKE.as_ns());
            if self.wait(time, stop)? {
                return Ok(true);
            }
        }
    }

    /// One round of both directions. False if there was nothing to do.
    fn turn(&mut self) -> bool {
        let mut has_worked = false;
        for from in 0..2 {
            for _ in 0..BATCHES {
                let count = self.ends[from].receive(&mut self.batch);
                let now = self.now();
                for frame in self.batch.packets_mut() {
                    self.lanes[from].offer(now, frame);
                }
                has_worked |= count > 0;
                has_worked |= self.lanes[from].release(now, &mut self.ends[1 - from]);
                if !self.batch.is_full() {
                    break;
                }
            }
            self.ends[1 - from].flush();
        }
        has_worked
    }

    /// Waits for packets, for `stop`, or until `time` has passed. True if `stop` is readable.
    fn wait(&mut self, time: Duration, stop: BorrowedFd<'_>) -> Result<bool, Failure> {
        for (end, place) in self.ends.iter().zip(&self.places) {
            if let Some(error) = end.failure() {
                return Err(Failure::Gone { place: place.clone(), error });
            }
        }
        let waits = self.ends.each_mut().map(Port::arm);
        let mut polls = Vec::with_capacity(3);
        polls.push(PollFd::from_borrowed_fd(stop, PollFlags::IN));
        for (end, wait) in self.ends.iter().zip(waits) {
            let events = match wait {
                Wait::Not => continue,
                Wait::Readable => PollFlags::IN,
                Wait::ReadableOrWritable => PollFlags::IN | PollFlags::OUT,
            };
            polls.extend(end.wait_fd().map(|fd| PollFd::from_borrowed_fd(fd, events)));
        }
        // At most a day, which fits into every type.
        let ns = time.as_ns().min(86_400_000_000_000);
        let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        match poll(&mut polls, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::Wait(error)),
        }
        let is_told = !polls[0].revents().is_empty();
        drop(polls);
        self.ends.iter_mut().for_each(Port::disarm);
        Ok(is_told)
    }
}
