//! A SYN flood beside established connections: whether they keep their rate, whether new connections succeed, and the cost of a SYN.
//!
//! ```text
//!   generator thread                          service thread
//!   64 RPC flows, 200,000 SYN/s,  <- memory -> core, slow path, echo
//!   100 new connections/s            port
//! ```
//! Both sides make no system call except to read the clock. Runs with and without the flood alternate.

mod generator;

use crate::rig::{Far, Rig, Setup, Shared};
use crate::samples::Samples;
use crate::{Options, Report, clock};
use generator::{Generator, Load, Seen, YOUNG};
use std::time::Duration;

/// Established RPC flows.
const FLOWS: u32 = 64;
const REQUEST: usize = 64;
/// The most connections at once.
const CONNECTIONS: u32 = 1000;
/// The most frames in flight in each direction.
const FRAMES: usize = 4096;
/// SYNs per second of the flood.
const SYNS_PER_SECOND: u64 = 200_000;
/// New connections per second during both kinds of runs.
const OPENS_PER_SECOND: u64 = 100;
/// The smallest share of their rate that flows must keep in the flood.
const KEEP: f64 = 0.9;
/// Growth of the process in KiB that is allowed: page tables and the allocator's reserves.
const FLAT_KIB: u64 = 2048;

/// Runs the measurement `syn-flood`.
///
/// # Errors
/// When memory or a thread cannot be had.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("syn-flood");
    let setup = Setup { connections: CONNECTIONS, frames: FRAMES, inline: true, is_metered: false };
    let (rig, port, _) = Rig::start(setup)?;
    let mut generator = Generator::new(Far::new(port, FLOWS + YOUNG, REQUEST));
    let outcome = measure(options, &mut generator, &rig.shared, &mut report);
    let served = rig.stop()?;
    outcome?;
    report.note(format!(
        "service: {} cookies sent, {} taken, {} half-open at the end, {} exceptions lost",
        served.cookies_sent, served.cookies_taken, served.half_open, served.exceptions_lost
    ));
    Ok(report)
}

fn measure(
    options: &Options,
    generator: &mut Generator,
    shared: &Shared,
    report: &mut Report,
) -> anyhow::Result<()> {
    let seconds = Duration::from_secs_f64(options.seconds());
    generator.establish()?;
    let peak = generator.peak(seconds);
    let half = peak / 2.0;
    let calm = Load { rpcs_per_second: half, syns_per_second: 0, opens_per_second: OPENS_PER_SECOND };
    let storm = Load { syns_per_second: SYNS_PER_SECOND, ..calm };
    // The first run touches all memory before the resident size is read.
    generator.run(seconds, storm);
    let before = resident_kib()?;
    let mut samples = Samples::default();
    let mut totals = [Seen::default(); 2];
    for _ in 0..options.runs() {
        let mut busy = [0.0; 2];
        for (i, (system, load)) in [("calm", calm), ("flood", storm)].into_iter().enumerate() {
            let (start, busy_before) = (clock::now_ns(), shared.account().all_ns());
            let seen = generator.run(seconds, load);
            let elapsed = (clock::now_ns() - start) as f64 / 1e9;
            busy[i] = (shared.account().all_ns() - busy_before) as f64 / elapsed;
            samples.add(CASE, system, "RPC rate", "RPC/s", seen.rpcs as f64 / elapsed);
            samples.add(CASE, system, "busy", "% of a core", busy[i] / 1e7);
            if seen.syns > 0 {
                let per_syn = (busy[1] - busy[0]) * elapsed / seen.syns as f64;
                samples.add(CASE, system, "cost of a SYN", "ns", per_syn);
                samples.add(CASE, system, "flood", "SYN/s", seen.syns as f64 / elapsed);
            }
            totals[i].add(&seen);
        }
    }
    let grown = resident_kib()?.saturating_sub(before);
    report.rows = samples.rows();
    report.ratios = samples.ratios("flood", &["calm"]);
    report.note(format!("peak {peak:.0} RPC/s over {FLOWS} flows, one request each; load: half of it"));
    report.note(format!("the process grew by {grown} KiB over all runs"));
    judge(report, &totals, grown);
    Ok(())
}

const CASE: &str = "syn-flood/n64";

fn judge(report: &mut Report, totals: &[Seen; 2], grown: u64) {
    let kept = report.ratios.iter().find(|r| r.metric == "RPC rate").map_or(0.0, |r| r.median);
    if kept < KEEP {
        report.failures.push(format!("established flows kept {:.1} % of their rate", kept * 100.0));
    }
    for (seen, when) in totals.iter().zip(["without the flood", "in the flood"]) {
        report.note(format!("new connections {when}: {} of {} served", seen.opened, seen.opens));
        // The last connections are still under way when a run ends.
        if seen.opened * 100 < seen.opens * 95 {
            report.failures.push(format!("{when} {} of {} new connections", seen.opened, seen.opens));
        }
    }
    if totals[1].answers > totals[1].syns {
        report.failures.push("more answers than SYNs: amplification".to_owned());
    }
    if grown > FLAT_KIB {
        report.failures.push(format!("memory grew by {grown} KiB"));
    }
}

fn resident_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
    kib.ok_or_else(|| anyhow::anyhow!("/proc/self/status has no VmRSS"))
}
