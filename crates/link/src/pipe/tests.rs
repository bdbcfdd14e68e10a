use super::Link;
use crate::Cause;
use base::{Duration, Instant, Seed};
use proptest::prelude::*;
use wire::checksum;

fn link(text: &str, seed: u64) -> Link {
    Link::new(text.parse().expect("a link"), seed)
}

fn at_us(us: u64) -> Instant {
    Instant::ZERO.plus(Duration::from_us(us))
}

/// An IP packet of `len` bytes in an Ethernet frame, with `number` at its end and the ECN field `ecn`.
fn packet(v4: bool, tagged: bool, ecn: u8, len: usize, number: u64) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if tagged {
        frame.extend([0x81, 0, 0, 7]);
    }
    let ip = frame.len() + 2;
    frame.extend(if v4 { [0x08, 0x00] } else { [0x86, 0xDD] });
    frame.resize(ip + len, 0xA5);
    if v4 {
        frame[ip..ip + 12].copy_from_slice(&[0x45, 0xB8 | ecn, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0]);
        let sum = checksum::of(&frame[ip..ip + 20]);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[ip..ip + 8].copy_from_slice(&[0x6B, 0x80 | (ecn << 4), 0, 0, 0, 0, 6, 64]);
    }
    let end = frame.len();
    frame[end - 8..].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u64 {
    frame.last_chunk::<8>().map_or(u64::MAX, |last| u64::from_be_bytes(*last))
}

/// Offers `count` packets at intervals of `gap` and polls at every deadline. Returns number and time of all delivered packets.
fn run(link: &mut Link, count: u64, gap: Duration, len: usize) -> Vec<(u64, Instant)> {
    let mut out = Vec::new();
    let mut take = |link: &mut Link, until: Instant| {
        while link.next_deadline() <= until && link.next_deadline() < Instant::NEVER {
            let due = link.next_deadline();
            assert!(
                due == Instant::ZERO || link.poll(Instant::from_ns(due.as_ns() - 1)).is_none(),
                "too early"
            );
            out.push((number(link.poll(due).expect("it is due")), due));
        }
    };
    let mut now = Instant::ZERO;
    for n in 1..=count {
        link.offer(now, &packet(n % 2 == 0, false, 2, len, n));
        now = now.plus(gap);
        take(link, now);
    }
    take(link, Instant::from_ns(u64::MAX - 1));
    let counters = link.counters();
    assert_eq!(link.in_flight(), 0);
    assert_eq!(counters.offered + counters.duplicated, counters.delivered + counters.dropped());
    assert_eq!((counters.offered, counters.delivered), (count, out.len() as u64));
    out
}

#[test]
fn perfect_link_changes_nothing() {
    let mut link = link("perfect", 1);
    let frame = packet(true, false, 0, 100, 7);
    link.offer(at_us(3), &frame);
    assert_eq!(link.poll(at_us(3)), Some(frame.as_slice()));
    assert_eq!(link.poll(at_us(3)), None);
    assert_eq!(link.next_deadline(), Instant::NEVER);
}

#[test]
fn line_of_a_rate_is_full_and_does_not_drift() {
    // 1514 bytes at 10 Gbit/s take 1211.2 ns: offered faster, 100,000 of them take exactly 121.12 ms and the delay.
    let mut link = link("rate=10gbit,delay=1ms,queue=none", 1);
    let out = run(&mut link, 100_000, Duration::from_ns(1_000), 1500);
    assert_eq!(out.last().map(|last| last.1.as_ns()), Some(121_120_000 + 1_000_000));
    assert!(
        out.windows(2).all(
            |pair| pair[0].0 < pair[1].0 && (1_211..=1_212).contains(&pair[1].1.since(pair[0].1).as_ns())
        )
    );
}

#[test]
fn order_is_kept_under_jitter() {
    let mut link = link("delay=1ms,jitter=500us", 5);
    let out = run(&mut link, 10_000, Duration::from_us(20), 100);
    assert!(out.windows(2).all(|pair| pair[0].0 < pair[1].0), "jitter must not reorder");
    let delays: Vec<u64> = out.iter().map(|&(n, at)| at.since(at_us((n - 1) * 20)).as_us()).collect();
    assert!(delays.iter().all(|delay| (1_000..=1_500).contains(delay)));
    let (low, high) = (delays.iter().min(), delays.iter().max());
    assert!(low < Some(&1_100) && high > Some(&1_450), "{low:?} {high:?}");
}

#[test]
fn reordered_packets_are_late_and_all_others_in_order() {
    let mut link = link("delay=1ms,reorder=5%/300us", 5);
    let out = run(&mut link, 20_000, Duration::from_us(20), 100);
    let late: Vec<_> = out.iter().filter(|&&(n, at)| at_us((n - 1) * 20 + 1_000) < at).collect();
    assert!((900..1_100).contains(&late.len()), "{}", late.len());
    assert!(late.iter().all(|&&(n, at)| at == at_us((n - 1) * 20 + 1_300)));
    assert_eq!(link.counters().reordered, late.len() as u64);
    let in_order: Vec<u64> =
        out.iter().filter(|&&(n, at)| at == at_us((n - 1) * 20 + 1_000)).map(|&(n, _)| n).collect();
    assert!(in_order.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(out.windows(2).any(|pair| pair[1].0 < pair[0].0), "nothing passed");
}

#[test]
fn packet_that_finds_the_queue_full_is_dropped() {
    let mut by_packets = link("rate=1mbit,queue=10p", 1);
    assert_eq!(run(&mut by_packets, 50, Duration::ZERO, 986).len(), 10);
    assert_eq!(by_packets.counters().of(Cause::Queue), 40);
    assert_eq!(by_packets.counters().queue_packets_max, 10);
    let mut by_bytes = link("rate=1mbit,queue=10kb", 1);
    assert_eq!(run(&mut by_bytes, 50, Duration::ZERO, 986).len(), 10);
    assert_eq!(by_bytes.counters().queue_bytes_max, 10_000);
    // A queue shorter than one packet still sends.
    assert_eq!(run(&mut link("rate=1mbit,queue=100b", 1), 3, Duration::ZERO, 986).len(), 1);
    // 1000 bytes take 8 ms: then there is room for one more packet.
    let mut link = link("rate=1mbit,queue=2p", 1);
    for (at, expected) in [(0, 0), (0, 0), (7_999, 1), (8_000, 1), (8_000, 2)] {
        link.offer(at_us(at), &packet(true, false, 0, 986, 0));
        assert_eq!(link.counters().of(Cause::Queue), expected, "at {at}");
    }
}

#[test]
fn only_capable_packets_behind_a_long_queue_are_marked_and_checksums_stay_right() {
    for (v4, tagged, ecn) in (0..16).map(|n| (n & 1 == 0, n & 2 == 0, n >> 2)) {
        let mut link = link("rate=1gbit,ecn=2p", 1);
        for n in 0..5 {
            link.offer(Instant::ZERO, &packet(v4, tagged, ecn, 1000, n));
        }
        let ip = if tagged { 18 } else { 14 };
        for n in 0..5 {
            let frame = link.poll(at_us(1_000)).expect("all come through").to_vec();
            let expected = if n >= 2 && ecn != 0 { 3 } else { ecn };
            assert_eq!(
                frame,
                packet(v4, tagged, expected, 1000, n),
                "v4 {v4}, tagged {tagged}, ECN {ecn}, packet {n}"
            );
            assert!(!v4 || checksum::Sum::ZERO.add_bytes(&frame[ip..ip + 20]).is_valid());
        }
        assert_eq!(link.counters().marked, if ecn == 0 { 0 } else { 3 });
    }
}

#[test]
fn other_frames_are_never_marked() {
    let mut link = link("rate=1gbit,ecn=1b,queue=none", 1);
    let mut arp = packet(true, false, 3, 46, 1);
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    // Frames cut in the Ethernet header, cut in the IPv4 header, and empty.
    let cut = packet(true, false, 2, 20, 1);
    for frame in [&arp[..], &arp[..14], &arp[..5], &cut[..16], &cut[..33], &[]] {
        link.offer(Instant::ZERO, frame);
        assert_eq!(link.poll(at_us(100)), Some(frame));
    }
    assert_eq!(link.counters().dropped(), 0);
}

#[test]
fn long_packets_vanish_and_a_tag_does_not_count() {
    let mut link = link("mtu=1400", 1);
    for (tagged, len, passes) in
        [(false, 1400, true), (false, 1401, false), (true, 1400, true), (true, 1401, false)]
    {
        link.offer(Instant::ZERO, &packet(true, tagged, 0, len, 1));
        assert_eq!(link.poll(Instant::ZERO).is_some(), passes, "{tagged} {len}");
    }
    assert_eq!(link.counters().of(Cause::Mtu), 2);
}

#[test]
fn nothing_passes_while_the_link_is_down() {
    let lost = |text: &str, gap_us| -> Vec<u64> {
        let mut link = link(text, 1);
        let came: Vec<u64> = run(&mut link, 40, Duration::from_us(gap_us), 100).iter().map(|o| o.0).collect();
        assert_eq!(link.counters().of(Cause::Down), 40 - came.len() as u64);
        (1..=40).filter(|n| !came.contains(n)).collect()
    };
    // Packet n is sent at n - 1 ms.
    assert_eq!(lost("down=5ms-7ms+9ms-10ms", 1_000), [6, 7, 10]);
    assert_eq!(lost("flap=9ms/1ms", 1_000), [10, 20, 30, 40]);
    // A packet that would arrive while the link is down is lost, too.
    assert_eq!(lost("delay=2ms,down=5ms-6ms", 1_000), [4, 6]);
}

#[test]
fn damage_is_done_to_one_byte_behind_the_ethernet_header_or_to_the_end() {
    let mut link = link("corrupt=30%,truncate=20%", 9);
    let (mut corrupted, mut truncated) = (0, 0);
    for n in 0..2_000 {
        let sent = packet(true, false, 0, 100, n);
        link.offer(Instant::ZERO, &sent);
        let came = link.poll(Instant::ZERO).expect("nothing is lost");
        assert_eq!(came[..14], sent[..14]);
        let changed = came.iter().zip(&sent).filter(|(a, b)| a != b).count();
        assert!(changed <= 1);
        corrupted += changed;
        truncated += usize::from(came.len() < sent.len());
    }
    let counters = link.counters();
    assert!(
        (500..700).contains(&counters.corrupted) && (330..470).contains(&counters.truncated),
        "{counters:?}"
    );
    // A byte that was changed and then cut off does not show.
    assert!(corrupted as u64 <= counters.corrupted && 480 < corrupted);
    assert_eq!(truncated as u64, counters.truncated);
}

#[test]
fn arp_is_not_corrupted() {
    let mut link = link("corrupt=100%", 9);
    let mut request = packet(false, false, 0, 100, 1);
    request[12..14].copy_from_slice(&[0x08, 0x06]);
    link.offer(Instant::ZERO, &request);
    assert_eq!(link.poll(Instant::ZERO), Some(&request[..]));
    assert_eq!(link.counters().corrupted, 0);
}

#[test]
fn duplicates_follow_their_packet_and_use_the_line() {
    let mut link = link("rate=1gbit,duplicate=100%", 1);
    let out = run(&mut link, 10, Duration::ZERO, 986);
    assert_eq!(
        out.iter().map(|o| o.0).collect::<Vec<_>>(),
        (1..=10).flat_map(|n| [n, n]).collect::<Vec<_>>()
    );
    assert_eq!(out.last().map(|last| last.1), Some(at_us(160)));
}

#[test]
fn loss_depends_on_seed_and_number_alone() {
    let lost = |text: &str, seed| -> Vec<u64> {
        let came = run(&mut link(text, seed), 5_000, Duration::from_us(1), 100);
        let mut gone: Vec<u64> = (1..=5_000).collect();
        gone.retain(|n| came.iter().all(|o| o.0 != *n));
        gone
    };
    let plain = lost("loss=2%", 7);
    assert!((60..140).contains(&plain.len()));
    assert_eq!(plain, lost("loss=2%,delay=3ms,jitter=1ms,reorder=10%/2ms,duplicate=5%", 7));
    assert_eq!(plain, lost("loss=2%,rate=10gbit,queue=none", 7));
    assert_ne!(plain, lost("loss=2%", 8));
}

#[test]
fn change_takes_effect_from_now_on() {
    let mut link = link("delay=10ms", 1);
    link.offer(at_us(0), &packet(true, false, 0, 100, 1));
    link.change("delay=1ms,mtu=576".parse().expect("a link"));
    link.offer(at_us(1_000), &packet(true, false, 0, 100, 2));
    link.offer(at_us(1_000), &packet(true, false, 0, 1000, 3));
    // With the shorter delay, the second packet still does not overtake the first: a link keeps the order.
    assert_eq!(link.poll(at_us(10_000)).map(number), Some(1));
    assert_eq!(link.poll(at_us(10_000)).map(number), Some(2));
    assert_eq!(link.counters().of(Cause::Mtu), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn same_seed_same_output_and_nothing_is_lost_uncounted(seed: u64, traffic: u64) {
        const BAD: &str = "rate=1gbit,delay=200us,jitter=50us,queue=20p/20kb,ecn=8p,loss=burst:2%/30%/90%/1%,\
                           reorder=5%/100us,duplicate=3%,corrupt=3%,truncate=3%,mtu=1400,flap=3ms/500us";
        let once = || {
            let (mut link, mut random) = (link(BAD, seed), Seed::new(traffic));
            let (mut now, mut out) = (Instant::ZERO, Vec::new());
            for n in 0..600 {
                now = now.plus(Duration::from_ns(random.below(20_000)));
                link.offer(now, &packet(random.chance(500_000), false, 1, 48 + random.below(1_400) as usize, n));
                while let Some(frame) = link.poll(now) {
                    out.push(frame.to_vec());
                }
            }
            while let Some(frame) = link.poll(now.plus(Duration::from_secs(1))) {
                out.push(frame.to_vec());
            }
            (out, *link.counters())
        };
        let (out, counters) = once();
        prop_assert_eq!(counters.offered + counters.duplicated, counters.delivered + counters.dropped());
        prop_assert_eq!(out.len() as u64, counters.delivered);
        prop_assert_eq!(out.iter().map(Vec::len).sum::<usize>() as u64, counters.delivered_bytes);
        prop_assert_eq!((out, counters), once());
    }
}
