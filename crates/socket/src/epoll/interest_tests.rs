//! The order in which a set tells of its sockets, and its places.

use super::*;
use endpoint::Endpoint;
use session::host::HOST;
use shm::{Kind, Params, Region, Side};

const SLOTS: u32 = 256;

fn mapped() -> [Arc<Mapped>; 2] {
    [(Kind::Pair, 1), (Kind::Application, 2)].map(|(kind, id)| {
        let params = Params { kind, id, slots: SLOTS, data_len: 1 << 20 };
        let (region, _) = Region::create(params).unwrap();
        Arc::new(Mapped::new(&HOST, Side::One, Arc::new(region), 16))
    })
}

/// An open connection, which is always writable.
fn writable([pair, home]: &[Arc<Mapped>; 2], slot: u32) -> Arc<Sock> {
    let link = Endpoint::new(pair.clone(), slot, home.clone(), slot);
    link.begin(true, true);
    pair.halves(slot).1.flags.store(shm::half_flags::OPEN, Ordering::Relaxed);
    Arc::new(Sock::accepted(libc::AF_INET, link))
}

fn collect_in_order(set: &mut Interest, most: usize) -> Vec<u64> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; most];
    let n = set.collect(&mut events);
    events[..n].iter().map(|event| event.u64).collect()
}

fn collect(set: &mut Interest, most: usize) -> Vec<u64> {
    let mut data = collect_in_order(set, most);
    data.sort_unstable();
    data
}

#[test]
fn what_stays_ready_goes_behind_what_was_not_told_of_and_what_has_come() {
    let mapped = mapped();
    let mut set = Interest::default();
    let socks: Vec<_> = (0..7).map(|n| writable(&mapped, n)).collect();
    for (n, sock) in socks.iter().enumerate().take(5) {
        set.add(n as RawFd, sock.clone(), ready::OUT, n as u64, false);
    }
    assert_eq!(collect_in_order(&mut set, 3), [0, 1, 2]);
    set.add(5, socks[5].clone(), ready::OUT | EDGE, 5, false);
    assert_eq!(collect_in_order(&mut set, 3), [3, 4, 0]);
    set.add(6, socks[6].clone(), ready::OUT, 6, false);
    assert_eq!(collect_in_order(&mut set, 4), [1, 2, 5, 3]);
    // The edge-triggered socket, 5, is not reported again.
    assert_eq!(collect_in_order(&mut set, 10), [4, 0, 6, 1, 2, 3]);
}

#[test]
fn what_is_closed_while_it_is_ready_is_reported_no_more_and_others_once() {
    let (mapped, out) = (mapped(), ready::OUT);
    let mut set = Interest::default();
    let add = |set: &mut Interest, n: u32| {
        let sock = writable(&mapped, n);
        set.add(n as RawFd, sock.clone(), out, u64::from(n), false);
        sock
    };
    let socks: Vec<_> = (0..100).map(|n| add(&mut set, n)).collect();
    assert_eq!(collect(&mut set, 1000), (0..100).collect::<Vec<_>>());
    for (n, sock) in socks.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        assert!(set.take(n as RawFd, sock).is_some());
    }
    assert!(set.has_ready() && set.would_collect());
    // New items stand behind the removed ones in the queue, and do not reuse their numbers yet.
    let more: Vec<_> = (100..200).map(|n| add(&mut set, n)).collect();
    let odd = (0..100).filter(|n| n % 2 == 1);
    assert_eq!(collect(&mut set, 1000), odd.chain(100..200).collect::<Vec<_>>());
    for (n, sock) in socks.iter().enumerate().filter(|(n, _)| n % 2 == 1) {
        assert!(set.take(n as RawFd, sock).is_some());
    }
    for (n, sock) in more.iter().enumerate() {
        assert!(set.take(n as RawFd + 100, sock).is_some());
    }
    assert!(!set.has_ready() && !set.would_collect() && set.is_empty());
    assert!(set.watches.is_empty() && set.items.len() <= 300, "{} places", set.items.len());
}

#[test]
fn a_set_that_nobody_waits_on_does_not_grow_with_what_has_come_and_gone() {
    let mapped = mapped();
    let mut set = Interest::default();
    for n in 0..10_000 {
        let sock = writable(&mapped, n % SLOTS);
        set.add(7, sock.clone(), ready::OUT, 0, false);
        assert!(set.take(7, &sock).is_some());
    }
    assert!(set.items.len() < 100 && set.ready.len() < 100, "{} places", set.items.len());
}

#[test]
fn what_came_first_is_told_of_first_whatever_slot_and_region_it_came_by() {
    const CONTEXT: u32 = 3;
    let mut set = Interest::default();
    let ours = [mapped(), mapped()];
    let theirs = ours.each_ref().map(|[pair, _]| Mapped::new(&HOST, Side::Zero, pair.region.clone(), 16));
    let places = [(0, 4), (0, 9), (0, 70), (1, 1), (1, 4), (1, 200)];
    let socks = places.map(|(region, slot)| writable(&ours[region], slot));
    for (n, sock) in socks.iter().enumerate() {
        let (region, slot) = places[n];
        ours[region][0].halves(slot).0.context.store(CONTEXT + 1, Ordering::Relaxed);
        set.add(n as RawFd, sock.clone(), ready::OUT | EDGE, n as u64, false);
    }
    assert_eq!(collect_in_order(&mut set, 10).len(), places.len());
    for order in [[4, 2, 0, 5, 3, 1], [0, 3, 1, 4, 2, 5]] {
        for n in order {
            let (region, slot) = places[n as usize];
            theirs[region].halves(slot).0.tx_head.fetch_add(1, Ordering::Relaxed);
            assert_eq!(theirs[region].tell(slot), None);
            // Waits for the next tick, since the counter's clock may be coarse.
            let now = cycles::moment();
            while cycles::moment() == now {}
        }
        assert!(!set.drain(CONTEXT));
        assert_eq!(collect_in_order(&mut set, 10), order);
    }
}
