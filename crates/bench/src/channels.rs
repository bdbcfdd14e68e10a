//! The measurement `channels`: what two services gain by carrying many sockets over few connections, over veth: 64-byte RPCs and one bulk
//! stream by channel, by plain TCP between the same two services, and between two kernels, a reader that has stopped beside others, small requests
//! beside bulk flows, and one stream over two channels that lie on two cores.

use crate::bars::{self, Bar, Limit, Measure};
use crate::client::{self, Load, Measured};
use crate::isolation::flows::{Bulk, By, Direction};
use crate::isolation::turn::{self, Requests, ask};
use crate::isolation::{self, Case};
use crate::launch::{Port, Service};
use crate::redis::local::limit_cores;
use crate::samples::Samples;
use crate::served::{self, Host};
use crate::sockets::actor::Answer;
use crate::sockets::ask::Ask;
use crate::sockets::raise_limit;
use crate::tap::iperf::one_stream;
use crate::tap::link::{INTERFACE, Kind, Link};
use crate::tap::namespace::{self, Namespace};
use crate::{Options, Report};

/// Sockets of the RPCs.
const SOCKETS: u32 = 64;
/// Sockets beside a stopped reader.
const MANY: u32 = 4_095;
/// Seconds allowed for an answer of a process beyond the time in which it measures.
const PATIENCE: f64 = 30.0;
const PEERS: &str = "10.78.0.0/24";

const CHANNEL: &str = "channel";
const PLAIN: &str = "plain";
const KERNELS: &str = "kernel-veth";
/// Our own rate without the stopped reader, named like a system in ratios.
const ALONE: &str = "channel-alone";

/// Our own requests without bulk flows, named like a system in ratios.
const LONE: &str = "channel-lone";

/// One stream over one channel, and over two, between services with two cores each.
const ONE: &str = "1-channel";
const TWO: &str = "2-channels";

const RPC: &str = "channels/rpc/64B/n64";
const BULK: &str = "channels/bulk";
const STOPPED: &str = "channels/stopped/64B/n4095";
const BESIDE: &str = "channels/rpc/64B/n1/flows8";
const CORES: &str = "channels/bulk/2-cores";
/// iperf3 moves many bytes, and the requests wait for short answers: a lane of channels for each.
const RULES: &str = "10.78.0.0/24:5201=throughput,10.78.0.0/24=latency";
/// CHANNELS 2.4, and Figure 7a of the paper for bulk: a stream keeps 0.93 of the bits of a processor-second there.
const BARS: &[Bar] = &[
    Bar { cases: RPC, metric: "rate", measure: Measure::Over(PLAIN), limit: Limit::Least(2.5) },
    Bar { cases: RPC, metric: "cpu_ns_per_op", measure: Measure::Over(PLAIN), limit: Limit::Most(0.5) },
    Bar {
        cases: BULK,
        metric: "cpu_ns_per_op",
        measure: Measure::Over(PLAIN),
        limit: Limit::Most(1.0 / 0.9),
    },
    Bar { cases: STOPPED, metric: "rate", measure: Measure::Over(ALONE), limit: Limit::Least(0.95) },
    Bar { cases: BESIDE, metric: "p99", measure: Measure::Over(LONE), limit: Limit::Most(2.0) },
];
/// CHANNELS 2.4: two channels on two cores cost no more for each byte than one. How much more they carry is for a machine with a free processor
/// for each of the four cores.
const CORES_BARS: &[Bar] =
    &[Bar { cases: CORES, metric: "cpu_ns_per_op", measure: Measure::Over(ONE), limit: Limit::Most(1.1) }];

/// Runs the measurement.
///
/// # Errors
/// When a link cannot be made, or a service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("channels");
    if let Err(error) = namespace::need_root() {
        report.note(format!("skipped: {error}"));
        return Ok(report);
    }
    if served::lacks(&["iperf3"], &mut report) {
        return Ok(report);
    }
    raise_limit()?;
    limit_cores(&mut report)?;
    Namespace::remove_orphans();
    let stage = Stage::new(options)?;
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        let mut turn = |what: &str, done: anyhow::Result<()>| {
            if let Err(error) = done {
                report.failures.push(format!("{what}, run {}: {error:#}", run + 1));
            }
        };
        for host in stage.hosts() {
            turn(&format!("{RPC}, {}", host.name), rpc(&host, options.seconds(), &mut samples));
        }
        for host in stage.hosts() {
            turn(&format!("{BULK}, {}", host.name), bulk(&host, BULK, options.seconds(), &mut samples));
        }
        for host in stage.with_two_cores() {
            turn(&format!("{CORES}, {}", host.name), bulk(&host, CORES, options.seconds(), &mut samples));
        }
        for host in stage.with_lanes() {
            turn(&format!("{BESIDE}, {}", host.name), beside(&host, options.seconds(), &mut samples));
        }
        let [channel, ..] = stage.hosts();
        turn(STOPPED, stopped(&channel, options.seconds(), &mut samples));
    }
    stage.stop();
    report.note(
        "rpc: 64 sockets of one client process, each with one request under way; processor time: both processes, both services and ksoftirqd, per RPC, of \
         bulk per MiB; plain: the same two services with TOWPATH_CHANNEL=never",
    );
    report.note(
        "stopped: RPCs on 4,095 sockets beside one more in the same session, which is full and has a reader that reads nothing, against the same \
         without it (channel-alone)",
    );
    report.note(
        "flows8: one connection with requests 200 us apart, beside iperf3 -P 8 into the server and alone; channel: a lane for each of the two classes by \
         --channel-rules; channel-lone: the same without bulk flows",
    );
    report.note(
        "rpc, bulk, stopped: one channel for each session, as both services have one core; copies by further threads are not there",
    );
    report.note(
        "2-cores: services with two cores each, where the channels of a session lie on different cores; processor time per MiB is what a machine with \
         fewer free processors than cores can measure, rate is not",
    );
    report.rows = samples.rows();
    report.rows.retain(|row| row.system != LONE);
    report.ratios = samples.ratios(CHANNEL, &[PLAIN, KERNELS, ALONE, LONE]);
    report.ratios.extend(samples.ratios(TWO, &[ONE]));
    bars::judge(&mut report, CHANNEL, BARS);
    bars::judge(&mut report, TWO, CORES_BARS);
    Ok(report)
}

/// RPCs on `sockets` connections.
fn load(host: &Host<'_>, sockets: u32, seconds: f64) -> anyhow::Result<Measured> {
    let requests = Requests::open(host, sockets)?;
    let pids = [requests.pids(), host.between.clone()].concat();
    let load = Load::echo(seconds, pids);
    requests.client.send(&Ask::Client(client::Ask::Load(load)), &[])?;
    Measured::new(&requests.client.receive_within::<Answer>(seconds + PATIENCE)?)
}

fn rpc(host: &Host<'_>, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
    load(host, SOCKETS, seconds)?.add_rate(RPC, host.name, samples);
    Ok(())
}

fn bulk(host: &Host<'_>, case: &str, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
    let (mut server, mut client) = ((host.server)("iperf3")?, (host.client)("iperf3")?);
    let address = host.address.to_string();
    let sample = one_stream(&mut server, &mut client, &address, false, seconds, &host.between)?;
    samples.add(case, host.name, "rate", "Gbit/s", sample);
    Ok(())
}

/// RPCs on very many sockets alone, then beside one that has a stopped reader.
fn stopped(host: &Host<'_>, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
    load(host, MANY, seconds)?.add_rate(STOPPED, ALONE, samples);
    let full = Requests::connect(host, 1)?;
    ask(&full.client, &Ask::Fill)?;
    load(host, MANY, seconds)?.add_rate(STOPPED, host.name, samples);
    Ok(())
}

/// Small requests on one connection alone, then beside bulk flows between the same hosts.
fn beside(host: &Host<'_>, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
    let alone = turn::measure(host, Case::new(64, 1, None), seconds)?;
    isolation::add(samples, &format!("{BESIDE}/alone"), host.name, &alone);
    let bulk = Bulk { flows: 8, direction: Direction::In, by: By::Iperf };
    let outcome = turn::measure(host, Case::new(64, 1, Some(bulk)), seconds)?;
    isolation::add(samples, BESIDE, host.name, &outcome);
    if host.name == CHANNEL {
        samples.add(BESIDE, LONE, "p99", "us", alone.latencies.p99_us);
    }
    Ok(())
}

/// Two services and the link between them. Services are dropped before the interfaces that they use.
struct Pair {
    services: [Service; 2],
    link: Link,
}

impl Pair {
    /// Two services with channels and these flags.
    fn start(options: &Options, flags: &[&str]) -> anyhow::Result<Self> {
        let link = Link::veth_for([true, true])?;
        let flags = [&["--channel-peers", PEERS], flags].concat();
        let serve = |end: usize| {
            let (interface, address) = (format!("packet:{INTERFACE}"), format!("{}/24", link.addresses[end]));
            let namespace = link.namespaces[end].name();
            Service::start(
                options,
                Port::Packet { interface: &interface, namespace, address: &address, flags: &flags },
            )
        };
        Ok(Self { services: [serve(0)?, serve(1)?], link })
    }

    fn through<'a>(&'a self, name: &'static str, wish: &'static str) -> Host<'a> {
        let [here, there] = &self.services;
        let with = move |service: &'a Service| -> served::Starter<'a> {
            Box::new(move |program| {
                let mut command = service.command(program)?;
                command.env("TOWPATH_CHANNEL", wish);
                Ok(command)
            })
        };
        Host {
            name,
            address: self.link.addresses[1],
            server: with(there),
            client: with(here),
            between: vec![here.pid(), there.pid()],
            service: Some(there),
        }
    }
}

/// Services, namespaces and links that all runs use.
struct Stage {
    usual: Pair,
    lanes: Pair,
    one: Pair,
    two: Pair,
    kernels: Link,
}

impl Stage {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let on_two_cores = |count| Pair::start(options, &["--cores", "2", "--channel-count", count]);
        Ok(Self {
            usual: Pair::start(options, &["--cores", "1"])?,
            lanes: Pair::start(options, &["--cores", "1", "--channel-rules", RULES])?,
            one: on_two_cores("1")?,
            two: on_two_cores("2")?,
            kernels: Link::new(Kind::Veth)?,
        })
    }

    /// The systems: by channel, by plain TCP between the same services, and two kernels.
    fn systems<'a>(&'a self, pair: &'a Pair) -> [Host<'a>; 3] {
        [
            pair.through(CHANNEL, "require"),
            pair.through(PLAIN, "never"),
            Host::over_link(Kind::Veth.system(), &self.kernels),
        ]
    }

    fn hosts(&self) -> [Host<'_>; 3] {
        self.systems(&self.usual)
    }

    /// The same systems, with a lane of channels for each class.
    fn with_lanes(&self) -> [Host<'_>; 3] {
        self.systems(&self.lanes)
    }

    /// One channel and two, between services with two cores.
    fn with_two_cores(&self) -> [Host<'_>; 2] {
        [self.one.through(ONE, "require"), self.two.through(TWO, "require")]
    }

    fn stop(self) {
        for Pair { services, link } in [self.usual, self.lanes, self.one, self.two] {
            services.into_iter().for_each(Service::stop);
            drop(link);
        }
    }
}
