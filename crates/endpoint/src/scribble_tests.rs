//! A process overwrites its own part of the shared memory, or its peer does: every call ends with a result. No call panics, and none hangs.

use crate::blocked::tests::{receiving, spins_in_receive, spins_in_send};
use crate::host::{Host, Process};
use crate::lock::thread_number;
use crate::low_water::SoFar;
use crate::region::Mapped;
use crate::stream::{How, Said};
use crate::{Endpoint, ring_reclaim};
use base::Seed;
use queue::stream::raise;
use rustix::io::Errno;
use shm::half_flags::OPEN;
use shm::{ContextBlock, Half, Kind, Params, Region, Side, SockBlock};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const DATA: u64 = 1 << 20;
const SLOT: u32 = 5;
const BLOCKS: [u32; 2] = [1, 2];
const CONTEXT: u32 = 9;
const SEEDS: u64 = 10_000;
/// Calls of one seed.
const STEPS: usize = 80;
/// A seed takes about a millisecond. This limit only detects a hang.
const HANG: Duration = Duration::from_secs(60);

/// The thread of a seed is the only one: every other number in a lock is that of a thread that has ended.
#[derive(Debug)]
struct OneThread;

impl Process for OneThread {
    fn give_way(&self) {}

    fn is_dead(&self, thread: u32) -> bool {
        thread != thread_number()
    }

    fn collects_as(&self) -> Option<u64> {
        Some(1)
    }
}

static HOST: Host = Host::new(&OneThread);

/// A word of shared memory.
#[derive(Clone, Copy)]
enum Word<'a> {
    Long(&'a AtomicU64),
    Short(&'a AtomicU32),
}

impl Word<'_> {
    fn load(self) -> u64 {
        match self {
            Self::Long(word) => word.load(Relaxed),
            Self::Short(word) => word.load(Relaxed).into(),
        }
    }

    fn store(self, value: u64) {
        match self {
            Self::Long(word) => word.store(value, Relaxed),
            Self::Short(word) => word.store(value as u32, Relaxed),
        }
    }
}

fn words_of_half(half: &Half) -> Vec<Word<'_>> {
    let Half { tx_head, rx_tail, ring: [r0, r1], start: [s0, s1], flags, context, extra } = half;
    let long = [tx_head, rx_tail, r0, r1, s0, s1, extra].map(Word::Long);
    long.into_iter().chain([flags, context].map(Word::Short)).collect()
}

fn words_of_block(b: &SockBlock) -> Vec<Word<'_>> {
    let long = [&b.holders, &b.tx_head, &b.rx_tail, &b.tx_ring, &b.tx_start, &b.tx_old, &b.tx_tail];
    let short = [&b.tx_lock, &b.rx_lock, &b.state, &b.flags, &b.region, &b.slot, &b.error];
    long.map(Word::Long).into_iter().chain(short.map(Word::Short)).collect()
}

fn words_of_context(block: &ContextBlock) -> Vec<Word<'_>> {
    vec![Word::Long(&block.top), Word::Short(&block.sleeping), Word::Long(&block.words[0])]
}

/// Two ends of a connection, both of this process; `home` holds both blocks.
struct Ends {
    home: Arc<Mapped>,
    ends: [Endpoint; 2],
}

impl Ends {
    fn new(kind: Kind) -> Self {
        let region =
            |kind, id| Arc::new(Region::create(Params { kind, id, slots: 64, data_len: DATA }).unwrap().0);
        let home = Arc::new(Mapped::new(&HOST, Side::One, region(Kind::Application, 1), 256));
        let shared = region(kind, 2);
        let ends = [Side::Zero, Side::One].map(|side| {
            let mapped = Arc::new(Mapped::new(&HOST, side, shared.clone(), 256));
            let link = Endpoint::new(mapped, SLOT, home.clone(), BLOCKS[side.index()]);
            link.begin(true, side == Side::One);
            link.block().holders.store(1, Relaxed);
            link.halves().0.context.store(CONTEXT + 1, Relaxed);
            raise(link.halves().0, OPEN);
            link
        });
        Self { home, ends }
    }

    /// All words that a process can overwrite and that the calls of this crate read.
    fn words(&self) -> Vec<Word<'_>> {
        let region = &self.ends[0].mapped.region;
        let mut words = Vec::new();
        for link in &self.ends {
            words.extend(words_of_half(link.halves().0));
            // Twice as likely as the others: what a process trusts most.
            words.extend(words_of_block(link.block()));
            words.extend(words_of_block(link.block()));
            let side = link.mapped.side;
            words.extend(region.page_word(side, 0).map(Word::Long));
            words.extend(words_of_context(region.context(side, CONTEXT).unwrap()));
        }
        let urgent = region.urgent(SLOT).unwrap();
        words.extend(urgent.up.iter().chain(&urgent.seen).map(Word::Long));
        words.push(Word::Short(&self.home.region.header().hand));
        words
    }

    /// Overwrites one word: by anything, by a value near its own, or by a value near another word's.
    fn scribble(&self, random: &mut Seed) {
        let words = self.words();
        let mut any = || words[random.below(words.len() as u64) as usize];
        let (word, other) = (any(), any());
        let near = random.below(9).wrapping_sub(4);
        let value = match random.below(9) {
            0 => random.next_u64(),
            1 => 0,
            2 => u64::MAX,
            3 => u64::MAX.wrapping_sub(random.below(1 << 13)),
            4 => word.load().wrapping_add(random.below(1 << 13)),
            5 => word.load() ^ 1 << random.below(64),
            6 => other.load().wrapping_add(near),
            7 => random.below(1 << 16),
            _ => random.below(1 << 16) << 32 | random.below(1 << 9),
        };
        word.store(value);
    }
}

/// One call on `link`, whatever comes of it.
fn call(link: &Endpoint, home: &Mapped, random: &mut Seed) {
    let len = match random.below(4) {
        0 => random.below(200_000),
        1 => random.below(5),
        _ => random.below(3_000),
    } as usize;
    let bytes = vec![7; len];
    let mut out = vec![0; len];
    let said = Said::from_bits_truncate(random.next_u64() as i32);
    match random.below(34) {
        0..6 => drop(link.push(&[&bytes], 0, said)),
        6 => drop(link.push_some(&[&bytes, &bytes[len / 2..]], len / 3, said, len / 2)),
        7..12 => drop(link.pull(&mut [&mut out], 0, How::default())),
        12 => drop(link.pull(&mut [&mut out], 0, How { peek: true, discard: 0 })),
        13 => drop(link.pull(&mut [], 0, How { peek: false, discard: len })),
        14 => drop(link.pull_urgent(&mut [&mut out], random.below(2) == 0)),
        15 => drop((link.unread(), link.left(), link.unsent(), link.unread_to_mark(), link.is_at_mark())),
        16 => drop((link.stream_readiness(), link.has_more(SoFar { done: len, peeked: 0 }), link.pulse())),
        17 => drop((link.take_error(), link.held_back(), link.grown_buffer(), link.lacks_memory())),
        18 => link.set_cork(random.below(2) == 0),
        19 => link.set_no_delay(random.below(2) == 0),
        20 => link.set_low_water(len as u32),
        21 => link.set_buffer(len as u32),
        22 => drop(link.lengthen(len)),
        23 => {
            ring_reclaim::collect(home, &link.mapped, 1);
            let _ = ring_reclaim::is_settled(link.block(), |_, _| Some(link.mapped.clone()));
        }
        24 => drop((link.shut(false, random.below(9) == 0), link.say_no_more(), link.ring_ourselves())),
        25 => link.mapped.sweep(),
        26..29 => read_in_place(link, &mut out, random),
        29..32 => write_in_place(link, &bytes, random),
        32 => {
            link.publish();
            let bell = link.settle_progress(random.below(8) as u8, 0);
            bell.into_iter().for_each(|bell| link.ring(bell));
        }
        _ => {
            link.prefetch();
            link.prefetch_bytes();
            let _ = (link.arrived(), link.read_position(), link.has_room_again());
        }
    }
}

/// Copies unread bytes from where they lie, and consumes some of them. Between the two calls the words may change.
fn read_in_place(link: &Endpoint, out: &mut [u8], random: &mut Seed) {
    let Ok(unread) = link.unread_pieces() else { return };
    assert_eq!(unread.total, unread.pieces.iter().map(|(_, len)| len).sum::<usize>());
    for (at, len) in unread.pieces {
        let n = len.min(out.len());
        link.mapped.region.read(link.mapped.side.other(), at, &mut out[..n]);
    }
    let _ = link.consume_in_place(&unread, random.below(unread.total as u64 + 1) as usize);
}

/// Fills room where it lies, and commits some of it.
fn write_in_place(link: &Endpoint, bytes: &[u8], random: &mut Seed) {
    let least = random.below(1 + bytes.len() as u64) as usize;
    let Ok(Some(room)) = link.reserve(least, bytes.len()) else { return };
    assert!(
        room.total >= least.max(1) && room.total == room.pieces.iter().map(|(_, len)| len).sum::<usize>()
    );
    for (at, len) in room.pieces {
        link.mapped.region.write(link.mapped.side, at, &bytes[..len]);
    }
    link.commit(random.below(room.total as u64 + 1) as usize);
}

/// What one seed does; both ends end it by closing or giving up.
fn run(seed: u64) {
    let mut random = Seed::new(seed);
    let both = Ends::new(if seed.is_multiple_of(3) { Kind::Application } else { Kind::Pair });
    let quiet = random.below(30) as usize;
    for step in 0..STEPS {
        let link = &both.ends[random.below(2) as usize];
        call(link, &both.home, &mut random);
        if step > quiet && random.below(3) == 0 {
            both.scribble(&mut random);
        }
    }
    for link in &both.ends {
        match random.below(3) {
            0 => drop(link.give_up()),
            _ => drop(link.release(1, random.below(2) == 0)),
        }
        link.mapped.sweep();
    }
}

/// Blocking calls on both ends of a connection whose words are overwritten.
fn block(seed: u64) {
    let mut random = Seed::new(seed);
    let both = Ends::new(if seed.is_multiple_of(3) { Kind::Application } else { Kind::Pair });
    let mut rests = [None, None];
    let mut out = [0; 3_000];
    for step in 0..STEPS {
        let at = random.below(2) as usize;
        let (link, rest) = (&both.ends[at], &mut rests[at]);
        if random.below(3) > 0 {
            let len = if random.below(2) == 0 { random.below(5) } else { random.below(3_000) } as usize;
            let said = if random.below(4) == 0 { Said::URGENT } else { Said::default() };
            let _ = link.push(&[&out[..len]], 0, said);
        }
        if rest.is_none() {
            let how = [0, libc::MSG_WAITALL, libc::MSG_PEEK, libc::MSG_PEEK | libc::MSG_WAITALL];
            let len = [0, 1, 9, 3_000][random.below(4) as usize];
            *rest = receiving(link, &mut out[..len], how[random.below(4) as usize]).map(|rest| (rest, len));
        }
        if step > 5 && random.below(2) == 0 {
            both.scribble(&mut random);
        }
        if let Some((receiving, len)) = rest {
            let mut left = Some(*receiving);
            assert!(!spins_in_receive(link, &mut left, &mut out[..*len]), "seed {seed}: {receiving:?}");
            *rest = left.map(|left| (left, *len));
        }
        assert!(!spins_in_send(link, &out[..1 + random.below(2_999) as usize]), "seed {seed}");
    }
}

#[test]
fn no_wait_ends_at_once_for_nothing_after_the_process_has_overwritten_its_own_words() {
    (0..SEEDS).for_each(block);
}

/// Runs the seeds in a thread of their own. A hang names its seed, and so does a panic.
#[test]
fn every_call_ends_after_the_process_has_overwritten_its_own_words() {
    let (done, each) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        for seed in 0..SEEDS {
            done.send(seed).unwrap();
            run(seed);
        }
    });
    let mut last = 0;
    loop {
        match each.recv_timeout(HANG) {
            Ok(seed) => last = seed,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("seed {last} hangs"),
        }
    }
    assert!(thread.join().is_ok(), "seed {last}");
}

#[test]
fn a_word_that_is_no_error_of_a_connection_becomes_a_reset() {
    let both = Ends::new(Kind::Pair);
    let [a, _] = &both.ends;
    let told = |word: u32| {
        a.block().error.store(word, Relaxed);
        (a.take_error(), a.take_error())
    };
    assert_eq!(told(libc::EPIPE as u32), (Some(Errno::PIPE), None));
    // 512 is a number of the kernel's own, for calls that begin anew.
    for word in [libc::EAGAIN as u32, libc::EINTR as u32, 512, 4_095, 4_096, u32::MAX] {
        assert_eq!(told(word), (Some(Errno::CONNRESET), None), "{word}");
    }
}
