//! This process's registration with the service: the control line, the regions, what the service pushes, its death.

use crate::accept_queue::Queue;
use crate::direct::{self, Ways};
use crate::fork_locks::Held;
use crate::host::HOST;
use crate::log::{Level, log};
use crate::nap::Naps;
use crate::registration::Announced;
use crate::reserved::{Internal, unclaim};
use crate::rpc::Exchange;
use crate::sleeper::Context;
use crate::sys::signal::Deferred;
use crate::sys::{self, cycle_account};
use crate::{config, detached};
use control::{
    LineError, POPULATED_MOST, Parent, Push, Received, RegionInfo, Reply, Request, ToApplication, ToService,
    Welcome,
};
use cycles::Section;
use endpoint::region::Mapped;
use endpoint::{populate, ring_reclaim};
use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::io::Errno;
use shm::{Region, RegionError, Side};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// Longest wait for the service to read what a `vfork` child says.
const HEARD_MOST: Duration = Duration::from_millis(100);

/// This process's registration with the service.
#[derive(Debug)]
pub struct Client {
    pub(crate) exchange: Mutex<Exchange>,
    pub(crate) control: RawFd,
    /// This process's command name.
    pub(crate) name: Arc<str>,
    /// Network namespace in which the control line was made.
    pub namespace: u64,
    /// The service's first message.
    pub welcome: Welcome,
    /// This process's application region.
    pub home: Arc<Mapped>,
    /// The application region that numbers, in its header, contexts and holders for the whole fork family.
    pub oldest: Arc<Mapped>,
    pub(crate) regions: RwLock<HashMap<(u32, u8), Arc<Mapped>>>,
    /// Regions that the service does not give to this process: they have ended, or are other processes'. Socket blocks may name them still, each
    /// until it is used again.
    gone: Mutex<HashSet<u32>>,
    /// True once the service is gone.
    pub dead: AtomicBool,
    /// Contexts by their number.
    pub contexts: Mutex<BTreeMap<u32, Weak<Context>>>,
    /// Contexts without a number, of threads that nap.
    pub(crate) bare: Mutex<Vec<Weak<Context>>>,
    /// The threads that nap now.
    pub(crate) naps: Naps,
    /// Contexts of ended threads and closed sets, for the next ones.
    pub free: Mutex<Vec<Arc<Context>>>,
    /// The rights to connect without asking the service.
    pub ways: Ways,
    /// Accept queues that are mapped here, by id.
    queues: RwLock<HashMap<u32, Arc<Queue>>>,
}

/// Locks, even if the last holder panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    pub(crate) fn new(
        mut said: Announced,
        parent: Option<&Self>,
        welcome: Welcome,
        home: Arc<Mapped>,
    ) -> Arc<Self> {
        cycle_account::follow(&home.region);
        said.exchange.hold_room();
        let oldest = parent.map_or_else(|| home.clone(), |p| p.oldest.clone());
        let mut regions = parent
            .map_or_else(HashMap::new, |p| p.regions.read().unwrap_or_else(PoisonError::into_inner).clone());
        regions.insert((home.id, home.side as u8), home.clone());
        if parent.is_none() {
            let taken = &oldest.region.header().holders_taken;
            taken.fetch_or(1 << (welcome.holder & 63), Ordering::Relaxed);
            // A child inherits the limits of its parent.
            HOST.limit_rings(welcome.settings.ring_max);
            HOST.begin_rings(config::ring_min());
            let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_notsent_lowat").unwrap_or_default();
            // Without the kernel's setting there is no limit.
            HOST.set_not_sent_low_water(text.trim().parse().unwrap_or(u32::MAX));
        }
        log(Level::Debug, format_args!("registered as application {}", welcome.application));
        let queues = parent.map_or_else(HashMap::new, Self::all_queues);
        Arc::new(Self::assemble(said, welcome, home, oldest, regions, queues))
    }

    pub(crate) fn assemble(
        said: Announced,
        welcome: Welcome,
        home: Arc<Mapped>,
        oldest: Arc<Mapped>,
        regions: HashMap<(u32, u8), Arc<Mapped>>,
        queues: HashMap<u32, Arc<Queue>>,
    ) -> Self {
        Self {
            exchange: Mutex::new(said.exchange),
            control: said.control,
            name: said.name,
            namespace: sys::namespace(said.control),
            welcome,
            home,
            oldest,
            regions: RwLock::new(regions),
            gone: Mutex::default(),
            dead: AtomicBool::new(false),
            contexts: Mutex::new(BTreeMap::new()),
            bare: Mutex::default(),
            naps: Naps::default(),
            free: Mutex::new(Vec::new()),
            ways: Ways::default(),
            queues: RwLock::new(queues),
        }
    }

    /// Asks the service. Regions that come with the answer are mapped before another thread can ask.
    pub fn ask(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        self.ask_with(request, None)
    }

    /// As [`ask`](Self::ask), showing a descriptor.
    pub fn ask_with(&self, request: Request, fd: Option<RawFd>) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        let _controlling = cycle_account::enter(Section::Control);
        if self.dead.load(Ordering::Relaxed) {
            return Err(Errno::PIPE);
        }
        if detached::is_locked() && !(detached::has_line() && matches!(request, Request::Waker { .. })) {
            return Err(Errno::PERM);
        }
        let _deferred = Deferred::begin();
        let (mut pushes, mut late) = (Vec::new(), Vec::new());
        let (answer, new) = {
            let mut exchange = lock(&self.exchange);
            let heard =
                exchange.listen(|reply, fds| late.push((reply, fds)), |push, fds| pushes.push((push, fds)));
            let sent = match heard {
                // It is silent, and is told later what it must be told.
                Ok(()) | Err(LineError::WouldBlock) => exchange.send(request, fd),
                Err(e) => Err(e),
            };
            let mut answer = sent.and_then(|()| exchange.answer(|push, fds| pushes.push((push, fds))));
            let new = match &mut answer {
                Ok((Reply::Region(info), fds)) => self.adopt(*info, fds.drain(..).next()),
                Ok((Reply::Connecting { region, lent, .. }, fds)) => {
                    if let Some(lent) = lent.as_ref().filter(|lent| lent.is_new) {
                        self.adopt_queue(lent.queue, fds);
                    }
                    self.adopt(*region, fds.drain(..).next())
                }
                Ok((Reply::Listening { queue, .. }, fds)) => {
                    self.adopt_queue(*queue, fds);
                    None
                }
                _ => None,
            };
            exchange.end();
            (answer, new)
        };
        pushes.into_iter().for_each(|(push, fds)| self.pushed(push, fds));
        late.into_iter().for_each(|(reply, fds)| self.decline(reply, fds));
        if let Some(region) = new {
            self.say(Request::Mapped { region });
        }
        answer.map_err(|e| {
            if matches!(e, LineError::Os(Errno::BADF)) && fd.is_some() {
                // Another thread has closed the descriptor that was to be shown.
                return Errno::BADF;
            }
            if matches!(e, LineError::WouldBlock) {
                return Errno::TIMEDOUT;
            }
            log(Level::Warn, format_args!("{e}"));
            self.die();
            Errno::PIPE
        })
    }

    /// True when a descriptor from the service would not be lost: see [`Exchange::has_room`].
    pub fn has_room(&self) -> bool {
        let _deferred = Deferred::begin();
        lock(&self.exchange).has_room()
    }

    /// Frees the descriptor number that is kept for what the service sends.
    pub fn give_room(&self) {
        let _deferred = Deferred::begin();
        lock(&self.exchange).give_room();
    }

    /// True while the service lives and does not answer: what needs it is not done, or is the kernel's.
    pub fn is_silent(&self) -> bool {
        let _deferred = Deferred::begin();
        lock(&self.exchange).is_silent()
    }

    /// Sends a message that needs no answer. A silent service is told later.
    pub fn say(&self, request: Request) {
        if self.dead.load(Ordering::Relaxed) || detached::is_locked() {
            return;
        }
        let _deferred = Deferred::begin();
        let failed = lock(&self.exchange).say(request).is_err();
        if failed {
            self.die();
        }
    }

    /// Sends a message about a descriptor from a `vfork` child: an error there is not this process's.
    pub fn hint(&self, request: Request, fd: RawFd) {
        if detached::is_locked() {
            return;
        }
        let _deferred = Deferred::begin();
        let message = ToService { number: 0, request };
        let exchange = lock(&self.exchange);
        if let Err(e) = exchange.line.send(&message, &[sys::borrow(fd)], !exchange.is_silent()) {
            log(Level::Info, format_args!("a vfork child could not say what it takes along: {e}"));
        }
    }

    /// Waits until the service has read what was sent, after `HEARD_MOST` at most. What a `vfork` child's program asks comes by another line. The
    /// service handles what it reads from one user in order.
    pub fn wait_until_heard(&self) {
        let end = Instant::now() + HEARD_MOST;
        while !sys::is_all_read(self.control) && Instant::now() < end {
            sys::give_way();
        }
    }

    /// Maps a region the service announced. Returns its id when it is new here.
    pub(crate) fn adopt(&self, info: RegionInfo, memfd: Option<OwnedFd>) -> Option<u32> {
        let side = Side::from_index(info.side)?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if regions.contains_key(&(info.id, info.side)) {
            return None;
        }
        // A process connected to itself uses both sides of one mapping.
        let other = regions.get(&(info.id, info.side ^ 1)).map(|m| m.region.clone());
        let new = other.is_none();
        let region = match (other, memfd) {
            (Some(region), _) => region,
            (None, Some(memfd)) => {
                let opened = open(&memfd, info).inspect_err(|e| {
                    log(
                        Level::Error,
                        format_args!("memory shared with another process has no place here: {e}"),
                    );
                });
                Arc::new(opened.ok()?)
            }
            (None, None) => return None,
        };
        let pages = region.page_words() * 64;
        let mapped = Mapped::new(&HOST, side, region, pages);
        let mapped = if info.is_own { mapped } else { mapped.inherited() };
        regions.insert((info.id, info.side), Arc::new(mapped));
        new.then_some(info.id)
    }

    /// Maps an accept queue; its two files are the last of `fds`.
    pub(crate) fn adopt_queue(&self, id: u32, fds: &mut Vec<OwnedFd>) {
        let Some(first) = fds.len().checked_sub(2) else { return };
        if let Ok(files) = fds.drain(first..).collect::<Vec<_>>().try_into()
            && let Some(queue) = Queue::open(id, files)
        {
            self.queues.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(queue));
        }
    }

    /// The accept queue `id`, if it is mapped here.
    pub fn queue(&self, id: u32) -> Option<Arc<Queue>> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(crate) fn all_queues(&self) -> HashMap<u32, Arc<Queue>> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This process's number at the service.
    #[inline]
    pub fn application(&self) -> u32 {
        self.welcome.application
    }

    /// Bytes of address space that the regions take.
    pub fn mapped_bytes(&self) -> u64 {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let both = |id: u32, side: u8| side == 1 && regions.contains_key(&(id, 0));
        let each = regions.iter().filter(|((id, side), _)| !both(*id, *side));
        each.map(|(_, mapped)| mapped.region.layout().total as u64).sum()
    }

    /// The region `id` as `side` sees it, if it is mapped here.
    pub(crate) fn known(&self, id: u32, side: u8) -> Option<Arc<Mapped>> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).get(&(id, side)).cloned()
    }

    /// The region `id` as `side` sees it; asks the service for an unknown one. `None`: there is none, or this process is not on that side.
    pub fn region(&self, id: u32, side: u8) -> Option<Arc<Mapped>> {
        if let Some(found) = self.known(id, side) {
            return Some(found);
        }
        // A signal handler's `accept` must not wait for the lock that this thread has.
        let _deferred = Deferred::begin();
        if lock(&self.gone).contains(&id) {
            return None;
        }
        // `ask` adopts what the reply brings.
        let info = match self.ask(Request::Region { region: id }).ok()?.0 {
            Reply::Region(info) => info,
            Reply::Refused { .. } => {
                log(Level::Debug, format_args!("region {id} is not there: the service was asked"));
                self.note_gone(id);
                return None;
            }
            _ => return None,
        };
        // This process is of the connector's family: another one's is on the acceptor's side.
        if info.side < side {
            return None;
        }
        self.known(id, side).or_else(|| {
            let _ = self.adopt(RegionInfo { side, ..info }, None);
            self.known(id, side)
        })
    }

    /// Wakes `context` of the other side of `mapped` through the service, and keeps the eventfd that wakes it from then on.
    #[cold]
    pub fn wake_other(&self, mapped: &Mapped, context: u32) {
        if !mapped.pair {
            return;
        }
        let waker = match self.ask(Request::Waker { region: mapped.id, context }) {
            Ok((Reply::Done, fds)) => fds.into_iter().next(),
            _ => None,
        };
        match waker {
            Some(fd) => mapped.learn_waker(context, Box::new(Internal::new(fd))),
            // A silent service wakes it as soon as it reads again. Threads of this very process need not wait for that.
            None if self.known(mapped.id, mapped.side.other() as u8).is_some() => self.wake(context),
            None => {}
        }
    }

    /// Reads what the service pushed. True when its end of the line is gone.
    pub fn pump(&self) -> bool {
        if detached::is_locked() {
            return self.look_for_end();
        }
        let _deferred = Deferred::begin();
        loop {
            // Waits for a thread that is asking; messages after its answer are read here.
            let got = lock(&self.exchange).overhear();
            match got {
                Ok(Received { message: ToApplication::Push(push), fds, .. }) => self.pushed(push, fds),
                Ok(Received { message: ToApplication::Reply(_, reply), fds, .. }) => self.decline(reply, fds),
                Err(LineError::WouldBlock) => return false,
                Err(e) => {
                    log(Level::Warn, format_args!("{e}"));
                    self.die();
                    return true;
                }
            }
        }
    }

    /// Looks whether the service is still there, without reading what it says.
    pub fn look_for_end(&self) -> bool {
        let mut line = [libc::pollfd { fd: self.control, events: 0, revents: 0 }];
        if self.dead.load(Ordering::Relaxed) {
            return true;
        }
        let is_over = match sys::poll(&mut line, Some(Duration::ZERO), None) {
            // With a limit of 0 descriptors `ppoll` refuses even one entry.
            Err(Errno::INVAL) => sys::is_at_end(self.control),
            n => n.is_ok_and(|n| n > 0),
        };
        if is_over {
            self.die();
        }
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn pushed(&self, push: Push, fds: Vec<OwnedFd>) {
        match push {
            Push::Waker { region, context } => {
                let found = lock(&self.contexts).get(&context).and_then(Weak::upgrade);
                if let Some(context) = found {
                    context.add(region, fds.into_iter().next());
                }
            }
            Push::Revoked { region } => self.revoked(region),
            Push::Grow { region, bytes } => {
                if let Some(mapped) = self.known(region, Side::One as u8).filter(|mapped| !mapped.pair) {
                    let bytes = bytes.min(mapped.data_len());
                    mapped.growth.demand(bytes, |from, to| self.populate(&mapped, from, to));
                }
            }
        }
    }

    /// Makes more of an application region present, ours or an ancestor's, or waits for a thread that does.
    pub fn grow(&self, mapped: &Mapped) {
        if detached::is_locked() || mapped.pair {
            return;
        }
        let bytes = control::grown(mapped.growth.present(), mapped.data_len());
        mapped.growth.share(bytes, |from, to| self.populate(mapped, from, to));
    }

    /// Before a connection over a port may come: makes memory present for the first windows.
    pub fn expect_first(&self) {
        self.expect(&self.home, 1);
    }

    /// A connection over a port has begun in `slot` of our region: makes memory present for its first bytes.
    pub fn expect(&self, mapped: &Mapped, slot: u32) {
        if mapped.is_own() && mapped.growth.present() < populate::expected(slot) {
            self.grow(mapped);
        }
    }

    /// Makes both sides of an application region present up to `to`, and tells the service, which takes so much at a time. False: there is no
    /// memory.
    fn populate(&self, mapped: &Mapped, from: u64, to: u64) -> bool {
        (from..to).step_by(POPULATED_MOST as usize).all(|from| {
            let to = to.min(from + POPULATED_MOST);
            let done = [Side::Zero, Side::One]
                .into_iter()
                .all(|side| mapped.region.populate(side, from as usize, (to - from) as usize).is_ok());
            done && self.ask(Request::Populated { region: mapped.id, bytes: to }).is_ok()
        })
    }

    /// The service is gone: resets every accelerated socket and wakes every thread that waits.
    pub fn die(&self) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        let _deferred = Deferred::begin();
        for mapped in self.regions.read().unwrap_or_else(PoisonError::into_inner).values() {
            mapped.dead.store(true, Ordering::Release);
        }
        self.all_contexts().iter().for_each(|c| c.wake());
        lock(&self.free).clear();
    }

    /// Notes that there is no such region for this process, so that the service is not asked for each socket block that names it.
    fn note_gone(&self, region: u32) {
        let mut gone = lock(&self.gone);
        // As many ids as a region has socket blocks. Each id that is forgotten here may cost one more question.
        if gone.len() >= self.home.region.layout().params.slots as usize {
            gone.clear();
        }
        gone.insert(region);
    }

    /// The peer is gone and the service has taken the region back. Sockets still open on it are reset, and keep the mapping and the wakers
    /// until they are closed; everything else goes now.
    fn revoked(&self, region: u32) {
        self.note_gone(region);
        let gone: Vec<_> = {
            let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
            (0..2).filter_map(|side| regions.remove(&(region, side))).collect()
        };
        gone.iter().for_each(|mapped| mapped.dead.store(true, Ordering::Release));
        // A listener keeps its queue until it is closed.
        let queue = self.queues.write().unwrap_or_else(PoisonError::into_inner).remove(&region);
        if queue.is_some() {
            direct::forget_queue(self, region);
        }
        for context in self.all_contexts() {
            context.forget_region(region);
            context.wake();
        }
    }

    fn all_contexts(&self) -> Vec<Arc<Context>> {
        let mut all: Vec<_> = lock(&self.contexts).values().filter_map(Weak::upgrade).collect();
        all.extend(lock(&self.bare).iter().filter_map(Weak::upgrade));
        all
    }

    /// Wakes the threads that sleep in our context of number `context`.
    pub fn wake(&self, context: u32) {
        let _deferred = Deferred::begin();
        let context = lock(&self.contexts).get(&context).and_then(Weak::upgrade);
        context.iter().for_each(|context| context.wake());
    }

    /// Takes a free socket block of our application region.
    pub fn take_block(&self) -> Option<u32> {
        self.take_block_of(&self.home)
    }

    /// Takes a free socket block of `home`, ours or an ancestor's.
    pub fn take_block_of(&self, home: &Mapped) -> Option<u32> {
        let slots = home.region.layout().params.slots;
        (0..slots).find_map(|_| {
            let i = home.region.header().hand.fetch_add(1, Ordering::Relaxed) % slots;
            let block = home.region.sock(i).filter(|_| i != 0)?;
            let taken =
                block.holders.compare_exchange(0, self.holder_bit(), Ordering::AcqRel, Ordering::Relaxed);
            taken.ok()?;
            // While the peer reads the block's rings the block stays as it is.
            let is_free = ring_reclaim::is_settled(block, |region, side| self.region(region, side));
            if !is_free {
                block.holders.store(0, Ordering::Release);
            }
            is_free.then_some(i)
        })
    }

    /// This process's bit in the `holders` of socket blocks.
    pub fn holder_bit(&self) -> u64 {
        1 << (self.welcome.holder & 63)
    }

    /// The control socket's descriptor, which sleeping threads watch.
    pub fn control(&self) -> RawFd {
        self.control
    }

    /// What proves a child's descent from this process, with the holder bit that the child has.
    pub fn as_parent(&self, holder: u8) -> Parent {
        Parent { application: self.welcome.application, secret: self.welcome.secret, holder }
    }

    /// In a forked child: closes our copy of the parent's line. Its `Client` is never dropped here.
    pub fn hang_up(&self) {
        unclaim(self.control);
        let _ = sys::close(self.control);
    }

    /// Takes this registration's locks before a fork.
    pub fn hold(self: &Arc<Self>, held: &mut Held) {
        // List them before locking: what other threads add meanwhile is theirs, and the child lacks them.
        let regions: Vec<_> =
            self.regions.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let contexts = self.all_contexts();
        let queues: Vec<_> = self.all_queues().into_values().collect();
        held.take(self, |c| &c.exchange);
        held.take_whole(self, |c| &c.regions);
        held.take(self, |c| &c.gone);
        held.take_whole(self, |c| &c.ways);
        held.take_whole(self, |c| &c.queues);
        queues.iter().for_each(|queue| queue.hold(held));
        held.take(self, |c| &c.contexts);
        held.take(self, |c| &c.bare);
        held.take(self, |c| &c.free);
        contexts.iter().for_each(|context| context.hold(held));
        for mapped in &regions {
            held.take(mapped, |m| m.lingering_lock());
            held.take(mapped, |m| m.pool_lock());
            held.take(mapped, |m| m.lease.lock());
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        unclaim(self.control);
    }
}

pub(crate) fn open(memfd: &OwnedFd, info: RegionInfo) -> Result<Region, LineError> {
    Region::open(memfd.as_fd(), info.params()).map_err(|e| match e {
        RegionError::Os(e) => LineError::Os(e),
        e => {
            log(Level::Error, format_args!("{e}"));
            LineError::Garbled
        }
    })
}
