//! What both ends of every connection have sent and received: the first oracle. A stream arrives exactly once and in order, or its
//! reader gets an error; the end of a stream comes after all bytes that were sent.

use super::plan::Side;
use base::Instant;
use rustix::io::Errno;
use std::collections::BTreeMap;

/// How a connection ended at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All bytes were sent and received, and both ends are shut.
    Finished,
    /// A socket call failed with this errno.
    Failed(Errno),
    /// The application died, as planned.
    Died,
}

/// The account of one end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Bytes that `send` accepted.
    pub sent: u64,
    /// Bytes received; all of them were correct.
    pub received: u64,
    /// The end sends no more: after shutdown, close or death.
    pub is_shut: bool,
    /// How the end was closed; `None`: it is open.
    pub outcome: Option<Outcome>,
    /// Time of the last change.
    pub moved_at: Instant,
}

/// A `send` of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Time of the call.
    pub at: Instant,
    /// Number of the connection.
    pub id: u64,
    /// The end that sends.
    pub side: Side,
    /// Bytes that the end has sent in all, with those of this call.
    pub total: u64,
}

/// The accounts of all open connections.
#[derive(Debug, Default)]
pub struct Ledger {
    open: BTreeMap<u64, [Account; 2]>,
    /// Each `send`, in order, if they are to be kept.
    pub writes: Option<Vec<Written>>,
    /// The first violation, in words.
    pub breach: Option<String>,
    /// The peer breaks rules on purpose: wrong bytes and unexpected ends are no violations.
    pub is_lawless: bool,
    /// Errors that are no violation.
    pub tolerated: Vec<Errno>,
    /// Number of connections that both ends finished.
    pub finished: u64,
    /// Number of connections that ended with an error at either end.
    pub failed: u64,
    /// Number of connections in which an application died.
    pub died: u64,
    /// Bytes received, both directions together.
    pub bytes: u64,
}

impl Ledger {
    /// The account of an end; creates it if it is new.
    pub fn account(&mut self, id: u64, side: Side) -> &mut Account {
        &mut self.open.entry(id).or_default()[side.index()]
    }

    /// Notes a violation, if it is the first.
    pub fn breach(&mut self, what: impl FnOnce() -> String) {
        if self.breach.is_none() {
            self.breach = Some(what());
        }
    }

    /// As [`breach`](Self::breach), for violations about the bytes and ends of streams; does nothing if the peer is lawless.
    pub fn wrong(&mut self, what: impl FnOnce() -> String) {
        if !self.is_lawless {
            self.breach(what);
        }
    }

    /// `side` has sent `n` more bytes.
    pub fn sent(&mut self, now: Instant, id: u64, side: Side, n: usize) {
        let account = self.account(id, side);
        account.sent += n as u64;
        account.moved_at = now;
        let total = account.sent;
        if let Some(writes) = &mut self.writes {
            writes.push(Written { at: now, id, side, total });
        }
    }

    /// `side` has received `n` more correct bytes.
    pub fn received(&mut self, now: Instant, id: u64, side: Side, n: usize) {
        self.bytes += n as u64;
        let ends = self.open.entry(id).or_default();
        let peer = ends[1 - side.index()].sent;
        let account = &mut ends[side.index()];
        account.received += n as u64;
        account.moved_at = now;
        let received = account.received;
        if received > peer {
            self.wrong(|| {
                format!("connection {id}: {side:?} received {received} bytes of which {peer} were sent")
            });
        }
    }

    /// `side` has read the end of the stream.
    pub fn ended(&mut self, id: u64, side: Side) {
        let ends = self.open.entry(id).or_default();
        let (own, peer) = (ends[side.index()], ends[1 - side.index()]);
        if !peer.is_shut || peer.sent != own.received {
            self.wrong(|| {
                format!("connection {id}: {side:?} read the end too early: {own:?}, peer {peer:?}")
            });
        }
    }

    /// `side` has closed. When both sides have, the connection is counted and its accounts are removed.
    pub fn close(&mut self, id: u64, side: Side, outcome: Outcome) {
        let ends = self.open.entry(id).or_default();
        ends[side.index()].outcome = Some(outcome);
        ends[side.index()].is_shut = true;
        let ends = *ends;
        let has_died = ends.iter().any(|end| end.outcome == Some(Outcome::Died));
        if let Outcome::Failed(error) = outcome
            && !has_died
            && !self.tolerated.contains(&error)
        {
            self.wrong(|| format!("connection {id}: {side:?} failed with {error}: {ends:?}"));
        }
        if ends.iter().all(|end| end.outcome.is_some()) {
            self.open.remove(&id);
            self.judge(ends.map(|end| end.outcome));
        }
    }

    /// A server has died before it knew the number of its connection. Any client that has got nothing from its server may now read the
    /// end of the stream (Linux sends FIN for a process that dies with no unread bytes).
    pub fn nobody_answers(&mut self) {
        let unheard = self.open.values_mut().filter(|ends| ends[1].received == 0);
        unheard.for_each(|ends| ends[1].is_shut = true);
    }

    fn judge(&mut self, outcomes: [Option<Outcome>; 2]) {
        if outcomes.contains(&Some(Outcome::Died)) {
            self.died += 1;
        } else if outcomes == [Some(Outcome::Finished); 2] {
            self.finished += 1;
        } else {
            self.failed += 1;
        }
    }

    /// All applications are done. A connection that only one end knows is counted by the outcome of that end; a connection without an
    /// outcome at either end is a violation.
    pub fn settle(&mut self) {
        for (id, ends) in std::mem::take(&mut self.open) {
            if ends.iter().all(|end| end.outcome.is_none()) {
                self.breach(|| format!("connection {id} has ended nowhere: {ends:?}"));
            }
            self.judge(ends.map(|end| end.outcome));
        }
    }

    /// Accounts of the connections that are not over.
    #[must_use]
    pub fn open(&self) -> &BTreeMap<u64, [Account; 2]> {
        &self.open
    }
}
