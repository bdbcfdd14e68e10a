//! The control thread: one epoll over the control socket, all control lines, signals and the slow-path wakers of the application regions.
//! Sleeps without a timeout while no deadline is set.

pub(crate) mod address_claim;
mod administrators;
mod arrivals;
pub(crate) mod clock;
pub(crate) mod closing;
pub(crate) mod control_lines;
pub(crate) mod control_socket;
mod ends;
pub(crate) mod helpers;
pub(crate) mod net_port;
pub(crate) mod places;
pub(crate) mod pushes;
mod reports;
#[cfg(test)]
mod tests;
pub(crate) mod turns;

use crate::config::Config;
use crate::config::channels::Settings;
use crate::cores::wakers::{Wakers, new_eventfd, write_eventfd};
use crate::cores::{Common, Core};
use crate::daemon::arrivals::Arrivals;
use crate::daemon::clock::Clock;
use crate::daemon::closing::Closing;
use crate::daemon::control_lines::{Attention, Peer};
use crate::daemon::control_socket::Listening;
use crate::daemon::ends::Ends;
use crate::daemon::helpers::{Asker, Helpers, Job, Message, SERVICE};
use crate::daemon::places::Places;
use crate::daemon::turns::Turns;
use crate::registry::agents::Agents;
use crate::registry::log_limit::log_for;
use crate::registry::output::{Output, Pushed};
use crate::registry::process::fd_liveness::Watched;
use crate::registry::registration::User;
use crate::registry::report::profile_switch::{Counting, Part};
use crate::registry::scaling::machine::Machine;
use crate::registry::scaling::{Scaling, Way};
use crate::registry::tcp::{self, Tcp};
use crate::registry::{Answer, Registry, Watch};
use crate::{ServiceError, privilege, sys, threads};
use control::{KernelReason, Request, ToService};
use elastic::load::Loads;
use fastpath::Others;
use queue::Doorbell;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use shm::{SLOW_CONTEXT, Side};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause after descriptors ran out, before the listening socket is watched again.
pub(crate) const DEAF: Duration = Duration::from_secs(1);
/// A private service waits this long after its last application has ended, and this long for its first.
const GRACE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Time between two looks whether virtual sockets are left, at the service's end.
const SHUT_PAUSE: Duration = Duration::from_millis(5);
/// Most events taken at once: more than there are control lines by default, so that no line waits for others to be looked at.
const EVENTS: usize = 2048;
/// Most bits of a slow-path doorbell that one look takes.
const RUNG: usize = 1024;
/// Length of the table of descriptors, 8 bytes each: more than there are local ports by default.
const DESCRIPTORS: u64 = 1 << 16;

pub(crate) const LISTENING: u64 = 0;
const SIGNALS: u64 = 1;
pub(crate) const LINES: u64 = 1 << 32;
const CORES: u64 = 2;
const HELPERS: u64 = 3;
const LISTENERS: u64 = 4;
const AGENTS: u64 = 5;
const WAKERS: u64 = 2 << 32;
pub(crate) const SHUT: u64 = 3 << 32;

/// A service that is ready to be run.
#[derive(Debug)]
pub struct Service {
    pub(crate) listening: Listening,
    pub(crate) epoll: OwnedFd,
    signals: OwnedFd,
    pub(crate) peers: HashMap<u32, Peer>,
    pub(crate) next_peer: u32,
    /// Threads for calls that an application can make wait.
    pub(crate) helpers: Helpers,
    /// Control lines that are to be closed.
    pub(crate) closing: Vec<Closing>,
    /// Lines that are shut, and wait until what was sent is read.
    pub(crate) shut: HashMap<u32, Closing>,
    pub(crate) next_shut: u32,
    pub(crate) registry: Registry,
    /// How fast users make lines.
    pub(crate) arrivals: Arrivals,
    /// The lines that have work, and whose turn it is.
    pub(crate) turns: Turns,
    /// The lines that have ended, until that can be carried out.
    pub(crate) ends: Ends,
    /// The reports that are being made.
    pub(crate) places: Places,
    /// When a private service ends, if no application comes.
    leave: Option<Instant>,
    /// The listening socket is not watched until then, because descriptors ran out.
    pub(crate) deaf_until: Option<Instant>,
    /// The cores have reported more than one turn takes, or were not heard yet.
    more: bool,
    pub(crate) over: bool,
}

/// Opens the port, listens, gives up the privileges that only opening needed, starts the cores, and makes an empty registry. Threads inherit the
/// signal mask, so no signal interrupts a core.
fn registry(
    mut config: Config,
    listening: &Listening,
    told: Arc<OwnedFd>,
    watched: Watched,
) -> Result<Registry, ServiceError> {
    let mut opened = net_port::open(&config)?;
    config.cores.most = opened.queues.len() as u8;
    let clock = Clock::start();
    address_claim::claim(&mut opened, &config.link, clock)?;
    // Before anything is given up: a folder is made, and a file is protected.
    let agents =
        config.agents.as_ref().map(|settings| Agents::open(settings, &config, clock.now())).transpose()?;
    let machine = Machine::open();
    listening.begin()?;
    privilege::confine(&config)?;
    let core_wakers: Result<Vec<Arc<OwnedFd>>, Errno> = opened.queues.iter().map(|_| new_eventfd()).collect();
    let common = Common {
        core_wakers: core_wakers.map_err(os("make an eventfd"))?.into(),
        flows: tcp::flows(&config)?,
        wakers: Arc::new(Wakers::default()),
        told,
        clock,
        spin: base::Duration::from_ns(config.spin_ns),
        loads: Arc::new(Loads::new(opened.queues.len())),
        cycles: Arc::default(),
    };
    let (mut cores, mut rings) = (Vec::new(), Vec::new());
    let others = Others::join(opened.queues.len() as u8, common.flows.config());
    for (i, (queue, others)) in opened.queues.into_iter().zip(others).enumerate() {
        let (core, exceptions, commands) = Core::start(i as u8, common.clone(), others, queue)?;
        cores.push(core);
        rings.push((exceptions, commands));
    }
    let way = Way { steering: opened.steering, means: opened.means };
    let told = common.told.clone();
    let scaling = Scaling::new(config.cores, way, common.loads.clone(), machine, told).map_err(|e| {
        ServiceError::Os { doing: "start a thread", error: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN) }
    })?;
    let tcp = Tcp::new(&config, common.flows.clone(), opened.mac, opened.mtu, rings, common.clock.began())?;
    let counting = Counting::new(common.cycles);
    let channels = config.channels.clone();
    let mut registry = Registry::new(config, cores, common.wakers, tcp, scaling, counting, watched);
    registry.set_up(opened.description, agents);
    if let Some(settings) = channels {
        registry.begin_channels(hub_of(&settings)?, settings)?;
    }
    Ok(registry)
}

/// What the channels' hub is made with. The epoch is the time of day: a service that starts later has a later one.
fn hub_of(settings: &Settings) -> Result<channel::Config, ServiceError> {
    let epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = sys::random()?;
    let all = channel::Config::new(seed, epoch.as_nanos() as u64);
    Ok(channel::Config {
        secret: settings.secret.clone(),
        hosts: settings.hosts.clone(),
        throughput: settings.policy.unwrap_or(all.throughput),
        ..all
    })
}

fn os(doing: &'static str) -> impl FnOnce(Errno) -> ServiceError {
    move |error| ServiceError::Os { doing, error }
}

impl Service {
    /// Opens the control socket and the port, and starts the cores. `run` answers applications; those that have connected before wait for it.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub fn open(config: Config) -> Result<Self, ServiceError> {
        let listening = Listening::open(&config)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("make an epoll instance"))?;
        prepare_descriptors(epoll.as_fd());
        let signals = sys::signals().map_err(os("watch signals"))?;
        // The cores own this eventfd, and write it when they have reported something.
        let told = new_eventfd().map_err(os("make an eventfd"))?;
        let watched = Watched::open().map_err(os("make an epoll instance"))?;
        let registry = registry(config, &listening, told.clone(), watched)?;
        let helpers = Helpers::new(registry.config().policy_source.clone()).map_err(os("make an eventfd"))?;
        let private = registry.config().private;
        let service = Self {
            leave: private.then(|| Instant::now() + GRACE.1),
            listening,
            epoll,
            signals,
            peers: HashMap::new(),
            next_peer: 1,
            helpers,
            closing: Vec::new(),
            shut: HashMap::new(),
            next_shut: 0,
            registry,
            arrivals: Arrivals::default(),
            turns: Turns::default(),
            ends: Ends::default(),
            places: Places::default(),
            deaf_until: None,
            // The cores run already. They are heard before the first sleep; from then on they wake this thread.
            more: true,
            over: false,
        };
        service.watch(service.listening.fd.as_fd(), LISTENING, epoll::EventFlags::IN)?;
        service.watch(service.signals.as_fd(), SIGNALS, epoll::EventFlags::IN)?;
        service.watch(told.as_fd(), CORES, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        service.watch(
            service.helpers.told.as_fd(),
            HELPERS,
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        if let Some(agents) = service.registry.agents_set() {
            service.watch(agents, AGENTS, epoll::EventFlags::IN)?;
        }
        if let Some(ended) = service.registry.ended_listeners() {
            service.watch(ended, LISTENERS, epoll::EventFlags::IN)?;
        }
        Ok(service)
    }

    pub(crate) fn watch(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        flags: epoll::EventFlags,
    ) -> Result<(), ServiceError> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags).map_err(os("watch a descriptor"))
    }

    /// Serves until a signal, `control::Report::Shutdown` or, for a private service, the end of the last application.
    ///
    /// # Errors
    /// The kernel refuses to wait for events.
    pub fn run(mut self) -> Result<(), ServiceError> {
        let _guard = threads::EndsProcess("the control thread");
        let mut events = Vec::with_capacity(EVENTS);
        while !self.over {
            let pause = self.pause(Instant::now());
            self.turn(&mut events, pause)?;
        }
        self.carry_out();
        self.shut_channels();
        self.hang_up_all();
        self.carry_out();
        Ok(())
    }

    /// Waits for events, at most for `pause`, and does what they and the timers ask for.
    fn turn(&mut self, events: &mut Vec<epoll::Event>, pause: Option<Timespec>) -> Result<(), ServiceError> {
        self.registry.begin(Part::Asleep);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), pause.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(e) => return Err(os("wait for events")(e)),
        }
        self.registry.set_now(Instant::now());
        let are_all = events.len() < events.capacity();
        let mut has_new_lines = false;
        for event in events.drain(..) {
            let token = event.data.u64();
            let part = if token == CORES { Part::Exceptions } else { Part::Requests };
            self.registry.begin(part);
            match (token & !u64::from(u32::MAX), token as u32) {
                (LINES, id) => self.line_woken(id),
                (WAKERS, region) => self.registry.note_unheard(region),
                (SHUT, id) => self.shut_line_woken(id),
                _ if token == LISTENING => has_new_lines = true,
                _ if token == CORES => self.hear_cores(),
                // `hear_helpers` below takes the results.
                _ if token == HELPERS => {}
                _ if token == LISTENERS => self.registry.hear_ended_listeners(),
                _ if token == AGENTS => self.registry.hear_agents(),
                _ => self.signal(),
            }
            self.carry_out();
        }
        self.ends.events_taken(are_all);
        self.serve_lines();
        // After the lines are served: a line that has brought its hello is not closed to make room.
        if has_new_lines || self.ends.wants_accept() {
            self.registry.begin(Part::Requests);
            self.accept();
        }
        for region in self.registry.take_unheard() {
            self.slow_path_woken(region);
        }
        if self.more {
            self.registry.begin(Part::Exceptions);
            self.hear_cores();
        }
        self.hear_helpers(Instant::now());
        self.registry.begin(Part::Timers);
        self.timers(Instant::now());
        self.close_lines(Instant::now());
        Ok(())
    }

    /// At the service's end: waits for a short time until what programs have written to virtual sockets and closed has arrived, resets the
    /// rest, and waits until the peers know. The slow path is served between two looks, so that what is lost now is sent again; a core that
    /// does not answer a look holds it up. Programs still get connections, which end with all others.
    fn shut_channels(&mut self) {
        for is_rest in [false, true] {
            let Some(most) = self.registry.shut_channels(is_rest) else { return };
            let until = Instant::now() + most;
            while self.registry.has_virtual_sockets() && Instant::now() < until {
                self.hear_cores();
                self.registry.set_now(Instant::now());
                self.registry.handle_timers();
                self.settle();
                if !self.more {
                    std::thread::sleep(SHUT_PAUSE);
                }
            }
        }
    }

    /// How long to sleep; `None` while no deadline is set.
    fn pause(&self, now: Instant) -> Option<Timespec> {
        if self.more || !(self.turns.is_empty() && self.ends.is_empty()) {
            return Some(Timespec::default());
        }
        let deadlines = [
            self.registry.next_deadline(),
            self.leave,
            self.deaf_until,
            self.helpers.due(),
            self.places.due(),
        ];
        let at = deadlines.into_iter().flatten().min()?;
        let left = at.saturating_duration_since(now);
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn timers(&mut self, now: Instant) {
        self.registry.set_now(now);
        self.registry.handle_timers();
        self.close_unread(now);
        if self.deaf_until.is_some_and(|at| at <= now) {
            self.listen_again();
        }
        if self.leave.is_some_and(|at| at <= now) && self.registry.keeps_what_was_left() {
            self.leave = Some(now + GRACE.0);
        }
        if self.leave.is_some_and(|at| at <= now) {
            tracing::info!("no application is left; this private service leaves");
            self.over = true;
        }
        self.settle();
    }

    /// Carries out what the timers bring about, until nothing follows from it.
    fn settle(&mut self) {
        loop {
            self.carry_out();
            // Detaching processes may have closed flows.
            self.registry.pump();
            if !self.registry.has_outputs() {
                break;
            }
        }
    }

    pub(crate) fn message(&mut self, id: u32, message: Message) {
        let Message { said: ToService { number, request }, shown, is_short, is_kept, .. } = message;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let who = peer.who;
        let answer = match request {
            Request::Listen { .. } if is_short => Answer::kernel(KernelReason::ServiceDescriptors),
            _ if is_short => Answer::refused(Errno::MFILE, "the service is out of descriptors"),
            Request::Report(report) => {
                peer.asked = true;
                match self.permit(who, report, Asker { id, number }) {
                    Ok(report) if number != 0 => return self.ask_for_report(Asker { id, number }, report),
                    Ok(_) => Answer::Silent,
                    Err(answer) => *answer,
                }
            }
            // A message that wants no answer.
            request if number == 0 && self.registry.is_registered(id) => {
                self.registry.heed(id, request, shown.as_ref())
            }
            request if self.registry.is_registered(id) => self.registry.request(id, request, shown.as_ref()),
            request => {
                // The line of a promised child is no application's.
                peer.asked |= matches!(request, Request::Expect(_));
                let answer = self.registry.begin_line(id, who, request);
                if self.registry.is_registered(id) {
                    self.leave = None;
                }
                answer
            }
        };
        // Before the answer: an application that reads it has been sent what came before.
        self.carry_out();
        if is_kept {
            return self.release(Asker { id, number }, answer);
        }
        self.answer(Asker { id, number }, answer);
    }

    /// Has the helper that keeps a shown descriptor watch and close it. The answer follows then: the process may close its socket and bind
    /// another to the same port.
    fn release(&mut self, asker: Asker, answer: Answer) {
        let (wanted, answer) = match answer {
            Answer::Watch(watch, set, answer) => (Some((watch, set)), *answer),
            answer => (None, answer),
        };
        let wanted = wanted.as_ref().map(|(watch, set)| (*watch, &**set));
        self.helpers.release(asker.id, wanted, Instant::now());
        if let Some(peer) = self.peers.get_mut(&asker.id) {
            peer.withheld = Some((asker.number, answer));
        }
    }

    /// The helper has closed the descriptor of that process, and has watched it, if that was wanted: gives the answer.
    pub(crate) fn released(&mut self, id: u32, watched: Option<(Watch, bool)>) {
        let withheld = self.peers.get_mut(&id).and_then(|peer| peer.withheld.take());
        let (number, mut answer) = withheld.unwrap_or((0, Answer::Silent));
        if let Some((watch, is_added)) = watched {
            answer = self.registry.watched(watch, is_added, answer);
            self.carry_out();
        }
        self.attend(id, Attention::Messages);
        self.answer(Asker { id, number }, answer);
    }

    /// Has a helper read the policy again; its answer follows when the helper has read it.
    pub(crate) fn read_policy(&mut self, asker: Option<Asker>) -> Answer {
        match self.helpers.ask(SERVICE, Job::ReadPolicy(asker), Instant::now()) {
            Ok(()) => Answer::Silent,
            Err(e) => {
                tracing::error!("the policy stays as it was: an earlier reading has not ended");
                Answer::refused(e, "the policy stays as it was: an earlier reading has not ended")
            }
        }
    }

    /// Removes a line that is closed at its other end.
    pub(crate) fn hang_up(&mut self, id: u32) {
        self.remove_peer(id, false);
    }

    /// Removes a line, and ends the registration of its process, if it has one.
    fn remove_peer(&mut self, id: u32, offender: bool) {
        let Some(peer) = self.peers.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, peer.line.as_fd());
        self.helpers.release(id, None, Instant::now());
        self.leave_place(peer.who.user(), id);
        self.empty_text(id, peer.who.user());
        if let Some(turn) = peer.turn {
            self.ends.had(turn);
        }
        let was_application = self.registry.is_registered(id) || self.registry.has_promise(id);
        self.depart(id, offender);
        let is_concerned = was_application || !peer.asked;
        self.closing.push(peer.into());
        if self.registry.config().private && !self.registry.has_applications() && is_concerned {
            // A line that closed without a hello: a program that only checked whether the service is up; it will connect again.
            let grace = if was_application { GRACE.0 } else { GRACE.1 };
            let at = Instant::now() + grace;
            self.leave = Some(self.leave.map_or(at, |known| known.max(at)));
        }
        if self.deaf_until.is_some() {
            self.listen_again();
        }
    }

    /// Detaches a process that misbehaved: ends its registration and its control line.
    pub(crate) fn detach(&mut self, id: u32, reason: &str) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (pid, uid) = (peer.who.number(id), peer.who.uid);
        let (limit, now) = self.registry.log_limit();
        log_for!(limit, now, uid, warn, application = id, %pid, uid, "detached: {reason}");
        self.registry.count_detached();
        self.remove_peer(id, true);
    }

    fn depart(&mut self, id: u32, offender: bool) {
        self.registry.set_now(Instant::now());
        self.registry.depart(id, offender);
    }

    /// Does what the registry wants done.
    pub(crate) fn carry_out(&mut self) {
        while let Some(output) = self.registry.next_output() {
            match output {
                Output::Push(Pushed { application, push, fd }) => self.push(application, push, fd),
                // Edge-triggered and never read: the application shares the descriptor and could make a read block.
                Output::Watch(region, waker) => {
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                    if let Err(e) = self.watch(waker.as_fd(), WAKERS | u64::from(region), flags) {
                        tracing::error!("{e}");
                    }
                }
                // The application has the descriptor too, so that closing the service's own would not end the watch.
                Output::Unwatch(waker) => drop(epoll::delete(&self.epoll, waker.as_fd())),
                Output::Wake(eventfd) => write_eventfd(eventfd.as_fd()),
                Output::Command(core, command) => self.registry.pass_on(core, command),
                Output::Seal { application, region, memfd } => {
                    let user = self.peers.get(&application).map_or(SERVICE, |peer| peer.who.user());
                    // A region that is not sealed works all the same.
                    let _ = self.helpers.ask(user, Job::Seal(region, memfd), self.registry.now());
                }
                // An administrator's messages are never counted against it: it does not wait for turns.
                Output::Spent(uid, time) => {
                    self.turns.spent_for_messages(User { uid, is_administrator: false }, time);
                }
                Output::Detach(id, reason) => self.detach(id, &reason),
            }
        }
    }

    /// Handles what the cores have reported.
    fn hear_cores(&mut self) {
        self.registry.set_now(Instant::now());
        self.registry.hear_cores();
        self.more = self.registry.hear_exceptions();
    }

    /// Description of the port, for the banner.
    #[must_use]
    pub fn port(&self) -> &str {
        self.registry.port()
    }

    /// The slow-path waker of a region was written: an accept queue was read, or bytes are held back.
    fn slow_path_woken(&mut self, region: u32) {
        let Some(memory) = self.registry.memory_of_region(region) else { return };
        let Some(bell) = Doorbell::of(memory.region(), Side::Zero, SLOW_CONTEXT) else { return };
        // A hostile application can ring without end: other regions are served between two looks.
        bell.drain_some(memory.region().layout().params.slots, RUNG, |_| ());
        if !bell.prepare_sleep() {
            self.registry.note_unheard(region);
        }
        self.registry.hear_held(region);
    }

    /// Reads the signals that came. SIGHUP reads the policy again where it has a file; any other signal, or SIGHUP without a file, ends the
    /// service.
    fn signal(&mut self) {
        // A `signalfd_siginfo` begins with the signal's number.
        let mut info = [0; 128];
        let hang_up = rustix::process::Signal::HUP.as_raw() as u32;
        while rustix::io::read(&self.signals, &mut info) == Ok(info.len()) {
            let [a, b, c, d, ..] = info;
            let has_file = self.registry.config().policy_source.path().is_some();
            if u32::from_ne_bytes([a, b, c, d]) == hang_up && has_file {
                self.read_policy(None);
            } else {
                tracing::info!("told to leave by a signal");
                self.over = true;
            }
        }
    }
}

/// Each application costs several descriptors, each connection within the host one for its port: raises the soft limit to the hard limit, and
/// makes the table of descriptors long. Later, with threads, the kernel would wait for all processors each time that it grows (4 to 180 ms).
fn prepare_descriptors(any: BorrowedFd<'_>) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(e) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of descriptors stays as it is: {e}");
    }
    let most = limit.current.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    // The table stays long when the descriptor is closed.
    drop(rustix::io::fcntl_dupfd_cloexec(any, most.saturating_sub(1) as RawFd));
}
