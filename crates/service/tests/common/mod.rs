//! A service in a thread and a small application that speaks `control` and `queue` directly.

pub mod accepting;
mod thread;

pub use thread::serve;

use crate::common::accepting::Queues;
use control::{
    Lent, Line, PROTOCOL, Parent, Push, RegionInfo, Reply, Report, Request, SocketOptions, ToApplication,
    ToService, Welcome,
};
use queue::pages::{Pool, class_of};
use queue::stream::{Sender, consumed, raise, readable, watch, watcher};
use queue::{Doorbell, Wake};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Gid, Uid};
use service::Options;
use shm::half_flags::{FIN, READ_CLOSED, RELEASED, RESET};
use shm::{Region, Side};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A test that waits longer than this hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);
const POPULATED: usize = 1 << 20;

/// A service that serves until dropped.
pub struct Daemon {
    pub path: PathBuf,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Daemon {
    pub fn start(options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Other users reach it, too, in tests that need some.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        // The service makes the folder of its socket itself.
        let path = folder.path().join("service/c");
        let small = Options { region_slots: Some(1024), region_mib: Some(8), ..Options::default() };
        let ours = Options { control: Some(path.clone()), ..Options::default() };
        let config = ours.or(options).or(small).resolve().unwrap();
        let thread = serve(config);
        Self { path, thread: Some(thread), _folder: folder }
    }

    pub fn dial(&self) -> Line {
        Self::dial_at(&self.path)
    }

    pub fn dial_at(path: &std::path::Path) -> Line {
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Line::new(fd)
    }

    /// As another user: a thread of its own takes that user's number, and connects.
    pub fn dial_as(&self, uid: u32) -> Line {
        std::thread::scope(|scope| {
            let dial = || {
                let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
                rustix::thread::set_thread_res_gid(group, group, group).unwrap();
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                self.dial()
            };
            scope.spawn(dial).join().unwrap()
        })
    }

    pub fn report(&self, report: Report) -> serde_json::Value {
        self.ask_by(&self.dial(), report).unwrap()
    }

    /// A report, or the errno and reason of a refusal.
    pub fn ask_by(&self, line: &Line, report: Report) -> Result<serde_json::Value, (i32, String)> {
        line.send(&ToService { number: 1, request: Request::Report(report) }, &[], true).unwrap();
        let got = line.receive::<ToApplication>(true).unwrap();
        if let ToApplication::Reply(_, Reply::Refused { errno, reason }) = got.message {
            return Err((errno, reason));
        }
        let mut text = String::new();
        let fd = std::fs::File::from(got.fds.into_iter().next().unwrap());
        let mut at = std::io::BufReader::new(fd);
        std::io::Seek::rewind(&mut at).unwrap();
        std::io::Read::read_to_string(&mut at, &mut text).unwrap();
        Ok(serde_json::from_str(&text).unwrap())
    }

    /// Waits until the service has so many applications: it has heard of the death of all others.
    pub fn until_applications(&self, count: u64) {
        self.until("so many applications", |_| {
            self.report(Report::Statistics)["applications"].as_u64() == Some(count)
        });
    }

    /// Waits until `f` of the sockets' report is true.
    pub fn until(&self, what: &str, f: impl Fn(&[serde_json::Value]) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !f(self.report(Report::Sockets).as_array().unwrap()) {
            assert!(Instant::now() < end, "{what}: {}", self.report(Report::Sockets));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let line = self.dial();
        line.send(&ToService { number: 1, request: Request::Report(Report::Shutdown) }, &[], true).unwrap();
        let joined = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            joined.expect("the service never panics");
        }
    }
}

/// One end of a connection as an application sees it.
#[derive(Debug)]
pub struct Conn {
    pub region: u32,
    pub slot: u32,
    pub side: usize,
    pub sender: Sender,
    pub tail: u64,
}

impl Conn {
    pub fn new(region: u32, slot: u32, side: usize) -> Self {
        Self { region, slot, side, sender: Sender::default(), tail: 0 }
    }
}

/// One application process with one context.
pub struct App {
    pub line: Line,
    pub welcome: Welcome,
    pub region: Region,
    pub info: RegionInfo,
    pub service_wakers: Vec<OwnedFd>,
    pub woken: OwnedFd,
    /// Holds everything that wakes us, edge-triggered, as the library's.
    set: OwnedFd,
    pub pairs: HashMap<u32, (Region, RegionInfo)>,
    pub wakers: HashMap<(u32, u32), OwnedFd>,
    /// Descriptors by which peers wake us.
    pub sleepers: Vec<OwnedFd>,
    pub pushes: Vec<Push>,
    /// What came with the last answer to a `connect`.
    pub lent: Option<Lent>,
    /// The local address of the last connection.
    pub local: Option<SocketAddr>,
    pub pools: HashMap<u32, Pool>,
    /// The accept queues that the application has mapped.
    pub queues: Queues,
    /// Of the sleepers at a queue that say so one is woken at a time.
    pub is_exclusive: bool,
    number: u32,
    pub context: u32,
}

pub fn hello(parent: Option<Parent>) -> Request {
    Request::Hello {
        protocol: PROTOCOL,
        layout: shm::VERSION,
        name: "test".into(),
        parent,
        itself: control::Itself::default(),
    }
}

fn request(line: &Line, number: u32, request: Request) {
    line.send(&ToService { number, request }, &[], true).unwrap();
}

fn add(set: &OwnedFd, fd: BorrowedFd<'_>) {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(set, fd, epoll::EventData::new_u64(0), flags).unwrap();
}

fn side(index: usize) -> Side {
    Side::from_index(index as u8).unwrap()
}

impl App {
    pub fn new(daemon: &Daemon) -> Self {
        Self::with(daemon, None, 0)
    }

    /// Registers as a process of another user.
    pub fn of_user(daemon: &Daemon, uid: u32) -> Self {
        Self::on(daemon.dial_as(uid), None, 0)
    }

    /// `context`: a number unique in the family.
    pub fn with(daemon: &Daemon, parent: Option<Parent>, context: u32) -> Self {
        Self::on(daemon.dial(), parent, context)
    }

    /// On a line that was made elsewhere.
    pub fn on(line: Line, parent: Option<Parent>, context: u32) -> Self {
        let answer = |n| match line.receive::<ToApplication>(true).unwrap() {
            control::Received { message: ToApplication::Reply(m, reply), fds, .. } if m == n => (reply, fds),
            other => panic!("{other:?}"),
        };
        request(&line, 1, hello(parent));
        let (Reply::Welcome(welcome), _) = answer(1) else { panic!("not welcome") };
        request(&line, 2, Request::OpenRegion { room: u64::MAX });
        let (Reply::Region(info), mut fds) = answer(2) else { panic!("no region") };
        let service_wakers = fds.split_off(1);
        let region = Region::open(fds[0].as_fd(), info.params()).unwrap();
        Region::seal(fds[0].as_fd()).unwrap();
        drop(fds);
        request(&line, 3, Request::Mapped { region: info.id });
        assert_eq!(answer(3).0, Reply::Done);
        region.populate(Side::Zero, 0, POPULATED).unwrap();
        region.populate(Side::One, 0, POPULATED).unwrap();
        request(&line, 4, Request::Populated { region: info.id, bytes: POPULATED as u64 });
        assert_eq!(answer(4).0, Reply::Done);
        region.header().context_taken[1][0].fetch_or(1 << context, Ordering::SeqCst);
        request(&line, 5, Request::Context { context });
        let (Reply::Done, mut fds) = answer(5) else { panic!("no context") };
        let woken = fds.pop().unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        add(&set, woken.as_fd());
        add(&set, line.as_fd());
        Self {
            line,
            welcome,
            region,
            info,
            service_wakers,
            woken,
            set,
            pairs: HashMap::new(),
            wakers: HashMap::new(),
            sleepers: Vec::new(),
            pushes: Vec::new(),
            lent: None,
            local: None,
            pools: HashMap::new(),
            queues: Queues::default(),
            is_exclusive: false,
            number: 10,
            context,
        }
    }

    /// Says something that has no answer.
    pub fn say(&self, what: Request) {
        request(&self.line, 0, what);
    }

    pub fn ask(&mut self, what: Request) -> (Reply, Vec<OwnedFd>) {
        self.ask_showing(what, &[])
    }

    /// Asks with descriptors.
    pub fn ask_showing(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
        self.number += 1;
        self.line.send(&ToService { number: self.number, request }, fds, true).unwrap();
        loop {
            let got = self.line.receive::<ToApplication>(true).unwrap();
            match got.message {
                ToApplication::Reply(n, reply) => {
                    assert_eq!(n, self.number);
                    return (reply, got.fds);
                }
                ToApplication::Push(push) => self.pushed(push, got.fds),
            }
        }
    }

    fn pushed(&mut self, push: Push, fds: Vec<OwnedFd>) {
        fds.iter().for_each(|fd| add(&self.set, fd.as_fd()));
        self.sleepers.extend(fds);
        self.pushes.push(push);
    }

    /// Closes all eventfds that wake this process, and asks for them again. Returns how many of others there were, and are.
    pub fn ask_again_for_wakers(&mut self) -> [usize; 2] {
        let before = self.sleepers.len();
        for fd in self.sleepers.drain(..) {
            // Others have it open, too: closing it would leave it in the set.
            epoll::delete(&self.set, fd.as_fd()).unwrap();
        }
        epoll::delete(&self.set, self.woken.as_fd()).unwrap();
        let (Reply::Done, mut fds) = self.ask(Request::Context { context: self.context }) else {
            panic!("no context")
        };
        self.woken = fds.pop().unwrap();
        add(&self.set, self.woken.as_fd());
        [before, self.sleepers.len()]
    }

    /// Takes in what the service said unasked. False when the line is gone.
    pub fn listen_to_pushes(&mut self) -> bool {
        loop {
            match self.line.receive::<ToApplication>(false) {
                Ok(got) => match got.message {
                    ToApplication::Push(push) => self.pushed(push, got.fds),
                    ToApplication::Reply(..) => {}
                },
                Err(control::LineError::WouldBlock) => return true,
                Err(_) => return false,
            }
        }
    }

    pub fn try_connect(&mut self, to: SocketAddr) -> Result<Conn, Reply> {
        let connect =
            |has_looked| Request::Connect { remote: to, options: SocketOptions::default(), has_looked };
        let (reply, mut fds) = match self.ask(connect(false)) {
            // Its tests have no rings.
            (Reply::Look { .. }, _) => self.ask(connect(true)),
            other => other,
        };
        let Reply::Connecting { region: info, slot, lent, local } = reply else { return Err(reply) };
        self.keep_lent(lent, &mut fds);
        self.local = Some(local);
        if info.pair {
            self.map(info, fds);
        }
        let conn = Conn::new(info.id, slot, usize::from(info.side));
        self.own_half(&conn, |half| watch(half, Some(self.context)));
        Ok(conn)
    }

    pub fn connect(&mut self, to: SocketAddr) -> Conn {
        self.try_connect(to).unwrap()
    }

    fn map(&mut self, info: RegionInfo, fds: Vec<OwnedFd>) {
        if self.pairs.contains_key(&info.id) {
            return;
        }
        let region = Region::open(fds[0].as_fd(), info.params()).unwrap();
        self.pairs.insert(info.id, (region, info));
        let (reply, _) = self.ask(Request::Mapped { region: info.id });
        assert_eq!(reply, Reply::Done);
    }

    pub fn region_of(&self, id: u32) -> &Region {
        if id == self.info.id { &self.region } else { &self.pairs[&id].0 }
    }

    pub fn own_half<R>(&self, conn: &Conn, f: impl FnOnce(&shm::Half) -> R) -> R {
        f(&self.region_of(conn.region).slot(conn.slot).unwrap().half[conn.side])
    }

    pub fn peer_flags(&self, conn: &Conn) -> u32 {
        let slot = self.region_of(conn.region).slot(conn.slot).unwrap();
        slot.half[conn.side ^ 1].flags.load(Ordering::Acquire)
    }

    /// Tells the service of news in a slot of the application region.
    pub fn ring_service(&self, slot: u32) {
        let half = &self.region.slot(slot).unwrap().half[0];
        let Some(context) = watcher(half) else { return };
        let Some(bell) = Doorbell::of(&self.region, Side::Zero, context) else { return };
        if bell.ring(slot) == Wake::Needed {
            let bell = if context == shm::SLOW_CONTEXT { 0 } else { 1 + context as usize };
            if let Some(bell) = self.service_wakers.get(bell) {
                rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
            }
        }
    }

    /// Tells the other side of a connection.
    pub fn tell(&mut self, conn: &Conn) {
        if conn.region == self.info.id {
            return self.ring_service(conn.slot);
        }
        let (region, _) = &self.pairs[&conn.region];
        let Some(context) = watcher(&region.slot(conn.slot).unwrap().half[conn.side ^ 1]) else { return };
        let Some(bell) = Doorbell::of(region, side(conn.side ^ 1), context) else { return };
        if bell.ring(conn.slot) == Wake::NotNeeded {
            return;
        }
        let key = (conn.region, context);
        if let Some(fd) = self.wakers.get(&key) {
            rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
            return;
        }
        let (reply, mut fds) = self.ask(Request::Waker { region: conn.region, context });
        if reply == Reply::Done {
            self.wakers.insert(key, fds.pop().unwrap());
        }
    }

    /// Sends what fits now.
    pub fn send_some(&mut self, conn: &mut Conn, bytes: &[u8]) -> usize {
        let n = self.publish(conn, bytes);
        if n > 0 {
            self.tell(conn);
        }
        n
    }

    /// Puts what fits now into the ring, and rings no bell.
    pub fn publish(&mut self, conn: &mut Conn, bytes: &[u8]) -> usize {
        let own_region = conn.region == self.info.id;
        let pool = self.pools.entry(conn.region).or_default();
        let region = if own_region { &self.region } else { &self.pairs[&conn.region].0 };
        let pages = if own_region { POPULATED / 4096 } else { region.page_words() * 64 };
        let me = side(conn.side);
        let word = |i| -> &AtomicU64 { region.page_word(me, i).unwrap() };
        let half = &region.slot(conn.slot).unwrap().half;
        let (own, peer) = (&half[conn.side], &half[conn.side ^ 1]);
        if let Some(ring) = conn.sender.update(peer).unwrap() {
            pool.give_back(ring, word);
        }
        if conn.sender.space() == 0
            && conn.sender.may_lend()
            && let Some(ring) = pool.lend(class_of(bytes.len().min(65_536)), pages, word)
            && let Some(old) = conn.sender.lend(own, ring)
        {
            pool.give_back(old, word);
        }
        let n = bytes.len().min(conn.sender.space());
        if n > 0 {
            let [(a, an), (b, bn)] = conn.sender.ring.unwrap().spans(conn.sender.head, n);
            region.write(me, a, &bytes[..an]);
            region.write(me, b, &bytes[an..an + bn]);
            conn.sender.publish(own, n);
        } else {
            let _ = conn.sender.want_space(own, peer, |ring| pool.give_back(ring, word)).unwrap();
        }
        n
    }

    /// Sends all, giving the other side time to read.
    pub fn send(&mut self, conn: &mut Conn, mut bytes: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while !bytes.is_empty() {
            let n = self.send_some(conn, bytes);
            bytes = &bytes[n..];
            if n == 0 {
                assert!(Instant::now() < end, "no space");
                self.sleep(Duration::from_millis(20));
            }
        }
    }

    /// Receives what is there: `None` at the end of the stream.
    pub fn receive(&mut self, conn: &mut Conn, most: usize) -> Option<Vec<u8>> {
        let region = self.region_of(conn.region);
        let half = &region.slot(conn.slot).unwrap().half;
        let (own, peer) = (&half[conn.side], &half[conn.side ^ 1]);
        let flags = peer.flags.load(Ordering::Acquire);
        let Some(found) = readable(peer, conn.tail, region.layout().params.data_len).unwrap() else {
            return if flags & FIN != 0 { None } else { Some(Vec::new()) };
        };
        let n = found.len.min(most);
        let mut out = vec![0; n];
        let [(a, an), (b, bn)] = found.ring.spans(conn.tail, n);
        region.read(side(conn.side ^ 1), a, &mut out[..an]);
        region.read(side(conn.side ^ 1), b, &mut out[an..an + bn]);
        conn.tail += n as u64;
        if consumed(own, peer, conn.tail) {
            self.tell(conn);
        }
        Some(out)
    }

    /// Receives exactly `n` bytes.
    pub fn receive_exact(&mut self, conn: &mut Conn, n: usize) -> Vec<u8> {
        self.receive_by(conn, n, Duration::from_millis(20))
    }

    /// Like [`Self::receive_exact`], for bytes of which the other side tells: looks again only when woken, so a wake that does not come
    /// fails the test.
    pub fn receive_told(&mut self, conn: &mut Conn, n: usize) -> Vec<u8> {
        self.receive_by(conn, n, PATIENCE)
    }

    fn receive_by(&mut self, conn: &mut Conn, n: usize, nap: Duration) -> Vec<u8> {
        let (mut all, end) = (Vec::new(), Instant::now() + PATIENCE);
        while all.len() < n {
            let piece = self.receive(conn, n - all.len()).expect("the stream ended early");
            if piece.is_empty() {
                assert!(Instant::now() < end, "{} of {n} bytes came", all.len());
                self.sleep(nap);
            }
            all.extend(piece);
        }
        all
    }

    pub fn shut_down(&mut self, conn: &Conn) {
        self.own_half(conn, |half| raise(half, FIN));
        self.tell(conn);
    }

    /// Closes by Linux's rule. A ring whose bytes are all read is lent again.
    pub fn close(&mut self, conn: &Conn) {
        let own_region = conn.region == self.info.id;
        let region = if own_region { &self.region } else { &self.pairs[&conn.region].0 };
        let mut sender = conn.sender;
        let peer = &region.slot(conn.slot).unwrap().half[conn.side ^ 1];
        let old = sender.update(peer).unwrap();
        let me = side(conn.side);
        if let Some(pool) = self.pools.get_mut(&conn.region) {
            for ring in old.into_iter().chain(sender.give_back()) {
                pool.give_back(ring, |i| region.page_word(me, i).unwrap());
            }
        }
        let region = self.region_of(conn.region);
        let half = &region.slot(conn.slot).unwrap().half;
        let unread = half[conn.side ^ 1].tx_head.load(Ordering::Acquire) != conn.tail;
        raise(&half[conn.side], if unread { RESET } else { FIN } | READ_CLOSED | RELEASED);
        self.tell(conn);
        if conn.region == self.info.id {
            let closed = Request::Closed { region: conn.region, slot: conn.slot };
            request(&self.line, 0, closed);
        }
    }

    /// Sleeps as the library does; true when woken by an eventfd or the control line.
    pub fn sleep(&mut self, most: Duration) -> bool {
        let woken = !self.is_news() && self.is_woken_within(most);
        self.stay_awake();
        woken
    }

    fn doorbells(&self) -> impl Iterator<Item = (Doorbell<'_>, u32)> {
        std::iter::once((&self.region, 1))
            .chain(self.pairs.values().map(|(r, i)| (r, usize::from(i.side))))
            .filter_map(|(r, s)| Some((Doorbell::of(r, side(s), self.context)?, r.layout().params.slots)))
    }

    /// Announces sleep everywhere. True: there is news, so it must not sleep.
    pub fn is_news(&self) -> bool {
        let mut news = self.has_connection();
        for (bell, _) in self.doorbells() {
            news |= !bell.prepare_sleep();
        }
        news
    }

    /// Sleeps no more, and takes all news in.
    pub fn stay_awake(&mut self) {
        for (bell, slots) in self.doorbells() {
            bell.awake();
            bell.drain(slots, |_| ());
        }
        self.awake();
        self.listen_to_pushes();
    }

    /// True when an eventfd or the control line wakes the process within that time.
    pub fn is_woken_within(&self, most: Duration) -> bool {
        let timeout = Timespec::try_from(most).unwrap();
        let mut events = Vec::with_capacity(8);
        epoll::wait(&self.set, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).unwrap() > 0
    }

    /// Waits until `f` holds.
    pub fn until(&mut self, what: &str, f: impl FnMut(&mut Self) -> bool) {
        self.until_by(what, Duration::from_millis(10), f);
    }

    /// Like [`Self::until`], where each step is told: looks again only when woken.
    pub fn until_told(&mut self, what: &str, f: impl FnMut(&mut Self) -> bool) {
        self.until_by(what, PATIENCE, f);
    }

    fn until_by(&mut self, what: &str, nap: Duration, mut f: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !f(self) {
            assert!(Instant::now() < end, "{what}");
            self.sleep(nap);
        }
    }
}

/// False, with a word, where the tests may not become another user.
pub fn can_be_other_users() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can become another user");
    }
    is_root
}

pub fn listener() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Closes a listener, and waits until nothing has it: a helper thread that starts, of any service in this process, has it for a moment.
pub fn close_listener(socket: TcpListener) {
    let address = socket.local_addr().unwrap();
    drop(socket);
    let end = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < end, "{address} is still listened to");
        std::thread::sleep(Duration::from_millis(1));
    }
}
