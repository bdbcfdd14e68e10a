//! The measurement `pipeline`: one-way messages over many connections, pipelined (TAS, Figure 6). A server with one thread receives or
//! sends them and does some work for each; the peer only moves bytes.

use super::actor::{self, Actor, Answer};
use super::calls::{self, For};
use super::pair::Pair;
use super::raise_limit;
use crate::bars::{self, Bar, Limit, Measure};
use crate::clock;
use crate::cpu::Meter;
use crate::launch::{Port, Service};
use crate::redis::local;
use crate::samples::{Sample, Samples};
use crate::{Options, Report};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// Number of connections (TAS: 100).
const CONNECTIONS: u32 = 100;
/// Bytes per call of the peer.
const BULK: u32 = 64 * 1024;
/// The most calls on one connection before the next connection's turn.
const TURN: u32 = 16;
/// Events taken by one `epoll_wait`.
const EVENTS: usize = 256;
/// The warm-up lasts the measured time divided by this; buffers fill in it.
const WARM_UP: u32 = 4;
/// Time without an event after which the peer counts as gone.
const PATIENCE: Duration = Duration::from_secs(20);

const KERNEL: Measure = Measure::Over("kernel");
const BARS: &[Bar] = &[
    Bar { cases: "pipeline/250c/rx/", metric: "rate", measure: KERNEL, limit: Limit::Least(4.0) },
    Bar { cases: "pipeline/250c/tx/", metric: "rate", measure: KERNEL, limit: Limit::Least(6.0) },
];

/// The server's handling of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    /// Receive messages, each with one call.
    Rx,
    /// Receive all bytes that are there with each call.
    RxGathered,
    /// Send messages, each with one call.
    Tx,
}

/// A case of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    direction: Direction,
    /// Bytes of a message.
    bytes: u32,
    /// Cycles of the server's work for each message.
    cycles: u32,
}

/// The task of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Bytes of a message.
    bytes: u32,
    /// Messages moved by one call.
    at_once: u32,
    /// Cycles of work for each message.
    cycles: u32,
    milliseconds: u32,
}

/// A request to a process, for all its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Send until the peer has closed the connections.
    Send(Part),
    /// Receive for the given time, then close the connections. The answer: messages and nanoseconds of the measured time, then all
    /// messages.
    Receive(Part),
}

/// In the process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    for stream in &actor.streams {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
    }
    match ask {
        Ask::Send(part) => send(actor, part).map(|()| Answer::new()),
        Ask::Receive(part) => receive(actor, part),
    }
}

/// The application's work for a message: a chain of steps of about four cycles each (multiply and exclusive or), each of which needs the
/// result of the one before. The value stays in a register, because the latency of memory differs between processors.
fn work(cycles: u32) {
    let mut x = black_box(1u64);
    for _ in 0..cycles / 4 {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ (x >> 32);
    }
    black_box(x);
}

fn receive(actor: &mut Actor, part: Part) -> anyhow::Result<Answer> {
    let set = calls::epoll_create()?;
    for (i, stream) in actor.streams.iter().enumerate() {
        calls::epoll_add(&set, stream, i as u64)?;
    }
    let (mut got, mut all) = (vec![0u32; actor.streams.len()], 0u64);
    let (mut events, mut buffer) = ([calls::NO_EVENT; EVENTS], vec![0; (part.bytes * part.at_once) as usize]);
    let start = clock::now_ns();
    let length = u64::from(part.milliseconds) * 1_000_000;
    let mut begun = None;
    loop {
        let count = calls::epoll_wait(&set, &mut events, Some(PATIENCE))?;
        if count == 0 {
            bail!("nothing came");
        }
        for event in &events[..count] {
            let at = event.u64 as usize;
            all += take(&mut actor.streams[at], &mut got[at], &mut buffer, part)?;
        }
        let now = clock::now_ns();
        match begun {
            None if now - start >= length / u64::from(WARM_UP) => begun = Some((now, all)),
            Some((begin, before)) if now - begin >= length => {
                // Closing the connections ends the sender.
                actor.streams.clear();
                return Ok(vec![(all - before) as f64, (now - begin) as f64, all as f64]);
            }
            _ => {}
        }
    }
}

/// Reads messages of one connection. `got`: bytes received of an incomplete message. Returns the number of completed messages.
fn take(stream: &mut impl Read, got: &mut u32, buffer: &mut [u8], part: Part) -> anyhow::Result<u64> {
    let mut messages = 0;
    for _ in 0..TURN {
        let room = (part.bytes * part.at_once - *got) as usize;
        let taken = match stream.read(&mut buffer[..room]) {
            Ok(0) => bail!("the sender has closed a connection"),
            Ok(taken) => taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error).context("receiving"),
        };
        *got += taken as u32;
        let ended = *got / part.bytes;
        *got %= part.bytes;
        (0..ended).for_each(|_| work(part.cycles));
        messages += u64::from(ended);
        if part.at_once > 1 {
            break;
        }
    }
    Ok(messages)
}

fn send(actor: &mut Actor, part: Part) -> anyhow::Result<()> {
    let set = calls::epoll_create()?;
    let mut streams: Vec<_> = actor.streams.drain(..).map(Some).collect();
    for (i, stream) in streams.iter().flatten().enumerate() {
        calls::epoll_watch(&set, stream, For::Writing, i as u64)?;
    }
    let bytes = vec![1; (part.bytes * part.at_once) as usize];
    // For each connection: bytes already sent of the current message (or batch of `at_once` messages).
    let mut gone = vec![0; streams.len()];
    let (mut events, mut living) = ([calls::NO_EVENT; EVENTS], streams.len());
    while living > 0 {
        let count = calls::epoll_wait(&set, &mut events, Some(PATIENCE))?;
        if count == 0 {
            bail!("nothing could be sent");
        }
        for event in &events[..count] {
            let at = event.u64 as usize;
            let Some(stream) = &mut streams[at] else { continue };
            if !give(stream, &mut gone[at], &bytes, part)? {
                streams[at] = None;
                living -= 1;
            }
        }
    }
    Ok(())
}

/// Sends on one connection. False if the peer has closed it.
fn give(stream: &mut impl Write, gone: &mut usize, bytes: &[u8], part: Part) -> anyhow::Result<bool> {
    for _ in 0..if part.at_once > 1 { 1 } else { TURN } {
        if *gone == 0 {
            (0..part.at_once).for_each(|_| work(part.cycles));
        }
        match stream.write(&bytes[*gone..]) {
            Ok(sent) => *gone = (*gone + sent) % bytes.len(),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => break,
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => return Ok(false),
                _ => return Err(error).context("sending"),
            },
        }
    }
    Ok(true)
}

impl Case {
    /// The points of the figure (some of them with `--quick`), and one case with gathered receiving.
    fn all(options: &Options) -> Vec<Self> {
        let (sizes, few): (&[u32], &[u32]) = match options.quick {
            true => (&[32, 128, 2048], &[64]),
            false => (&[32, 64, 128, 256, 512, 1024, 2048], &[32, 64, 128, 256, 512, 1024, 2048]),
        };
        let of = |direction, sizes: &[u32], cycles| -> Vec<Self> {
            sizes.iter().map(|&bytes| Self { direction, bytes, cycles }).collect()
        };
        let mut cases = Vec::new();
        for (sizes, cycles) in [(sizes, 250), (few, 1000)] {
            for direction in [Direction::Rx, Direction::Tx] {
                cases.extend(of(direction, sizes, cycles));
            }
        }
        cases.extend(of(Direction::RxGathered, &[64], 250));
        cases
    }

    /// The case's name in results.
    fn path(self) -> String {
        let direction = match self.direction {
            Direction::Rx => "rx",
            Direction::RxGathered => "rx-gathered",
            Direction::Tx => "tx",
        };
        format!("pipeline/{}c/{direction}/{}B", self.cycles, self.bytes)
    }

    /// Measures the case once on a new pair of processes; the far process is the server.
    fn measure(self, system: Option<&Service>, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
        let pair = Pair::start(system)?;
        pair.connect(CONNECTIONS - 1)?;
        let milliseconds = (seconds * 1e3) as u32;
        let gathered = (BULK / self.bytes).max(1);
        let mover = Part { bytes: self.bytes, at_once: gathered, cycles: 0, milliseconds };
        let server = Part { at_once: 1, cycles: self.cycles, ..mover };
        let (near, far) = match self.direction {
            Direction::Rx => (Ask::Send(mover), Ask::Receive(server)),
            Direction::RxGathered => (Ask::Send(mover), Ask::Receive(Part { at_once: gathered, ..server })),
            Direction::Tx => (Ask::Receive(mover), Ask::Send(server)),
        };
        let (start, meter) = (clock::now_ns(), Meter::start(&pair.pids()));
        let (near, far) = pair.both(&actor::Ask::Pipeline(near), &actor::Ask::Pipeline(far))?;
        let (cpu_ns, wall_ns) = (meter.used_ns() as f64, (clock::now_ns() - start) as f64);
        // Only the receiving end answers with numbers.
        let [messages, ns, all] = [near, far].concat()[..] else { bail!("no answer of the receiver") };
        let sample =
            Sample { value: messages * 1e9 / ns, cores: Some(cpu_ns / wall_ns), cpu_ns: Some(cpu_ns / all) };
        samples.add(&self.path(), pair.name, "rate", "messages/s", sample);
        Ok(())
    }
}

/// Runs the measurement `pipeline`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("pipeline");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for case in Case::all(options) {
            for system in [Some(&service), None] {
                let measured = case.measure(system, options.seconds(), &mut samples);
                measured.with_context(|| format!("{}, run {}", case.path(), run + 1))?;
            }
        }
    }
    service.stop();
    report.note(format!(
        "{CONNECTIONS} connections; the server moves a message by each call (rx-gathered: what there is, up to {} KiB), the \
         other end {} KiB; 250 and 1,000 cycles of work took {:.0} and {:.0} ns here",
        BULK / 1024,
        BULK / 1024,
        work_ns(250),
        work_ns(1000)
    ));
    report.note("processor time: both processes, the service and ksoftirqd, per message");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel"]);
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}

/// Nanoseconds that the work for one message takes.
fn work_ns(cycles: u32) -> f64 {
    const TIMES: u32 = 10_000;
    let start = clock::now_ns();
    (0..TIMES).for_each(|_| work(cycles));
    (clock::now_ns() - start) as f64 / f64::from(TIMES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A stream with this many bytes for each call; further calls return `WouldBlock`.
    struct Pieces(Vec<usize>);

    impl Pieces {
        fn next(&mut self, room: usize) -> io::Result<usize> {
            let piece = if self.0.is_empty() { None } else { Some(self.0.remove(0)) };
            piece.map(|piece| piece.min(room)).ok_or_else(|| ErrorKind::WouldBlock.into())
        }
    }

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.next(buffer.len())
        }
    }

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.next(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn messages_in_pieces_are_counted_once() {
        let one = Part { bytes: 10, at_once: 1, cycles: 4, milliseconds: 1 };
        let (mut got, mut buffer) = (0, [0; 40]);
        assert_eq!(take(&mut Pieces(vec![10, 4, 99, 3]), &mut got, &mut buffer, one).unwrap(), 2);
        assert_eq!(got, 3);
        let many = Part { at_once: 4, ..one };
        assert_eq!(take(&mut Pieces(vec![99]), &mut got, &mut buffer, many).unwrap(), 4);
        assert_eq!(got, 0);
        assert!(take(&mut Pieces(vec![0]), &mut got, &mut buffer, one).is_err());
    }

    #[test]
    fn what_has_gone_is_not_sent_again() {
        let one = Part { bytes: 10, at_once: 1, cycles: 4, milliseconds: 1 };
        let mut gone = 0;
        assert!(give(&mut Pieces(vec![4, 99, 2]), &mut gone, &[1; 10], one).unwrap());
        assert_eq!(gone, 2);
    }

    #[test]
    fn every_bar_has_cases_in_a_quick_run() {
        let mut options = Options::default_for_demo();
        for quick in [true, false] {
            options.quick = quick;
            let paths: Vec<String> = Case::all(&options).into_iter().map(Case::path).collect();
            for bar in BARS {
                assert!(paths.iter().any(|path| path.starts_with(bar.cases)), "{}", bar.cases);
            }
        }
    }
}
