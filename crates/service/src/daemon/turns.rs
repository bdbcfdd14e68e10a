//! Whose work the control thread does next, in time. A user has work when one of its control lines does: a message that can be read, or a
//! report that is being made. The line that is served next is one of the user that has had the least time, so a user that has had more than
//! another waits until that one has had as much, or has no work left. Within a user its lines take turns.
//!
//! Messages go before pieces, which are parts of reports and the ends of lines. Pieces have one turn in four: a user that asks for reports
//! under many user numbers delays a message by few, and a hello does not wait for the ends of a hundred other lines of its user.
//!
//! Time that was not asked for is not saved up: a user that begins to have work has had at least as much as the one served last. When no
//! user has work all begin anew. This type reads no clock.

use crate::registry::registration::User;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// Users kept in memory that have no work, beside those that have some.
const IDLE_MOST: usize = 64;

/// Of so many turns one is for a piece of a report, while there are messages, too.
const PIECE_EACH: u32 = 4;

/// A kind of work, which decides the order that it waits in.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Kind {
    /// An event of a line.
    #[default]
    Message,
    /// A piece of a report, or the end of a line.
    Piece,
}

/// The work of all lines, in the order in which it will be done.
#[derive(Debug, Default)]
pub struct Turns {
    messages: Order,
    pieces: Order,
    /// Turns since the last one for a piece.
    since_piece: u32,
    /// What was served last.
    last: Kind,
}

impl Turns {
    /// True when no line has work.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.pieces.is_empty()
    }

    /// A line of that user has work. It takes its place behind the user's other lines, if it has none yet.
    pub fn add(&mut self, user: User, line: u32, kind: Kind) {
        match kind {
            Kind::Message => self.messages.add(user, line),
            Kind::Piece => self.pieces.add(user, line),
        }
    }

    /// Takes the line that is served next, and its user.
    pub fn next(&mut self) -> Option<(User, u32)> {
        let is_pieces_turn = self.since_piece + 1 >= PIECE_EACH;
        self.last = match (self.messages.is_empty(), self.pieces.is_empty()) {
            (true, false) => Kind::Piece,
            (false, false) if is_pieces_turn => Kind::Piece,
            _ => Kind::Message,
        };
        match self.last {
            Kind::Message => {
                self.since_piece = self.since_piece.saturating_add(1);
                self.messages.next()
            }
            Kind::Piece => {
                self.since_piece = 0;
                self.pieces.next()
            }
        }
    }

    /// The work that was taken last, for that user, has taken so long.
    pub fn spent(&mut self, user: User, time: Duration) {
        match self.last {
            Kind::Message => self.messages.spent(user, time),
            Kind::Piece => self.pieces.spent(user, time),
        }
    }

    /// Messages of that user have taken so long.
    pub fn spent_for_messages(&mut self, user: User, time: Duration) {
        self.messages.spent(user, time);
    }
}

/// All users with work of one kind, and the time that they have had.
#[derive(Debug, Default)]
struct Order {
    users: HashMap<User, Work>,
    /// The users with work by time, then by the order in which they came.
    order: BTreeSet<(Duration, u64, User)>,
    /// All lines with work.
    lines: HashSet<u32>,
    /// Time that the user served last had had.
    floor: Duration,
    next: u64,
}

#[derive(Debug, Default)]
struct Work {
    had: Duration,
    /// Its place among users with the same time.
    since: u64,
    lines: VecDeque<u32>,
}

impl Order {
    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The line takes its place behind the user's other lines, if it has none yet.
    fn add(&mut self, user: User, line: u32) {
        if !self.lines.insert(line) {
            return;
        }
        let work = self.users.entry(user).or_default();
        work.lines.push_back(line);
        if work.lines.len() == 1 {
            work.had = work.had.max(self.floor);
            work.since = self.next;
            self.next += 1;
            self.order.insert((work.had, work.since, user));
        }
    }

    /// Takes the line that is served next, and its user.
    fn next(&mut self) -> Option<(User, u32)> {
        let Some((had, since, user)) = self.order.pop_first() else {
            self.begin_anew();
            return None;
        };
        self.floor = had;
        let work = self.users.get_mut(&user)?;
        let line = work.lines.pop_front()?;
        self.lines.remove(&line);
        if !work.lines.is_empty() {
            self.order.insert((had, since, user));
        }
        Some((user, line))
    }

    /// Work for that user has taken so long.
    fn spent(&mut self, user: User, time: Duration) {
        let floor = self.floor;
        let work = self.users.entry(user).or_default();
        let has_work = self.order.remove(&(work.had, work.since, user));
        work.had = work.had.max(floor) + time;
        if has_work {
            work.since = self.next;
            self.next += 1;
            self.order.insert((work.had, work.since, user));
        }
        if self.users.len() > self.order.len() + IDLE_MOST {
            self.users.retain(|_, work| !work.lines.is_empty() || work.had > floor);
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

    const fn user(uid: u32) -> User {
        User { uid, is_administrator: false }
    }

    const MS: Duration = Duration::from_millis(1);

    /// Serves `count` lines, each for as long as `cost` says of its user. Returns the users in order.
    fn serve(turns: &mut Order, count: usize, cost: impl Fn(u32) -> Duration) -> Vec<u32> {
        let mut served = Vec::new();
        for _ in 0..count {
            let Some((whose, line)) = turns.next() else { break };
            turns.spent(whose, cost(whose.uid));
            // It has more work at once.
            turns.add(whose, line);
            served.push(whose.uid);
        }
        served
    }

    #[test]
    fn users_get_the_same_time_whatever_their_lines_are_and_their_requests_take() {
        let mut turns = Order::default();
        (0..200).for_each(|line| turns.add(user(7), line));
        turns.add(user(8), 1000);
        turns.add(user(9), 1001);
        let cost = |uid| if uid == 8 { MS } else { MS / 10 };
        let served = serve(&mut turns, 2_100, cost);
        let of = |uid| served.iter().filter(|served| **served == uid).count();
        assert_eq!([of(7), of(8), of(9)], [1000, 100, 1000]);
    }

    #[test]
    fn a_user_that_comes_is_served_after_the_present_request() {
        let mut turns = Order::default();
        (0..200).for_each(|line| turns.add(user(7), line));
        serve(&mut turns, 500, |_| MS);
        turns.add(user(8), 1000);
        assert_eq!(
            serve(&mut turns, 1, |_| MS / 100),
            [8],
            "it has had less time than any other since it came"
        );
    }

    #[test]
    fn time_is_not_saved_up() {
        let mut turns = Order::default();
        turns.add(user(7), 1);
        turns.add(user(8), 2);
        assert_eq!(turns.next(), Some((user(7), 1)));
        turns.add(user(7), 1);
        // User 8 has no more work for a while, and 7 goes on alone.
        assert_eq!(turns.next(), Some((user(8), 2)));
        serve(&mut turns, 1000, |_| MS);
        turns.add(user(8), 2);
        let served = serve(&mut turns, 100, |_| MS);
        assert_eq!(served.iter().filter(|uid| **uid == 8).count(), 50);
    }

    #[test]
    fn who_has_had_much_waits_until_the_others_have_had_as_much() {
        let mut turns = Order::default();
        turns.add(user(7), 1);
        turns.add(user(8), 2);
        let (uid, line) = turns.next().unwrap();
        turns.spent(uid, 20 * MS);
        turns.add(uid, line);
        let served = serve(&mut turns, 20, |_| MS);
        assert!(served.iter().all(|served| *served == 8), "{served:?}");
        assert!(serve(&mut turns, 2, |_| MS).contains(&7));
    }

    #[test]
    fn lines_of_a_user_take_turns_and_have_one_place_each() {
        let mut turns = Order::default();
        for line in [1, 2, 1, 3, 2] {
            turns.add(user(7), line);
        }
        assert_eq!(
            [turns.next(), turns.next(), turns.next()],
            [Some((user(7), 1)), Some((user(7), 2)), Some((user(7), 3))]
        );
        assert!(turns.is_empty() && turns.next().is_none());
    }

    #[test]
    fn users_without_work_are_forgotten() {
        let mut turns = Order::default();
        // Another user always has work, so that the time goes on.
        turns.add(user(7), 0);
        for uid in 100..10_000 {
            turns.add(user(uid), uid);
            for _ in 0..2 {
                let (served, line) = turns.next().unwrap();
                turns.spent(served, MS);
                if served == user(7) {
                    turns.add(user(7), line);
                }
            }
            assert!(turns.users.len() <= 2 * IDLE_MOST, "{}", turns.users.len());
        }
    }

    #[test]
    fn messages_go_before_pieces_of_reports_which_have_a_share() {
        let mut turns = Turns::default();
        (0..100).for_each(|n| turns.add(user(1000 + n), n, Kind::Piece));
        assert!(turns.next().is_some_and(|(_, line)| line < 100));
        turns.add(user(7), 500, Kind::Message);
        assert_eq!(turns.next(), Some((user(7), 500)), "a message that comes is next");
        (0..40).for_each(|n| turns.add(user(7), 501 + n, Kind::Message));
        let served: Vec<u32> = (0..40).filter_map(|_| turns.next()).map(|(_, line)| line).collect();
        assert_eq!(served.iter().filter(|line| **line < 100).count(), 10, "one in four");
    }

    #[test]
    fn root_of_a_container_has_turns_of_its_own() {
        let mut turns = Turns::default();
        let host = User { uid: 0, is_administrator: true };
        (0..200).for_each(|line| turns.add(user(0), line, Kind::Message));
        for _ in 0..100 {
            let (whose, _) = turns.next().unwrap();
            turns.spent(whose, MS);
        }
        turns.add(host, 1000, Kind::Message);
        assert_eq!(turns.next(), Some((host, 1000)));
    }
}
