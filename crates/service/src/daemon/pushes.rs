//! Messages without a request, and answers: what the service sends by control lines.
//!
//! A line that has few messages to read gets a message without a request at once. For any other the service remembers what it has to say, once
//! each, and says it when the process has read: a process that computes for a while is not detached, and one that never reads costs no more than
//! what it has. So few descriptors are in flight to each line; the kernel counts those of all lines together against the service's limit.

use crate::daemon::Service;
use crate::daemon::control_lines::Attention;
use crate::daemon::helpers::Asker;
use crate::registry::Answer;
use crate::sys;
use control::{LineError, Push, Reply, ToApplication};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Size of a line's buffer for sending, as `SO_SNDBUF` is set. The kernel doubles it, and says that there is room while messages take no more than
/// a quarter of that: five short ones.
pub const SEND_BUFFER: usize = 7000;
/// More regions than a process can have connections in: it has not read its line for as many.
const REVOKED_MOST: usize = 1 << 16;

/// What a process has still to be told.
#[derive(Debug, Default)]
pub struct Owed {
    /// Regions and accept queues that are over.
    revoked: BTreeSet<u32>,
    /// Memory that is needed, by application region.
    grow: BTreeMap<u32, u64>,
    /// Eventfds that wake its contexts, by region or accept queue. They are asked for when they are sent.
    wakers: BTreeSet<(u32, u32)>,
}

impl Owed {
    pub fn is_empty(&self) -> bool {
        self.revoked.is_empty() && self.grow.is_empty() && self.wakers.is_empty()
    }

    /// Adds a message. False: it owes more than the process can need.
    fn add(&mut self, push: &Push) -> bool {
        match *push {
            Push::Waker { region, context } => drop(self.wakers.insert((region, context))),
            Push::Grow { region, bytes } => {
                let most = self.grow.entry(region).or_default();
                *most = bytes.max(*most);
            }
            Push::Revoked { region } => {
                self.revoked.insert(region);
                self.grow.remove(&region);
                while let Some(waker) = self.wakers.range((region, 0)..=(region, u32::MAX)).next().copied() {
                    self.wakers.remove(&waker);
                }
            }
        }
        self.revoked.len() <= REVOKED_MOST
    }

    /// Takes the message that is said next.
    fn take(&mut self) -> Option<Push> {
        let revoked = self.revoked.pop_first().map(|region| Push::Revoked { region });
        let grow = || self.grow.pop_first().map(|(region, bytes)| Push::Grow { region, bytes });
        revoked
            .or_else(grow)
            .or_else(|| self.wakers.pop_first().map(|(region, context)| Push::Waker { region, context }))
    }
}

/// True when the kernel has no memory, or too many descriptors are in flight. The program has done nothing wrong.
const fn is_shortage(e: &LineError) -> bool {
    matches!(e, LineError::Os(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::MFILE))
}

impl Service {
    /// Tells a process something unasked, now or when it has read.
    pub(crate) fn push(&mut self, id: u32, push: Push, fd: Option<Arc<OwnedFd>>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !(peer.owed.is_empty() && sys::has_room(peer.line.as_fd())) {
            return self.owe(id, &push);
        }
        let fd = match (&push, fd) {
            (Push::Waker { region, context }, None) => match self.registry.waker_of(id, *region, *context) {
                Some(waker) => waker,
                None => return,
            },
            (_, fd) => fd,
        };
        self.say(id, push, fd);
    }

    fn owe(&mut self, id: u32, push: &Push) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !peer.owed.add(push) {
            return self.detach(id, "it does not read its control socket");
        }
        if peer.attention == Attention::Messages {
            self.attend(id, Attention::Messages);
        }
    }

    /// Says what is owed to a line, as far as it has room.
    pub(crate) fn say_owed(&mut self, id: u32) {
        while let Some(peer) = self.peers.get_mut(&id).filter(|peer| sys::has_room(peer.line.as_fd())) {
            let Some(push) = peer.owed.take() else { break };
            let fd = match push {
                Push::Waker { region, context } => match self.registry.waker_of(id, region, context) {
                    Some(waker) => waker,
                    None => continue,
                },
                _ => None,
            };
            if !self.say(id, push, fd) {
                break;
            }
        }
    }

    /// Sends a message to a line with room. The program asks again for a descriptor that does not come along. False: it is owed.
    fn say(&mut self, id: u32, push: Push, fd: Option<Arc<OwnedFd>>) -> bool {
        let Some(peer) = self.peers.get_mut(&id) else { return false };
        let (line, context) = (peer.line.clone(), context_of(&push));
        let message = ToApplication::Push(push.clone());
        let mut sent = line.send(&message, fd.as_ref().map(|fd| fd.as_fd()).as_slice(), false);
        if fd.is_some() && sent.as_ref().is_err_and(is_shortage) {
            sent = line.send(&message, &[], false);
        }
        peer.may_have_unread |= fd.is_some();
        match sent {
            // The hang-up of a closed line is handled elsewhere.
            Ok(()) | Err(LineError::Closed) => self.registry.tell_pushed(id, context),
            Err(e) if is_shortage(&e) || matches!(e, LineError::WouldBlock) => {
                self.owe(id, &push);
                return false;
            }
            Err(e) => self.detach(id, &e.to_string()),
        }
        true
    }

    /// Sends the answer to a request. An offender is detached.
    pub(crate) fn answer(&mut self, Asker { id, number }: Asker, answer: Answer) {
        match answer {
            Answer::Offence(reason) => self.detach(id, &reason),
            Answer::Reply(reply, fds) if number != 0 => self.reply(Asker { id, number }, reply, &fds),
            Answer::Reply(..) | Answer::Silent => {}
            // A helper keeps each socket that may be watched: see `release`.
            Answer::Watch(..) => self.detach(id, "it showed a socket that no helper keeps"),
        }
    }

    fn reply(&mut self, Asker { id, number }: Asker, reply: Reply, fds: &[Arc<OwnedFd>]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let line = peer.line.clone();
        peer.unread |= !fds.is_empty();
        peer.may_have_unread |= !fds.is_empty();
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut sent = line.send(&ToApplication::Reply(number, reply.clone()), &borrowed, false);
        if !fds.is_empty() && sent.as_ref().is_err_and(is_shortage) {
            let without = without_descriptors(reply);
            sent = line.send(&ToApplication::Reply(number, without), &[], false);
        }
        if let Err(e @ (LineError::WouldBlock | LineError::Os(_) | LineError::Garbled)) = sent {
            self.detach(id, &format!("its reply cannot be sent: {e}"));
        }
    }
}

/// The answer when its descriptors cannot be sent. What the service has made for the process stays, and the program does as with descriptors
/// that it could not receive.
fn without_descriptors(reply: Reply) -> Reply {
    match (reply, Answer::out_of_descriptors()) {
        (reply @ (Reply::Connecting { .. } | Reply::Listening { .. }), _) => reply,
        (_, Answer::Reply(refused, _)) => refused,
        (reply, _) => reply,
    }
}

/// The context that is to read a message; `None`: all contexts of the process.
const fn context_of(push: &Push) -> Option<u32> {
    match push {
        Push::Waker { context, .. } => Some(*context),
        Push::Revoked { .. } | Push::Grow { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_said_once_and_what_is_over_needs_no_waker() {
        let mut owed = Owed::default();
        for _ in 0..10_000 {
            for region in 1..4 {
                owed.add(&Push::Grow { region, bytes: u64::from(region) });
                assert!((0..3).all(|context| owed.add(&Push::Waker { region, context })));
            }
            assert!(owed.add(&Push::Grow { region: 1, bytes: 7 }) && owed.add(&Push::Revoked { region: 2 }));
        }
        let said: Vec<Push> = std::iter::from_fn(|| owed.take()).collect();
        let waker = |region| (0..3).map(move |context| Push::Waker { region, context });
        let begin = [
            Push::Revoked { region: 2 },
            Push::Grow { region: 1, bytes: 7 },
            Push::Grow { region: 3, bytes: 3 },
        ];
        assert_eq!(said, begin.into_iter().chain(waker(1)).chain(waker(3)).collect::<Vec<_>>());
        assert!(owed.is_empty());
    }

    #[test]
    fn who_reads_nothing_for_ever_is_owed_no_more_than_it_can_have() {
        let mut owed = Owed::default();
        let said = (0..u32::MAX).take_while(|region| owed.add(&Push::Revoked { region: *region })).count();
        assert_eq!(said, REVOKED_MOST);
    }
}
