//! Ends of records (`MSG_EOR`): no segment goes on behind one, the first time or again.

use crate::harness::{MAC_A, config};
use crate::scene::{Scene, scene, scene_with};
use base::Duration;
use core::sync::atomic::Ordering::Relaxed;
use port::Capabilities;
use queue::Ring;
use queue::records::{CLASS, Records, flags_of};
use shm::Side;
use shm::application_flags::{MORE, NODELAY};
use wire::TcpFlags;

const MSS: usize = 1448;

/// A table at the end of the application's area, where the harness lends nothing.
fn table(s: &Scene) -> Ring {
    let size = 4096 << CLASS;
    Ring::new(s.host.region.region().layout().params.data_len - size, 12 + CLASS as u8)
}

/// The application's half says that there is a table, which is empty.
fn begin(s: &Scene, flags: u64) {
    let ring = table(s);
    Records::new(s.host.region.region(), Side::One, ring).clear();
    let (_, own) = s.host.region.halves(5).unwrap();
    own.extra.store(flags | flags_of(ring), Relaxed);
}

/// Publishes `len` bytes without a word to the core.
fn write(s: &mut Scene, len: usize) {
    assert_eq!(s.host.send(&mut s.sock, &vec![7; len], 64 << 10), len);
}

/// The same, and a record ends there.
fn write_record(s: &mut Scene, len: usize) {
    write(s, len);
    Records::new(s.host.region.region(), Side::One, table(s)).add(s.sock.tx.head);
}

/// Payload bytes, and whether PSH is set.
fn sent(s: &mut Scene) -> Vec<(usize, bool)> {
    s.poll().iter().map(|got| (got.payload.len(), got.flags.contains(TcpFlags::PSH))).collect()
}

fn after(s: &mut Scene, ms: u64) -> Vec<(usize, bool)> {
    s.now = s.now.plus(Duration::from_ms(ms));
    sent(s)
}

#[test]
fn what_follows_a_record_begins_a_segment_of_its_own() {
    let mut s = scene();
    begin(&s, NODELAY);
    write_record(&mut s, 100);
    write_record(&mut s, MSS + 10);
    write(&mut s, 30);
    write(&mut s, 40);
    assert_eq!(sent(&mut s), [(100, true), (MSS, false), (10, true), (70, true)]);
}

/// Only the last segment of what was written waits for others, as on Linux.
#[test]
fn only_the_last_record_is_subject_to_nagles_rule() {
    let mut s = scene();
    begin(&s, 0);
    write_record(&mut s, 100);
    write_record(&mut s, 100);
    write_record(&mut s, 100);
    assert_eq!(sent(&mut s), [(100, true), (100, true)]);
    s.peer.ack(0, 200);
    assert_eq!(sent(&mut s), [(100, true)]);
}

/// `MSG_MORE` is said of the bytes behind the record.
#[test]
fn a_record_that_ended_is_pushed_though_more_is_to_come() {
    let mut s = scene();
    begin(&s, NODELAY | MORE);
    write_record(&mut s, 100);
    write(&mut s, 40);
    assert_eq!(sent(&mut s), [(100, true)]);
}

#[test]
fn a_super_frame_ends_with_the_record() {
    let capabilities = Capabilities::plain(1500, MAC_A).with_tso();
    let mut s = scene_with(|_| {}, capabilities, config());
    begin(&s, NODELAY);
    write_record(&mut s, 3 * MSS + 5);
    write(&mut s, 2 * MSS);
    let sizes: Vec<usize> = sent(&mut s).iter().map(|(len, _)| *len).collect();
    assert_eq!(sizes, [3 * MSS + 5, 2 * MSS]);
}

#[test]
fn records_stay_apart_when_they_are_sent_again() {
    let mut s = scene();
    begin(&s, NODELAY);
    (0..6).for_each(|_| write_record(&mut s, 100));
    assert_eq!(sent(&mut s), [(100, true); 6]);
    // A tail loss probe is the last record alone.
    assert_eq!(after(&mut s, 1500), [(100, true)]);
    // It shows that the first two are missing.
    s.peer.sack = vec![(200, 600)];
    s.peer.ack(0, 0);
    let again: Vec<_> = (0..50).flat_map(|_| after(&mut s, 1)).collect();
    assert!(again.len() >= 2 && again.iter().all(|one| *one == (100, true)), "{again:?}");
}

#[test]
fn a_table_outside_the_area_costs_the_application_its_registration() {
    let mut s = scene();
    let (_, own) = s.host.region.halves(5).unwrap();
    own.extra.store(shm::application_flags::RECORDS, Relaxed);
    write(&mut s, 100);
    assert_eq!(sent(&mut s), []);
    assert_eq!(s.host.core.counters().violations, 1);
}
