//! Table 1 and figure 13: bulk flows from a service over veth to the kernel, with the built-in algorithm, with an agent that hears of each flow once in
//! 10 ms, and with the released agent; all in turns, on one service. Of table 1 also with an agent that hears of each acknowledgement, on another one.

use super::agent::{self, Orders, Ready};
use super::released::Released;
use super::{AGENT, BUILT_IN, over, released};
use crate::bars::{Bar, Limit, Measure};
use crate::bulk::transfer::{Outcome, Place, Way};
use crate::launch::{self, Port, Service};
use crate::peer::Peer;
use crate::samples::Samples;
use crate::sockets::memory::touch;
use crate::tap::link::{INTERFACE, Link};
use crate::tap::namespace::{self, Namespace};
use crate::{Options, Report, clock};
use anyhow::{Context, bail};
use std::path::PathBuf;
use tempfile::TempDir;

/// Flows of the runs: the paper's 1 to 64, then more than the budget of reports allows each its 10 ms.
const FLOWS: [u16; 5] = [1, 8, 64, 1_000, 10_000];
const FLOWS_QUICK: [u16; 2] = [64, 1_000];
/// Reports to all agents per second: the service's default.
const BUDGET: &str = "20000";
/// More than there are acknowledgements.
const BUDGET_OF_EACH_ACK: &str = "1000000";
/// Time between two reports of a flow, microseconds.
const INTERVAL_US: u64 = 10_000;
/// Payload space of the program's region: every flow has a ring of at least 64 KiB.
const REGION_MIB: &str = "1024";
/// Memory that is touched before a run, bytes, so that no run pays for the system's first pages.
const MEMORY: f64 = (512 << 20) as f64;
/// The name under which flows choose our agent; the released one has its system's name.
const OURS: &str = "ours";
/// A run takes so many times the time of one of other measurements. In the first seconds an agent's window doubles once for each report, where an
/// algorithm's does in each round trip.
const LONGER: f64 = 2.0;
/// Seconds allowed for an agent's start.
const PATIENCE: f64 = 10.0;

const GOODPUT: &str = "goodput";
/// Processor time of the service per MiB, microseconds.
const SERVICE: &str = "service";
/// The metric of ratios of all processor time.
const ALL_CPU: &str = "cpu_ns_per_op";

/// The paper's agent cost "2.0 x as much CPU"; beyond 64 flows the budget bounds what a service does for its agents.
///
/// Table 1: with a report each 10 ms as much as in the kernel, with one for each acknowledgement 68 % of it.
const BARS: [Bar; 8] = [
    at_least("ccp1/10ms", 0.95),
    at_least("ccp1/every-ack", 0.68),
    keeps("ccp13/flows64"),
    over(BUILT_IN, "ccp13/flows64", ALL_CPU, 1.10),
    keeps("ccp13/flows1000"),
    over(BUILT_IN, "ccp13/flows1000", SERVICE, 1.05),
    keeps("ccp13/flows10000"),
    over(BUILT_IN, "ccp13/flows10000", SERVICE, 1.05),
];

const fn keeps(cases: &'static str) -> Bar {
    at_least(cases, 0.97)
}

const fn at_least(cases: &'static str, share: f64) -> Bar {
    Bar { cases, metric: GOODPUT, measure: Measure::Over(BUILT_IN), limit: Limit::Least(share) }
}

/// The bars of the cases that these options measure.
pub fn bars(options: &Options) -> &'static [Bar] {
    if options.quick { &BARS[..6] } else { &BARS }
}

/// Measures table 1 and figure 13. False if it cannot be measured here; a note says why.
///
/// # Errors
/// When namespaces, the service or our agent cannot be had.
pub fn loads(options: &Options, samples: &mut Samples, report: &mut Report) -> anyhow::Result<bool> {
    if let Err(why) = namespace::need_root() {
        report.note(format!("ccp13: not measured: {why}"));
        return Ok(false);
    }
    Namespace::remove_orphans();
    let stage = Stage::new(options, report, INTERVAL_US)?;
    let flows: &[u16] = if options.quick { &FLOWS_QUICK } else { &FLOWS };
    let cases = std::iter::once(("ccp1/10ms".to_owned(), 1))
        .chain(flows.iter().map(|flows| (format!("ccp13/flows{flows}"), *flows)));
    stage.measure_all(&cases.collect::<Vec<_>>(), options, samples, report)?;
    stage.stop();
    let stage = Stage::new(options, report, 0)?;
    stage.measure_all(&[("ccp1/every-ack".to_owned(), 1)], options, samples, report)?;
    stage.stop();
    report.note(format!(
        "ccp13: flows from a service over veth to the kernel; all processor time (programs, service, agent, ksoftirqd) and that of service and \
         agent are per MiB; each flow wants to report every 10 ms, at most {BUDGET} reports a second are made, those that wait are merged; \
         `{AGENT}`: Reno decided in the agent, `{BUILT_IN}`: Cubic in the service"
    ));
    Ok(true)
}

/// The link, the service and the agents of all runs. What uses a folder ends before it.
struct Stage {
    service: Service,
    agent: Peer,
    released: Option<Released>,
    link: Link,
    _folder: TempDir,
}

impl Stage {
    /// A service with our agent, to which each flow reports at these intervals; 0: at each acknowledgement, and the released agent has no part.
    fn new(options: &Options, report: &mut Report, interval_us: u64) -> anyhow::Result<Self> {
        let folder = launch::folder()?;
        let [socket, path] = ["cc", "agent"].map(|name| folder.path().join(name));
        let link = Link::veth_for([true, false])?;
        let text = |path: PathBuf| path.into_os_string().into_string().ok().context("a path that is no text");
        let places = format!("{OURS}={},{}={}", text(path.clone())?, released::SYSTEM, released::ADDRESS);
        let socket = text(socket)?;
        let is_each = interval_us == 0;
        let budget = if is_each { BUDGET_OF_EACH_ACK } else { BUDGET };
        let flags = [
            ["--cc-socket", &socket],
            ["--cc-agents", &places],
            ["--cc-reports", budget],
            ["--region-mib", REGION_MIB],
        ];
        let mut flags = flags.as_flattened().to_vec();
        flags.extend(is_each.then_some("--cc-every-ack"));
        let (interface, address) = (format!("packet:{INTERFACE}"), format!("{}/24", link.addresses[0]));
        let namespace = link.namespaces[0].name();
        let port = Port::Packet { interface: &interface, namespace, address: &address, flags: &flags };
        let service = Service::start(options, port)?;
        let agent = Peer::start(agent::ROLE)?;
        agent.send(&Orders { path, interval_us }, &[])?;
        agent.receive_within::<Ready>(PATIENCE).context("the agent does not start")?;
        let released = match released::find().map(|cubic| Released::start(&cubic)) {
            _ if is_each => None,
            Ok(Ok(running)) => Some(running),
            Ok(Err(why)) => {
                report.note(format!("ccp13: not measured with the released agent: {why:#}"));
                None
            }
            Err(why) => {
                report.note(why);
                None
            }
        };
        Ok(Self { service, agent, released, link, _folder: folder })
    }

    /// Ends the service, then all others.
    fn stop(self) {
        self.service.stop();
    }

    fn systems(&self) -> Vec<&'static str> {
        let ours = [AGENT, BUILT_IN].into_iter();
        ours.chain(self.released.is_some().then_some(released::SYSTEM)).collect()
    }

    /// The id of the system's agent, and the name that flows choose.
    fn chosen(&self, system: &str) -> (Option<u32>, Option<&'static str>) {
        match system {
            AGENT => (Some(self.agent.pid()), Some(OURS)),
            released::SYSTEM => (self.released.as_ref().map(Released::pid), Some(released::SYSTEM)),
            _ => (None, None),
        }
    }

    /// Measures all systems in turns, each case with its number of flows.
    fn measure_all(
        &self,
        cases: &[(String, u16)],
        options: &Options,
        samples: &mut Samples,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        for run in 1..=options.runs() {
            for (case, flows) in cases {
                for system in self.systems() {
                    touch(MEMORY)?;
                    if let Err(error) =
                        self.measure(case, system, *flows, LONGER * options.seconds(), samples)
                    {
                        report.failures.push(format!("{case}, {system}, run {run}: {error:#}"));
                    }
                }
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        case: &str,
        system: &str,
        flows: u16,
        seconds: f64,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let (agent, congestion) = self.chosen(system);
        let way = Way {
            source: Place::Towpath(&self.service),
            sink: Place::Kernel(&self.link.namespaces[1]),
            address: self.link.addresses[1],
            congestion,
            between: agent.into_iter().collect(),
        };
        let (before, began_ns) = (self.told()?, clock::now_ns());
        let outcome = way.run(flows, seconds)?;
        let (after, took_ns) = (self.told()?, clock::now_ns() - began_ns);
        if agent.is_some() && (after.flows - before.flows < flows.into() || after.reports == before.reports) {
            bail!(
                "the agent had {} flows and {} reports",
                after.flows - before.flows,
                after.reports - before.reports
            );
        }
        let Outcome { goodput, fairness, services_ns, between_ns, .. } = outcome;
        samples.add(case, system, GOODPUT, "Gbit/s", goodput);
        samples.add(case, system, SERVICE, "us/MiB", services_ns / 1e3);
        samples.add(case, system, "agent", "us/MiB", between_ns / 1e3);
        let reports = (after.reports - before.reports) as f64 * 1e9 / took_ns as f64;
        samples.add(case, system, "reports", "1/s", reports);
        let mib = (after.sent - before.sent) as f64 / f64::from(1 << 20);
        samples.add(case, system, "frames", "1/MiB", (after.frames - before.frames) as f64 / mib);
        let again = (after.again - before.again) as f64 / (after.sent - before.sent) as f64;
        samples.add(case, system, "sent again", "1", again);
        samples.add(case, system, "Jain's index", "1", fairness.jain);
        Ok(())
    }

    /// What the service has counted so far.
    fn told(&self) -> anyhow::Result<Told> {
        let all = self.service.statistics()?;
        let number = |part: &str, name: &str| {
            all[part][name]
                .as_u64()
                .with_context(|| format!("no number of {name} in the service's statistics of {part}"))
        };
        Ok(Told {
            flows: number("agents", "creates")?,
            reports: number("agents", "reports")?,
            frames: number("traffic", "sent_packets")?,
            sent: number("traffic", "sent_bytes")?,
            again: number("traffic", "retransmitted_bytes")?,
        })
    }
}

/// What the service has counted since it began.
struct Told {
    /// Flows that were announced to agents.
    flows: u64,
    /// Reports that were sent to agents.
    reports: u64,
    /// Frames to the port; a super-frame is one.
    frames: u64,
    /// Bytes of these frames.
    sent: u64,
    /// Bytes of payload that were sent again.
    again: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_has_a_case_that_is_measured() {
        for (flows, is_quick) in [(&FLOWS[..], false), (&FLOWS_QUICK[..], true)] {
            let mut cases: Vec<String> = flows.iter().map(|flows| format!("ccp13/flows{flows}")).collect();
            cases.extend(["ccp1/10ms", "ccp1/every-ack"].map(str::to_owned));
            let options = Options { quick: is_quick, ..Options::default_for_demo() };
            assert!(bars(&options).iter().all(|bar| cases.iter().any(|case| case == bar.cases)));
        }
    }
}
