//! What machines of a large network take of memory. The only test of its program: it measures the whole process.

use base::{Duration, Instant};
use congestion::Algorithm;
use link::LinkConfig;
use sim::load::{Connections, Job, Load};
use sim::topology::{Fabric, HostSetting, PORT};

const BEGIN: Instant = Instant::from_ns(1_000_000_000);
const MACHINES: usize = 100;
/// Flows that a machine begins; as many come to it.
const FLOWS: usize = 2;
/// Bytes of memory for a machine with a few flows.
const MOST: u64 = 3 << 20;

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux shows it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// Each machine sends to two others and hears from two, 50 KB each.
#[test]
fn a_machine_of_few_flows_takes_three_megabytes_at_most() {
    let before = resident();
    let link = LinkConfig::rated(10_000_000_000, Duration::from_us(5));
    let hosts = vec![HostSetting::new(Algorithm::Cubic); MACHINES];
    let mut fabric = Fabric::star(&hosts, &link, 5, BEGIN);
    let members = fabric.members.clone();
    for (i, member) in members.iter().enumerate() {
        let to = |n: usize| members[(i + n) % MACHINES].socket();
        let at = |n: usize| BEGIN.plus(Duration::from_us((10 * n + i) as u64));
        let mut jobs: Vec<Job> = (1..=FLOWS).map(|n| Job::new(at(n), to(n), 50_000)).collect();
        fabric.network.tally.enter(&mut jobs);
        fabric.network.load(member.node, Load::new(Connections::Kept).serving(PORT, 16).sending(jobs));
    }
    let _ = fabric.network.run_to_end(BEGIN.plus(Duration::from_secs(1)));
    let all = fabric.network.tally.messages();
    assert!(all.len() == FLOWS * MACHINES && all.iter().all(|message| message.ended.is_some()));
    let each = (resident() - before) / MACHINES as u64;
    println!("{each} bytes for each machine");
    assert!(each <= MOST, "{each} bytes for each machine");
}
