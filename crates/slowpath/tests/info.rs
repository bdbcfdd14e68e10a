//! What `TCP_INFO` says.

use crate::harness::*;
use control::tcp_state;
use flow::state;

#[test]
fn a_fresh_connection_says_what_was_agreed_on() {
    let mut w = World::new();
    let (flow, owner, _) = w.accepted(9);
    let info = w.slow.info(w.now, flow).unwrap();
    assert_eq!((info.state, info.ca_state, info.unacked), (tcp_state::ESTABLISHED, 0, 0));
    // The peer sent no options: RFC 9293's default segment, no shift, no timestamps.
    assert_eq!((info.snd_mss, info.advmss, info.pmtu), (536, 1460, 576));
    assert_eq!((info.options, info.wscale, info.snd_cwnd, info.snd_ssthresh), (0, 0, 10, 0x7FFF_FFFF));
    assert_eq!(w.slow.slot_info(w.now, 0, owner.slot), Some(info));
    assert_eq!(w.slow.slot_info(w.now, 0, owner.slot + 1), None);
    assert_eq!(w.slow.slot_info(w.now, 3, owner.slot), None);
    assert_eq!(w.slow.slot_info(w.now, 999, u32::MAX), None);
}

#[test]
fn what_is_in_flight_held_and_repaired_is_counted_in_segments() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    let app_wrote = 100_000;
    w.edit(flow, |parts| {
        let (rx, tx, cold) = (&mut *parts.rx, &mut *parts.tx, &mut *parts.cold);
        tx.snd_max = tx.snd_una.plus(10 * 536);
        tx.snd_nxt = tx.snd_max;
        rx.set(state::RECOVERY | state::SACK);
        (cold.recovery.held, cold.recovery.lost, cold.recovery.again) = (4 * 536, 2 * 536, 536);
        (cold.srtt_us, cold.rttvar_us, cold.rtt_us_min) = (20_000, 500, 19_000);
        cold.counters.retransmits = 1;
        cold.counters.retransmitted_bytes = 536;
    });
    w.app_half().tx_head.store(app_wrote, std::sync::atomic::Ordering::Release);
    let info = w.slow.info(w.now, flow).unwrap();
    assert_eq!((info.ca_state, info.unacked, info.sacked, info.total_retrans), (3, 10, 4, 1));
    // Linux's tcpi_lost counts what was lost and sent again until it is acknowledged.
    assert_eq!((info.lost, info.retrans), (3, 1));
    assert_eq!((info.rtt, info.rttvar, info.min_rtt), (20_000, 500, 19_000));
    assert_eq!((info.bytes_sent, info.bytes_acked, info.bytes_retrans), (11 * 536, 0, 536));
    assert_eq!(info.notsent_bytes, app_wrote as u32 - 10 * 536);
}

#[test]
fn a_hostile_position_of_the_application_makes_no_nonsense() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.app_half().tx_head.store(u64::MAX, std::sync::atomic::Ordering::Release);
    assert!(w.slow.info(w.now, flow).unwrap().notsent_bytes <= base::limits::RING_MAX);
}

#[test]
fn an_active_open_is_told_too() {
    let mut w = World::new();
    let (_, owner) = w.connect(80);
    let fresh = w.slow.slot_info(w.now, 0, owner.slot).unwrap();
    assert_eq!((fresh.total_rto, fresh.total_rto_recoveries, fresh.total_rto_time), (0, 0, 0));
    w.pass(secs(2));
    let info = w.slow.slot_info(w.now, 0, owner.slot).unwrap();
    assert_eq!((info.state, info.unacked, info.retransmits), (tcp_state::SYN_SENT, 1, 1));
    assert_eq!(info.rto, 2_000_000);
    // One repair from the timeout after a second on.
    assert_eq!((info.total_rto, info.total_rto_recoveries, info.total_rto_time), (1, 1, 1000));
}

#[test]
fn what_the_receiver_and_timeouts_have_measured_is_told() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    let fresh = w.slow.info(w.now, flow).unwrap();
    assert_eq!((fresh.rcv_rtt, fresh.delivery_rate_app_limited), (0, 1));
    let now = w.now;
    w.edit(flow, |parts| {
        parts.cold.sample_receiver(20_000, false);
        parts.cold.timeouts.begin(now, true);
        parts.cold.counters.timeouts = 1;
        parts.rx.set(state::CWND_FULL);
    });
    let info = w.slow.info(now.plus(secs(3)), flow).unwrap();
    assert_eq!((info.rcv_rtt, info.delivery_rate_app_limited), (20_000, 0));
    assert_eq!((info.total_rto, info.total_rto_recoveries, info.total_rto_time), (1, 1, 3000));
}

#[test]
fn after_a_timeout_everything_outstanding_counts_as_lost() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| {
        parts.tx.snd_max = parts.tx.snd_una.plus(3 * 536);
        parts.cold.backoff = 2;
    });
    let info = w.slow.info(w.now, flow).unwrap();
    assert_eq!((info.ca_state, info.lost, info.backoff, info.retransmits), (4, 3, 2, 2));
}
