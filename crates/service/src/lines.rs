//! Lines: what a process needs to connect to a listener of another one of its user without asking each time. A line is a slot of
//! their pair region whose stream carries the records of new connections; the slots of those connections are lent beforehand.
//!
//! The service decides once (policy, which process listens, limits, and the addresses that each slot's connections have) and takes back what
//! it has granted by a flag: `FIN` at the acceptor's half when others begin to listen there, `READ_CLOSED` when nothing does any more. What
//! the two sides write there is believed only where it concerns themselves: how many connections each says it has made or taken.

use crate::listeners::{Origin, QueueKey};
use crate::region::{AppRegion, Connection, Line, PairRegion, Stage};
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

/// Slots granted at once, at most; it begins with fewer, and each time it is as many as are granted already. Each time costs the
/// connector a wait for the service, about 140 us on two cores.
const STEP: (u32, u32) = (8, 240);
// Slots and ports of all of them go into one message, 3 bytes each number at most, and leave room for the rest of it.
const _: () = assert!(SLOTS_MAX < 1 << 21 && STEP.1 as usize * 6 + 512 <= MESSAGE_MAX);
/// Of a region's slots only every so manyth is lent: the others are the service's to give.
const SHARE: u32 = 4;
/// Of the ports that the kernel has, only every so manyth is granted to one connector for one listener.
const PORTS_SHARE: u32 = 4;
/// A listener with room for fewer gets no line.
const BACKLOG_LEAST: u32 = 8;
/// In less time no connection is made, and none accepted, by any processor: with its end it takes 18 us where that was measured.
const CONNECT_LEAST: Duration = Duration::from_micros(1);
/// Lines to one queue: the acceptor looks into each.
const LINES_MOST: usize = 8;

/// Lent slots, by region, in which sockets stand by their holders' word.
pub type InUse = HashSet<(u32, u32)>;

/// Ports granted at most for connections from one address to one listener: of those that the kernel gives, most stay for connections
/// that the service is asked for.
fn grants_most() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_ascii_whitespace().filter_map(|word| word.parse::<u32>().ok());
    match (bounds.next(), bounds.next()) {
        (Some(first), Some(last)) => last.saturating_sub(first) / PORTS_SHARE,
        _ => 0,
    }
}

/// What stands for connections of which nothing is known.
fn nothing(parties: [u32; 2], stage: Stage) -> Connection {
    let nowhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    Connection { addresses: [nowhere; 2], applications: parties, stage }
}

/// Of a line, by what both sides write.
fn unread_bytes(connector: &Half, acceptor: &Half) -> u64 {
    connector.tx_head.load(Relaxed).saturating_sub(acceptor.rx_tail.load(Relaxed))
}

impl Line {
    /// Records in it that are not taken; what its owner writes counts for what it may at most.
    fn unread(&self, [connector, acceptor]: &[Half; 2]) -> u64 {
        if connector.flags.load(Acquire) & RELEASED != 0 {
            return 0;
        }
        (unread_bytes(connector, acceptor) / RECORD_LEN as u64).min(u64::from(self.most))
    }

    /// Connections made and connections taken since it was last asked, as far as there was time for so many.
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
    /// The line to a queue by that address, unless it has been taken back or given up.
    fn open_line(&self, key: QueueKey, local: SocketAddr) -> Option<&Line> {
        let is_open = |half: &Half| half.flags.load(Acquire) & (FIN | READ_CLOSED | RELEASED | RESET) == 0;
        let mut of_it = self.lines.iter().filter(|line| (line.queue, line.local) == (key, local));
        of_it.find(|line| self.region.slot(line.slot).is_some_and(|s| s.half.iter().all(is_open)))
    }

    /// Slots of connections between these addresses, whichever way they were made.
    fn between(&self, source: IpAddr, local: SocketAddr) -> impl Iterator<Item = (Stage, Grant)> {
        let is_between = move |c: &Connection| c.addresses[0].ip() == source && c.addresses[1] == local;
        let slots = self.slots.iter().filter(move |(_, c)| is_between(c));
        slots.map(|(slot, c)| (c.stage, Grant { slot, port: c.addresses[0].port() }))
    }

    /// Whether a slot is the service's again. Lent slots stay lent, and lines open, as long as both parties live. What one of them has
    /// scribbled there before it died keeps nothing: then a lent slot stays as long as a socket of the other's stands in it, `is_used`.
    pub fn is_over(&self, slot: u32, is_used: impl FnOnce() -> bool) -> bool {
        let released = |half: &Half| half.flags.load(Acquire) & RELEASED != 0;
        let both = || self.region.slot(slot).is_some_and(|s| s.half.iter().all(released));
        match self.slots.get(slot).map(|c| c.stage) {
            // There may be very many, and this is asked of each now and then.
            Some(Stage::Lent) if !self.has_dead_side() => false,
            Some(Stage::Lent) => {
                both() || !is_used() && self.lines.iter().all(|line| self.is_line_over(line))
            }
            Some(Stage::Line) => both() || self.lines.iter().any(|l| l.slot == slot && self.is_line_over(l)),
            _ => both(),
        }
    }

    /// Whether nothing more comes by a line, or can be taken from it, because a party is dead.
    fn is_line_over(&self, line: &Line) -> bool {
        let Some([connector, acceptor]) = self.region.slot(line.slot).map(|s| &s.half) else { return true };
        let unread = unread_bytes(connector, acceptor);
        self.dead[1] || self.dead[0] && !(1..=u64::from(line.most) * RECORD_LEN as u64).contains(&unread)
    }
}

impl Registry {
    /// What `parties` need for further connections from `source` to the listener with the accept queue `key` at `local`, and whether the
    /// acceptor is to hear of a new line. The region is known to both.
    pub fn lend(
        &mut self,
        (region, key): (u32, QueueKey),
        parties: [u32; 2],
        (source, local): (IpAddr, SocketAddr),
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
                let new =
                    Line { slot: 0, queue: key, local, source, most, counted: [0; 2], asked: Instant::now() };
                (self.new_line(region, parties, new)?, most)
            }
        };
        // Before the acceptor has taken the line no connection can come by it, and its ports would be kept from others.
        let half = &self.pairs.get(&region)?.region.slot(line)?.half[1];
        let grants = match half.flags.load(Acquire) & OPEN {
            0 => Vec::new(),
            _ => self.grant_slots(region, parties, (source, local)),
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

    /// More slots, which count as sockets of both, each with a port of its own.
    fn grant_slots(
        &mut self,
        region: u32,
        parties: [u32; 2],
        (source, local): (IpAddr, SocketAddr),
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

    /// `Request::Grants`: what the acceptor of a line believes of the records in it.
    pub fn grants(&self, id: u32, region: u32, (line, first): (u32, u32)) -> Answer {
        if self.side_in(region, id).is_none() {
            return Answer::refused(Errno::NOENT, "that pair region is gone");
        }
        let pair = self.pairs.get(&region);
        let Some((pair, line)) = pair.and_then(|p| Some((p, p.lines.iter().find(|l| l.slot == line)?)))
        else {
            return Answer::refused(Errno::NOENT, "that line is gone");
        };
        // The slot that is asked for is no lent one any more when its connector has let the connection go to another process.
        let is_told = |(stage, grant): &(Stage, Grant)| {
            grant.slot == first || *stage == Stage::Lent && grant.slot > first
        };
        let told = pair.between(line.source, line.local).filter(is_told).take(STEP.1 as usize);
        let grants = told.map(|(_, grant)| grant);
        Answer::plain(Reply::Grants { local: line.local, source: line.source, grants: grants.collect() })
    }

    /// How many more sockets, that nobody has asked for, both of them may have.
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

    /// Raises `flags` at the acceptor's half of the lines to queues that `which` names.
    fn flag_lines(&self, flags: u32, which: impl Fn(QueueKey) -> bool) {
        for pair in self.pairs.values() {
            for line in pair.lines.iter().filter(|line| which(line.queue)) {
                if let Some(lines) = pair.region.slot(line.slot) {
                    raise(&lines.half[1], flags);
                }
            }
        }
    }

    /// The queue is closed: no connection comes by its lines any more.
    pub fn end_lines(&mut self, key: QueueKey) {
        self.count_lines();
        self.flag_lines(FIN | READ_CLOSED, |queue| queue == key);
    }

    /// Who connects to that port asks again: who shall have the connection has to be decided each time, or within other bounds.
    pub fn revoke_lines(&self, port: u16) {
        let listeners = self.listeners.all.values().filter(|l| l.local.port() == port);
        let queues: Vec<QueueKey> = listeners.flat_map(|l| l.queues.iter().copied()).collect();
        self.flag_lines(FIN, |queue| queues.contains(&queue));
    }

    /// Every process asks again before it connects.
    pub fn revoke_all_lines(&self) {
        self.flag_lines(FIN, |_| true);
    }

    /// Records in the lines to a queue.
    pub fn unread_in_lines(&self, key: QueueKey) -> u64 {
        let regions = self.listeners.queues.get(&key).into_iter().flat_map(|queue| &queue.lines);
        let pairs = regions.filter_map(|region| self.pairs.get(region));
        let lines = pairs.flat_map(|pair| pair.lines.iter().map(move |line| (pair, line)));
        let of_it = lines.filter(|(_, line)| line.queue == key);
        of_it.filter_map(|(pair, line)| Some(line.unread(&pair.region.slot(line.slot)?.half))).sum()
    }

    /// Takes in how many connections were made and accepted without the service.
    pub fn count_lines(&mut self) {
        let (mut counts, now) = (Vec::new(), Instant::now());
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

    /// The service may come to stand at one side of a slot: from now on it is no lent one.
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

    /// Lent slots of these regions in use, where it matters: with one dead party. Only the family of the other can have sockets there.
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

    /// All lent slots in which sockets stand.
    pub fn all_lent_in_use(&self) -> InUse {
        if self.pairs.values().all(|pair| pair.lent == 0) {
            return InUse::new();
        }
        self.lent_blocks(|_| true).collect()
    }

    /// The lent slots that socket blocks of the processes that `of` names stand in.
    fn lent_blocks(&self, of: impl Fn(u32) -> bool) -> impl Iterator<Item = (u32, u32)> {
        let regions = self.regions.values().filter(move |r| of(r.owner));
        regions.flat_map(AppRegion::sock_blocks).filter_map(|block| {
            let place = (block.region.load(Relaxed), block.slot.load(Relaxed));
            let pair = self.pairs.get(&place.0).filter(|_| block.holders.load(Relaxed) != 0)?;
            let is_lent = pair.slots.get(place.1).is_some_and(|c| c.stage == Stage::Lent);
            is_lent.then_some(place)
        })
    }
}
