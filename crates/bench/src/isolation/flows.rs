//! Bulk flows of unmodified iperf3 that run while something else is measured. It knows nothing of what runs beside them.

use crate::clock;
use crate::cpu::Meter;
use crate::launch;
use crate::program::{self, Finished, Running};
use crate::samples::Sample;
use crate::served::Host;
use crate::tap::iperf::{self, OPERATION, Said};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::process::Stdio;
use std::thread::{self, JoinHandle};

/// Seconds between the reports of iperf3's server: with the first one it says that the flows are open and have run for so long.
const REPORT: &str = "0.2";
/// Nanoseconds before the end of the flows in which nothing more begins beside them.
const MARGIN_NS: u64 = 200_000_000;
/// The least nanoseconds in which something is measured beside the flows.
const LEAST_NS: u64 = 200_000_000;

/// Bulk flows, all in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bulk {
    /// The number of flows.
    pub flows: u32,
    pub direction: Direction,
    pub by: By,
}

/// The programs that bulk flows come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// iperf3 at both ends.
    Iperf,
    /// iperf3, which sends by `sendfile`.
    Sendfile,
    /// The processes that send and answer the requests (`mixed`).
    SameProcess,
}

impl By {
    /// What follows the number of flows in the names of cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iperf => "",
            Self::Sendfile => "-sendfile",
            Self::SameProcess => "-same-process",
        }
    }
}

/// The direction of bulk flows, as seen from the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Direction {
    /// The client sends to the server.
    In,
    /// The server sends to the client.
    Out,
}

impl Direction {
    pub const ALL: [Self; 2] = [Self::In, Self::Out];

    /// The direction's name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// What the flows carried.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Carried {
    /// Gbit/s at the receiver, cores used, and processor time per MiB.
    pub rate: Sample,
    /// Received bytes per second of processor time of all processes that took part.
    pub bytes_per_processor_second: f64,
}

/// Running bulk flows. When dropped, the server is killed, with which the client ends.
pub struct Flows {
    server: Running,
    client: JoinHandle<anyhow::Result<Finished>>,
    meter: Meter,
    /// The flows run at least until then.
    end_ns: u64,
}

impl Flows {
    /// Starts a server on `host` and a client that runs for about `seconds`; returns when the flows are open and have run for a moment. The
    /// processor time includes that of `others`, the ids of processes that are measured beside the flows.
    ///
    /// # Errors
    /// When iperf3 does not start, or its connections are not accelerated where they must be.
    pub fn start(host: &Host<'_>, bulk: Bulk, seconds: u64, others: &[u32]) -> anyhow::Result<Self> {
        let mut server = (host.server)("iperf3")?;
        server.args(["-s", "-1", "--forceflush", "-i", REPORT]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Running::start(&mut server)?;
        let said = Said::by(&mut server)?;
        said.wait_for("listening", 1)?;
        let mut client = (host.client)("iperf3")?;
        client.args(["-J", "--connect-timeout", "3000", "-c", &host.address.to_string()]);
        client.args(["-P", &bulk.flows.to_string(), "-t", &seconds.to_string()]);
        if bulk.direction == Direction::Out {
            client.arg("-R");
        }
        if bulk.by == By::Sendfile {
            client.arg("-Z");
        }
        let meter = Meter::start(&[others, &host.between, &[server.pid()]].concat());
        // The client counts from when its flows are open, which is later.
        let end_ns = clock::now_ns() + seconds * 1_000_000_000;
        let client = thread::spawn(move || program::run(&mut client, seconds as f64 + 20.0));
        let flows = Self { server, client, meter, end_ns };
        if let Err(error) = said.wait_for("connected to", bulk.flows) {
            // The client knows more, if it has failed.
            return Err(flows.end().err().unwrap_or(error));
        }
        if let Some(service) = host.service {
            // The control connection too.
            launch::prove(service.accepted(Some(flows.server.pid()))?, bulk.flows + 1)
                .context("the bulk flows")?;
        }
        Ok(flows)
    }

    /// The time, of [`clock::now_ns`], until which something can begin beside the flows; `None` if that is too soon.
    pub fn free_until_ns(&self) -> Option<u64> {
        let until_ns = self.end_ns - MARGIN_NS;
        (until_ns >= clock::now_ns() + LEAST_NS).then_some(until_ns)
    }

    /// Waits for the end of the flows.
    ///
    /// # Errors
    /// When iperf3 fails or prints no result.
    pub fn end(self) -> anyhow::Result<Carried> {
        let finished = self.client.join().ok().context("the thread of iperf3's client panicked")??;
        let (bytes, bits_per_second) = iperf::parse(&finished.stdout)?;
        let cpu_ns = (self.meter.used_ns() + finished.cpu_ns) as f64;
        let rate = Sample {
            value: bits_per_second / 1e9,
            cores: Some(cpu_ns / finished.wall_ns as f64),
            cpu_ns: Some(cpu_ns / (bytes / OPERATION)),
        };
        Ok(Carried { rate, bytes_per_processor_second: bytes / (cpu_ns / 1e9) })
    }
}
