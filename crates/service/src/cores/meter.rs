//! Accounts for the time of a core's thread.

use cycles::{Account, Spent, Switch};
use fastpath::{Counters, Meter, Part};
use std::sync::atomic::{AtomicU32, Ordering};

/// Sections of the thread's time; the first [`Part::COUNT`] are the parts of a round.
const WAKES: usize = Part::COUNT;
const LOOP: usize = WAKES + 1;
const RELAYS: usize = LOOP + 1;
const POLLING: usize = RELAYS + 1;
const ASLEEP: usize = POLLING + 1;
const SECTIONS: usize = ASLEEP + 1;

/// Names of the sections in reports.
pub const NAMES: [&str; SECTIONS] = [
    "port: receive",
    "TCP/IP: receive",
    "events",
    "doorbells",
    "TCP/IP: transmit",
    "timers",
    "port: send",
    "wakes",
    "loop and commands",
    "relays",
    "idle: polling",
    "idle: asleep",
];

const _: () = assert!(Part::PortSend as usize + 1 == Part::COUNT && Part::PortReceive as usize == 0);

/// Ticks of a core by section, and the packets in the same time.
#[derive(Clone, Copy, Default, Debug)]
pub struct Metered {
    /// Number of the counting that the values belong to.
    pub generation: u32,
    /// Ticks and entries of each section.
    pub spent: [Spent; SECTIONS],
    /// Packets received and segments sent while counting was on.
    pub packets: [u64; 2],
}

/// The meter of one core.
#[derive(Default, Debug)]
pub struct CoreMeter {
    account: Account<SECTIONS>,
    generation: u32,
    packets: [u64; 2],
    /// The core's counters of packets when the present window began; `None`: no window is open.
    base: Option<[u64; 2]>,
}

impl Meter for CoreMeter {
    #[inline]
    fn enter(&mut self, part: Part) {
        self.account.enter(part as usize);
    }
}

impl CoreMeter {
    /// Begins a round: follows the switch, and sets the mark for `idle`.
    #[inline]
    pub fn begin(&mut self, word: &AtomicU32, counters: &Counters) {
        // Relaxed: no other data depends on the word.
        if self.account.follow(Switch::from_word(word.load(Ordering::Relaxed)), LOOP) {
            self.turned(counters);
        }
        self.account.mark(LOOP);
    }

    #[cold]
    fn turned(&mut self, counters: &Counters) {
        self.count_packets(counters);
        let (generation, _) = self.account.spent();
        if generation != self.generation {
            (self.generation, self.packets) = (generation, [0; 2]);
        }
        self.base = self.account.is_on().then(|| of(counters));
    }

    fn count_packets(&mut self, counters: &Counters) {
        let Some(base) = self.base else { return };
        let now = of(counters);
        for ((sum, now), base) in self.packets.iter_mut().zip(now).zip(base) {
            *sum += now.wrapping_sub(base);
        }
        self.base = Some(now);
    }

    /// The round is over: eventfds of sleeping applications are written now.
    #[inline]
    pub fn wakes(&mut self) {
        self.account.enter(WAKES);
    }

    /// The thread turns to work outside the fast path.
    #[inline]
    pub fn rest(&mut self) {
        self.account.enter(LOOP);
    }

    /// The thread turns to the relays.
    #[inline]
    pub fn relays(&mut self) {
        self.account.enter(RELAYS);
    }

    /// The round found no work: its time counts as polling.
    #[inline]
    pub fn idle(&mut self) {
        self.account.redeem(POLLING);
    }

    /// The thread is about to sleep.
    pub fn asleep(&mut self) {
        self.account.enter(ASLEEP);
    }

    /// The account up to now.
    pub fn metered(&mut self, counters: &Counters) -> Metered {
        self.count_packets(counters);
        let (generation, spent) = self.account.spent();
        Metered { generation, spent, packets: self.packets }
    }
}

fn of(counters: &Counters) -> [u64; 2] {
    [counters.packets, counters.segments_out]
}

#[cfg(test)]
mod tests {
    use super::*;
    use cycles::Ticks;

    fn counters(packets: u64) -> Counters {
        let mut counters = Counters::default();
        (counters.packets, counters.segments_out) = (packets, 2 * packets);
        counters
    }

    #[test]
    fn packets_are_counted_in_windows_only() {
        let (word, mut meter) = (AtomicU32::new(0), CoreMeter::default());
        let turn = |switch: Switch| word.store(switch.word(), Ordering::Relaxed);
        meter.begin(&word, &counters(100));
        assert_eq!(meter.metered(&counters(100)).packets, [0; 2]);
        turn(Switch::on(1, 0, Ticks::here()));
        meter.begin(&word, &counters(200));
        turn(Switch::OFF);
        meter.begin(&word, &counters(210));
        turn(Switch::on(1, 1, Ticks::here()));
        meter.begin(&word, &counters(300));
        let metered = meter.metered(&counters(305));
        assert_eq!((metered.generation, metered.packets), (1, [15, 30]));
        turn(Switch::on(2, 0, Ticks::here()));
        meter.begin(&word, &counters(400));
        assert_eq!(meter.metered(&counters(401)).packets, [1, 2]);
    }

    #[test]
    fn a_round_that_found_nothing_is_idle() {
        let word = AtomicU32::new(Switch::on(1, 0, Ticks::here()).word());
        let mut meter = CoreMeter::default();
        for _ in 0..3 {
            meter.begin(&word, &counters(0));
            meter.enter(Part::PortReceive);
            meter.enter(Part::Timers);
            meter.wakes();
            meter.rest();
            meter.idle();
        }
        let spent = meter.metered(&counters(0)).spent;
        assert_eq!((spent[POLLING].times, spent[Part::Timers as usize]), (3, Spent::default()));
        assert!(spent[POLLING].ticks > 0);
    }
}
