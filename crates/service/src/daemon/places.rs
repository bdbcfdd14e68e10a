//! How many reports are made at once, of one user and of all. A report takes a place from its beginning until its answer has been read. Further ones
//! wait: users in turn, each one's own in order. Administrators take no places of others'.
//!
//! The text of a report lies in a memfd, which the asking process may keep. So the service keeps it, too, and has a helper empty it: when the line is
//! closed or asks anew, and else after a pause. Of one user there is a bounded number of bytes that were not emptied yet; one report is always
//! allowed.

use crate::registry::registration::User;
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most reports of one user that are being made, or lie unread.
const MOST: usize = 4;
/// The same of all users that do not administer the service.
const ALL_MOST: usize = 16;
/// An answer that has not been read for this time gives its place up to a report that waits, and its line is closed.
const UNREAD: Duration = Duration::from_secs(2);
/// A report is emptied at the latest after this time. A tool reads it at once.
const KEPT: Duration = Duration::from_secs(10);
/// A user with so many bytes in reports that were not emptied gets no other.
const BYTES_MOST: u64 = 64 << 20;

/// A report whose text was not emptied yet.
#[derive(Debug)]
pub struct Text {
    /// The memfd, which the asking process has, too.
    pub memfd: Arc<OwnedFd>,
    /// Length of the text, bytes.
    pub bytes: u64,
}

/// The places of all users.
#[derive(Debug, Default)]
pub struct Places {
    users: HashMap<User, Its>,
    /// Users with reports that wait; the next to get a place is first.
    turns: VecDeque<User>,
    /// Places of users that are no administrators.
    taken: usize,
    /// The texts by line, and when they are to be emptied; `None`: a helper writes it.
    texts: HashMap<u32, (Text, Option<Instant>)>,
}

#[derive(Debug, Default)]
struct Its {
    /// The lines with a place; for an unread answer, since when it has been so.
    taken: Vec<(u32, Option<Instant>)>,
    waiting: VecDeque<u32>,
    /// Bytes of its reports that were not emptied yet.
    bytes: u64,
}

impl Its {
    fn is_idle(&self) -> bool {
        self.taken.is_empty() && self.waiting.is_empty() && self.bytes == 0
    }

    fn has_room(&self) -> bool {
        self.taken.len() < MOST && self.bytes < BYTES_MOST
    }
}

impl Places {
    /// A line of a user asks for a report. It waits for a place: see [`begin`](Self::begin).
    pub fn ask(&mut self, user: User, line: u32) {
        let its = self.users.entry(user).or_default();
        its.waiting.push_back(line);
        if its.waiting.len() == 1 {
            self.turns.push_back(user);
        }
    }

    /// The next line that has a place now.
    pub fn begin(&mut self) -> Option<u32> {
        for _ in 0..self.turns.len() {
            let user = self.turns.pop_front()?;
            let is_full = !user.is_administrator && self.taken >= ALL_MOST;
            let Some(its) = self.users.get_mut(&user).filter(|its| !its.waiting.is_empty()) else { continue };
            let line = if is_full || !its.has_room() { None } else { its.waiting.pop_front() };
            if !its.waiting.is_empty() {
                self.turns.push_back(user);
            }
            if let Some(line) = line {
                its.taken.push((line, None));
                self.taken += usize::from(!user.is_administrator);
                return Some(line);
            }
        }
        None
    }

    /// The answer to that line has been sent.
    pub fn sent(&mut self, user: User, line: u32, now: Instant) {
        let taken =
            self.users.get_mut(&user).and_then(|its| its.taken.iter_mut().find(|(id, _)| *id == line));
        taken.into_iter().for_each(|(_, since)| *since = Some(now));
    }

    /// The memfd of the report that is written for a line.
    pub fn keep(&mut self, line: u32, memfd: Arc<OwnedFd>) {
        self.texts.insert(line, (Text { memfd, bytes: 0 }, None));
    }

    /// So many bytes were written and sent to that line: they are to be emptied later.
    pub fn wrote(&mut self, user: User, line: u32, bytes: u64, now: Instant) {
        if let Some((text, until)) = self.texts.get_mut(&line).filter(|(text, _)| text.bytes == 0) {
            (text.bytes, *until) = (bytes, Some(now + KEPT));
            self.users.entry(user).or_default().bytes += bytes;
        }
    }

    /// The line needs its place no more: its answer was read, or it is closed.
    pub fn leave(&mut self, user: User, line: u32) {
        let Some(its) = self.users.get_mut(&user) else { return };
        its.waiting.retain(|id| *id != line);
        if its.waiting.is_empty() {
            self.turns.retain(|other| *other != user);
        }
        let before = its.taken.len();
        its.taken.retain(|(id, _)| *id != line);
        if !user.is_administrator {
            self.taken -= before - its.taken.len();
        }
        self.forget(user);
    }

    /// Takes the text that was sent to that line, to have it emptied.
    pub fn take_text(&mut self, line: u32) -> Option<Text> {
        self.texts.remove(&line).map(|(text, _)| text)
    }

    /// The lines whose texts are to be emptied now.
    pub fn stale(&self, now: Instant) -> Vec<u32> {
        self.texts
            .iter()
            .filter(|(_, (_, until))| until.is_some_and(|until| until <= now))
            .map(|(line, _)| *line)
            .collect()
    }

    /// A text of that user was emptied.
    pub fn emptied(&mut self, user: User, bytes: u64) {
        if let Some(its) = self.users.get_mut(&user) {
            its.bytes = its.bytes.saturating_sub(bytes);
        }
        self.forget(user);
    }

    fn forget(&mut self, user: User) {
        if self.users.get(&user).is_some_and(Its::is_idle) {
            self.users.remove(&user);
        }
    }

    /// The unread answers for whose places a report waits, and since when they lie there.
    fn waited_for(&self) -> impl Iterator<Item = (u32, Instant)> {
        let is_any = !self.turns.is_empty();
        let is_full = self.taken >= ALL_MOST;
        let is_waited_for = move |user: &User, its: &Its| {
            !its.waiting.is_empty() || (is_any && is_full && !user.is_administrator)
        };
        let its = self.users.iter().filter(move |(user, its)| is_waited_for(user, its)).map(|(_, its)| its);
        its.flat_map(|its| its.taken.iter().filter_map(|(line, since)| Some((*line, (*since)?))))
    }

    /// When something is to be done: the first unread answer must give its place up, or a text is to be emptied.
    pub fn due(&self) -> Option<Instant> {
        let unread = self.waited_for().map(|(_, since)| since + UNREAD);
        unread.chain(self.texts.values().filter_map(|(_, until)| *until)).min()
    }

    /// The lines with answers that must give their places up.
    pub fn overdue(&self, now: Instant) -> Vec<u32> {
        self.waited_for().filter(|(_, since)| *since + UNREAD <= now).map(|(line, _)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::wakers::new_eventfd;

    const fn user(uid: u32) -> User {
        User { uid, is_administrator: false }
    }

    const ROOT: User = User { uid: 0, is_administrator: true };

    fn begin_all(places: &mut Places) -> Vec<u32> {
        std::iter::from_fn(|| places.begin()).collect()
    }

    #[test]
    fn a_user_has_few_places_and_other_users_have_their_own() {
        let mut places = Places::default();
        (0..64).for_each(|line| places.ask(user(7), line));
        assert_eq!(begin_all(&mut places), [0, 1, 2, 3]);
        places.ask(user(0), 100);
        places.ask(ROOT, 101);
        assert_eq!(begin_all(&mut places), [100, 101], "root of a container is another user");
        places.leave(user(7), 2);
        assert_eq!(begin_all(&mut places), [4], "the first that waits");
        places.leave(user(7), 40);
        assert_eq!(places.begin(), None, "one that waits is closed");
        for line in (0..64).filter(|line| ![2, 40].contains(line)) {
            places.leave(user(7), line);
        }
        places.leave(user(0), 100);
        assert!(places.users.len() == 1 && places.due().is_none() && places.taken == 0);
    }

    #[test]
    fn all_users_have_few_places_and_administrators_their_own() {
        let (mut places, now) = (Places::default(), Instant::now());
        for line in 0..200 {
            places.ask(user(1000 + line % 50), line);
        }
        let begun = begin_all(&mut places);
        assert_eq!(begun, (0..ALL_MOST as u32).collect::<Vec<_>>(), "users in turn");
        for line in 1000..1010 {
            places.ask(ROOT, line);
        }
        assert_eq!(begin_all(&mut places).len(), MOST);
        begun.iter().for_each(|line| places.sent(user(1000 + line), *line, now));
        assert_eq!(places.overdue(now + UNREAD).len(), ALL_MOST, "others wait for them");
        places.leave(user(1003), 3);
        assert_eq!(begin_all(&mut places), [16], "a user that had none yet");
    }

    #[test]
    fn an_unread_answer_keeps_its_place_unless_a_report_waits_for_it() {
        let (mut places, now) = (Places::default(), Instant::now());
        (0..MOST as u32).for_each(|line| places.ask(user(7), line));
        for line in begin_all(&mut places) {
            places.sent(user(7), line, now);
        }
        assert_eq!((places.due(), places.overdue(now + UNREAD)), (None, vec![]));
        places.ask(user(7), 50);
        assert_eq!(places.begin(), None);
        assert_eq!((places.due(), places.overdue(now).len()), (Some(now + UNREAD), 0));
        assert_eq!(places.overdue(now + UNREAD).len(), MOST);
        places.leave(user(7), 0);
        assert_eq!(begin_all(&mut places), [50]);
        assert_eq!(places.due(), None);
    }

    #[test]
    fn texts_that_were_not_emptied_bound_what_their_user_gets() {
        let (mut places, now) = (Places::default(), Instant::now());
        places.ask(user(7), 1);
        assert_eq!(begin_all(&mut places), [1], "one is always allowed");
        places.keep(1, new_eventfd().unwrap());
        assert!(places.stale(now + KEPT).is_empty(), "it is being written");
        places.wrote(user(7), 1, BYTES_MOST, now);
        places.leave(user(7), 1);
        places.ask(user(7), 2);
        places.ask(user(8), 3);
        assert_eq!(begin_all(&mut places), [3]);
        assert_eq!((places.stale(now).len(), places.due()), (0, Some(now + KEPT)));
        assert_eq!(places.stale(now + KEPT), [1]);
        let taken = places.take_text(1).unwrap();
        assert_eq!(places.begin(), None, "not yet");
        places.emptied(user(7), taken.bytes);
        assert_eq!(begin_all(&mut places), [2]);
    }
}
