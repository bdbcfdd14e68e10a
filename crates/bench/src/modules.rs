//! The measurement `modules`: where the cycles of a request go (TAS, Tables 1 and 2), on the kernel, on Towpath with sockets, and on
//! Towpath with the low-level API, where the application uses its region directly.
//!
//! All numbers are cycles of the time-stamp counter per request, so that they can be added and compared. The kernel's numbers are processor
//! time of the server's process, which the kernel divides into user and system mode; Towpath's threads count their own.

use crate::bars::{self, Bar, Limit, Measure};
use crate::client::{self, Load};
use crate::echo;
use crate::exchange::{Kind, on_ring};
use crate::launch::{Port, Service};
use crate::peer::{self, Peer};
use crate::redis::local;
use crate::rig::{Parts, Setup};
use crate::samples::Samples;
use crate::sockets::actor::Answer;
use crate::sockets::pair::{Pair, Place};
use crate::sockets::{ask, echo as server, raise_limit};
use crate::tap::forwarder::{End, Ready};
use crate::tap::link::{self, Link};
use crate::tap::namespace::Namespace;
use crate::tap::reflector;
use crate::{Options, Report, clock, cpu};
use anyhow::{Context, bail};
use cycles::Ticks;
use fastpath::Part;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

const CONNECTIONS: u32 = 64;
const UNIT: &str = "cycles";
/// Cycles of the program itself; all others are the cost of the stack.
const APPLICATION: &str = "application";
const STACK: &str = "stack";
/// Modules of Towpath in which no work is done.
const IDLE: [&str; 3] = ["asleep", "idle: polling", "idle: asleep"];
/// The sum of the modules that do not serve requests directly.
const OTHER: &str = "other";
const WITH_OTHER: [&str; 5] =
    ["control", "relays", "requests of applications", "slow path: packets", "slow path: timers"];

const LOCAL: &str = "modules/64B/n64/local";
const TAP: &str = "modules/64B/n64/tap";
const MEMORY: &str = "modules/64B/n64/memory";

const fn fifth(cases: &'static str, measure: Measure) -> Bar {
    Bar { cases, metric: STACK, measure, limit: Limit::Most(0.2) }
}
const OF_KERNEL: Measure = Measure::Over(KERNEL);
const KERNEL: &str = "kernel";
/// A server on a ring; named like a system.
const RING: &str = "ring";
/// The system name of the floor over TAP.
const REFLECTOR: &str = reflector::ROLE;
const BARS: &[Bar] = &[fifth(LOCAL, OF_KERNEL)];
const ROOT_BARS: &[Bar] = &[fifth(LOCAL, OF_KERNEL), fifth(TAP, Measure::OverOrFloor(KERNEL, REFLECTOR))];

/// The two addresses of the reflector's link.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 1);
const REFLECTED: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 2);
/// Seconds allowed for an answer of the reflector's client.
const PATIENCE: f64 = 60.0;

/// Cycles per request by module name.
type Modules = BTreeMap<String, f64>;

/// Runs the measurement `modules`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("modules");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let mut samples = Samples::default();
    let service = Service::start(options, Port::None)?;
    for run in 0..options.runs() {
        let what = || format!("run {}", run + 1);
        sockets(LOCAL, Place::Towpath(&service), options, &mut samples).with_context(what)?;
        sockets(LOCAL, Place::Kernel, options, &mut samples).with_context(what)?;
        on_a_ring(&service, options, &mut samples).with_context(what)?;
        low_level(options, &mut samples).with_context(what)?;
    }
    service.stop();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        over_tap(options, &mut samples)?;
    } else {
        report.note("tap: skipped: network namespaces need root");
    }
    report.note(
        "cycles of the time-stamp counter per request of 64 bytes and its reply, at the server; application: the program itself; \
         stack: all else but idling. kernel: processor time of the server's process in user and in system mode (/proc/PID/stat \
         divides it by ticks of 10 ms), softirqs that ran in its name included, half of ksoftirqd and, over TAP, \
         half of the forwarder, in whose name the kernels receive",
    );
    report.note(
        "towpath: processor time of the server's process and of the service, less the application's cycles; its modules are \
         elapsed time as its threads count it (`towpath stat --cycles always`): wait includes looking for requests and yielding the \
         processor to the client. ring: a server on a ring, with the times of its calls; low-level: an application over the region and the memory port, whose far end has no stack. reflector: the \
         floor over TAP, a process that reads a frame, exchanges its addresses and numbers, and writes it: the kernel's client takes it for \
         a server that echoes",
    );
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &[KERNEL, REFLECTOR]);
    report.ratios.extend(samples.ratios(RING, &["towpath"]));
    // Drop the other ratios: ticks of 10 ms measure poorly a server that is hardly ever in user mode.
    report.ratios.retain(|ratio| ratio.metric == STACK);
    bars::judge(&mut report, "towpath", if is_root { ROOT_BARS } else { BARS });
    Ok(report)
}

/// Measures a server behind a TAP port with its clients on a kernel, two kernels over TAPs with the same offloads, and the reflector.
fn over_tap(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    let service = Service::start(options, Port::Tap { namespace: namespace.name(), offloads: true })?;
    let taps = Link::new(link::Kind::TapOffloads)?;
    for run in 0..options.runs() {
        let what = || format!("over TAP, run {}", run + 1);
        sockets(TAP, Place::Tap(&service, &namespace), options, samples).with_context(what)?;
        sockets(TAP, Place::Link(&taps), options, samples).with_context(what)?;
        reflected(options, samples).with_context(what)?;
    }
    service.stop();
    Ok(())
}

/// One run of a server that uses sockets.
fn sockets(case: &str, place: Place<'_>, options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    let pair = Pair::start(place)?;
    pair.connect(CONNECTIONS - 1)?;
    let load = Load::echo(options.seconds(), pair.pids());
    let forwarder = if let Place::Link(link) = place { link.pids() } else { Vec::new() };
    let rate = Rate::start();
    let before = Used::of(&pair, &forwarder)?;
    if let Some(service) = pair.service {
        service.cycles("always")?;
    }
    let near = ask::Ask::Client(client::Ask::Load(load));
    let (answer, _) = pair.both(&near, &ask::Ask::Echo(server::Ask::Epoll))?;
    let told = pair.service.map(|service| service.cycles("off")).transpose()?;
    let used = Used::of(&pair, &forwarder)?.since(before);
    let per_ns = rate.ticks_per_ns();
    let asked = *answer.first().context("no answer of the client")?;
    let (system, modules) = match told {
        Some(told) => {
            let is_local = matches!(place, Place::Towpath(_));
            ("towpath", of_towpath(&told, pair.far_pid(), is_local, used, per_ns)?)
        }
        None => ("kernel", used.of_kernel(asked, per_ns)),
    };
    add(case, system, modules, samples);
    Ok(())
}

/// One run of the same client with the reflector as server, which only makes the TAP's system calls.
fn reflected(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    let server = Peer::start(REFLECTOR)?;
    server.send(&End { namespace: namespace.name().to_owned(), address: CLIENT }, &[])?;
    server.receive::<Ready>()?;
    let client = Peer::start_by(namespace.command_of(&peer::own_program()?)?, ask::ROLE)?;
    let ask = |ask: &ask::Ask| -> anyhow::Result<Answer> {
        client.send(ask, &[])?;
        client.receive_within(PATIENCE)
    };
    ask(&ask::Ask::Connect(SocketAddrV4::new(REFLECTED, 7), CONNECTIONS))?;
    let rate = Rate::start();
    let used = || cpu::process_ns(server.pid()).context("the server is gone");
    let before = used()?;
    let load = Load::echo(options.seconds(), vec![client.pid(), server.pid()]);
    let answer = ask(&ask::Ask::Client(client::Ask::Load(load)))?;
    let all = (used()? - before) as f64 * rate.ticks_per_ns();
    let asked = *answer.first().context("no answer of the client")?;
    samples.add(TAP, REFLECTOR, STACK, UNIT, all / asked);
    Ok(())
}

/// Processor time in nanoseconds.
#[derive(Clone, Copy)]
struct Used {
    /// The server's time in user and in system mode.
    server: [u64; 2],
    service: u64,
    softirqs: u64,
    /// The time of the forwarder between two kernels.
    forwarder: u64,
}

impl Used {
    fn of(pair: &Pair<'_>, forwarder: &[u32]) -> anyhow::Result<Self> {
        let server = cpu::split_ns(pair.far_pid()).context("the server is gone")?;
        let service = pair.service.and_then(|service| cpu::process_ns(service.pid())).unwrap_or(0);
        let forwarder = forwarder.iter().filter_map(|&pid| cpu::process_ns(pid)).sum();
        Ok(Self { server, service, softirqs: cpu::softirqs_ns(), forwarder })
    }

    fn since(self, before: Self) -> Self {
        Self {
            server: [0, 1].map(|i| self.server[i].saturating_sub(before.server[i])),
            service: self.service.saturating_sub(before.service),
            softirqs: self.softirqs.saturating_sub(before.softirqs),
            forwarder: self.forwarder.saturating_sub(before.forwarder),
        }
    }

    /// The kernel's modules: it divides the server's time by mode only. Half of ksoftirqd's time is the client's, and so is half of the
    /// forwarder's, in which the kernels receive packets.
    fn of_kernel(self, requests: f64, per_ns: f64) -> Modules {
        let [user, system] = self.server.map(|ns| ns as f64 * per_ns / requests);
        let half = |ns: u64| ns as f64 / 2.0 * per_ns / requests;
        let (softirqs, forwarder) = (half(self.softirqs), half(self.forwarder));
        let modules = [
            (APPLICATION, user),
            ("system mode", system),
            ("ksoftirqd", softirqs),
            ("forwarder", forwarder),
            (STACK, system + softirqs + forwarder),
        ];
        modules.into_iter().map(|(name, cycles)| (name.to_owned(), cycles)).collect()
    }
}

/// Towpath's modules: the counters of the service and of the server, per reply that the server has sent. Within one host, requests do not
/// pass the service, so all its modules count as "control".
fn of_towpath(told: &Value, server: u32, is_local: bool, used: Used, per_ns: f64) -> anyhow::Result<Modules> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let all = list(&told["applications"]);
    let process = all.iter().find(|p| p["pid"].as_u64() == Some(u64::from(server)));
    let process = process.context("the server has counted nothing")?;
    let mut modules = Modules::new();
    let mut requests = 0.0;
    let cores = list(&told["service"]);
    for (is_server, part) in [(true, process)].into_iter().chain(cores.iter().map(|core| (false, core))) {
        for module in list(&part["modules"]) {
            let name = module["module"].as_str().unwrap_or_default();
            if is_server && name == "send" {
                requests = module["times"].as_f64().unwrap_or(0.0);
            }
            let kept = if is_local && !is_server { WITH_OTHER[0] } else { name };
            if !IDLE.contains(&name) {
                *modules.entry(kept.to_owned()).or_default() += module["cycles"].as_f64().unwrap_or(0.0);
            }
        }
    }
    if requests < 1.0 {
        bail!("the server has sent nothing");
    }
    modules.values_mut().for_each(|cycles| *cycles /= requests);
    let application = modules.get(APPLICATION).copied().unwrap_or(0.0);
    let all = (used.server.iter().sum::<u64>() + used.service) as f64 * per_ns / requests;
    modules.insert(STACK.to_owned(), (all - application).max(0.0));
    Ok(modules)
}

/// One run of a server on a ring, TAS's low-level API within a host. Its thread counts its own cycles, which costs some of them.
fn on_a_ring(service: &Service, options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    let kind = Kind::Header(client::protocol::HEAD as u32);
    let ask = on_ring::Ask { kind, rings: 1, connections: CONNECTIONS, is_metered: true };
    let rate = Rate::start();
    let load = |_, server| Load::echo(options.seconds(), vec![server, service.pid()]);
    let (measured, counts) = on_ring::measure(service, ask, load)?;
    let per_ns = rate.ticks_per_ns();
    let [_, ready, spent @ ..] = counts.as_slice() else { bail!("no answer of the server") };
    let of_part = |part: on_ring::Part| spent.get(part as usize).map_or(f64::NAN, |ticks| ticks / ready);
    let parts = [
        ("ring: wait", on_ring::Part::Wait),
        ("ring: read", on_ring::Part::Read),
        ("ring: write", on_ring::Part::Write),
    ];
    let mut modules: Modules =
        parts.into_iter().map(|(name, part)| (name.to_owned(), of_part(part))).collect();
    let application = of_part(on_ring::Part::Answer);
    modules.insert(APPLICATION.to_owned(), application);
    modules.insert(STACK.to_owned(), (measured.cpu_ns * per_ns - application).max(0.0));
    add(LOCAL, RING, modules, samples);
    Ok(())
}

/// One run with the low-level API.
fn low_level(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    let setup = Setup { connections: CONNECTIONS, frames: echo::FRAMES, inline: false, is_metered: true };
    let rate = Rate::start();
    let (seen, served) = echo::one(setup, Duration::from_secs_f64(options.seconds()))?;
    let per_ns = rate.ticks_per_ns();
    let of_part = |index: usize| served.parts[index].ticks as f64 / seen.all_rpcs as f64;
    let parts = [
        ("port: receive", Part::PortReceive as usize),
        ("TCP/IP: receive", Part::Receive as usize),
        ("events", Part::Events as usize),
        ("doorbells", Part::Doorbells as usize),
        ("TCP/IP: transmit", Part::Transmit as usize),
        ("timers", Part::Timers as usize),
        ("port: send", Part::PortSend as usize),
        ("slow path and clock", Parts::REST),
    ];
    let mut modules: Modules =
        parts.iter().map(|(name, part)| ((*name).to_owned(), of_part(*part))).collect();
    modules.insert(STACK.to_owned(), modules.values().sum());
    modules.insert(APPLICATION.to_owned(), seen.spent.application_ns as f64 * per_ns / seen.rpcs as f64);
    add(MEMORY, "low-level", modules, samples);
    Ok(())
}

/// Adds the numbers of one run; the two that all systems have come first.
fn add(case: &str, system: &str, mut modules: Modules, samples: &mut Samples) {
    let stack = modules.remove(STACK).unwrap_or(0.0);
    let application = modules.remove(APPLICATION).unwrap_or(0.0);
    for (name, cycles) in [(STACK, stack), (APPLICATION, application)] {
        samples.add(case, system, name, UNIT, cycles);
    }
    let is_other = |name: &str| WITH_OTHER.contains(&name);
    let other: f64 = modules.iter().filter(|(name, _)| is_other(name)).map(|(_, cycles)| cycles).sum();
    for (name, cycles) in modules.iter().filter(|(name, _)| !is_other(name)) {
        samples.add(case, system, name, UNIT, *cycles);
    }
    if system == "towpath" {
        samples.add(case, system, OTHER, UNIT, other);
    }
}

/// Start values to compute the rate of the time-stamp counter.
struct Rate {
    ticks: u64,
    ns: u64,
}

impl Rate {
    fn start() -> Self {
        Self { ticks: Ticks::here().now(), ns: clock::now_ns() }
    }

    fn ticks_per_ns(&self) -> f64 {
        (Ticks::here().now() - self.ticks) as f64 / (clock::now_ns() - self.ns).max(1) as f64
    }
}
