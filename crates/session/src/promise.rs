//! The promise of a child: before a fork the parent tells the service, on a line of its own, which holder bit the child has. Parent and child
//! both have the line after the fork. The parent closes it at once, the child when it has sent its hello. So the kernel tells the service when
//! no process can say that hello any more.

use crate::Client;
use crate::reserved;
use crate::rpc::say_expect;
use control::LineError;
use rustix::fd::{IntoRawFd, RawFd};
use rustix::io::Errno;
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::Ordering;

/// A holder bit for a child, and the line on which the service was told of it. Copied by the fork: parent and child each end it once.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// The bit's number in `SockBlock::holders`.
    pub holder: u8,
    line: RawFd,
    /// The line has the number that the parent keeps for what the service sends.
    has_spare: bool,
}

/// Why no child can be promised.
#[derive(Debug)]
pub enum Unpromised {
    /// All holder bits of the family are taken.
    NoBit,
    /// The child will be in another PID namespace.
    Elsewhere,
    /// The service could not be told at once.
    NoLine(LineError),
}

impl Display for Unpromised {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBit => f.write_str("no holder bit is left"),
            Self::Elsewhere => f.write_str("it is in another PID namespace"),
            Self::NoLine(why) => write!(f, "the service cannot be told of it: {why}"),
        }
    }
}

impl Promise {
    /// Takes a holder bit and tells the service. Waits for nothing: a service that is stopped delays no fork.
    ///
    /// # Errors
    /// See [`Unpromised`]; no bit is taken then.
    pub fn make(client: &Client) -> Result<Self, Unpromised> {
        let holder = take_holder(client).ok_or(Unpromised::NoBit)?;
        let said = say(client, holder);
        said.inspect_err(|_| {
            // It is in no socket block yet.
            client.oldest.region.header().holders_taken.fetch_and(!(1 << holder), Ordering::AcqRel);
        })
        .map_err(Unpromised::NoLine)
    }

    /// In the parent after the fork, also if it has failed; in the child when it has sent its hello, or cannot.
    pub fn end(self) {
        reserved::close(self.line);
    }

    /// In the parent after the fork, as [`Self::end`]: keeps again the number that the line has had.
    pub fn end_in_parent(self, client: Option<&Client>) {
        self.end();
        // Not waited for: a thread that holds this lock keeps the number itself when it needs it.
        if self.has_spare
            && let Some(mut exchange) = client.and_then(|client| client.exchange.try_lock().ok())
        {
            exchange.hold_room();
        }
    }
}

fn say(client: &Client, holder: u8) -> Result<Promise, LineError> {
    let parent = client.as_parent(holder);
    let mut has_spare = false;
    let fd = say_expect(parent).or_else(|e| match e {
        // No descriptor is free but the one that is kept for such a time. Not waited for, as other locks are held.
        LineError::Os(Errno::MFILE) => {
            let Ok(mut exchange) = client.exchange.try_lock() else { return Err(e) };
            exchange.give_room();
            has_spare = true;
            say_expect(parent).inspect_err(|_| exchange.hold_room())
        }
        e => Err(e),
    })?;
    Ok(Promise { holder, line: reserved::claim(fd).into_raw_fd(), has_spare })
}

fn take_holder(client: &Client) -> Option<u8> {
    let taken = &client.oldest.region.header().holders_taken;
    let mut seen = taken.load(Ordering::Relaxed);
    while seen != u64::MAX {
        let bit = (!seen).trailing_zeros();
        match taken.compare_exchange(seen, seen | 1 << bit, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(bit as u8),
            Err(now) => seen = now,
        }
    }
    None
}
