//! Helper threads: they make the calls that another process can block. A process that passes a descriptor decides how long closing it takes
//! (a TCP socket with `SO_LINGER` and unsent data, a file of its own file system), and can hold the lock that `getsockname` on a socket, or
//! sealing a memfd, needs. So the control thread neither receives, closes nor examines such descriptors: it hands the control line to a
//! helper thread, and does not read that line until the helper has answered. A helper also reads the policy file, which may lie in a slow
//! file system.
//!
//! ```text
//!   control thread --line, by SCM_RIGHTS--> helper: receive, look, close the descriptors --facts--> control thread
//!                  '--if it keeps what a listener or a left connection stands for: watch, close--> helper
//! ```
//! Each helper has its own descriptor table: one that is stuck in a close keeps neither the port nor the control socket open when the
//! service ends. At most one helper works for a user at a time, so a user that blocks it delays only his own programs. A helper whose
//! thread has ended, or that cannot be sent a descriptor, is removed; its job fails, and the next job starts another helper.

#[cfg(test)]
mod tests;
mod thread;

use crate::cores::wakers::{new_eventfd, write_eventfd};
use crate::daemon::helpers::thread::Thread;
use crate::registry::Watch;
use crate::registry::local::shown::Shown;
use crate::registry::policy::{Rule, Source};
use crate::registry::process::descriptors::Charge;
use crate::registry::registration::User;
use crate::registry::report::job::Job as Report;
use crate::{sys, threads};
use control::{Line, LineError, ToService};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Most helpers at work for users that do not administer the service.
const HELPERS_MAX: usize = 16;
/// The user of the service's own jobs, which no process has as its user. Its helper is not counted either.
pub const SERVICE: User = User { uid: u32::MAX, is_administrator: true };
/// Why a policy is not read.
const UNREAD: &str = "a helper thread has ended, or reading the files takes too long";
/// A helper that works longer than this is stuck: the control lines of its user that wait for it are closed.
const STUCK: Duration = Duration::from_secs(2);
/// Most helpers, and most with those that start late. Beside `HELPERS_MAX` there are two of root's, two of the service's own user's, and one for the
/// service's own jobs.
const ALL_MAX: (usize, usize) = (HELPERS_MAX + 5, 4 * (HELPERS_MAX + 5));
/// Pause after a helper could not be started or be given a job. A helper that takes longer to start is late, and another one starts: it
/// closes its copies of the service's descriptors, and one of them may have become the last of a descriptor whose close waits.
const PAUSE: Duration = Duration::from_millis(100);

/// Name of a helper. A removed helper's name is not used again.
type Name = u64;

/// A message, and what is known of its descriptors.
#[derive(Debug)]
pub struct Message {
    /// The decoded message with its number.
    pub said: ToService,
    /// The kernel's facts about the one descriptor that came along. `None`: there were several, or it is not a TCP socket.
    pub shown: Option<Shown>,
    /// The kernel dropped descriptors, because the helper's table was full.
    pub is_short: bool,
    /// The helper keeps the descriptor until it is told by [`Helpers::release`] what becomes of it: the service may keep what it stands
    /// for, and then watches it. Else the helper has closed all descriptors.
    pub is_kept: bool,
    /// It came with descriptors.
    pub had_any: bool,
}

/// The control line and the request that wait for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// Id of the control line.
    pub id: u32,
    /// Number of the request.
    pub number: u32,
}

/// A job for a helper.
#[derive(Debug)]
pub enum Job {
    /// Receive the next message of that process's control line; it has descriptors.
    Receive(u32, Arc<Line>),
    /// Close a control line that still holds unread descriptors, and its user's charge for it.
    Close(OwnedFd, Option<Charge>),
    /// Seal the memfd of that pair region.
    Seal(u32, Arc<OwnedFd>),
    /// Read the policy file.
    ReadPolicy(Option<Asker>),
    /// Write a complete report into that memfd, and send it by that line.
    Report(Asker, Arc<Line>, Option<Report>, Arc<OwnedFd>),
    /// Empty the memfd of a report of so many bytes, which its reader may keep.
    Empty(Arc<OwnedFd>, User, u64),
}

/// The result of a job.
#[derive(Debug)]
pub enum Done {
    /// The next message of that process's control line.
    Received(u32, Result<Message, LineError>),
    /// The helper has closed the descriptor that it has kept for that process. With a socket to watch: whether that is watched now.
    Released(u32, Option<(Watch, bool)>),
    /// That pair region is sealed.
    Sealed(u32),
    /// The report of so many bytes was sent, or was not.
    Reported(Asker, Result<u64, LineError>),
    /// So many bytes of that user's reports are gone.
    Emptied(User, u64),
    /// The rules in the policy file, or why they cannot be read.
    Policy(Option<Asker>, Result<Vec<Rule>, String>),
    /// The message of that process could not be received, or the descriptor that it has shown not be watched and closed, because the job
    /// took too long or the helper failed: the control line of the process is to be closed.
    Stuck(u32, Option<Watch>),
}

/// Task of a helper, for the descriptor that it is sent.
#[derive(Clone, Copy, Debug)]
enum Task {
    Receive(u32),
    /// Add the descriptor that was kept for that process to the set that comes along, and close both.
    Watch(u32, Watch),
    /// Close the descriptor that was kept for that process. Needs no descriptor.
    Release(u32),
    Close,
    Seal(u32),
    /// Needs no descriptor.
    ReadPolicy(Option<Asker>),
    Report(Asker),
    Empty(User, u64),
}

impl Task {
    /// The result of a task that is not done. A region that is not sealed works all the same.
    fn failed(self) -> Option<Done> {
        match self {
            Self::Receive(peer) | Self::Release(peer) => Some(Done::Stuck(peer, None)),
            Self::Watch(peer, watch) => Some(Done::Stuck(peer, Some(watch))),
            Self::ReadPolicy(asker) => Some(Done::Policy(asker, Err(UNREAD.to_owned()))),
            Self::Report(asker) => Some(Done::Reported(asker, Err(LineError::Os(Errno::AGAIN)))),
            Self::Empty(user, bytes) => Some(Done::Emptied(user, bytes)),
            Self::Close | Self::Seal(_) => None,
        }
    }

    /// True for a task that no process can make wait, or by which it makes none but its user's reports wait.
    fn never_sticks(self) -> bool {
        matches!(self, Self::Report(_) | Self::Empty(..))
    }
}

impl Job {
    fn task(&self) -> Task {
        match self {
            Self::Receive(peer, _) => Task::Receive(*peer),
            Self::Close(..) => Task::Close,
            Self::Seal(region, _) => Task::Seal(*region),
            Self::ReadPolicy(asker) => Task::ReadPolicy(*asker),
            Self::Report(asker, ..) => Task::Report(*asker),
            Self::Empty(_, user, bytes) => Task::Empty(*user, *bytes),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Receive(_, line) | Self::Report(_, line, ..) => Some(line.as_fd()),
            Self::Close(fd, _) => Some(fd.as_fd()),
            Self::Seal(_, fd) | Self::Empty(fd, ..) => Some(fd.as_fd()),
            Self::ReadPolicy(_) => None,
        }
    }

    /// The descriptor that the job needs beside the line.
    fn other(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Report(.., memfd) => Some(memfd.as_fd()),
            _ => None,
        }
    }

    fn take_charge(&mut self) -> Option<Charge> {
        match self {
            Self::Close(_, charge) => charge.take(),
            _ => None,
        }
    }

    /// The report to write.
    fn take_report(&mut self) -> Option<Report> {
        match self {
            Self::Report(_, _, report, _) => report.take(),
            _ => None,
        }
    }
}

/// The jobs that one helper does, one after the other. A user's reports have a helper of their own: what the user shows, and blocks by that,
/// delays none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Owner {
    user: User,
    is_report: bool,
}

impl Owner {
    fn of(user: User, job: &Job) -> Self {
        Self { user, is_report: matches!(job, Job::Report(..) | Job::Empty(..)) }
    }
}

/// A job that a helper works on.
#[derive(Clone, Copy, Debug)]
struct Running {
    owner: Owner,
    task: Task,
    since: Instant,
    is_stuck: bool,
    /// It has a descriptor, and is about to be told what becomes of it.
    keeps: bool,
}

/// Message from a helper thread.
#[derive(Debug)]
enum Word {
    /// It has its own descriptor table.
    Separate,
    /// It has done its last task; the result, if there is one to report.
    Done(Option<Done>),
    /// Its thread ends. If its last task is not done, it will not be.
    Ended,
}

#[derive(Debug)]
struct Helper {
    /// Socket by which the helper is sent descriptors.
    socket: OwnedFd,
    /// The helper's end of that socket, while the helper starts: until it has its own descriptor table this number must stay open.
    its: Option<OwnedFd>,
    /// When its thread was started.
    since: Instant,
    tasks: Sender<(Task, Option<Report>)>,
    running: Option<Running>,
    /// What its job's user is charged with until it is done.
    charge: Option<Charge>,
}

/// All helpers, and the jobs that wait for them.
#[derive(Debug)]
pub struct Helpers {
    helpers: BTreeMap<Name, Helper>,
    /// Name of the next helper.
    next: Name,
    waiting: HashMap<Owner, VecDeque<Job>>,
    /// The owners that `waiting` has an entry of; the next to be served is first.
    turns: VecDeque<Owner>,
    /// Results of jobs that a helper failed to do. `finished` returns them next.
    failed: Vec<Done>,
    /// No helper is started before this time, because one could not be.
    rest: Option<Instant>,
    /// When the helper that was started last is late.
    late: Option<Instant>,
    outbox: Sender<(Name, Word)>,
    inbox: Receiver<(Name, Word)>,
    /// Eventfd, readable when a helper has finished a job. No other process has it.
    pub told: Arc<OwnedFd>,
    /// Where the policy file is.
    policy: Source,
}

impl Helpers {
    /// Starts no helper: each starts when it is needed.
    pub fn new(policy: Source) -> rustix::io::Result<Self> {
        let (outbox, inbox) = channel();
        Ok(Self {
            helpers: BTreeMap::new(),
            next: 0,
            waiting: HashMap::new(),
            turns: VecDeque::new(),
            failed: Vec::new(),
            rest: None,
            late: None,
            outbox,
            inbox,
            told: Arc::new(sys::high(new_eventfd()?.as_fd())?),
            policy,
        })
    }

    /// Queues `job` for a user. `Err`: that user's helper is stuck.
    pub fn ask(&mut self, user: User, job: Job, now: Instant) -> Result<(), Errno> {
        let owner = Owner::of(user, &job);
        let is_stuck = self.running().any(|running| running.owner == owner && running.is_stuck);
        if is_stuck && !matches!(job, Job::Close(..)) {
            return Err(Errno::AGAIN);
        }
        self.queue(owner, job);
        self.start(now);
        Ok(())
    }

    fn queue(&mut self, owner: Owner, job: Job) {
        let jobs = self.waiting.entry(owner).or_insert_with(|| {
            self.turns.push_back(owner);
            VecDeque::new()
        });
        jobs.push_back(job);
    }

    /// Takes the results of finished and of failed jobs, and gives up jobs that take too long.
    pub fn finished(&mut self, now: Instant) -> Vec<Done> {
        let mut all = Vec::new();
        while let Ok((name, word)) = self.inbox.try_recv() {
            let Some(helper) = self.helpers.get_mut(&name) else { continue };
            match word {
                Word::Separate => helper.its = None,
                // The result of a job that was given up is dropped, and the descriptor that it has kept is closed with the helper.
                Word::Done(done) if is_kept(&done) && helper.running.is_some_and(|r| r.is_stuck) => {
                    self.helpers.remove(&name);
                }
                Word::Done(done) => {
                    helper.charge = None;
                    let running = helper.running.take_if(|_| !is_kept(&done));
                    helper.running.iter_mut().for_each(|running| running.keeps = true);
                    all.extend(done.filter(|_| running.is_none_or(|running| !running.is_stuck)));
                }
                Word::Ended => self.ended(name, now),
            }
        }
        self.give_up(now, &mut all);
        self.start(now);
        all.append(&mut self.failed);
        all
    }

    /// Says what becomes of the descriptor that a helper keeps for process `peer`: it is watched in that set, or not, and closed. The result
    /// follows, if a helper keeps one.
    pub fn release(&mut self, peer: u32, wanted: Option<(Watch, &OwnedFd)>, now: Instant) {
        let keeps = |helper: &&mut Helper| {
            helper.running.is_some_and(|r| r.keeps && matches!(r.task, Task::Receive(id) if id == peer))
        };
        let Some((name, helper)) =
            self.helpers.iter_mut().find_map(|(name, helper)| keeps(&helper).then_some((*name, helper)))
        else {
            if let Some((watch, _)) = wanted {
                self.failed.push(Done::Released(peer, Some((watch, false))));
                write_eventfd(self.told.as_fd());
            }
            return;
        };
        let Some(Running { owner, .. }) = helper.running else { return };
        let task = wanted.map_or(Task::Release(peer), |(watch, _)| Task::Watch(peer, watch));
        helper.running = Some(Running { owner, task, since: now, is_stuck: false, keeps: false });
        let fd = wanted.map_or(self.told.as_fd(), |(_, set)| set.as_fd());
        let sent = send_descriptor(&helper.socket, fd, None);
        if sent.and_then(|()| helper.tasks.send((task, None)).map_err(|_| Errno::PIPE)).is_err() {
            // Its descriptors are closed with its thread.
            self.ended(name, now);
        }
    }

    /// When [`finished`](Self::finished) is to be called at the latest.
    pub fn due(&self) -> Option<Instant> {
        let is_timed = |r: &&Running| !(r.is_stuck || r.keeps || r.task.never_sticks());
        let running = self.running().filter(is_timed);
        running.map(|running| running.since + STUCK).chain(self.rest).chain(self.late).min()
    }

    /// A helper's thread has ended: removes the helper.
    fn ended(&mut self, name: Name, now: Instant) {
        let Some(Helper { its, running, .. }) = self.helpers.remove(&name) else { return };
        if its.is_some() {
            self.rest = Some(now + PAUSE);
        }
        if let Some(running) = running {
            self.fail(running);
        }
    }

    /// A job will not be done. One that was given up has its result.
    fn fail(&mut self, running: Running) {
        self.failed.extend(running.task.failed().filter(|_| !running.is_stuck));
        write_eventfd(self.told.as_fd());
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.helpers.values().filter_map(|helper| helper.running.as_ref())
    }

    fn give_up(&mut self, now: Instant, all: &mut Vec<Done>) {
        for running in self.helpers.values_mut().filter_map(|helper| helper.running.as_mut()) {
            let is_timed = !(running.is_stuck || running.keeps || running.task.never_sticks());
            if !is_timed || now < running.since + STUCK {
                continue;
            }
            running.is_stuck = true;
            all.extend(running.task.failed());
            let Some(jobs) = self.waiting.get_mut(&running.owner) else { continue };
            jobs.retain(|job| {
                all.extend(job.task().failed());
                matches!(job, Job::Close(..))
            });
        }
    }

    /// Gives waiting jobs to idle helpers, each user in turn, and starts helpers for the others.
    fn start(&mut self, now: Instant) {
        let mut wanted = 0;
        for _ in 0..self.turns.len() {
            let Some(owner) = self.turns.pop_front() else { break };
            let is_busy = self.running().any(|running| running.owner == owner);
            let has_job = self.waiting.get(&owner).is_some_and(|jobs| !jobs.is_empty());
            if !has_job {
                self.waiting.remove(&owner);
                continue;
            }
            self.turns.push_back(owner);
            if is_busy || !self.may_work(owner.user) {
                continue;
            }
            let Some(name) = self.idle() else {
                wanted += 1;
                continue;
            };
            if let Some(job) = self.waiting.get_mut(&owner).and_then(VecDeque::pop_front) {
                self.give(name, owner, job, now);
            }
        }
        self.start_helpers(wanted, now);
    }

    /// Starts helpers until `wanted` of them are starting, as far as the limits allow. A helper gets its first job when it has started.
    fn start_helpers(&mut self, wanted: usize, now: Instant) {
        self.rest = self.rest.filter(|at| now < *at);
        self.late = self.late.filter(|at| now < *at);
        let starting = self.starting().filter(|since| now < *since + PAUSE).count();
        let late = self.starting().count() - starting;
        let room = (ALL_MAX.0 + late).min(ALL_MAX.1).saturating_sub(self.helpers.len());
        for _ in 0..wanted.saturating_sub(starting).min(room) {
            if self.rest.is_some() {
                return;
            }
            if let Err(e) = self.start_one(now) {
                tracing::error!(
                    "a helper thread cannot be started, and what is shown to the service waits: {e}"
                );
                self.rest = Some(now + PAUSE);
            }
        }
    }

    /// When the helpers were started that have no descriptor table of their own yet.
    fn starting(&self) -> impl Iterator<Item = Instant> {
        self.helpers.values().filter(|helper| helper.its.is_some()).map(|helper| helper.since)
    }

    /// True when the limit allows a helper for that user now.
    fn may_work(&self, user: User) -> bool {
        let is_counted = |running: &&Running| !running.owner.user.is_administrator;
        user.is_administrator || self.running().filter(is_counted).count() < HELPERS_MAX
    }

    /// Name of an idle helper.
    fn idle(&self) -> Option<Name> {
        let is_idle = |helper: &Helper| helper.its.is_none() && helper.running.is_none();
        self.helpers.iter().find(|(_, helper)| is_idle(helper)).map(|(name, _)| *name)
    }

    fn start_one(&mut self, now: Instant) -> rustix::io::Result<()> {
        let (socket, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let its = sys::high(its.as_fd())?;
        let (tasks, orders) = channel();
        let (outbox, told, policy) = (self.outbox.clone(), self.told.clone(), self.policy.clone());
        let number = its.as_raw_fd();
        let thread = Thread { name: self.next, outbox, orders, told, policy };
        let run = move || match sys::separate_descriptors(number, &[thread.told.as_raw_fd()]) {
            Ok(socket) => {
                // The starter may close its end now: this thread's copy stays open.
                thread.say(Word::Separate);
                thread.run(&socket);
            }
            Err(e) => {
                tracing::error!("a helper thread cannot separate its descriptors from the service's: {e}");
            }
        };
        let started = threads::start("towpath-helper", "a helper thread", run);
        started.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
        let helper = Helper { socket, its: Some(its), since: now, tasks, running: None, charge: None };
        self.helpers.insert(self.next, helper);
        // So that this is called again when the helper is late.
        self.late = Some(now + PAUSE);
        self.next += 1;
        Ok(())
    }

    fn give(&mut self, name: Name, owner: Owner, mut job: Job, now: Instant) {
        let Some(helper) = self.helpers.get_mut(&name) else { return };
        let running = Running { owner, task: job.task(), since: now, is_stuck: false, keeps: false };
        // Neither call waits: the helper has taken everything that was sent before.
        let sent =
            send_descriptor(&helper.socket, job.descriptor().unwrap_or(self.told.as_fd()), job.other());
        if let Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) = sent {
            // Too many descriptors are in flight, of this user or of others: the job waits.
            self.waiting.entry(owner).or_default().push_front(job);
            self.rest = Some(now + PAUSE);
            return;
        }
        let report = job.take_report();
        let sent = sent.and_then(|()| helper.tasks.send((running.task, report)).map_err(|_| Errno::PIPE));
        let Err(error) = sent else {
            helper.running = Some(running);
            helper.charge = job.take_charge();
            return;
        };
        tracing::error!("a helper thread cannot be given a job: {error}");
        self.helpers.remove(&name);
        self.fail(running);
        if let Job::Close(..) = job {
            // Only a helper may close it.
            self.queue(owner, job);
            self.rest = Some(now + PAUSE);
        }
    }
}

impl Drop for Helpers {
    /// Leaves lines that wait to be closed open: the kernel closes them at the process's end, and that does not wait. Leaves the sockets of
    /// helpers that are starting open, too: such a helper would use another descriptor of that number.
    fn drop(&mut self) {
        self.helpers.values_mut().filter_map(|helper| helper.its.take()).for_each(std::mem::forget);
        for job in self.waiting.drain().flat_map(|(_, jobs)| jobs) {
            if let Job::Close(fd, _) = job {
                std::mem::forget(fd);
            }
        }
    }
}

fn send_descriptor(
    socket: &OwnedFd,
    fd: BorrowedFd<'_>,
    other: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd, other.unwrap_or(fd)];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds[..1 + usize::from(other.is_some())]));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, flags).map(drop)
}

/// True for a message with a descriptor that its helper keeps.
fn is_kept(done: &Option<Done>) -> bool {
    matches!(done, Some(Done::Received(_, Ok(Message { is_kept: true, .. }))))
}
