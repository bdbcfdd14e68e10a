//! Loom models of a program's ring (crate `ring`), which publishes many streams behind one barrier, sleeps on several doorbells at once, is
//! woken by other threads, and takes connections over from other holders. The models call the functions that it calls, in its order.

use crate::batch::{self, owed, to_tell};
use crate::holding::{keep, keep_no_more, let_go, open, open_kept, seize, set_up};
use crate::models::model;
use crate::stream::{Sender, barrier, consumed, note_consumed, readable, watch};
use crate::waking::{Asleep, Woken};
use crate::{Doorbell, Ring, Wake};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use shm::{ContextBlock, Half, KEPT, MOVED, SockBlock, TRUST};

const AREA: u64 = 1 << 20;
/// The number of the peer's context.
const CONTEXT: u32 = 7;
/// A thread that sets a connection up.
const THREAD: u32 = 11;
/// Holder bits of two processes.
const OURS: u64 = 1;
const ANOTHER: u64 = 2;

/// The connections of a ring with one peer: for each the ring's half, the peer's half, and the ring's socket block.
#[derive(Default)]
struct Shared {
    own: [Half; 2],
    peer: [Half; 2],
    blocks: [SockBlock; 2],
    /// The peer's doorbell, at which the ring rings.
    bell: ContextBlock,
}

impl Shared {
    /// The ring has lent a ring of bytes to each connection.
    fn lent() -> Self {
        let shared = Self::default();
        for (own, block) in shared.own.iter().zip(&shared.blocks) {
            let mut sender = Sender::default();
            sender.lend(own, Ring::new(0, 12));
            sender.keep(block);
        }
        shared
    }

    /// Ring::flush: publishes the connections with bytes, then tells the peer of all by one bell. True: the peer is to be woken.
    fn flush(&self, owes: [u8; 2]) -> bool {
        for i in (0..2).filter(|i| owes[*i] & owed::BYTES != 0) {
            batch::publish(&self.own[i], &self.blocks[i]);
        }
        barrier();
        let told = |i: &usize| owes[*i] != 0 && to_tell(owes[*i], &self.peer[*i]) == Some(CONTEXT);
        let bits = (0..2).filter(told).fold(0, |bits, i| bits | 1 << i);
        bits != 0 && Doorbell::new(&self.bell, 1).ring_many(0, bits) == Wake::Needed
    }

    /// Bytes of connection `i` that the peer can read.
    fn seen(&self, i: usize) -> usize {
        readable(&self.own[i], 0, AREA).unwrap().map_or(0, |found| found.total)
    }
}

/// The ring's thread: commits 10 and 20 bytes and flushes. True: the peer is to be woken.
fn send_on_both(shared: &Arc<Shared>) -> thread::JoinHandle<bool> {
    let shared = shared.clone();
    thread::spawn(move || {
        batch::commit(&shared.blocks[0], 10);
        batch::commit(&shared.blocks[1], 20);
        shared.flush([owed::BYTES; 2])
    })
}

/// The peer begins to watch both connections, looks at them, and sleeps if it finds nothing.
#[test]
fn loom_a_flush_of_many_leaves_no_peer_asleep_that_has_not_seen_all() {
    model(|| {
        let shared = Arc::new(Shared::lent());
        let ring = send_on_both(&shared);
        let bell = Doorbell::new(&shared.bell, 1);
        (0..2).for_each(|i| watch(&shared.peer[i], Some(CONTEXT)));
        let first = [0, 1].map(|i| shared.seen(i));
        let mut seen = first;
        let sleeps = bell.prepare_sleep();
        let is_woken = ring.join().unwrap();
        bell.drain(64, |slot| seen[slot as usize] = shared.seen(slot as usize));
        assert_eq!(seen, [10, 20], "every connection was seen at the first look, or has a bit");
        assert!(!sleeps || is_woken || first == [10, 20], "it sleeps only if it has seen all, or is woken");
    });
}

/// The peer sleeps already, or is about to.
#[test]
fn loom_one_bell_for_many_wakes_a_peer_that_sleeps() {
    model(|| {
        let shared = Arc::new(Shared::lent());
        (0..2).for_each(|i| watch(&shared.peer[i], Some(CONTEXT)));
        let ring = send_on_both(&shared);
        let bell = Doorbell::new(&shared.bell, 1);
        let mut taken = 0;
        bell.drain(64, |slot| taken |= 1 << slot);
        let sleeps = bell.prepare_sleep();
        let is_woken = ring.join().unwrap();
        assert!(!sleeps || is_woken || taken == 0b11, "it sleeps only after it has taken both bits");
        bell.drain(64, |slot| taken |= 1 << slot);
        assert_eq!(taken, 0b11);
    });
}

/// The peer waits for space on one connection while the ring consumes there and sends on the other.
#[test]
fn loom_a_flush_tells_a_sender_that_waits_for_the_space_that_it_made() {
    model(|| {
        let shared = Arc::new(Shared::lent());
        let mut sender = Sender::default();
        sender.lend(&shared.peer[1], Ring::new(0, 12));
        sender.publish(&shared.peer[1], 4096);
        (0..2).for_each(|i| watch(&shared.peer[i], Some(CONTEXT)));
        let ring = {
            let shared = shared.clone();
            thread::spawn(move || {
                batch::commit(&shared.blocks[0], 10);
                note_consumed(&shared.own[1], 4096);
                shared.flush([owed::BYTES, owed::SPACE | owed::REST])
            })
        };
        let waits = sender.want_space(&shared.peer[1], &shared.own[1], |_| ()).unwrap();
        let _ = ring.join().unwrap();
        let is_told = shared.bell.words[0].load(Ordering::SeqCst) & 1 << 1 != 0;
        assert!(!waits || is_told, "it has found the space, or is told of it");
    });
}

/// A ring that finds no room publishes what it has committed, as the peer makes room only for bytes that it sees, and sleeps.
#[test]
fn loom_a_ring_without_room_is_told_when_its_peer_has_read_what_was_just_published() {
    model(|| {
        let shared = Arc::new(Shared::lent());
        let own_bell = Arc::new(ContextBlock::default());
        watch(&shared.own[0], Some(CONTEXT));
        let peer = {
            let (shared, bell) = (shared.clone(), own_bell.clone());
            thread::spawn(move || {
                let total = shared.seen(0) as u64;
                let is_due = total > 0 && consumed(&shared.peer[0], &shared.own[0], total);
                let is_woken = is_due && Doorbell::new(&bell, 1).ring(0) == Wake::Needed;
                (total, is_woken)
            })
        };
        batch::commit(&shared.blocks[0], 4096);
        let mut sender = Sender::of(&shared.blocks[0], AREA);
        let waits = sender.want_space(&shared.own[0], &shared.peer[0], |_| ()).unwrap();
        sender.keep(&shared.blocks[0]);
        let _ = shared.flush([owed::BYTES, 0]);
        let sleeps = Doorbell::new(&own_bell, 1).prepare_sleep();
        let (total, is_woken) = peer.join().unwrap();
        let is_asleep = waits && sleeps;
        assert!(!is_asleep || total == 0 || is_woken, "bytes were read, so there is room: it is told");
    });
}

/// A ring that is about to sleep announces it at two regions' doorbells and to the threads of its process. A peer rings, and a thread of the
/// process wakes, one after the other: each alone must end the sleep.
#[test]
fn loom_a_ring_that_sleeps_is_woken_by_another_thread_or_any_region() {
    for is_thread_first in [true, false] {
        model(move || {
            let bells = Arc::new([ContextBlock::default(), ContextBlock::default()]);
            let waker = Arc::new((Asleep::default(), Woken::default()));
            let others = {
                let (bells, waker) = (bells.clone(), waker.clone());
                thread::spawn(move || {
                    let peer = || Doorbell::new(&bells[1], 1).ring(3) == Wake::Needed;
                    let thread = || {
                        waker.1.raise();
                        waker.0.wake() == Wake::Needed
                    };
                    if is_thread_first { (thread(), peer()) } else { (peer(), thread()) }
                })
            };
            // Ring::prepare_sleep, then Ring::has_news.
            waker.0.announce();
            let is_quiet =
                bells.iter().fold(true, |quiet, block| quiet & Doorbell::new(block, 1).prepare_sleep());
            let sleeps = is_quiet && !waker.1.is_raised();
            let wakes = others.join().unwrap();
            assert!(!sleeps || wakes == (true, true), "each of the two wakes it");
            // Ring::awake, then the next look.
            waker.0.awake();
            bells.iter().for_each(|block| Doorbell::new(block, 1).awake());
            assert!(waker.1.take() && !waker.1.take(), "told once");
            let mut taken = 0;
            Doorbell::new(&bells[1], 1).drain(64, |slot| taken |= 1 << slot);
            assert_eq!(taken, 1 << 3);
            assert_eq!(waker.0.wake(), Wake::NotNeeded, "a ring that is awake is not woken");
        });
    }
}

/// A thread uses the waker while the ring takes it: its reason is not lost.
#[test]
fn loom_a_waker_used_after_the_ring_has_looked_is_told_again() {
    model(|| {
        let waker = Arc::new((Asleep::default(), Woken::default(), AtomicU32::new(0)));
        let thread = {
            let waker = waker.clone();
            thread::spawn(move || {
                waker.2.store(1, Ordering::Relaxed);
                waker.1.raise();
                waker.0.wake() == Wake::Needed
            })
        };
        // A look, then a sleep.
        let told = waker.1.take();
        assert!(!told || waker.2.load(Ordering::Relaxed) == 1, "what was done before the wake is seen");
        waker.0.announce();
        let sleeps = !waker.1.is_raised();
        let is_woken = thread.join().unwrap();
        assert!(told || !sleeps || is_woken);
    });
}

/// What the service takes with a connection: positions in the block and flags of the half.
fn take_over(shared: &Shared) -> (u64, u32) {
    (shared.blocks[0].tx_head.load(Ordering::Relaxed), shared.own[0].flags.load(Ordering::Relaxed))
}

/// `Ring::attach`: from the moment at which the service names this process the holder, until the ring keeps the connection, another process
/// may show the same descriptor.
#[test]
fn loom_a_connection_that_a_ring_sets_up_is_taken_by_no_other_holder() {
    model(|| {
        let shared = Arc::new(Shared::default());
        shared.blocks[0].holders.store(OURS | TRUST, Ordering::Relaxed);
        set_up(&shared.blocks[0], THREAD);
        let service = {
            let shared = shared.clone();
            thread::spawn(move || seize(&shared.blocks[0]))
        };
        shared.blocks[0].tx_head.store(40, Ordering::Relaxed);
        open_kept(&shared.blocks[0]);
        let owner = service.join().unwrap().expect_err("it is the ring's");
        assert!(owner == THREAD || owner == KEPT);
        assert_eq!(shared.blocks[0].tx_lock.load(Ordering::Relaxed), 0, "what was taken was given back");
        assert!(!keep(&shared.blocks[0]), "no ring keeps it twice");
    });
}

/// The same by sockets, which keep nothing: another holder may take the connection, but never half set up.
#[test]
fn loom_a_connection_is_taken_over_as_it_was_set_up() {
    model(|| {
        let shared = Arc::new(Shared::default());
        shared.blocks[0].holders.store(OURS | TRUST, Ordering::Relaxed);
        set_up(&shared.blocks[0], THREAD);
        let service = {
            let shared = shared.clone();
            thread::spawn(move || seize(&shared.blocks[0]).map(|()| take_over(&shared)))
        };
        shared.blocks[0].tx_head.store(40, Ordering::Relaxed);
        shared.own[0].flags.store(5, Ordering::Relaxed);
        open(&shared.blocks[0]);
        match service.join().unwrap() {
            Ok(found) => assert_eq!(found, (40, 5)),
            Err(owner) => assert_eq!(owner, THREAD),
        }
    });
}

/// `Conn::detach` and `Ring::close`: the ring has written by its own positions, without locks, and lets go.
#[test]
fn loom_a_connection_that_a_ring_lets_go_is_taken_over_with_all_that_the_ring_did() {
    for others in [0, ANOTHER] {
        model(move || {
            let shared = Arc::new(Shared::default());
            shared.blocks[0].holders.store(OURS | TRUST | others, Ordering::Relaxed);
            assert!(keep(&shared.blocks[0]));
            let service = {
                let shared = shared.clone();
                thread::spawn(move || seize(&shared.blocks[0]).map(|()| take_over(&shared)))
            };
            batch::commit(&shared.blocks[0], 40);
            shared.own[0].flags.store(5, Ordering::Relaxed);
            let_go(&shared.blocks[0], OURS);
            let block = &shared.blocks[0];
            match service.join().unwrap() {
                Ok(found) => {
                    assert_eq!(found, (40, 5));
                    let locks = [&block.tx_lock, &block.rx_lock].map(|lock| lock.load(Ordering::Relaxed));
                    assert_eq!(locks, [MOVED; 2], "for good");
                }
                Err(owner) => {
                    assert_eq!(owner, KEPT);
                    assert_eq!(seize(block), Ok(()), "later it succeeds");
                }
            }
            assert_eq!(block.holders.load(Ordering::Relaxed), TRUST | others);
        });
    }
}

/// `Conn::detach` of a connection without a descriptor: the ring keeps it, the service learns of it, and another process asks for it.
#[test]
fn loom_a_ring_keeps_a_connection_or_another_party_takes_it_but_never_both() {
    model(|| {
        let block = Arc::new(SockBlock::default());
        block.holders.store(OURS | TRUST, Ordering::Relaxed);
        let service = {
            let block = block.clone();
            thread::spawn(move || seize(&block))
        };
        let is_kept = keep(&block);
        let taken = service.join().unwrap();
        assert_ne!(is_kept, taken.is_ok());
        if is_kept {
            assert_eq!((taken, block.tx_lock.load(Ordering::Relaxed)), (Err(KEPT), 0));
            keep_no_more(&block);
            assert_eq!(seize(&block), Ok(()));
        }
        keep_no_more(&block);
        assert_eq!(block.rx_lock.load(Ordering::Relaxed), MOVED, "what has moved stays so");
    });
}
