//! A helper's thread: what it does for each task.

use crate::cores::wakers::write_eventfd;
use crate::daemon::helpers::{Done, Message, Name, Task, Word};
use crate::registry::local::shown::look;
use crate::registry::policy::Source;
use crate::registry::process::fd_liveness::watch;
use crate::registry::report::job::{Job as Report, Refused};
use crate::registry::report::{UNWRITTEN, fill};
use control::{Line, LineError, Received, Reply, Request, ToApplication, ToService};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use shm::Region;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// The descriptor of a task, and a further one.
fn receive_descriptors(socket: &OwnedFd) -> rustix::io::Result<Option<(OwnedFd, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let rights = ancillary.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut fds = rights.flatten();
    Ok(fds.next().map(|fd| (fd, fds.next())))
}

/// The state of a helper thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) name: Name,
    pub(super) outbox: Sender<(Name, Word)>,
    pub(super) orders: Receiver<(Task, Option<Report>)>,
    pub(super) told: Arc<OwnedFd>,
    pub(super) policy: Source,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.say(Word::Ended);
    }
}

impl Thread {
    /// Tells the control thread. When the service has ended there is no control thread to tell.
    pub(super) fn say(&self, word: Word) {
        let _ = self.outbox.send((self.name, word));
        write_eventfd(self.told.as_fd());
    }

    /// Does tasks until the service has closed its end.
    pub(super) fn run(&self, socket: &OwnedFd) {
        let mut kept = None;
        loop {
            let (fd, other) = match receive_descriptors(socket) {
                Err(Errno::INTR) => continue,
                Ok(Some(fds)) => fds,
                Ok(None) | Err(_) => return,
            };
            let Ok((task, report)) = self.orders.recv() else { return };
            let done = match task {
                Task::Receive(peer) => Some(Done::Received(peer, receive(&Line::new(fd), &mut kept))),
                Task::Watch(peer, of) => {
                    let is_watched =
                        kept.take().is_some_and(|shown| watch(fd.as_fd(), &shown, of.cookie).is_ok());
                    Some(Done::Released(peer, Some((of, is_watched))))
                }
                Task::Release(peer) => {
                    drop(kept.take());
                    Some(Done::Released(peer, None))
                }
                // Closing the last descriptor of a line also closes the descriptors in its queue, and that may block.
                Task::Close => {
                    drop(fd);
                    None
                }
                Task::ReadPolicy(asker) => Some(Done::Policy(asker, self.policy.read(false))),
                Task::Report(asker) => {
                    let given = report.zip(other);
                    let sent = given.map_or(Err(LineError::Os(Errno::INVAL)), |(report, memfd)| {
                        send_report(&Line::new(fd), asker.number, report, &memfd)
                    });
                    Some(Done::Reported(asker, sent))
                }
                // Its reader can hold the file's lock.
                Task::Empty(user, bytes) => {
                    let _ = rustix::fs::ftruncate(&fd, 0);
                    Some(Done::Emptied(user, bytes))
                }
                Task::Seal(region) => Region::seal(fd.as_fd()).is_ok().then_some(Done::Sealed(region)),
            };
            self.say(Word::Done(done));
        }
    }
}

/// Receives a message and looks into its descriptor. The descriptor of a socket that the service may watch goes to `kept`; all others are
/// closed when this returns, and that one before the process has its answer: it may then close its socket and bind another to the same
/// port.
fn receive(line: &Line, kept: &mut Option<OwnedFd>) -> Result<Message, LineError> {
    let Received { message, mut fds, is_short } = line.receive_by(false, ToService::decode)?;
    let shown = match fds.as_slice() {
        [fd] => look(fd),
        _ => None,
    };
    let may_be_watched = matches!(message.request, Request::Listen { .. } | Request::Leave(_));
    *kept = fds.pop().filter(|_| shown.is_some() && may_be_watched);
    Ok(Message { said: message, shown, is_short, is_kept: kept.is_some(), had_any: true })
}

/// Writes a report, and answers with it. Returns its length.
fn send_report(line: &Line, number: u32, report: Report, memfd: &OwnedFd) -> Result<u64, LineError> {
    let written = report.write().and_then(|text| {
        fill(memfd.as_fd(), &text)?;
        Ok(text.len() as u64)
    });
    let (reply, fds) = match &written {
        Ok(_) => (Reply::Text, Some(memfd.as_fd())),
        Err(Refused(errno, why)) => {
            (Reply::Refused { errno: errno.raw_os_error(), reason: (*why).to_owned() }, None)
        }
    };
    let mut sent = line.send(&ToApplication::Reply(number, reply), fds.as_slice(), false);
    if matches!(sent, Err(LineError::Os(_))) {
        // The kernel has no memory, or too many descriptors are in flight.
        let reply = Reply::Refused { errno: Errno::MFILE.raw_os_error(), reason: UNWRITTEN.to_owned() };
        sent = line.send(&ToApplication::Reply(number, reply), &[], false);
    }
    sent.map(|()| written.unwrap_or(0))
}
