//! Ends of sockets, applications and regions. Sockets of a dead process are closed as Linux would close them, and their peers are told at
//! once.

use crate::cores::{Command, RELAY_CORE};
use crate::registry::application::Application;
use crate::registry::channels::OWNER;
use crate::registry::family::Family;
use crate::registry::listen::direct::InUse;
use crate::registry::memory::pairs::PairRegion;
use crate::registry::memory::region::{AppRegion, Use};
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::output::Output;
use crate::registry::{Answer, Registry};
use control::Push;
use queue::Doorbell;
use queue::stream::close_for;
use shm::half_flags::RELEASED;
use shm::sock_state::HELD;
use shm::{Half, MOVED, Side, SockBlock, TRUST, TRUST_CONTEXT};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The connection that a socket block names. Hostile.
#[derive(Clone, Copy, Debug)]
struct Named {
    region: u32,
    slot: u32,
    ports: u32,
    /// End of its stream, if bytes of it are held back.
    head: Option<u64>,
}

impl Named {
    fn in_block(block: &SockBlock) -> Self {
        Self {
            region: block.region.load(Ordering::Relaxed),
            slot: block.slot.load(Ordering::Relaxed),
            ports: block.ports.load(Ordering::Relaxed),
            head: (block.state.load(Ordering::Acquire) & HELD != 0)
                .then(|| block.tx_head.load(Ordering::Acquire)),
        }
    }

    /// Publishes the bytes that a dead process held back before its stream ends, as Linux does.
    fn say_last_words(&self, own: &Half) {
        if let Some(head) = self.head
            && own.flags.load(Ordering::Acquire) & RELEASED == 0
        {
            own.tx_head.fetch_max(head, Ordering::AcqRel);
        }
    }
}

/// Index of the side of a pair region that a socket block names, given whether a process is of the block's family. `None`: neither side.
pub fn side_named(
    pair: &PairRegion,
    slot: u32,
    ports: u32,
    is_relative: impl Fn(u32) -> bool,
) -> Option<usize> {
    match pair.parties.map(is_relative) {
        [true, false] => Some(0),
        [false, true] => Some(1),
        [false, false] => None,
        // Both sides are of this family: the block's ports tell which end it is.
        [true, true] => match pair.connection(slot) {
            Some(c) if ports >> 16 == u32::from(c.addresses[0].port()) => Some(0),
            _ => Some(1),
        },
    }
}

impl Registry {
    /// Answers `Request::Closed`: a process has closed a relayed connection or one over the port.
    pub fn closed(&mut self, id: u32, region: u32, slot: u32) -> Answer {
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let Some(r) = self.regions.get(&region) else { return Answer::Silent };
        if !a.descends_from(r.owner) {
            return Answer::Offence("it closed a stranger's socket".to_owned());
        }
        if !self.is_slot_released(region, slot) {
            // The message came late: the slot is another connection's by now.
            return Answer::Silent;
        }
        match r.slots.get(slot) {
            Some(Use::Relay(relay, _)) => self.look_at_relay(*relay),
            Some(Use::Flow(_)) => self.close_flow(region, slot, false),
            None => {}
        }
        Answer::Silent
    }

    /// The holder bit is free for the next child. Only after the bit is out of every block: a parent gives it to its next child at once.
    pub fn give_holder_back(&self, id: u32, holder: u8) {
        if let Some(header) = self.oldest_region(id).map(|r| r.memory.region().header()) {
            header.holders_taken.fetch_and(!(1 << holder), Ordering::AcqRel);
        }
    }

    /// A process has ended, or is detached for misbehaviour (`offender`): closes everything that no other process holds.
    pub fn depart(&mut self, id: u32, offender: bool) {
        self.break_promise(id, false);
        self.count_direct();
        let Some(a) = self.applications.remove(&id) else { return };
        tracing::debug!(application = id, pid = %a.process.number, offender, "left");
        let family_id = a.family();
        self.free_contexts(&a);
        if let Some(family) = self.families.get_mut(&family_id) {
            family.leave(a.holder);
        }
        // Blocks with its bit or with one of its children are in its own region or in an ancestor's: its relatives may have very many others.
        self.release_holders(family_id, |owner| a.descends_from(owner), 1 << a.holder, offender);
        self.wake_for_dead(&a);
        self.give_holder_back(id, a.holder);
        self.repair_queues(&a);
        self.statistics.end(a.process);
        self.trusts.hurry(a.uid, self.now, Duration::ZERO);
        if offender {
            self.break_promises_of(id, family_id);
        }
        self.reap(offender);
        self.reap_on_time();
    }

    /// Holder bits that processes of the family have taken: each its own, and before it forks the child's. Hostile.
    pub fn taken_holders(&self, id: u32) -> u64 {
        let header = self.oldest_region(id).map(|r| r.memory.region().header());
        header.map_or(0, |header| header.holders_taken.load(Ordering::Acquire)) & !TRUST
    }

    /// Ends everything that no live process holds.
    pub fn reap(&mut self, offender: bool) {
        // The service must find the family of a connection that another holder of a socket may accept.
        let awaited: HashSet<u32> =
            self.owners_of_unaccepted().into_iter().filter_map(|owner| self.family_of(owner)).collect();
        let is_over = |(id, family): &(&u32, &Family)| {
            !(family.has_life() || self.trusts.has_family(**id) || awaited.contains(*id))
        };
        let over: Vec<u32> = self.families.iter().filter(is_over).map(|(id, _)| *id).collect();
        over.iter().for_each(|family| self.release_holders(*family, |_| true, u64::MAX, offender));
        let held = self.held();
        self.end_sides(&held, offender);
        let gone: Vec<u32> =
            self.regions.values().filter(|r| !held.contains(&r.owner)).map(|r| r.memory.id).collect();
        gone.into_iter().for_each(|id| self.drop_region(id, offender));
        over.iter().for_each(|id| drop(self.families.remove(id)));
        self.forget_members();
    }

    /// Forgets dead processes that nothing refers to. A server that forks for each connection has very many of them.
    fn forget_members(&mut self) {
        let owners = self.regions.values().map(|r| r.owner);
        let parties = self.pairs.values().flat_map(|pair| pair.parties);
        let homes = self.listeners.all.values().flat_map(|l| l.holders.shown());
        let left: HashSet<u32> = owners.chain(parties).chain(self.trusts.owners()).chain(homes).collect();
        let Self { families, applications, .. } = self;
        for family in families.values_mut() {
            family.forget_members(|id| applications.contains_key(&id) || left.contains(&id));
        }
    }

    /// Processes that must count as alive: those that live, those that have promised children which may still say hello, their ancestors, and
    /// owners of connections that were left with the service.
    fn held(&self) -> HashSet<u32> {
        let living = self.applications.values().flat_map(|a| a.ancestors.iter().copied().chain([a.id]));
        let promising = self.promising().into_iter().flat_map(|parent| self.line_of(parent));
        // The service's own region ends with the service.
        living
            .chain(promising)
            .chain(self.trusts.owners())
            .chain(self.owners_of_unaccepted())
            .chain([OWNER])
            .collect()
    }

    fn free_contexts(&mut self, a: &Application) {
        let Some(family) = self.families.get_mut(&a.family()) else { return };
        let mine = family.remove_contexts_of(a.id);
        mine.iter().for_each(|n| self.wakers.set_context(a.family(), *n, None));
        if let Some(region) = self.oldest_region(a.id) {
            let taken = &region.memory.region().header().context_taken[Side::One.index()];
            for n in mine {
                taken[n as usize / 64].fetch_and(!(1 << (n % 64)), Ordering::AcqRel);
            }
        }
    }

    /// The region where a process, dead or alive, takes numbers of contexts and holder bits: that of the oldest ancestor with a region.
    fn oldest_region(&self, id: u32) -> Option<&AppRegion> {
        self.line_of(id).filter_map(|id| self.regions.values().find(|r| r.owner == id)).next()
    }

    /// A process, dead or alive, after its ancestors, the oldest first.
    pub fn line_of(&self, id: u32) -> impl Iterator<Item = u32> {
        let member = self.family_of(id).and_then(|family| self.families.get(&family)?.member(id));
        member.into_iter().flat_map(move |member| member.ancestors.iter().copied().chain([id]))
    }

    /// Clears `bits` in the socket blocks of the family's regions, as far as the owner of a region `may_have` them. Closes the sockets that no
    /// process holds then.
    pub fn release_holders(
        &mut self,
        family: u32,
        may_have: impl Fn(u32) -> bool,
        bits: u64,
        offender: bool,
    ) {
        let members: Vec<u32> = self.families.get(&family).into_iter().flat_map(Family::member_ids).collect();
        let (mut orphans, mut shared) = (Vec::new(), Vec::new());
        for r in self.regions.values().filter(|r| members.contains(&r.owner) && may_have(r.owner)) {
            for block in r.sock_blocks() {
                if block.holders.load(Ordering::Acquire) & bits == 0 {
                    continue;
                }
                // The slot of a moved connection may have another one by now. Read before the bits are cleared: after that the block may be
                // reused.
                let is_here = block.rx_lock.load(Ordering::Acquire) != MOVED;
                let named = Named::in_block(block);
                let before = block.holders.fetch_and(!bits, Ordering::AcqRel);
                if before & bits != 0 && is_here {
                    let of = if before & !bits == 0 { &mut orphans } else { &mut shared };
                    of.push(named);
                }
            }
        }
        shared.into_iter().for_each(|named| self.announce_for_dead(&members, named));
        orphans.into_iter().for_each(|named| self.close_named(&members, named, offender));
    }

    /// Closes the connection that a dead process's socket block names, if it belongs to that family.
    fn close_named(&mut self, members: &[u32], named: Named, offender: bool) {
        let Named { region, slot, ports, .. } = named;
        if let Some(r) = self.regions.get(&region).filter(|r| members.contains(&r.owner)) {
            match r.slots.get(slot) {
                Some(Use::Relay(relay, end)) => {
                    if let Some((_, app)) = r.memory.halves(slot) {
                        named.say_last_words(app);
                    }
                    self.close_relay_end(*relay, *end, offender);
                }
                Some(Use::Flow(_)) => self.close_flow(region, slot, offender),
                None => {}
            }
            return;
        }
        let Some(pair) = self.pairs.get(region) else { return };
        let Some(side) = side_named(pair, slot, ports, |id| members.contains(&id)) else { return };
        if let Some(lines) = pair.region.slot(slot).filter(|_| pair.connection(slot).is_some()) {
            named.say_last_words(&lines.half[side]);
        }
        self.close_end(region, slot, side, offender);
    }

    /// Closes one end of a pair connection as Linux does when a process dies: by a reset if bytes are unread, else by a FIN.
    pub fn close_end(&self, region: u32, slot: u32, side: usize, reset: bool) {
        let Some(pair) = self.pairs.get(region) else { return };
        if pair.connection(slot).is_none() {
            return;
        }
        let Some(half) = pair.region.slot(slot).map(|s| &s.half) else { return };
        let (own, peer) = (&half[side], &half[side ^ 1]);
        if close_for(own, peer, reset) {
            self.ring_other_side(pair, side, slot);
        }
    }

    /// Rings for the end of side `side` of a pair region at the other end.
    fn ring_other_side(&self, pair: &PairRegion, side: usize, slot: u32) {
        let other = if side == 0 { Side::One } else { Side::Zero };
        self.ring_for_dead(&pair.region, other, self.family_at(pair, other), slot);
    }

    /// Wakes all that the process may have been about to wake when it was killed. A producer sets a bit, takes the mark of the sleeper and
    /// writes its eventfd; once the mark is taken no other producer writes it. Its relatives use the same doorbells.
    fn wake_for_dead(&mut self, dead: &Application) {
        for pair in self.pairs.values() {
            if !pair.parties.iter().any(|party| dead.descends_from(*party)) {
                continue;
            }
            // A bit that the consumer has yet to take. It may be awake and about to: one more write of its eventfd does no harm.
            let is_rung =
                |side, context| Doorbell::of(&pair.region, side, context).is_some_and(Doorbell::has_news);
            for (side, party) in [Side::Zero, Side::One].into_iter().zip(pair.parties) {
                let Some(family) = self.family_of(party) else { continue };
                let contexts = self.families.get(&family).into_iter().flat_map(Family::contexts);
                let all = contexts.chain([TRUST_CONTEXT]);
                all.filter(|context| is_rung(side, *context)).for_each(|context| self.wake(family, context));
            }
        }
        let regions = self.regions.values().filter(|r| dead.descends_from(r.owner));
        self.hear_again(regions.map(|r| r.memory.id).collect());
    }

    /// Has the control loop and all cores look at the doorbells of these application regions.
    fn hear_again(&mut self, regions: Vec<u32>) {
        regions.into_iter().for_each(|region| self.unheard.add(region));
        (0..self.cores.len()).for_each(|core| self.wake_core(core));
    }

    /// Announces what a process has published on a connection that others go on using: it may have been killed before it did so.
    fn announce_for_dead(&mut self, members: &[u32], Named { region, slot, ports, .. }: Named) {
        if let Some(r) = self.regions.get(&region).filter(|r| members.contains(&r.owner)) {
            if let Some(Use::Relay(..) | Use::Flow(_)) = r.slots.get(slot) {
                r.memory.ring_service(slot);
                self.hear_again(vec![region]);
            }
            return;
        }
        let Some(pair) = self.pairs.get(region) else { return };
        let Some(side) = side_named(pair, slot, ports, |id| members.contains(&id)) else { return };
        self.ring_other_side(pair, side, slot);
    }

    /// Closes all connections on sides of pair regions where no process lives any more.
    fn end_sides(&mut self, held: &HashSet<u32>, offender: bool) {
        let ids: Vec<u32> = self.pairs.ids();
        let mut ended = Vec::new();
        for id in ids {
            for side in 0..2 {
                let Some(pair) = self.pairs.get(id) else { break };
                if pair.is_dead(side) || held.contains(&pair.parties[side]) {
                    continue;
                }
                let slots: Vec<u32> = pair.connections().map(|(slot, _)| slot).collect();
                slots.into_iter().for_each(|slot| self.close_end(id, slot, side, offender));
                // An offender's region ends at once: the offender could go on writing as long as its peer reads.
                self.pairs.end_side(id, side, offender);
                ended.push(id);
            }
        }
        // Sweeps find the ends in regions where one side was dead before.
        let in_use = self.lent_in_use(&ended);
        for id in ended {
            self.sweep_pair(id, &in_use);
            self.drop_pair_if_over(id);
        }
    }

    /// True while a pair region has a dead side and the other side has not closed all its connections.
    pub fn has_survivors(&self) -> bool {
        self.pairs.values().any(PairRegion::has_dead_side)
    }

    /// Ends a pair region with a dead side when its last connection has ended, or both sides are dead.
    fn drop_pair_if_over(&mut self, id: u32) {
        let Some(pair) = self.pairs.remove_if_over(id) else { return };
        for waker in pair.relays_wakers() {
            self.command(RELAY_CORE, Command::Unwatch(waker.clone()));
        }
        for (_, connection) in pair.connections() {
            self.end_grant(connection.grant);
            self.uncount_sockets(connection.applications);
        }
        // A forked child has its parent's mappings without having asked for them. A party that has asked for none itself has none: it may be a
        // server's first process, which only waits for its children and would never read what it is told.
        let has = |a: &&Application| {
            a.pairs.contains(&id) || pair.parties.iter().any(|party| a.ancestors.contains(party))
        };
        let told: Vec<u32> = self.applications.values().filter(has).map(|a| a.id).collect();
        for application in told {
            if let Some(a) = self.applications.get_mut(&application) {
                a.pairs.remove(&id);
            }
            self.push(application, Push::Revoked { region: id });
        }
    }

    /// Frees the slots of one pair region that are closed at both ends. Returns how many.
    pub fn sweep_pair(&mut self, id: u32, in_use: &InUse) -> usize {
        let Self { pairs, ports, now, .. } = self;
        let Some(pair) = pairs.get_mut(id) else { return 0 };
        let is_over =
            |slot: &u32| pair.is_over(*slot, || in_use.contains(&SlotKey { region: id, slot: *slot }));
        let slots: Vec<u32> = pair.connections().map(|(slot, _)| slot).filter(is_over).collect();
        ports.note_pair(id, pair, &slots, *now);
        let ended: Vec<_> = slots.iter().filter_map(|slot| pair.release(*slot)).collect();
        slots.iter().for_each(|slot| self.forget_trusts_at(SlotKey { region: id, slot: *slot }));
        ended.iter().for_each(|c| self.end_grant(c.grant));
        self.uncount_sockets(ended.iter().flat_map(|c| c.applications));
        ended.len()
    }

    /// Frees the slots of closed connections in all pair regions. Returns how many, and whether sweeping must go on.
    pub fn sweep(&mut self) -> (usize, bool) {
        let ids: Vec<u32> = self.pairs.ids();
        let (mut freed, in_use) = (0, self.lent_in_use(&ids));
        for id in ids {
            freed += self.sweep_pair(id, &in_use);
            self.drop_pair_if_over(id);
        }
        // A lent slot stays the connector's: while both parties live there is nothing to sweep.
        let has_own = |p: &PairRegion| p.used() > p.lent();
        (freed, self.pairs.values().any(|p| has_own(p) || p.has_dead_side()))
    }

    fn drop_region(&mut self, id: u32, offender: bool) {
        let ends = self.relays.iter().flat_map(|(relay, r)| {
            r.places().filter(|(_, place)| place.region == id).map(|(end, _)| (*relay, end))
        });
        let ends: Vec<(u32, usize)> = ends.collect();
        ends.into_iter().for_each(|(relay, end)| self.close_relay_end(relay, end, offender));
        let uses = self.regions.get(&id).into_iter().flat_map(|r| r.slots.iter());
        let flows: Vec<u32> = uses.filter(|(_, u)| matches!(u, Use::Flow(_))).map(|(slot, _)| slot).collect();
        flows.into_iter().for_each(|slot| self.close_flow(id, slot, offender));
        if let Some(region) = self.regions.remove(&id) {
            self.outputs.add(Output::Unwatch(region.wakers[0].clone()));
            self.wakers.set_region(region.memory.index, None);
            self.forget_channels_of(&region);
            for (core, waker) in region.wakers[1..].iter().enumerate() {
                self.command(core, Command::Unwatch(waker.clone()));
            }
            self.depart_region(region.memory, offender);
        }
    }
}
