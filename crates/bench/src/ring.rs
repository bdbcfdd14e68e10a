//! The measurement `ring`: 64-byte RPCs of the same client with sockets; the server uses a ring, sockets through Towpath, an epoll set on the
//! kernel, or an io_uring on the kernel.

pub mod server;

use crate::bars::{self, Bar, Limit, Measure};
use crate::client::{self, Load, Measured};
use crate::launch::{Port, Service, prove};
use crate::peer::{Peer, own_program};
use crate::redis::local;
use crate::samples::Samples;
use crate::sockets::pair::{Pair, Place};
use crate::sockets::{ask, echo, raise_limit};
use crate::{Options, Report};
use anyhow::Context;
use std::net::SocketAddrV4;
use std::process::Command;

/// Numbers of connections of the cases.
const CONNECTIONS: [u32; 3] = [1, 64, 1000];
/// Seconds allowed for the answer to a request.
const PATIENCE: f64 = 60.0;
const SERVER: &str = "server's processor time";

const BARS: &[Bar] = &[
    Bar { cases: "ring/64B/n64", metric: SERVER, measure: Measure::Over("sockets"), limit: Limit::Most(0.5) },
    Bar {
        cases: "ring/64B/n64",
        metric: "rate",
        measure: Measure::Over("sockets"),
        limit: Limit::Least(1.4),
    },
];

/// How the server serves.
#[derive(Clone, Copy)]
enum Server {
    Ring,
    Sockets(echo::Ask),
    Kernel(echo::Ask),
}

const SYSTEMS: [(&str, Server); 4] = [
    ("ring", Server::Ring),
    ("sockets", Server::Sockets(echo::Ask::Epoll)),
    ("kernel", Server::Kernel(echo::Ask::Epoll)),
    ("kernel-uring", Server::Kernel(echo::Ask::Uring)),
];

/// Runs the measurement `ring`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("ring");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for connections in CONNECTIONS {
            let case = format!("ring/64B/n{connections}");
            for (name, server) in SYSTEMS {
                let measured = one(&service, server, connections, options.seconds())
                    .with_context(|| format!("{case}, {name}, run {}", run + 1))?;
                measured.add_rate(&case, name, &mut samples);
                samples.add(&case, name, SERVER, "ns", measured.cpu_ns);
            }
        }
    }
    service.stop();
    report.note(format!("{SERVER}: of the server's process and ksoftirqd, per RPC; the client is the same program with sockets"));
    report.rows = samples.rows();
    report.ratios = samples.ratios("ring", &["sockets", "kernel", "kernel-uring"]);
    bars::judge(&mut report, "ring", BARS);
    Ok(report)
}

fn load(seconds: f64, server: u32) -> ask::Ask {
    ask::Ask::Client(client::Ask::Load(Load::echo(seconds, vec![server])))
}

fn one(service: &Service, server: Server, connections: u32, seconds: f64) -> anyhow::Result<Measured> {
    let (place, how) = match server {
        Server::Ring => return on_ring(service, connections, seconds),
        Server::Sockets(how) => (Place::Towpath(service), how),
        Server::Kernel(how) => (Place::Kernel, how),
    };
    let pair = Pair::start(place)?;
    pair.connect(connections - 1)?;
    let (answer, _) = pair.both(&load(seconds, pair.far_pid()), &ask::Ask::Echo(how))?;
    Measured::new(&answer)
}

fn on_ring(service: &Service, connections: u32, seconds: f64) -> anyhow::Result<Measured> {
    let mut command = Command::new(own_program()?);
    command.env("TOWPATH_CONTROL", service.control());
    let far = Peer::start_by(command, server::ROLE)?;
    let address: SocketAddrV4 = far.receive_within(PATIENCE)?;
    let near = Place::Towpath(service).start(1)?;
    for ask in [ask::Ask::Connect(address, connections), load(seconds, far.pid())] {
        near.send(&ask, &[])?;
        let answer: Vec<f64> = near.receive_within(PATIENCE)?;
        if !answer.is_empty() {
            prove(service.accepted(Some(far.pid()))?, connections)?;
            return Measured::new(&answer);
        }
    }
    anyhow::bail!("no answer of the client")
}
