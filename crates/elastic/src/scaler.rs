//! How many cores should serve flows: a state machine that is told the load every 10 ms and says when to add or remove one. Moves nothing, reads
//! no clock and no file.
//!
//! ```text
//!            idle cores < 0.2, 3 times, and a processor to spare        idle cores > 1.25, 20 times
//!   n cores ────────────────────────────────────────────────► n+1 ─────────────────────────────────► n
//!                          ▲                                    │ work rose by less than a tenth
//!                          └──── taken back; tried again ───────┘
//!                                after 1, 2, 4 .. 60 s
//! ```
//! The thresholds are those of TAS (EuroSys 2019, section 3.4).

use base::{Duration, Instant};
use serde::Serialize;
use std::fmt;

/// Time between two samples of the load, and over which a core judges whether it is busy.
pub const WINDOW: Duration = Duration::from_ms(10);
/// A core is added below so many idle cores, and removed above so many, in thousandths (TAS, section 3.4).
const IDLE_LOW: i64 = 200;
const IDLE_HIGH: i64 = 1_250;
/// Number of samples in a row that a core is added, removed, or given back to other programs after.
const ADD_AFTER: u32 = 3;
const REMOVE_AFTER: u32 = 20;
const GIVE_BACK_AFTER: u32 = 3;
/// Least time between two changes.
const PAUSE: Duration = Duration::from_ms(100);
/// A core is added only when processors are idle for so many thousandths of one.
const SPARE_LEAST: u32 = 300;
/// Share of the time that other programs wait for a processor, percent, from which on they need ours.
const PRESSURE_MOST: u32 = 20;
/// Time after an addition in which the work must rise by a tenth.
const TRIAL: Duration = Duration::from_ms(100);
/// Time until a core is tried again that brought nothing: at first, and at most. It doubles each time.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A sample that comes so late says nothing: the service was stopped.
const STALE: Duration = Duration::from_secs(1);

/// The load, and what the machine can give, at one time.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Time of the sample.
    pub now: Instant,
    /// Time that each core has been busy since it started.
    pub busy: &'a [Duration],
    /// Number of packets and segments that all cores have handled so far.
    pub work: u64,
    /// Idle time of the processors that the service may use, thousandths of one processor.
    pub spare: u32,
    /// Share of the time in which a program waited for a processor, percent.
    pub pressure: u32,
    /// Number of processors that the service may use.
    pub allowed: u8,
    /// Groups are moving: the load is no measure of either number of cores.
    pub is_moving: bool,
}

/// Why the number of cores changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The cores are nearly always busy.
    Busy,
    /// More than one core is idle.
    Idle,
    /// The core that was added last has not raised the work done.
    BroughtNothing,
    /// Other programs wait for processors.
    Pressure,
    /// The service may use fewer processors than before.
    FewerProcessors,
    /// `towpath cores --set` said so.
    Asked,
    /// The port refuses to bring packets to several cores.
    Unsteered,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "fewer than 0.2 cores were idle",
            Self::Idle => "more than 1.25 cores were idle",
            Self::BroughtNothing => "the core that was added last brought nothing",
            Self::Pressure => "other programs wait for processors",
            Self::FewerProcessors => "the service may use fewer processors",
            Self::Asked => "it was asked for",
            Self::Unsteered => "the port does not bring packets to several cores",
        })
    }
}

/// Why busy cores get no help.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hold {
    /// All cores that the service may have serve flows.
    Most,
    /// No processor is idle for long enough.
    NoSpare,
    /// Other programs wait for processors.
    Pressure,
    /// A core that was added brought nothing; the time to try again has not come.
    Later,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Most => "there are no more cores, or no more processors",
            Self::NoSpare => "no processor is idle",
            Self::Pressure => "other programs wait for processors",
            Self::Later => "a core more brought nothing; it is tried again later",
        })
    }
}

/// A new number of serving cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Number of cores that are to serve flows.
    pub cores: u8,
    /// What speaks for it.
    pub why: Why,
}

/// A core that was added and must prove itself.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Work for each second before the addition.
    before: u64,
    /// Time and work at which its groups had moved; `None`: they are moving.
    from: Option<(Instant, u64)>,
}

/// The state machine that says how many cores should serve.
#[derive(Debug)]
pub struct Scaler {
    /// Cores that there are.
    most: u8,
    serving: u8,
    /// Time, busy time and work of the sample before.
    last: Option<(Instant, Duration, u64)>,
    /// Number of samples in a row below the low threshold, and time and work before the first of them.
    low: u32,
    low_from: (Instant, u64),
    /// Number of samples in a row above the high threshold, and under pressure.
    high: u32,
    pressed: u32,
    changed_at: Option<Instant>,
    trial: Option<Trial>,
    retry_at: Instant,
    retry: Duration,
    hold: Option<Hold>,
    idle: i64,
}

impl Scaler {
    /// A machine with `most` cores, of which one serves.
    pub fn new(most: u8) -> Self {
        Self {
            most,
            serving: 1,
            last: None,
            low: 0,
            low_from: (Instant::ZERO, 0),
            high: 0,
            pressed: 0,
            changed_at: None,
            trial: None,
            retry_at: Instant::ZERO,
            retry: RETRY.0,
            hold: None,
            idle: 0,
        }
    }

    /// Number of cores that serve, or are to serve.
    pub fn serving(&self) -> u8 {
        self.serving
    }

    /// Idle cores at the last sample, thousandths.
    pub fn idle(&self) -> i64 {
        self.idle
    }

    /// Why busy cores get no help; `None`: they need none, or get it.
    pub fn hold(&self) -> Option<Hold> {
        self.hold
    }

    /// True when samples are needed: several cores serve, or one is busy.
    pub fn must_watch(&self) -> bool {
        self.serving > 1 || self.low > 0
    }

    /// The number of cores was set from outside.
    pub fn set(&mut self, cores: u8) {
        (self.serving, self.trial, self.hold) = (cores.clamp(1, self.most), None, None);
        self.forget();
    }

    fn forget(&mut self) {
        (self.last, self.low, self.high, self.pressed) = (None, 0, 0, 0);
    }

    /// Takes in a sample. A change is to be carried out: from then on so many cores serve.
    pub fn tick(&mut self, sample: &Sample<'_>) -> Option<Change> {
        let most = self.most.min(sample.allowed.max(1));
        if most < self.serving && !sample.is_moving {
            return Some(self.change(sample.now, most, Why::FewerProcessors));
        }
        self.measure(sample)?;
        if let Some(change) = self.judge(sample) {
            return Some(change);
        }
        let may_change =
            self.changed_at.is_none_or(|at| PAUSE <= sample.now.since(at)) && self.trial.is_none();
        self.hold = None;
        if self.low >= ADD_AFTER {
            self.hold = self.hold_of(sample, most);
            if may_change && self.hold.is_none() {
                return Some(self.add(sample));
            }
        }
        let lone = self.serving == 1 || !may_change;
        match () {
            () if lone => None,
            () if self.high >= REMOVE_AFTER => Some(self.remove(sample.now, Why::Idle)),
            () if self.pressed >= GIVE_BACK_AFTER => Some(self.remove(sample.now, Why::Pressure)),
            () => None,
        }
    }

    /// Counts the samples in a row that speak for a change. `None`: this one says nothing.
    fn measure(&mut self, sample: &Sample<'_>) -> Option<()> {
        let serving = usize::from(self.serving).min(sample.busy.len());
        let busy = sample.busy[..serving].iter().fold(Duration::ZERO, |sum, busy| sum.plus(*busy));
        let last = self.last.replace((sample.now, busy, sample.work));
        let (before, busy_before, work) = last?;
        let time = sample.now.since(before);
        if sample.is_moving || time == Duration::ZERO || STALE < time {
            (self.low, self.high, self.pressed) = (0, 0, 0);
            return None;
        }
        let share = busy.as_ns().saturating_sub(busy_before.as_ns()) as i64 * 1_000 / time.as_ns() as i64;
        self.idle = (i64::from(self.serving) * 1_000 - share).max(0);
        if self.low == 0 {
            self.low_from = (before, work);
        }
        let longer = |count: u32, holds: bool| if holds { count.saturating_add(1) } else { 0 };
        self.low = longer(self.low, self.idle < IDLE_LOW);
        self.high = longer(self.high, self.idle > IDLE_HIGH);
        self.pressed = longer(self.pressed, sample.pressure > PRESSURE_MOST && self.idle >= 1_000);
        Some(())
    }

    /// Ends the trial of the core that was added last, when its time has come.
    fn judge(&mut self, sample: &Sample<'_>) -> Option<Change> {
        let trial = self.trial.as_mut()?;
        let (since, work) = *trial.from.get_or_insert((sample.now, sample.work));
        let time = sample.now.since(since);
        if time < TRIAL {
            return None;
        }
        let rate = per_second(sample.work.saturating_sub(work), time);
        let is_good = rate.saturating_mul(10) >= trial.before.saturating_mul(11);
        self.trial = None;
        if is_good {
            self.retry = RETRY.0;
            return None;
        }
        self.put_off(sample.now);
        Some(self.change(sample.now, self.serving - 1, Why::BroughtNothing))
    }

    /// The next addition waits longer than the one before.
    fn put_off(&mut self, now: Instant) {
        self.retry_at = now.plus(self.retry);
        self.retry = self.retry.times(2).min(RETRY.1);
    }

    fn hold_of(&self, sample: &Sample<'_>, most: u8) -> Option<Hold> {
        match () {
            () if most <= self.serving => Some(Hold::Most),
            () if sample.now < self.retry_at => Some(Hold::Later),
            () if sample.pressure > PRESSURE_MOST => Some(Hold::Pressure),
            () if sample.spare < SPARE_LEAST => Some(Hold::NoSpare),
            () => None,
        }
    }

    fn add(&mut self, sample: &Sample<'_>) -> Change {
        let (since, work) = self.low_from;
        let before = per_second(sample.work.saturating_sub(work), sample.now.since(since));
        let change = self.change(sample.now, self.serving + 1, Why::Busy);
        self.trial = Some(Trial { before, from: None });
        change
    }

    fn remove(&mut self, now: Instant, why: Why) -> Change {
        // A load that goes up and down within a second does not take a core along each time.
        if self.changed_at.is_some_and(|at| now.since(at) < STALE) {
            self.put_off(now);
        }
        self.change(now, self.serving - 1, why)
    }

    fn change(&mut self, now: Instant, cores: u8, why: Why) -> Change {
        (self.serving, self.changed_at, self.trial, self.hold) = (cores, Some(now), None, None);
        self.forget();
        Change { cores, why }
    }
}

fn per_second(work: u64, time: Duration) -> u64 {
    (u128::from(work) * 1_000_000_000 / u128::from(time.as_ns().max(1))) as u64
}

#[cfg(test)]
mod tests;
