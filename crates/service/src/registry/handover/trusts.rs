//! The table of trusts: connections that processes have left with the service, where each is, and which relay carries it on. Decides
//! nothing.

use crate::registry::memory::slot_key::SlotKey;
use crate::registry::process::fd_liveness::Alive;
use control::Left;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Shortest and longest pause between looks for descriptors that no process has open. A process that has let go is about to close its
/// descriptor, so the first pauses are short.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// A connection that the service may take from its slot and give to another process.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    /// `SO_COOKIE` of its descriptor; 0: no process has accepted it yet.
    pub cookie: u64,
    /// The slot where it is or was, and its socket block.
    pub left: Left,
    /// The results of `getsockname` and `getpeername`.
    pub ends: [SocketAddr; 2],
    /// The processes that own the regions of its socket block and of its slot.
    pub owners: [u32; 2],
    /// Family of the processes in `owners`.
    pub family: u32,
    /// Id of the relay that carries it on to a new holder; `None`: it is still in its slot.
    pub relay: Option<u32>,
}

impl Trust {
    fn place(&self) -> (SlotKey, u8) {
        (SlotKey::of_left(&self.left), self.left.side)
    }
}

/// Most trusts and listeners that one look takes, and most of them that the kernel is asked about: it answers for a set of sockets in about
/// 20 us, and they may lie in as many sets.
pub const LOOK_MOST: (usize, usize) = (512, 32);

/// The looks for descriptors that no process has open: a round takes all trusts and listeners, piece by piece.
#[derive(Debug, Default)]
struct Round {
    /// The trusts below this number have been looked at; `None`: no round is under way.
    from: Option<u64>,
    /// The listeners that are still to be looked at.
    listeners: Vec<u32>,
    /// When the next round begins; `None`: none is needed.
    at: Option<Instant>,
    /// When the last one ended.
    ended: Option<Instant>,
    /// Sockets were found that only other processes have: the next round is needed.
    has_left: bool,
}

/// All trusts by number, and by cookie.
#[derive(Debug)]
pub struct Trusts {
    all: BTreeMap<u64, Trust>,
    /// Number of the latest trust of each descriptor: a connection may be passed on again and again.
    by_cookie: HashMap<u64, u64>,
    /// Number of the trust of the connection in each slot, on that side.
    by_place: HashMap<(SlotKey, u8), u64>,
    /// Number of the trust that each relay carries on.
    by_relay: HashMap<u32, u64>,
    /// Number of trusts of each family.
    of_family: HashMap<u32, usize>,
    next: u64,
    /// Watches the connections' descriptors.
    pub alive: Alive,
    /// The next pause before a round; `None`: the longest.
    pause: Option<Duration>,
    round: Round,
    /// Set when a trust was removed: regions may not be needed any more.
    pub changed: bool,
}

impl Trusts {
    /// No trusts. `alive` is to watch their descriptors.
    pub fn new(alive: Alive) -> Self {
        Self {
            all: BTreeMap::new(),
            by_cookie: HashMap::new(),
            by_place: HashMap::new(),
            by_relay: HashMap::new(),
            of_family: HashMap::new(),
            next: 0,
            alive,
            pause: None,
            round: Round::default(),
            changed: false,
        }
    }

    /// True when there are no trusts.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All trusts with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Trust)> {
        self.all.iter().map(|(key, trust)| (*key, trust))
    }

    /// Processes that own regions which trusts still need.
    pub fn owners(&self) -> impl Iterator<Item = u32> {
        self.all.values().flat_map(|t| t.owners)
    }

    /// True when a trust belongs to that family.
    pub fn has_family(&self, family: u32) -> bool {
        self.of_family.contains_key(&family)
    }

    /// The latest trust of the descriptor with that cookie, and its number.
    pub fn find(&self, cookie: u64) -> Option<(u64, Trust)> {
        let key = self.by_cookie.get(&cookie)?;
        Some((*key, *self.all.get(key)?))
    }

    /// The trust that `relay` carries on, and its number.
    pub fn behind(&self, relay: u32) -> Option<(u64, Trust)> {
        let key = self.by_relay.get(&relay)?;
        Some((*key, *self.all.get(key)?))
    }

    /// Number of the trust of the connection in that slot, on that side.
    pub fn at(&self, slot: SlotKey, side: u8) -> Option<u64> {
        self.by_place.get(&(slot, side)).copied()
    }

    /// The trust with that number.
    pub fn get(&self, key: u64) -> Option<&Trust> {
        self.all.get(&key)
    }

    /// Adds a trust, which becomes the latest of its descriptor. Returns its number.
    pub fn add(&mut self, trust: Trust) -> u64 {
        self.next += 1;
        self.all.insert(self.next, trust);
        *self.of_family.entry(trust.family).or_default() += 1;
        let before = self.by_place.insert(trust.place(), self.next);
        debug_assert!(before.is_none(), "two trusts of one connection: {trust:?}");
        if trust.cookie != 0 {
            self.by_cookie.insert(trust.cookie, self.next);
        }
        self.next
    }

    /// Notes that `relay` carries the trust's connection on.
    pub fn carried(&mut self, key: u64, relay: u32) {
        if let Some(trust) = self.all.get_mut(&key) {
            trust.relay = Some(relay);
            self.by_relay.insert(relay, key);
        }
    }

    /// Removes and returns a trust.
    pub fn remove(&mut self, key: u64) -> Option<Trust> {
        let trust = self.all.remove(&key)?;
        if self.by_cookie.get(&trust.cookie) == Some(&key) {
            self.by_cookie.remove(&trust.cookie);
        }
        if self.by_place.get(&trust.place()) == Some(&key) {
            self.by_place.remove(&trust.place());
        }
        if let Some(relay) = trust.relay {
            self.by_relay.remove(&relay);
        }
        if let Some(count) = self.of_family.get_mut(&trust.family) {
            *count -= 1;
            if *count == 0 {
                self.of_family.remove(&trust.family);
            }
        }
        self.changed = true;
        Some(trust)
    }

    /// A process has just let go, has died, or will close its descriptors in a moment: the next round begins `within` that time, and the
    /// pause after it is the shortest. Not at once after the last round, however often processes say so.
    pub fn hurry(&mut self, now: Instant, within: Duration) {
        self.pause = Some(PAUSE.0);
        let earliest = self.round.ended.map_or(now, |ended| ended + PAUSE.0);
        let at = (now + within).max(earliest);
        self.round.at = Some(self.round.at.map_or(at, |known| known.min(at)));
    }

    /// When the next piece of a round is to be looked at.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if self.round.from.is_some() { Some(now) } else { self.round.at }
    }

    /// Begins a round, if it is time for one: `listeners` are all that there are. True while a round is under way.
    pub fn begin_round(&mut self, now: Instant, listeners: impl Iterator<Item = u32>) -> bool {
        if self.round.from.is_none() && self.round.at.is_some_and(|at| at <= now) {
            self.round = Round {
                from: Some(0),
                listeners: listeners.collect(),
                at: None,
                ..std::mem::take(&mut self.round)
            };
        }
        self.round.from.is_some()
    }

    /// The trusts to look at next; the round goes on behind the last of them that `is_asked` lets in. Those that it is true for are
    /// returned, with their cookies.
    pub fn next_piece(&mut self, is_asked: impl Fn(&Trust) -> bool) -> Vec<(u64, u64)> {
        let Some(from) = self.round.from else { return Vec::new() };
        let mut asked = Vec::new();
        let mut behind = u64::MAX;
        for (n, (key, trust)) in self.all.range(from..).enumerate() {
            if n == LOOK_MOST.0 || asked.len() == LOOK_MOST.1 {
                behind = *key;
                break;
            }
            if is_asked(trust) {
                asked.push((*key, trust.cookie));
            }
        }
        self.round.from = Some(behind);
        asked
    }

    /// The listeners to look at next. Empty while trusts are left to look at.
    pub fn next_listeners(&mut self) -> Vec<u32> {
        if self.round.from != Some(u64::MAX) {
            return Vec::new();
        }
        let at = self.round.listeners.len().saturating_sub(LOOK_MOST.1);
        self.round.listeners.split_off(at)
    }

    /// A piece was looked at. `has_left`: a process has some of the sockets. Ends the round when everything was looked at.
    pub fn end_piece(&mut self, now: Instant, has_left: bool) {
        self.round.has_left |= has_left;
        if self.round.from != Some(u64::MAX) || !self.round.listeners.is_empty() {
            return;
        }
        (self.round.from, self.round.ended) = (None, Some(now));
        if std::mem::take(&mut self.round.has_left) {
            let pause = self.pause.unwrap_or(PAUSE.1);
            self.pause = Some((pause * 2).min(PAUSE.1));
            let at = now + pause;
            self.round.at = Some(self.round.at.map_or(at, |known| known.min(at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusts(count: u32) -> Trusts {
        let mut all = Trusts::new(Alive::open(false).unwrap());
        for slot in 1..=count {
            let left = Left { region: 1, slot, side: 1, home: 1, sock: slot };
            let end = SocketAddr::from(([127, 0, 0, 1], 1));
            let cookie = u64::from(slot);
            all.add(Trust {
                cookie,
                left,
                ends: [end; 2],
                owners: [1; 2],
                family: 1 + slot % 2,
                relay: None,
            });
        }
        all
    }

    #[test]
    fn a_look_takes_no_more_trusts_however_many_there_are() {
        const COUNT: u32 = 3 * LOOK_MOST.0 as u32;
        let (mut all, now) = (trusts(COUNT), Instant::now());
        all.hurry(now, Duration::ZERO);
        assert!(all.begin_round(now, 1..=40));
        let (mut pieces, mut seen) = (0, Vec::new());
        while all.begin_round(now, std::iter::empty()) {
            // Each second one is the kernel's to answer for.
            let asked = all.next_piece(|trust| trust.cookie % 2 == 0);
            assert!(asked.len() <= LOOK_MOST.1);
            seen.extend(asked.into_iter().map(|(_, cookie)| cookie));
            assert!(all.next_listeners().len() <= LOOK_MOST.1);
            all.end_piece(now, true);
            pieces += 1;
        }
        assert_eq!(seen, (1..=u64::from(COUNT)).filter(|cookie| cookie % 2 == 0).collect::<Vec<_>>());
        assert!(pieces > 20, "{pieces}");
        assert_eq!(all.due(now), Some(now + PAUSE.0), "a process has the sockets still");
    }

    #[test]
    fn processes_that_let_go_again_and_again_begin_no_round_at_once() {
        let (mut all, now) = (trusts(1), Instant::now());
        let turn = |all: &mut Trusts| {
            all.hurry(now, Duration::ZERO);
            let begins = all.begin_round(now, std::iter::empty());
            all.next_piece(|_| false);
            all.next_listeners();
            all.end_piece(now, false);
            begins
        };
        assert!(turn(&mut all) && !turn(&mut all) && !turn(&mut all));
        assert_eq!(all.due(now), Some(now + PAUSE.0));
    }

    #[test]
    fn a_trust_is_found_by_its_relay_and_its_family_until_it_ends() {
        let mut all = trusts(2);
        let key = all.find(2).unwrap().0;
        all.carried(key, 77);
        assert_eq!(all.behind(77).map(|(key, _)| key), Some(key));
        assert!(all.has_family(1) && all.has_family(2));
        all.remove(key);
        assert!(all.behind(77).is_none() && !all.has_family(1) && all.has_family(2));
    }
}
