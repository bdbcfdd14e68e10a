//! The applications of one host: what they send, how they read, and what must be true of every byte that comes.

use base::Seed;
use channel::bytes::{Input, Room};
use channel::open::Open;
use channel::session::ECONNRESET;
use channel::{News, SessionId, Streams};
use std::collections::BTreeMap;

/// The port at which a host accepts, and the one at which it refuses.
pub const ACCEPTS: u16 = 80;
pub const REFUSES: u16 = 81;

/// What both ends of a socket do; made from the seed, so that each end knows what the other sends.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes that the opener and the acceptor send.
    pub totals: [u64; 2],
    /// One end resets the socket when it has written so many bytes.
    pub reset: Option<(usize, u64)>,
    /// This end reads nothing.
    pub stopped: Option<usize>,
}

impl Plan {
    pub fn random(seed: &mut Seed, size: u64) -> Self {
        let mut total = || match seed.below(4) {
            0 => seed.below(3),
            1 => seed.below(200),
            _ => seed.below(size),
        };
        let totals = [total(), total()];
        let end = seed.below(2) as usize;
        let reset = seed.chance(150_000).then(|| (end, seed.below(totals[end] + 1)));
        Self { totals, reset, stopped: None }
    }
}

/// The byte of that direction of that socket at that position.
fn pattern(number: u16, end: usize, position: u64) -> u8 {
    let key = u64::from(number) * 2 + end as u64;
    (key.wrapping_mul(0x9E37_79B9) ^ position.wrapping_mul(0x0100_0193) ^ (position >> 9)) as u8
}

/// How an end of a socket ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Closed,
    Refused,
    Reset(u32),
    /// This end has reset it.
    ResetByUs,
}

#[derive(Clone, Debug)]
pub struct App {
    pub session: SessionId,
    pub socket: u32,
    /// Number of the socket, and which end of it this is: 0 the opener.
    pub number: u16,
    pub end: usize,
    pub plan: Plan,
    pub is_open: bool,
    /// Room for bytes that the peer's socket does not have yet, and for those not read.
    window: u64,
    head: u64,
    acked: u64,
    is_finished: bool,
    edge: u64,
    readable: u64,
    read: u64,
    have: Vec<bool>,
    end_at: Option<u64>,
    pub outcome: Option<Outcome>,
}

impl App {
    pub fn new(session: SessionId, socket: u32, number: u16, end: usize, plan: Plan, window: u64) -> Self {
        Self {
            session,
            socket,
            number,
            end,
            plan,
            is_open: end == 1,
            window,
            head: 0,
            acked: 0,
            is_finished: false,
            edge: window,
            readable: 0,
            read: 0,
            have: Vec::new(),
            end_at: None,
            outcome: None,
        }
    }

    fn fail(&self, what: &str) -> ! {
        panic!("{what}: {self:?}");
    }

    /// True when the application has written all that it will.
    pub fn has_written_all(&self) -> bool {
        self.head == self.plan.totals[self.end]
    }

    /// Bytes that this end must get.
    pub fn expected(&self) -> u64 {
        self.plan.totals[self.end ^ 1]
    }
}

/// All applications of a host, by tag, with the bytes of their sockets.
#[derive(Debug, Default)]
pub struct Apps {
    pub all: BTreeMap<u64, App>,
    next: u64,
}

/// What an application asks of its session.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Written(u64),
    Finish,
    Credit(u64),
    Reset,
}

impl Apps {
    /// The tag for the next application.
    pub fn tag(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What an application does in its turn.
    pub fn turn(&mut self, tag: u64, seed: &mut Seed) -> Vec<Ask> {
        let app = self.all.get_mut(&tag).expect("an application");
        let mut asks = Vec::new();
        if app.outcome.is_some() {
            return asks;
        }
        let total = app.plan.totals[app.end];
        let room = (app.acked + app.window - app.head).min(total - app.head);
        if room > 0 {
            app.head += 1 + seed.below(room);
            asks.push(Ask::Written(app.head));
        }
        if let Some((end, at)) = app.plan.reset
            && end == app.end
            && app.head >= at
        {
            app.outcome = Some(Outcome::ResetByUs);
            return vec![Ask::Reset];
        }
        if app.head == total && !app.is_finished {
            app.is_finished = true;
            asks.push(Ask::Finish);
        }
        if app.plan.stopped != Some(app.end) && app.read < app.readable {
            let n = 1 + seed.below(app.readable - app.read);
            let bytes = app.read as usize..(app.read + n) as usize;
            if !app.have[bytes].iter().all(|has| *has) {
                app.fail("a byte is readable that never came");
            }
            app.read += n;
            app.edge = app.read + app.window;
            asks.push(Ask::Credit(app.edge));
        }
        asks
    }

    /// An event of a socket.
    pub fn news(&mut self, tag: u64, news: News, may_end: bool) {
        let app = self.all.get_mut(&tag).expect("an application");
        if app.outcome.is_some() {
            app.fail("an event after the end");
        }
        match news {
            News::Incoming(_) => app.fail("incoming twice"),
            News::Opened if app.is_open => app.fail("opened twice"),
            News::Opened => app.is_open = true,
            News::Readable(to) if to <= app.readable => app.fail("readable goes back"),
            News::Readable(to) => app.readable = to,
            News::Acked(to) if to < app.acked || to > app.head => app.fail("confirmed out of order"),
            News::Acked(to) => app.acked = to,
            News::Finished(at) if app.end_at.is_some() || at != app.expected() || at != app.readable => {
                app.fail("a wrong end of the stream")
            }
            News::Finished(at) => app.end_at = Some(at),
            News::Closed => {
                let is_whole =
                    app.end_at.is_some() && app.is_finished && app.acked == app.plan.totals[app.end];
                if !is_whole {
                    app.fail("closed before all was there");
                }
                app.outcome = Some(Outcome::Closed);
            }
            News::Refused(_) => app.outcome = Some(Outcome::Refused),
            News::Reset(errno) => {
                let by_peer = app.plan.reset.is_some_and(|(end, _)| end != app.end);
                if !by_peer && !may_end {
                    app.fail("reset without a reason");
                }
                assert_eq!(errno, ECONNRESET);
                app.outcome = Some(Outcome::Reset(errno));
            }
        }
    }

    /// An application whose stream has ended and which is closed by its session still reads what is there.
    pub fn read_rest(&self) {
        for app in self.all.values().filter(|app| app.outcome == Some(Outcome::Closed)) {
            let expected = app.expected() as usize;
            if app.readable as usize != expected || !app.have[..expected].iter().all(|has| *has) {
                app.fail("closed with bytes missing");
            }
        }
    }

    /// True when no application waits for anything.
    pub fn is_done(&self) -> bool {
        self.all.values().all(|app| app.outcome.is_some())
    }
}

impl Streams for Apps {
    fn read<R: Room + ?Sized>(&mut self, tag: u64, position: u64, len: usize, room: &mut R, at: usize) {
        let app = self.all.get(&tag).expect("an application");
        if position < app.acked || position + len as u64 > app.head {
            app.fail("bytes are read that are not there");
        }
        let bytes: Vec<u8> = (0..len as u64).map(|i| pattern(app.number, app.end, position + i)).collect();
        room.put(at, &bytes);
    }

    fn write(&mut self, tag: u64, position: u64, input: Input<'_>) {
        let mut bytes = vec![0; input.len()];
        input.copy_to(&mut bytes);
        let app = self.all.get_mut(&tag).expect("an application");
        let end = position + bytes.len() as u64;
        if end > app.edge || position < app.readable || end > app.expected() {
            app.fail("bytes beyond the credit, before what is readable, or behind the end");
        }
        for (i, byte) in bytes.iter().enumerate() {
            if *byte != pattern(app.number, app.end ^ 1, position + i as u64) {
                app.fail("a byte of another place or another socket");
            }
        }
        if app.have.len() < end as usize {
            app.have.resize(end as usize, false);
        }
        app.have[position as usize..end as usize].fill(true);
    }
}

/// The OPEN of that socket.
pub fn open(number: u16, port: u16) -> Open {
    Open { from_port: number, to: ([10, 0, 0, 9], port).into(), options: 0 }
}
