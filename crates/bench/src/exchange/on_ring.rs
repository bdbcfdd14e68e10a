//! A server on rings, one in each of its threads: a peer process of several measurements. Its clients have sockets.

use super::{Answers, Counts, Kind};
use crate::client::{self, Load, Measured};
use crate::launch::{Service, prove};
use crate::peer::{Peer, own_program};
use crate::sockets::actor::Answer;
use crate::sockets::ask;
use crate::sockets::pair::Place;
use ::ring::{Error, Handle, ListenOptions, Options, Ring};
use anyhow::{Context, bail};
use control::Line;
use cycles::Ticks;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process::Command;
use std::thread::ScopedJoinHandle;

/// The role of this process.
pub const ROLE: &str = "exchange-on-ring";
/// Seconds allowed for the answer to a request.
const PATIENCE: f64 = 60.0;

/// What the process serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ask {
    pub kind: Kind,
    /// Number of rings, each with a thread of its own.
    pub rings: u32,
    /// Connections of each ring.
    pub connections: u32,
    /// Count the cycles of each [`Part`]. That costs some.
    pub is_metered: bool,
}

/// What the thread of a ring does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Waits, publishes, and collects events.
    Wait,
    Read,
    /// The program itself answers a request.
    Answer,
    Write,
}

/// Number of parts of a ring's thread.
pub const PARTS: usize = 4;

/// Counts cycles by part.
struct Meter {
    /// `None`: nothing is counted.
    clock: Option<Ticks>,
    /// When the present part began.
    at: u64,
    spent: [u64; PARTS],
}

impl Meter {
    fn new(is_on: bool) -> Self {
        let clock = is_on.then(Ticks::here);
        Self { at: clock.map_or(0, Ticks::now), clock, spent: [0; PARTS] }
    }

    /// What was done since the last call was `part`.
    fn lap(&mut self, part: Part) {
        if let Some(clock) = self.clock {
            let now = clock.now();
            self.spent[part as usize] += now - self.at;
            self.at = now;
        }
    }
}

/// The main function of the process: says where each ring listens, and serves until the client has closed all connections.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let Ask { kind, rings, connections, is_metered } =
        line.receive(true).context("the measurement is gone")?.message;
    let service = ::ring::Service::open(Options::default())?;
    let (mut made, mut addresses) = (Vec::new(), Vec::new());
    for _ in 0..rings {
        let mut ring = service.ring()?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = ring.listen(any, ListenOptions::default(), 0)?;
        let SocketAddr::V4(address) = ring.local_address(listener)? else { bail!("not IPv4") };
        addresses.push(address);
        made.push(ring);
    }
    let program = kind.program();
    line.send(&addresses, &[], true).context("the measurement is gone")?;
    let (counts, spent) = std::thread::scope(|scope| {
        let serve = |ring| scope.spawn(|| serve(ring, connections, is_metered, &*program));
        let threads: Vec<_> = made.into_iter().map(serve).collect();
        threads.into_iter().try_fold(Done::default(), join)
    })?;
    let spent = spent.iter().map(|ticks| *ticks as f64);
    let answer: Answer = counts.answer().into_iter().chain(spent).collect();
    line.send(&answer, &[], true).context("the measurement is gone")?;
    // The measurement asks the service about this process before it closes the line.
    while line.receive::<u32>(true).is_ok() {}
    drop(service);
    Ok(())
}

/// A thread's counts, and its cycles by part.
type Done = (Counts, [u64; PARTS]);

fn join(all: Done, thread: ScopedJoinHandle<'_, anyhow::Result<Done>>) -> anyhow::Result<Done> {
    let Ok(done) = thread.join() else { bail!("a thread of the server has failed") };
    let (Counts { looks, ready }, spent) = done?;
    let counts = Counts { looks: all.0.looks + looks, ready: all.0.ready + ready };
    Ok((counts, std::array::from_fn(|part| all.1[part] + spent[part])))
}

/// Serves until so many connections have come and were closed by the client.
fn serve(mut ring: Ring, connections: u32, is_metered: bool, program: &dyn Answers) -> anyhow::Result<Done> {
    let (mut events, mut replies) = (Vec::new(), Vec::new());
    let (mut counts, mut left, mut meter) = (Counts::default(), connections, Meter::new(is_metered));
    while left > 0 {
        ring.wait(None, &mut events)?;
        meter.lap(Part::Wait);
        counts.add(events.iter().filter(|event| event.kind == ::ring::Kind::Readable).count());
        for event in &events {
            match event.kind {
                ::ring::Kind::Readable => {
                    turn(&mut ring, event.handle, program, &mut replies, &mut meter)?;
                }
                ::ring::Kind::Finished | ::ring::Kind::Closed(_) => {
                    if let Ok(conn) = ring.conn(event.handle) {
                        conn.close();
                        left -= 1;
                    }
                }
                _ => {}
            }
        }
    }
    Ok((counts, meter.spent))
}

/// Answers the requests that have arrived on one connection.
fn turn(
    ring: &mut Ring,
    handle: Handle,
    program: &dyn Answers,
    replies: &mut Vec<u8>,
    meter: &mut Meter,
) -> anyhow::Result<()> {
    let mut read = match ring.conn(handle)?.read() {
        Ok(read) => read,
        // `Closed` follows.
        Err(Error::Ended(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    replies.clear();
    let used = match program.message() {
        None => {
            let bytes = read.bytes();
            meter.lap(Part::Read);
            program.answer(bytes, replies)?
        }
        Some([whole, _]) if read.len() < whole => 0,
        Some([whole, head]) => {
            let bytes = read.contiguous(head);
            meter.lap(Part::Read);
            program.answer_head(bytes, replies);
            whole
        }
    };
    meter.lap(Part::Answer);
    read.consume(used);
    meter.lap(Part::Read);
    // A client has one request under way on each connection, so there is room.
    if !replies.is_empty() && ring.conn(handle)?.write(replies)? < replies.len() {
        bail!("no room for a reply");
    }
    meter.lap(Part::Write);
    Ok(())
}

/// Runs a client with sockets against a server on rings. `load` gets the client's and the server's process id. Also returns the server's
/// counts.
pub fn measure(
    service: &Service,
    ask: Ask,
    load: impl FnOnce(u32, u32) -> Load,
) -> anyhow::Result<(Measured, Answer)> {
    let mut command = Command::new(own_program()?);
    command.env("TOWPATH_CONTROL", service.control());
    let far = Peer::start_by(command, ROLE)?;
    far.send(&ask, &[])?;
    let addresses: Vec<SocketAddrV4> = far.receive_within(PATIENCE)?;
    let near = Place::Towpath(service).start(1)?;
    for address in addresses {
        near.send(&ask::Ask::Connect(address, ask.connections), &[])?;
        near.receive_within::<Answer>(PATIENCE)?;
    }
    near.send(&ask::Ask::Client(client::Ask::Load(load(near.pid(), far.pid()))), &[])?;
    let answer: Answer = near.receive_within(PATIENCE)?;
    let counts = far.receive_within(PATIENCE)?;
    prove(service.accepted(Some(far.pid()))?, ask.rings * ask.connections)?;
    Ok((Measured::new(&answer)?, counts))
}
