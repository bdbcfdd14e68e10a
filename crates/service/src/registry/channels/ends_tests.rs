//! An application that is played by hand: what it writes in its half, and what the ends make of it.

use super::*;
use flow::{News, Sleeper};
use queue::stream::{Sender, consumed, raise, watch};
use shm::{Kind, Params, Region, Side};

const AT: At = At { session: SessionId(1), socket: 1 };
const SLOT: u32 = 3;
const RING_MOST: usize = 64 << 10;

/// A region of 1 MiB, present, and an end in it. Returns the first credit, too.
fn scene() -> (Arc<Memory>, Ends, u64, u64) {
    let params = Params { kind: Kind::Application, id: 7, slots: 64, data_len: 1 << 20 };
    let (region, fd) = Region::create(params).unwrap();
    for side in [Side::Zero, Side::One] {
        region.populate(side, 0, 1 << 20).unwrap();
    }
    let memory = Arc::new(Memory::new(7, 2, region, fd, flow::Limits::none()));
    memory.area.set_watermark(1 << 20);
    let mut ends = Ends::new(RING_MOST);
    let (tag, edge) = ends.add(memory.clone(), SLOT, AT, false);
    (memory, ends, tag, edge)
}

/// The peer's bytes come, in memory of this thread.
fn write_end(ends: &mut Ends, tag: u64, position: u64, bytes: &[u8]) {
    ends.write(tag, position, Input::Own(bytes));
}

/// The application writes `bytes` into its own ring.
fn write(memory: &Memory, sender: &mut Sender, bytes: &[u8]) {
    let (_, app) = memory.halves(SLOT).unwrap();
    if sender.ring.is_none() {
        sender.lend(app, Ring::new(8 << 10, 14));
    }
    let [(a, an), (b, bn)] = sender.ring.unwrap().spans(sender.head, bytes.len());
    memory.region().write(Side::One, a, &bytes[..an]);
    memory.region().write(Side::One, b, &bytes[an..an + bn]);
    sender.publish(app, bytes.len());
}

/// The application reads all that is published.
fn read(memory: &Memory, tail: &mut u64) -> Vec<u8> {
    let (own, app) = memory.halves(SLOT).unwrap();
    let mut all = Vec::new();
    while let Some(found) = readable(own, *tail, 1 << 20).unwrap() {
        let start = all.len();
        all.resize(start + found.len, 0);
        let [(a, an), (b, bn)] = found.ring.spans(*tail, found.len);
        memory.region().read(Side::Zero, a, &mut all[start..start + an]);
        memory.region().read(Side::Zero, b, &mut all[start + an..start + an + bn]);
        *tail += found.len as u64;
        let _ = consumed(app, own, *tail);
    }
    all
}

fn pattern(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|at| (at ^ (at >> 8)) as u8).collect()
}

#[test]
fn written_bytes_are_read_by_position_until_they_are_confirmed() {
    let (memory, mut ends, tag, _) = scene();
    let mut sender = Sender::default();
    write(&memory, &mut sender, &pattern(0, 10_000));
    assert!(ends.news(2, SLOT) && !ends.news(2, SLOT + 1));
    assert_eq!(ends.next_news(), Some(tag));
    assert_eq!(ends.look(tag).written, Some(10_000));
    let mut out = vec![0; 3_000];
    ends.read(tag, 6_500, 3_000, &mut out[..], 0);
    assert_eq!(out, pattern(6_500, 3_000));
    ends.acked(tag, 9_500);
    assert!(sender.update(memory.halves(SLOT).unwrap().0).is_ok());
    assert_eq!((sender.tail, ends.get(tag).unwrap().report().1), (9_500, 500));
    raise(memory.halves(SLOT).unwrap().1, FIN);
    assert!(ends.look(tag).is_finished);
    assert!(!ends.look(tag).is_finished, "the end is told once");
}

#[test]
fn bytes_ahead_keep_their_places_when_a_larger_ring_is_lent() {
    let (memory, mut ends, tag, edge) = scene();
    assert_eq!(edge, RING_FIRST as u64);
    // The peer uses all its credit: the last bytes first, as over two channels.
    let whole = pattern(0, RING_FIRST);
    write_end(&mut ends, tag, 13_000, &whole[13_000..]);
    write_end(&mut ends, tag, 0, &whole[..12_500]);
    assert!(ends.publish(tag, 12_500));
    let mut tail = 0;
    assert_eq!(read(&memory, &mut tail), whole[..12_500]);
    let edge = ends.more_credit(tag).expect("a larger ring");
    assert_eq!(edge, 12_500 + 2 * RING_FIRST as u64);
    write_end(&mut ends, tag, 12_500, &whole[12_500..13_000]);
    assert!(ends.publish(tag, RING_FIRST as u64));
    assert_eq!(read(&memory, &mut tail), whole[12_500..]);
}

#[test]
fn a_reader_that_stops_gets_no_larger_ring_and_no_more_credit() {
    let (memory, mut ends, tag, edge) = scene();
    write_end(&mut ends, tag, 0, &pattern(0, edge as usize));
    assert!(ends.publish(tag, edge));
    assert_eq!(ends.more_credit(tag), None);
    let (own, _) = memory.halves(SLOT).unwrap();
    assert_ne!(own.flags.load(Ordering::Relaxed) & WANT_SPACE, 0, "the reader rings when it reads");
    let mut tail = 0;
    assert_eq!(read(&memory, &mut tail).len() as u64, edge);
    assert!(ends.look(tag).edge.is_some_and(|more| more > edge));
}

#[test]
fn positions_that_make_no_sense_are_the_applications_fault() {
    for head in [1 << 60, 5] {
        let (memory, mut ends, tag, _) = scene();
        let (_, app) = memory.halves(SLOT).unwrap();
        let mut sender = Sender::default();
        write(&memory, &mut sender, &[1; 10]);
        assert_eq!(ends.look(tag).written, Some(10));
        app.tx_head.store(head, Ordering::Release);
        assert!(ends.look(tag).is_reset && ends.broken.len() == 1, "{head}");
    }
    let (_memory, mut ends, tag, _) = scene();
    let mut out = [7; 4];
    ends.read(tag, 0, 4, &mut out[..], 0);
    assert_eq!((out, ends.broken.len()), ([0; 4], 1), "bytes in no ring");
}

/// Slots of the application's doorbell 1 that are set.
fn rung(memory: &Memory) -> Vec<u32> {
    let bell = queue::Doorbell::of(memory.region(), Side::One, 1).unwrap();
    let mut slots = Vec::new();
    bell.drain(64, |slot| slots.push(slot));
    slots
}

#[test]
fn a_batch_of_news_rings_each_slot_once_and_wakes_the_sleeper_once() {
    let (memory, mut ends, tag, _) = scene();
    let (other, _) = ends.add(memory.clone(), SLOT + 1, At { socket: 3, ..AT }, false);
    for slot in [SLOT, SLOT + 1] {
        watch(memory.halves(slot).unwrap().1, Some(1));
    }
    let bell = queue::Doorbell::of(memory.region(), Side::One, 1).unwrap();
    assert!(bell.prepare_sleep());
    write_end(&mut ends, tag, 0, &pattern(0, 20));
    assert!(ends.publish(tag, 10) && ends.publish(tag, 20));
    ends.raise(other, FIN);
    assert_eq!((rung(&memory).len(), ends.wakes().count()), (0, 0), "the batch is not over");
    ends.announce();
    assert_eq!(rung(&memory), [SLOT, SLOT + 1]);
    assert_eq!(ends.wakes().collect::<Vec<_>>(), [News { region: 2, sleeper: Sleeper::Context(1) }]);
    ends.announce();
    assert!(rung(&memory).is_empty());
}

#[test]
fn confirmed_bytes_ring_only_an_application_that_waits_for_space() {
    let (memory, mut ends, tag, _) = scene();
    let (_, app) = memory.halves(SLOT).unwrap();
    watch(app, Some(1));
    for (flags, slots) in [(0, vec![]), (WANT_SPACE, vec![SLOT])] {
        app.flags.store(flags, Ordering::Relaxed);
        ends.acked(tag, 0);
        ends.announce();
        assert_eq!(rung(&memory), slots);
    }
}

#[test]
fn a_name_of_an_end_that_is_gone_names_no_other() {
    let (memory, mut ends, tag, _) = scene();
    assert_eq!(ends.remove(tag), Some((7, SLOT)));
    assert!(!ends.news(2, SLOT) && ends.get(tag).is_none());
    let (other, _) = ends.add(memory.clone(), SLOT, AT, false);
    assert_ne!(other, tag);
    ends.forget_region(2);
    assert!(!ends.news(2, SLOT));
    assert_eq!(ends.remove(other), Some((7, SLOT)));
    assert_eq!(memory.area.lent(), 0, "every ring came back");
}
