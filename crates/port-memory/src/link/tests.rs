use super::*;
use port::{Checksum, Gso, GsoKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::thread;

fn send(port: &mut MemoryPort, number: u64, len: usize) -> bool {
    let Some(buf) = port.reserve() else { return false };
    buf.set_len(len);
    buf.frame_mut()[14..22].copy_from_slice(&number.to_be_bytes());
    port.commit();
    true
}

fn numbers(batch: &Batch) -> Vec<u64> {
    let number = |p: &PacketBuf| u64::from_be_bytes(p.frame()[14..22].try_into().expect("eight bytes"));
    batch.packets().iter().map(number).collect()
}

#[test]
fn frames_arrive_in_order_both_ways_and_a_full_link_refuses() {
    let options = LinkOptions { slots: 8, ..LinkOptions::default() };
    let (mut a, mut b) = link(&options).expect("no descriptors needed");
    assert_ne!(a.capabilities().mac, b.capabilities().mac);
    let mut batch = Batch::new();
    for round in 0..5 {
        for i in 0..8 {
            assert!(send(&mut a, round * 8 + i, 60) && send(&mut b, i, 1518));
        }
        assert!(!send(&mut a, 99, 60) && !send(&mut b, 99, 60));
        assert_eq!(b.receive(&mut batch), 8);
        assert_eq!(numbers(&batch), (round * 8..round * 8 + 8).collect::<Vec<_>>());
        assert_eq!(a.receive(&mut batch), 8);
        assert_eq!(numbers(&batch), (0..8).collect::<Vec<_>>());
    }
    assert_eq!((a.stats().sent_packets, a.stats().received_bytes, a.stats().sent_full), (40, 40 * 1518, 5));
    assert_eq!((a.arm(), a.wait_fd().is_none(), a.stats().system_calls), (Wait::Not, true, 0));
}

#[test]
fn wanted_frames_come_before_their_turn_and_the_others_keep_their_order() {
    let (mut a, mut b) =
        link(&LinkOptions { slots: 64, ..LinkOptions::default() }).expect("no descriptors needed");
    let (mut batch, mut looks) = (Batch::new(), 0);
    for round in 0..100 {
        let first = round * 40;
        (first..first + 40).for_each(|number| assert!(send(&mut a, number, 60)));
        a.flush();
        let mut ahead = |b: &mut MemoryPort, batch: &mut Batch| {
            b.receive_ahead(batch, &mut |frame| {
                looks += 1;
                if frame[21] % 10 == 7 { Look::Take } else { Look::Leave }
            });
            numbers(batch)
        };
        let is_wanted = |number: &u64| number % 256 % 10 == 7;
        let all: Vec<u64> = (first..first + 40).collect();
        assert_eq!(ahead(&mut b, &mut batch), all.iter().copied().filter(is_wanted).collect::<Vec<_>>());
        assert!(ahead(&mut b, &mut batch).is_empty(), "each frame is looked at once");
        let mut rest = Vec::new();
        while b.receive(&mut batch) > 0 {
            rest.extend(numbers(&batch));
        }
        assert_eq!(rest, all.iter().copied().filter(|number| !is_wanted(number)).collect::<Vec<_>>());
        assert_eq!(looks, 40 * (round + 1));
    }
    assert_eq!(b.stats().received_packets, 4000);
}

#[test]
fn a_frame_that_is_put_off_is_looked_at_again_with_those_behind_it_and_none_is_lost() {
    let (mut a, mut b) =
        link(&LinkOptions { slots: 64, ..LinkOptions::default() }).expect("no descriptors needed");
    let mut batch = Batch::new();
    for round in 0..100 {
        let first = round * 40;
        (first..first + 40).for_each(|number| assert!(send(&mut a, number, 60)));
        a.flush();
        let (mut ahead, mut looks) = (Vec::new(), Vec::new());
        // Each fifth is wanted, and two of them at a time.
        while looks.len() < 4 {
            let (mut taken, mut seen) = (0, 0);
            b.receive_ahead(&mut batch, &mut |frame| {
                seen += 1;
                let is_wanted = frame[21] % 5 == 3;
                taken += usize::from(is_wanted);
                match (is_wanted, taken <= 2) {
                    (true, true) => Look::Take,
                    (true, false) => Look::Later,
                    (false, _) => Look::Leave,
                }
            });
            ahead.extend(numbers(&batch));
            looks.push((batch.len(), seen));
            if looks.len() == 2 {
                // Frames in front of those that were put off leave the ring.
                assert!(b.receive(&mut batch) > 0);
                ahead.extend(numbers(&batch));
            }
        }
        while b.receive(&mut batch) > 0 {
            ahead.extend(numbers(&batch));
        }
        assert_eq!((looks[0], looks[1].0), ((2, 40), 2), "the second look begins where the first put off");
        assert!(looks[1].1 < 40, "and sees none that was taken");
        ahead.sort_unstable();
        assert_eq!(ahead, (first..first + 40).collect::<Vec<u64>>());
    }
}

#[test]
fn offloads_arrive_as_sent_and_foreign_ones_are_refused() {
    let plain = LinkOptions::default();
    let fast = LinkOptions { capabilities: plain.capabilities.with_tso(), ..plain };
    for (options, arrives) in [(plain, 0), (fast, 1)] {
        let (mut a, mut b) = link(&options).expect("no descriptors needed");
        let buf = a.reserve().expect("room");
        buf.set_len(buf.capacity().min(9000));
        buf.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
        buf.meta.gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1448, header_len: 66, ecn: false });
        let meta = buf.meta;
        a.commit();
        a.flush();
        let mut batch = Batch::new();
        assert_eq!(b.receive(&mut batch), arrives);
        assert!(batch.packets().iter().all(|p| p.meta == meta && p.len() == 9000));
        assert_eq!(a.stats().drops.of(DropCause::Unsendable), 1 - arrives as u64);
    }
}

#[test]
fn small_batch_buffers_drop_what_does_not_fit() {
    let (mut a, mut b) = link(&LinkOptions::default()).expect("no descriptors needed");
    assert!(send(&mut a, 1, 1500) && send(&mut a, 2, 60));
    a.flush();
    let mut batch = Batch::with_capacity(100);
    assert_eq!(b.receive(&mut batch), 1);
    assert_eq!(b.stats().drops.of(DropCause::Oversized), 1);
}

#[test]
fn an_end_that_is_gone_swallows() {
    let options = LinkOptions { slots: 2, wakes: true, ..LinkOptions::default() };
    let (mut a, b) = link(&options).expect("descriptors");
    drop(b);
    assert!((0..5).all(|i| send(&mut a, i, 60)));
    assert_eq!(a.stats().drops.of(DropCause::Device), 3);
}

fn sleep(port: &mut MemoryPort) {
    if port.arm() == Wait::Readable {
        let fd = port.wait_fd().expect("made with descriptors");
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("poll works");
        assert_eq!(woken, 1, "a wake-up was lost");
    }
    port.disarm();
}

#[test]
fn two_threads_sleep_and_wake_and_lose_nothing() {
    const PACKETS: u64 = 50_000;
    let options = LinkOptions { slots: 16, wakes: true, ..LinkOptions::default() };
    let (mut a, mut b) = link(&options).expect("descriptors");
    let sender = thread::spawn(move || {
        for i in 0..PACKETS {
            while !send(&mut a, i, 64) {
                sleep(&mut a);
            }
            if i % 5 == 0 {
                a.flush();
            }
        }
        a.flush();
        a
    });
    let (mut batch, mut next) = (Batch::with_capacity(2000), 0);
    while next < PACKETS {
        if b.receive(&mut batch) == 0 {
            sleep(&mut b);
        }
        for number in numbers(&batch) {
            assert_eq!(number, next);
            next += 1;
        }
    }
    let a = sender.join().expect("the sender does not panic");
    assert_eq!((a.stats().sent_packets, b.stats().received_packets), (PACKETS, PACKETS));
}

#[test]
fn a_sleeper_wakes_when_the_other_end_goes() {
    let options = LinkOptions { slots: 1, wakes: true, ..LinkOptions::default() };
    let (mut a, b) = link(&options).expect("descriptors");
    assert!(send(&mut a, 0, 60) && !send(&mut a, 1, 60));
    assert_eq!(a.arm(), Wait::Readable);
    let other = thread::spawn(move || drop(b));
    let fd = a.wait_fd().expect("made with descriptors");
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)), Ok(1));
    a.disarm();
    assert!(send(&mut a, 1, 60));
    other.join().expect("it only drops");
}
