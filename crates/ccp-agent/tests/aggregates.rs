//! Groups of flows that an aggregate decides about together.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ccp_agent::{Aggregate, Aggregated, Datapath, FlowInfo, FlowKey, Group, Outcome, Report, apportion};

use crate::bench::{Bench, COUNT, Diary, window};

/// Gives each group 90,000 bytes.
struct Halves(Diary);

struct Members {
    diary: Diary,
    flows: BTreeMap<FlowKey, (Datapath, u32)>,
}

impl Aggregate for Halves {
    type Key = Ipv4Addr;
    type Group = Members;

    fn name(&self) -> &str {
        "halves"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![("count".to_owned(), COUNT.to_owned())]
    }

    fn aggregate_by(&self, info: &FlowInfo) -> Ipv4Addr {
        *info.source.ip()
    }

    fn create(&mut self, key: &Ipv4Addr) -> Members {
        self.0.write(format!("create {key}"));
        Members { diary: self.0.clone(), flows: BTreeMap::new() }
    }

    fn weight(&self, info: &FlowInfo) -> u32 {
        if info.source.port() == 3 { 7 } else { 1 }
    }
}

impl Members {
    fn share(&self) -> Outcome {
        let weights: Vec<u32> = self.flows.values().map(|(_, weight)| *weight).collect();
        for ((datapath, _), part) in self.flows.values().zip(apportion(90_000, &weights)) {
            datapath.update(&[("Cwnd", part)])?;
        }
        Ok(())
    }
}

impl Group for Members {
    fn create_subflow(&mut self, datapath: Datapath, info: &FlowInfo, weight: u32) -> Outcome {
        datapath.set_program("count", &[])?;
        self.flows.insert(info.flow, (datapath, weight));
        self.share()
    }

    fn on_report(&mut self, flow: FlowKey, report: &Report) -> Outcome {
        self.diary.write(format!("report of {flow}"));
        if report.get("lost")? > 0 { Err("lost".into()) } else { Ok(()) }
    }

    fn close_subflow(&mut self, flow: FlowKey) {
        self.flows.remove(&flow);
        self.share().expect("all others live");
        self.diary.write(format!("{} left", self.flows.len()));
    }
}

fn windows(bench: &mut Bench) -> Vec<(u64, u64)> {
    bench.commands().iter().filter_map(window).collect()
}

#[test]
fn flows_of_one_source_share_one_window_by_weight() {
    let diary = Diary::default();
    let mut bench = Bench::with(Aggregated::new(Halves(diary.clone())));
    let (one, other) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    bench.open_from(1, "", one);
    bench.open_from(2, "", one);
    assert_eq!(windows(&mut bench), [(1, 90_000), (1, 45_000), (2, 45_000)]);
    bench.open_from(3, "", one);
    assert_eq!(windows(&mut bench), [(1, 10_000), (2, 10_000), (3, 70_000)], "the third weighs 7");
    bench.open_from(4, "", other);
    assert_eq!(windows(&mut bench), [(4, 90_000)]);
    assert_eq!(diary.take(), ["create 10.0.0.1", "create 10.0.0.2"]);
    bench.close(3);
    assert_eq!(windows(&mut bench), [(1, 45_000), (2, 45_000)]);
    bench.report(2, 2, &[5, 0]);
    assert_eq!(diary.take(), ["2 left", "report of 0:2"]);
}

#[test]
fn a_group_ends_with_its_last_flow() {
    let diary = Diary::default();
    let mut bench = Bench::with(Aggregated::new(Halves(diary.clone())));
    for _ in 0..2 {
        bench.open(1, "");
        bench.open(2, "");
        bench.close(1);
        bench.close(2);
        assert_eq!(diary.take(), ["create 127.0.0.1", "1 left", "0 left"]);
    }
}

#[test]
fn a_flow_that_fails_leaves_its_group_and_the_group_goes_on() {
    let diary = Diary::default();
    let mut bench = Bench::with(Aggregated::new(Halves(diary.clone())));
    bench.open(1, "");
    bench.open(2, "");
    windows(&mut bench);
    bench.report(1, 2, &[5, 1]);
    assert_eq!(windows(&mut bench), [(2, 90_000)]);
    bench.close(1);
    bench.report(2, 2, &[5, 0]);
    assert_eq!(diary.take()[1..], ["report of 0:1", "1 left", "report of 0:2"]);
}

#[test]
fn parts_are_their_share_to_the_last_unit() {
    assert_eq!(apportion(10, &[1, 1, 1]), [3, 3, 4]);
    assert_eq!(apportion(10, &[0, 0]), [0, 0]);
    assert_eq!(apportion(5, &[]), [0_u64; 0]);
    let weights: Vec<u32> = (0..97).map(|n| (n * 7919) % 50 + u32::MAX / 2).collect();
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    for total in [0, 1, 96, 12_345_678, u64::MAX] {
        let parts = apportion(total, &weights);
        assert_eq!(parts.iter().map(|part| u128::from(*part)).sum::<u128>(), u128::from(total));
        for (part, weight) in parts.iter().zip(&weights) {
            let exact = u128::from(total) * u128::from(*weight) / sum;
            assert!(u128::from(*part).abs_diff(exact) <= 1, "{part} of {exact}");
        }
    }
}
