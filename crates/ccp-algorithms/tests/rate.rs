//! BBR, as the CCP paper's Figure 3 shows it.

use ccp_algorithms::bbr::Bbr;

use crate::model::{Path, Sample, World, ms};

/// Figure 3: 48 Mbit/s, 20 ms, two bandwidth-delay products of buffer.
#[test]
fn bbr_pulses_every_eight_round_trips_and_dips_every_ten_seconds() {
    let path = Path::new(48.0, 20, 2.0);
    let mut world = World::new(path, Bbr);
    world.flow(1, 0, 100_000);
    world.run(33_000);
    let sender = &world.senders[&1];
    let goodput = sender.mbit(ms(2000), ms(33_000));
    assert!(goodput > 0.93 * 48.0, "{goodput}");
    assert_eq!(sender.faults, 0);
    let samples: Vec<&Sample> = sender.samples.iter().filter(|sample| sample.at >= ms(2000)).collect();
    let is_small = |sample: &Sample| sample.cwnd <= 4 * 1448;
    let dips: Vec<u64> = samples
        .windows(2)
        .filter(|pair| !is_small(pair[0]) && is_small(pair[1]))
        .map(|pair| pair[1].at.as_ms())
        .collect();
    let gaps: Vec<u64> = dips.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(dips.len() >= 2 && gaps.iter().all(|gap| (9500..=10_800).contains(gap)), "{dips:?}");
    // The pulses: rises of the rate above the link, between two dips.
    let link = path.bytes_per_second;
    let quiet =
        samples.iter().filter(|sample| sample.at > ms(dips[0] + 1000) && sample.at < ms(dips[1] - 1000));
    let quiet: Vec<&&Sample> = quiet.collect();
    let is_high = |sample: &Sample| sample.rate > link * 11 / 10;
    let rises: Vec<u64> = quiet
        .windows(2)
        .filter(|pair| !is_high(pair[0]) && is_high(pair[1]))
        .map(|pair| pair[1].at.as_ms())
        .collect();
    let period = (rises[rises.len() - 1] - rises[0]) as f64 / (rises.len() - 1) as f64;
    assert!((period / (8.0 * 20.0) - 1.0).abs() < 0.1, "a pulse each {period} ms");
    let queue = sender.queue_ms(ms(2000), ms(33_000));
    assert!(queue < 10.0, "{queue} ms in the queue");
}
