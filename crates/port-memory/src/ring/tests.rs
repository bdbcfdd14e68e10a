use super::ring;
use std::thread;

#[test]
fn a_full_ring_refuses_and_an_empty_one_gives_nothing() {
    let (mut producer, mut consumer) = ring(4, || 0);
    assert!(consumer.slot().is_none());
    for round in 0..10 {
        for i in 0..4 {
            *producer.slot().expect("room") = round * 4 + i;
            producer.commit();
        }
        assert!(producer.slot().is_none());
        assert!(consumer.slot().is_none(), "not published");
        assert!(producer.publish() && !producer.publish());
        for i in 0..4 {
            assert_eq!(consumer.slot(), Some(&mut (round * 4 + i)));
            consumer.take();
        }
        assert!(consumer.slot().is_none() && producer.slot().is_none(), "not released");
        assert!(consumer.release() && !consumer.release());
    }
    assert!(!producer.is_abandoned());
    drop(consumer);
    assert!(producer.is_abandoned());
    assert!((0..4).all(|_| producer.slot().is_some() && {
        producer.commit();
        true
    }));
    assert!(!producer.prepare_sleep(), "nobody would wake it");
}

#[test]
fn a_million_items_between_two_threads() {
    let (mut producer, mut consumer) = ring(64, || [0u64; 4]);
    let writer = thread::spawn(move || {
        let mut value = 0;
        while value < 1_000_000 {
            match producer.slot() {
                Some(slot) => {
                    *slot = [value; 4];
                    producer.commit();
                    value += 1;
                    if value % 7 == 0 {
                        producer.publish();
                    }
                }
                None => {
                    producer.publish();
                    thread::yield_now();
                }
            }
        }
        producer.publish();
    });
    for expected in 0..1_000_000 {
        while consumer.slot().is_none() {
            consumer.release();
            thread::yield_now();
        }
        assert_eq!(consumer.slot(), Some(&mut [expected; 4]));
        consumer.take();
    }
    writer.join().expect("the writer does not panic");
}
