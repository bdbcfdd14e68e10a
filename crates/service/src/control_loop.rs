//! The control thread: one epoll over the control socket, all control lines, signals and the slow-path bells of the
//! application regions. Sleeps without a timer while nothing is open.

use crate::ServiceError;
use crate::bells::Bells;
use crate::clock::Clock;
use crate::config::Config;
use crate::cores::{Common, Core};
use crate::counting::{Counting, Part};
use crate::listening::Listening;
use crate::region::Use;
use crate::registry::{Answer, BellChange, Registry};
use crate::requests::{Credentials, new_eventfd};
use crate::tcp::{self, Tcp};
use crate::{ports, sys};
use control::{Line, LineError, Received, Reply, Report, Request, SLOW_CONTEXT, ToApplication, ToService};
use queue::Doorbell;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use shm::Side;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Lines accepted in one turn.
const ACCEPTS: usize = 64;
/// Lines at once beyond the applications allowed: people's questions, processes about to say hello.
const SPARE_LINES: usize = 64;
/// First pause between sweeps of closed pair slots; doubles while nothing is found, up to the second.
const SWEEP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// First pause after a death: the partners are about to read the end and to close their sides.
const SOON: Duration = Duration::from_millis(50);
/// Whoever has said that it listens no more closes the descriptor within this, mostly.
const CLOSING: Duration = Duration::from_millis(1);
/// A private service waits this long after its last application, and this long for its first.
const GRACE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Changes nothing.
const LOOK: Report = Report::Cycles(control::Counting::AsItIs);

const LISTENING: u64 = 0;
const SIGNALS: u64 = 1;
const LINES: u64 = 1 << 32;
const CORES: u64 = 2;
const BELLS: u64 = 2 << 32;

/// One control line.
#[derive(Debug)]
struct Peer {
    line: Arc<Line>,
    who: Credentials,
    /// It asked for a report: a person's question, no application to be.
    asked: bool,
}

/// A service that is up: its control socket accepts.
#[derive(Debug)]
pub struct Service {
    listening: Listening,
    epoll: OwnedFd,
    signals: OwnedFd,
    /// Written by the cores when they have reported something.
    _told: Arc<OwnedFd>,
    peers: HashMap<u32, Peer>,
    next_peer: u32,
    registry: Registry,
    /// Next sweep of pair slots, and the pause after it.
    sweep: Option<(Instant, Duration)>,
    /// When ghosts of dead processes are given up.
    reap: Option<Instant>,
    /// When a private service leaves.
    leave: Option<Instant>,
    /// The listening socket is not watched: descriptors ran out.
    deaf: bool,
    /// Regions whose bells never fell silent while we looked: looked at again before sleeping.
    restless: Vec<u32>,
    /// The cores have said more than one turn takes, or were not asked yet.
    more: bool,
    /// When the slow path has something to do.
    tcp_due: Option<Instant>,
    over: bool,
}

/// Opens the port, starts the cores, and joins them to an empty registry. Threads inherit the signal mask: no core is ever
/// interrupted.
fn registry(config: Config, told: Arc<OwnedFd>) -> Result<Registry, ServiceError> {
    let opened = ports::open(&config)?;
    let common = Common {
        flows: tcp::flows(&config)?,
        bells: Arc::new(Bells::default()),
        told,
        clock: Clock::start(),
        spin: base::Duration::from_ns(config.spin_ns),
        cycles: Arc::default(),
    };
    let (mut cores, mut rings) = (Vec::new(), Vec::new());
    for (i, queue) in opened.queues.into_iter().enumerate() {
        let (core, exceptions, commands) = Core::start(i as u8, common.clone(), queue)?;
        cores.push(core);
        rings.push((exceptions, commands));
    }
    let tcp = Tcp::new(&config, common.flows.clone(), (opened.mac, opened.mtu), rings, common.clock)?;
    let mut registry = Registry::new(config, cores, common.bells, tcp, Counting::new(common.cycles));
    registry.port = opened.description;
    Ok(registry)
}

fn os(doing: &'static str) -> impl FnOnce(Errno) -> ServiceError {
    move |error| ServiceError::Os { doing, error }
}

impl Service {
    /// Opens the port, starts the cores, and at the end the control socket. From here on applications can connect; `run` answers them.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub fn open(config: Config) -> Result<Self, ServiceError> {
        raise_descriptor_limit();
        let listening = Listening::open(&config)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("make an epoll instance"))?;
        let signals = sys::signals().map_err(os("watch signals"))?;
        let told = new_eventfd().map_err(os("make an eventfd"))?;
        let registry = registry(config, told.clone())?;
        let private = registry.config.private;
        let service = Self {
            leave: private.then(|| Instant::now() + GRACE.1),
            listening,
            epoll,
            signals,
            _told: told.clone(),
            peers: HashMap::new(),
            next_peer: 1,
            registry,
            sweep: None,
            reap: None,
            deaf: false,
            restless: Vec::new(),
            // The cores run already. Before the first sleep they are heard, and from then on wake us.
            more: true,
            tcp_due: None,
            over: false,
        };
        service.watch(service.listening.fd.as_fd(), LISTENING, epoll::EventFlags::IN)?;
        service.watch(service.signals.as_fd(), SIGNALS, epoll::EventFlags::IN)?;
        service.watch(told.as_fd(), CORES, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        // Last: whatever can fail has not.
        service.listening.begin()?;
        Ok(service)
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: u64, flags: epoll::EventFlags) -> Result<(), ServiceError> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags).map_err(os("watch a descriptor"))
    }

    /// Serves until a signal, `Report::Shutdown` or, when private, the last application's end.
    ///
    /// # Errors
    /// The kernel refuses to wait for events.
    pub fn run(mut self) -> Result<(), ServiceError> {
        let mut events = Vec::with_capacity(256);
        while !self.over {
            let pause = self.pause(Instant::now());
            self.registry.counting.enter(Part::Asleep);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), pause.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(os("wait for events")(e)),
            }
            for event in events.drain(..) {
                let token = event.data.u64();
                let part = if token == CORES { Part::Exceptions } else { Part::Requests };
                self.registry.counting.enter(part);
                match (token & !u64::from(u32::MAX), token as u32) {
                    (LINES, id) => self.line_event(id),
                    (BELLS, region) => self.bell(region),
                    _ if token == LISTENING => self.accept(),
                    _ if token == CORES => self.hear_cores(),
                    _ => self.signal(),
                }
                self.detach_doomed();
            }
            for region in std::mem::take(&mut self.restless) {
                self.bell(region);
            }
            if self.more {
                self.registry.counting.enter(Part::Exceptions);
                self.hear_cores();
            }
            self.registry.counting.enter(Part::Timers);
            self.timers(Instant::now());
        }
        Ok(())
    }

    /// How long to sleep: for ever while no deadline is set.
    fn pause(&self, now: Instant) -> Option<Timespec> {
        if self.more || !self.restless.is_empty() || self.registry.trusts.changed {
            return Some(Timespec::default());
        }
        let sweep = self.sweep.map(|(at, _)| at);
        let counting = self.registry.counting.due();
        let (relief, deferred) = (self.registry.listeners.relief, self.registry.listeners.deferred.due());
        let held = self.registry.held.due();
        let at = [sweep, self.reap, self.leave, self.tcp_due, counting, held, relief, deferred]
            .into_iter()
            .flatten()
            .min()?;
        let left = at.saturating_duration_since(now);
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn timers(&mut self, now: Instant) {
        if std::mem::take(&mut self.registry.trusts.changed) {
            self.reap = Some(now);
        }
        if std::mem::take(&mut self.registry.trusts.soon) {
            let soon = now + CLOSING;
            self.reap = Some(self.reap.map_or(soon, |at| at.min(soon)));
        }
        if self.reap.is_some_and(|at| at <= now) {
            self.reap = self.registry.reap(now, false);
            self.sweep_survivors(now);
        }
        match self.sweep {
            Some((at, pause)) if at <= now => {
                let (freed, open) = self.registry.sweep();
                let pause = match freed {
                    0 => (pause * 2).min(SWEEP.1),
                    _ if self.registry.has_survivors() => pause.min(SWEEP.0),
                    _ => SWEEP.0,
                };
                self.sweep = open.then_some((now + pause, pause));
                if self.deaf {
                    self.listen_again();
                }
            }
            _ => {}
        }
        self.registry.look_at_held(now);
        self.registry.relieve(now);
        self.registry.announce_due(now);
        if self.registry.counting.handle_timer(now) {
            self.registry.spread_switch();
        }
        // A program that has just been started may yet ask for what was left to it.
        let registry = &self.registry;
        let is_waited_for = || !registry.trusts.is_empty() || registry.listeners.deserted().next().is_some();
        if self.leave.is_some_and(|at| at <= now) && is_waited_for() {
            self.leave = Some(now + GRACE.0);
        }
        if self.leave.is_some_and(|at| at <= now) {
            tracing::info!("no application is left; this private service leaves");
            self.over = true;
        }
        self.registry.tcp.handle_timers();
        self.registry.pump_tcp();
        self.detach_doomed();
        self.follow_bells();
        // Detaching may have closed flows.
        self.registry.pump_tcp();
        self.tcp_due = self.registry.tcp.due();
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match accept_with(&self.listening.fd, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    tracing::error!("out of descriptors: new applications wait; raise the limit (ulimit -n)");
                    let _ = epoll::delete(&self.epoll, &self.listening.fd);
                    self.deaf = true;
                    self.sweep.get_or_insert((Instant::now() + SWEEP.0, SWEEP.0));
                    return;
                }
                Err(_) => continue,
            };
            let most = self.registry.config.max_applications as usize + SPARE_LINES;
            let Ok(who) = rustix::net::sockopt::socket_peercred(&fd) else { continue };
            if self.peers.len() >= most {
                tracing::warn!("more control connections than {most}: one is closed");
                continue;
            }
            let who = Credentials { pid: who.pid.as_raw_pid(), uid: who.uid.as_raw(), gid: who.gid.as_raw() };
            self.add_peer(fd, who);
        }
    }

    fn add_peer(&mut self, fd: OwnedFd, who: Credentials) {
        let id = self.next_peer;
        self.next_peer = self.next_peer.checked_add(1).unwrap_or(1);
        let line = Arc::new(Line::new(fd));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if self.watch(line.as_fd(), LINES | u64::from(id), flags).is_ok() {
            self.peers.insert(id, Peer { line, who, asked: false });
        }
    }

    fn listen_again(&mut self) {
        let flags = epoll::EventFlags::IN;
        self.deaf = self.watch(self.listening.fd.as_fd(), LISTENING, flags).is_err();
    }

    /// Takes one message from one line. Who asks waits for the answer: seldom is there another, of which we are told again.
    fn line_event(&mut self, id: u32) {
        let Some(peer) = self.peers.get(&id) else { return };
        let line = peer.line.clone();
        match line.receive::<ToService>(false) {
            Ok(received) => self.message(id, &line, received),
            Err(LineError::WouldBlock) => {}
            Err(LineError::Closed) => self.hang_up(id),
            Err(e) => self.detach(id, &e.to_string()),
        }
    }

    fn message(&mut self, id: u32, line: &Arc<Line>, received: Received<ToService>) {
        let Received { message: ToService { number, request }, fds, is_short } = received;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let who = peer.who;
        let wants_fds =
            matches!(request, Request::Leave(_) | Request::Present { .. } | Request::Listen { .. });
        if !(fds.is_empty() && !is_short || wants_fds) {
            return self.detach(id, "it sent descriptors that nobody asked for");
        }
        let answer = match request {
            Request::Listen { .. } if is_short => Answer::kernel("the service is out of descriptors"),
            _ if is_short => Answer::refused(Errno::MFILE, "the service is out of descriptors"),
            Request::Report(report) => {
                peer.asked = true;
                self.people(who, report)
            }
            request if self.registry.applications.contains_key(&id) => {
                self.registry.request(id, request, &fds)
            }
            request => {
                let answer = self.registry.hello(id, line.clone(), who, request);
                if self.registry.applications.contains_key(&id) {
                    self.leave = None;
                }
                answer
            }
        };
        // Who has the answer may close its socket, and bind another to the same port.
        drop(fds);
        self.follow_bells();
        match answer {
            Answer::Offence(reason) => self.detach(id, &reason),
            Answer::Reply(reply, fds) if number != 0 => {
                if matches!(reply, Reply::Connecting { .. }) {
                    self.sweep_in(SWEEP.0, Instant::now());
                }
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
                let sent = line.send(&ToApplication::Reply(number, reply), &fds, false);
                if let Err(e @ (LineError::WouldBlock | LineError::Os(_) | LineError::Garbled)) = sent {
                    self.detach(id, &format!("its reply cannot be sent: {e}"));
                }
            }
            Answer::Reply(..) | Answer::Silent => {}
        }
    }

    /// Reports may be had by whom the policy admits; shutting down by the service's own user and root.
    fn people(&mut self, who: Credentials, report: Report) -> Answer {
        if !self.registry.config.admits(who.uid, who.gid) {
            return Answer::refused(Errno::ACCESS, "the service's policy does not admit this user");
        }
        let is_free = !matches!(report, Report::Shutdown | Report::Cycles(_)) || report == LOOK;
        if is_free {
            return self.registry.report(report);
        }
        let own = rustix::process::geteuid().as_raw();
        if !(who.uid == own || who.uid == 0) {
            let reason = "only the service's own user and root may end it, or change what it counts";
            return Answer::refused(Errno::PERM, reason);
        }
        if report != Report::Shutdown {
            return self.registry.report(report);
        }
        tracing::info!(pid = who.pid, "told to leave");
        self.over = true;
        Answer::plain(Reply::Done)
    }

    /// The other end of a line is gone.
    fn hang_up(&mut self, id: u32) {
        let Some(peer) = self.peers.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, peer.line.as_fd());
        let was_application = self.registry.applications.contains_key(&id);
        self.depart(id, false);
        if self.registry.config.private && self.registry.applications.is_empty() && !peer.asked {
            // A line that came and went without a hello: somebody looked whether we are here and will come back.
            let grace = if was_application { GRACE.0 } else { GRACE.1 };
            let at = Instant::now() + grace;
            self.leave = Some(self.leave.map_or(at, |known| known.max(at)));
        }
        if self.deaf {
            self.listen_again();
        }
    }

    /// Ends the line of a process that misbehaved.
    fn detach(&mut self, id: u32, reason: &str) {
        let Some(peer) = self.peers.get(&id) else { return };
        tracing::warn!(application = id, pid = peer.who.pid, uid = peer.who.uid, "detached: {reason}");
        self.registry.statistics.detached += 1;
        self.depart(id, true);
        self.hang_up(id);
    }

    fn depart(&mut self, id: u32, offender: bool) {
        let now = Instant::now();
        self.registry.depart(id, offender, now);
        self.reap = self.registry.reap(now, false);
        self.sweep_survivors(now);
        self.follow_bells();
    }

    /// A sweep within `pause`. One that is due earlier stays: connections that come all the time must not put it off.
    fn sweep_in(&mut self, pause: Duration, now: Instant) {
        if self.sweep.is_none_or(|(at, _)| now + pause < at) {
            self.sweep = Some((now + pause, pause));
        }
    }

    /// Memory shared with the dead ends as soon as the living let go of it.
    fn sweep_survivors(&mut self, now: Instant) {
        if self.registry.has_survivors() {
            self.sweep_in(SOON, now);
        }
    }

    fn detach_doomed(&mut self) {
        while let Some((id, reason)) = self.registry.doomed.pop() {
            self.detach(id, &reason);
        }
    }

    /// Starts and stops watching the bells of regions that came and went.
    fn follow_bells(&mut self) {
        for change in std::mem::take(&mut self.registry.bells_changed) {
            match change {
                BellChange::New(region, fd) => {
                    // Edge-triggered and never read: the application shares the descriptor and could make a read block.
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                    if let Err(e) = self.watch(fd.as_fd(), BELLS | u64::from(region), flags) {
                        tracing::error!("{e}");
                    }
                }
                // The application has the descriptor too: closing ours alone would not end the watch.
                BellChange::Gone(fd) => drop(epoll::delete(&self.epoll, fd.as_fd())),
            }
        }
    }

    /// The cores have said something.
    fn hear_cores(&mut self) {
        self.registry.hear_cores();
        self.more = self.registry.tcp.hear();
    }

    /// The port in words, for the banner.
    #[must_use]
    pub fn port(&self) -> &str {
        &self.registry.port
    }

    /// An application has news for the slow path.
    fn bell(&mut self, region: u32) {
        let Some(memory) = self.registry.regions.get(&region).map(|r| r.memory.clone()) else { return };
        let Some(block) = memory.region().context(Side::Zero, SLOW_CONTEXT) else { return };
        let layout = memory.region().layout();
        let bell = Doorbell::new(block, layout.words_per_group);
        let mut slots = Vec::new();
        // A hostile ringer never falls silent: the others have their turn in between.
        bell.drain(layout.params.slots, |slot| slots.push(slot));
        if !bell.prepare_sleep() {
            self.restless.push(region);
        }
        for slot in slots {
            let used = self.registry.regions.get(&region).and_then(|r| r.slots.get(slot));
            if let Some(Use::Queue) = used {
                self.registry.admit_queue((region, slot));
            }
        }
        self.registry.hear_held(region, Instant::now());
    }

    fn signal(&mut self) {
        tracing::info!("told to leave by a signal");
        self.over = true;
    }
}

/// Each application costs a handful of descriptors: take all that the kernel lets us have.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(e) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of descriptors stays as it is: {e}");
    }
}
