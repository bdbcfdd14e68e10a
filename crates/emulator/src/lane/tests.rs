//! A lane between ports in memory: frames come out as the model decides, whichever segments are sent together.

use super::Lane;
use base::{Duration, Instant};
use port::{
    Batch, Capabilities, Checksum, Gso, GsoKind, Lent, PacketBuf, Port, Segmenter, Stats, complete_checksum,
};

/// A port that stores the frames sent to it.
struct Sink {
    capabilities: Capabilities,
    out: PacketBuf,
    sent: Vec<PacketBuf>,
    room: usize,
}

impl Sink {
    fn new(capabilities: Capabilities) -> Self {
        Self { capabilities, out: PacketBuf::new(), sent: Vec::new(), room: usize::MAX }
    }

    /// All sent frames, cut into segments with complete checksums.
    fn segments(&self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for frame in &self.sent {
            let mut one = PacketBuf::new();
            let Ok(mut segmenter) = Segmenter::new(frame) else {
                assert!(one.copy_from(frame) && complete_checksum(&mut one));
                all.push(one.frame().to_vec());
                continue;
            };
            while segmenter.next_into(frame, &mut one) {
                all.push(one.frame().to_vec());
            }
        }
        all
    }
}

impl Port for Sink {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn receive(&mut self, _batch: &mut Batch) -> usize {
        0
    }
    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.out.clear();
        (self.sent.len() < self.room).then_some(&mut self.out)
    }
    fn commit_with(&mut self, payload: Lent<'_>) {
        assert!(self.out.append(payload));
        assert!(self.capabilities.admits(&self.out), "the lane sends what the port cannot");
        let mut copy = PacketBuf::new();
        assert!(copy.copy_from(&self.out));
        self.sent.push(copy);
    }
    fn flush(&mut self) {}
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

fn with_tso() -> Capabilities {
    Capabilities::plain(1500, [2, 0, 0, 0, 0, 1]).with_tso()
}

/// An ECN-capable TCP super-frame over IPv4 with `count` segments of 1000 bytes; an ordinary frame if `count` is 1.
fn frame(sequence: u32, count: usize) -> PacketBuf {
    let mut bytes = vec![0; 54 + count * 1000];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0]);
    let total = (bytes.len() - 14) as u16;
    bytes[14..18].copy_from_slice(&[0x45, 2, (total >> 8) as u8, total as u8]);
    bytes[22..24].copy_from_slice(&[64, 6]);
    bytes[26..34].copy_from_slice(&[10, 78, 0, 9, 10, 78, 0, 8]);
    bytes[38..42].copy_from_slice(&sequence.to_be_bytes());
    bytes[46..48].copy_from_slice(&[0x50, 0x18]);
    bytes[54..].chunks_mut(4).zip(sequence..).for_each(|(four, n)| four.copy_from_slice(&n.to_be_bytes()));
    let sum = |bytes: &[u8]| {
        let sum: u32 = bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        (((sum & 0xFFFF) + (sum >> 16)) as u16).to_be_bytes()
    };
    let checksum = sum(&bytes[14..34]).map(|byte| !byte);
    bytes[24..26].copy_from_slice(&checksum);
    let mut pseudo = bytes[26..34].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend(((bytes.len() - 34) as u16).to_be_bytes());
    let partial = sum(&pseudo);
    bytes[50..52].copy_from_slice(&partial);
    let mut frame = PacketBuf::new();
    assert!(frame.fill(&bytes));
    frame.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
    if count > 1 {
        frame.meta.gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1000, header_len: 54, ecn: false });
    }
    frame
}

fn lane(spec: &str) -> Lane {
    Lane::new(spec.parse().expect("a link"), 5, Duration::from_us(20))
}

fn at_us(us: u64) -> Instant {
    Instant::ZERO.plus(Duration::from_us(us))
}

/// Releases all frames at the lane's own deadlines. Returns the time at which each was sent.
fn drain(lane: &mut Lane, sink: &mut Sink) -> Vec<Instant> {
    let mut times = Vec::new();
    while lane.next_deadline() < Instant::NEVER {
        let (due, before) = (lane.next_deadline(), sink.sent.len());
        assert!(lane.release(due, sink), "a deadline at which nothing is due");
        times.extend((before..sink.sent.len()).map(|_| due));
    }
    assert_eq!(lane.store.in_use(), 0, "a buffer is left");
    times
}

#[test]
fn super_frame_stays_whole_on_a_link_that_only_delays() {
    let (mut lane, mut sink) = (lane("delay=1ms"), Sink::new(with_tso()));
    lane.offer(at_us(5), &mut frame(1, 40));
    assert!(!lane.release(at_us(1_004), &mut sink));
    assert_eq!(drain(&mut lane, &mut sink), [at_us(1_005)]);
    assert_eq!(sink.sent[0].frame(), frame(1, 40).frame());
    assert_eq!(sink.sent[0].meta, frame(1, 40).meta);
    assert_eq!((lane.model().counters().offered, lane.model().counters().delivered), (40, 40));
    assert_eq!(lane.model().counters().delivered_bytes, 40 * 1054);
}

#[test]
fn what_is_left_of_a_super_frame_are_its_other_segments() {
    let mut all = Sink::new(with_tso());
    all.sent.push(frame(1, 40));
    let expected: Vec<Vec<u8>> =
        (1..).zip(all.segments()).filter(|(n, _)| ![1, 7, 8, 40].contains(n)).map(|(_, s)| s).collect();
    let (mut lane, mut sink) = (lane("loss=list:1+7-8+40"), Sink::new(with_tso()));
    lane.offer(at_us(0), &mut frame(1, 40));
    drain(&mut lane, &mut sink);
    assert_eq!(sink.sent.len(), 2, "2-6 and 9-39");
    assert_eq!(sink.segments(), expected);
}

#[test]
fn segments_leave_one_by_one_where_the_port_knows_no_super_frames() {
    let mut all = Sink::new(with_tso());
    all.sent.push(frame(9, 5));
    let mut sink = Sink::new(Capabilities::plain(1500, [2, 0, 0, 0, 0, 1]));
    let mut lane = lane("delay=1us");
    lane.offer(at_us(0), &mut frame(9, 5));
    lane.offer(at_us(0), &mut frame(5009, 1));
    drain(&mut lane, &mut sink);
    assert!(sink.sent.iter().all(|sent| sent.meta.checksum == Checksum::Unknown && sent.meta.gso.is_none()));
    assert_eq!(sink.segments()[..5], all.segments());
    assert_eq!(sink.sent.len(), 6);
}

#[test]
fn segments_on_a_slow_line_wait_no_longer_than_the_slack() {
    // 1054 bytes take 8.432 us at 1 Gbit/s: a run is the first segment and those of the next 20 us.
    let (mut lane, mut sink) = (lane("rate=1gbit"), Sink::new(with_tso()));
    lane.offer(at_us(0), &mut frame(1, 7));
    let times = drain(&mut lane, &mut sink);
    let lengths: Vec<usize> = sink.sent.iter().map(|sent| (sent.len() - 54) / 1000).collect();
    assert_eq!(lengths, [3, 3, 1]);
    assert_eq!(times.iter().map(|time| time.as_ns()).collect::<Vec<_>>(), [28_432, 53_728, 59_024]);
    // At 10 Mbit/s the segments leave one by one, without waiting for each other.
    let (mut lane, mut sink) = (self::lane("rate=10mbit"), Sink::new(with_tso()));
    lane.offer(at_us(0), &mut frame(1, 3));
    assert_eq!(
        drain(&mut lane, &mut sink).iter().map(|time| time.as_ns()).collect::<Vec<_>>(),
        [843_200, 1_686_400, 2_529_600]
    );
}

#[test]
fn damaged_segments_travel_alone_with_their_checksum_complete() {
    let (mut lane, mut sink) = (lane("corrupt=10%,truncate=10%"), Sink::new(with_tso()));
    for n in 0..20 {
        lane.offer(at_us(0), &mut frame(n * 40_000, 40));
    }
    drain(&mut lane, &mut sink);
    let counters = *lane.model().counters();
    let alone = sink.sent.iter().filter(|sent| sent.meta.checksum == Checksum::Unknown).count() as u64;
    assert!(
        alone <= counters.corrupted + counters.truncated
            && counters.corrupted.max(counters.truncated) < alone
    );
    assert!(sink.sent.iter().all(|sent| sent.meta.checksum != Checksum::Unknown || sent.meta.gso.is_none()));
    assert_eq!(counters.delivered, 800);
}

#[test]
fn marked_and_unmarked_segments_travel_apart() {
    let (mut lane, mut sink) = (lane("rate=10gbit,ecn=10p"), Sink::new(with_tso()));
    lane.offer(at_us(0), &mut frame(1, 20));
    drain(&mut lane, &mut sink);
    let marks: Vec<(u8, usize)> =
        sink.sent.iter().map(|sent| (sent.frame()[15] & 3, (sent.len() - 54) / 1000)).collect();
    assert_eq!(marks, [(2, 10), (3, 10)]);
    assert_eq!(lane.model().counters().marked, 10);
}

#[test]
fn late_and_doubled_packets_find_their_buffers() {
    let (mut lane, mut sink) = (lane("delay=50us,reorder=20%/30us,duplicate=20%"), Sink::new(with_tso()));
    let mut segments = 0;
    for n in 0..50 {
        lane.offer(at_us(n * 7), &mut frame(n as u32 * 40_000, 1 + n as usize % 5));
        segments += 1 + n % 5;
        lane.release(at_us(n * 7), &mut sink);
    }
    drain(&mut lane, &mut sink);
    let counters = lane.model().counters();
    assert!(counters.reordered > 10 && counters.duplicated > 10);
    assert_eq!((counters.offered, counters.delivered), (segments, segments + counters.duplicated));
    assert_eq!(sink.segments().len() as u64, counters.delivered);
}

#[test]
fn port_without_room_loses_nothing() {
    let (mut lane, mut sink) = (lane("loss=list:5"), Sink::new(with_tso()));
    lane.offer(at_us(0), &mut frame(1, 9));
    sink.room = 1;
    assert!(lane.release(at_us(0), &mut sink) && !lane.release(at_us(0), &mut sink));
    sink.room = 2;
    assert!(lane.release(at_us(0), &mut sink));
    assert_eq!(sink.segments().len(), 8);
}

#[test]
fn super_frames_that_contradict_themselves_are_refused() {
    let (mut lane, mut sink) = (lane("perfect"), Sink::new(with_tso()));
    let mut bad = frame(1, 5);
    bad.frame_mut()[23] = 17;
    lane.offer(at_us(0), &mut bad);
    assert_eq!(drain(&mut lane, &mut sink), []);
    assert_eq!((lane.refused(), lane.model().counters().offered), (1, 0));
}
