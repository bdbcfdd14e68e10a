//! What a batch of acknowledgements says together.

use ccp_vm::{Primitive, Signals};

#[test]
fn a_batch_sums_counts_and_takes_the_least_rtt_and_the_newest_state() {
    let first = Signals {
        bytes_acked: 1000,
        packets_acked: 1,
        bytes_misordered: 10,
        packets_misordered: 1,
        ecn_bytes: 500,
        ecn_packets: 1,
        lost_packets: 2,
        now_us: 70,
        was_timeout: true,
        rtt_us: 300,
        rate_outgoing: 9,
        rate_incoming: 8,
        bytes_in_flight: 5000,
        packets_in_flight: 5,
        bytes_pending: 100,
    };
    let second = Signals { now_us: 71, rtt_us: 200, rate_incoming: 7, bytes_acked: 24, ..Signals::default() };
    let mut batch = Signals::default();
    batch.merge(&first);
    assert_eq!(batch, first, "a batch of one is that one");
    batch.merge(&second);
    let expected = Signals {
        bytes_acked: 1024,
        now_us: 71,
        rtt_us: 200,
        rate_incoming: 7,
        bytes_in_flight: 0,
        packets_in_flight: 0,
        bytes_pending: 0,
        ..first
    };
    assert_eq!(batch, expected);
    batch.merge(&Signals { rtt_us: 250, ..expected });
    assert_eq!(batch.rtt_us, 200);
}

#[test]
fn registers_lie_where_the_encoding_says() {
    let signals = Signals {
        bytes_acked: 100,
        bytes_misordered: 101,
        ecn_bytes: 102,
        ecn_packets: 103,
        lost_packets: 104,
        now_us: 105,
        packets_acked: 106,
        packets_misordered: 107,
        bytes_in_flight: 108,
        bytes_pending: 109,
        packets_in_flight: 110,
        rate_incoming: 111,
        rate_outgoing: 112,
        rtt_us: 113,
        was_timeout: true,
    };
    let mut expected: Vec<u64> = (100..114).collect();
    expected.push(1);
    assert_eq!(signals.registers().to_vec(), expected);
    for (index, (name, primitive)) in Primitive::NAMES.into_iter().enumerate() {
        assert_eq!(primitive as usize, index, "{name}");
    }
}
