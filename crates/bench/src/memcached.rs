//! The measurement `memcached`: unmodified memcached with our own client.

use crate::bars::{self, Bar, Limit, Measure};
use crate::client::protocol::{Protocol, Shape};
use crate::client::{Ask, Load, Measured, Pace};
use crate::peer::Peer;
use crate::served::{self, Host, Served};
use crate::sockets::actor::Answer;
use crate::sockets::ask;
use crate::{Options, Report};

/// As in TAS: 100,000 keys of 32 bytes, values of 64, Zipf's law.
const SHAPE: Shape = Shape { keys: 100_000, key_bytes: 32, value_bytes: 64 };
const SKEW: u32 = 90;
/// Numbers of connections of the cases.
const CONNECTIONS: [u32; 2] = [1, 50];
/// Seconds that the client's answer may take beyond the time it measures.
const PATIENCE: f64 = 60.0;

const BARS: &[Bar] = &[Bar {
    cases: "memcached/c50",
    metric: "rate",
    measure: Measure::Over("kernel"),
    limit: Limit::Least(3.0),
}];

/// Runs the measurement `memcached`.
///
/// # Errors
/// When the service or memcached does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("memcached");
    if served::lacks(&["memcached"], &mut report) {
        return Ok(report);
    }
    let cases = CONNECTIONS.map(|connections| (format!("memcached/c{connections}"), connections));
    served::compare(&mut report, options, start, &cases, |system, path, connections, samples| {
        measure(system, *connections, options.seconds())?.add_rate(path, system.name(), samples);
        Ok(())
    })?;
    report.note(
        "closed loop, 90 % GET, 10 % SET, 100,000 keys of 32 bytes, values of 64, Zipf's law with exponent 0.9; one thread of memcached",
    );
    report.note("processor time: memcached, the client, the service and ksoftirqd, per request");
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}

/// Starts a server and sets all keys.
fn start(host: Host<'_>) -> anyhow::Result<Served<'_>> {
    let server = Served::start(host, "memcached", |command, address, _| {
        let lines = include_str!("../configuration/memcached.conf").lines();
        lines.filter(|line| !line.starts_with('#')).for_each(|line| {
            command.args(line.split_whitespace());
        });
        command.args(["-l", &address.ip().to_string(), "-p", &address.port().to_string()]);
        if rustix::process::geteuid().is_root() {
            // memcached runs as root only with this flag.
            command.args(["-u", "root"]);
        }
        Ok(())
    })?;
    let client = server.connected(1, PATIENCE)?;
    ask(&client, Ask::Fill(Protocol::Memcached, SHAPE), PATIENCE)?;
    Ok(server)
}

fn ask(client: &Peer, ask: Ask, seconds: f64) -> anyhow::Result<Answer> {
    client.send(&ask::Ask::Client(ask), &[])?;
    client.receive_within(seconds)
}

fn measure(server: &Served<'_>, connections: u32, seconds: f64) -> anyhow::Result<Measured> {
    let answer = server.prove(connections, || {
        let client = server.connected(connections, PATIENCE)?;
        let load = Load {
            protocol: Protocol::Memcached,
            shape: SHAPE,
            skew: SKEW,
            pace: Pace::Closed,
            milliseconds: (seconds * 1e3) as u32,
            seed: u64::from(connections),
            pids: [server.pids().as_slice(), &[client.pid()]].concat(),
        };
        ask(&client, Ask::Load(load), seconds + PATIENCE)
    })?;
    Measured::new(&answer)
}
