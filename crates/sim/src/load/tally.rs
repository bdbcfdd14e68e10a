//! What has become of each message of a load.

use super::Job;
use base::{Duration, Instant};

/// One message of a load, and how far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// When the application had it to send.
    pub began: Instant,
    /// Its length in bytes; `u64::MAX`: it never ends.
    pub bytes: u64,
    /// Bytes that have arrived.
    pub received: u64,
    /// When the last byte arrived.
    pub ended: Option<Instant>,
}

impl Message {
    /// The time from its beginning until its last byte has arrived: the flow's completion time.
    #[must_use]
    pub fn took(&self) -> Option<Duration> {
        self.ended.map(|ended| ended.since(self.began))
    }
}

/// All messages of a run, by number.
#[derive(Debug, Default)]
pub struct Tally {
    messages: Vec<Message>,
    /// Number of messages that end and have not arrived.
    open: usize,
    /// Connections that ended with an error.
    pub failed: u64,
}

impl Tally {
    /// Enters the messages of `jobs`, and numbers them.
    pub fn enter(&mut self, jobs: &mut [Job]) {
        for job in jobs {
            job.number = self.messages.len() as u64;
            self.open += usize::from(job.bytes < u64::MAX);
            self.messages.push(Message { began: job.at, bytes: job.bytes, received: 0, ended: None });
        }
    }

    /// All messages, in the order of their numbers.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// True when every message that ends has arrived.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.open == 0
    }

    /// The length of message `number`; `None` if there is none.
    pub(super) fn bytes(&self, number: u64) -> Option<u64> {
        self.messages.get(usize::try_from(number).ok()?).map(|message| message.bytes)
    }

    pub(super) fn received(&mut self, now: Instant, number: u64, bytes: u64) {
        let message = &mut self.messages[number as usize];
        message.received += bytes;
        if message.received == message.bytes {
            message.ended = Some(now);
            self.open -= 1;
        }
    }
}
