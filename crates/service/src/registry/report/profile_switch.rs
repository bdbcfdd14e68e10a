//! The switch that turns the counting of cycles on and off, and the control thread's own account of its time.

use control::Counting as Wish;
use cycles::{Account, Spent, Switch, Ticks};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Sampled counting: length of a window, and of the pause after it. A change of section costs about two dozen cycles; in a sixteenth of the
/// time that is less than a hundredth of what any library call costs. The window is long beside any sleep under load, so that few sleeps
/// are cut.
const WINDOW: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(300));

/// Sections of the control thread.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Asleep,
    Requests,
    Exceptions,
    Timers,
}

const PARTS: usize = Part::Timers as usize + 1;

/// Names of the sections in reports, indexed by `Part`.
pub const NAMES: [&str; PARTS] =
    ["idle: asleep", "requests of applications", "slow path: packets", "slow path: timers"];

/// Whether cycles are counted: never, in windows, or always.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Off,
    Sampled,
    Always,
}

impl Mode {
    /// Name of the mode in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Sampled => "sampled",
            Self::Always => "always",
        }
    }
}

/// State of the counting. The cores and the regions of applications get the switch's word.
#[derive(Debug)]
pub struct Counting {
    mode: Mode,
    /// The word of the switch, which the cores read.
    word: Arc<AtomicU32>,
    generation: u16,
    window: u16,
    /// Value of the tick counter, and the time, when counting was turned on.
    since: Option<(u64, Instant)>,
    /// Ticks in windows that have ended.
    closed: u64,
    /// Value of the tick counter when the present window began.
    opened: u64,
    /// When the switch is turned next; `None`: never.
    due: Option<Instant>,
    account: Account<PARTS>,
}

impl Counting {
    /// A switch that is off.
    pub fn new(word: Arc<AtomicU32>) -> Self {
        Self {
            mode: Mode::Off,
            word,
            generation: 0,
            window: 0,
            since: None,
            closed: 0,
            opened: 0,
            due: None,
            account: Account::default(),
        }
    }

    /// The word that the switch shows now; 0: off.
    pub fn word(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Number of the present counting: it changes each time that counting begins anew.
    pub fn generation(&self) -> u32 {
        u32::from(self.generation)
    }

    /// Sets the mode. True when the switch was turned.
    pub fn obey(&mut self, wish: Wish, now: Instant) -> bool {
        self.mode = match wish {
            Wish::AsItIs => return false,
            Wish::Sampled => Mode::Sampled,
            Wish::Always => Mode::Always,
            Wish::Off => Mode::Off,
        };
        (self.since, self.due, self.closed) = (None, None, 0);
        if self.mode == Mode::Off {
            self.set(Switch::OFF);
            return true;
        }
        (self.generation, self.window) = (Switch::next(self.generation), 0);
        self.since = Some((Ticks::here().now(), now));
        self.open(now);
        true
    }

    fn open(&mut self, now: Instant) {
        self.window = self.window.wrapping_add(1);
        self.opened = Ticks::here().now();
        self.due = (self.mode == Mode::Sampled).then(|| now + WINDOW.0);
        self.set(Switch::on(self.generation, self.window, Ticks::here()));
    }

    /// Begins or ends a window when that is due. True when the switch was turned.
    pub fn handle_timer(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        if self.word() == 0 {
            self.open(now);
        } else {
            self.closed = self.counted();
            self.due = Some(now + WINDOW.1);
            self.set(Switch::OFF);
        }
        true
    }

    fn set(&mut self, switch: Switch) {
        self.word.store(switch.word(), Ordering::Relaxed);
    }

    /// When the switch is turned next.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Ticks in all windows of this counting, the present one included.
    pub fn counted(&self) -> u64 {
        let present = if self.word() == 0 { 0 } else { Ticks::here().now().saturating_sub(self.opened) };
        self.closed + present
    }

    /// Ticks per second, measured since counting was turned on; `None` while it is off.
    pub fn ticks_per_second(&self) -> Option<f64> {
        let (ticks, then) = self.since?;
        let seconds = then.elapsed().as_secs_f64();
        (seconds > 0.0).then(|| Ticks::here().now().saturating_sub(ticks) as f64 / seconds)
    }

    /// The control thread begins to work on `part`.
    pub fn enter(&mut self, part: Part) {
        self.account.follow(Switch::from_word(self.word()), part as usize);
        self.account.enter(part as usize);
    }

    /// Ticks that the control thread has spent in each section.
    pub fn own(&mut self) -> [Spent; PARTS] {
        self.account.spent().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> Counting {
        Counting::new(Arc::new(AtomicU32::new(0)))
    }

    #[test]
    fn sampling_counts_in_windows_of_one_generation() {
        let (mut counting, start) = (counting(), Instant::now());
        assert!(!counting.obey(Wish::AsItIs, start) && counting.due().is_none());
        assert!(counting.obey(Wish::Sampled, start));
        let first = Switch::from_word(counting.word());
        assert!(first.is_on() && !counting.handle_timer(start + WINDOW.0 / 2));
        assert!(counting.handle_timer(start + WINDOW.0) && counting.word() == 0);
        let counted = counting.counted();
        assert!(counting.counted() == counted && counted > 0);
        let next = start + WINDOW.0 + WINDOW.1;
        assert!(counting.handle_timer(next));
        let second = Switch::from_word(counting.word());
        assert!(second != first && second.generation() == first.generation());
        assert!(counting.counted() >= counted);
    }

    #[test]
    fn always_never_turns_and_each_beginning_is_a_generation() {
        let (mut counting, start) = (counting(), Instant::now());
        assert!(counting.obey(Wish::Always, start) && counting.due().is_none());
        let first = Switch::from_word(counting.word()).generation();
        assert!(counting.obey(Wish::Always, start));
        assert_ne!(Switch::from_word(counting.word()).generation(), first);
        assert!(counting.obey(Wish::Off, start));
        assert_eq!((counting.word(), counting.counted(), counting.mode()), (0, 0, Mode::Off));
        assert!(counting.ticks_per_second().is_none());
    }

    #[test]
    fn the_counter_is_measured_against_the_clock() {
        let mut counting = counting();
        counting.obey(Wish::Always, Instant::now());
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {}
        let per_second = counting.ticks_per_second().unwrap();
        let here = Ticks::here();
        let (ticks, start) = (here.now(), Instant::now());
        while start.elapsed() < Duration::from_millis(20) {}
        let seen = (here.now() - ticks) as f64 / start.elapsed().as_secs_f64();
        assert!((per_second / seen - 1.0).abs() < 0.02, "{per_second} {seen}");
    }
}
