//! What a message costs in instructions between the two sides of a region: fixed work for callgrind, which counts inside
//! `counted` only. `cargo xtask instructions` runs it.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A measurement prints, and panics when it cannot be made.

use queue::Doorbell;
use queue::pages::{Pool, class_of};
use queue::stream::{self, Sender};
use shm::{Half, Kind, Params, Region, Side};
use std::sync::atomic::AtomicU64;

const SIZE: usize = 64;
const RING: usize = 4096;
const MESSAGES: u32 = 10_000;
const SLOT: u32 = 5;
const CONTEXT: u32 = 1;
const SLOTS: u32 = 64;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("message") => run(false),
        Some("message-lent") => run(true),
        _ => println!("one of: message, message-lent; see the head of the source"),
    }
}

/// One side sends, the other takes.
struct Stage {
    region: Region,
    pool: Pool,
    sender: Sender,
    tail: u64,
    lends: bool,
}

fn run(lends: bool) {
    let params = Params { kind: Kind::Pair, id: 1, slots: SLOTS, data_len: 1 << 20 };
    let region = Region::create(params).unwrap().0;
    let mut stage = Stage { region, pool: Pool::default(), sender: Sender::default(), tail: 0, lends };
    let halves = &stage.region.slot(SLOT).unwrap().half;
    stream::watch(&halves[1], Some(CONTEXT));
    for n in 0..MESSAGES {
        assert_eq!(counted(&mut stage, &[n as u8; SIZE]), [n as u8; SIZE]);
    }
    println!("{MESSAGES} messages of {SIZE} bytes");
}

#[inline(never)]
fn counted(stage: &mut Stage, message: &[u8; SIZE]) -> [u8; SIZE] {
    let Stage { region, pool, sender, tail, lends } = stage;
    let [ours, theirs] = &region.slot(SLOT).unwrap().half;
    let word = |i| -> &AtomicU64 { region.page_word(Side::Zero, i).unwrap() };
    sender.update(theirs).unwrap();
    if *lends && let Some(ring) = sender.give_back() {
        pool.give_back(ring, word);
    }
    if sender.ring.is_none() {
        let ring = pool.lend(class_of(RING), region.page_words() * 64, word).unwrap();
        sender.lend(ours, ring);
    }
    send(region, sender, ours, theirs, message);
    take(region, tail, ours, theirs)
}

fn send(region: &Region, sender: &mut Sender, ours: &Half, theirs: &Half, message: &[u8]) {
    let [(a, len), (b, _)] = sender.ring.unwrap().spans(sender.head, message.len());
    region.write(Side::Zero, a, &message[..len]);
    region.write(Side::Zero, b, &message[len..]);
    sender.publish(ours, message.len());
    let context = stream::watcher(theirs).unwrap();
    let block = region.context(Side::One, context).unwrap();
    let _ = Doorbell::new(block, region.layout().words_per_group).ring(SLOT);
}

fn take(region: &Region, tail: &mut u64, sender: &Half, own: &Half) -> [u8; SIZE] {
    let block = region.context(Side::One, CONTEXT).unwrap();
    let bell = Doorbell::new(block, region.layout().words_per_group);
    assert!(bell.has_news());
    bell.drain(SLOTS, |slot| assert_eq!(slot, SLOT));
    let found = stream::readable(sender, *tail, region.layout().params.data_len).unwrap().unwrap();
    let mut message = [0; SIZE];
    let [(a, len), (b, _)] = found.ring.spans(*tail, SIZE);
    region.read(Side::Zero, a, &mut message[..len]);
    region.read(Side::Zero, b, &mut message[len..]);
    *tail += SIZE as u64;
    let _ = stream::consumed(own, sender, *tail);
    message
}
