//! The services and the sink of all runs, and one run, between the hosts of a [`Star`]. The receiver is a service, too.

use super::agent::{self, Orders};
use super::kernel::Programs;
use crate::bulk::fairness::Fairness;
use crate::bulk::sink::{self, Ask, Count, Each};
use crate::bulk::source::{self, Open};
use crate::ccp_figures::agent::Ready;
use crate::ccp_virtual::curves;
use crate::interrupt::pause;
use crate::launch::{self, Port, Service};
use crate::loss::emulated::{self, Emulated};
use crate::peer::{self, Peer};
use crate::tap::namespace::Namespace;
use crate::tap::star::{self, SINK, Star, TO_KERNEL, TO_SERVICE};
use crate::{Options, clock, program};
use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use sim::statistics::percentile;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Seconds allowed for a start, for opening all flows, or for an answer.
const PATIENCE: f64 = 10.0;
/// Time between two looks at a window, seconds.
const LOOK: f64 = 0.1;
/// The name by which flows of the service choose the agent.
const OURS: &str = "ours";

/// The system that sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// The kernel's TCP with a program of an agent.
    Kernel,
    /// The kernel's TCP with its own Cubic.
    Plain,
    /// A service with the agent's program.
    Towpath,
}

impl System {
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Plain, Self::Towpath];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel-program",
            Self::Plain => "kernel-cubic",
            Self::Towpath => "towpath",
        }
    }
}

/// What a run is to do.
pub struct Order {
    /// The algorithm of crate `ccp-algorithms`.
    pub program: &'static str,
    pub flows: u16,
    /// Both directions of the link.
    pub link: [&'static str; 2],
    pub warm_up: f64,
    pub seconds: f64,
}

/// What a run has shown.
pub struct Course {
    /// Mbit/s at the receiving program.
    pub goodput: f64,
    pub fairness: Fairness,
    /// Share of the packets on the link that it has marked.
    pub marked: f64,
    pub dropped: f64,
    looks: Looks,
}

/// What the datapath has told of a lone flow in the course of a run.
#[derive(Default)]
struct Looks {
    /// Windows in segments over time in seconds.
    windows: Vec<(f64, f64)>,
    /// Smoothed round-trip times in microseconds.
    rtts_us: Vec<f64>,
}

impl Course {
    /// The mean window in segments; `None` if the datapath told of none.
    pub fn window_mean(&self) -> Option<f64> {
        mean(self.looks.windows.iter().map(|(_, window)| *window))
    }

    pub fn back_off(&self) -> Option<f64> {
        curves::back_off(&self.looks.windows)
    }

    /// The distance of two dips in seconds, if there are two, and the smallest window in segments.
    pub fn dips(&self) -> (Option<f64>, f64) {
        curves::dips(&self.looks.windows, 0.0)
    }

    /// The smoothed round-trip time in milliseconds below which this share of the looks is.
    pub fn rtt_ms(&self, share: f64) -> f64 {
        let mut sorted = self.looks.rtts_us.clone();
        sorted.sort_by(f64::total_cmp);
        percentile(&sorted, share).unwrap_or(f64::NAN) / 1e3
    }
}

/// The window in segments, and the smoothed round-trip time in microseconds, of the first flow that `ss` tells of.
fn of_ss(text: &str) -> Option<(f64, f64)> {
    let words = text.lines().next()?.split_whitespace();
    let value = |name: &str| words.clone().find_map(|word| word.strip_prefix(name));
    let (rtt_ms, _) = value("rtt:")?.split_once('/')?;
    Some((value("cwnd:")?.parse().ok()?, rtt_ms.parse::<f64>().ok()? * 1e3))
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let count = values.clone().count();
    (count > 0).then(|| values.sum::<f64>() / count as f64)
}

/// Processes and namespaces that all runs share. Fields are dropped in this order: users before the namespaces that they use.
pub struct Stage {
    service: Service,
    sink: Peer,
    receiver: Service,
    towpath: PathBuf,
    star: Star,
    folder: TempDir,
    seed: u64,
}

/// The sending end of a run; what it needs is kept until it is over.
struct Sender {
    source: Peer,
    programs: Option<Programs>,
    _agent: Peer,
}

impl Stage {
    /// Makes the namespaces, and starts the sink and both services.
    ///
    /// # Errors
    /// When the user is not root, or a service does not start.
    pub fn new(options: &Options) -> anyhow::Result<Self> {
        let star = Star::new(&[("ipv4/tcp_ecn", "1"), ("ipv4/tcp_no_metrics_save", "1")])?;
        let folder = launch::folder()?;
        let text = |name: &str| folder.path().join(name).into_os_string().into_string();
        let text = |name: &str| text(name).ok().context("a path that is no text");
        let (socket, agents) = (text("cc")?, format!("{OURS}={}", text("agent")?));
        let echo = ["--congestion", "dctcp", "--region-mib", "1024"];
        let receiver = service_at(options, &star.receiver, star::RECEIVER, &echo)?;
        let sink = Peer::start_by(receiver.command_of(&peer::own_program()?), sink::ROLE)?;
        sink.send(&sink::Orders { at: SINK }, &[])?;
        sink.receive_within::<Count>(PATIENCE).context("the sink does not listen")?;
        let flags =
            ["--congestion", "dctcp", "--region-mib", "1024", "--cc-socket", &socket, "--cc-agents", &agents];
        let service = service_at(options, &star.service, star::SERVICE, &flags)?;
        let towpath = launch::towpath(options)?;
        Ok(Self { service, sink, receiver, towpath, star, folder, seed: 0 })
    }

    /// One run with a new link, source and agent.
    ///
    /// # Errors
    /// When a process does not start, or the flows do not open.
    pub fn run(&mut self, system: System, order: &Order) -> anyhow::Result<Course> {
        self.seed += 1;
        let far = if system == System::Towpath { TO_SERVICE } else { TO_KERNEL };
        let [forward, backward] = order.link;
        let orders = emulated::Orders {
            ends: self.star.ends(far),
            forward,
            backward,
            seed: self.seed,
            seconds: 3.0 * PATIENCE + order.warm_up + order.seconds,
        };
        self.ask::<Count>(Ask::Reset)?;
        let link = Emulated::start(&self.towpath, &orders)?;
        let sender = self.open(system, order)?;
        let course = self.measure(system, &sender, order);
        self.ask::<Count>(Ask::Reset)?;
        // The source ends when the resets have reached it.
        sender.source.wait(2.0)?;
        if let Some(programs) = sender.programs {
            programs.down();
        }
        let done = link.stop()?;
        if done.failed > 0 {
            bail!("the emulator could not carry {} frames", done.failed);
        }
        let marked = done.marked as f64 / done.offered.max(1) as f64;
        Ok(Course { marked, dropped: done.queue_full as f64, ..course? })
    }

    /// Starts agent, programs and source, and waits until all flows are open.
    fn open(&self, system: System, order: &Order) -> anyhow::Result<Sender> {
        let path = self.folder.path().join("agent");
        let agent = Peer::start(agent::ROLE)?;
        agent.send(&Orders { path: path.clone(), algorithm: order.program.to_owned() }, &[])?;
        agent.receive_within::<Ready>(PATIENCE).context("the agent does not start")?;
        let programs = match system {
            System::Kernel => Some(Programs::up(&self.towpath, &self.folder.path().join("kernel"), &path)?),
            System::Plain | System::Towpath => None,
        };
        let own = peer::own_program()?;
        let (command, congestion) = match system {
            System::Towpath => (self.service.command_of(&own), Some(OURS.to_owned())),
            System::Kernel => {
                (self.star.kernel.command_of(&own)?, programs.as_ref().map(|it| it.name().to_owned()))
            }
            System::Plain => (self.star.kernel.command_of(&own)?, Some("cubic".to_owned())),
        };
        let source = Peer::start_by(command, source::ROLE)?;
        source.send(&source::Orders { to: SINK, flows: order.flows, congestion }, &[])?;
        source.receive_within::<Open>(PATIENCE).context("the flows did not open")?;
        program::until(PATIENCE, "the acceptance of all flows", || {
            let count = self.ask::<Count>(Ask::Count).ok()?;
            (count.connections >= u64::from(order.flows)).then_some(())
        })?;
        Ok(Sender { source, programs, _agent: agent })
    }

    fn measure(&self, system: System, sender: &Sender, order: &Order) -> anyhow::Result<Course> {
        sender.source.send(&Open(0), &[])?;
        pause(order.warm_up)?;
        let first: Each = self.ask(Ask::Each)?;
        let looks = self.watch(system, sender, order)?;
        let last: Each = self.ask(Ask::Each)?;
        self.prove(system, sender, order)?;
        let pairs = first.bytes.iter().zip(&last.bytes);
        let shares: Vec<f64> = pairs.map(|(first, last)| (last - first) as f64).collect();
        let bits = (last.total - first.total) as f64 * 8.0;
        Ok(Course {
            goodput: bits * 1e3 / (last.at_ns - first.at_ns) as f64,
            fairness: Fairness::of(&shares).context("most flows brought nothing")?,
            marked: 0.0,
            dropped: 0.0,
            looks,
        })
    }

    /// Waits for the measured time; meanwhile it looks at the window of a lone flow.
    fn watch(&self, system: System, sender: &Sender, order: &Order) -> anyhow::Result<Looks> {
        let mut looks = Looks::default();
        if order.flows > 1 {
            pause(order.seconds)?;
            return Ok(looks);
        }
        let start_ns = clock::now_ns();
        loop {
            let at = (clock::now_ns() - start_ns) as f64 / 1e9;
            if at >= order.seconds {
                return Ok(looks);
            }
            if let Some((window, rtt_us)) = self.look(system, sender)? {
                looks.windows.push((at, window));
                looks.rtts_us.push(rtt_us);
            }
            pause(LOOK)?;
        }
    }

    /// The window in segments, and the smoothed round-trip time in microseconds, of the only flow. The kernel tells of its own Cubic by `ss`.
    fn look(&self, system: System, sender: &Sender) -> anyhow::Result<Option<(f64, f64)>> {
        if system == System::Plain {
            let mut ss = self.star.kernel.command_of(&program::find("ss")?)?;
            ss.args(["--tcp", "--info", "--oneline", "--no-header", "dst", &SINK.to_string()]);
            let told = program::run(&mut ss, PATIENCE)?;
            return Ok(of_ss(&told.stdout));
        }
        if let Some(programs) = &sender.programs {
            let status = programs.status()?;
            let flow = status.flows.first();
            return Ok(flow.map(|flow| (flow.cwnd as f64 / curves::SEGMENT, flow.rtt_us as f64)));
        }
        let sockets = self.sockets()?;
        let flow = sockets.iter().find(|socket| socket["cwnd"].as_u64().is_some_and(|cwnd| cwnd > 0));
        Ok(flow.and_then(|flow| Some((flow["cwnd"].as_f64()?, flow["rtt_us"].as_f64()?))))
    }

    /// The sockets of the sending service, as `towpath ss --json` tells of them.
    fn sockets(&self) -> anyhow::Result<Vec<serde_json::Value>> {
        let mut command = Command::new(&self.towpath);
        command.arg("ss").arg("--control").arg(self.service.control()).arg("--json");
        let finished = program::run(&mut command, PATIENCE)?;
        let report: serde_json::Value =
            serde_json::from_str(&finished.stdout).context("`towpath ss --json`")?;
        Ok(report["sockets"].as_array().cloned().unwrap_or_default())
    }

    /// Checks that the flows had what was to be measured.
    fn prove(&self, system: System, sender: &Sender, order: &Order) -> anyhow::Result<()> {
        if let Some(programs) = &sender.programs {
            let status = programs.status()?;
            let running = status.flows.iter().filter(|flow| flow.runs > 0).count();
            if running < usize::from(order.flows) || status.fallbacks > 0 {
                bail!("{running} of {} flows run the program, {} fell back", order.flows, status.fallbacks);
            }
        }
        if system == System::Towpath {
            let connected = self.service.connected(Some(sender.source.pid()))?;
            launch::prove(connected, order.flows.into())?;
            let sockets = self.sockets()?;
            let running = sockets.iter().filter(|socket| socket["congestion"]["in_force"] == OURS).count();
            if running < usize::from(order.flows) {
                bail!("{running} of {} flows have the agent", order.flows);
            }
        }
        Ok(())
    }

    fn ask<T: DeserializeOwned>(&self, what: Ask) -> anyhow::Result<T> {
        self.sink.send(&what, &[])?;
        self.sink.receive_within(PATIENCE)
    }

    /// Stops the services; other processes and the namespaces end when they are dropped.
    pub fn stop(self) {
        self.service.stop();
        self.receiver.stop();
    }
}

fn service_at(
    options: &Options,
    place: &Namespace,
    address: &str,
    flags: &[&str],
) -> anyhow::Result<Service> {
    let port = Port::Packet { interface: "packet:eth0", namespace: place.name(), address, flags };
    Service::start(options, port)
}

#[cfg(test)]
mod tests {
    use super::of_ss;

    #[test]
    fn window_and_round_trip_are_read_from_ss() {
        let line = "ESTAB 0 55 10.79.0.1:40962 10.79.0.2:5001 cubic wscale:7,7 rto:224 rtt:23.812/4.1 mss:1448 cwnd:70 ssthresh:49\n";
        assert_eq!(of_ss(line), Some((70.0, 23_812.0)));
        assert_eq!(of_ss(""), None);
    }
}
