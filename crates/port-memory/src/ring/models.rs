//! Loom models: all interleavings of publication and release over a wrap, and of sleep and wake on both sides.

use super::{Consumer, Producer, ring};
use loom::sync::Arc;
use loom::sync::Notify;
use loom::thread;

fn send(producer: &mut Producer<u32>, value: u32) -> bool {
    let Some(slot) = producer.slot() else { return false };
    *slot = value;
    producer.commit();
    producer.publish()
}

fn receive(consumer: &mut Consumer<u32>) -> Option<u32> {
    let value = *consumer.slot()?;
    consumer.take();
    consumer.release();
    Some(value)
}

#[test]
fn loom_items_arrive_whole_and_in_order_over_a_wrap() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2, || 0);
        let writer = thread::spawn(move || {
            for value in 1..=3 {
                while !send(&mut producer, value) {
                    thread::yield_now();
                }
            }
        });
        for expected in 1..=3 {
            let value = loop {
                match receive(&mut consumer) {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
        }
        writer.join().unwrap();
    });
}

#[test]
fn loom_a_held_batch_is_invisible_until_published() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2, || 0);
        let writer = thread::spawn(move || {
            for value in [1, 2] {
                *producer.slot().unwrap() = value;
                producer.commit();
            }
            assert!(producer.slot().is_none());
            producer.publish();
        });
        let first = receive(&mut consumer);
        let second = receive(&mut consumer);
        assert!(first == Some(1) && second == Some(2) || first.is_none() && matches!(second, None | Some(1)));
        writer.join().unwrap();
    });
}

/// Both sides sleep; a lost wake-up leaves the model in a deadlock, which loom reports. Checks all schedules with at most
/// three preemptions: these find a missing fence in under a second, while all schedules would take hours.
#[test]
fn loom_no_sleeper_is_left_behind() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer) = ring(1, || 0);
        let (items, room) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (items_bell, room_bell) = (items.clone(), room.clone());
        let writer = thread::spawn(move || {
            for value in 1..=2 {
                while !send(&mut producer, value) {
                    if producer.prepare_sleep() {
                        room.wait();
                    }
                    producer.cancel_sleep();
                }
                if producer.must_wake() {
                    items_bell.notify();
                }
            }
        });
        for expected in 1..=2 {
            let value = loop {
                if let Some(value) = receive(&mut consumer) {
                    break value;
                }
                if consumer.prepare_sleep() {
                    items.wait();
                }
                consumer.cancel_sleep();
            };
            assert_eq!(value, expected);
            if consumer.must_wake() {
                room_bell.notify();
            }
        }
        writer.join().unwrap();
    });
}
