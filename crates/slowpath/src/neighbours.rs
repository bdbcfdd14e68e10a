//! The Ethernet addresses of stations on the link, learned by ARP and neighbour discovery; bounded, with frames that wait for
//! an answer. Bookkeeping only: the caller asks and sends.

use base::{Duration, Instant};
use std::collections::HashMap;
use std::net::IpAddr;
use wire::MacAddr;

/// How long an address is trusted before the neighbour is asked again: the middle of RFC 4861's range.
const TRUST: Duration = Duration::from_secs(30);
/// RFC 4861 section 10: RETRANS_TIMER, MAX_MULTICAST_SOLICIT.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_secs(1);
const ASKS_MAX: u8 = 3;
/// Least time between changes of a neighbour's address: two stations that claim one address must not make flows flap.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Most frames that wait for one neighbour, and for all. A SYN is 74 bytes; a burst of connects to a new neighbour waits here.
const WAITING_EACH: usize = 256;
const WAITING_ALL: usize = 4096;

#[derive(Debug)]
struct Entry {
    mac: Option<MacAddr>,
    /// When the address was last confirmed or changed.
    confirmed: Instant,
    changed: Instant,
    /// Number of questions since the last answer; 0 when none is open.
    asks: u8,
    waiting: Vec<(u8, Box<[u8]>)>,
}

/// What to do with a frame to be sent to a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Send the frame to this address.
    Known(MacAddr),
    /// Send the frame to this address, and ask the neighbour whether it is still there.
    Stale(MacAddr),
    /// The frame is kept; the caller must ask for the address, for the first time.
    Ask,
    /// The frame is kept until the answer to an earlier question comes.
    Waits,
    /// No room: the frame is lost.
    Lost,
}

/// The effect of a neighbour's answer.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    /// Frames that can be sent now, each with the core that sends it.
    pub(crate) frames: Vec<(u8, Box<[u8]>)>,
    /// The neighbour's address has changed: flows through it must be told.
    pub(crate) is_changed: bool,
    /// The answer was not believed.
    pub(crate) is_refused: bool,
}

/// What to do when the time for an answer is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// The answer came in time: nothing.
    Answered,
    /// Ask again: at this address if there is one, else all stations.
    AskAgain(Option<MacAddr>),
    /// The neighbour does not answer: so many frames are lost.
    Over(usize),
}

/// The table of neighbours.
#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: HashMap<IpAddr, Entry>,
    capacity: usize,
    waiting: usize,
}

impl Neighbours {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity: capacity.max(1), waiting: 0 }
    }

    /// The address last learned, even if it is no longer trusted.
    pub(crate) fn known(&self, addr: IpAddr) -> Option<MacAddr> {
        self.entries.get(&addr).and_then(|entry| entry.mac)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpAddr, Option<MacAddr>)> + '_ {
        self.entries.iter().map(|(addr, entry)| (*addr, entry.mac))
    }

    /// What to do with `frame` for `addr`; keeps it if it must wait.
    pub(crate) fn way(&mut self, now: Instant, addr: IpAddr, core: u8, frame: &[u8]) -> Way {
        if !self.entries.contains_key(&addr) && !self.make_room() {
            return Way::Lost;
        }
        let entry = self.entries.entry(addr).or_insert_with(|| Entry::new(now));
        if let Some(mac) = entry.mac {
            let is_stale = entry.asks == 0 && entry.confirmed.plus(TRUST) <= now;
            entry.asks += u8::from(is_stale);
            return if is_stale { Way::Stale(mac) } else { Way::Known(mac) };
        }
        if entry.waiting.len() >= WAITING_EACH || self.waiting >= WAITING_ALL {
            return Way::Lost;
        }
        entry.waiting.push((core, frame.into()));
        self.waiting += 1;
        if entry.asks > 0 {
            return Way::Waits;
        }
        entry.asks = 1;
        Way::Ask
    }

    /// A caller doubts that the neighbour is still there. Returns the address to ask at, unless a question is open.
    pub(crate) fn doubt(&mut self, addr: IpAddr) -> Option<MacAddr> {
        let entry = self.entries.get_mut(&addr)?;
        let mac = entry.mac.filter(|_| entry.asks == 0)?;
        entry.asks = 1;
        Some(mac)
    }

    /// Notes that `addr` is at `mac`. `is_asked`: the neighbour speaks to us, so a new entry may be made; else only a known entry is
    /// updated (RFC 826's merge).
    pub(crate) fn learn(&mut self, now: Instant, addr: IpAddr, mac: MacAddr, is_asked: bool) -> Learned {
        let is_known = self.entries.contains_key(&addr);
        if !mac.is_unicast() || !(is_known || is_asked && self.make_room()) {
            return Learned { is_refused: true, ..Learned::default() };
        }
        let entry = self.entries.entry(addr).or_insert_with(|| Entry::new(now));
        let is_changed = entry.mac.is_some_and(|old| old != mac);
        if is_changed && now.since(entry.changed) < CHANGE_INTERVAL {
            return Learned { is_refused: true, ..Learned::default() };
        }
        if entry.mac != Some(mac) {
            entry.changed = now;
        }
        (entry.mac, entry.confirmed, entry.asks) = (Some(mac), now, 0);
        let frames = std::mem::take(&mut entry.waiting);
        self.waiting -= frames.len();
        Learned { frames, is_changed, is_refused: false }
    }

    /// Called [`ASK_INTERVAL`] after a question: tells what to do next.
    pub(crate) fn wait_is_over(&mut self, addr: IpAddr) -> Patience {
        let Some(entry) = self.entries.get_mut(&addr) else { return Patience::Answered };
        if entry.asks == 0 {
            return Patience::Answered;
        }
        if entry.asks < ASKS_MAX {
            entry.asks += 1;
            // The last question goes to all stations: the neighbour may have moved.
            return Patience::AskAgain(entry.mac.filter(|_| entry.asks < ASKS_MAX));
        }
        let lost = entry.waiting.len();
        self.waiting -= lost;
        self.entries.remove(&addr);
        Patience::Over(lost)
    }

    /// Makes room for an entry by removing the one confirmed longest ago, unless frames wait for it. False when there is no room.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < self.capacity {
            return true;
        }
        let idle = self.entries.iter().filter(|(_, entry)| entry.waiting.is_empty());
        let Some(oldest) = idle.min_by_key(|(_, entry)| entry.confirmed).map(|(addr, _)| *addr) else {
            return false;
        };
        self.entries.remove(&oldest);
        true
    }
}

impl Entry {
    fn new(now: Instant) -> Self {
        Self { mac: None, confirmed: now, changed: Instant::ZERO, asks: 0, waiting: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const MOVED: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn secs(s: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_secs(s))
    }

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn frames_wait_for_the_answer() {
        let mut table = Neighbours::new(4);
        assert_eq!(table.way(secs(0), ip(1), 0, b"syn"), Way::Ask);
        assert_eq!(table.way(secs(0), ip(1), 1, b"another"), Way::Waits);
        let learned = table.learn(secs(1), ip(1), MAC, true);
        assert_eq!(learned.frames.len(), 2);
        assert_eq!(table.way(secs(2), ip(1), 0, b"third"), Way::Known(MAC));
        assert_eq!(table.way(secs(60), ip(1), 0, b"late"), Way::Stale(MAC));
        assert_eq!(table.way(secs(60), ip(1), 0, b"later"), Way::Known(MAC));
    }

    #[test]
    fn silence_loses_the_frames() {
        let mut table = Neighbours::new(4);
        assert_eq!(table.way(secs(0), ip(1), 0, b"syn"), Way::Ask);
        assert_eq!(table.wait_is_over(ip(1)), Patience::AskAgain(None));
        assert_eq!(table.wait_is_over(ip(1)), Patience::AskAgain(None));
        assert_eq!(table.wait_is_over(ip(1)), Patience::Over(1));
        assert_eq!(table.waiting, 0);
        assert_eq!(table.way(secs(4), ip(1), 0, b"again"), Way::Ask);
    }

    #[test]
    fn the_table_is_bounded_and_keeps_who_is_waited_for() {
        let mut table = Neighbours::new(2);
        assert_eq!(table.way(secs(0), ip(1), 0, b"a"), Way::Ask);
        table.learn(secs(0), ip(2), MAC, true);
        table.learn(secs(1), ip(3), MAC, true);
        assert_eq!((table.known(ip(2)), table.known(ip(3))), (None, Some(MAC)));
        assert_eq!(table.way(secs(2), ip(4), 0, b"b"), Way::Ask);
        assert_eq!(table.way(secs(2), ip(5), 0, b"c"), Way::Lost);
        for _ in 0..2000 {
            table.way(secs(2), ip(1), 0, b"flood");
        }
        assert!(table.waiting <= WAITING_EACH + 1);
    }

    #[test]
    fn strangers_and_flapping_are_refused() {
        let mut table = Neighbours::new(4);
        assert!(table.learn(secs(1), ip(1), MAC, false).is_refused);
        assert!(table.learn(secs(1), ip(1), MacAddr::BROADCAST, true).is_refused);
        table.learn(secs(1), ip(1), MAC, true);
        assert!(table.learn(secs(1), ip(1), MOVED, false).is_refused);
        assert!(table.learn(secs(3), ip(1), MOVED, false).is_changed);
        assert_eq!(table.known(ip(1)), Some(MOVED));
    }
}
