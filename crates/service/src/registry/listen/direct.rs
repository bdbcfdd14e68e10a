//! Direct connections: a process connects to a listener of its own user without asking the service. The service decides once (policy,
//! listener, limits, addresses of each slot) and lends slots of the pair region, each with a grant of the accept queue; only the service
//! can write the grant's record. It takes them back by the queue's epoch: the process must ask again when another socket begins to listen
//! at the port, when holders of the socket change, or when the backlog changes.

use crate::registry::listen::origin::Origin;

use crate::registry::Registry;
use crate::registry::listen::table::{Listener, Listeners};
use crate::registry::local::port_need::For;
use crate::registry::local::port_space::Sort;
use crate::registry::memory::connection::{Connection, GrantKey, Stage};
use crate::registry::memory::pairs::PairRegion;
use crate::registry::memory::region::AppRegion;
use crate::registry::memory::slot_key::SlotKey;
use base::limits::SLOTS_MAX;
use control::{AcceptRecord, Grant, Left, Lent, MESSAGE_MAX};
use shm::SockBlock;
use shm::half_flags::{LENT, RELEASED};
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::time::Duration;

/// Slots granted at once, least and most: each time as many as are granted already. Each time the connector waits for the service, about
/// 140 us on two cores.
const STEP: (u32, u32) = (8, 160);
// All numbers of a step go into one message, at most 3 bytes for each, with room for its other fields.
const _: () = assert!(SLOTS_MAX < 1 << 21 && STEP.1 as usize * 9 + 512 <= MESSAGE_MAX);
/// At most one in this many slots of a region is lent; the service keeps the others for connections that it sets up.
const SHARE: u32 = 2;
/// At most one in this many ports of the kernel's range is granted to one connector for one listener.
const PORTS_SHARE: u32 = 2;
/// To a listener with a smaller backlog each connection asks the service.
const BACKLOG_LEAST: u32 = 8;
/// Pause after a time when no slot could be lent. Each such try looks at all slots and ports.
const PAUSE: Duration = Duration::from_secs(1);
/// No processor makes or accepts a connection in less time; measured, with its end, 18 us.
const CONNECT_LEAST: Duration = Duration::from_micros(1);

/// Lent slots in which a socket lives, according to the socket blocks of their holders, or will.
pub type InUse = HashSet<SlotKey>;

/// The connections that slots are lent for.
#[derive(Clone, Copy, Debug)]
pub struct Lending {
    /// Pair region of the two parties. Both have it.
    pub region: u32,
    /// Id of the listener's accept queue.
    pub queue: u32,
    /// The connector and the acceptor.
    pub parties: [u32; 2],
    /// Address that the connector connects from.
    pub source: IpAddr,
    /// Address of the listener.
    pub local: SocketAddr,
}

/// Most ports granted to one connector for one listener.
fn grants_most() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_ascii_whitespace().filter_map(|word| word.parse::<u32>().ok());
    match (bounds.next(), bounds.next()) {
        (Some(first), Some(last)) => last.saturating_sub(first) / PORTS_SHARE,
        _ => 0,
    }
}

impl PairRegion {
    /// Lent slots for connections between these addresses.
    fn lent_between(&self, source: IpAddr, local: SocketAddr) -> impl Iterator<Item = (u32, &Connection)> {
        self.connections().filter(move |(_, c)| {
            c.stage == Stage::Lent && c.addresses[0].ip() == source && c.addresses[1] == local
        })
    }
}

impl AppRegion {
    /// Connections that the owner has made and accepted without the service since the last call, at most as many as there was time for.
    fn count_direct(&mut self, at: std::time::Instant) -> [u64; 2] {
        let elapsed = at.saturating_duration_since(self.counted_at).as_nanos() / CONNECT_LEAST.as_nanos();
        self.counted_at = at;
        let most = u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_add(1 << 10);
        let now = self.memory.region().header().direct.each_ref().map(|word| word.load(Relaxed));
        let new = [0, 1].map(|i| now[i].saturating_sub(self.counted[i]).min(most));
        (0..2).for_each(|i| self.counted[i] += new[i]);
        new
    }
}

impl Registry {
    /// The grants that a connector needs for further connections. `None`: each connection asks the service.
    pub fn lend(&mut self, lending: Lending) -> Option<Lent> {
        let Lending { queue, parties, source, .. } = lending;
        let uid = self.applications.get(&parties[0])?.uid;
        let listener = self.listeners.all.get(&queue)?;
        if listener.grants.backlog() < BACKLOG_LEAST
            || !parties.iter().all(|party| self.may_be_lent(*party) || !self.applications.contains_key(party))
            || self.has_forked(parties[0])
            || !self.is_of_one_family(listener, uid)
        {
            return None;
        }
        let (grants, are_free) = self.lend_slots(lending);
        let is_new = self.applications.get_mut(&parties[0])?.queues.insert(queue);
        let epoch = self.listeners.all.get(&queue)?.grants.epoch();
        Some(Lent { queue, is_new, epoch, source, grants, are_free })
    }

    /// True when all processes that may accept are of that user and have what the listener's home has mapped.
    fn is_of_one_family(&self, listener: &Listener, uid: u32) -> bool {
        self.acceptors(listener).all(|a| a.uid == uid && a.descends_from(listener.home.application))
    }

    /// Lends more slots, each with its own port and grant: first those that are lent already, for an earlier listener at this address. They
    /// count as sockets of both parties. Also returns whether the slots have no connections.
    fn lend_slots(&mut self, lending: Lending) -> (Vec<Grant>, bool) {
        let Lending { region, queue, parties, source, local } = lending;
        let Some(pair) = self.pairs.get(region).filter(|pair| !pair.is_paused(queue, self.now)) else {
            return (Vec::new(), true);
        };
        let most = pair.region.layout().params.slots / SHARE;
        let room = self.room_to_lend(parties).min(grants_most());
        let is_of = |c: &Connection| c.grant.is_some_and(|key| key.queue == queue);
        let lent: Vec<(u32, bool)> =
            pair.lent_between(source, local).map(|(slot, c)| (slot, is_of(c))).collect();
        let mut grants: Vec<Grant> = lent
            .iter()
            .filter(|(_, is_of_it)| !is_of_it)
            .take(STEP.1 as usize)
            .map_while(|(slot, _)| self.grant_slot(region, *slot, queue))
            .collect();
        let Some(pair) = self.pairs.get(region).filter(|_| grants.is_empty()) else {
            return (grants, false);
        };
        let granted = lent.len() as u32;
        let room = room.saturating_sub(granted);
        let count = granted.clamp(STEP.0, STEP.1).min(most.saturating_sub(pair.lent())).min(room);
        for _ in 0..count {
            let Some(grant) = self.lend_slot(lending) else { break };
            grants.push(grant);
        }
        self.count_sockets(parties, grants.len() as u32);
        if grants.is_empty()
            && let Some(pair) = self.pairs.get_mut(region)
        {
            pair.pause(queue, self.now, self.now + PAUSE);
        }
        if grants.len() == STEP.1 as usize {
            let sort = Sort { is_ipv6: source.is_ipv6(), purpose: For::Lent };
            self.ports.expect(sort, source, local, STEP.1 as usize);
        }
        (grants, true)
    }

    fn lend_slot(&mut self, Lending { region, queue, parties, source, local }: Lending) -> Option<Grant> {
        let port = self.find_port(SocketAddr::new(source, 0), local, false, For::Lent)?;
        let addresses = [SocketAddr::new(source, port), local];
        let pair = self.pairs.get_mut(region)?;
        let lent = Connection { addresses, applications: parties, stage: Stage::Lent, grant: None };
        let slot = pair.take(lent).ok()?;
        let [connector, acceptor] = &pair.region.slot(slot)?.half;
        connector.flags.store(RELEASED, Release);
        acceptor.flags.store(RELEASED, Release);
        self.ports.take(addresses, Origin::Pair(region, slot));
        let grant = self.grant_slot(region, slot, queue);
        if grant.is_none()
            && let Some(pair) = self.pairs.get_mut(region)
        {
            pair.release(slot);
        }
        grant
    }

    /// Gives a lent slot a grant of that queue.
    fn grant_slot(&mut self, region: u32, slot: u32, id: u32) -> Option<Grant> {
        let pair = self.pairs.get_mut(region)?;
        let [peer, local] = pair.connection(slot)?.addresses;
        let listener = self.listeners.all.get_mut(&id)?;
        let record = AcceptRecord { region, slot, side: 1, local, peer };
        let grant = listener.grants.lend((Origin::Pair(region, slot), record))?;
        // An earlier listener that lives on, at an address that this one's is a part of, keeps its grant: it may be in use.
        pair.set_grant(slot, Some(GrantKey { queue: id, grant }));
        Some(Grant { grant, slot, port: peer.port() })
    }

    /// A slot is no longer lent: its grant is free.
    pub fn end_grant(&mut self, grant: Option<GrantKey>) {
        if let Some(GrantKey { queue, grant }) = grant
            && let Some(listener) = self.listeners.all.get_mut(&queue)
        {
            listener.grants.withdraw(grant);
        }
    }

    /// True when a grant is in its queue, or a process is accepting it.
    pub fn is_waiting(listeners: &Listeners, key: GrantKey) -> bool {
        listeners.all.get(&key.queue).is_some_and(|listener| !listener.queue().is_idle(key.grant))
    }

    /// How many more lent sockets both parties may have.
    fn room_to_lend(&self, parties: [u32; 2]) -> u32 {
        let most = self.config.max_sockets / 2;
        let [a, b] =
            parties.map(|id| self.applications.get(&id).map_or(0, |a| most.saturating_sub(a.sockets)));
        if parties[0] == parties[1] { a / 2 } else { a.min(b) }
    }

    /// Has direct connectors to listeners at that port ask the service again.
    pub fn revoke(&mut self, port: u16) {
        for id in self.listeners.at_port(port) {
            self.listeners.all.get(&id).into_iter().for_each(|l| l.grants.revoke());
        }
    }

    /// Has all direct connectors ask the service again.
    pub fn revoke_all(&mut self) {
        self.listeners.all.values().for_each(|l| l.grants.revoke());
    }

    /// Adds the connections made and accepted without the service to the statistics.
    pub fn count_direct(&mut self) {
        let now = self.now;
        let counts: Vec<_> = self.regions.values_mut().map(|r| (r.owner, r.count_direct(now))).collect();
        for (owner, [made, taken]) in counts {
            if made > 0 {
                self.accelerated(owner, |p| &mut p.connected, made);
            }
            if taken > 0 {
                self.accelerated(owner, |p| &mut p.accepted, taken);
            }
        }
    }

    /// A connection in a lent slot was left with the service: the slot is no longer lent.
    pub fn keep_slot(&mut self, left: &Left) {
        let Some(pair) = self.pairs.get_mut(left.region) else { return };
        if pair.connection(left.slot).is_none_or(|c| c.stage != Stage::Lent) {
            return;
        }
        let grant = pair.set_grant(left.slot, None);
        if let Some(lines) = pair.region.slot(left.slot) {
            lines.half[1].flags.fetch_and(!LENT, SeqCst);
        }
        let stage = if self.lend_no_more(grant) { Stage::Queued } else { Stage::Accepted };
        self.set_stage(Origin::Pair(left.region, left.slot), stage);
    }

    /// A slot is no longer lent by that grant. True: a connection waits with the grant, which is for this connection only.
    fn lend_no_more(&mut self, grant: Option<GrantKey>) -> bool {
        let waiting = grant.filter(|grant| Self::is_waiting(&self.listeners, *grant));
        match waiting {
            Some(GrantKey { queue, grant }) => {
                self.listeners.all.get_mut(&queue).into_iter().for_each(|l| l.grants.end_lending(grant));
            }
            None => self.end_grant(grant),
        }
        waiting.is_some()
    }

    /// Lent slots of these regions with a socket in them, or with a connection that the living party may accept, for regions with one dead
    /// party. Only the other party's family can have such sockets.
    pub fn lent_in_use(&self, regions: &[u32]) -> InUse {
        let pairs = regions.iter().filter_map(|id| Some((*id, self.pairs.get(*id)?)));
        let half_dead: Vec<(u32, &PairRegion)> =
            pairs.filter(|(_, pair)| pair.lent() > 0 && pair.is_dead(0) != pair.is_dead(1)).collect();
        let survivors = half_dead.iter().map(|(_, p)| p.parties[usize::from(p.is_dead(0))]);
        let families: HashSet<u32> = survivors.filter_map(|party| self.family_of(party)).collect();
        if families.is_empty() {
            return InUse::new();
        }
        // Before the socket blocks: meanwhile a connection may go from its queue to a block.
        let acceptable = half_dead.iter().filter(|(_, pair)| !pair.is_dead(1)).flat_map(|(region, pair)| {
            let waits = |c: &Connection| c.grant.is_some_and(|key| Self::is_waiting(&self.listeners, key));
            let waiting = pair.connections().filter(move |(_, c)| c.stage == Stage::Lent && waits(c));
            waiting.map(|(slot, _)| SlotKey { region: *region, slot })
        });
        let mut in_use: InUse = acceptable.collect();
        let is_theirs = |owner| self.family_of(owner).is_some_and(|family| families.contains(&family));
        in_use.extend(self.lent_blocks(is_theirs));
        in_use
    }

    /// The lent slots named by socket blocks of the processes that `of` selects.
    fn lent_blocks(&self, of: impl Fn(u32) -> bool) -> impl Iterator<Item = SlotKey> {
        let regions = self.regions.values().filter(move |r| of(r.owner));
        regions.flat_map(AppRegion::sock_blocks).filter_map(|block| self.lent_slot_of(block))
    }

    /// The lent slot that a socket block in use names.
    pub fn lent_slot_of(&self, block: &SockBlock) -> Option<SlotKey> {
        let place = SlotKey { region: block.region.load(Relaxed), slot: block.slot.load(Relaxed) };
        let pair = self.pairs.get(place.region).filter(|_| block.holders.load(Relaxed) != 0)?;
        let is_lent = pair.connection(place.slot).is_some_and(|c| c.stage == Stage::Lent);
        is_lent.then_some(place)
    }
}
