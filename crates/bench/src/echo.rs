//! Small RPCs over the memory port: the cost of the fast path alone, with one to tens of thousands of connections (TAS, Figure 4).
//!
//! Closed loop: each connection always has one request under way. The application runs in the far end's thread, so that the service's core
//! only does TCP; for comparison it also runs in the service's thread (inline).

use crate::bars::{self, Bar, Limit, Measure};
use crate::rig::{Account, Application, ClosedLoop, Far, Rig, Served, Setup};
use crate::samples::{Sample, Samples};
use crate::{Options, Report, clock};
use anyhow::Context;
use std::time::Duration;

const REQUEST: usize = 64;
const CONNECTIONS: [u32; 5] = [1, 64, 1024, 16_384, 64_000];
/// The most frames in flight in each direction.
pub const FRAMES: usize = 512;
/// The rate with the most connections must be at least this share of the best rate.
const KEEP: f64 = 0.93;

/// Where the application runs: the system's name in the report, and whether it runs inline.
const PLACES: [(&str, bool); 2] = [(BESIDE, false), ("inline", true)];
const BESIDE: &str = "towpath";

const BARS: &[Bar] = &[
    Bar {
        cases: "echo/64B/n64/memory",
        metric: FAST_PATH,
        measure: Measure::Alone,
        limit: Limit::Most(250.0),
    },
    Bar {
        cases: "echo/64B/n64000/memory",
        metric: FAST_PATH,
        measure: Measure::Alone,
        limit: Limit::Most(320.0),
    },
];
const FAST_PATH: &str = "fast path";
const RATE: &str = "rate";

/// The measurement `echo`.
///
/// # Errors
/// When memory or a thread cannot be had, or replies do not have the length that was asked for.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("echo");
    let mut samples = Samples::default();
    for _ in 0..options.runs() {
        for connections in CONNECTIONS {
            for (name, inline) in PLACES {
                let setup = Setup { connections, frames: FRAMES, inline, is_metered: false };
                let seconds = Duration::from_secs_f64(options.seconds());
                let what = || format!("{connections} connections, {name}");
                let (seen, _) = one(setup, seconds).with_context(what)?;
                seen.add_to(&mut samples, connections, name, inline);
            }
        }
    }
    report.rows = samples.rows();
    report.ratios = samples.ratios("inline", &[BESIDE]);
    report.note("fast path, slow path, application: nanoseconds of rounds that found work, per RPC; an RPC is a request of 64 bytes, its reply, and all events and commands for them");
    report.note("generator: nanoseconds per frame, in or out");
    bars::judge(&mut report, BESIDE, BARS);
    judge_rate(&mut report);
    Ok(report)
}

/// Totals of one run.
pub struct Seen {
    elapsed_ns: u64,
    pub rpcs: u64,
    pub spent: Account,
    far_ns: u64,
    frames: u64,
    /// RPCs including those of the warm-up.
    pub all_rpcs: u64,
}

impl Seen {
    fn add_to(&self, samples: &mut Samples, connections: u32, system: &str, inline: bool) {
        let case = case(connections);
        let per_rpc = |ns: u64| ns as f64 / self.rpcs as f64;
        let seconds = self.elapsed_ns as f64 / 1e9;
        let sample = Sample {
            value: self.rpcs as f64 / seconds,
            cores: Some((self.spent.all_ns() + self.far_ns) as f64 / self.elapsed_ns as f64),
            cpu_ns: Some(per_rpc(self.spent.all_ns())),
        };
        samples.add(&case, system, RATE, "RPC/s", sample);
        samples.add(&case, system, FAST_PATH, "ns", per_rpc(self.spent.fast_ns));
        samples.add(&case, system, "slow path", "ns", per_rpc(self.spent.slow_ns));
        samples.add(&case, system, "application", "ns", per_rpc(self.spent.application_ns));
        if inline {
            samples.add(&case, system, "generator", "ns", self.far_ns as f64 / self.frames as f64);
        }
    }
}

fn case(connections: u32) -> String {
    format!("echo/64B/n{connections}/memory")
}

/// One run: a warm-up, then the measured time.
///
/// # Errors
/// When replies do not have the length that was asked for, or too much was retransmitted.
pub fn one(setup: Setup, time: Duration) -> anyhow::Result<(Seen, Served)> {
    let (rig, port, application) = Rig::start(setup)?;
    let mut client = Client {
        far: Far::new(port, setup.connections, REQUEST),
        application,
        requests: ClosedLoop::new(REQUEST),
        far_ns: 0,
        application_ns: 0,
    };
    let outcome = client.establish(setup.connections).map(|()| {
        (0..setup.connections).for_each(|connection| client.far.request(connection));
        client.run(time / 4);
        let before = (clock::now_ns(), rig.shared.account(), client.requests.rpcs, client.far.frames_seen);
        (client.far_ns, client.application_ns) = (0, 0);
        client.run(time);
        let mut spent = rig.shared.account().since(before.1);
        spent.application_ns += client.application_ns;
        Seen {
            elapsed_ns: clock::now_ns() - before.0,
            rpcs: client.requests.rpcs - before.2,
            spent,
            far_ns: client.far_ns,
            frames: client.far.frames_seen - before.3,
            all_rpcs: client.requests.rpcs,
        }
    });
    let served = rig.stop()?;
    let seen = outcome?;
    client.requests.check(setup.connections, seen.rpcs, served.retransmitted)?;
    Ok((seen, served))
}

/// The far end's thread, which also runs the application unless that is inline.
struct Client {
    far: Far,
    application: Option<Application>,
    requests: ClosedLoop,
    far_ns: u64,
    application_ns: u64,
}

impl Client {
    fn establish(&mut self, count: u32) -> anyhow::Result<()> {
        let Self { far, application, .. } = self;
        far.establish(count, || {
            if let Some(application) = application {
                application.round();
            }
        })
    }

    /// Runs the closed loop for `time`: each reply is followed by the next request.
    fn run(&mut self, time: Duration) {
        let mut at = clock::now_ns();
        let until = at + time.as_nanos() as u64;
        while at < until {
            let is_busy = self.requests.round(&mut self.far);
            let before = at;
            at = clock::now_ns();
            self.far_ns += if is_busy { at - before } else { 0 };
            if self.application.as_mut().is_some_and(Application::round) {
                let before = at;
                at = clock::now_ns();
                self.application_ns += at - before;
            }
        }
    }
}

/// Adds the bar for the rate with the most connections.
fn judge_rate(report: &mut Report) {
    let rates = report.rows.iter().filter(|row| row.metric == RATE && row.system == BESIDE);
    let rates: Vec<(String, f64)> = rates.map(|row| (row.case.clone(), row.median)).collect();
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let many = CONNECTIONS.last().map(|&n| case(n));
    let rate = rates.iter().find(|(case, _)| Some(case) == many.as_ref()).map_or(0.0, |(_, rate)| *rate);
    let text = format!("{}: {RATE} {:.2} of the best", many.unwrap_or_default(), rate / best);
    bars::tell(report, text, rate / best, Limit::Least(KEEP));
}
