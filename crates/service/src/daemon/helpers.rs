//! Helper threads: they make the calls that another process can block. A process that passes a descriptor decides how long closing it takes
//! (a TCP socket with `SO_LINGER` and unsent data, a file of its own file system), and can hold the lock that `getsockname` on a socket, or
//! sealing a memfd, needs. So the control thread neither receives, closes nor examines such descriptors: it hands the control line to a
//! helper thread, and does not read that line until the helper has answered.
//!
//! ```text
//!   control thread --line, by SCM_RIGHTS--> helper: receive, look, close the descriptors --facts--> control thread
//! ```
//! Each helper has its own descriptor table: one that is stuck in a close keeps neither the port nor the control socket open when the
//! service ends. At most one helper works for a user at a time, so a user that blocks it delays only his own programs.

use crate::local::shown::{Shown, look};
use crate::process::fd_liveness::Alive;
use crate::registry::registration::new_eventfd;
use crate::registry::write_eventfd;
use crate::sys;
use control::{Line, LineError, Received, Request, ToService};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use shm::Region;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Most helpers at work for users other than root; root's helper is not counted.
const HELPERS_MAX: usize = 16;
/// A helper that works longer than this is stuck: the control lines of its user that wait for it are closed.
const STUCK: Duration = Duration::from_secs(2);

/// Epoll sets that watch sockets of other processes.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Listening sockets, in one set: it is readable when one of them no longer listens.
    pub listeners: Alive,
    /// Sockets of connections that were left with the service.
    pub connections: Alive,
}

impl Watched {
    /// Makes both kinds of sets, without members.
    pub fn open() -> rustix::io::Result<Self> {
        Ok(Self { listeners: Alive::open(1)?, connections: Alive::open(16)? })
    }
}

/// A message that came with descriptors. The helper has closed them.
#[derive(Debug)]
pub struct Message {
    /// The decoded message with its number.
    pub said: ToService,
    /// The kernel's facts about the one descriptor that came along. `None`: there were several, or it is not a TCP socket.
    pub shown: Option<Shown>,
    /// The kernel dropped descriptors, because the helper's table was full.
    pub is_short: bool,
}

/// A job for a helper.
#[derive(Debug)]
pub enum Job {
    /// Receive the next message of that process's control line; it has descriptors.
    Receive(u32, Arc<Line>),
    /// Close a control line that still holds unread descriptors.
    Close(OwnedFd),
    /// Seal the memfd of that pair region.
    Seal(u32, Arc<OwnedFd>),
}

/// The result of a job.
#[derive(Debug)]
pub enum Done {
    /// The next message of that process's control line.
    Received(u32, Result<Message, LineError>),
    /// That pair region is sealed.
    Sealed(u32),
    /// A job took too long: the control line of that process is to be closed.
    Stuck(u32),
}

/// Task of a helper, for the descriptor that it is sent.
#[derive(Clone, Copy, Debug)]
enum Task {
    Receive(u32),
    Close,
    Seal(u32),
}

impl Job {
    fn task(&self) -> Task {
        match self {
            Self::Receive(peer, _) => Task::Receive(*peer),
            Self::Close(_) => Task::Close,
            Self::Seal(region, _) => Task::Seal(*region),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Receive(_, line) => line.as_fd(),
            Self::Close(fd) => fd.as_fd(),
            Self::Seal(_, fd) => fd.as_fd(),
        }
    }
}

/// A job that a helper works on.
#[derive(Clone, Copy, Debug)]
struct Running {
    uid: u32,
    task: Task,
    since: Instant,
    is_stuck: bool,
}

/// Message from a helper thread.
#[derive(Debug)]
enum Word {
    /// It has its own descriptor table, or could not get one and ends.
    Separate(rustix::io::Result<()>),
    /// It has done its last task; the result, if there is one to report.
    Done(Option<Done>),
}

#[derive(Debug)]
struct Helper {
    /// Socket by which the helper is sent descriptors.
    socket: OwnedFd,
    /// The helper's end of that socket, until the helper has its own descriptor table.
    its: Option<OwnedFd>,
    tasks: Sender<Task>,
    running: Option<Running>,
}

/// All helpers, and the jobs that wait for them.
#[derive(Debug)]
pub struct Helpers {
    helpers: Vec<Helper>,
    waiting: HashMap<u32, VecDeque<Job>>,
    /// Users with jobs in `waiting`; the next to be served is first.
    turns: VecDeque<u32>,
    outbox: Sender<(usize, Word)>,
    inbox: Receiver<(usize, Word)>,
    /// Eventfd, readable when a helper has finished a job. No other process has it.
    pub told: Arc<OwnedFd>,
    watched: Watched,
}

impl Helpers {
    /// Starts no helper: each starts when it is needed.
    pub fn new(watched: Watched) -> rustix::io::Result<Self> {
        let (outbox, inbox) = channel();
        Ok(Self {
            helpers: Vec::new(),
            waiting: HashMap::new(),
            turns: VecDeque::new(),
            outbox,
            inbox,
            told: new_eventfd()?,
            watched,
        })
    }

    /// Queues `job` for user `uid`. `Err`: that user's helper is stuck.
    pub fn ask(&mut self, uid: u32, job: Job, now: Instant) -> Result<(), Errno> {
        let is_stuck = self.running().any(|running| running.uid == uid && running.is_stuck);
        if is_stuck && !matches!(job, Job::Close(_)) {
            return Err(Errno::AGAIN);
        }
        let jobs = self.waiting.entry(uid).or_default();
        if jobs.is_empty() {
            self.turns.push_back(uid);
        }
        jobs.push_back(job);
        self.start(now);
        Ok(())
    }

    /// Takes the results of finished jobs, and gives up jobs that take too long.
    pub fn finished(&mut self, now: Instant) -> Vec<Done> {
        let mut all = Vec::new();
        while let Ok((which, word)) = self.inbox.try_recv() {
            let helper = &mut self.helpers[which];
            match (word, helper.running) {
                (Word::Separate(result), _) => {
                    helper.its = None;
                    if let Err(e) = result {
                        tracing::error!(
                            "a helper thread cannot separate its descriptors from the service's: {e}"
                        );
                    }
                }
                (Word::Done(done), running) => {
                    helper.running = None;
                    // The result of a job that was given up is dropped.
                    all.extend(done.filter(|_| running.is_some_and(|running| !running.is_stuck)));
                }
            }
        }
        self.give_up(now, &mut all);
        self.start(now);
        all
    }

    /// When [`finished`](Self::finished) is to be called at the latest.
    pub fn due(&self) -> Option<Instant> {
        self.running().filter(|running| !running.is_stuck).map(|running| running.since + STUCK).min()
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.helpers.iter().filter_map(|helper| helper.running.as_ref())
    }

    fn give_up(&mut self, now: Instant, all: &mut Vec<Done>) {
        for running in self.helpers.iter_mut().filter_map(|helper| helper.running.as_mut()) {
            if running.is_stuck || now < running.since + STUCK {
                continue;
            }
            running.is_stuck = true;
            if let Task::Receive(peer) = running.task {
                all.push(Done::Stuck(peer));
            }
            let Some(jobs) = self.waiting.get_mut(&running.uid) else { continue };
            jobs.retain(|job| {
                if let Job::Receive(peer, _) = job {
                    all.push(Done::Stuck(*peer));
                }
                matches!(job, Job::Close(_))
            });
        }
    }

    /// Gives waiting jobs to idle helpers, each user in turn.
    fn start(&mut self, now: Instant) {
        for _ in 0..self.turns.len() {
            let Some(uid) = self.turns.pop_front() else { return };
            let is_busy = self.running().any(|running| running.uid == uid);
            let has_job = self.waiting.get(&uid).is_some_and(|jobs| !jobs.is_empty());
            if !has_job {
                self.waiting.remove(&uid);
                continue;
            }
            self.turns.push_back(uid);
            if is_busy {
                continue;
            }
            let Some(which) = self.idle(uid) else { continue };
            if let Some(job) = self.waiting.get_mut(&uid).and_then(VecDeque::pop_front) {
                self.give(which, uid, &job, now);
            }
        }
    }

    /// Index of an idle helper; starts one if there is none and the limit allows it.
    fn idle(&mut self, uid: u32) -> Option<usize> {
        let root = rustix::process::Uid::ROOT.as_raw();
        let busy = self.running().filter(|running| running.uid != root).count();
        if uid != root && busy >= HELPERS_MAX {
            return None;
        }
        if let Some(which) = self.helpers.iter().position(|helper| helper.running.is_none()) {
            return Some(which);
        }
        match self.start_one() {
            Ok(helper) => self.helpers.push(helper),
            Err(e) => {
                tracing::error!(
                    "a helper thread cannot be started, and what is shown to the service waits: {e}"
                );
                return None;
            }
        }
        Some(self.helpers.len() - 1)
    }

    fn start_one(&self) -> rustix::io::Result<Helper> {
        let (socket, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (tasks, orders) = channel();
        let (which, outbox) = (self.helpers.len(), self.outbox.clone());
        let (told, watched) = (self.told.clone(), self.watched.clone());
        let number = its.as_raw_fd();
        let thread = Thread { orders, told, watched };
        let builder = std::thread::Builder::new().name("towpath-helper".to_owned());
        let run = move || {
            let separated = sys::separate_descriptors(number, &thread.descriptors());
            let (socket, word) = match separated {
                Ok(socket) => (Some(socket), Ok(())),
                Err(e) => (None, Err(e)),
            };
            // The starter may close its end now: this thread's copy stays open.
            let _ = outbox.send((which, Word::Separate(word)));
            if let Some(socket) = socket {
                thread.run(&socket, which, &outbox);
            }
        };
        builder.spawn(run).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
        Ok(Helper { socket, its: Some(its), tasks, running: None })
    }

    fn give(&mut self, which: usize, uid: u32, job: &Job, now: Instant) {
        let helper = &mut self.helpers[which];
        let task = job.task();
        helper.running = Some(Running { uid, task, since: now, is_stuck: false });
        // Neither call waits: the helper has taken everything that was sent before.
        if send_descriptor(&helper.socket, job.descriptor()).is_err() || helper.tasks.send(task).is_err() {
            tracing::error!("a helper thread has ended by a fault of its own");
        }
    }
}

impl Drop for Helpers {
    /// Leaves lines that wait to be closed open: the kernel closes them at the process's end, and that does not wait.
    fn drop(&mut self) {
        for job in self.waiting.drain().flat_map(|(_, jobs)| jobs) {
            if let Job::Close(fd) = job {
                std::mem::forget(fd);
            }
        }
    }
}

fn send_descriptor(socket: &OwnedFd, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, flags).map(drop)
}

fn receive_descriptor(socket: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let rights = ancillary.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok(rights.flatten().next())
}

/// The state of a helper thread.
struct Thread {
    orders: Receiver<Task>,
    told: Arc<OwnedFd>,
    watched: Watched,
}

impl Thread {
    /// The descriptors of the service that the helper keeps in its own table.
    fn descriptors(&self) -> Vec<RawFd> {
        let sets = [&self.watched.listeners, &self.watched.connections].into_iter().flat_map(Alive::sets);
        sets.map(|set| set.as_raw_fd()).chain([self.told.as_raw_fd()]).collect()
    }

    /// Does tasks until the service has closed its end.
    fn run(&self, socket: &OwnedFd, which: usize, outbox: &Sender<(usize, Word)>) {
        loop {
            let fd = match receive_descriptor(socket) {
                Err(Errno::INTR) => continue,
                Ok(Some(fd)) => fd,
                Ok(None) | Err(_) => return,
            };
            let Ok(task) = self.orders.recv() else { return };
            let done = match task {
                Task::Receive(peer) => Some(Done::Received(peer, self.receive(&Line::new(fd)))),
                // Closing the last descriptor of a line also closes the descriptors in its queue, and that may block.
                Task::Close => {
                    drop(fd);
                    None
                }
                Task::Seal(region) => Region::seal(fd.as_fd()).is_ok().then_some(Done::Sealed(region)),
            };
            if outbox.send((which, Word::Done(done))).is_err() {
                return;
            }
            write_eventfd(self.told.as_fd());
        }
    }

    /// Receives a message and looks into its descriptor. All descriptors are closed when this returns: an application that has its answer
    /// may close its socket and bind another to the same port.
    fn receive(&self, line: &Line) -> Result<Message, LineError> {
        let Received { message, fds, is_short } = line.receive::<ToService>(false)?;
        let set = match message.request {
            Request::Listen { .. } => Some(&self.watched.listeners),
            Request::Leave(_) => Some(&self.watched.connections),
            _ => None,
        };
        let shown = match fds.as_slice() {
            [fd] => look(fd, set),
            _ => None,
        };
        Ok(Message { said: message, shown, is_short })
    }
}
