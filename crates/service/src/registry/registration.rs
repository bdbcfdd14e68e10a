//! Registration and regions: every request that is not a listen, connect or report.

use crate::config::values::PortKind;
use crate::cores::wakers::{new_eventfd, write_eventfd};
use crate::cores::{Command, RELAY_CORE};
use crate::registry::application::{Application, Fallen};
use crate::registry::family::Context;
use crate::registry::local::shown::Shown;
use crate::registry::memory::region::AppRegion;
use crate::registry::memory::size::{Size, fitting};
use crate::registry::output::Output;
use crate::registry::process::number::Number;
use crate::registry::process::procfs;
use crate::registry::report::statistics::Process;
use crate::registry::report::text;
use crate::registry::{Answer, Registry};
use crate::sys::random;
use control::{Itself, POPULATED_MOST, PROTOCOL, Parent, RegionInfo, Reply, Request, Settings, Welcome};
use queue::Doorbell;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use shm::{CONTEXTS, HELD_CONTEXT, Region, SLOW_CONTEXT, Side, TRUST, TRUST_CONTEXT};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The process at the other end of a control line, as the kernel reports it (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug)]
pub struct Credentials {
    /// Number of the process in the service's PID namespace; 0: it is not in there.
    pub pid: i32,
    /// Inode number of its descriptor; 0: not known. See [`Number`].
    pub inode: u64,
    /// User that it runs as.
    pub uid: u32,
    /// That user's primary group.
    pub gid: u32,
    /// Network namespace in which the control line was made (`SO_NETNS_COOKIE`).
    pub namespace: u64,
    /// It is root, or the service's own user, in the service's own namespaces: it may change and end the service.
    pub is_administrator: bool,
}

/// A user that the service works for. Root of a container may have the number of the host's root, and is another user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct User {
    /// The number that the kernel has for the user.
    pub uid: u32,
    /// The same as [`Credentials::is_administrator`].
    pub is_administrator: bool,
}

impl Credentials {
    /// The process at the other end, of the control line with number `application`.
    pub const fn number(&self, application: u32) -> Number {
        Number { pid: self.pid, application, inode: self.inode }
    }

    /// The user at the other end.
    pub const fn user(&self) -> User {
        User { uid: self.uid, is_administrator: self.is_administrator }
    }
}

/// The place of a process in its family.
struct Descent {
    /// Ids of its ancestors by fork, the oldest first.
    ancestors: Vec<u32>,
    /// Its holder bit, 0..63.
    holder: u8,
}

/// Descriptors of an application's region: its memfd and the slow path's waker. Each core has one more.
const REGION: usize = 2;
/// Most characters kept of a program's name.
const NAME_LEN: usize = 32;

/// An eventfd to write, and a descriptor for its sleeper. A process that has the eventfd can fill it and clear its `O_NONBLOCK`, so that
/// the next writer blocks. So an untrusted sleeper gets an epoll descriptor that watches the eventfd instead; it wakes the sleeper equally
/// well (edge-triggered, never read).
pub fn new_waker_for(trusted: bool) -> rustix::io::Result<(Arc<OwnedFd>, Arc<OwnedFd>)> {
    let waker = new_eventfd()?;
    let theirs = waker_for(&waker, trusted)?;
    Ok((waker, theirs))
}

/// The descriptor that a sleeper gets: `waker` itself, or an epoll descriptor that watches it.
fn waker_for(waker: &Arc<OwnedFd>, trusted: bool) -> rustix::io::Result<Arc<OwnedFd>> {
    if trusted {
        return Ok(waker.clone());
    }
    let theirs = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&theirs, waker.as_fd(), epoll::EventData::new_u64(0), flags)?;
    Ok(Arc::new(theirs))
}

impl Registry {
    /// Answers the first message on the control line with number `id`: registers the process, or notes that a child is promised.
    pub fn begin_line(&mut self, id: u32, who: Credentials, request: Request) -> Answer {
        match request {
            _ if self.has_promise(id) => {
                Answer::Offence("more came on the line of a promised child".to_owned())
            }
            Request::Expect(parent) => self.expect(id, who, parent),
            request => self.hello(id, who, request),
        }
    }

    /// Answers `Request::Hello`: registers the process, or refuses it.
    fn hello(&mut self, id: u32, who: Credentials, request: Request) -> Answer {
        let Request::Hello { protocol, layout, name, parent, itself } = request else {
            return Answer::Offence("its first message was no hello".to_owned());
        };
        if (protocol, layout) != (PROTOCOL, shm::VERSION) {
            return Answer::refused(
                Errno::PROTO,
                &format!(
                    "the library speaks protocol {protocol} with memory layout {layout}, the service \
                     {PROTOCOL} with {}: use the library of the service's version",
                    shm::VERSION
                ),
            );
        }
        let is_promised = parent.is_some_and(|parent| self.is_promised(parent));
        if !self.admits(who, is_promised) {
            return Answer::refused(Errno::ACCESS, "the service's policy does not admit this user");
        }
        if self.applications.len() >= self.config.max_applications as usize {
            return Answer::refused(Errno::USERS, "the service has as many applications as it may");
        }
        let descent = match self.descent(id, parent) {
            Ok(descent) => descent,
            Err(refusal) => return *refusal,
        };
        let Some(secret) = secret() else {
            return Answer::refused(Errno::AGAIN, "the kernel gave no random numbers");
        };
        let holder = descent.holder;
        self.admit_application(id, who, &name, itself, descent, secret);
        let settings = Settings {
            own: self.config.link.own.iter().map(|n| (n.address, n.prefix)).collect(),
            has_port: self.config.port != PortKind::None,
            ring_max: self.config.ring_max,
            spin_ns: self.config.spin_ns,
            cores: self.cores.len() as u8,
        };
        Answer::plain(Reply::Welcome(Welcome { application: id, secret, holder, settings }))
    }

    /// The descent of a new process; checks that it is the child that it says it is.
    fn descent(&self, id: u32, parent: Option<Parent>) -> Result<Descent, Box<Answer>> {
        let Some(parent) = parent else { return Ok(Descent { ancestors: Vec::new(), holder: 0 }) };
        let family = self.family_of(parent.application).and_then(|f| Some((f, self.families.get(&f)?)));
        let member = family.and_then(|(_, f)| f.member(parent.application));
        let (Some((_, family)), Some(member)) = (family, member) else {
            return Err(Box::new(Answer::refused(Errno::SRCH, "its parent is not registered here")));
        };
        if !family.is_parent(parent) || !family.is_free(parent.holder) {
            return Err(Box::new(Answer::Offence(format!("process {id} is no child of that parent"))));
        }
        let mut ancestors = member.ancestors.clone();
        ancestors.push(parent.application);
        Ok(Descent { ancestors, holder: parent.holder })
    }

    fn admit_application(
        &mut self,
        id: u32,
        who: Credentials,
        name: &str,
        itself: Itself,
        Descent { ancestors, holder }: Descent,
        secret: u64,
    ) {
        let name = text::bounded(name, NAME_LEN);
        let number = who.number(id);
        tracing::debug!(application = id, pid = %number, uid = who.uid, name, "registered");
        let root = ancestors.first().copied().unwrap_or(id);
        let fulfilled = self.families.entry(root).or_default().join(id, holder, secret, ancestors.clone());
        self.forget_promise(fulfilled);
        let process = Process { number, process: name, uid: who.uid, alive: true, ..Process::default() };
        let application = Application {
            id,
            holder,
            uid: who.uid,
            gid: who.gid,
            is_administrator: who.is_administrator,
            cgroup: if self.policy.asks_for_cgroups() { procfs::cgroup(number) } else { None },
            namespace: who.namespace,
            ancestors,
            region: None,
            is_cramped: false,
            pairs: BTreeSet::new(),
            queues: BTreeSet::new(),
            sockets: 0,
            flows: 0,
            itself,
            process,
            fallen: Fallen::default(),
        };
        self.applications.insert(id, application);
    }

    /// Answers the requests of a registered process.
    pub fn request(&mut self, id: u32, request: Request, shown: Option<&Shown>) -> Answer {
        if let Some(application) = self.applications.get_mut(&id) {
            application.process.requests += 1;
        }
        let answer = self.answer(id, request, shown);
        if matches!(answer, Answer::Reply(Reply::Connecting { .. }, _)) {
            self.sweep_later();
        }
        answer
    }

    /// A process has let go of what the service may hold: its user's next round begins soon.
    pub fn hurry_round(&mut self, id: u32) {
        if let Some(a) = self.applications.get(&id) {
            self.trusts.hurry(a.uid, self.now, Duration::ZERO);
        }
    }

    /// Hears a message of a registered process that wants no answer. What would come with descriptors is not made.
    pub fn heed(&mut self, id: u32, request: Request, shown: Option<&Shown>) -> Answer {
        match request {
            Request::OpenRegion { .. }
            | Request::Context { .. }
            | Request::Region { .. }
            | Request::Connect { .. } => Answer::Silent,
            Request::Listen { .. } if shown.is_some() => Answer::Silent,
            Request::Waker { region, context } => {
                self.wake_sleeper(id, region, context);
                Answer::Silent
            }
            Request::QueueWaker { queue, application, context } => {
                self.wake_at_queue(id, queue, application, context);
                Answer::Silent
            }
            request => self.request(id, request, shown),
        }
    }

    fn answer(&mut self, id: u32, request: Request, shown: Option<&Shown>) -> Answer {
        match request {
            Request::Leave(left) => self.leave(id, left, shown),
            Request::Present { sock } => self.present(id, sock, shown),
            Request::LetGo => {
                self.hurry_round(id);
                Answer::Silent
            }
            Request::Hello { .. } => Answer::Offence("a second hello".to_owned()),
            Request::Expect(_) => Answer::Offence("a child was promised on an application's line".to_owned()),
            Request::OpenRegion { room } => self.open_region(id, room),
            Request::Room { room } => {
                let usual = self.usual_size();
                if let Some(a) = self.applications.get_mut(&id) {
                    a.is_cramped = fitting(usual, room) != usual;
                }
                Answer::Silent
            }
            Request::Mapped { region } => self.mapped(id, region),
            Request::Context { context } => self.context(id, context),
            Request::Waker { region, context } => self.waker(id, region, context),
            Request::Populated { region, bytes } => self.populated(id, region, bytes),
            Request::Listen { backlog, nonblocking } => self.listen(id, backlog, nonblocking, shown),
            Request::Nonblocking { queue, on } => self.set_nonblocking(id, queue, on),
            Request::Unlisten { queue, because } => self.unlisten(id, queue, because),
            Request::ListenAgain { queue, reuse_address } => self.listen_again(queue, reuse_address),
            Request::Accepted { queue } => self.accepted_one(id, queue),
            Request::Take { queue, grant } => self.take(id, queue, grant),
            Request::QueueWaker { queue, application, context } => {
                self.queue_waker(id, queue, application, context)
            }
            Request::Connect { remote, options, has_looked } => {
                self.connect(id, shown, remote, options, has_looked)
            }
            Request::SetOptions { region, slot, options } => self.set_options(id, region, slot, &options),
            Request::WantPort { at } => self.want_port(id, at),
            Request::Closed { region, slot } => self.closed(id, region, slot),
            Request::Congestion { name } => self.judge_congestion(id, name),
            Request::Info { region, slot } => self.flow_info(id, region, slot),
            Request::Region { region } => self.tell_region(id, region),
            Request::Refused => {
                if let Some(a) = self.applications.get_mut(&id) {
                    a.process.refused += 1;
                }
                Answer::Silent
            }
            Request::FellBack { reason, inode } => {
                if let Some(a) = self.applications.get_mut(&id) {
                    a.process.fell_back(reason);
                    a.fallen.add(inode, reason);
                }
                Answer::Silent
            }
            Request::Report(_) => Answer::Offence("a report that the control loop did not take".to_owned()),
        }
    }

    /// Size of a region, as configured.
    pub fn usual_size(&self) -> Size {
        Size { slots: self.config.region_slots, data_len: self.config.region_data }
    }

    /// Makes a new region of that family known to the table of wakers, the cores and the slow path. `core` reads its waker of [`TRUST_CONTEXT`].
    pub fn introduce_region(&mut self, region: &AppRegion, family: u32, core: usize) {
        let index = region.memory.index;
        self.wakers.set_region(index, Some((family, region.memory.area.clone())));
        self.wakers.set_context(family, TRUST_CONTEXT, Some(self.cores[core].waker()));
        for (core, waker) in region.wakers[1..].iter().enumerate() {
            self.command(core, Command::Watch(waker.clone(), Some(index)));
        }
        self.tcp.slow.add_region(index, &region.memory.area);
    }

    fn open_region(&mut self, id: u32, room: u64) -> Answer {
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        if a.region.is_some() {
            return Answer::Offence("it asked for a second region".to_owned());
        }
        let (family, uid) = (a.family(), a.uid);
        let Some(charge) = self.charge(id, REGION + self.cores.len()) else {
            return Answer::out_of_descriptors();
        };
        let wakers: rustix::io::Result<Vec<_>> = (0..=self.cores.len()).map(|_| new_eventfd()).collect();
        let Ok(wakers) = wakers else {
            return Answer::out_of_descriptors();
        };
        let region_id = self.new_region_id();
        let Ok(index) = self.indices.take(region_id) else {
            return Answer::refused(Errno::USERS, "the service has as many regions as it may");
        };
        let usual = self.usual_size();
        let size = fitting(usual, room);
        let limits = self.sending_limits(id);
        let region = match AppRegion::create(region_id, index as u16, id, size, wakers, limits, self.now) {
            Ok(region) => AppRegion { charge: Some(charge), uid, ..region },
            Err(e) => {
                self.indices.release(index);
                return Answer::refused(Errno::NOMEM, &e.to_string());
            }
        };
        self.introduce_region(&region, family, RELAY_CORE);
        arm(region.memory.region());
        region.memory.region().header().cycles.store(self.counting.word(), Ordering::Relaxed);
        let info = RegionInfo::of(&region.memory.region().layout().params, Side::One, true);
        let Ok(memfd) = region.memory.fd.try_clone() else {
            return Answer::out_of_descriptors();
        };
        let mut fds = vec![Arc::new(memfd)];
        fds.extend(region.wakers.iter().cloned());
        self.outputs.add(Output::Watch(region_id, region.wakers[0].clone()));
        self.regions.insert(region_id, region);
        if let Some(a) = self.applications.get_mut(&id) {
            a.region = Some(region_id);
            a.is_cramped = size != usual;
        }
        Answer::Reply(Reply::Region(info), fds)
    }

    fn mapped(&mut self, id: u32, region: u32) -> Answer {
        if let Some(r) = self.regions.get_mut(&region).filter(|r| r.owner == id) {
            r.sealed = Region::is_sealed(r.memory.fd.as_fd());
            if !r.sealed {
                return Answer::Offence("its region is not sealed".to_owned());
            }
            return Answer::plain(Reply::Done);
        }
        // A forked child reads records in its parent's accept queue, and then maps the pair regions that they name.
        let parties = self.pairs.get(region).map(|pair| pair.parties);
        let alone = parties.is_some_and(|parties| parties.iter().all(|p| !self.has_forked(*p)));
        let Some(pair) = self.pairs.get_mut(region) else {
            // The pair region may have ended meanwhile.
            return Answer::plain(Reply::Done);
        };
        if pair.note_mapped(id) && alone && !pair.is_sealed() {
            self.outputs.add(Output::Seal { application: id, region, memfd: pair.fd.clone() });
        }
        Answer::plain(Reply::Done)
    }

    /// True when a process, dead or alive, has relatives by fork, or is about to have one: the library takes a holder bit for the child before
    /// it forks.
    pub fn has_forked(&self, id: u32) -> bool {
        let own = self.applications.get(&id).map_or(0, |a| 1 << a.holder);
        self.taken_holders(id) & !own != 0
    }

    fn context(&mut self, id: u32, context: u32) -> Answer {
        let Some(family) = self.applications.get(&id).map(Application::family) else {
            return Answer::Silent;
        };
        if context as usize >= CONTEXTS || context == TRUST_CONTEXT {
            return Answer::Offence(format!("context {context} is out of range"));
        }
        let known = self.families.get(&family).and_then(|its| its.context(context));
        if let Some(known) = known.filter(|known| known.application == id) {
            // It has lost a descriptor, of this context or of a waker.
            let Ok(theirs) = waker_for(&known.eventfd, false) else { return Answer::out_of_descriptors() };
            self.hand_over_wakers(id, family, context);
            return Answer::Reply(Reply::Done, vec![theirs]);
        }
        let Some(charge) = self.charge(id, 1) else { return Answer::out_of_descriptors() };
        // The service must never block in a write because of an application.
        let Ok((eventfd, theirs)) = new_waker_for(false) else {
            return Answer::out_of_descriptors();
        };
        let Some(its) = self.families.get_mut(&family) else { return Answer::Silent };
        if !its.add_context(context, Context::new(id, eventfd.clone(), charge)) {
            return Answer::Offence(format!("context {context} is another process's"));
        }
        self.wakers.set_context(family, context, Some(eventfd));
        self.hand_over_wakers(id, family, context);
        Answer::Reply(Reply::Done, vec![theirs])
    }

    /// The context number may have been a dead relative's. Other processes have eventfds that wake it, and its new owner must sleep on the
    /// same ones.
    fn hand_over_wakers(&self, id: u32, family: u32, context: u32) {
        for (region, pair) in self.pairs.iter() {
            for side in (0..2).filter(|side| self.family_of(pair.parties[*side]) == Some(family)) {
                if pair.waker(side, context).is_some() {
                    self.push_waker(id, region, context, None);
                }
            }
        }
        // Those that connect to its listeners directly.
        for (queue, listener) in &self.listeners.all {
            if listener.wakers.contains_key(&(id, context)) {
                self.push_waker(id, *queue, context, None);
            }
        }
    }

    /// What process `id` sleeps on so that others wake its `context` for that region or accept queue. `None`: nothing wakes it there any more;
    /// `Some(None)`: there is no descriptor for it now.
    pub fn waker_of(&self, id: u32, region: u32, context: u32) -> Option<Option<Arc<OwnedFd>>> {
        let uid = |application| self.applications.get(&application).map(|a| a.uid);
        let (waker, trusted) = match self.pairs.get(region) {
            Some(pair) => {
                let family = self.family_of(id)?;
                let of_family = |side: &usize| self.family_of(pair.parties[*side]) == Some(family);
                let wakers =
                    (0..2).filter(of_family).filter_map(|side| Some((side, pair.waker(side, context)?)));
                let (side, waker) = wakers.last()?;
                (waker, uid(pair.parties[side ^ 1]) == uid(id))
            }
            None => (self.listeners.all.get(&region)?.wakers.get(&(id, context))?, false),
        };
        Some(waker_for(waker, trusted).ok())
    }

    /// Side of a pair region that a process is on: as a party, else as a party's descendant.
    pub fn side_in(&self, pair: u32, id: u32) -> Option<usize> {
        let (pair, a) = (self.pairs.get(pair)?, self.applications.get(&id)?);
        let exact = pair.parties.iter().position(|p| *p == id);
        exact.or_else(|| pair.parties.iter().position(|p| a.descends_from(*p)))
    }

    fn waker(&mut self, id: u32, region: u32, context: u32) -> Answer {
        let Some(side) = self.side_in(region, id) else {
            return Answer::refused(Errno::NOENT, "that pair region is gone");
        };
        let sleeper = side ^ 1;
        if context == TRUST_CONTEXT {
            self.wake_core(RELAY_CORE);
            let waker = self.pairs.get(region).and_then(|pair| pair.waker(sleeper, context).cloned());
            return waker.map_or_else(
                || Answer::refused(Errno::NOENT, "nobody sleeps there"),
                |waker| Answer::Reply(Reply::Done, vec![waker]),
            );
        }
        let Some(target) = self.wake_sleeper(id, region, context) else {
            return Answer::refused(Errno::NOENT, "nobody sleeps there");
        };
        let Some(pair) = self.pairs.get(region) else { return Answer::Silent };
        if let Some(known) = pair.waker(sleeper, context) {
            return Answer::Reply(Reply::Done, vec![known.clone()]);
        }
        let Some(charge) = self.charge(id, 1) else { return Answer::out_of_descriptors() };
        let uid = |application| self.applications.get(&application).map(|a| a.uid);
        // Two processes of one user could stop each other anyway, so they share the eventfd itself, which is faster.
        let Some(new) = self.new_waker(target, region, context, uid(id) == uid(target)) else {
            return Answer::out_of_descriptors();
        };
        if let Some(pair) = self.pairs.get_mut(region) {
            pair.add_waker(sleeper, context, new.clone());
            pair.charges.push(charge);
        }
        Answer::Reply(Reply::Done, vec![new])
    }

    /// Wakes `context` of the other side of a pair region. Returns its process.
    fn wake_sleeper(&self, id: u32, region: u32, context: u32) -> Option<u32> {
        let sleeper = self.side_in(region, id)? ^ 1;
        if context == TRUST_CONTEXT {
            self.wake_core(RELAY_CORE);
            return None;
        }
        let family = self.family_of(self.pairs.get(region)?.parties[sleeper])?;
        let target = self.families.get(&family)?.context(context)?.application;
        self.wake(family, context);
        Some(target)
    }

    /// A new eventfd by which other processes wake a context of process `target` for a pair region or an accept queue. The process is told.
    pub fn new_waker(
        &mut self,
        target: u32,
        region: u32,
        context: u32,
        trusted: bool,
    ) -> Option<Arc<OwnedFd>> {
        let (new, theirs) = new_waker_for(trusted).ok()?;
        // Before any other process has it: an epoll set that adds it later then reports it at once.
        write_eventfd(new.as_fd());
        self.push_waker(target, region, context, Some(theirs));
        Some(new)
    }

    fn populated(&mut self, id: u32, number: u32, bytes: u64) -> Answer {
        const STEP: u64 = 64 << 10;
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let Some(region) = self.regions.get_mut(&number).filter(|r| a.descends_from(r.owner)) else {
            return Answer::Offence("it populated a region that is none of its".to_owned());
        };
        if !region.sealed {
            return Answer::Offence("it populated its region before saying that it is mapped".to_owned());
        }
        let known = region.memory.area.lendable();
        if bytes > known + POPULATED_MOST {
            return Answer::refused(Errno::INVAL, "so much is not looked at in one piece");
        }
        if !(bytes.is_multiple_of(STEP) && region.memory.raise_watermark(bytes)) {
            return Answer::Offence(format!("its region is not populated up to {bytes}"));
        }
        if region.growing.is_some_and(|wanted| wanted <= bytes) {
            region.growing = None;
        }
        let is_first = a.region == Some(number) && !a.ancestors.is_empty();
        (0..self.cores.len()).for_each(|core| self.command(core, Command::Fed(number)));
        if is_first {
            self.ask_to_grow(id);
        }
        Answer::plain(Reply::Done)
    }

    fn tell_region(&mut self, id: u32, region: u32) -> Answer {
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let gone = || Answer::refused(Errno::NOENT, "that pair region is gone");
        let Some(pair) = self.pairs.get(region) else { return gone() };
        // A process that has read an accept record is an acceptor only on the second side: one of the connector's family may have got the
        // listening socket by its descriptor. Descendants of both parties may be on both sides.
        let side = match pair.parties.map(|party| a.descends_from(party)) {
            [_, true] => Side::One,
            [true, false] => Side::Zero,
            [false, false] => return gone(),
        };
        let is_own = pair.parties[side.index()] == id;
        let info = RegionInfo::of(&pair.region.layout().params, side, is_own);
        let fds = if pair.is_sealed() { Vec::new() } else { vec![pair.fd.clone()] };
        if let Some(a) = self.applications.get_mut(&id) {
            a.pairs.insert(region);
        }
        Answer::Reply(Reply::Region(info), fds)
    }
}

/// Prepares a new region. Announces the sleep of the control thread, so that the application writes its waker only once until the waker was
/// read. Marks the context and the holder bit of the service as taken.
fn arm(region: &Region) {
    let header = region.header();
    header.holders_taken.fetch_or(TRUST, Ordering::Relaxed);
    let word = TRUST_CONTEXT as usize / 64;
    header.context_taken[Side::One.index()][word].fetch_or(1 << (TRUST_CONTEXT % 64), Ordering::Relaxed);
    for context in [SLOW_CONTEXT, HELD_CONTEXT] {
        // A new region cannot have news yet.
        let _ = Doorbell::of(region, Side::Zero, context).is_some_and(Doorbell::prepare_sleep);
    }
}

fn secret() -> Option<u64> {
    random().ok().map(u64::from_ne_bytes)
}
