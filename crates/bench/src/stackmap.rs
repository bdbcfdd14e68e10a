//! The measurement `stackmap`: StackMap's Table 2 and Figures 1 and 7 (HTTP answers of 64, 512 and 1,280 bytes, with 1 to 100 connections), and
//! messages of which only the head is looked at. The client has sockets; the server has a ring, sockets through Towpath, an epoll set on the
//! kernel, or an io_uring on the kernel.

use crate::client::protocol::{Protocol, Shape};
use crate::client::{self, Load, Measured, Pace};
use crate::exchange::{self, Kind, on_ring, ready_of};
use crate::launch::{Port, Service};
use crate::redis::local;
use crate::samples::Samples;
use crate::sockets::actor::Answer;
use crate::sockets::pair::{Pair, Place};
use crate::sockets::{ask, raise_limit};
use crate::{Options, Report};
use anyhow::Context;

/// Bytes of the bodies (StackMap, Figure 7).
const BODIES: [u32; 3] = [64, 512, 1280];
/// Numbers of connections (StackMap: 1 to 100).
const CONNECTIONS: [u32; 3] = [1, 10, 100];
/// Bytes of the messages of which only the head is looked at: a segment of Ethernet, and a long one.
const MESSAGES: [u32; 2] = [1448, 16 << 10];
/// Connections with such messages.
const SENDERS: u32 = 16;
const SERVER: &str = "server's processor time";

/// How the server serves.
#[derive(Clone, Copy)]
enum Server {
    Ring,
    Sockets,
    Kernel { is_uring: bool },
}

const SYSTEMS: [(&str, Server); 4] = [
    ("ring", Server::Ring),
    ("sockets", Server::Sockets),
    ("kernel", Server::Kernel { is_uring: false }),
    ("kernel-uring", Server::Kernel { is_uring: true }),
];

/// One load on a server.
#[derive(Clone, Copy)]
struct Use {
    kind: Kind,
    protocol: Protocol,
    /// Bytes of a body or of a message.
    bytes: u32,
    connections: u32,
}

impl Use {
    fn load(&self, seconds: f64, server: u32) -> Load {
        Load {
            protocol: self.protocol,
            shape: Shape { keys: 1, key_bytes: 0, value_bytes: self.bytes },
            skew: 0,
            pace: Pace::Closed,
            milliseconds: (seconds * 1e3) as u32,
            seed: 0,
            pids: vec![server],
        }
    }

    /// The client's results, and the server's counts.
    fn measure(&self, service: &Service, server: Server, seconds: f64) -> anyhow::Result<(Measured, Answer)> {
        let Self { kind, connections, .. } = *self;
        let (place, is_uring) = match server {
            Server::Ring => {
                let ask = on_ring::Ask { kind, rings: 1, connections, is_metered: false };
                return on_ring::measure(service, ask, |_, server| self.load(seconds, server));
            }
            Server::Sockets => (Place::Towpath(service), false),
            Server::Kernel { is_uring } => (Place::Kernel, is_uring),
        };
        let pair = Pair::start(place)?;
        pair.connect(connections - 1)?;
        let near = ask::Ask::Client(client::Ask::Load(self.load(seconds, pair.far_pid())));
        let far = ask::Ask::Exchange(exchange::Ask { kind, is_uring });
        let (answer, counts) = pair.both(&near, &far)?;
        Ok((Measured::new(&answer)?, counts))
    }
}

/// All cases, each with its path.
fn cases() -> Vec<(String, Use)> {
    let http = BODIES.into_iter().flat_map(|bytes| {
        CONNECTIONS.into_iter().map(move |connections| {
            let of = Use { kind: Kind::Http(bytes), protocol: Protocol::Http, bytes, connections };
            (format!("stackmap/http/{bytes}B/n{connections}"), of)
        })
    });
    let heads = MESSAGES.into_iter().map(|bytes| {
        let kind = Kind::Header(bytes);
        let of = Use { kind, protocol: Protocol::Header, bytes, connections: SENDERS };
        (format!("stackmap/header/{bytes}B/n{SENDERS}"), of)
    });
    http.chain(heads).collect()
}

/// Runs the measurement `stackmap`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("stackmap");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let mut samples = Samples::default();
    // There are many cases: each run is half as long as those of other measurements.
    let seconds = options.seconds() / 2.0;
    for run in 0..options.runs() {
        for (case, load) in cases() {
            for (name, server) in SYSTEMS {
                let (measured, counts) = load
                    .measure(&service, server, seconds)
                    .with_context(|| format!("{case}, {name}, run {}", run + 1))?;
                measured.add_rate(&case, name, &mut samples);
                // In a closed loop the mean latency is the number of connections over the rate.
                let mean = f64::from(load.connections) * 1e6 / measured.rate;
                samples.add(&case, name, "mean", "us", mean);
                samples.add(&case, name, SERVER, "ns", measured.cpu_ns);
                if let Some(ready) = ready_of(&counts) {
                    samples.add(&case, name, "ready for each look", "connections", ready);
                }
            }
        }
    }
    service.stop();
    report.note(format!(
        "http: requests of 96 bytes, answers with a head of 63 to 65 bytes and a body, one request under way on each connection; header: \
         messages whose first 64 bytes the server looks at and sends back; {SERVER}: of the server's process and ksoftirqd, for each request"
    ));
    report.note(
        "ready for each look: connections with a request that one `wait` of the ring, `epoll_wait` or batch of completions found, with the \
         looks that found any",
    );
    report.rows = samples.rows();
    report.ratios = samples.ratios("ring", &["sockets", "kernel", "kernel-uring"]);
    Ok(report)
}
