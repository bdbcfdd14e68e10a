//! Loom models: every interleaving of the doorbell's sleep and wake, of publication and consumption over a ring switch,
//! and of waiting for space.

use crate::held::let_go_for;
use crate::stream::{
    Sender, barrier, consumed, consumed_some, note_consumed, note_produced, raise, readable, wants_space,
    watch, watcher,
};
use crate::waking::{Asleep, Woken};
use crate::{Doorbell, Ring, Wake, nap};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use shm::sock_state::HELD;
use shm::{ContextBlock, Half, SockBlock, half_flags};

const AREA: u64 = 1 << 20;

/// Checks all interleavings with at most three preemptions: enough for every race of two parties here, and fast.
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn loom_a_sleeper_is_never_left_with_news() {
    model(|| {
        let block = Arc::new(ContextBlock::default());
        let woken = Arc::new(AtomicU32::new(0));
        let ringers: Vec<_> = [3u32, 5]
            .into_iter()
            .map(|slot| {
                let (block, woken) = (block.clone(), woken.clone());
                thread::spawn(move || {
                    if Doorbell::new(&block, 1).ring(slot) == Wake::Needed {
                        woken.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let bell = Doorbell::new(&block, 1);
        let mut seen = 0u64;
        bell.drain(128, |s| seen |= 1 << s);
        let slept = bell.prepare_sleep();
        ringers.into_iter().for_each(|t| t.join().unwrap());
        let wakes = woken.load(Ordering::SeqCst);
        bell.drain(128, |s| seen |= 1 << s);
        assert_eq!(seen, 1 << 3 | 1 << 5, "no ring is lost");
        assert!(wakes <= 1, "nobody who is awake is woken");
        if slept && wakes == 0 {
            // Both rang before the sleep was announced and were taken by the first drain.
            assert_eq!(block.sleeping.load(Ordering::SeqCst), 1);
        }
    });
}

#[test]
fn loom_news_after_going_to_sleep_wakes() {
    model(|| {
        let block = Arc::new(ContextBlock::default());
        let ringer = {
            let block = block.clone();
            thread::spawn(move || Doorbell::new(&block, 1).ring(64) == Wake::Needed)
        };
        let bell = Doorbell::new(&block, 1);
        let slept = bell.prepare_sleep();
        let woke = ringer.join().unwrap();
        // Either the sleeper saw the bit before sleeping, or the ringer saw the sleeper.
        assert!(!slept || woke);
    });
}

#[test]
fn loom_a_watcher_sees_the_head_or_the_producer_sees_the_watcher() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let producer = {
            let h = halves.clone();
            thread::spawn(move || {
                let mut s = Sender::default();
                s.lend(&h[0], Ring::new(0, 12));
                s.publish(&h[0], 10);
                watcher(&h[1])
            })
        };
        watch(&halves[1], Some(7));
        let seen = readable(&halves[0], 0, AREA).unwrap();
        let told = producer.join().unwrap();
        assert!(seen.is_some() || told == Some(7));
    });
}

/// Two streams are published one after the other, with one barrier after both.
#[test]
fn loom_one_barrier_serves_all_that_was_published_before_it() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default(), Half::default()]);
        let producer = {
            let h = halves.clone();
            thread::spawn(move || {
                let mut s = Sender::default();
                s.lend(&h[0], Ring::new(0, 12));
                note_produced(&h[0], 10);
                note_consumed(&h[2], 20);
                barrier();
                (watcher(&h[1]), wants_space(&h[1]))
            })
        };
        watch(&halves[1], Some(7));
        raise(&halves[1], half_flags::WANT_SPACE);
        let seen = readable(&halves[0], 0, AREA).unwrap();
        let tail = halves[2].rx_tail.load(Ordering::Acquire);
        let (told, asked) = producer.join().unwrap();
        assert!(seen.is_some() || told == Some(7));
        assert!(tail == 20 || asked);
    });
}

#[test]
fn loom_a_reader_over_a_ring_switch_uses_the_ring_that_rules() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let producer = {
            let h = halves.clone();
            thread::spawn(move || {
                let mut s = Sender::default();
                s.lend(&h[0], Ring::new(0, 12));
                s.publish(&h[0], 10);
                s.lend(&h[0], Ring::new(8192, 13));
                s.publish(&h[0], 5);
            })
        };
        let mut tail = 0;
        for _ in 0..2 {
            if let Some(r) = readable(&halves[0], tail, AREA).unwrap() {
                let expected = if tail < 10 { Ring::new(0, 12) } else { Ring::new(8192, 13) };
                assert_eq!(r.ring, expected);
                assert!(tail >= 10 || tail + r.len as u64 <= 10);
                tail += r.len as u64;
                let _ = consumed(&halves[1], &halves[0], tail);
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn loom_a_producer_that_waits_for_space_is_told() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let mut s = Sender::default();
        s.lend(&halves[0], Ring::new(0, 12));
        s.publish(&halves[0], 4096);
        let consumer = {
            let h = halves.clone();
            thread::spawn(move || consumed(&h[1], &h[0], 4096))
        };
        let waits = s.want_space(&halves[0], &halves[1], |_| ()).unwrap();
        let told = consumer.join().unwrap();
        assert!(!waits || told);
    });
}

#[test]
fn loom_a_producer_that_waits_for_space_is_told_once_a_step_is_consumed() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let mut s = Sender::default();
        s.lend(&halves[0], Ring::new(0, 12));
        s.publish(&halves[0], 4096);
        let consumer = {
            let h = halves.clone();
            thread::spawn(move || {
                let first = consumed_some(&h[1], &h[0], 0, 100);
                first | consumed_some(&h[1], &h[0], 100, 600)
            })
        };
        let waits = s.want_space(&halves[0], &halves[1], |_| ()).unwrap();
        let told = consumer.join().unwrap();
        assert!(!waits || told, "who sleeps is told");
    });
}

#[test]
fn loom_fin_comes_after_the_bytes() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let producer = {
            let h = halves.clone();
            thread::spawn(move || {
                let mut s = Sender::default();
                s.lend(&h[0], Ring::new(0, 12));
                s.publish(&h[0], 3);
                raise(&h[0], half_flags::FIN);
            })
        };
        let fin = halves[0].flags.load(Ordering::Acquire) & half_flags::FIN != 0;
        let bytes = readable(&halves[0], 0, AREA).unwrap();
        assert!(!fin || bytes.is_some(), "flags first, then bytes: no byte before a FIN is missed");
        producer.join().unwrap();
    });
}

/// Models the reuse of a lent slot in crate `socket`: the connector clears it when the acceptor has released the last connection.
#[test]
fn loom_who_uses_a_slot_again_finds_nothing_of_the_connection_before() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let acceptor = {
            let h = halves.clone();
            thread::spawn(move || {
                h[1].extra.store(7, Ordering::Relaxed);
                let _ = consumed(&h[1], &h[0], 64);
                raise(&h[1], half_flags::FIN | half_flags::RELEASED);
            })
        };
        if halves[1].flags.load(Ordering::Acquire) & half_flags::RELEASED != 0 {
            halves.iter().for_each(Half::clear);
            let left = (halves[1].extra.load(Ordering::Relaxed), halves[1].rx_tail.load(Ordering::Relaxed));
            assert_eq!((left, halves[1].flags.load(Ordering::Relaxed)), ((0, 0), 0));
        }
        acceptor.join().unwrap();
        if halves[1].flags.load(Ordering::Relaxed) == 0 {
            assert_eq!(halves[1].rx_tail.load(Ordering::Relaxed), 0, "nothing is written after letting go");
        }
    });
}

/// The producer and the service publish held-back bytes, and the stream moves on in the meantime.
#[test]
fn loom_what_is_held_back_goes_once_whoever_lets_it_go() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let block = Arc::new(SockBlock::default());
        let producer = {
            let (h, block) = (halves.clone(), block.clone());
            thread::spawn(move || {
                let mut s = Sender::default();
                s.lend(&h[0], Ring::new(0, 12));
                s.withhold(10);
                s.keep(&block);
                block.state.fetch_or(HELD, Ordering::AcqRel);
                let mut is_news = s.announce(&h[0], 4);
                s.withhold(20);
                s.keep(&block);
                is_news |= s.let_go(&h[0]);
                block.state.fetch_and(!HELD, Ordering::AcqRel);
                is_news
            })
        };
        let from = halves[0].tx_head.load(Ordering::Acquire);
        let went = let_go_for(&halves[0], &block, from, || true);
        let seen = readable(&halves[0], 0, AREA).unwrap().map_or(0, |r| r.total);
        assert!(seen >= 10 || !went, "what is announced is there");
        assert!(seen == 0 || readable(&halves[0], 0, AREA).unwrap().unwrap().total >= seen, "never back");
        let is_news = producer.join().unwrap();
        assert_eq!(halves[0].tx_head.load(Ordering::Acquire), 30);
        assert!(is_news || went);
    });
}

/// Models `Link::release` and `Lease::take` of crate `socket`, and `held` of crate `service`.
#[test]
fn loom_nothing_is_let_go_in_a_slot_that_is_used_again() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let block = Arc::new(SockBlock::default());
        let mut s = Sender::default();
        s.lend(&halves[0], Ring::new(0, 12));
        s.withhold(10);
        s.keep(&block);
        block.state.store(HELD, Ordering::Release);
        let owner = {
            let (h, block) = (halves.clone(), block.clone());
            thread::spawn(move || {
                let _ = s.let_go(&h[0]);
                block.state.fetch_and(!HELD, Ordering::AcqRel);
                raise(&h[0], half_flags::FIN | half_flags::RELEASED);
                let is_free = h[0].flags.load(Ordering::Acquire) & half_flags::PUSHING == 0;
                if is_free {
                    h[0].clear();
                }
                is_free
            })
        };
        let _ = let_go_for(&halves[0], &block, 0, || true);
        let is_free = owner.join().unwrap();
        let left = halves[0].flags.load(Ordering::Relaxed) & half_flags::PUSHING;
        assert_eq!(left, 0);
        assert_eq!(halves[0].tx_head.load(Ordering::Relaxed), if is_free { 0 } else { 10 });
    });
}

/// A flow goes from core 0 to core 1 while its application writes and rings. Core 0 names core 1 in the record, then hands the flow over by a
/// ring; core 1 has the application ring for it from then on, and looks at what was written until then. A bell that rings at a core that does
/// not serve the flow is passed on, unless the flow is on its way to that core. So a late ringer loses nothing.
#[test]
fn loom_a_bell_at_the_old_core_is_passed_on_and_no_bytes_are_missed() {
    const SLOT: u32 = 3;
    /// In `owner`: the flow is on its way to the core in the other bits.
    const IN_TRANSIT: u32 = 2;
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let blocks = Arc::new([ContextBlock::default(), ContextBlock::default()]);
        // The record's core, written under its lock; and the flow in the ring from core 0 to core 1.
        let (owner, ring) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        watch(&halves[1], Some(0));
        let application = {
            let (h, blocks) = (halves.clone(), blocks.clone());
            thread::spawn(move || {
                let mut s = Sender::default();
                s.lend(&h[0], Ring::new(0, 12));
                s.publish(&h[0], 10);
                let core = watcher(&h[1]).expect("some core always watches");
                let _ = Doorbell::new(&blocks[core as usize], 1).ring(SLOT);
            })
        };
        let has_seen = |h: &[Half; 2]| readable(&h[0], 0, AREA).unwrap().is_some();
        // A round of core 0: true when it has seen the bytes. The bell of a flow that is elsewhere is passed on.
        let old_round = |blocks: &[ContextBlock; 2], owner: &AtomicU32, h: &[Half; 2]| {
            let (mut rang, mut seen) = (false, false);
            Doorbell::new(&blocks[0], 1).drain(64, |_| rang = true);
            match owner.load(Ordering::Acquire) {
                0 => seen = rang && has_seen(h),
                _ if rang => drop(Doorbell::new(&blocks[1], 1).ring(SLOT)),
                _ => {}
            }
            seen
        };
        // A round of core 1.
        let new_round =
            move |blocks: &[ContextBlock; 2], owner: &AtomicU32, ring: &AtomicU32, h: &[Half; 2]| {
                let (mut rang, mut seen) = (false, false);
                if ring.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    owner.store(1, Ordering::Release);
                    watch(&h[1], Some(1));
                    barrier();
                    seen = has_seen(h);
                }
                Doorbell::new(&blocks[1], 1).drain(64, |_| rang = true);
                seen | (rang && owner.load(Ordering::Acquire) == 1 && has_seen(h))
            };
        let new_core = {
            let (blocks, owner, ring, h) = (blocks.clone(), owner.clone(), ring.clone(), halves.clone());
            thread::spawn(move || new_round(&blocks, &owner, &ring, &h))
        };
        let mut seen = old_round(&blocks, &owner, &halves);
        owner.store(IN_TRANSIT | 1, Ordering::Release);
        ring.store(1, Ordering::Release);
        seen |= new_core.join().unwrap();
        application.join().unwrap();
        // Both cores go on polling.
        seen |= old_round(&blocks, &owner, &halves);
        seen |= new_round(&blocks, &owner, &ring, &halves);
        assert!(seen, "one core has seen what the application wrote");
    });
}

/// The kernel's futex, for the models: bits of the threads that sleep on a word. A model asserts that none is left when all is done.
#[derive(Default)]
struct Futex(loom::sync::Mutex<u32>);

impl Futex {
    /// As the kernel does it: compares and goes to sleep in one step. False: it did not sleep.
    fn sleep(&self, word: &AtomicU32, seen: u32, thread: u32) -> bool {
        let mut asleep = self.0.lock().unwrap();
        // A read-modify-write: the kernel never reads an old value.
        let sleeps = word.fetch_add(0, Ordering::SeqCst) == seen;
        *asleep |= u32::from(sleeps) << thread;
        sleeps
    }

    fn wake_all(&self) {
        *self.0.lock().unwrap() = 0;
    }

    fn is_empty(&self) -> bool {
        *self.0.lock().unwrap() == 0
    }
}

/// What a thread does that naps until the other side has written, up to its first sleep.
fn nap_until_readable(halves: &[Half; 2], futex: &Futex, thread: u32) {
    for round in 0.. {
        let seen = nap::begin(&halves[1], thread << 4 | round);
        if readable(&halves[0], 0, AREA).unwrap().is_some() || futex.sleep(&halves[1].context, seen, thread) {
            return;
        }
    }
}

fn write_and_rouse(halves: &[Half; 2], futex: &Futex) {
    let mut s = Sender::default();
    s.lend(&halves[0], Ring::new(0, 12));
    s.publish(&halves[0], 10);
    if watcher(&halves[1]).is_some() && nap::rouse(&halves[1]) {
        futex.wake_all();
    }
}

#[test]
fn loom_a_thread_that_naps_is_woken_by_its_news() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let futex = Arc::new(Futex::default());
        let producer = {
            let (h, futex) = (halves.clone(), futex.clone());
            thread::spawn(move || write_and_rouse(&h, &futex))
        };
        nap_until_readable(&halves, &futex, 1);
        producer.join().unwrap();
        assert!(futex.is_empty(), "no thread sleeps on");
    });
}

/// Both threads wait for the same bytes, at one slot: one may begin while the other is being woken.
#[test]
fn loom_two_threads_that_nap_at_one_slot_are_both_woken() {
    model(|| {
        let halves = Arc::new([Half::default(), Half::default()]);
        let futex = Arc::new(Futex::default());
        let second = {
            let (h, futex) = (halves.clone(), futex.clone());
            thread::spawn(move || nap_until_readable(&h, &futex, 2))
        };
        let producer = {
            let (h, futex) = (halves.clone(), futex.clone());
            thread::spawn(move || write_and_rouse(&h, &futex))
        };
        nap_until_readable(&halves, &futex, 1);
        producer.join().unwrap();
        second.join().unwrap();
        assert!(futex.is_empty(), "no thread sleeps on");
    });
}

/// Models `Context::wake` of crate `session`: another thread of the process has a reason that is not in the stream, and wakes the thread
/// whatever the word says.
#[test]
fn loom_a_thread_that_naps_is_woken_by_its_own_process() {
    model(|| {
        let own = Arc::new(Half::default());
        let (asleep, reason) = (Arc::new(Asleep::default()), Arc::new(Woken::default()));
        let futex = Arc::new(Futex::default());
        let waker = {
            let (own, asleep, reason, futex) = (own.clone(), asleep.clone(), reason.clone(), futex.clone());
            thread::spawn(move || {
                reason.raise();
                if asleep.wake() == Wake::Needed {
                    let _ = nap::rouse(&own);
                    futex.wake_all();
                }
            })
        };
        for round in 0.. {
            let seen = nap::begin(&own, round);
            asleep.announce();
            if reason.is_raised() || futex.sleep(&own.context, seen, 0) {
                break;
            }
            asleep.awake();
        }
        waker.join().unwrap();
        assert!(futex.is_empty(), "the thread does not sleep on");
    });
}
