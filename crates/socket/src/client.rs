//! This process's registration with the service: the control line, the regions, what the service pushes, its death.

use crate::context::Context;
use crate::exchange::{Exchange, say_hello};
use crate::hold::Held;
use crate::internal::{Internal, claim, unclaim};
use crate::log::{Level, log};
use crate::region::Mapped;
pub use crate::registration::{
    announce, current, hold_attempts, hold_current, is_announced, present, replace, settle_for_parents,
};
use crate::sys::signal::Deferred;
use crate::ways::Ways;
use crate::{account, growth, left, locked, moving, sys};
use base::limits::RING_MIN;
use control::{
    Line, LineError, Parent, Push, Received, RegionInfo, Reply, Request, ToApplication, ToService, Welcome,
};
use cycles::Section;
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Resource, getrlimit};
use shm::{Region, RegionError, Side};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

/// Longest wait for an answer of the service; past it the service counts as gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of each side made present at registration: windows of some connections, so that nothing is lost before more is present
/// ([`control::grown`]).
const FIRST_BYTES: u64 = 1 << 20;
/// The same in a forked child until it has a socket of its own. Most children serve one connection of the parent and end, and each page
/// costs a fault and is taken from the machine anew.
const FIRST_BYTES_OF_CHILD: u64 = 64 << 10;

/// This process's registration with the service.
#[derive(Debug)]
pub struct Client {
    exchange: Mutex<Exchange>,
    control: RawFd,
    /// This process's command name.
    name: Arc<str>,
    /// Network namespace in which the control line was made.
    pub namespace: u64,
    /// The service's first message.
    pub welcome: Welcome,
    /// This process's application region.
    pub home: Arc<Mapped>,
    /// The application region that numbers, in its header, contexts and holders for the whole fork family.
    pub oldest: Arc<Mapped>,
    regions: RwLock<HashMap<(u32, u8), Arc<Mapped>>>,
    /// True once the service is gone.
    pub dead: AtomicBool,
    /// Contexts by their number.
    pub contexts: Mutex<BTreeMap<u32, Weak<Context>>>,
    /// Contexts of ended threads and closed sets, for the next ones.
    pub free: Mutex<Vec<Arc<Context>>>,
    /// Lines and grants, by which connections are made without asking the service.
    pub ways: Ways,
}

/// Locks, even if the last holder panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A registration that has only said hello: from then on the service notices the end of this process.
#[derive(Debug)]
pub struct Announced {
    exchange: Exchange,
    control: RawFd,
    name: Arc<str>,
    /// Number of the holder bit that the parent has promised.
    holder: u8,
}

impl Announced {
    /// Dials the service and says hello.
    pub fn new() -> Result<Self, LineError> {
        let name = command_name();
        let (line, number) = say_hello(name.clone(), None)?;
        let line = Line::new(claim(line.into()));
        let control = line.as_fd().as_raw_fd();
        Ok(Self { exchange: Exchange::new(line, number), control, name, holder: 0 })
    }

    /// Says hello as a forked child, with the parent's registration and the holder bit that it has promised. Allocates nothing: each
    /// touched page would be copied, and most children call exec at once. The new line replaces our copy of the parent's: while that is
    /// open the service does not notice the parent's death, which it must not notice before it knows this child.
    pub fn as_child(parent: &Client, holder: u8) -> Result<Self, LineError> {
        let Client { control, name, .. } = parent;
        let Welcome { application, secret, .. } = parent.welcome;
        let hello = || say_hello(name.clone(), Some(Parent { application, secret, holder }));
        let said = hello().or_else(|e| match e {
            // No descriptor is free but the one that the parent keeps for such a time.
            LineError::Os(Errno::MFILE) => {
                // Not waited for: a parent's thread that holds this lock does not exist here.
                if let Ok(mut exchange) = parent.exchange.try_lock() {
                    exchange.give_room();
                }
                hello()
            }
            e => Err(e),
        });
        let said = said.and_then(|(line, number)| {
            sys::dup3(line.as_fd().as_raw_fd(), *control, libc::O_CLOEXEC)?;
            Ok(number)
        });
        // Without a line of its own the child closes its copy of the parent's.
        let number = said.inspect_err(|_| parent.hang_up())?;
        let line = Line::new(sys::own(*control));
        Ok(Self { exchange: Exchange::new(line, number), control: *control, name: name.clone(), holder })
    }

    /// Completes the registration. A forked child without descriptors or memory for it goes on with its `parent`'s, locked in.
    pub fn finish(mut self, parent: Option<&Client>) -> Result<Arc<Client>, LineError> {
        let mut pushes = Vec::new();
        let present = if parent.is_some() { FIRST_BYTES_OF_CHILD } else { FIRST_BYTES };
        match introduce(&mut self.exchange, present, |push, fds| pushes.push((push, fds))) {
            Ok((welcome, home)) => {
                let client = Client::new(self, parent, welcome, home);
                for (push, fds) in pushes {
                    client.pushed(push, fds);
                }
                Ok(client)
            }
            Err(e) => match (e, parent) {
                (LineError::Os(Errno::MFILE | Errno::NOMEM), Some(parent)) => {
                    locked::cut_off();
                    Ok(self.stand_in(parent))
                }
                (e, _) => {
                    if let LineError::Os(e) = &e {
                        let text = format_args!(
                            "no memory to share with the service ({e}): sockets stay with the kernel; raise the limits \
                             (ulimit -n, ulimit -v)"
                        );
                        log(Level::Error, text);
                    }
                    unclaim(self.control);
                    Err(e)
                }
            },
        }
    }

    /// Registers no further: this process uses what `parent` has, under its own holder bit.
    pub fn stand_in(self, parent: &Client) -> Arc<Client> {
        let regions = parent.regions.read().unwrap_or_else(PoisonError::into_inner).clone();
        let welcome = Welcome { holder: self.holder, ..parent.welcome.clone() };
        let client = Client::assemble(self, welcome, parent.home.clone(), parent.oldest.clone(), regions);
        client.dead.store(parent.dead.load(Ordering::Relaxed), Ordering::Relaxed);
        Arc::new(client)
    }
}

fn command_name() -> Arc<str> {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().chars().take(32).collect::<String>().into()
}

impl Client {
    fn new(mut said: Announced, parent: Option<&Self>, welcome: Welcome, home: Arc<Mapped>) -> Arc<Self> {
        account::follow(&home.region);
        said.exchange.hold_room();
        let oldest = parent.map_or_else(|| home.clone(), |p| p.oldest.clone());
        let mut regions = parent
            .map_or_else(HashMap::new, |p| p.regions.read().unwrap_or_else(PoisonError::into_inner).clone());
        regions.insert((home.id, home.side as u8), home.clone());
        if parent.is_none() {
            let taken = &oldest.region.header().holders_taken;
            taken.fetch_or(1 << (welcome.holder & 63), Ordering::Relaxed);
            // A child inherits the limits of its parent.
            crate::stream::limit_rings(welcome.settings.ring_max);
            crate::stream::begin_rings(crate::config::ring_min());
            crate::room::take_sysctl();
        }
        log(Level::Debug, format_args!("registered as application {}", welcome.application));
        Arc::new(Self::assemble(said, welcome, home, oldest, regions))
    }

    fn assemble(
        said: Announced,
        welcome: Welcome,
        home: Arc<Mapped>,
        oldest: Arc<Mapped>,
        regions: HashMap<(u32, u8), Arc<Mapped>>,
    ) -> Self {
        Self {
            exchange: Mutex::new(said.exchange),
            control: said.control,
            name: said.name,
            namespace: moving::namespace(said.control),
            welcome,
            home,
            oldest,
            regions: RwLock::new(regions),
            dead: AtomicBool::new(false),
            contexts: Mutex::new(BTreeMap::new()),
            free: Mutex::new(Vec::new()),
            ways: Ways::default(),
        }
    }

    /// Asks the service. Regions that come with the answer are mapped before another thread can ask.
    pub fn ask(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        self.ask_with(request, None)
    }

    /// As [`ask`](Self::ask), showing a descriptor.
    pub fn ask_with(&self, request: Request, fd: Option<RawFd>) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        let _controlling = account::enter(Section::Control);
        if self.dead.load(Ordering::Relaxed) {
            return Err(Errno::PIPE);
        }
        if locked::is_locked() && !(locked::has_line() && matches!(request, Request::Waker { .. })) {
            return Err(Errno::PERM);
        }
        let _deferred = Deferred::begin();
        let mut pushes = Vec::new();
        let (answer, new) = {
            let mut exchange = lock(&self.exchange);
            let sent = exchange.send(request, fd);
            let mut answer = sent.and_then(|()| exchange.answer(|push, fds| pushes.push((push, fds))));
            let new = match &mut answer {
                Ok((Reply::Region(info) | Reply::Connecting { region: info, .. }, fds)) => {
                    self.adopt(*info, fds.drain(..).next())
                }
                _ => None,
            };
            exchange.end();
            (answer, new)
        };
        pushes.into_iter().for_each(|(push, fds)| self.pushed(push, fds));
        if let Some(region) = new {
            self.ask(Request::Mapped { region })?;
        }
        answer.map_err(|e| {
            if matches!(e, LineError::Os(Errno::BADF)) && fd.is_some() {
                // Another thread has closed the descriptor that was to be shown.
                return Errno::BADF;
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

    /// Sends a message that needs no answer.
    pub fn say(&self, request: Request) {
        if self.dead.load(Ordering::Relaxed) || locked::is_locked() {
            return;
        }
        let _deferred = Deferred::begin();
        let failed = lock(&self.exchange).line.send(&ToService { number: 0, request }, &[], true).is_err();
        if failed {
            self.die();
        }
    }

    /// Sends a message about a descriptor from a `vfork` child: an error there is not this process's.
    pub fn hint(&self, request: Request, fd: RawFd) {
        if locked::is_locked() {
            return;
        }
        let _deferred = Deferred::begin();
        let message = ToService { number: 0, request };
        if let Err(e) = lock(&self.exchange).line.send(&message, &[sys::borrow(fd)], true) {
            log(Level::Info, format_args!("a vfork child could not say what it takes along: {e}"));
        }
    }

    /// Maps a region the service announced. Returns its id when it is new here.
    fn adopt(&self, info: RegionInfo, memfd: Option<OwnedFd>) -> Option<u32> {
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
        let mapped = Mapped::new(info.id, side, info.pair, region, pages);
        let mapped = if info.is_own { mapped } else { mapped.inherited() };
        regions.insert((info.id, info.side), Arc::new(mapped));
        new.then_some(info.id)
    }

    /// Bytes of address space that the regions take.
    pub fn mapped_bytes(&self) -> u64 {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let both = |id: u32, side: u8| side == 1 && regions.contains_key(&(id, 0));
        let each = regions.iter().filter(|((id, side), _)| !both(*id, *side));
        each.map(|(_, mapped)| mapped.region.layout().total as u64).sum()
    }

    /// The region `id` as `side` sees it, if it is mapped here.
    fn known(&self, id: u32, side: u8) -> Option<Arc<Mapped>> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).get(&(id, side)).cloned()
    }

    /// The region `id` as `side` sees it; asks the service for an unknown one.
    pub fn region(&self, id: u32, side: u8) -> Option<Arc<Mapped>> {
        if let Some(found) = self.known(id, side) {
            return Some(found);
        }
        // `ask` adopts what the reply brings.
        let (Reply::Region(info), _) = self.ask(Request::Region { region: id }).ok()? else { return None };
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
        if let Ok((Reply::Done, fds)) = self.ask(Request::Waker { region: mapped.id, context })
            && let Some(fd) = fds.into_iter().next()
        {
            mapped.learn_waker(context, Internal::new(fd));
        }
    }

    /// Reads what the service pushed. True when its end of the line is gone.
    pub fn pump(&self) -> bool {
        if locked::is_locked() {
            return self.look_for_end();
        }
        let _deferred = Deferred::begin();
        loop {
            // Waits for a thread that is asking; messages after its answer are read here.
            let got = lock(&self.exchange).overhear();
            match got {
                Ok(Received { message: ToApplication::Push(push), fds, .. }) => self.pushed(push, fds),
                Ok(_) => {}
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

    fn pushed(&self, push: Push, fds: Vec<OwnedFd>) {
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
        if locked::is_locked() || mapped.pair {
            return;
        }
        let bytes = control::grown(mapped.growth.present(), mapped.data_len());
        mapped.growth.share(bytes, |from, to| self.populate(mapped, from, to));
    }

    /// A connection over a port has begun in `slot` of our region: makes memory present for its first bytes.
    pub fn expect(&self, mapped: &Mapped, slot: u32) {
        if mapped.is_own() && mapped.growth.present() < growth::expected(slot) {
            self.grow(mapped);
        }
    }

    /// Makes both sides of an application region present up to `to`, and tells the service. False: there is no memory.
    fn populate(&self, mapped: &Mapped, from: u64, to: u64) -> bool {
        let done = [Side::Zero, Side::One]
            .into_iter()
            .all(|side| mapped.region.populate(side, from as usize, (to - from) as usize).is_ok());
        done && self.ask(Request::Populated { region: mapped.id, bytes: to }).is_ok()
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

    /// The peer is gone and the service has taken the region back. Sockets still open on it are reset, and keep the mapping and the wakers
    /// until they are closed; everything else goes now.
    fn revoked(&self, region: u32) {
        let gone: Vec<_> = {
            let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
            (0..2).filter_map(|side| regions.remove(&(region, side))).collect()
        };
        gone.iter().for_each(|mapped| mapped.dead.store(true, Ordering::Release));
        for context in self.all_contexts() {
            context.forget_region(region);
            context.wake();
        }
    }

    fn all_contexts(&self) -> Vec<Arc<Context>> {
        lock(&self.contexts).values().filter_map(Weak::upgrade).collect()
    }

    /// Wakes the threads that sleep in our context of number `context`.
    pub fn wake(&self, context: u32) {
        let _deferred = Deferred::begin();
        let context = lock(&self.contexts).get(&context).and_then(Weak::upgrade);
        context.iter().for_each(|context| context.wake());
    }

    /// Takes a free socket block of our application region.
    pub fn take_block(&self) -> Option<u32> {
        if self.home.growth.present() < FIRST_BYTES {
            self.grow(&self.home);
        }
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
            let is_free = left::is_settled(block, |region, side| self.region(region, side));
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
        held.take(self, |c| &c.exchange);
        held.take_whole(self, |c| &c.regions);
        held.take_whole(self, |c| &c.ways);
        held.take(self, |c| &c.contexts);
        held.take(self, |c| &c.free);
        contexts.iter().for_each(|context| context.hold(held));
        regions.iter().for_each(|mapped| mapped.hold(held));
    }
}

/// Bytes of address space that this process may still take.
pub fn room() -> u64 {
    let Some(limit) = getrlimit(Resource::As).current else { return u64::MAX };
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let taken = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    limit.saturating_sub(taken.unwrap_or(0) * rustix::param::page_size() as u64)
}

/// The messages after hello: the service's welcome, and a region of our own.
fn introduce(
    exchange: &mut Exchange,
    present: u64,
    mut pushed: impl FnMut(Push, Vec<OwnedFd>),
) -> Result<(Welcome, Arc<Mapped>), LineError> {
    // A timeout of the socket: waiting for an answer costs one call, and begins anew after a signal.
    set_socket_timeout(&exchange.line, Timeout::Recv, Some(PATIENCE))?;
    let welcome = match exchange.answer(&mut pushed)?.0 {
        Reply::Welcome(welcome) => welcome,
        Reply::Refused { reason, .. } => {
            log(Level::Error, format_args!("the service refuses this process: {reason}"));
            return Err(LineError::Closed);
        }
        _ => return Err(LineError::Garbled),
    };
    let (Reply::Region(info), fds) = exchange.ask(Request::OpenRegion { room: room() }, &mut pushed)? else {
        return Err(LineError::Garbled);
    };
    if exchange.is_short() {
        return Err(LineError::Os(Errno::MFILE));
    }
    let mut fds = fds.into_iter();
    let memfd = fds.next().ok_or(LineError::Garbled)?;
    let region = open(&memfd, info)?;
    // From here on no process, not even this one, can take a page away: the service checks these seals.
    Region::seal(memfd.as_fd()).map_err(|e| {
        log(Level::Error, format_args!("{e}"));
        LineError::Garbled
    })?;
    let pages = present as usize / RING_MIN as usize;
    let home = Mapped::new(info.id, Side::One, false, Arc::new(region), pages);
    for (i, bell) in fds.enumerate() {
        // The slow path's eventfd comes first, then one per fast-path core.
        let context = if i == 0 { control::SLOW_CONTEXT } else { i as u32 - 1 };
        home.learn_waker(context, Internal::new(bell));
    }
    // No answer to these two is awaited: the next request is answered after both are done.
    exchange.send(Request::Mapped { region: info.id }, None)?;
    for side in [Side::Zero, Side::One] {
        if let Err(e) = home.region.populate(side, 0, present as usize) {
            log(Level::Error, format_args!("{e}"));
            return Err(LineError::Garbled);
        }
    }
    exchange.send(Request::Populated { region: info.id, bytes: present }, None)?;
    Ok((welcome, Arc::new(home)))
}

impl Drop for Client {
    fn drop(&mut self) {
        unclaim(self.control);
    }
}

fn open(memfd: &OwnedFd, info: RegionInfo) -> Result<Region, LineError> {
    Region::open(memfd.as_fd(), info.params()).map_err(|e| match e {
        RegionError::Os(e) => LineError::Os(e),
        e => {
            log(Level::Error, format_args!("{e}"));
            LineError::Garbled
        }
    })
}
