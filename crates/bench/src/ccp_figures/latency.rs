//! A message to another thread over a UNIX datagram socket and its answer: bare, or a report through the endpoint of the service and the
//! window that an agent answers with.

use crate::{affinity, clock};
use anyhow::{Context, bail};
use base::{Duration, Instant};
use ccp::{Command, Config, Endpoint, FlowId, NewFlow, Sender, Sent};
use ccp_vm::{Builder, Implicit, Primitive, Register, Source};
use ccp_wire::{Create, Events, Fields, Instructions, Message, Update, messages};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time;

/// Bytes of a bare message: those of a report of six values.
const BARE: usize = 64;
/// Room for the longest datagram.
const ROOM: usize = 4096;
/// Wait for a datagram after which the other thread is asked whether it is over.
const WAIT: time::Duration = time::Duration::from_millis(100);
/// Waits without an answer after which something is wrong.
const PATIENCE: usize = 100;
/// Times over and back before the first one that counts.
const WARM_UP: usize = 100;
const FLOW: FlowId = FlowId(1);
const PROGRAM: u32 = 1;
const MSS: u32 = 1448;

/// What goes over and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Bytes that come back as they are.
    Echo,
    /// A report, and a window.
    Report,
}

/// Two bound sockets in a folder of their own.
struct Ends {
    ours: UnixDatagram,
    theirs: UnixDatagram,
    agent: PathBuf,
    service: PathBuf,
    _folder: tempfile::TempDir,
}

impl Ends {
    fn new() -> anyhow::Result<Self> {
        let folder = crate::launch::folder()?;
        let [service, agent] = ["service", "agent"].map(|name| folder.path().join(name));
        let bind = |path: &Path| -> anyhow::Result<UnixDatagram> {
            let socket = UnixDatagram::bind(path).context("cannot bind a datagram socket")?;
            socket.set_read_timeout(Some(WAIT))?;
            Ok(socket)
        };
        Ok(Self { ours: bind(&service)?, theirs: bind(&agent)?, agent, service, _folder: folder })
    }

    /// The next datagram from the other thread.
    fn hear(&self, buffer: &mut [u8]) -> anyhow::Result<usize> {
        for _ in 0..PATIENCE {
            if let Ok(len) = self.ours.recv(buffer) {
                return Ok(len);
            }
        }
        bail!("the other thread does not answer")
    }
}

/// Nanoseconds of each of `count` times over and back; this thread runs on the first processor meanwhile, the other one on the second.
///
/// # Errors
/// When sockets or a thread cannot be had, or no answer comes.
pub fn round_trips(way: Way, cpus: [usize; 2], count: usize) -> anyhow::Result<Vec<u64>> {
    let ends = Ends::new()?;
    let theirs = ends.theirs.try_clone()?;
    let is_over = Arc::new(AtomicBool::new(false));
    let before = affinity::allowed();
    let other = {
        let (is_over, cpu) = (is_over.clone(), cpus[1]);
        std::thread::Builder::new().name("agent".into()).spawn(move || {
            // An echo on another processor would be slower, but no less true.
            let _ = affinity::pin(&[cpu]);
            serve(&theirs, way, &is_over);
        })?
    };
    affinity::pin(&[cpus[0]])?;
    let took = match way {
        Way::Echo => echoes(&ends, count),
        Way::Report => reports(&ends, count),
    };
    // Relaxed: the flag says nothing about other memory.
    is_over.store(true, Ordering::Relaxed);
    affinity::pin(&before)?;
    other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))?;
    took
}

/// The other thread: answers each datagram until it is told that all is over.
fn serve(socket: &UnixDatagram, way: Way, is_over: &AtomicBool) {
    let (mut buffer, mut answer) = ([0; ROOM], Vec::new());
    let source = program();
    while !is_over.load(Ordering::Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        let Some(from) = from.as_pathname() else { continue };
        let heard = buffer.get(..len).unwrap_or_default();
        if way == Way::Echo {
            let _ = socket.send_to(heard, from);
            continue;
        }
        for message in messages(heard).flatten() {
            answer.clear();
            if say(&message, &source, &mut answer) {
                let _ = socket.send_to(&answer, from);
            }
        }
    }
}

/// The agent's answer to a message, if it has one: its program, the choice of it, a window.
fn say(message: &Message<'_>, source: &Source, answer: &mut Vec<u8>) -> bool {
    let done = match message {
        Message::Ready { .. } => Message::Install {
            program: PROGRAM,
            events: Events::of(source.events()),
            instructions: Instructions::of(source.instructions()),
        }
        .encode(answer),
        Message::Create { flow, .. } => {
            Message::Change { flow: *flow, program: PROGRAM, fields: Fields::of(&[]) }.encode(answer)
        }
        Message::Measure { flow, values, .. } => {
            let value = values.iter().fold(u64::from(MSS), u64::saturating_add);
            let update = [Update { register: Register::implicit(Implicit::Cwnd), value }];
            Message::Update { flow: *flow, fields: Fields::of(&update) }.encode(answer)
        }
        _ => return false,
    };
    done.is_ok()
}

fn program() -> Source {
    let mut program = Builder::new();
    let sums = [Primitive::BytesAcked, Primitive::LostPackets, Primitive::WasTimeout]
        .map(|signal| (program.volatile_report(0), signal));
    program.always(|event| {
        for (variable, signal) in sums {
            let sum = event.add(variable, signal);
            event.set(variable, sum);
        }
        event.report();
    });
    program.finish().expect("a few instructions in one event")
}

fn echoes(ends: &Ends, count: usize) -> anyhow::Result<Vec<u64>> {
    let mut buffer = [0; ROOM];
    let mut took = Vec::with_capacity(count);
    for n in 0..WARM_UP + count {
        let start = clock::now_ns();
        ends.ours.send_to(&[0; BARE], &ends.agent)?;
        ends.hear(&mut buffer)?;
        if n >= WARM_UP {
            took.push(clock::now_ns() - start);
        }
    }
    Ok(took)
}

/// The service's side of an agent.
struct Desk<'a> {
    ends: &'a Ends,
    endpoint: Endpoint,
    buffer: [u8; ROOM],
}

impl Desk<'_> {
    fn now() -> Instant {
        Instant::from_ns(clock::now_ns())
    }

    fn drive(&mut self) {
        let ends = self.ends;
        self.endpoint.drive(Self::now(), &mut |_, datagram| match ends.ours.send_to(datagram, &ends.agent) {
            Ok(_) => Sent::Taken,
            Err(_) => Sent::Full,
        });
    }

    /// Takes datagrams in until a command comes that is `wanted`.
    fn until(&mut self, wanted: impl Fn(&Command) -> bool) -> anyhow::Result<()> {
        loop {
            self.drive();
            while let Some(command) = self.endpoint.poll_command() {
                if wanted(&command) {
                    return Ok(());
                }
            }
            let len = self.ends.hear(&mut self.buffer)?;
            let address = self.ends.agent.as_os_str().as_bytes();
            let sender = Sender { address, pid: std::process::id(), uid: 0 };
            self.endpoint.receive(Self::now(), sender, self.buffer.get(..len).unwrap_or_default());
        }
    }
}

fn reports(ends: &Ends, count: usize) -> anyhow::Result<Vec<u64>> {
    debug_assert!(ends.service.is_absolute());
    let config = Config {
        datapath: 1,
        own_uid: 0,
        allowed_uids: Vec::new(),
        messages_per_second: u32::MAX,
        cwnd_max: 1 << 30,
        rate_max: u64::MAX,
        flows_max: 16,
    };
    let mut desk = Desk { ends, endpoint: Endpoint::new(config), buffer: [0; ROOM] };
    desk.endpoint.add_agent(Desk::now(), ends.agent.as_os_str().as_bytes(), &[]);
    let end = |port| ccp_wire::shown_address(([127, 0, 0, 1], port).into());
    let create = Create::new(10 * MSS, MSS, end(1), end(2));
    let new = NewFlow { id: FLOW, uid: 0, rtt: Duration::from_ms(1), rate_max: u64::MAX, create };
    desk.endpoint.open(new).map_err(|_| anyhow::anyhow!("no room for a flow"))?;
    desk.until(|command| matches!(command, Command::Program { .. }))?;
    let mut took = Vec::with_capacity(count);
    for n in 0..WARM_UP + count {
        let values = [n as u64, 0, 0];
        let start = clock::now_ns();
        let taken = desk.endpoint.report(FLOW, PROGRAM, Duration::from_ms(1), &values);
        taken.map_err(|why| anyhow::anyhow!("a report was not taken: {why:?}"))?;
        desk.until(|command| matches!(command, Command::Change { .. }))?;
        if n >= WARM_UP {
            took.push(clock::now_ns() - start);
        }
    }
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_over_comes_back() {
        let cpu = affinity::allowed()[0];
        for way in [Way::Echo, Way::Report] {
            let took = round_trips(way, [cpu, cpu], 20).expect("sockets and a thread");
            assert!(took.len() == 20 && took.iter().all(|ns| *ns > 0), "{way:?}: {took:?}");
        }
    }
}
