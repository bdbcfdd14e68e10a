//! Lines: queues in shared memory by which a process connects to a listener of its own user without asking the service. A line is a slot of
//! their pair region with a stream of accept records; the slots of the new connections are lent to the connector beforehand.
//!
//! The service decides once (policy, listener, limits, addresses of each lent slot) and revokes a line by a flag in the acceptor's half:
//! `FIN` when another socket begins to listen at the port, with `READ_CLOSED` when the queue is closed. What both sides write there is
//! believed only as far as it concerns themselves: how many connections each has made or accepted.

use crate::listen::table::{Origin, QueueKey};
use crate::memory::region::{AppRegion, Connection, Line, PairRegion, Stage};
use crate::memory::slot_key::SlotKey;
use crate::registry::{Answer, Registry};
use base::limits::SLOTS_MAX;
use control::{Grant, Left, Lent, MESSAGE_MAX, RECORD_LEN, Reply};
use queue::stream::raise;
use rustix::io::Errno;
use shm::Half;
use shm::half_flags::{FIN, LENT, OPEN, READ_CLOSED, RELEASED, RESET};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

/// Slots granted at once, least and most: each time as many as are granted already. Each time the connector waits for the service, about
/// 140 us on two cores.
const STEP: (u32, u32) = (8, 240);
// All slots and ports of a step go into one message, at most 3 bytes per number, with room for its other fields.
const _: () = assert!(SLOTS_MAX < 1 << 21 && STEP.1 as usize * 6 + 512 <= MESSAGE_MAX);
/// At most one in this many slots of a region is lent; the service keeps the others for connections that it sets up.
const SHARE: u32 = 4;
/// At most one in this many ports of the kernel's range is granted to one connector for one listener.
const PORTS_SHARE: u32 = 4;
/// A listener with a smaller backlog gets no line.
const BACKLOG_LEAST: u32 = 8;
/// No processor makes or accepts a connection in less time; measured, with its end, 18 us.
const CONNECT_LEAST: Duration = Duration::from_micros(1);
/// Most lines to one queue: the acceptor polls each of them.
const LINES_MOST: usize = 8;

/// Lent slots in which a socket lives, according to the socket blocks of their holders.
pub type InUse = HashSet<SlotKey>;

/// Most ports granted for connections from one address to one listener. Most of the kernel's range stays free for connections that the
/// service sets up.
fn grants_most() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_ascii_whitespace().filter_map(|word| word.parse::<u32>().ok());
    match (bounds.next(), bounds.next()) {
        (Some(first), Some(last)) => last.saturating_sub(first) / PORTS_SHARE,
        _ => 0,
    }
}

/// A connection without addresses: for the slot of a line.
fn nothing(parties: [u32; 2], stage: Stage) -> Connection {
    let nowhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    Connection { addresses: [nowhere; 2], applications: parties, stage }
}

/// Unread bytes in a line, from the positions that both sides have written. Hostile.
fn unread_bytes(connector: &Half, acceptor: &Half) -> u64 {
    connector.tx_head.load(Relaxed).saturating_sub(acceptor.rx_tail.load(Relaxed))
}

impl Line {
    /// Records in the line that the acceptor has not taken, at most as many as the line may hold. Hostile numbers.
    fn unread(&self, [connector, acceptor]: &[Half; 2]) -> u64 {
        if connector.flags.load(Acquire) & RELEASED != 0 {
            return 0;
        }
        (unread_bytes(connector, acceptor) / RECORD_LEN as u64).min(u64::from(self.most))
    }

    /// Connections made and accepted since the last call, at most as many as there was time for.
    fn count(&mut self, [connector, acceptor]: &[Half; 2], at: Instant) -> [u64; 2] {
        let elapsed = at.saturating_duration_since(self.asked).as_nanos() / CONNECT_LEAST.as_nanos();
        self.asked = at;
        let most = u64::from(self.most).saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX));
        let now = [connector.tx_head.load(Relaxed), acceptor.rx_tail.load(Relaxed)];
        let new = [0, 1].map(|i| (now[i].saturating_sub(self.counted[i]) / RECORD_LEN as u64).min(most));
        (0..2).for_each(|i| self.counted[i] += new[i] * RECORD_LEN as u64);
        new
    }
}

impl PairRegion {
    /// The line to queue `key` at address `local`, unless it was revoked or closed.
    fn open_line(&self, key: QueueKey, local: SocketAddr) -> Option<&Line> {
        let is_open = |half: &Half| half.flags.load(Acquire) & (FIN | READ_CLOSED | RELEASED | RESET) == 0;
        let mut of_it = self.lines.iter().filter(|line| (line.queue, line.local) == (key, local));
        of_it.find(|line| self.region.slot(line.slot).is_some_and(|s| s.half.iter().all(is_open)))
    }

    /// Slots of connections between these addresses, made by the service or through a line.
    fn between(&self, source: IpAddr, local: SocketAddr) -> impl Iterator<Item = (Stage, Grant)> {
        let is_between = move |c: &Connection| c.addresses[0].ip() == source && c.addresses[1] == local;
        let slots = self.slots.iter().filter(move |(_, c)| is_between(c));
        slots.map(|(slot, c)| (c.stage, Grant { slot, port: c.addresses[0].port() }))
    }

    /// True when the service may free a slot. While both parties live, a lent slot stays lent; a line ends when both halves are closed.
    /// With a dead party a lent slot also ends, whatever its flags say, when no socket is in it (`is_used`) and no line can bring more.
    pub fn is_over(&self, slot: u32, is_used: impl FnOnce() -> bool) -> bool {
        let released = |half: &Half| half.flags.load(Acquire) & RELEASED != 0;
        let both = || self.region.slot(slot).is_some_and(|s| s.half.iter().all(released));
        match self.slots.get(slot).map(|c| c.stage) {
            // First and cheap: there may be very many lent slots, and each is checked at every sweep.
            Some(Stage::Lent) if !self.has_dead_side() => false,
            Some(Stage::Lent) => {
                both() || !is_used() && self.lines.iter().all(|line| self.is_line_over(line))
            }
            Some(Stage::Line) => both() || self.lines.iter().any(|l| l.slot == slot && self.is_line_over(l)),
            _ => both(),
        }
    }

    /// True when a party is dead and no further record can come through a line, or be taken from it.
    fn is_line_over(&self, line: &Line) -> bool {
        let Some([connector, acceptor]) = self.region.slot(line.slot).map(|s| &s.half) else { return true };
        let unread = unread_bytes(connector, acceptor);
        self.dead[1] || self.dead[0] && !(1..=u64::from(line.most) * RECORD_LEN as u64).contains(&unread)
    }
}

impl Registry {
    /// The line and slots that `parties` need for further connections from `source` to accept queue `key` at `local`, and whether the line
    /// is new, so that the acceptor must be told. Both parties have the region.
    pub fn lend(
        &mut self,
        region: u32,
        key: QueueKey,
        parties: [u32; 2],
        source: IpAddr,
        local: SocketAddr,
    ) -> Option<(Lent, bool)> {
        let backlog = self.listeners.queues.get(&key)?.backlog;
        if backlog < BACKLOG_LEAST
            || !parties.iter().all(|party| self.may_be_lent(*party))
            || parties.iter().any(|party| self.has_forked(*party))
        {
            return None;
        }
        let pair = self.pairs.get(&region)?;
        let known = pair.open_line(key, local).map(|line| (line.slot, line.most));
        let (line, most) = match known {
            Some(known) => known,
            None => {
                let most = backlog.div_ceil(2);
                let new = Line { slot: 0, queue: key, local, source, most, counted: [0; 2], asked: self.now };
                (self.new_line(region, parties, new)?, most)
            }
        };
        // Before the acceptor has opened the line no connection can use it, and granted ports would only be kept from others.
        let half = &self.pairs.get(&region)?.region.slot(line)?.half[1];
        let grants = match half.flags.load(Acquire) & OPEN {
            0 => Vec::new(),
            _ => self.grant_slots(region, parties, source, local),
        };
        Some((Lent { line, most, source, grants }, known.is_none()))
    }

    fn new_line(&mut self, region: u32, parties: [u32; 2], mut line: Line) -> Option<u32> {
        let Self { listeners, pairs, .. } = self;
        let key = line.queue;
        let is_open = |region: &u32| {
            pairs.get(region).is_some_and(|pair| {
                pair.lines.iter().any(|line| line.queue == key && pair.open_line(key, line.local).is_some())
            })
        };
        let queue = listeners.queues.get_mut(&key)?;
        queue.lines.retain(is_open);
        if queue.lines.len() >= LINES_MOST {
            return None;
        }
        queue.lines.push(region);
        if self.room_to_lend(parties) == 0 {
            return None;
        }
        let slot = self.take_pair_slot(region, nothing(parties, Stage::Line))?;
        self.count_lent(parties, 1);
        let pair = self.pairs.get_mut(&region)?;
        line.slot = slot;
        pair.lines.push(line);
        raise(&pair.region.slot(slot)?.half[0], OPEN);
        Some(slot)
    }

    /// Grants more slots, each with its own port. They count as sockets of both parties.
    fn grant_slots(
        &mut self,
        region: u32,
        parties: [u32; 2],
        source: IpAddr,
        local: SocketAddr,
    ) -> Vec<Grant> {
        let room = self.room_to_lend(parties).min(grants_most());
        let Some(pair) = self.pairs.get(&region) else { return Vec::new() };
        let granted = pair.between(source, local).filter(|(stage, _)| *stage == Stage::Lent).count() as u32;
        let most = pair.region.layout().params.slots / SHARE;
        let room = room.saturating_sub(granted);
        let count = granted.clamp(STEP.0, STEP.1).min(most.saturating_sub(pair.lent)).min(room);
        let grants: Vec<Grant> = (0..count)
            .map_while(|_| {
                let port = self.find_port(SocketAddr::new(source, 0), local, false)?;
                let addresses = [SocketAddr::new(source, port), local];
                let pair = self.pairs.get_mut(&region)?;
                let granted = Connection { addresses, applications: parties, stage: Stage::Lent };
                let slot = pair.take(granted).ok()?;
                let [connector, acceptor] = &pair.region.slot(slot)?.half;
                connector.flags.store(RELEASED, Release);
                acceptor.flags.store(RELEASED | LENT, Release);
                pair.lent += 1;
                self.ports.take(addresses, Origin::Pair(region, slot));
                Some(Grant { slot, port })
            })
            .collect();
        self.count_lent(parties, grants.len() as u32);
        grants
    }

    /// Answers `Request::Grants`: the granted slots of a line with their ports, by which its acceptor checks records.
    pub fn grants(&self, id: u32, region: u32, line: u32, first: u32) -> Answer {
        if self.side_in(region, id).is_none() {
            return Answer::refused(Errno::NOENT, "that pair region is gone");
        }
        let pair = self.pairs.get(&region);
        let Some((pair, line)) = pair.and_then(|p| Some((p, p.lines.iter().find(|l| l.slot == line)?)))
        else {
            return Answer::refused(Errno::NOENT, "that line is gone");
        };
        // The slot asked for first is no longer lent if its connector has passed the connection on.
        let lent = |(stage, grant): &(Stage, Grant)| grant.slot == first || *stage == Stage::Lent;
        let mut grants: Vec<Grant> =
            pair.between(line.source, line.local).filter(lent).map(|(_, grant)| grant).collect();
        // The connector takes its slots upwards or downwards: the answer has those next to this one, on both sides.
        grants.sort_unstable_by_key(|grant| (grant.slot.abs_diff(first), grant.slot));
        grants.truncate(STEP.1 as usize);
        Answer::plain(Reply::Grants { local: line.local, source: line.source, grants })
    }

    /// How many more lent sockets both parties may have.
    fn room_to_lend(&self, parties: [u32; 2]) -> u32 {
        let most = self.config.max_sockets / 2;
        let [a, b] =
            parties.map(|id| self.applications.get(&id).map_or(0, |a| most.saturating_sub(a.sockets)));
        if parties[0] == parties[1] { a / 2 } else { a.min(b) }
    }

    fn count_lent(&mut self, parties: [u32; 2], count: u32) {
        for party in parties {
            if let Some(a) = self.applications.get_mut(&party) {
                a.sockets += count;
            }
        }
    }

    /// Raises `flags` in the acceptor's half of all lines to queues that `which` selects.
    fn flag_lines(&self, flags: u32, which: impl Fn(QueueKey) -> bool) {
        for pair in self.pairs.values() {
            for line in pair.lines.iter().filter(|line| which(line.queue)) {
                if let Some(lines) = pair.region.slot(line.slot) {
                    raise(&lines.half[1], flags);
                }
            }
        }
    }

    /// Queue `key` is closed: ends its lines.
    pub fn end_lines(&mut self, key: QueueKey) {
        self.count_lines();
        self.flag_lines(FIN | READ_CLOSED, |queue| queue == key);
    }

    /// Revokes the lines to listeners at that port: each connection must be decided anew, or under other limits.
    pub fn revoke_lines(&self, port: u16) {
        let listeners = self.listeners.all.values().filter(|l| l.local.port() == port);
        let queues: Vec<QueueKey> = listeners.flat_map(|l| l.queues.iter().copied()).collect();
        self.flag_lines(FIN, |queue| queues.contains(&queue));
    }

    /// Revokes all lines: every process must ask again before it connects.
    pub fn revoke_all_lines(&self) {
        self.flag_lines(FIN, |_| true);
    }

    /// Unread records in the lines to queue `key`.
    pub fn unread_in_lines(&self, key: QueueKey) -> u64 {
        let regions = self.listeners.queues.get(&key).into_iter().flat_map(|queue| &queue.lines);
        let pairs = regions.filter_map(|region| self.pairs.get(region));
        let lines = pairs.flat_map(|pair| pair.lines.iter().map(move |line| (pair, line)));
        let of_it = lines.filter(|(_, line)| line.queue == key);
        of_it.filter_map(|(pair, line)| Some(line.unread(&pair.region.slot(line.slot)?.half))).sum()
    }

    /// Adds the connections made and accepted through lines to the statistics.
    pub fn count_lines(&mut self) {
        let (mut counts, now) = (Vec::new(), self.now);
        for pair in self.pairs.values_mut() {
            for line in &mut pair.lines {
                let Some(lines) = pair.region.slot(line.slot) else { continue };
                counts.push((pair.parties, line.count(&lines.half, now)));
            }
        }
        for ([connector, acceptor], [made, taken]) in counts {
            self.accelerated(connector, |p| &mut p.connected, made);
            self.accelerated(acceptor, |p| &mut p.accepted, taken);
        }
    }

    /// A connection in a lent slot was left with the service: the slot is no longer lent.
    pub fn keep_slot(&mut self, left: &Left) {
        let Some(pair) = self.pairs.get_mut(&left.region) else { return };
        let lent = pair.slots.get_mut(left.slot).filter(|c| c.stage == Stage::Lent);
        if let Some(connection) = lent {
            connection.stage = Stage::Accepted;
            pair.lent -= 1;
            if let Some(lines) = pair.region.slot(left.slot) {
                lines.half[1].flags.fetch_and(!LENT, SeqCst);
            }
        }
    }

    /// Lent slots of these regions with a socket in them, for regions with one dead party. Only the other party's family can have such
    /// sockets.
    pub fn lent_in_use(&self, regions: &[u32]) -> InUse {
        let is_half_dead = |pair: &&PairRegion| pair.lent > 0 && pair.dead[0] != pair.dead[1];
        let pairs = regions.iter().filter_map(|id| self.pairs.get(id));
        let survivors = pairs.filter(is_half_dead).map(|p| p.parties[usize::from(p.dead[0])]);
        let families: HashSet<u32> = survivors.filter_map(|party| self.family_of(party)).collect();
        if families.is_empty() {
            return InUse::new();
        }
        let is_theirs = |owner| self.family_of(owner).is_some_and(|family| families.contains(&family));
        self.lent_blocks(is_theirs).collect()
    }

    /// All lent slots with a socket in them.
    pub fn all_lent_in_use(&self) -> InUse {
        if self.pairs.values().all(|pair| pair.lent == 0) {
            return InUse::new();
        }
        self.lent_blocks(|_| true).collect()
    }

    /// The lent slots named by socket blocks of the processes that `of` selects.
    fn lent_blocks(&self, of: impl Fn(u32) -> bool) -> impl Iterator<Item = SlotKey> {
        let regions = self.regions.values().filter(move |r| of(r.owner));
        regions.flat_map(AppRegion::sock_blocks).filter_map(|block| {
            let place = SlotKey { region: block.region.load(Relaxed), slot: block.slot.load(Relaxed) };
            let pair = self.pairs.get(&place.region).filter(|_| block.holders.load(Relaxed) != 0)?;
            let is_lent = pair.slots.get(place.slot).is_some_and(|c| c.stage == Stage::Lent);
            is_lent.then_some(place)
        })
    }
}
