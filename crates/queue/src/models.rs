//! Loom models: every interleaving of the doorbell's sleep and wake, of publication and consumption over a ring switch,
//! and of waiting for space.

use crate::stream::{Sender, consumed, raise, readable, watch, watcher};
use crate::{Doorbell, Ring, Wake};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use shm::{ContextBlock, Half, half_flags};

const AREA: u64 = 1 << 20;

/// All interleavings with at most three preemptions: enough for every two-party race here, and seconds instead of minutes.
fn model(f: impl Fn() + Sync + Send + 'static) {
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
