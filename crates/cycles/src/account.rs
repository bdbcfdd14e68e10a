//! The account of one thread's time, in its own memory.

use crate::switch::Switch;

/// Time spent in one section.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Spent {
    /// Ticks of the counter.
    pub ticks: u64,
    /// Number of times that the section was entered.
    pub times: u64,
}

/// The time that a thread spends in each of `N` sections.
#[derive(Clone, Debug)]
pub struct Account<const N: usize> {
    switch: Switch,
    /// Generation of the counts in `spent`.
    generation: u32,
    /// Value of the counter at the last change of section.
    at: u64,
    section: usize,
    spent: [Spent; N],
    /// Copy of `spent` at the last mark.
    marked: [Spent; N],
}

impl<const N: usize> Default for Account<N> {
    fn default() -> Self {
        let spent = [Spent::default(); N];
        Self { switch: Switch::OFF, generation: 0, at: 0, section: 0, spent, marked: spent }
    }
}

impl<const N: usize> Account<N> {
    /// Follows a change of the switch. True when it has changed: then the thread is in `section` now.
    #[inline]
    pub fn follow(&mut self, switch: Switch, section: usize) -> bool {
        let is_turned = switch != self.switch;
        if is_turned {
            self.turn(switch, section);
        }
        is_turned
    }

    #[cold]
    #[inline(never)]
    fn turn(&mut self, switch: Switch, section: usize) {
        if switch.is_on() && switch.generation() != self.generation {
            (self.spent, self.generation) = ([Spent::default(); N], switch.generation());
        }
        self.marked = self.spent;
        (self.switch, self.section) = (switch, section.min(N - 1));
        // Time before this moment, in another window or in none, is not charged to any section.
        self.at = switch.ticks().now();
    }

    /// True when time is counted.
    #[must_use]
    #[inline]
    pub fn is_on(&self) -> bool {
        self.switch.is_on()
    }

    /// The thread enters `section`.
    #[inline]
    pub fn enter(&mut self, section: usize) {
        if self.is_on() {
            self.charge();
            self.section = section.min(N - 1);
            self.spent[self.section].times += 1;
        }
    }

    #[inline]
    fn charge(&mut self) {
        let now = self.switch.ticks().now();
        // If the counter went back nothing is charged.
        self.spent[self.section].ticks += now.saturating_sub(self.at);
        self.at = now;
    }

    /// The thread enters `section`; sets a mark, because the work from here on may turn out to be idle polling.
    #[inline]
    pub fn mark(&mut self, section: usize) {
        if self.is_on() {
            self.enter(section);
            self.marked = self.spent;
        }
    }

    /// Charges all time since the mark to `section`, which the thread stays in: the work was in vain.
    #[inline]
    pub fn redeem(&mut self, section: usize) {
        if self.is_on() {
            self.charge();
            let idle = self.since_mark();
            self.spent = self.marked;
            self.section = section.min(N - 1);
            self.spent[self.section].ticks += idle;
            self.spent[self.section].times += 1;
        }
    }

    fn since_mark(&self) -> u64 {
        self.spent.iter().zip(&self.marked).map(|(now, then)| now.ticks - then.ticks).sum()
    }

    /// The generation counted now or last, and the time spent in it up to this moment.
    pub fn spent(&mut self) -> (u32, [Spent; N]) {
        if self.is_on() {
            self.charge();
        }
        (self.generation, self.spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ticks;

    fn on(window: u16) -> Switch {
        Switch::on(1, window, Ticks::here())
    }

    fn total<const N: usize>(account: &mut Account<N>) -> u64 {
        account.spent().1.iter().map(|spent| spent.ticks).sum()
    }

    fn work(ticks: u64) {
        let start = Ticks::here().now();
        while Ticks::here().now() - start < ticks {}
    }

    #[test]
    fn sections_partition_the_time_of_a_thread() {
        let mut account = Account::<4>::default();
        account.follow(on(0), 0);
        let start = Ticks::here().now();
        for i in 0..1000 {
            account.enter(i % 4);
            work(1000 * (i as u64 % 4 + 1));
        }
        let sum = total(&mut account);
        let elapsed = Ticks::here().now() - start;
        // Nothing is counted twice or lost; the account was switched on a little before `start`, and read a little before `elapsed`.
        assert!(sum.abs_diff(elapsed) < elapsed / 100 + 100_000, "{sum} of {elapsed}");
        let (_, spent) = account.spent();
        assert!(spent.iter().all(|spent| spent.times == 250), "{spent:?}");
        assert!(spent.iter().zip(1..).all(|(spent, n)| spent.ticks >= 250_000 * n), "{spent:?}");
    }

    #[test]
    fn a_round_for_nothing_is_idle_as_a_whole() {
        let mut account = Account::<3>::default();
        account.follow(on(0), 0);
        account.enter(1);
        work(50_000);
        account.mark(0);
        let before = account.spent().1;
        work(50_000);
        account.enter(1);
        account.redeem(2);
        let (_, spent) = account.spent();
        assert_eq!((spent[0].times, spent[1].times, spent[2].times), (1, 1, 1));
        assert!(spent[0].ticks <= before[0].ticks, "{before:?} {spent:?}");
        assert!(spent[2].ticks >= 50_000, "{spent:?}");
    }

    #[test]
    fn what_lies_between_windows_is_not_counted_and_a_generation_begins_at_nothing() {
        let mut account = Account::<2>::default();
        assert!(!account.follow(Switch::OFF, 0));
        account.enter(1);
        assert_eq!(total(&mut account), 0);
        assert!(account.follow(on(0), 0));
        work(10_000);
        account.enter(1);
        assert!(account.follow(Switch::OFF, 0));
        let counted = total(&mut account);
        assert!(counted >= 10_000);
        work(10_000_000);
        account.enter(1);
        assert!(account.follow(on(1), 0));
        assert!(total(&mut account) < counted + 10_000_000);
        assert!(account.follow(Switch::on(2, 0, Ticks::here()), 0));
        assert!(total(&mut account) < counted + 10_000_000);
        assert_eq!((account.spent().0, account.spent().1[1].times), (2, 0));
    }
}
