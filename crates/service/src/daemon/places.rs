//! How many reports are made for a user at once. A report takes a place from its beginning until its answer has been read: an answer holds
//! memory of the service until then. Further reports of the user wait in turn; other users' do not.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Most reports of one user that are being made, or lie unread.
const MOST: usize = 4;
/// An answer that has not been read for this time gives its place up to a report that waits, and its line is closed.
const UNREAD: Duration = Duration::from_secs(2);

/// The places of all users.
#[derive(Debug, Default)]
pub struct Places {
    users: HashMap<u32, User>,
}

#[derive(Debug, Default)]
struct User {
    /// The lines with a place; for an unread answer, since when it has been so.
    taken: Vec<(u32, Option<Instant>)>,
    waiting: VecDeque<u32>,
}

impl Places {
    /// A line of user `uid` asks for a report. True: it has a place; else it waits for one.
    pub fn ask(&mut self, uid: u32, line: u32) -> bool {
        let user = self.users.entry(uid).or_default();
        let has_room = user.taken.len() < MOST;
        match has_room {
            true => user.taken.push((line, None)),
            false => user.waiting.push_back(line),
        }
        has_room
    }

    /// The answer to that line has been sent.
    pub fn sent(&mut self, uid: u32, line: u32, now: Instant) {
        let taken =
            self.users.get_mut(&uid).and_then(|user| user.taken.iter_mut().find(|(id, _)| *id == line));
        taken.into_iter().for_each(|(_, since)| *since = Some(now));
    }

    /// The line needs its place no more: its answer was read, or it is closed. Returns the line that has the place now.
    pub fn leave(&mut self, uid: u32, line: u32) -> Option<u32> {
        let user = self.users.get_mut(&uid)?;
        user.waiting.retain(|id| *id != line);
        user.taken.retain(|(id, _)| *id != line);
        let next = if user.taken.len() < MOST { user.waiting.pop_front() } else { None };
        user.taken.extend(next.map(|line| (line, None)));
        if user.taken.is_empty() {
            self.users.remove(&uid);
        }
        next
    }

    /// When the first unread answer must give its place up; `None`: no report waits for one.
    pub fn due(&self) -> Option<Instant> {
        let waited_for = self.users.values().filter(|user| !user.waiting.is_empty());
        let since = waited_for.flat_map(|user| user.taken.iter().filter_map(|(_, since)| *since));
        since.min().map(|since| since + UNREAD)
    }

    /// The lines with answers that must give their places up.
    pub fn overdue(&self, now: Instant) -> Vec<u32> {
        let waited_for = self.users.values().filter(|user| !user.waiting.is_empty());
        let taken = waited_for.flat_map(|user| &user.taken);
        taken
            .filter(|(_, since)| since.is_some_and(|since| since + UNREAD <= now))
            .map(|(id, _)| *id)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_few_places_and_other_users_have_their_own() {
        let mut places = Places::default();
        let have: Vec<bool> = (0..64).map(|line| places.ask(7, line)).collect();
        assert_eq!(have.iter().filter(|has| **has).count(), MOST);
        assert!(places.ask(0, 100), "another user");
        assert_eq!(places.leave(7, 2), Some(MOST as u32), "the first that waits");
        assert_eq!(places.leave(7, 40), None, "one that waits is closed");
        for line in (0..64).filter(|line| ![2, 40].contains(line)) {
            places.leave(7, line);
        }
        assert!(places.users.len() == 1 && places.due().is_none());
    }

    #[test]
    fn an_unread_answer_keeps_its_place_unless_a_report_waits_for_it() {
        let (mut places, now) = (Places::default(), Instant::now());
        for line in 0..MOST as u32 {
            places.ask(7, line);
            places.sent(7, line, now);
        }
        assert_eq!((places.due(), places.overdue(now + UNREAD)), (None, vec![]));
        assert!(!places.ask(7, 50));
        assert_eq!((places.due(), places.overdue(now).len()), (Some(now + UNREAD), 0));
        assert_eq!(places.overdue(now + UNREAD).len(), MOST);
        assert_eq!(places.leave(7, 0), Some(50));
        assert_eq!(places.due(), None);
    }
}
