//! Whose work the control thread does next, in time. A user has work when one of its control lines does: a message that can be read, or a
//! report that is being made. The line that is served next is one of the user that has had the least time, so a user that has had more than
//! another waits until that one has had as much, or has no work left. Within a user its lines take turns.
//!
//! Time that was not asked for is not saved up: a user that begins to have work has had at least as much as the one served last. When no
//! user has work all begin anew. This type reads no clock.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// Users kept in memory that have no work, beside those that have some.
const IDLE_MOST: usize = 64;

/// All users with work, and the time that they have had.
#[derive(Debug, Default)]
pub struct Turns {
    users: HashMap<u32, User>,
    /// The users with work by time, then by the order in which they came.
    order: BTreeSet<(Duration, u64, u32)>,
    /// All lines with work.
    lines: HashSet<u32>,
    /// Time that the user served last had had.
    floor: Duration,
    next: u64,
}

#[derive(Debug, Default)]
struct User {
    had: Duration,
    /// Its place among users with the same time.
    since: u64,
    lines: VecDeque<u32>,
}

impl Turns {
    /// True when no line has work.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// A line of user `uid` has work. It takes its place behind the user's other lines, if it has none yet.
    pub fn add(&mut self, uid: u32, line: u32) {
        if !self.lines.insert(line) {
            return;
        }
        let user = self.users.entry(uid).or_default();
        user.lines.push_back(line);
        if user.lines.len() == 1 {
            user.had = user.had.max(self.floor);
            user.since = self.next;
            self.next += 1;
            self.order.insert((user.had, user.since, uid));
        }
    }

    /// Takes the line that is served next, and its user.
    pub fn next(&mut self) -> Option<(u32, u32)> {
        let Some((had, since, uid)) = self.order.pop_first() else {
            self.begin_anew();
            return None;
        };
        self.floor = had;
        let user = self.users.get_mut(&uid)?;
        let line = user.lines.pop_front()?;
        self.lines.remove(&line);
        if !user.lines.is_empty() {
            self.order.insert((had, since, uid));
        }
        Some((uid, line))
    }

    /// Work for that user has taken so long.
    pub fn spent(&mut self, uid: u32, time: Duration) {
        let floor = self.floor;
        let user = self.users.entry(uid).or_default();
        let has_work = self.order.remove(&(user.had, user.since, uid));
        user.had = user.had.max(floor) + time;
        if has_work {
            user.since = self.next;
            self.next += 1;
            self.order.insert((user.had, user.since, uid));
        }
        if self.users.len() > self.order.len() + IDLE_MOST {
            self.users.retain(|_, user| !user.lines.is_empty() || user.had > floor);
        }
    }

    fn begin_anew(&mut self) {
        self.users.clear();
        self.floor = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Serves `count` lines, each for as long as `cost` says of its user. Returns the users in order.
    fn serve(turns: &mut Turns, count: usize, cost: impl Fn(u32) -> Duration) -> Vec<u32> {
        let mut served = Vec::new();
        for _ in 0..count {
            let Some((uid, line)) = turns.next() else { break };
            turns.spent(uid, cost(uid));
            // It has more work at once.
            turns.add(uid, line);
            served.push(uid);
        }
        served
    }

    #[test]
    fn users_get_the_same_time_whatever_their_lines_are_and_their_requests_take() {
        let mut turns = Turns::default();
        (0..200).for_each(|line| turns.add(7, line));
        turns.add(8, 1000);
        turns.add(9, 1001);
        let cost = |uid| if uid == 8 { MS } else { MS / 10 };
        let served = serve(&mut turns, 2_100, cost);
        let of = |uid| served.iter().filter(|served| **served == uid).count();
        assert_eq!([of(7), of(8), of(9)], [1000, 100, 1000]);
    }

    #[test]
    fn a_user_that_comes_is_served_after_the_present_request() {
        let mut turns = Turns::default();
        (0..200).for_each(|line| turns.add(7, line));
        serve(&mut turns, 500, |_| MS);
        turns.add(8, 1000);
        assert_eq!(
            serve(&mut turns, 1, |_| MS / 100),
            [8],
            "it has had less time than any other since it came"
        );
    }

    #[test]
    fn time_is_not_saved_up() {
        let mut turns = Turns::default();
        turns.add(7, 1);
        turns.add(8, 2);
        assert_eq!(turns.next(), Some((7, 1)));
        turns.add(7, 1);
        // User 8 has no more work for a while, and 7 goes on alone.
        assert_eq!(turns.next(), Some((8, 2)));
        serve(&mut turns, 1000, |_| MS);
        turns.add(8, 2);
        let served = serve(&mut turns, 100, |_| MS);
        assert_eq!(served.iter().filter(|uid| **uid == 8).count(), 50);
    }

    #[test]
    fn who_has_had_much_waits_until_the_others_have_had_as_much() {
        let mut turns = Turns::default();
        turns.add(7, 1);
        turns.add(8, 2);
        let (uid, line) = turns.next().unwrap();
        turns.spent(uid, 20 * MS);
        turns.add(uid, line);
        let served = serve(&mut turns, 20, |_| MS);
        assert!(served.iter().all(|served| *served == 8), "{served:?}");
        assert!(serve(&mut turns, 2, |_| MS).contains(&7));
    }

    #[test]
    fn lines_of_a_user_take_turns_and_have_one_place_each() {
        let mut turns = Turns::default();
        for line in [1, 2, 1, 3, 2] {
            turns.add(7, line);
        }
        assert_eq!([turns.next(), turns.next(), turns.next()], [Some((7, 1)), Some((7, 2)), Some((7, 3))]);
        assert!(turns.is_empty() && turns.next().is_none());
    }

    #[test]
    fn users_without_work_are_forgotten() {
        let mut turns = Turns::default();
        // Another user always has work, so that the time goes on.
        turns.add(7, 0);
        for uid in 100..10_000 {
            turns.add(uid, uid);
            for _ in 0..2 {
                let (served, line) = turns.next().unwrap();
                turns.spent(served, MS);
                if served == 7 {
                    turns.add(7, line);
                }
            }
            assert!(turns.users.len() <= 2 * IDLE_MOST, "{}", turns.users.len());
        }
    }
}
