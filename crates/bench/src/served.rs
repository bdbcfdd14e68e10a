//! Unmodified server programs on one system, and what all their clients need: a command to start them, the test that the server answers,
//! the check that Towpath carried the connections, and the processor time.

use crate::cpu::{self, Meter};
use crate::launch::{self, Port, Service};
use crate::peer::{self, Peer};
use crate::program::{self, Finished, Running};
use crate::redis::local::limit_cores;
use crate::samples::Samples;
use crate::sockets::actor::Answer;
use crate::sockets::ask::{self, Ask};
use crate::tap::link::Link;
use crate::tap::namespace::Namespace;
use crate::{Options, Report};
use anyhow::Context;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Seconds until a server must answer.
const PATIENCE: f64 = 10.0;
/// Seconds after which one attempt to connect is given up.
const TRY: f64 = 2.0;

/// Makes the command that runs a program on the right system.
pub type Starter<'a> = Box<dyn Fn(&str) -> anyhow::Result<Command> + 'a>;

/// The system on which a server runs, and how its clients reach it.
pub struct Host<'a> {
    /// The system's name in results.
    pub name: &'static str,
    pub address: Ipv4Addr,
    pub server: Starter<'a>,
    pub client: Starter<'a>,
    /// Ids of processes that carry packets between client and server.
    pub between: Vec<u32>,
    /// The service, if connections must be accelerated.
    pub service: Option<&'a Service>,
}

impl<'a> Host<'a> {
    /// A server through `service`, which has a port; its clients run on the kernel of `clients`.
    #[must_use]
    pub fn through(service: &'a Service, address: Ipv4Addr, clients: &'a Namespace) -> Self {
        Self {
            name: "towpath",
            address,
            server: Box::new(|program| service.command(program)),
            client: Box::new(|program| clients.command(program)),
            between: vec![service.pid()],
            service: Some(service),
        }
    }

    /// A server on the kernel at the first end of `link`; its clients run on the kernel at the second end.
    #[must_use]
    pub fn over_link(name: &'static str, link: &'a Link) -> Self {
        let [there, here] = &link.namespaces;
        Self {
            name,
            address: link.addresses[0],
            server: Box::new(|program| there.command(program)),
            client: Box::new(|program| here.command(program)),
            between: link.pids(),
            service: None,
        }
    }
}

/// A command that runs a program on the kernel.
///
/// # Errors
/// When the program is not installed.
pub fn on_kernel(program: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(program::find(program)?);
    command.env_remove("LD_PRELOAD");
    Ok(command)
}

/// The two systems of one host: through `service`, and on the kernel.
#[must_use]
pub fn local_hosts(service: &Service) -> [Host<'_>; 2] {
    let through = || -> Starter<'_> { Box::new(|program| service.command(program)) };
    let kernel = || -> Starter<'_> { Box::new(on_kernel) };
    let address = Ipv4Addr::LOCALHOST;
    [
        Host {
            name: "towpath",
            address,
            server: through(),
            client: through(),
            between: vec![service.pid()],
            service: Some(service),
        },
        Host {
            name: "kernel",
            address,
            server: kernel(),
            client: kernel(),
            between: Vec::new(),
            service: None,
        },
    ]
}

/// A running server program.
pub struct Served<'a> {
    host: Host<'a>,
    server: Running,
    address: SocketAddrV4,
    _folder: TempDir,
}

impl<'a> Served<'a> {
    /// Starts a program as [`launch`](Self::launch) does and waits until it accepts a connection.
    ///
    /// # Errors
    /// When the program is not installed, or accepts none.
    pub fn start(
        host: Host<'a>,
        program: &str,
        configure: impl FnOnce(&mut Command, SocketAddrV4, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let served = Self::launch(host, program, configure)?;
        let what = format!("an answer of {program} ({})", served.name());
        program::until(PATIENCE, &what, || served.try_reach().ok())?;
        Ok(served)
    }

    /// Starts a program. `configure` adds its arguments; it gets the server's address and a folder for its files.
    ///
    /// # Errors
    /// When the program is not installed.
    pub fn launch(
        host: Host<'a>,
        program: &str,
        configure: impl FnOnce(&mut Command, SocketAddrV4, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let folder = launch::folder()?;
        let address = SocketAddrV4::new(host.address, free_port()?);
        let mut command = (host.server)(program)?;
        configure(&mut command, address, folder.path())?;
        let server = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
        Ok(Self { host, server, address, _folder: folder })
    }

    /// The system's name in results.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.host.name
    }

    /// The address at which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// The id of the process that was started.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// A command that runs a client program.
    ///
    /// # Errors
    /// When the program is not installed.
    pub fn client(&self, program: &str) -> anyhow::Result<Command> {
        (self.host.client)(program)
    }

    /// Starts our own client process on the client's side, with `connections` connections to the server.
    ///
    /// # Errors
    /// When it cannot connect within `seconds`.
    pub fn connected(&self, connections: u32, seconds: f64) -> anyhow::Result<Peer> {
        let program = peer::own_program()?;
        let program = program.to_str().context("this program's own path is no text")?;
        // [`program::find`] accepts an absolute path too.
        let mut command = self.client(program)?;
        // The caller gets the error; a failed attempt should not print a message.
        command.stderr(Stdio::null());
        let process = Peer::start_by(command, ask::ROLE)?;
        process.send(&Ask::Connect(self.address, connections), &[])?;
        process.receive_within::<Answer>(seconds)?;
        Ok(process)
    }

    fn try_reach(&self) -> anyhow::Result<()> {
        self.connected(1, TRY).map(|_| ())
    }

    /// The ids of all processes that serve: the started process, its descendants, and those between server and client.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        [cpu::with_children(self.server.pid()), self.host.between.clone()].concat()
    }

    /// The number of accelerated connections that the server has accepted; `None` without a service.
    ///
    /// # Errors
    /// When the service does not answer.
    pub fn accepted(&self) -> anyhow::Result<Option<u64>> {
        let Some(service) = self.host.service else { return Ok(None) };
        let own = cpu::with_children(self.server.pid());
        own.into_iter().map(|pid| service.accepted(Some(pid))).sum::<anyhow::Result<u64>>().map(Some)
    }

    /// Calls `act`, which makes `connections` connections, and checks that they were accelerated if they must be.
    ///
    /// # Errors
    /// When `act` fails, or too few connections were accelerated.
    pub fn prove<T>(&self, connections: u32, act: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let before = self.accepted()?;
        let given = act()?;
        if let (Some(before), Some(after)) = (before, self.accepted()?) {
            launch::prove(after - before, connections)?;
        }
        Ok(given)
    }

    /// Runs a client program to its end. Also returns the processor time of all processes, the client included, in nanoseconds.
    ///
    /// # Errors
    /// When the program fails, or too few of its connections were accelerated.
    pub fn run(&self, client: &mut Command, connections: u32, limit: f64) -> anyhow::Result<(Finished, f64)> {
        self.prove(connections, || {
            let meter = Meter::start(&self.pids());
            let finished = program::run(client, limit)?;
            let cpu_ns = meter.used_ns() + finished.cpu_ns;
            Ok((finished, cpu_ns as f64))
        })
    }

    /// Stops the server and waits for its end.
    pub fn stop(self) {
        self.server.stop();
    }
}

/// True if one of these programs is not installed; then adds a note to the report.
pub fn lacks(programs: &[&str], report: &mut Report) -> bool {
    let missing = programs.iter().find_map(|name| program::find(name).err());
    if let Some(error) = &missing {
        report.note(format!("skipped: {error}"));
    }
    missing.is_some()
}

/// Measures every case on two servers on one host, one through Towpath and one on the kernel.
///
/// # Errors
/// When the service or a server does not start.
pub fn compare<C>(
    report: &mut Report,
    options: &Options,
    start: for<'a> fn(Host<'a>) -> anyhow::Result<Served<'a>>,
    cases: &[(String, C)],
    mut measure: impl FnMut(&Served<'_>, &str, &C, &mut Samples) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    limit_cores(report)?;
    let service = Service::start(options, Port::None)?;
    let [towpath, kernel] = local_hosts(&service);
    let systems = [start(towpath)?, start(kernel)?];
    let mut samples = Samples::default();
    interleave(cases, &systems, options, report, |system, path, case| {
        measure(system, path, case, &mut samples)
    });
    systems.into_iter().for_each(Served::stop);
    service.stop();
    report.rows.extend(samples.rows());
    report.ratios.extend(samples.ratios("towpath", &["kernel"]));
    Ok(())
}

/// Measures every case on every system in turn, run by run. A failed measurement becomes a failure of the report.
pub fn interleave<'a, C>(
    cases: &[(String, C)],
    systems: &[Served<'a>],
    options: &Options,
    report: &mut Report,
    mut measure: impl FnMut(&Served<'a>, &str, &C) -> anyhow::Result<()>,
) {
    for run in 0..options.runs() {
        for (path, case) in cases {
            for system in systems {
                if let Err(error) = measure(system, path, case) {
                    report.failures.push(format!("{path}, {}, run {}: {error:#}", system.name(), run + 1));
                }
            }
        }
    }
}

/// A TCP port of the kernel that is free now.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).context("no free port")?.port())
}
