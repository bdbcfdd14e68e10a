//! One end of one connection: it reads, checks, sends, shuts down and closes as its plan says.

use super::Plans;
use super::ledger::{Ledger, Outcome};
use super::payload::{HEADER, Stream, parse_header};
use super::plan::{Manner, Plan, Side};
use crate::machine::Stack;
use crate::sockets::Fd;
use base::{Duration, Instant};
use rustix::io::Errno;

/// Largest number of bytes moved by one call.
pub(crate) const PIECE: usize = 65_536;

/// One end of one connection; see the module.
#[derive(Debug)]
pub(crate) struct Endpoint {
    fd: Fd,
    side: Side,
    /// Number and plan of the connection; a server learns them from the first bytes.
    known: Option<(u64, Plan)>,
    header: Vec<u8>,
    is_connected: bool,
    sent: u64,
    received: u64,
    is_shut: bool,
    is_eof: bool,
    read_at: Instant,
    write_at: Instant,
}

/// When the application must run this end again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// When the socket has its next event.
    News,
    /// At this time, or at the next event.
    At(Instant),
    /// Never: the end is over and its socket is closed.
    Over,
}

/// The state that all ends of a run share.
pub(crate) struct World<'a> {
    pub(crate) now: Instant,
    pub(crate) stack: &'a mut dyn Stack,
    pub(crate) ledger: &'a mut Ledger,
    /// Received bytes: `PIECE` long.
    pub(crate) buffer: &'a mut [u8],
    pub(crate) plans: Plans,
}

impl Endpoint {
    pub(crate) fn client(fd: Fd, id: u64, plan: Plan) -> Self {
        Self { known: Some((id, plan)), ..Self::new(fd, Side::Client) }
    }

    pub(crate) fn server(fd: Fd) -> Self {
        Self { is_connected: true, ..Self::new(fd, Side::Server) }
    }

    fn new(fd: Fd, side: Side) -> Self {
        Self {
            fd,
            side,
            known: None,
            header: Vec::new(),
            is_connected: false,
            sent: 0,
            received: 0,
            is_shut: false,
            is_eof: false,
            read_at: Instant::ZERO,
            write_at: Instant::ZERO,
        }
    }

    /// Does all work that is possible now.
    pub(crate) fn turn(&mut self, w: &mut World<'_>) -> Next {
        match self.try_turn(w) {
            Ok(next) => next,
            Err(error) => self.end(w, Outcome::Failed(error)),
        }
    }

    fn try_turn(&mut self, w: &mut World<'_>) -> Result<Next, Errno> {
        if !self.is_connected {
            self.is_connected = w.stack.is_connected(self.fd)?;
            if !self.is_connected {
                return Ok(Next::News);
            }
            let (id, plan) = self.known.ok_or(Errno::BADF)?;
            w.ledger.account(id, self.side).moved_at = w.now;
            self.read_at = w.now.plus(plan.ends[self.side.index()].read_after);
        }
        loop {
            let read = self.read(w)?;
            let written = self.write(w)?;
            if self.must_die() {
                return Ok(self.end(w, Outcome::Died));
            }
            if self.shut(w)? {
                return Ok(self.end(w, Outcome::Finished));
            }
            if !read && !written {
                return Ok(self.next(w.now));
            }
        }
    }

    fn manner(&self) -> Option<Manner> {
        self.known.map(|(_, plan)| plan.ends[self.side.index()])
    }

    fn must_die(&self) -> bool {
        let dies_at = self.manner().and_then(|manner| manner.dies_at);
        dies_at.is_some_and(|at| at <= self.sent + self.received)
    }

    /// True when bytes or the end of the stream came, and more may follow at once.
    fn read(&mut self, w: &mut World<'_>) -> Result<bool, Errno> {
        if self.is_eof || w.now < self.read_at {
            return Ok(false);
        }
        let Some(manner) = self.manner() else { return self.read_header(w) };
        let most = manner.read.min(PIECE);
        match w.stack.read(self.fd, &mut w.buffer[..most]) {
            Ok(0) => self.read_end(w),
            Ok(n) => self.check(w, n),
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.read_at = w.now.plus(manner.read_pause);
        Ok(manner.read_pause == Duration::ZERO)
    }

    fn read_end(&mut self, w: &mut World<'_>) {
        self.is_eof = true;
        if let Some((id, _)) = self.known {
            w.ledger.ended(id, self.side);
        }
    }

    fn check(&mut self, w: &mut World<'_>, n: usize) {
        let Some((id, _)) = self.known else { return };
        let stream = if self.side == Side::Client { Stream::down(id) } else { Stream::up(id) };
        if let Some(at) = stream.first_wrong(self.received, &w.buffer[..n]) {
            let side = self.side;
            w.ledger.wrong(|| format!("connection {id}: {side:?} received a wrong byte at {at}"));
        }
        self.received += n as u64;
        w.ledger.received(w.now, id, self.side, n);
    }

    /// Reads the header, from which a server learns the number of the connection.
    fn read_header(&mut self, w: &mut World<'_>) -> Result<bool, Errno> {
        let mut bytes = [0; HEADER as usize];
        let left = bytes.len() - self.header.len();
        match w.stack.read(self.fd, &mut bytes[..left]) {
            Ok(0) => return Err(Errno::CONNABORTED),
            Ok(n) => self.header.extend_from_slice(&bytes[..n]),
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
        let Some(header) = self.header.first_chunk() else { return Ok(true) };
        let Some(id) = parse_header(header) else {
            let header = *header;
            w.ledger.wrong(|| format!("a stream begins with wrong bytes: {header:02x?}"));
            return Err(Errno::PROTO);
        };
        let plan = w.plans.of(id);
        self.known = Some((id, plan));
        self.received = HEADER;
        self.read_at = w.now.plus(plan.ends[1].read_after);
        w.ledger.received(w.now, id, Side::Server, HEADER as usize);
        Ok(true)
    }

    /// True when bytes were sent, and more may follow at once.
    fn write(&mut self, w: &mut World<'_>) -> Result<bool, Errno> {
        let Some((id, plan)) = self.known.filter(|_| !self.is_shut && self.write_at <= w.now) else {
            return Ok(false);
        };
        let manner = plan.ends[self.side.index()];
        let left = plan.may_send(self.side, self.received).saturating_sub(self.sent);
        if left == 0 {
            return Ok(false);
        }
        let len = left.min(manner.write.min(PIECE) as u64) as usize;
        let stream = if self.side == Side::Client { Stream::up(id) } else { Stream::down(id) };
        let mut header = [0; HEADER as usize];
        match w.stack.write(self.fd, stream.piece(self.sent, len, &mut header)) {
            Ok(n) => {
                self.sent += n as u64;
                w.ledger.sent(w.now, id, self.side, n);
            }
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.write_at = w.now.plus(manner.write_pause);
        Ok(manner.write_pause == Duration::ZERO)
    }

    /// Shuts its sending direction when it has sent all. True when both ends have.
    fn shut(&mut self, w: &mut World<'_>) -> Result<bool, Errno> {
        let Some((id, plan)) = self.known else { return Ok(false) };
        let manner = plan.ends[self.side.index()];
        // An end that waits for a response that cannot come any more has nothing more to send.
        let has_all = self.sent == manner.total && (!manner.is_last || self.is_eof);
        let is_stuck = self.is_eof && plan.may_send(self.side, self.received) <= self.sent;
        if !self.is_shut && (has_all || is_stuck) {
            self.is_shut = true;
            w.ledger.account(id, self.side).is_shut = true;
            if let Err(error) = w.stack.finish(self.fd) {
                // The connection has ended meanwhile; a read returns its error.
                return Err(w.stack.read(self.fd, &mut [0]).err().unwrap_or(error));
            }
        }
        Ok(self.is_shut && self.is_eof)
    }

    fn end(&mut self, w: &mut World<'_>, outcome: Outcome) -> Next {
        if let Some((id, _)) = self.known {
            w.ledger.close(id, self.side, outcome);
        }
        w.stack.drop_fd(self.fd);
        Next::Over
    }

    fn next(&self, now: Instant) -> Next {
        let reads = if self.is_eof || self.read_at <= now { Instant::NEVER } else { self.read_at };
        let has_more = self.manner().is_some_and(|manner| self.sent < manner.total);
        let writes = if has_more && now < self.write_at { self.write_at } else { Instant::NEVER };
        match reads.min(writes) {
            Instant::NEVER => Next::News,
            at => Next::At(at),
        }
    }

    /// The application has died with this end.
    pub(crate) fn kill(self, ledger: &mut Ledger) {
        match self.known {
            Some((id, _)) => ledger.close(id, self.side, Outcome::Died),
            None => ledger.nobody_answers(),
        }
    }

    pub(crate) fn is_client(&self) -> bool {
        self.side == Side::Client
    }

    pub(crate) fn id(&self) -> Option<u64> {
        self.known.map(|(id, _)| id)
    }
}
