//! A registry with what the control loop does around it: it hands inputs over, hears the core, and moves time on. The core has no thread.

use super::checks;
use crate::config::{Options, Sharing};
use crate::cores::Common;
use crate::cores::by_hand::ByHand;
use crate::cores::wakers::new_eventfd;
use crate::cores::wakers::{Wakers, write_eventfd};
use crate::daemon::clock::Clock;
use crate::daemon::net_port;
use crate::registry::local::shown::look;
use crate::registry::output::{Output, Pushed};
use crate::registry::policy::permission::is_privileged;
use crate::registry::process::fd_liveness::{Watched, watch};
use crate::registry::registration::Credentials;
use crate::registry::report::profile_switch::Counting;
use crate::registry::scaling::machine::Machine;
use crate::registry::scaling::{Scaling, Way};
use crate::registry::tcp::{self, Tcp};
use crate::registry::{Answer, Registry};
use crate::sys;
use base::Seed;
use control::{Parent, Push, Reply, Request};
use elastic::load::Loads;
use fastpath::Others;
use rustix::fd::{AsFd, OwnedFd};
use shm::Region;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most turns of the core until all is quiet.
const TURNS: usize = 64;

/// Descriptors that came with a reply.
pub type Descriptors = Vec<Arc<OwnedFd>>;

/// The registry and its surroundings.
pub struct World {
    /// The registry under test.
    pub registry: Registry,
    /// The core that relays.
    pub core: ByHand,
    /// The regions of which the loop has been told to watch the slow-path waker.
    pub watched: BTreeMap<u32, Arc<OwnedFd>>,
    /// Descriptors that the core watches before any application comes.
    pub watched_first: usize,
    /// Connections that processes have made without the service.
    pub direct: usize,
    /// Messages that processes were sent unasked, by their ids.
    pushes: BTreeMap<u32, Vec<Push>>,
    /// Time that users were charged with outside their turns.
    pub spent: BTreeMap<u32, Duration>,
    next_line: u32,
    /// Draws whether the registry sweeps before it hears what the core has done.
    seed: Seed,
}

impl World {
    /// A service without a port and without applications.
    pub fn new(sharing: Sharing, seed: Seed) -> Self {
        Self::with_slots(sharing, seed, 64)
    }

    /// The same with regions of so many slots.
    pub fn with_slots(sharing: Sharing, seed: Seed, slots: u32) -> Self {
        let options = Options {
            sharing: Some(sharing),
            region_slots: Some(slots),
            region_mib: Some(1),
            ..Options::default()
        };
        let config = options.resolve().unwrap();
        let mut opened = net_port::open(&config).unwrap();
        let watched = Watched::open().unwrap();
        let common = Common {
            core_wakers: vec![new_eventfd().unwrap()].into(),
            flows: tcp::flows(&config).unwrap(),
            wakers: Arc::new(Wakers::default()),
            told: new_eventfd().unwrap(),
            clock: Clock::start(),
            spin: base::Duration::ZERO,
            loads: Arc::new(Loads::new(1)),
            cycles: Arc::default(),
        };
        let others = Others::alone(common.flows.config());
        let (handle, core, exceptions, commands) =
            ByHand::prepare(common.clone(), others, opened.queues.remove(0)).unwrap();
        let way = Way { steering: None, means: String::new() };
        let told = common.told.clone();
        let scaling = Scaling::new(config.cores, way, common.loads.clone(), Machine::open(), told).unwrap();
        let rings = vec![(exceptions, commands)];
        let tcp =
            Tcp::new(&config, common.flows.clone(), opened.mac, opened.mtu, rings, Instant::now()).unwrap();
        let counting = Counting::new(common.cycles);
        let registry = Registry::new(config, vec![handle], common.wakers, tcp, scaling, counting, watched);
        Self {
            watched_first: core.watched(),
            registry,
            core,
            watched: BTreeMap::new(),
            direct: 0,
            pushes: BTreeMap::new(),
            spent: BTreeMap::new(),
            next_line: 1,
            seed,
        }
    }

    /// A process with that number, of that user, makes a control line and says hello.
    pub fn hello(&mut self, pid: u32, user: u32, request: Request) -> Reply {
        let (id, answer) = self.begin_line(pid, user, request);
        self.pushes.insert(id, Vec::new());
        reply_of(answer).0
    }

    /// A process with that number, of that user, promises a child. Returns the number of the line on which it does so.
    pub fn expect(&mut self, pid: u32, user: u32, parent: Parent) -> u32 {
        let (line, answer) = self.begin_line(pid, user, Request::Expect(parent));
        assert!(matches!(answer, Answer::Silent), "an honest process may not fork: {answer:?}");
        line
    }

    /// A process with that number, of that user, makes a control line and says that.
    pub fn begin_line(&mut self, pid: u32, user: u32, request: Request) -> (u32, Answer) {
        let id = self.next_line;
        self.next_line += 1;
        let who = Credentials {
            pid: pid as i32,
            inode: 0,
            uid: user,
            gid: user,
            namespace: sys::own_namespace(),
            is_administrator: is_privileged(user),
        };
        let answer = self.registry.begin_line(id, who, request);
        self.settle();
        (id, answer)
    }

    /// A registered process asks.
    pub fn ask(&mut self, id: u32, request: Request) -> (Reply, Descriptors) {
        let answer = self.registry.request(id, request, None);
        self.settle();
        reply_of(answer)
    }

    /// A registered process asks and shows a socket.
    pub fn ask_showing(&mut self, id: u32, request: Request, socket: &OwnedFd) -> (Reply, Descriptors) {
        let shown = look(socket).unwrap();
        let answer = match self.registry.request(id, request, Some(&shown)) {
            // What a helper thread does.
            Answer::Watch(of, set, answer) => {
                let is_added = watch(set.as_fd(), socket, of.cookie).is_ok();
                self.registry.watched(of, is_added, *answer)
            }
            answer => answer,
        };
        self.settle();
        reply_of(answer)
    }

    /// A registered process says something that has no answer.
    pub fn say(&mut self, id: u32, request: Request) {
        let answer = self.registry.request(id, request, None);
        assert!(!matches!(answer, Answer::Offence(_)), "an honest process was detached: {answer:?}");
        self.settle();
    }

    /// The messages that a process was sent unasked.
    pub fn pushes(&mut self, id: u32) -> Vec<Push> {
        self.pushes.get_mut(&id).map(std::mem::take).unwrap_or_default()
    }

    /// The control line of a process is closed: it has ended, or has begun another program.
    pub fn hang_up(&mut self, id: u32) {
        self.pushes.remove(&id);
        self.registry.depart(id, false);
        self.settle();
    }

    /// Time goes on, from deadline to deadline.
    pub fn advance(&mut self, time: Duration) {
        let end = self.registry.now + time;
        let mut at_once = 0;
        while let Some(due) = self.registry.next_deadline().filter(|due| *due <= end) {
            at_once = if due <= self.registry.now { at_once + 1 } else { 0 };
            assert!(at_once < TURNS, "a deadline does not pass");
            self.registry.now = due.max(self.registry.now);
            self.registry.handle_timers();
            self.registry.pump();
            self.settle();
        }
        self.registry.now = end;
    }

    /// The core and the registry hear each other until nothing is left to say.
    pub fn settle(&mut self) {
        for _ in 0..TURNS {
            let is_busy = self.core.turn(self.registry.tcp_now());
            if self.seed.below(16) == 0 {
                // As if another process connected meanwhile and found no free port. Seldom: what is to be swept later must be so, too.
                self.registry.sweep();
                checks::trusts_agree(&self.registry);
            }
            self.registry.hear_cores();
            let has_more = self.registry.hear_exceptions();
            // The core has yet to hear what is said to it now.
            let is_over = self.registry.outputs.is_empty();
            while !self.registry.take_unheard().is_empty() {}
            self.carry_out();
            if is_over && !(is_busy || has_more) {
                return;
            }
        }
        panic!("core and registry never come to rest");
    }

    /// Does what the registry wants done.
    pub fn carry_out(&mut self) {
        while let Some(output) = self.registry.outputs.take() {
            match output {
                Output::Push(Pushed { application, push, .. }) => {
                    let context = match push {
                        Push::Waker { context, .. } => Some(context),
                        _ => None,
                    };
                    self.pushes
                        .get_mut(&application)
                        .into_iter()
                        .for_each(|pushes| pushes.push(push.clone()));
                    self.registry.tell_pushed(application, context);
                }
                Output::Watch(region, waker) => {
                    assert!(self.watched.insert(region, waker).is_none(), "a waker twice");
                }
                Output::Unwatch(waker) => {
                    let before = self.watched.len();
                    self.watched.retain(|_, known| !Arc::ptr_eq(known, &waker));
                    assert_eq!(self.watched.len() + 1, before, "a waker that was not watched");
                }
                Output::Wake(eventfd) => write_eventfd(eventfd.as_fd()),
                Output::Command(core, command) => self.registry.cores[core].say(command),
                Output::Seal { region, memfd, .. } => {
                    Region::seal(memfd.as_fd()).unwrap();
                    self.registry.pairs.get_mut(region).into_iter().for_each(|pair| pair.note_sealed());
                }
                Output::Spent(user, time) => *self.spent.entry(user).or_default() += time,
                Output::Detach(id, why) => panic!("the honest process {id} is detached: {why}"),
            }
        }
    }
}

/// The reply to an honest process.
fn reply_of(answer: Answer) -> (Reply, Descriptors) {
    match answer {
        Answer::Reply(reply, descriptors) => (reply, descriptors),
        other => panic!("an honest process gets no reply: {other:?}"),
    }
}
