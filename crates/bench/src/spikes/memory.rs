//! The cost of memory: flow records and rings accessed at random, and which process pays for a page that a hostile application takes away.
//! The third part of this spike, iperf3 over TAP, is the measurement `tap-baseline`.

mod cgroup;
pub mod holes;
mod records;

use crate::samples::Samples;
use crate::{Options, Report, tap};

/// Runs the measurement `spike-memory`.
///
/// # Errors
/// When a process cannot be started or the kernel refuses memory.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("spike-memory");
    let mut samples = Samples::default();
    records::measure(options, &mut samples, &mut report)?;
    holes::measure(&mut samples, &mut report)?;
    tap::baseline::measure(options, &mut samples, &mut report)?;
    report.rows = samples.rows();
    report.ratios = samples.ratios("pool", &["own-ring"]);
    Ok(report)
}
