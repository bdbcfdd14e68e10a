//! One host that sends bulk to a peer which then falls silent. This is the body of the fuzz target `silent_peer`, and of tests that tell the
//! peer what to do.
//!
//! ```text
//!   peer reads all that the host sends  -->  it acknowledges, reports, closes its window: right or wrong  -->  silence
//! ```
//! The peer knows the host's sequence numbers, so everything that it says is about data in flight. Whatever it has said, the host must keep the
//! law of repetition ([`Host::check`]); and when nothing comes any more, each timeout lets one segment go until the connection is given up.

mod fuzz;
mod receiver;

pub use fuzz::run;

use crate::host::{Host, HostConfig};
use crate::sockets::Fd;
use base::{Duration, Instant};
use receiver::Receiver;
pub use receiver::{Got, Saying};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PORT: u16 = 80;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const START: Instant = Instant::from_ns(1_000_000_000_000);
/// Round trip while the peer takes all that comes.
const ROUND_TRIP: Duration = Duration::from_ms(1);
/// Largest number of times that the host is woken until a given time: a paced flow is for each segment that its send ring holds.
const WAKES_MAX: usize = 100_000;
/// Largest number of loss timers of a silent flow until its first timeout: one for each range that was retransmitted at a time of its own (a
/// loss record has 512 of them), and some probes.
const TIMERS_MAX: u64 = 600;
/// Longest time for which a host tries to reach a silent peer.
const END: Duration = Duration::from_secs(3600);

/// What the two ends agree on, and what the host has for it.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Payload bytes of a segment, without options.
    pub mss: u16,
    /// The peer reports what it has received out of order.
    pub sack: bool,
    /// Segments have timestamps.
    pub timestamps: bool,
    /// Number of loss records that the host's core has.
    pub loss_records: u16,
    /// Congestion control of the host.
    pub algorithm: congestion::Algorithm,
}

/// How a silent peer was tried to be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Silence {
    /// Segments with data that came before the first timeout.
    pub before: usize,
    /// Number of timeouts.
    pub timeouts: u64,
    /// Bytes that came from the first timeout on.
    pub after: usize,
}

/// A host that sends, and its peer.
#[derive(Debug)]
pub struct Bulk {
    host: Host,
    now: Instant,
    receiver: Receiver,
    listener: Fd,
    socket: Option<Fd>,
    mss: u16,
    /// The application has nothing to write.
    is_idle: bool,
    /// What the host has sent since this was last taken.
    got: Vec<Got>,
    text: Vec<u8>,
}

impl Bulk {
    /// A connection over which the host begins to send without end.
    ///
    /// # Errors
    /// A description of what does not work.
    pub fn open(terms: &Terms) -> Result<Self, String> {
        let mut config = HostConfig::new(MAC, &[(HOST, 24)], 1);
        let shared = &mut config.shared;
        (shared.sack, shared.timestamps, shared.loss_records) =
            (terms.sack, terms.timestamps, terms.loss_records);
        config.slow.algorithm = terms.algorithm;
        let mut host = Host::new(&config, START);
        let listener = host.socket(false);
        let failed = |error| format!("the listener: {error}");
        host.bind(listener, SocketAddr::new(HOST, PORT)).map_err(failed)?;
        host.listen(listener, 4).map_err(failed)?;
        let mut bulk = Self {
            host,
            now: START,
            receiver: Receiver::new(terms),
            listener,
            socket: None,
            mss: terms.mss,
            is_idle: false,
            got: Vec::new(),
            text: vec![b'x'; 64 << 10],
        };
        bulk.settle()?;
        bulk.inject(Receiver::syn)?;
        bulk.inject(Receiver::open)?;
        bulk.socket = bulk.host.accept(bulk.listener).ok().map(|(fd, _)| fd);
        bulk.socket.ok_or("nothing was accepted")?;
        bulk.settle()?;
        Ok(bulk)
    }

    fn inject(&mut self, make: impl FnOnce(&mut Receiver) -> Vec<u8>) -> Result<(), String> {
        let frame = make(&mut self.receiver);
        self.host.inject(&frame);
        self.settle()
    }

    /// The peer says something.
    ///
    /// # Errors
    /// A description of the oracle that does not hold.
    pub fn say(&mut self, saying: &Saying) -> Result<(), String> {
        self.inject(|receiver| receiver.say(saying))
    }

    /// Lets host and application work at this instant.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            self.write();
            self.host.run(self.now);
            let mut is_quiet = true;
            while let Some(frame) = self.host.next_frame() {
                is_quiet = false;
                if let Some(answer) = crate::neighbour(&frame, receiver::MAC) {
                    self.host.inject(&answer);
                }
                self.got.extend(self.receiver.read(self.now, &frame));
            }
            if is_quiet && self.host.next_deadline() > self.now {
                break;
            }
        }
        self.host.check()
    }

    /// The application writes until there is no room.
    fn write(&mut self) {
        while let Some(fd) = self.socket.filter(|_| !self.is_idle)
            && self.host.send(fd, &self.text, 0).is_ok()
        {}
    }

    /// Time passes.
    ///
    /// # Errors
    /// A description of the oracle that does not hold.
    pub fn pass(&mut self, time: Duration) -> Result<(), String> {
        let until = self.now.plus(time);
        for _ in 0..WAKES_MAX {
            self.now = self.host.next_deadline().min(until).max(self.now);
            self.settle()?;
            if self.now >= until {
                return Ok(());
            }
        }
        Err(format!("woken {WAKES_MAX} times before {until:?} is reached"))
    }

    /// The peer acknowledges all that comes, until `bytes` are in flight; then it has read them and not answered.
    ///
    /// # Errors
    /// When they never are, and as [`pass`](Self::pass).
    pub fn fill(&mut self, bytes: u32) -> Result<(), String> {
        for _ in 0..1000 {
            self.pass(ROUND_TRIP)?;
            if self.receiver.in_flight() >= bytes {
                return Ok(());
            }
            self.say(&Saying { ack: self.receiver.in_flight(), ..Saying::default() })?;
        }
        Err(format!("there are never {bytes} bytes in flight"))
    }

    /// The application has nothing to write for `time`, and the peer takes all that has come.
    ///
    /// # Errors
    /// The same as [`pass`](Self::pass).
    pub fn rest(&mut self, time: Duration) -> Result<(), String> {
        self.is_idle = true;
        for _ in 0..1000 {
            self.pass(ROUND_TRIP)?;
            if self.receiver.in_flight() == 0 {
                break;
            }
            self.say(&Saying { ack: self.receiver.in_flight(), ..Saying::default() })?;
        }
        self.pass(time)?;
        self.is_idle = false;
        self.pass(ROUND_TRIP)
    }

    /// Bytes that the peer has read and not acknowledged.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.receiver.in_flight()
    }

    /// What the host has sent since the last call.
    pub fn take(&mut self) -> Vec<Got> {
        std::mem::take(&mut self.got)
    }

    /// The counters of the host's core.
    #[must_use]
    pub fn counters(&self) -> &fastpath::Counters {
        self.host.counters()
    }

    /// The application has died: the system closes its sockets.
    pub fn kill(&mut self) {
        self.socket.take().map(|fd| self.host.close(fd));
    }

    fn timeouts(&self) -> u64 {
        self.host.slow().counters().of(slowpath::Count::Timeouts)
    }

    /// The peer says nothing for `time`.
    ///
    /// # Errors
    /// When the host sends more than its timers allow.
    pub fn be_silent(&mut self, time: Duration) -> Result<Silence, String> {
        self.take();
        let (until, fired, timeouts) = (self.now.plus(time), self.counters().loss_timers, self.timeouts());
        let mut silence = Silence::default();
        for _ in 0..WAKES_MAX {
            self.now = self.host.next_deadline().min(until).max(self.now);
            let before = self.timeouts();
            self.settle()?;
            let got = self.take();
            let bytes: usize = got.iter().map(|got| got.len as usize).sum();
            silence.timeouts = self.timeouts() - timeouts;
            if silence.timeouts == 0 {
                silence.before += got.iter().filter(|got| got.len > 0).count();
                let fired = self.counters().loss_timers - fired;
                if fired > TIMERS_MAX {
                    return Err(format!("{fired} timers and no timeout"));
                }
            } else {
                silence.after += bytes;
                let most = (self.timeouts() - before) as usize * usize::from(self.mss);
                if before > timeouts && bytes > most {
                    return Err(format!("{bytes} bytes and {most} allowed, {silence:?}: {got:?}"));
                }
            }
            if self.now >= until {
                return Ok(silence);
            }
        }
        Err(format!("woken {WAKES_MAX} times before {until:?} is reached"))
    }

    /// The peer says nothing any more, and the application closes.
    ///
    /// # Errors
    /// When the host sends more than its timers allow, or anything remains at the end.
    pub fn end(mut self) -> Result<Silence, String> {
        self.kill();
        let _ = self.host.close(self.listener);
        let silence = self.be_silent(END)?;
        let left = self.host.retire(self.now);
        if left != crate::Leftovers::default() {
            return Err(format!("left at the end: {left:?}"));
        }
        Ok(silence)
    }
}
