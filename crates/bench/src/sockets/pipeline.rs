//! The measurement `pipeline`: messages that go one way over many connections, pipelined (TAS, Figure 6). A server with one
//! thread receives them, or sends them, and works a little for each; what stands at the other end only moves bytes.

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

/// Connections (TAS: 100).
const CONNECTIONS: u32 = 100;
/// Bytes of one call of the end that only moves bytes.
const BULK: u32 = 64 * 1024;
/// Calls on one connection before the next one has its turn.
const TURN: u32 = 16;
/// Events taken at once.
const EVENTS: usize = 256;
/// What comes before the measured time, as a share of it: buffers fill meanwhile.
const WARM_UP: u32 = 4;
/// Nothing came or went for so long: the other end is gone.
const PATIENCE: Duration = Duration::from_secs(20);

const KERNEL: Measure = Measure::Over("kernel");
const BARS: &[Bar] = &[
    Bar { cases: "pipeline/250c/rx/", metric: "rate", measure: KERNEL, limit: Limit::Least(4.0) },
    Bar { cases: "pipeline/250c/tx/", metric: "rate", measure: KERNEL, limit: Limit::Least(6.0) },
];

/// What the server does with messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    /// It receives them, each by a call.
    Rx,
    /// It receives what there is with every call.
    RxGathered,
    /// It sends them, each by a call.
    Tx,
}

/// One way to use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    direction: Direction,
    /// Of a message.
    bytes: u32,
    /// Of the server's work for each message.
    cycles: u32,
}

/// What one end does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Of a message.
    bytes: u32,
    /// Messages moved by one call.
    at_once: u32,
    /// Of work for each.
    cycles: u32,
    milliseconds: u32,
}

/// What is asked of a process: to do it on all its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Send until the other end has closed them.
    Send(Part),
    /// Receive, for the time; then close them. The answer is messages and nanoseconds, then all messages.
    Receive(Part),
}

/// In a process: obeys.
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

/// What an application does with a message: a chain of steps of about four cycles (a product and an exclusive or), of which none can
/// begin before the last one has ended. It stays in a register: how long a number takes through memory, processors disagree.
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
                // The other end finds them closed.
                actor.streams.clear();
                return Ok(vec![(all - before) as f64, (now - begin) as f64, all as f64]);
            }
            _ => {}
        }
    }
}

/// Takes messages of one connection, of whose next one `got` bytes are there; how many have ended.
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
    // What has gone of the message that is being sent.
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

/// Sends on one connection; false when the other end has closed it.
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
    /// The points of the figure, or some of them; and what gathering would buy.
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

    /// How results name it.
    fn path(self) -> String {
        let direction = match self.direction {
            Direction::Rx => "rx",
            Direction::RxGathered => "rx-gathered",
            Direction::Tx => "tx",
        };
        format!("pipeline/{}c/{direction}/{}B", self.cycles, self.bytes)
    }

    /// Measures it once, with a new pair of processes of which the far one is the server.
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
        // The one that receives has counted.
        let [messages, ns, all] = [near, far].concat()[..] else { bail!("no answer of the receiver") };
        let sample =
            Sample { value: messages * 1e9 / ns, cores: Some(cpu_ns / wall_ns), cpu_ns: Some(cpu_ns / all) };
        samples.add(&self.path(), pair.name, "rate", "messages/s", sample);
        Ok(())
    }
}

/// The measurement `pipeline`.
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

/// How long the work for a message takes.
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

    /// Gives and takes so many bytes with each call, then would block.
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
