//! The threads that move bytes. Each runs one core of the fast path over one queue of the port; the first also runs the relays. A thread
//! sleeps on one epoll: the waker for its commands, a waker per application region, and the port.

#[cfg(test)]
pub(crate) mod by_hand;
pub(crate) mod meter;
pub(crate) mod shares;
pub(crate) mod wakers;

use crate::ServiceError;
use crate::cores::meter::CoreMeter;
use crate::cores::wakers::Wakers;
use crate::cores::wakers::write_eventfd;
use crate::daemon::clock::Clock;
use crate::registry::channels::engine::{Engine, Say, Shared, Start};
use crate::registry::relay::endpoint::End;
use crate::registry::relay::{Outcome, Relays};
use crate::registry::report::port_stats::Counted;
use crate::threads;
use base::{Duration, Instant};
use elastic::load::{LoadMeter, Loads};
use fastpath::{Others, Progress};
use flow::{CommandSender, ExceptionReceiver, Flows, commands, exceptions};
use port::{Port, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// Index of the core that relays.
pub const RELAY_CORE: usize = 0;

/// Command of the control thread to a core; the slow path has commands of its own.
#[derive(Debug)]
pub enum Command {
    /// Watch this waker, which an application rings; with the index of its application region, if the waker is for all slots of one.
    Watch(Arc<OwnedFd>, Option<u16>),
    /// Stop watching this waker.
    Unwatch(Arc<OwnedFd>),
    /// Begin to relay between these ends. A deputy, if there is one, is the first end.
    Open(u32, Box<[End; 2]>),
    /// Look at that relay: flags of one of its halves have changed.
    Look(u32),
    /// Take the rings of that end, a deputy that has closed, back when they were read.
    Linger(Box<End>),
    /// The application of that region has populated more memory.
    Fed(u32),
    /// Send the core's counters to this channel.
    Count(Sender<Counted>),
    /// Begin to carry sockets over channels.
    BeginChannels(Box<Start>),
    /// A command to the channels' engine.
    Channels(Say),
}

/// What cores, or an engine, have answered; `None` for one that does not answer within a tenth of a second. Not for the control thread: it
/// would wait.
pub fn answers<T>(asked: &[Receiver<T>]) -> Vec<Option<T>> {
    let until = std::time::Instant::now() + ANSWER_TIME;
    let left = || until.saturating_duration_since(std::time::Instant::now());
    asked.iter().map(|asked| asked.recv_timeout(left()).ok()).collect()
}

/// How long a report waits for what cores say.
const ANSWER_TIME: std::time::Duration = std::time::Duration::from_millis(100);

/// The control thread's handle of one core.
#[derive(Debug)]
pub struct Core {
    commands: Sender<Command>,
    waker: Arc<OwnedFd>,
    /// Reports about the core's relays.
    pub outcomes: Receiver<Outcome>,
    /// Bytes that its relays have copied so far.
    pub relayed: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Handles and settings that all cores share.
#[derive(Clone, Debug)]
pub struct Common {
    /// The flow records of all cores.
    pub flows: Arc<Flows>,
    /// The eventfd that wakes each core.
    pub core_wakers: Arc<[Arc<OwnedFd>]>,
    /// The eventfds that wake applications.
    pub wakers: Arc<Wakers>,
    /// Eventfd that wakes the control thread.
    pub told: Arc<OwnedFd>,
    /// The clock of all threads.
    pub clock: Clock,
    /// Time to poll before sleeping.
    pub spin: Duration,
    /// The load of each core.
    pub loads: Arc<Loads>,
    /// Whether threads count their cycles: a [`cycles::Switch`] as a word.
    pub cycles: Arc<AtomicU32>,
}

/// What an epoll event is about: a waker that needs no more than that the core is awake; the core's own waker; from `REGION` on, the
/// waker of the application region with the index that is left.
const OTHER: u64 = 0;
const OWN: u64 = 1;
const REGION: u64 = 2;
/// Most events that one wait returns.
const EVENTS: usize = 64;
/// While a core is awake it looks for the wakers of resting applications after this time, in one system call.
const LOOK: Duration = Duration::from_us(20);

/// A core without work polls when its next deadline is nearer than this: going to sleep and waking takes as long.
const NEAR: Duration = Duration::from_us(30);

impl Core {
    /// Starts core `index` on a queue of the port, with its rings to the other cores. Also returns the slow path's ends of its rings to and from the core.
    pub fn start(
        index: u8,
        common: Common,
        others: Others,
        port: Box<dyn Port>,
    ) -> Result<(Self, ExceptionReceiver, CommandSender), ServiceError> {
        let (mut core, mut worker, exceptions, commands) = Self::prepare(index, common, others, port)?;
        let started = threads::start(format!("towpath-core{index}"), "a core", move || worker.run());
        let thread = started.map_err(|e| ServiceError::Os {
            doing: "start a thread",
            error: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
        })?;
        core.thread = Some(thread);
        Ok((core, exceptions, commands))
    }

    /// Makes a core without a thread: its handle, what the thread is to run, and the slow path's ends of its rings.
    fn prepare(
        index: u8,
        common: Common,
        others: Others,
        port: Box<dyn Port>,
    ) -> Result<(Self, Worker, ExceptionReceiver, CommandSender), ServiceError> {
        let os = |doing| move |error: Errno| ServiceError::Os { doing, error };
        let waker = common.core_wakers[usize::from(index)].clone();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("make an epoll instance"))?;
        let (inbox_sender, inbox) = channel();
        let (outbox, outcomes) = channel();
        let slots = common.flows.config().ring_slots;
        let (exception_sender, exception_receiver) = exceptions(slots);
        let (command_sender, command_receiver) = commands(slots);
        let relays = Relays::default();
        let relayed = relays.bytes.clone();
        let core = fastpath::Core::new(
            index,
            common.flows.clone(),
            exception_sender,
            command_receiver,
            port.capabilities(),
            others,
        );
        let (meter, load) = (CoreMeter::default(), LoadMeter::new(index));
        let worker = Worker {
            core,
            port,
            common,
            epoll,
            inbox,
            outbox,
            relays,
            channels: None,
            meter,
            load,
            looked_at: Instant::ZERO,
            rested_at: Instant::ZERO,
        };
        worker.watch(&waker, OWN).map_err(os("watch a descriptor"))?;
        let core = Self { commands: inbox_sender, waker, outcomes, relayed, thread: None };
        Ok((core, worker, exception_receiver, command_sender))
    }

    /// Sends a command and wakes the core.
    pub fn say(&self, command: Command) {
        // The send succeeds: the thread ends only after this sender is gone.
        if self.commands.send(command).is_ok() {
            self.wake();
        }
    }

    /// Asks for the core's counters, and does not wait for them.
    pub fn ask_count(&self) -> Receiver<Counted> {
        let (ask, answer) = channel();
        self.say(Command::Count(ask));
        answer
    }

    /// The eventfd that wakes the core.
    pub fn waker(&self) -> Arc<OwnedFd> {
        self.waker.clone()
    }

    /// Wakes the core, if it sleeps.
    pub fn wake(&self) {
        write_eventfd(self.waker.as_fd());
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let (closed, _) = channel();
        self.commands = closed;
        self.wake();
        // A core that panics ends the process, so the thread returns.
        self.thread.take().map(JoinHandle::join);
    }
}

struct Worker {
    core: fastpath::Core,
    port: Box<dyn Port>,
    common: Common,
    epoll: OwnedFd,
    inbox: Receiver<Command>,
    outbox: Sender<Outcome>,
    relays: Relays,
    channels: Option<Box<Engine>>,
    meter: CoreMeter,
    load: LoadMeter,
    /// When the wakers of resting applications were last looked at, and when silent applications were last laid to rest.
    looked_at: Instant,
    rested_at: Instant,
}

impl Worker {
    fn run(&mut self) {
        let mut quiet_since: Option<Instant> = None;
        loop {
            let now = self.common.clock.now();
            self.meter.begin(&self.common.cycles, self.core.counters());
            let counters = self.core.counters();
            if self.load.begin(now, counters.packets + counters.segments_out, &self.common.loads) {
                write_eventfd(self.common.told.as_fd());
            }
            // Before all else of this turn: a waker that is taken here is not there to end the sleep, and what it was written for is done below.
            self.look_at_resting(now);
            let progress = self.round(now);
            if progress.wake_slow_path {
                write_eventfd(self.common.told.as_fd());
            }
            if progress.wake_cores != 0 {
                self.wake_others(progress.wake_cores);
            }
            let Some(obeyed) = self.obey(now) else { return };
            if progress.is_busy() | obeyed | self.relay() | self.serve_channels(now) {
                quiet_since = None;
                continue;
            }
            self.meter.idle();
            self.load.idle();
            let since = *quiet_since.get_or_insert(now);
            let own = self.channels.as_ref().map_or(Instant::NEVER, |engine| engine.deadline());
            let deadline = progress.deadline.min(own);
            let near = deadline != Instant::NEVER && deadline.since(now) < NEAR;
            if near || now.since(since) < self.common.spin {
                // The application that has to act may need this very processor.
                std::thread::yield_now();
                continue;
            }
            self.sleep(now, deadline);
            quiet_since = None;
        }
    }

    /// Has the fast path serve its flows, wakes applications, and gives the slots without a flow to channels and relays.
    fn round(&mut self, now: Instant) -> Progress {
        let progress = self.core.round(now, self.port.as_mut(), &mut self.meter);
        self.meter.wakes();
        self.core.wakes().for_each(|news| self.common.wakers.wake(news));
        self.meter.rest();
        for (region, slot) in self.core.strangers() {
            let is_taken = self.channels.as_mut().is_some_and(|engine| engine.news(region, slot));
            if !is_taken {
                self.relays.news(region, slot);
            }
        }
        progress
    }

    /// Wakes other cores, one for each bit.
    fn wake_others(&self, cores: u32) {
        let wakers = self.common.core_wakers.iter().enumerate();
        wakers.filter(|(i, _)| cores & 1 << i != 0).for_each(|(_, waker)| write_eventfd(waker.as_fd()));
    }

    /// Carries out the control thread's commands. `None`: the control thread is gone; else whether there were any.
    fn obey(&mut self, now: Instant) -> Option<bool> {
        let mut obeyed = false;
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Watch(waker, region)) => {
                    let of = region.map_or(OTHER, |region| REGION + u64::from(region));
                    self.watch(&waker, of)
                        .unwrap_or_else(|e| tracing::error!("a core cannot watch a waker: {e}"));
                }
                Ok(Command::Unwatch(waker)) => drop(epoll::delete(&self.epoll, waker.as_fd())),
                Ok(Command::Open(id, ends)) => self.relays.open(id, *ends),
                Ok(Command::Look(id)) => self.relays.look(id),
                Ok(Command::Linger(end)) => self.relays.linger(*end),
                Ok(Command::Fed(region)) => {
                    self.relays.fed(region);
                    self.channels.iter_mut().for_each(|engine| engine.fed(region));
                }
                Ok(Command::BeginChannels(start)) => {
                    let Common { wakers, flows, loads, .. } = &self.common;
                    let (wakers, records, loads) = (wakers.clone(), flows.clone(), loads.clone());
                    self.channels = Some(Box::new(Engine::new(*start, Shared { wakers, records, loads })));
                }
                Ok(Command::Channels(say)) => {
                    if let Some(engine) = &mut self.channels {
                        engine.obey(now, say);
                    }
                }
                Ok(Command::Count(answer)) => {
                    let core = *self.core.counters();
                    let counted =
                        Counted { core, port: self.port.stats(), cycles: self.meter.metered(&core) };
                    // The control thread may have stopped waiting.
                    let _ = answer.send(counted);
                }
                Err(TryRecvError::Empty) => return Some(obeyed),
                Err(TryRecvError::Disconnected) => return None,
            }
            obeyed = true;
        }
    }

    /// Watches a waker, edge-triggered and never read: applications share these descriptors and could make a read block.
    fn watch(&self, waker: &OwnedFd, of: u64) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, waker.as_fd(), epoll::EventData::new_u64(of), flags)
    }

    /// Serves the relays that have news. True when there were any.
    fn relay(&mut self) -> bool {
        self.relays.listen();
        if self.relays.is_idle() {
            return false;
        }
        self.meter.relays();
        let mut outcomes = Vec::new();
        self.relays.work(&self.common.wakers, &mut outcomes);
        let said = !outcomes.is_empty();
        outcomes.into_iter().for_each(|outcome| drop(self.outbox.send(outcome)));
        if said {
            write_eventfd(self.common.told.as_fd());
        }
        true
    }

    /// Serves the channels that have news. True when there were any.
    fn serve_channels(&mut self, now: Instant) -> bool {
        let Some(engine) = &mut self.channels else { return false };
        if !engine.has_work(now) {
            return false;
        }
        self.meter.relays();
        engine.work(now);
        engine.wakes().for_each(|news| self.common.wakers.wake(news));
        let mut said = false;
        for told in engine.told() {
            said = true;
            drop(self.outbox.send(Outcome::Channels(told)));
        }
        if said {
            write_eventfd(self.common.told.as_fd());
        }
        true
    }

    /// Sleeps until a waker is written, the port is ready, or `deadline`.
    fn sleep(&mut self, now: Instant, deadline: Instant) {
        let wait = self.port.arm();
        if wait == Wait::Not || !self.core.prepare_sleep() {
            self.port.disarm();
            return;
        }
        let sleeps = self.relays.deputies.prepare_sleep()
            && self.channels.as_ref().is_none_or(|engine| engine.prepare_sleep());
        if !sleeps {
            self.are_all_awake();
            self.port.disarm();
            return;
        }
        let left = deadline.since(now);
        let timeout = (deadline != Instant::NEVER).then(|| Timespec {
            tv_sec: (left.as_ns() / 1_000_000_000) as i64,
            tv_nsec: (left.as_ns() % 1_000_000_000) as i64,
        });
        self.meter.asleep();
        if self.wait(wait, timeout.as_ref()) {
            self.hear_wakers();
        }
        self.are_all_awake();
        self.port.disarm();
    }

    /// Withdraws every announcement of sleep.
    fn are_all_awake(&mut self) {
        self.core.awake();
        self.relays.deputies.awake();
        self.channels.iter().for_each(|engine| engine.awake());
    }

    /// Waits for a waker, or for the port to be as `wait` says. True if a waker was written.
    ///
    /// The port is not a member of the epoll: while the core is awake the kernel would call the epoll at each frame that comes or has left.
    fn wait(&self, wait: Wait, timeout: Option<&Timespec>) -> bool {
        let epoll = PollFd::new(&self.epoll, PollFlags::IN);
        let until = match wait {
            Wait::ReadableOrWritable => PollFlags::IN | PollFlags::OUT,
            Wait::Readable | Wait::Not => PollFlags::IN,
        };
        let port = self.port.wait_fd();
        let port = port.as_ref().map(|fd| PollFd::new(fd, until));
        // A port without a descriptor can only be polled, or is quiet until a waker is written.
        let mut fds = [epoll.clone(), port.unwrap_or(epoll)];
        match poll(&mut fds, timeout) {
            Ok(_) => !fds[0].revents().is_empty(),
            Err(Errno::INTR) => false,
            // Failing to wait is a bug; the core goes on by polling.
            Err(e) => {
                tracing::error!("a core cannot wait: {e}");
                false
            }
        }
    }

    /// Takes the wakers that were written, and rouses the application of each.
    fn hear_wakers(&mut self) {
        // More events than fit come with the next call.
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        match epoll::wait(&self.epoll, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok((events, _)) => {
                for event in events {
                    match event.data.u64() {
                        OTHER => {}
                        OWN => self.core.rouse_rung(),
                        region => self.core.rouse((region - REGION) as u16),
                    }
                }
            }
            Err(Errno::INTR) => {}
            Err(e) => tracing::error!("a core cannot hear its wakers: {e}"),
        }
    }

    /// While the core is awake: lets silent applications rest, and looks for the wakers of those that rest, each from time to time.
    fn look_at_resting(&mut self, now: Instant) {
        if LOOK <= now.since(self.looked_at) && self.core.has_resting() {
            self.looked_at = now;
            self.hear_wakers();
        }
        if fastpath::REST <= now.since(self.rested_at) {
            self.rested_at = now;
            self.core.rest();
        }
    }
}
