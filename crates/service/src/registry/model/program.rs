//! One process: the library's side of the protocol, with the library's own endpoints. It asks the registry as the library does, and knows
//! nothing of other processes.

use super::linux::{Pid, SocketId};
use super::world::{Descriptors, World};
use control::{
    AcceptRecord, Grant, Itself, Left, Lent, PROTOCOL, Parent, Push, RegionInfo, Reply, Request,
    SocketOptions, Unlisten,
};
use endpoint::Endpoint;
use endpoint::host::{Host, Solitary, Waker};
use endpoint::region::Mapped;
use endpoint::slot_grant::Granted;
use endpoint::state;
use endpoint::stream::{How, Progress, Said};
use queue::accept::Accepting;
use queue::stream::{Sender, raise};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use shm::half_flags::{ACCEPTED, FIN, LENT, OPEN, RELEASED};
use shm::queue_flags::WANT_ROOM;
use shm::{AcceptQueue, Region, Side};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes of both data areas that a process makes present at first.
const POPULATED: usize = 256 << 10;

static HOST: Host = Host::new(&Solitary);

/// A process's own knowledge of a socket that it has open.
#[derive(Debug)]
pub enum File {
    /// A listening socket with its accept queue; `None`: it came from another program and was not used yet.
    Listener(Option<u32>),
    /// A connection; `None`: it came from another program and was not used yet, or another process has it.
    Stream(Option<Endpoint>),
}

/// The registration of a process.
#[derive(Debug)]
pub struct Registration {
    /// Its id at the service.
    pub id: u32,
    secret: u64,
    holder: u8,
    home: Arc<Mapped>,
}

/// The right to connect to a listener without the service, as `session`'s.
#[derive(Debug)]
struct Way {
    queue: u32,
    mapped: Arc<Mapped>,
    epoch: u32,
    source: IpAddr,
}

/// A process of the walk, with the library's part played by hand.
#[derive(Debug)]
pub struct Program {
    /// Number of the process.
    pub pid: Pid,
    /// Number of its user.
    pub user: u32,
    /// The sockets of which the process has descriptors.
    pub files: BTreeMap<SocketId, File>,
    /// Its registration; `None`: it was not needed yet.
    pub registration: Option<Registration>,
    /// What a forked child proves its descent with.
    parent: Option<Parent>,
    /// The line on which a forked child was promised, until it has said hello.
    promise: Option<u32>,
    /// The region of the oldest ancestor.
    oldest: Option<Arc<Mapped>>,
    mapped: HashMap<(u32, u8), Arc<Mapped>>,
    queues: HashMap<u32, Arc<AcceptQueue>>,
    ways: HashMap<SocketAddr, Way>,
}

#[derive(Debug)]
struct CoreBell(Arc<OwnedFd>);

impl Waker for CoreBell {
    fn ring(&self) {
        crate::cores::wakers::write_eventfd(self.0.as_fd());
    }
}

impl Program {
    /// A process without sockets.
    pub fn new(pid: Pid, user: u32) -> Self {
        Self {
            pid,
            user,
            files: BTreeMap::new(),
            registration: None,
            parent: None,
            promise: None,
            oldest: None,
            mapped: HashMap::new(),
            queues: HashMap::new(),
            ways: HashMap::new(),
        }
    }

    /// Its id at the service; it registers at first need.
    pub fn id(&mut self, world: &mut World) -> u32 {
        if self.registration.is_none() {
            self.register(world);
        }
        self.registered().id
    }

    /// Its application region: the number, and its mapping.
    pub fn region(&mut self, world: &mut World) -> (u32, Arc<Mapped>) {
        self.id(world);
        let home = self.registered().home.clone();
        (home.region.layout().params.id as u32, home)
    }

    /// True for a forked child.
    pub fn is_forked(&self) -> bool {
        self.parent.is_some()
    }

    /// Its control line, or that on which it was promised: the line that ends with it.
    pub fn line(&self) -> Option<u32> {
        self.registration.as_ref().map(|registration| registration.id).or(self.promise)
    }

    fn registered(&self) -> &Registration {
        self.registration.as_ref().expect("it has registered")
    }

    fn holder_bit(&self) -> u64 {
        1 << self.registered().holder
    }

    /// As `session`'s registration: hello, the application region, its first pages.
    fn register(&mut self, world: &mut World) {
        let hello = Request::Hello {
            protocol: PROTOCOL,
            layout: shm::VERSION,
            name: "model".into(),
            parent: self.parent,
            itself: Itself { namespace: 1, pid: self.pid as i32 },
        };
        let Reply::Welcome(welcome) = world.hello(self.pid, self.user, hello) else { panic!("not welcome") };
        if let Some(line) = self.promise.take() {
            world.hang_up(line);
        }
        let id = welcome.application;
        let (Reply::Region(info), fds) = world.ask(id, Request::OpenRegion { room: u64::MAX }) else {
            panic!("no region")
        };
        let region = Arc::new(Region::open(fds[0].as_fd(), info.params()).unwrap());
        Region::seal(fds[0].as_fd()).unwrap();
        assert_eq!(world.ask(id, Request::Mapped { region: info.id }).0, Reply::Done);
        [Side::Zero, Side::One].iter().for_each(|side| region.populate(*side, 0, POPULATED).unwrap());
        let home = Arc::new(Mapped::new(&HOST, Side::One, region, POPULATED / 4096));
        home.learn_waker(0, Box::new(CoreBell(fds[2].clone())));
        self.mapped.insert((info.id, Side::One as u8), home.clone());
        self.oldest.get_or_insert_with(|| {
            home.region.header().holders_taken.fetch_or(1 << welcome.holder, Ordering::Relaxed);
            home.clone()
        });
        self.registration = Some(Registration { id, secret: welcome.secret, holder: welcome.holder, home });
        let populated = Request::Populated { region: info.id, bytes: POPULATED as u64 };
        assert_eq!(world.ask(id, populated).0, Reply::Done);
        self.hear(world);
    }

    fn ask(&mut self, world: &mut World, request: Request) -> (Reply, Descriptors) {
        let id = self.id(world);
        let answer = world.ask(id, request);
        self.hear(world);
        answer
    }

    fn ask_showing(&mut self, world: &mut World, request: Request, socket: &OwnedFd) -> (Reply, Descriptors) {
        let id = self.id(world);
        let answer = world.ask_showing(id, request, socket);
        self.hear(world);
        answer
    }

    /// Obeys what the service has said unasked.
    pub fn hear(&mut self, world: &mut World) {
        let Some(id) = self.registration.as_ref().map(|registration| registration.id) else { return };
        for push in world.pushes(id) {
            match push {
                Push::Revoked { region } => {
                    let gone = (0..2).filter_map(|side| self.mapped.remove(&(region, side)));
                    gone.for_each(|mapped| mapped.dead.store(true, Ordering::Release));
                    self.queues.remove(&region);
                }
                Push::Grow { region, bytes } => {
                    let Some(mapped) = self.mapped.get(&(region, Side::One as u8)) else { continue };
                    let sides = [Side::Zero, Side::One];
                    sides.iter().for_each(|side| mapped.region.populate(*side, 0, bytes as usize).unwrap());
                    assert_eq!(world.ask(id, Request::Populated { region, bytes }).0, Reply::Done);
                }
                Push::Waker { .. } => {}
            }
        }
    }

    fn map_pair(&mut self, world: &mut World, info: RegionInfo, fds: &[Arc<OwnedFd>]) -> Arc<Mapped> {
        let key = (info.id, info.side);
        if let Some(mapped) = self.mapped.get(&key) {
            return mapped.clone();
        }
        let other = self.mapped.get(&(info.id, info.side ^ 1)).map(|mapped| mapped.region.clone());
        let region = other.unwrap_or_else(|| {
            let memfd = fds.first().expect("the service takes a region for known");
            Arc::new(Region::open(memfd.as_fd(), info.params()).unwrap())
        });
        let pages = region.page_words() * 64;
        let mut mapped = Mapped::new(&HOST, Side::from_index(info.side).unwrap(), region, pages);
        if !info.is_own {
            mapped = mapped.inherited();
        }
        let mapped = Arc::new(mapped);
        self.mapped.insert(key, mapped.clone());
        assert_eq!(self.ask(world, Request::Mapped { region: info.id }).0, Reply::Done);
        mapped
    }

    /// Takes a free socket block of `home`.
    fn take_block(&self, home: &Mapped) -> u32 {
        let slots = home.region.layout().params.slots;
        let is_free = |index: &u32| {
            let block = home.region.sock(*index).unwrap();
            block.holders.compare_exchange(0, self.holder_bit(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        (1..slots).find(is_free).expect("a walk has few sockets")
    }

    fn begin(&self, mapped: Arc<Mapped>, slot: u32, ends: [SocketAddr; 2], passive: bool) -> Endpoint {
        let home = if mapped.is_own() || !passive {
            self.registered().home.clone()
        } else if mapped.pair {
            self.oldest.clone().unwrap_or_else(|| self.registered().home.clone())
        } else {
            mapped.clone()
        };
        let index = self.take_block(&home);
        let link = Endpoint::new(mapped, slot, home, index);
        link.begin(true, passive);
        let [local, peer] = ends.map(|end| u32::from(end.port()));
        link.block().ports.store(local << 16 | peer, Ordering::Relaxed);
        link
    }

    /// Shows a listening socket.
    pub fn listen(&mut self, world: &mut World, socket: SocketId, backlog: u32, shown: &OwnedFd) -> Reply {
        let (reply, fds) = self.ask_showing(world, Request::Listen { backlog, nonblocking: true }, shown);
        if let Reply::Listening { queue, .. } = reply {
            if !fds.is_empty() {
                let memory = AcceptQueue::open([fds[0].as_fd(), fds[1].as_fd()]).unwrap();
                self.queues.insert(queue, Arc::new(memory));
            }
            assert!(self.queues.contains_key(&queue), "the service takes a queue for known");
            self.files.insert(socket, File::Listener(Some(queue)));
        }
        reply
    }

    /// Connects, by the service where it must. The endpoint still has to be given its number.
    pub fn connect(&mut self, world: &mut World, remote: SocketAddr) -> Result<Endpoint, Reply> {
        if let Some(link) = self.connect_directly(remote) {
            world.direct += 1;
            return Ok(link);
        }
        let ask = |has_looked| Request::Connect { remote, options: SocketOptions::default(), has_looked };
        let (reply, fds) = match self.ask(world, ask(false)) {
            (Reply::Look { .. }, _) => self.ask(world, ask(true)),
            other => other,
        };
        let Reply::Connecting { region: info, slot, local, lent } = reply else { return Err(reply) };
        if let (Some(Lent { queue, is_new: true, .. }), [.., words, table]) = (&lent, &fds[..]) {
            let memory = AcceptQueue::open([words.as_fd(), table.as_fd()]).unwrap();
            self.queues.insert(*queue, Arc::new(memory));
        }
        let mapped = match info.pair {
            true => self.map_pair(world, info, &fds),
            false => self.registered().home.clone(),
        };
        lent.iter().for_each(|lent| self.learn(remote, &mapped, lent));
        Ok(self.begin(mapped, slot, [local, remote], false))
    }

    fn learn(&mut self, remote: SocketAddr, mapped: &Arc<Mapped>, lent: &Lent) {
        let Lent { queue, epoch, source, ref grants, are_free, .. } = *lent;
        let granted =
            |grant: &Grant| (grant.slot, Granted { port: grant.port, remote, queue, grant: grant.grant });
        mapped.lease.add(mapped, grants.iter().map(granted), are_free);
        self.ways.insert(remote, Way { queue, mapped: mapped.clone(), epoch, source });
    }

    /// Connects without the service. `None`: the process has no right to, or the queue is full.
    fn connect_directly(&mut self, remote: SocketAddr) -> Option<Endpoint> {
        let Way { queue, ref mapped, epoch, source } = *self.ways.get(&remote)?;
        let memory = self.queues.get(&queue).filter(|memory| memory.epoch() == epoch);
        let Some(memory) = memory.cloned() else {
            self.ways.remove(&remote);
            return None;
        };
        let accepting = Accepting::new(memory.words());
        if accepting.count() > memory.backlog() as usize {
            return None;
        }
        let mapped = mapped.clone();
        let (slot, Granted { port, grant, .. }) = mapped.lease.take(&mapped, remote, queue)?;
        let link = self.begin(mapped, slot, [SocketAddr::new(source, port), remote], false);
        let (own, peer) = link.halves();
        own.flags.store(OPEN, Ordering::Release);
        peer.flags.store(OPEN | LENT, Ordering::Release);
        assert!(accepting.push(grant), "the queue has room for each grant");
        Some(link)
    }

    /// Takes the oldest connection out of an accept queue. Also returns the peer's port.
    pub fn accept(&mut self, world: &mut World, queue: u32) -> Option<(Endpoint, u16)> {
        let memory = self.queues.get(&queue)?.clone();
        let id = self.id(world);
        let accepting = Accepting::new(memory.words());
        while let Some(grant) = accepting.claim(id) {
            let found = self.set_up(world, queue, &memory, grant);
            accepting.finish(grant, id);
            fence(Ordering::SeqCst);
            if memory.words().flags.load(Ordering::Relaxed) & WANT_ROOM != 0 {
                world.say(id, Request::Accepted { queue });
                self.hear(world);
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn set_up(
        &mut self,
        world: &mut World,
        queue: u32,
        memory: &AcceptQueue,
        grant: u32,
    ) -> Option<(Endpoint, u16)> {
        let record = AcceptRecord::from_words(memory.read(grant)?)?;
        let AcceptRecord { region, side, slot, local, peer } = record;
        let known = self.mapped.get(&(region, side)).cloned();
        let mapped = match known {
            Some(mapped) => mapped,
            None => match self.ask(world, Request::Region { region }) {
                (Reply::Region(info), fds) if side <= info.side => {
                    self.map_pair(world, RegionInfo { side, ..info }, &fds)
                }
                _ => return self.take(world, queue, grant),
            },
        };
        let before = mapped.halves(slot).0.flags.fetch_or(ACCEPTED, Ordering::AcqRel);
        (before & (ACCEPTED | RELEASED) == 0)
            .then(|| (self.begin(mapped, slot, [local, peer], true), peer.port()))
    }

    /// The service carries the connection on to this process's own region.
    fn take(&mut self, world: &mut World, queue: u32, grant: u32) -> Option<(Endpoint, u16)> {
        match self.ask(world, Request::Take { queue, grant }).0 {
            Reply::Moved { slot, local, peer, .. } => {
                let home = self.registered().home.clone();
                Some((self.begin(home, slot, [local, peer], true), peer.port()))
            }
            _ => None,
        }
    }

    /// The accept queue of a listening socket; it is shown if it came from another program.
    pub fn queue_of(
        &mut self,
        world: &mut World,
        socket: SocketId,
        backlog: u32,
        shown: &OwnedFd,
    ) -> Option<u32> {
        match self.files.get(&socket)? {
            File::Listener(Some(queue)) => return Some(*queue),
            File::Listener(None) => {}
            File::Stream(_) => return None,
        }
        match self.listen(world, socket, backlog, shown) {
            Reply::Listening { queue, .. } => Some(queue),
            other => panic!("a socket that came along cannot listen: {other:?}"),
        }
    }

    /// The endpoint of a connection, if this process has it.
    pub fn endpoint(&self, socket: SocketId) -> Option<&Endpoint> {
        match self.files.get(&socket)? {
            File::Stream(Some(link)) if !link.has_moved() => Some(link),
            _ => None,
        }
    }

    /// Asks for the connection of a descriptor that came from another program, or that another process has used since.
    pub fn present(&mut self, world: &mut World, socket: SocketId, shown: &OwnedFd) -> Result<(), Reply> {
        if self.endpoint(socket).is_some() {
            return Ok(());
        }
        let _ = self.id(world);
        let home = self.registered().home.clone();
        let index = self.take_block(&home);
        let block = home.region.sock(index).unwrap();
        Sender::default().keep(block);
        block.rx_tail.store(0, Ordering::Relaxed);
        // The process that has the connection must not find this one in a call; nothing else runs meanwhile.
        [&block.tx_lock, &block.rx_lock].iter().for_each(|lock| lock.store(0, Ordering::Release));
        let (reply, _) = self.ask_showing(world, Request::Present { sock: index }, shown);
        let Reply::Moved { slot, local, peer, shut_write, .. } = reply else {
            home.region.sock(index).unwrap().holders.store(0, Ordering::Release);
            return Err(reply);
        };
        let link = Endpoint::new(home, slot, self.registered().home.clone(), index);
        link.begin(true, true);
        link.note(state::OPEN | if shut_write { state::SHUT_WR } else { 0 });
        raise(link.halves().0, if shut_write { FIN } else { 0 });
        link.block().ports.store(u32::from(local.port()) << 16 | u32::from(peer.port()), Ordering::Relaxed);
        if let Some(File::Stream(Some(before))) = self.files.insert(socket, File::Stream(Some(link))) {
            let _ = before.release(self.holder_bit(), false);
        }
        Ok(())
    }

    /// Leaves a connection with the service, because its descriptor goes to another process.
    pub fn leave(&mut self, world: &mut World, socket: SocketId, shown: &OwnedFd) -> Option<Reply> {
        let link = self.endpoint(socket).filter(|link| !link.is_over())?;
        let left: Left = link.leave();
        Some(self.ask_showing(world, Request::Leave(left), shown).0)
    }

    /// Closes the process's last descriptor of a socket. True: the socket listened and its port is needed, so the process must say afterwards
    /// once more that it has closed it.
    pub fn close(&mut self, world: &mut World, socket: SocketId) -> Option<u32> {
        match self.files.remove(&socket)? {
            File::Listener(None) | File::Stream(None) => None,
            File::Listener(Some(queue)) => {
                let closed = Request::Unlisten { queue, because: Unlisten::Closed };
                (self.ask(world, closed).0 == Reply::PortNeeded).then_some(queue)
            }
            File::Stream(Some(link)) => {
                let id = self.id(world);
                // The slot may be lent again as soon as it is released.
                let is_lent = link.is_lent();
                let is_last = link.release(self.holder_bit(), false);
                if is_last && is_lent {
                    link.mapped.lease.closed(&link.mapped, link.slot());
                }
                if link.is_left() {
                    world.say(id, Request::LetGo);
                }
                if is_last && link.must_say_closed() {
                    world.say(id, Request::Closed { region: link.mapped.id, slot: link.slot() });
                }
                world.settle();
                self.hear(world);
                None
            }
        }
    }

    /// The listener's descriptor is closed now.
    pub fn closed(&mut self, world: &mut World, queue: u32) {
        let _ = self.ask(world, Request::Unlisten { queue, because: Unlisten::Closed });
    }

    /// A forked child. `None`: there is no holder bit left.
    pub fn fork(&mut self, world: &mut World, pid: Pid) -> Option<Self> {
        let _ = self.id(world);
        let taken = &self.oldest.as_ref()?.region.header().holders_taken;
        let free = (!taken.load(Ordering::Relaxed)).trailing_zeros();
        (free < 63).then(|| taken.fetch_or(1 << free, Ordering::AcqRel))?;
        let Registration { id, secret, .. } = *self.registered();
        let parent = Parent { application: id, secret, holder: free as u8 };
        let promise = world.expect(self.pid, self.user, parent);
        let inherit = |mapped: &Mapped| {
            let pages = mapped.pages();
            let new = Mapped::new(&HOST, mapped.side, mapped.region.clone(), pages).inherited();
            Arc::new(new)
        };
        let mapped: HashMap<_, _> = self.mapped.iter().map(|(key, mapped)| (*key, inherit(mapped))).collect();
        let of = |known: &Arc<Mapped>| {
            mapped.get(&(known.id, known.side as u8)).cloned().unwrap_or_else(|| inherit(known))
        };
        let copy = |file: &File| match file {
            File::Listener(queue) => File::Listener(*queue),
            File::Stream(None) => File::Stream(None),
            File::Stream(Some(link)) => {
                link.block().holders.fetch_or(1 << free, Ordering::SeqCst);
                let copy = Endpoint::new(of(&link.mapped), link.slot(), of(&link.home), link.index());
                File::Stream(Some(copy))
            }
        };
        Some(Self {
            pid,
            user: self.user,
            files: self.files.iter().map(|(socket, file)| (*socket, copy(file))).collect(),
            registration: None,
            parent: Some(parent),
            promise: Some(promise),
            oldest: self.oldest.as_ref().map(of),
            mapped,
            queues: self.queues.clone(),
            ways: HashMap::new(),
        })
    }

    /// Sends bytes that tell their position. Returns how many fitted.
    pub fn send(&self, socket: SocketId, from: u64, n: usize) -> Result<usize, Errno> {
        let link = self.endpoint(socket).expect("it has the connection");
        let bytes: Vec<u8> = (0..n as u64).map(|i| byte_at(from + i)).collect();
        let sent = link.push(&[&bytes], 0, Said::default())?;
        Ok(if let Progress::Done(n) = sent { n } else { 0 })
    }

    /// Shuts down the sending direction.
    pub fn shut_down(&self, socket: SocketId) -> Result<(), Errno> {
        self.endpoint(socket).expect("it has the connection").shut(false, true)
    }

    /// Reads at most `n` bytes, the first of which is at `from` of the stream. Returns how many there were; `Ok(None)`: none yet.
    pub fn receive(&self, socket: SocketId, from: u64, n: usize) -> Result<Option<usize>, Errno> {
        let link = self.endpoint(socket).expect("it has the connection");
        let mut bytes = vec![0; n];
        match link.pull(&mut [&mut bytes], 0, How::default())? {
            Progress::Done(n) => {
                let wrong = (0..n).find(|i| bytes[*i] != byte_at(from + *i as u64));
                assert_eq!(wrong, None, "the bytes are others, or in another order");
                Ok(Some(n))
            }
            Progress::Wait => Ok(None),
        }
    }

    /// All its connections, as far as it has them.
    pub fn streams(&self) -> impl Iterator<Item = (SocketId, &Endpoint)> {
        self.files.keys().filter_map(|socket| Some((*socket, self.endpoint(*socket)?)))
    }
}

/// The byte at a position of any stream.
const fn byte_at(position: u64) -> u8 {
    (position ^ position >> 8) as u8
}
