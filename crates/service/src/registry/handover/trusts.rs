//! The table of trusts: connections that processes have left with the service, where each is, and which relay carries it on. Decides
//! nothing.

use crate::registry::memory::slot_key::SlotKey;
use crate::registry::process::fd_liveness::Alive;
use control::Left;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::SocketAddr;
use std::ops::Bound;
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
    /// User of the process that left it, or was given it: the looks for its descriptor are that user's.
    pub uid: u32,
    /// Id of the relay that carries it on to a new holder; `None`: it is still in its slot.
    pub relay: Option<u32>,
}

impl Trust {
    fn place(&self) -> (SlotKey, u8) {
        (SlotKey::of_left(&self.left), self.left.side)
    }
}

/// Most trusts that one look takes, and most of them, and of listeners, that the kernel is asked about: it answers for a set of sockets in
/// about 20 us, and they may lie in as many sets.
pub const LOOK_MOST: (usize, usize) = (512, 32);

/// How far a round has come.
#[derive(Clone, Copy, Debug)]
enum At {
    /// The user's trusts below this number have been looked at.
    Trusts(u64),
    /// And the user's listeners below this number.
    Listeners(u32),
}

/// The looks for descriptors of one user's that no process has open: a round takes all the user's trusts and listeners, piece by piece.
#[derive(Debug, Default)]
struct Round {
    /// `None`: no round is under way.
    under_way: Option<At>,
    /// When the next round begins; `None`: none is needed.
    at: Option<Instant>,
    /// When the last one ended.
    ended: Option<Instant>,
    /// Sockets were found that only other processes have: the next round is needed.
    has_left: bool,
    /// The next pause before a round; `None`: the longest.
    pause: Option<Duration>,
}

impl Round {
    /// True when it is its user's turn to be looked at, if the turn comes to that user.
    fn is_due(&self, now: Instant) -> bool {
        self.under_way.is_some() || self.at.is_some_and(|at| at <= now)
    }
}

/// Users whose last round is remembered although no further one is needed.
const ROUNDS_KEPT: usize = 64;

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
    /// Number of trusts of each socket block, by the region and the block's number.
    of_block: HashMap<(u32, u32), usize>,
    /// Number of trusts of each family.
    of_family: HashMap<u32, usize>,
    next: u64,
    /// Watches the connections' descriptors.
    pub alive: Alive,
    /// The trusts of each user.
    by_user: BTreeSet<(u32, u64)>,
    /// The rounds, by user.
    rounds: BTreeMap<u32, Round>,
    /// The user that was looked at last.
    last: u32,
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
            of_block: HashMap::new(),
            of_family: HashMap::new(),
            next: 0,
            alive,
            by_user: BTreeSet::new(),
            rounds: BTreeMap::new(),
            last: 0,
            changed: false,
        }
    }

    /// True when there are no trusts.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All trusts with their numbers.
    #[cfg(test)]
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

    /// True when a trust is of that connection's socket block.
    pub fn has_block(&self, left: &Left) -> bool {
        self.of_block.contains_key(&(left.home, left.sock))
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
        self.by_user.insert((trust.uid, self.next));
        *self.of_block.entry((trust.left.home, trust.left.sock)).or_default() += 1;
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
        self.by_user.remove(&(trust.uid, key));
        one_less(&mut self.of_family, trust.family);
        one_less(&mut self.of_block, (trust.left.home, trust.left.sock));
        self.changed = true;
        Some(trust)
    }

    /// A process of that user has just let go, has died, or will close its descriptors in a moment: the user's next round begins `within` that
    /// time, and the pause after it is the shortest. Not at once after the last round, however often processes say so.
    pub fn hurry(&mut self, uid: u32, now: Instant, within: Duration) {
        if self.rounds.len() > ROUNDS_KEPT {
            let is_recent = |round: &Round| round.ended.is_some_and(|ended| now < ended + PAUSE.0);
            self.rounds
                .retain(|_, round| round.under_way.is_some() || round.at.is_some() || is_recent(round));
        }
        let round = self.rounds.entry(uid).or_default();
        round.pause = Some(PAUSE.0);
        let earliest = round.ended.map_or(now, |ended| ended + PAUSE.0);
        let at = (now + within).max(earliest);
        round.at = Some(round.at.map_or(at, |known| known.min(at)));
    }

    /// When the next piece of a round is to be looked at.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let due = |round: &Round| if round.under_way.is_some() { Some(now) } else { round.at };
        self.rounds.values().filter_map(due).min()
    }

    /// The user that has the next piece of its round: users take turns, piece by piece. Begins the round if it is time for it. `None`: no round
    /// is due.
    pub fn next_user(&mut self, now: Instant) -> Option<u32> {
        let others = self.rounds.range((Bound::Excluded(self.last), Bound::Unbounded));
        let mut all = others.chain(self.rounds.range(..=self.last));
        let uid = all.find(|(_, round)| round.is_due(now)).map(|(uid, _)| *uid)?;
        self.last = uid;
        let round = self.rounds.get_mut(&uid)?;
        if round.under_way.is_none() {
            (round.under_way, round.at) = (Some(At::Trusts(0)), None);
        }
        Some(uid)
    }

    /// The trusts of that user to look at next; the round goes on behind the last of them that `is_asked` lets in. Those that it is true for
    /// are returned, with their cookies.
    pub fn next_piece(&mut self, uid: u32, is_asked: impl Fn(&Trust) -> bool) -> Vec<(u64, u64)> {
        let Some(round) = self.rounds.get_mut(&uid) else { return Vec::new() };
        let Some(At::Trusts(from)) = round.under_way else { return Vec::new() };
        let mut asked = Vec::new();
        round.under_way = Some(At::Listeners(0));
        for (n, (_, key)) in self.by_user.range((uid, from)..=(uid, u64::MAX)).enumerate() {
            if n == LOOK_MOST.0 || asked.len() == LOOK_MOST.1 {
                round.under_way = Some(At::Trusts(*key));
                break;
            }
            if let Some(trust) = self.all.get(key).filter(|trust| is_asked(trust)) {
                asked.push((*key, trust.cookie));
            }
        }
        asked
    }

    /// The user's listeners from this number on are to be looked at next, [`LOOK_MOST`] of them. `None`: trusts are left to look at.
    pub fn listeners_from(&self, uid: u32) -> Option<u32> {
        match self.rounds.get(&uid)?.under_way? {
            At::Listeners(from) => Some(from),
            At::Trusts(_) => None,
        }
    }

    /// A piece was looked at, these listeners among it. `has_left`: a process has some of the sockets. Ends the round when everything was
    /// looked at.
    pub fn end_piece(&mut self, uid: u32, now: Instant, listeners: &[u32], has_left: bool) {
        let Some(round) = self.rounds.get_mut(&uid) else { return };
        round.has_left |= has_left;
        match (round.under_way, listeners) {
            (Some(At::Trusts(_)), _) => return,
            (_, [.., last]) if listeners.len() == LOOK_MOST.1 => {
                round.under_way = Some(At::Listeners(last.saturating_add(1)));
                return;
            }
            _ => {}
        }
        (round.under_way, round.ended) = (None, Some(now));
        if std::mem::take(&mut round.has_left) {
            let pause = round.pause.unwrap_or(PAUSE.1);
            round.pause = Some((pause * 2).min(PAUSE.1));
            let at = now + pause;
            round.at = Some(round.at.map_or(at, |known| known.min(at)));
        }
    }
}

/// One of `key` less; none are forgotten.
fn one_less<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 7;

    fn add(all: &mut Trusts, uid: u32, slot: u32) {
        let left = Left { region: 1, slot, side: 1, home: 1, sock: slot };
        let ends = [SocketAddr::from(([127, 0, 0, 1], 1)); 2];
        let (cookie, family) = (u64::from(slot), 1 + slot % 2);
        all.add(Trust { cookie, left, ends, owners: [1; 2], family, uid, relay: None });
    }

    fn trusts(count: u32) -> Trusts {
        let mut all = Trusts::new(Alive::open(false).unwrap());
        (1..=count).for_each(|slot| add(&mut all, USER, slot));
        all
    }

    /// The control loop's next look: the user, and the cookies that the kernel is asked about.
    fn look(all: &mut Trusts, now: Instant, has_left: bool) -> Option<(u32, Vec<u64>)> {
        let uid = all.next_user(now)?;
        // Each second one is the kernel's to answer for.
        let asked = all.next_piece(uid, |trust| trust.cookie % 2 == 0);
        assert!(asked.len() <= LOOK_MOST.1);
        all.end_piece(uid, now, &[], has_left);
        Some((uid, asked.into_iter().map(|(_, cookie)| cookie).collect()))
    }

    #[test]
    fn a_look_takes_no_more_trusts_however_many_there_are() {
        const COUNT: u32 = 3 * LOOK_MOST.0 as u32;
        let (mut all, now) = (trusts(COUNT), Instant::now());
        all.hurry(USER, now, Duration::ZERO);
        let (mut pieces, mut seen) = (0, Vec::new());
        while let Some((_, asked)) = look(&mut all, now, true) {
            seen.extend(asked);
            pieces += 1;
        }
        assert_eq!(seen, (1..=u64::from(COUNT)).filter(|cookie| cookie % 2 == 0).collect::<Vec<_>>());
        assert!(pieces > 20, "{pieces}");
        assert_eq!(all.due(now), Some(now + PAUSE.0), "a process has the sockets still");
    }

    #[test]
    fn users_take_turns_with_their_rounds_piece_by_piece() {
        let (mut all, now) = (trusts(3 * LOOK_MOST.0 as u32), Instant::now());
        add(&mut all, USER + 1, 1 << 20);
        all.hurry(USER, now, Duration::ZERO);
        assert_eq!(look(&mut all, now, false).map(|(uid, _)| uid), Some(USER));
        all.hurry(USER + 1, now, Duration::ZERO);
        assert_eq!(
            look(&mut all, now, false),
            Some((USER + 1, vec![1 << 20])),
            "after one piece of the other's"
        );
        assert!(look(&mut all, now, false).is_some_and(|(uid, _)| uid == USER), "whose round goes on");
    }

    #[test]
    fn a_round_takes_the_users_listeners_after_the_trusts_in_pieces() {
        let (mut all, now) = (trusts(1), Instant::now());
        all.hurry(USER, now, Duration::ZERO);
        let listeners: Vec<u32> = (10..50).collect();
        let mut seen = Vec::new();
        while let Some(uid) = all.next_user(now) {
            all.next_piece(uid, |_| false);
            let from = all.listeners_from(uid).unwrap();
            let piece: Vec<u32> =
                listeners.iter().copied().filter(|id| *id >= from).take(LOOK_MOST.1).collect();
            all.end_piece(uid, now, &piece, false);
            seen.extend(piece);
        }
        assert_eq!(seen, listeners);
    }

    #[test]
    fn processes_that_let_go_again_and_again_begin_no_round_at_once() {
        let (mut all, now) = (trusts(1), Instant::now());
        let turn = |all: &mut Trusts| {
            all.hurry(USER, now, Duration::ZERO);
            look(all, now, false).is_some()
        };
        assert!(turn(&mut all) && !turn(&mut all) && !turn(&mut all));
        assert_eq!(all.due(now), Some(now + PAUSE.0));
    }

    #[test]
    fn rounds_of_very_many_users_are_forgotten() {
        let mut all = trusts(1);
        let mut now = Instant::now();
        for uid in 0..10_000 {
            all.hurry(uid, now, Duration::ZERO);
            while look(&mut all, now, false).is_some() {}
            now += PAUSE.0;
        }
        assert!(all.rounds.len() <= ROUNDS_KEPT + 1, "{}", all.rounds.len());
    }

    #[test]
    fn a_trust_is_found_by_its_relay_and_its_family_until_it_ends() {
        let mut all = trusts(2);
        let key = all.find(2).unwrap().0;
        all.carried(key, 77);
        assert_eq!(all.behind(77).map(|(key, _)| key), Some(key));
        assert!(all.has_family(1) && all.has_family(2));
        let left = all.get(key).unwrap().left;
        assert!(all.has_block(&left));
        all.remove(key);
        assert!(!all.has_block(&left) && all.by_user.len() == 1);
        assert!(all.behind(77).is_none() && !all.has_family(1) && all.has_family(2));
    }
}
