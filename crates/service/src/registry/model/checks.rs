//! What must hold: after each step, after a long pause, and when all is closed.

use super::linux::End;
use super::walk::Walk;
use super::world::World;
use crate::registry::Registry;
use crate::registry::family::Family;
use crate::registry::listen::origin::Origin;
use crate::registry::memory::connection::Stage;
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use shm::half_flags::{FIN, RELEASED, RESET};
use std::collections::HashMap;

/// Bytes for which the smallest ring has room.
const PIECE: u64 = 4096;

/// After each step: no end shows more than has happened; what is established shows it at once; and the registry's tables agree.
pub fn after_step(walk: &Walk) {
    for (pid, program) in &walk.programs {
        for (socket, link) in program.streams() {
            let (own, peer) = (walk.linux.streams[&socket], walk.linux.peer_of(socket));
            let flags = link.peer_flags();
            let seen = || format!("{pid} sees {flags:#x} at {socket}, whose peer is {peer:?}");
            match peer.end {
                End::Open if peer.is_shut => assert_eq!(flags & (RESET | RELEASED), 0, "{}", seen()),
                End::Open => assert_eq!(flags & (FIN | RESET | RELEASED), 0, "{}", seen()),
                // Once both directions have ended an endpoint takes no notice of a reset.
                End::Finished if own.is_shut => {}
                End::Finished => assert_eq!(flags & RESET, 0, "{}", seen()),
                End::Reset => {}
            }
            if peer.end != End::Reset {
                assert_eq!(link.is_open(), own.is_established, "{}", seen());
            }
            // A relay leaves with the sender what does not fit into the receiver's ring. What comes before a reset can be read, too.
            let (unread, all) = (link.unread() as u64, peer.sent - own.read);
            let least = if link.mapped.pair { all } else { all.min(PIECE) };
            assert!((least..=all).contains(&unread), "{unread} of {all} bytes: {}", seen());
        }
    }
    tables_agree(&walk.world.registry);
}

/// After a long pause: each end shows all that has happened.
pub fn at_rest(walk: &Walk) {
    for (pid, program) in &walk.programs {
        for (socket, link) in program.streams() {
            let peer = walk.linux.peer_of(socket);
            let flags = link.peer_flags();
            let is_shown = match peer.end {
                End::Open if !peer.is_shut => true,
                End::Open | End::Finished => flags & FIN != 0,
                End::Reset => flags & RESET != 0 || link.is_over(),
            };
            assert!(is_shown, "{pid} still sees {flags:#x} at {socket}, whose peer is {peer:?}");
        }
    }
    let known: usize = walk.world.registry.listeners.all.len();
    assert!(known <= walk.linux.listeners.len(), "{known} accept queues for {:?}", walk.linux.listeners);
}

/// Each name in the registry's tables names something, and the counts are right.
fn tables_agree(r: &Registry) {
    let mut sockets: HashMap<u32, u32> = HashMap::new();
    let mut count = |application: u32| *sockets.entry(application).or_default() += 1;
    for (id, pair) in r.pairs.iter() {
        assert_eq!(pair.region.layout().params.id, u64::from(id));
        if !pair.has_dead_side() {
            assert_eq!(r.pairs.of(pair.parties), Some(id), "pair region {id} is not found");
        }
        let lent = pair.connections().filter(|(_, c)| c.stage == Stage::Lent).count();
        assert_eq!(pair.lent() as usize, lent, "lent slots of pair region {id}");
        for (slot, connection) in pair.connections() {
            connection.applications.into_iter().for_each(&mut count);
            // A lent slot keeps the grant of a listener that has ended, until one listens there again.
            let is_stale =
                |queue: &u32| connection.stage == Stage::Lent && !r.listeners.all.contains_key(queue);
            let grant = connection.grant.filter(|key| !is_stale(&key.queue));
            let grant = grant.map(|key| r.listeners.all[&key.queue].grants.get(key.grant));
            let is_its = |(origin, _): (Origin, _)| origin == Origin::Pair(id, slot);
            assert!(grant.is_none_or(|grant| grant.is_some_and(is_its)), "grant of {connection:?}");
        }
        let is_known = |party: &u32| r.family_of(*party).is_some() || pair.has_dead_side();
        assert!(pair.parties.iter().all(is_known), "of {:?}, parties of pair region {id}", pair.parties);
    }
    for (id, relay) in &r.relays {
        for (end, SlotKey { region, slot }) in relay.places() {
            let used = r.regions.get(&region).and_then(|region| region.slots.get(slot));
            let is_its = matches!(used, Some(Use::Relay(of, at)) if (*of, *at) == (*id, end));
            assert!(is_its, "end {end} of relay {id} is at {used:?}");
            count(relay.connection.applications[end]);
        }
    }
    for (id, region) in &r.regions {
        assert_eq!(r.indices.get(u32::from(region.memory.index)), Some(id));
        assert!(r.family_of(region.owner).is_some(), "the owner of region {id} is unknown");
        for (slot, used) in region.slots.iter() {
            let Use::Relay(relay, end) = used else { panic!("there is no port") };
            let place = r.relays.get(relay).and_then(|relay| relay.place(*end));
            assert_eq!(place, Some(SlotKey { region: *id, slot }), "slot of relay {relay}");
        }
    }
    for (id, listener) in &r.listeners.all {
        assert_eq!(r.listeners.of_socket(listener.cookie), Some(*id));
        assert!(r.listeners.at_port(listener.local.port()).contains(id));
        assert!(listener.grants.agrees());
        listener.holders.present().for_each(&mut count);
    }
    applications_agree(r, &sockets);
    trusts_agree(r);
}

/// Each trust that a relay carries on has that relay, and no slot that a trust names is free.
pub fn trusts_agree(r: &Registry) {
    for (key, trust) in r.trusts.iter() {
        assert!(trust.relay.is_none_or(|relay| r.relays.contains_key(&relay)), "trust {key}: {trust:?}");
        let slot = SlotKey::of_left(&trust.left);
        assert_eq!(r.trusts.at(slot, trust.left.side), Some(key), "not found: {trust:?}");
        assert!(r.trusts.has_block(&trust.left), "its block is not found: {trust:?}");
        let (pair, region) = (r.pairs.get(slot.region), r.regions.get(&slot.region));
        let is_pairs = pair.is_some_and(|pair| pair.connection(slot.slot).is_some());
        let is_regions = region.is_some_and(|region| region.slots.get(slot.slot).is_some());
        assert!(is_pairs || is_regions, "trust {key} names a free slot: {trust:?}");
    }
}

fn applications_agree(r: &Registry, sockets: &HashMap<u32, u32>) {
    for (id, a) in &r.applications {
        let family = &r.families[&a.family()];
        assert!(family.member(*id).is_some() && !family.is_free(a.holder));
        assert!(a.region.is_none_or(|region| r.regions.get(&region).is_some_and(|r| r.owner == *id)));
        assert!(a.pairs.iter().all(|pair| r.pairs.get(*pair).is_some()));
        assert!(a.queues.iter().all(|queue| r.listeners.all.contains_key(queue)));
        assert_eq!(a.sockets, sockets.get(id).copied().unwrap_or(0), "sockets of application {id}");
    }
    let promised = r.families.values().flat_map(Family::promises).count();
    assert_eq!(r.promises.len(), promised, "lines of promised children");
    for (id, family) in &r.families {
        let held =
            r.applications.values().filter(|a| a.family() == *id).fold(0, |all, a| all | 1 << a.holder);
        assert_eq!(family.holders(), held, "holders of family {id}");
        for (holder, promise) in family.promises() {
            assert!(family.is_free(holder), "a process of family {id} has the bit of {promise:?}");
            assert!(family.member(promise.parent).is_some() && r.has_promise(promise.line), "{promise:?}");
        }
        let of_living: usize = r.applications.keys().map(|a| family.contexts_of(*a).count()).sum();
        assert_eq!(family.contexts().count(), of_living, "contexts of family {id}");
    }
}

/// All processes have ended: the service is as new.
pub fn nothing_is_left(world: &World) {
    let r = &world.registry;
    assert!(r.applications.is_empty() && r.families.is_empty(), "{:?} {:?}", r.applications, r.families);
    assert!(r.promises.is_empty(), "{:?}", r.promises);
    assert!(r.regions.is_empty() && r.pairs.ids().is_empty(), "{:?} {:?}", r.regions, r.pairs);
    assert!(r.relays.is_empty(), "{:?}", r.relays);
    assert!(r.listeners.all.is_empty() && r.listeners.stopped.is_empty(), "{:?}", r.listeners);
    assert!(r.held.due(r.now).is_none());
    assert!(r.trusts.is_empty(), "{:?}", r.trusts);
    assert!(r.ports.kept_ports().is_empty() && !r.keeps_ports());
    assert_eq!(r.indices.used(), 0, "places in the cores' tables");
    assert!(world.watched.is_empty(), "{:?}", world.watched);
    assert_eq!(world.core.watched(), world.watched_first, "wakers that the core watches");
    assert_eq!(world.core.leftovers(), "", "at the core");
}
