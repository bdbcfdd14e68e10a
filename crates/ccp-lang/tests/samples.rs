//! Whole programs: the CCP paper's, and Reno, Cubic and DCTCP in the datapath.

use ccp_vm::Signals;

use crate::flow::Flow;

const MSS: u64 = 1448;

fn acked(now_us: u64, bytes_acked: u64) -> Signals {
    Signals {
        now_us,
        bytes_acked,
        packets_acked: bytes_acked.div_ceil(MSS),
        rtt_us: 20_000,
        ..Signals::default()
    }
}

#[test]
fn figure_2_reports_on_losses() {
    let mut flow = Flow::new(include_str!("programs/figure2.ccp"));
    flow.run(acked(0, 1000)).expect("no fault");
    assert_eq!(flow.report(), None);
    flow.run(Signals { lost_packets: 2, ..acked(1, 500) }).expect("no fault");
    assert_eq!(flow.report(), Some(vec![1500, 2]));
}

#[test]
fn figure_4_reports_each_round_trip() {
    let mut flow = Flow::new(include_str!("programs/figure4.ccp"));
    let reports = (0..80).filter_map(|tick| {
        flow.run(acked(tick * 1000, 100)).expect("no fault");
        flow.reported("acked")
    });
    assert_eq!(reports.collect::<Vec<_>>(), [2200, 2100, 2100], "after more than 20 ms each");
}

#[test]
fn figure_6_grows_the_window_until_a_loss() {
    let mut flow = Flow::new(include_str!("programs/figure6.ccp"));
    let before = flow.cwnd;
    flow.run(acked(0, 2 * MSS)).expect("no fault");
    assert_eq!((flow.cwnd, flow.report()), (before + 2 * MSS, None));
    flow.run(Signals { lost_packets: 1, ..acked(1, 0) }).expect("no fault");
    assert!(flow.report().is_some());
}

#[test]
fn slow_start_by_rate_doubles_each_round_trip() {
    let mut flow = Flow::new(include_str!("programs/slow_start_by_rate.ccp"));
    for tick in 0..=63 {
        flow.run(acked(tick * 1000, MSS)).expect("no fault");
    }
    assert_eq!(flow.rate, 8_000_000);
}

#[test]
fn bbr_pulses_in_turn() {
    let mut flow = Flow::new(include_str!("programs/bbr.ccp"));
    let mut rates = Vec::new();
    for tick in 0..170 {
        let signals = Signals { rate_incoming: 6_000_000, ..acked(tick * 1000, MSS) };
        flow.run(signals).expect("no fault");
        if rates.last() != Some(&flow.rate) {
            rates.push(flow.rate);
        }
        if let Some(report) = flow.report() {
            assert_eq!(report, [20_000, 6_000_000]);
        }
    }
    assert_eq!(rates, [7_500_000, 4_500_000, 6_000_000, 7_500_000]);
}

#[test]
fn reno_grows_halves_and_restarts() {
    let mut flow = Flow::new(include_str!("programs/reno.ccp"));
    flow.run(acked(0, 10 * MSS)).expect("no fault");
    assert_eq!(flow.cwnd, 20 * MSS, "slow start");
    flow.run(Signals { lost_packets: 1, ..acked(1000, MSS) }).expect("no fault");
    assert_eq!(flow.cwnd, 10 * MSS);
    let report = flow.report().expect("a loss is reported");
    assert_eq!(report, [11 * MSS, 1, 0, 10 * MSS]);
    flow.run(Signals { lost_packets: 3, ..acked(2000, MSS) }).expect("no fault");
    assert_eq!((flow.cwnd, flow.report()), (10 * MSS, None), "of the same round trip");
    for round in 0..3 {
        for _ in 0..11 {
            flow.run(acked(30_000 + round * 20_000, MSS)).expect("no fault");
        }
    }
    assert_eq!(flow.cwnd, 13 * MSS, "one segment for each window");
    flow.run(Signals { was_timeout: true, lost_packets: 13, ..acked(200_000, 0) }).expect("no fault");
    assert_eq!((flow.cwnd, flow.variable("ssthresh")), (MSS, 13 * MSS / 2));
    assert_eq!(flow.reported("timeout"), Some(1));
    assert_eq!(flow.variable("Report.timeout"), 0);
}

#[test]
fn cubic_comes_back_to_its_plateau_at_k() {
    let mut flow = Flow::new(include_str!("programs/cubic.ccp"));
    flow.cwnd = 100 * MSS;
    flow.run(Signals { lost_packets: 1, ..acked(0, MSS) }).expect("no fault");
    assert_eq!((flow.cwnd, flow.reported("cwnd")), (70 * MSS, Some(100 * MSS)));
    // cbrt(100 * 0.3 / 0.4) s
    flow.set("k_ms", 4217);
    let mut window_at = |ms: u64| {
        flow.run(acked(ms * 1000, MSS)).expect("no fault");
        flow.cwnd as f64 / MSS as f64
    };
    for (ms, segments) in [(100, 72.1), (2000, 95.6), (4217, 100.0), (6217, 103.2), (9217, 150.0)] {
        let window = window_at(ms);
        assert!((window - segments).abs() < 0.2, "{window} segments at {ms} ms, expected {segments}");
    }
}

#[test]
fn dctcp_takes_the_marked_part_of_the_window() {
    let mut flow = Flow::new(include_str!("programs/dctcp.ccp"));
    flow.cwnd = 100 * MSS;
    let mut round = 0;
    let mut run = |flow: &mut Flow, marked: u64| {
        round += 1;
        flow.run(acked(round * 20_000, 50 * MSS)).expect("no fault");
        round += 1;
        flow.run(Signals { ecn_bytes: marked, ..acked(round * 20_000, 50 * MSS) }).expect("no fault");
        flow.report().expect("each round trip")
    };
    for _ in 0..100 {
        run(&mut flow, 0);
    }
    assert!(flow.variable("Report.alpha") < 16, "no marks: {}", flow.variable("Report.alpha"));
    let before = flow.cwnd;
    for _ in 0..100 {
        run(&mut flow, 50 * MSS);
        flow.cwnd = before;
    }
    let alpha = flow.variable("Report.alpha");
    assert!((480..=1024).contains(&alpha), "{alpha}");
    run(&mut flow, 50 * MSS);
    assert!(flow.cwnd < before * 80 / 100 && flow.cwnd >= before * 45 / 100, "{} of {before}", flow.cwnd);
}
