//! What both ends of every connection have said and heard: the first oracle. A stream arrives exactly once and in order, or its
//! reader is told of an error; an end of stream is the end of what was sent.

use super::plan::Side;
use base::Instant;
use rustix::io::Errno;
use std::collections::BTreeMap;

/// How an end came out of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Everything was sent, everything heard, both ends closed.
    Finished,
    /// The socket said so.
    Failed(Errno),
    /// The application died, as planned.
    Died,
}

/// One end's account.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Bytes that `send` took.
    pub sent: u64,
    /// Bytes received, each of them right.
    pub received: u64,
    /// It has said that it sends no more: by shutdown, close or death.
    pub is_shut: bool,
    /// The end came so.
    pub outcome: Option<Outcome>,
    /// When something last moved.
    pub moved_at: Instant,
}

/// All accounts of connections that are not over.
#[derive(Debug, Default)]
pub struct Ledger {
    open: BTreeMap<u64, [Account; 2]>,
    /// The first breach.
    pub breach: Option<String>,
    /// The peer keeps no rule: what arrives, and how it ends, is its own affair.
    pub is_lawless: bool,
    /// Errors that are no breach.
    pub tolerated: Vec<Errno>,
    /// Connections that both ends finished.
    pub finished: u64,
    /// Connections that ended with an error at either end.
    pub failed: u64,
    /// Connections in which somebody died.
    pub died: u64,
    /// Bytes that arrived, both ways.
    pub bytes: u64,
}

impl Ledger {
    /// The account of an end, opened when it is first asked for.
    pub fn account(&mut self, id: u64, side: Side) -> &mut Account {
        &mut self.open.entry(id).or_default()[side.index()]
    }

    /// Notes the first thing that must not be.
    pub fn breach(&mut self, what: impl FnOnce() -> String) {
        if self.breach.is_none() {
            self.breach = Some(what());
        }
    }

    /// As [`breach`](Self::breach), about bytes and ends of streams: with a lawless peer there is nothing to say.
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
    }

    /// `side` has received `n` more bytes, which were right.
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

    /// `side` is through. When both are, the connection is judged and forgotten.
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

    /// A server has died before it heard which connection was its: to those whose server has said nothing the end may come (Linux says FIN
    /// for who dies with nothing unread).
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

    /// The applications are through. What never reached the other end is judged by the one that knows of it; what has no end at either
    /// side has been forgotten.
    pub fn settle(&mut self) {
        for (id, ends) in std::mem::take(&mut self.open) {
            if ends.iter().all(|end| end.outcome.is_none()) {
                self.breach(|| format!("connection {id} has ended nowhere: {ends:?}"));
            }
            self.judge(ends.map(|end| end.outcome));
        }
    }

    /// Connections that are not over.
    #[must_use]
    pub fn open(&self) -> &BTreeMap<u64, [Account; 2]> {
        &self.open
    }
}
