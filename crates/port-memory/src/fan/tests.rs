use super::*;
use wire::{Endpoint, FourTuple};

const FAR: [u8; 4] = [10, 0, 0, 9];
const OURS: [u8; 4] = [10, 0, 0, 8];

/// A TCP frame from port `port` of the far end to our port 80.
fn frame(port: u16) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0x0A, 2, 0, 0, 0, 0, 0x0B, 8, 0]);
    frame[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..30].copy_from_slice(&FAR);
    frame[30..34].copy_from_slice(&OURS);
    let sum = wire::checksum::of(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame[36..38].copy_from_slice(&80u16.to_be_bytes());
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    frame
}

fn group(port: u16) -> usize {
    let tuple = FourTuple::new(Endpoint::new(FAR.into(), port), Endpoint::new(OURS.into(), 80));
    usize::from(tuple.group())
}

fn send(port: &mut impl Port, frame: &[u8]) -> bool {
    let has_room = port.reserve().is_some_and(|buf| buf.fill(frame));
    port.commit();
    port.flush();
    has_room
}

#[test]
fn each_group_comes_to_the_queue_that_the_table_names_also_after_changes() {
    let mut table: Table = std::array::from_fn(|group| (group % 3) as u8);
    let (mut near, mut steering, mut far) = fan(&LinkOptions::default(), 3, &table).unwrap();
    let mut batch = Batch::new();
    for change in 1..=5 {
        for port in 2000..2200 {
            assert!(send(&mut far, &frame(port)));
            let queue = usize::from(table[group(port)]);
            for (index, near) in near.iter_mut().enumerate() {
                assert_eq!(near.receive(&mut batch), usize::from(index == queue), "port {port}");
            }
        }
        table = std::array::from_fn(|group| (group * change / 5 % 3) as u8);
        steering.apply(&table).unwrap();
    }
    // What is not TCP comes to the first queue.
    assert!(send(&mut far, &[0xFF; 60]));
    assert_eq!([0, 1, 2].map(|queue| near[queue].receive(&mut batch)), [1, 0, 0]);
    assert_eq!((far.stats().sent_packets, far.stats().drops.total()), (1001, 0));
}

#[test]
fn frames_of_all_queues_come_to_the_other_end_and_a_full_queue_refuses_all() {
    let options = LinkOptions { slots: 8, ..LinkOptions::default() };
    let (mut near, _steering, mut far) = fan(&options, 2, &[1; GROUPS]).unwrap();
    assert_eq!((near[1].capabilities().queues, far.capabilities().queues), (2, 1));
    for port in &mut near {
        assert!((0..5).all(|i| send(port, &frame(i))));
    }
    let (mut batch, mut count) = (Batch::new(), 0);
    while far.receive(&mut batch) > 0 {
        count += batch.len();
    }
    assert_eq!(count, 10);
    assert!((0..8).all(|_| send(&mut far, &frame(7))));
    assert!(!send(&mut far, &frame(7)));
    assert_eq!((near[0].receive(&mut batch), near[1].receive(&mut batch)), (0, 8));
    assert!(send(&mut far, &frame(7)));
}
