//! The service and the sink of all runs, and the execution of one run, between the hosts of a [`Star`].

use super::arguments::{Algorithm, Arguments};
use super::counted::{self, Counters};
use super::emulated::{self, Emulated};
use super::point::Point;
use super::record::Outcome;
use crate::bulk::sink::{self, Ask, Count};
use crate::bulk::source::{self, Open};
use crate::cpu::{self, Meter};
use crate::interrupt::pause;
use crate::launch::{self, Port, Service};
use crate::peer::{self, Peer};
use crate::tap::namespace::ip;
use crate::tap::star::{self, SINK, Star, TO_KERNEL, TO_SERVICE};
use crate::{clock, program};
use anyhow::{Context, bail};
use std::path::PathBuf;

/// The largest buffer of a connection in bytes, for both systems: above the bandwidth-delay product of 1 Gbit/s and 20 ms.
const BUFFER: &str = "16777216";
/// Seconds allowed for opening all flows, and for an answer.
const PATIENCE: f64 = 10.0;

/// The system that sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    Towpath,
    Kernel,
}

/// Processes and namespaces that all runs share. Fields are dropped in this order: users before the namespaces that they use.
#[derive(Debug)]
pub struct Stage {
    service: Service,
    sink: Peer,
    towpath: PathBuf,
    star: Star,
}

/// A source with open flows.
struct Sender {
    peer: Peer,
    pids: Vec<u32>,
    before: Counters,
}

impl Stage {
    /// Makes the namespaces and links, and starts the sink and the service.
    ///
    /// # Errors
    /// When the user is not root, or the service does not start.
    pub fn new(arguments: &Arguments) -> anyhow::Result<Self> {
        // Every kernel alike: buffers for one flow's window, no metrics kept from run to run.
        let star = Star::new(&[
            ("ipv4/tcp_no_metrics_save", "1"),
            ("ipv4/tcp_rmem", &format!("4096 131072 {BUFFER}")),
            ("ipv4/tcp_wmem", &format!("4096 16384 {BUFFER}")),
        ])?;
        if arguments.no_sack {
            star::write(&star.receiver, &[("ipv4/tcp_sack", "0")])?;
        }
        ip(&["-n", star.receiver.name(), "address", "add", star::RECEIVER, "dev", "eth0"])?;
        let sink = Peer::start_by(star.receiver.command_of(&peer::own_program()?)?, sink::ROLE)?;
        sink.send(&sink::Orders { at: SINK }, &[])?;
        sink.receive_within::<Count>(PATIENCE)?;
        let flags =
            ["--congestion", arguments.algorithm.name(), "--ring-max", BUFFER, "--region-mib", "4096"];
        let port = Port::Packet {
            interface: "packet:eth0",
            namespace: star.service.name(),
            address: star::SERVICE,
            flags: &flags,
        };
        let service = Service::start(&arguments.common, port)?;
        let towpath = launch::towpath(&arguments.common)?;
        Ok(Self { service, sink, towpath, star })
    }

    /// One run: the flows open over a link without the mishap, which is then replaced by one with the mishap.
    ///
    /// # Errors
    /// When a process does not start, a flow is not accelerated, or a signal came.
    pub fn run(
        &self,
        system: System,
        point: &Point,
        seed: u64,
        arguments: &Arguments,
    ) -> anyhow::Result<Outcome> {
        let (clean, struck) = point.links(&arguments.rate);
        let (warm_up, seconds) = (arguments.warm_up(point.rtt), arguments.seconds(point.rtt));
        let limit = 3.0 * PATIENCE + warm_up + seconds;
        let ends = self.star.ends(if system == System::Towpath { TO_SERVICE } else { TO_KERNEL });
        let orders = emulated::Orders { ends, forward: &clean, backward: &clean, seed, seconds: limit };
        // Reset connections that a failed run may have left open.
        self.ask(Ask::Reset)?;
        let opening = Emulated::start(&self.towpath, &orders)?;
        let sender = self.open(system, point.flows, arguments.algorithm)?;
        let opened = self.wait_for(u64::from(point.flows));
        opening.stop()?;
        opened?;
        let backward = if arguments.both_ways { &struck } else { &clean };
        let link =
            Emulated::start(&self.towpath, &emulated::Orders { forward: &struck, backward, ..orders })?;
        let measured = self.measure(&sender, &link, warm_up, seconds);
        let received = self.ask(Ask::Count)?.bytes;
        let after = self.counters(&sender)?;
        let counters = counted::since(&sender.before, after);
        self.ask(Ask::Reset)?;
        // The source ends when the resets have reached it.
        sender.peer.wait(1.0 + 4.0 * point.rtt.as_ns() as f64 / 1e9)?;
        let outcome = measured?.with_link(link.stop()?);
        if system == System::Towpath {
            prove(&counters, received)?;
        }
        Ok(Outcome { counters, ..outcome })
    }

    fn open(&self, system: System, flows: u16, algorithm: Algorithm) -> anyhow::Result<Sender> {
        let program = peer::own_program()?;
        let (command, congestion) = match system {
            System::Towpath => (self.service.command_of(&program), None),
            System::Kernel => (self.star.kernel.command_of(&program)?, Some(algorithm.name().to_owned())),
        };
        let peer = Peer::start_by(command, source::ROLE)?;
        peer.send(&source::Orders { to: SINK, flows, congestion }, &[])?;
        peer.receive_within::<Open>(PATIENCE).context("the flows did not open")?;
        let mut pids = vec![peer.pid()];
        if system == System::Towpath {
            let accelerated = self.service.connected(Some(peer.pid()))?;
            if accelerated != u64::from(flows) {
                bail!("only {accelerated} of {flows} connections were accelerated");
            }
            pids.push(self.service.pid());
        }
        let mut sender = Sender { peer, pids, before: Counters::new() };
        sender.before = self.counters(&sender)?;
        Ok(sender)
    }

    fn counters(&self, sender: &Sender) -> anyhow::Result<Counters> {
        let is_ours = sender.pids.contains(&self.service.pid());
        Ok(if is_ours {
            counted::towpath(&self.service.statistics()?)
        } else {
            counted::kernel(sender.peer.pid())
        })
    }

    /// Waits until the sink has accepted that many connections.
    fn wait_for(&self, connections: u64) -> anyhow::Result<()> {
        program::until(PATIENCE, "the acceptance of all flows", || {
            let count = self.ask(Ask::Count).ok()?;
            (count.connections >= connections).then_some(())
        })
    }

    fn measure(
        &self,
        sender: &Sender,
        link: &Emulated,
        warm_up: f64,
        seconds: f64,
    ) -> anyhow::Result<Outcome> {
        sender.peer.send(&Open(0), &[])?;
        pause(warm_up)?;
        let all = [sender.pids.as_slice(), &[link.pid(), self.sink.pid()]].concat();
        let used = || sender.pids.iter().filter_map(|&pid| cpu::process_ns(pid)).sum::<u64>();
        let (meter, used_before, start_ns) = (Meter::start(&all), used(), clock::now_ns());
        let first = self.ask(Ask::Count)?;
        pause(seconds)?;
        let last = self.ask(Ask::Count)?;
        let (all_ns, wall_ns) = (meter.used_ns() as f64, (clock::now_ns() - start_ns) as f64);
        let sender_ns = (used() - used_before) as f64;
        let bytes = (last.bytes - first.bytes) as f64;
        Ok(Outcome {
            goodput_bits_per_second: bytes * 8e9 / (last.at_ns - first.at_ns) as f64,
            sender_cpu_ns_per_byte: sender_ns / bytes.max(1.0),
            all_cpu_ns_per_byte: all_ns / bytes.max(1.0),
            cores: all_ns / wall_ns,
            ..Outcome::default()
        })
    }

    fn ask(&self, what: Ask) -> anyhow::Result<Count> {
        self.sink.send(&what, &[])?;
        self.sink.receive_within(PATIENCE)
    }

    /// Stops the service; the other processes and the namespaces end when they are dropped.
    pub fn stop(self) {
        self.service.stop();
    }
}

/// Checks by the service's counters that the received bytes went out through its port.
fn prove(counters: &Counters, received: u64) -> anyhow::Result<()> {
    let sent = counters.get("sent_bytes").copied().unwrap_or(0);
    if sent < received {
        bail!("only {sent} of {received} bytes went through the service");
    }
    Ok(())
}
