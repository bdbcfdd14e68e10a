//! The state machine under loads in simulated time.

use super::*;

/// A machine with processors, a load in thousandths of a core, and a scaler that follows it.
struct World {
    scaler: Scaler,
    now: Instant,
    busy: [Duration; 14],
    work: u64,
    /// Processors, and thousandths of them that other programs use.
    processors: u8,
    others: u64,
    pressure: u32,
    /// Time that the groups of a change take to move, and when the move under way is over.
    move_time: Duration,
    moving_until: Instant,
    /// So many cores do useful work: further cores are busy and bring nothing.
    useful: u64,
    /// Each change: milliseconds since the beginning, cores, reason.
    changes: Vec<(u64, u8, Why)>,
}

impl World {
    fn new(processors: u8) -> Self {
        Self {
            scaler: Scaler::new(14),
            now: Instant::from_ns(1_000_000_000),
            busy: [Duration::ZERO; 14],
            work: 0,
            processors,
            others: 0,
            pressure: 0,
            move_time: Duration::from_ms(5),
            moving_until: Instant::ZERO,
            useful: 14,
            changes: Vec::new(),
        }
    }

    fn serving(&self) -> u8 {
        self.scaler.serving()
    }

    /// One window under a load of so many thousandths of a core.
    fn window(&mut self, load: u64) {
        self.now = self.now.plus(WINDOW);
        let cores = u64::from(self.serving());
        // Cores take from other programs what they need.
        let done = load.min(cores * 1_000);
        for busy in &mut self.busy[..cores as usize] {
            *busy = busy.plus(Duration::from_ns(WINDOW.as_ns() * done / cores / 1_000));
        }
        self.work += done.min(self.useful * 1_000) / 10;
        let is_moving = self.now < self.moving_until;
        let spare = u64::from(self.processors) * 1_000;
        let sample = Sample {
            now: self.now,
            busy: &self.busy,
            work: self.work,
            spare: spare.saturating_sub(done + self.others) as u32,
            pressure: self.pressure,
            allowed: self.processors,
            is_moving,
        };
        if let Some(Change { cores, why }) = self.scaler.tick(&sample) {
            assert!(!is_moving && (1..=self.processors).contains(&cores) && cores == self.serving());
            self.moving_until = self.now.plus(self.move_time);
            let ms = self.now.since(Instant::from_ns(1_000_000_000)).as_ms();
            self.changes.push((ms, cores, why));
        }
    }

    fn run(&mut self, ms: u64, load: u64) {
        (0..ms / 10).for_each(|_| self.window(load));
    }
}

#[test]
fn cores_follow_the_load_up_and_down() {
    let mut w = World::new(8);
    w.run(1_000, 500);
    assert_eq!(w.changes, []);
    w.run(1_000, 1_600);
    let [(added, 2, Why::Busy)] = w.changes[..] else { panic!("{:?}", w.changes) };
    assert!(added - 1_000 <= 200, "added after {} ms", added - 1_000);
    w.run(1_000, 400);
    let [_, (removed, 1, Why::Idle)] = w.changes[..] else { panic!("{:?}", w.changes) };
    assert!(removed - 2_000 <= 500, "removed after {} ms", removed - 2_000);
    assert!(!w.scaler.must_watch(), "an idle service is not woken");
    w.run(3_000, 6_700);
    assert_eq!(w.serving(), 7, "{:?}", w.changes);
    w.run(5_000, 0);
    assert_eq!(w.serving(), 1);
    assert!(w.changes.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 100), "{:?}", w.changes);
}

#[test]
fn a_load_between_the_thresholds_changes_nothing() {
    for (cores, load) in [(1, 750), (2, 800), (2, 1_700), (3, 1_800), (3, 2_700)] {
        let mut w = World::new(8);
        w.scaler.set(cores);
        w.run(10_000, load);
        assert_eq!(w.changes, [], "{cores} cores, load {load}");
    }
}

#[test]
fn programs_that_need_all_processors_keep_the_service_at_one_core() {
    let mut w = World::new(2);
    w.others = 1_000;
    w.run(60_000, 1_000);
    assert_eq!((w.changes.len(), w.scaler.hold()), (0, Some(Hold::NoSpare)));
    // The same by pressure alone: the processors are idle now and then, but programs wait for them.
    let mut w = World::new(4);
    w.pressure = 60;
    w.run(60_000, 1_000);
    assert_eq!((w.changes.len(), w.scaler.hold()), (0, Some(Hold::Pressure)));
}

#[test]
fn one_processor_is_one_core() {
    let mut w = World::new(1);
    w.run(10_000, 5_000);
    assert_eq!((w.changes.len(), w.scaler.hold()), (0, Some(Hold::Most)));
}

#[test]
fn an_addition_that_brings_nothing_is_taken_back_and_tried_again_ever_later() {
    let mut w = World::new(4);
    w.useful = 1;
    w.run(300_000, 5_000);
    let added: Vec<u64> = w.changes.iter().filter(|c| c.2 == Why::Busy).map(|c| c.0).collect();
    let back = w.changes.iter().filter(|c| c.2 == Why::BroughtNothing).count();
    assert_eq!((back, w.serving(), w.scaler.hold()), (added.len(), 1, Some(Hold::Later)));
    // After 1, 2, 4, 8, 16, 32, 60, 60 .. s.
    let pauses: Vec<u64> = added.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    // Once it brings something, it stays, and the next mistake is forgiven as soon as the first.
    w.useful = 14;
    w.run(70_000, 2_600);
    assert_eq!(w.serving(), 3);
    w.useful = 3;
    w.changes.clear();
    w.run(4_000, 8_000);
    let added: Vec<u64> = w.changes.iter().filter(|c| c.2 == Why::Busy).map(|c| c.0).collect();
    assert!((1_000..2_000).contains(&(added[1] - added[0])), "{:?}", w.changes);
}

#[test]
fn a_load_that_flaps_takes_no_core_along_each_time() {
    let mut w = World::new(8);
    for _ in 0..300 {
        w.run(100, 1_900);
        w.run(300, 100);
    }
    // In two minutes a core would come and go 300 times.
    assert!(w.changes.len() < 20, "{:?}", w.changes);
}

#[test]
fn spikes_of_two_windows_and_gaps_of_ten_change_nothing() {
    let mut w = World::new(8);
    for _ in 0..200 {
        w.run(20, 1_500);
        w.run(100, 300);
    }
    assert_eq!(w.changes, []);
    w.scaler.set(2);
    for _ in 0..200 {
        w.run(100, 100);
        w.run(30, 1_500);
    }
    assert_eq!(w.changes, []);
}

#[test]
fn a_core_that_stops_for_a_second_holds_up_one_change() {
    let mut w = World::new(4);
    w.move_time = Duration::from_secs(1);
    w.run(900, 1_700);
    assert_eq!(w.changes.len(), 1, "its groups are still moving");
    w.run(2_000, 1_700);
    assert_eq!((w.changes.len(), w.serving()), (1, 2), "{:?}", w.changes);
    // The whole service is stopped: time that was not measured does not count as idle.
    w.now = w.now.plus(Duration::from_secs(30));
    w.run(500, 1_700);
    assert_eq!((w.changes.len(), w.serving()), (1, 2), "{:?}", w.changes);
}

#[test]
fn processors_that_are_taken_away_end_their_cores_at_once() {
    let mut w = World::new(8);
    w.run(3_000, 5_500);
    assert_eq!(w.serving(), 6);
    (w.processors, w.changes) = (2, Vec::new());
    w.run(10, 5_500);
    assert!(matches!(w.changes[..], [(_, 2, Why::FewerProcessors)]), "{:?}", w.changes);
    w.run(3_000, 5_500);
    assert_eq!((w.serving(), w.scaler.hold()), (2, Some(Hold::Most)));
    w.processors = 8;
    w.run(3_000, 5_500);
    assert_eq!(w.serving(), 6, "{:?}", w.changes);
}

#[test]
fn a_core_that_is_half_needed_goes_when_other_programs_wait() {
    let mut w = World::new(4);
    w.scaler.set(2);
    w.run(2_000, 900);
    assert_eq!(w.changes, []);
    w.pressure = 50;
    w.run(100, 900);
    assert!(matches!(w.changes[..], [(_, 1, Why::Pressure)]), "{:?}", w.changes);
    w.run(10_000, 900);
    assert_eq!(w.changes.len(), 1);
    // Cores that are busy stay.
    w.scaler.set(3);
    w.run(2_000, 2_500);
    assert_eq!(w.changes.len(), 1);
}
