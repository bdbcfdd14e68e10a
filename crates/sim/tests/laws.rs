//! Every law of congestion control on whole hosts: its share of a link alone, with losses at random, and with a rival.

use base::{Duration, Instant};
use congestion::Algorithm;
use link::{Amount, LinkConfig, Loss, Probability};
use sim::load::{Connections, Job, Load};
use sim::topology::{Fabric, HostSetting, PORT};

const BEGIN: Instant = Instant::from_ns(1_000_000_000);

/// The laws that decide a rate; the constant one at 24 Mbit/s.
const RATES: [Algorithm; 4] =
    [Algorithm::RateDctcp, Algorithm::Timely, Algorithm::Bbr, Algorithm::Rate(24_000)];

/// Senders, each on a machine of its own, that send to one receiver for ever, all over the same kind of link.
struct Race {
    fabric: Fabric,
    senders: usize,
}

impl Race {
    fn new(algorithms: &[Algorithm], link: &LinkConfig) -> Self {
        let mut hosts = vec![HostSetting::new(Algorithm::Cubic)];
        hosts.extend(algorithms.iter().map(|algorithm| HostSetting::new(*algorithm)));
        let mut fabric = Fabric::star(&hosts, link, 11, BEGIN);
        let members = fabric.members.clone();
        fabric.network.load(members[0].node, Load::new(Connections::Fresh).serving(PORT, 64));
        for (i, member) in members[1..].iter().enumerate() {
            let at = BEGIN.plus(Duration::from_ms(37 * i as u64));
            let mut jobs = vec![Job::new(at, members[0].socket(), u64::MAX)];
            fabric.network.tally.enter(&mut jobs);
            fabric.network.load(member.node, Load::new(Connections::Fresh).sending(jobs));
        }
        Self { fabric, senders: algorithms.len() }
    }

    fn received(&self) -> Vec<u64> {
        self.fabric.network.tally.messages().iter().map(|message| message.received).collect()
    }

    /// Megabits per second of each sender from second `from` until second `to`.
    fn megabits(&mut self, from: u64, to: u64) -> Vec<f64> {
        self.fabric.network.run_until(BEGIN.plus(Duration::from_secs(from)));
        let before = self.received();
        self.fabric.network.run_until(BEGIN.plus(Duration::from_secs(to)));
        let after = self.received();
        (0..self.senders).map(|i| (after[i] - before[i]) as f64 * 8e-6 / (to - from) as f64).collect()
    }
}

/// 48 Mbit/s, round trip 20 ms, a queue of twice the product of both.
fn far() -> LinkConfig {
    let mut link = LinkConfig::rated(48_000_000, Duration::from_ms(5));
    link.queue_bytes = Some(2 * 48_000_000 / 8 / 50);
    link
}

/// 1 Gbit/s, round trip 100 us, marks from 20 packets on.
fn near() -> LinkConfig {
    let mut link = LinkConfig::rated(1_000_000_000, Duration::from_us(25));
    (link.queue_packets, link.ecn_threshold) = (Some(200), Some(Amount::Packets(20)));
    link
}

fn lossy(mut link: LinkConfig) -> LinkConfig {
    // Two links in a row: 1 % in all.
    link.loss = Loss::Random(Probability::per_million(5_013));
    link
}

/// The paper's figure 3 begins so; 0.93 of the link are what a probe of the round trip each ten seconds leaves.
#[test]
fn bbr_fills_a_link_of_two_products_also_with_one_percent_of_losses() {
    let alone = Race::new(&[Algorithm::Bbr], &far()).megabits(0, 30)[0];
    assert!(alone >= 0.93 * 48.0, "{alone} Mbit/s of 48");
    let with_losses = Race::new(&[Algorithm::Bbr], &lossy(far())).megabits(0, 30)[0];
    assert!(with_losses >= 0.9 * 48.0, "{with_losses} Mbit/s of 48");
    let cubic = Race::new(&[Algorithm::Cubic], &lossy(far())).megabits(0, 30)[0];
    assert!(cubic < 0.5 * 48.0, "{cubic} Mbit/s: a window that halves for each loss is far below");
}

#[test]
fn every_law_has_its_share_of_a_link_alone() {
    for (link, rate, least) in [(far(), 48.0, 0.8), (near(), 1_000.0, 0.75)] {
        for law in RATES {
            let got = Race::new(&[law], &link).megabits(2, 6)[0];
            let want = if law == Algorithm::Rate(24_000) { 24.0 } else { least * rate };
            assert!(got >= want * 0.94 && got <= rate, "{law}: {got} of {rate} Mbit/s");
        }
    }
}

/// A constant rate is exact, on a path of 20 ms and on one of 100 us.
#[test]
fn a_constant_rate_is_kept() {
    for link in [far(), near()] {
        let got = Race::new(&[Algorithm::Rate(24_000)], &link).megabits(1, 5)[0];
        // 1448 bytes of each segment are payload; the pacer counts those.
        assert!((23.7..24.1).contains(&got), "{got} Mbit/s");
    }
}

#[test]
fn two_flows_of_one_law_share_a_link() {
    for (link, rate) in [(far(), 48.0), (near(), 1_000.0)] {
        for law in [Algorithm::RateDctcp, Algorithm::Timely, Algorithm::Bbr] {
            let got = Race::new(&[law; 2], &link).megabits(4, 12);
            assert!(got.iter().sum::<f64>() >= 0.7 * rate, "{law}: {got:?} of {rate} Mbit/s");
            assert!(got.iter().all(|share| *share >= 0.1 * rate), "{law}: {got:?} of {rate} Mbit/s");
        }
    }
}
