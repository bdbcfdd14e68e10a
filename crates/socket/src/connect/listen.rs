//! Listening sockets: an accept queue in shared memory beside the kernel's.

use crate::connect::{Why, direct_queue, fallback, whom_to_ask};
use crate::process::fork_locks::Held;
use crate::process::{fork, io_uring, visibility};
use crate::session::{self, Client, config, detached, lock, log};
use crate::socket::placeholder::{self, Place};
use crate::socket::{Sock, flag};
use crate::sys::signal::Deferred;
use crate::sys::{self, address};
use crate::wait::{self, Patience};
use control::profile::REQUIRE_ENV;
use control::{AcceptRecord, KernelReason, RECORD_LEN, Reply, Request, Unlisten};
use endpoint::region::Mapped;
use endpoint::stream::{How, Progress};
use endpoint::{Endpoint, state};
use queue::stream::{watch, watcher};
use rustix::fd::{OwnedFd, RawFd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The result of `listen`.
#[derive(Debug, PartialEq, Eq)]
pub enum Listened {
    /// Accelerated, now or when the program waits for it (see `rings`); the kernel socket listens too.
    Ours,
    /// The kernel alone listens, for this reason.
    Kernel(Why),
}

fn local_address(fd: RawFd) -> Option<SocketAddr> {
    let mut bytes = [0; address::ADDRESS_MAX];
    let n = sys::getsockname(fd, &mut bytes).ok()?;
    address::parse(&bytes[..n]).ok()
}

fn somaxconn() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    text.trim().parse().unwrap_or(4096)
}

/// `listen`: the kernel first (it reserves the port), then the service.
///
/// # Errors
/// As the kernel's `listen`, or as the service refuses.
pub fn listen(sock: &Arc<Sock>, fd: RawFd, backlog: i32) -> Result<Listened, Errno> {
    let client = whom_to_ask(sock, fd);
    sys::listen(fd, backlog)?;
    match client {
        Ok(_) if sock.decided().is_none() && io_uring::look(sock).is_err() => {
            io_uring::put_off(sock, fd);
            Ok(Listened::Ours)
        }
        Ok(client) => announce(sock, fd, &client, (backlog.max(0) as u32).min(somaxconn())),
        Err(why) => Ok(Listened::Kernel(why)),
    }
}

/// Accelerates a listening kernel socket that came from another program or process, if that may be.
pub fn join(sock: &Arc<Sock>, fd: RawFd) {
    let listened = whom_to_ask(sock, fd).map(|client| announce(sock, fd, &client, backlog_of(fd)));
    match listened {
        Ok(Ok(Listened::Ours)) => crate::socket::options::take_over(sock, fd),
        Ok(Ok(Listened::Kernel(why))) | Err(why) => fallback::count(why.reason, Some(fd)),
        Ok(Err(e)) => log::log(log::Level::Info, format_args!("fd {fd} listens in the kernel: {e}")),
    }
}

/// The backlog as given to `listen`: a listening socket's `tcpi_sacked`.
fn backlog_of(fd: RawFd) -> u32 {
    const SACKED: usize = mem::offset_of!(libc::tcp_info, tcpi_sacked);
    let mut info = [0; SACKED + 4];
    let told = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info);
    let word = info.last_chunk().filter(|_| told == Ok(info.len()));
    word.map_or_else(somaxconn, |word| u32::from_ne_bytes(*word))
}

/// Tells the service of a kernel socket that listens.
fn announce(sock: &Arc<Sock>, fd: RawFd, client: &Arc<Client>, backlog: u32) -> Result<Listened, Errno> {
    if let Some(link) = sock.listener()
        && !Arc::ptr_eq(&link.mapped, &client.home)
    {
        // An ancestor's listener: its backlog stays.
        share(sock);
        return Ok(Listened::Ours);
    }
    let block = match sock.listener() {
        Some(link) => link.index(),
        None => match client.take_block() {
            Some(block) => block,
            None => return Ok(Listened::Kernel(Why::asked(KernelReason::TooManySockets))),
        },
    };
    client.expect_first();
    let answer = client.ask_with(Request::Listen { sock: block, backlog }, Some(fd));
    if let Some(link) = sock.listener() {
        if again(sock, client, link, &answer) {
            return Ok(Listened::Ours);
        }
        wait_as_wanted(sock, fd)?;
        return Ok(Listened::Kernel(Why::asked(KernelReason::OtherQueue)));
    }
    let is_known = matches!(answer, Ok((Reply::Joined { .. }, _)));
    let (slot, nonblocking) = match answer {
        Ok((Reply::Listening { slot }, _)) if client.home.has(slot) => (slot, sock.is_nonblocking()),
        // The program's own setting: in the kernel's socket another process's library may have set O_NONBLOCK.
        Ok((Reply::Joined { slot, nonblocking }, _)) if client.home.has(slot) => (slot, nonblocking),
        other => {
            release_block(&client.home, block);
            return match other {
                Ok((Reply::Refused { errno, .. }, _)) => Err(Errno::from_raw_os_error(errno)),
                Ok((Reply::Kernel { reason }, _)) => {
                    log::log(log::Level::Info, format_args!("fd {fd} listens in the kernel: {reason}"));
                    Ok(Listened::Kernel(Why { reason, errno: Errno::OPNOTSUPP }))
                }
                _ => Ok(Listened::Kernel(Why::NO_SERVICE)),
            };
        }
    };
    let link = Endpoint::queue(client.home.clone(), slot, client.home.clone(), block);
    link.begin(nonblocking, true);
    // The kernel's accept must never block: accelerated connections may come meanwhile. The program's own O_NONBLOCK is kept in the block.
    let flags = sys::fcntl(fd, libc::F_GETFL, 0)?;
    sys::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize)?;
    if local_address(fd).is_some_and(|local| address::plain(local).ip().is_unspecified()) {
        sock.set(|settings| settings.is_anywhere = true);
    }
    sock.decide(link);
    // The service already has the options of a listener that joined an earlier one.
    if !is_known {
        crate::socket::options::tell(sock);
    }
    tell_of_role(sock);
    placeholder::prepare(sock.family());
    Ok(Listened::Ours)
}

/// From now on only the kernel's socket is used: makes it block, or not, as the program wants.
pub fn wait_as_wanted(sock: &Sock, fd: RawFd) -> Result<(), Errno> {
    if !sock.is_nonblocking() {
        let flags = sys::fcntl(fd, libc::F_GETFL, 0)?;
        sys::fcntl(fd, libc::F_SETFL, flags & !(libc::O_NONBLOCK as usize))?;
    }
    Ok(())
}

/// `listen` on a listener: a new backlog, or a new start after it had stopped. False: the slot of its accept queue is another's.
fn again(
    sock: &Arc<Sock>,
    client: &Client,
    link: &Endpoint,
    answer: &Result<(Reply, Vec<OwnedFd>), Errno>,
) -> bool {
    let Ok((Reply::Listening { slot } | Reply::Joined { slot, .. }, _)) = answer else { return true };
    if *slot != link.slot() {
        client.say(unlisten((client.home.id, *slot), Unlisten::GivenUp));
        link.block().holders.fetch_and(!client.holder_bit(), Ordering::AcqRel);
        return false;
    }
    if link.block().region.load(Ordering::Acquire) == 0 {
        // It had stopped: this is a new queue, from which nothing was read, and which no context watches yet.
        link.begin(sock.is_nonblocking(), true);
        tell_of_role(sock);
    }
    link.forget(state::SHUT_RD);
    true
}

/// Tells the sets that hold the socket what it has become, and the queue which context to tell of news.
pub fn tell_of_role(sock: &Arc<Sock>) {
    let sets = sock.sets();
    sets.iter().for_each(|(set, fd)| set.adopt(sock, *fd));
    let is_certain = || !sets.is_empty() || io_uring::are_for_sets() || config::is_required();
    if let Some(link) = sock.listener().filter(|_| is_certain()) {
        note_awaited(link);
    }
    sock.announce_again();
}

/// Frees a socket block of `home`.
pub fn release_block(home: &Mapped, block: u32) {
    if let Some(b) = home.region.sock(block) {
        b.holders.store(0, Ordering::Release);
    }
}

/// In a forked child: its own accept queue for an inherited listener.
pub fn own_queue(sock: &Sock) -> Option<Arc<Endpoint>> {
    let generation = fork::generation();
    if generation == 0 {
        return None;
    }
    let name = name_of(sock.listener()?);
    lock(&OWN).get(&name).filter(|(g, _)| *g == generation).and_then(|(_, link)| link.clone())
}

/// Shows every queue of a listener except its first: a forked child's own, and lines.
pub fn each_other_queue(sock: &Sock, link: &Endpoint, mut show: impl FnMut(&Endpoint)) {
    if let Some(own) = own_queue(sock) {
        show(&own);
    }
    if let Some(lines) = direct_queue::of(link) {
        lines.iter().for_each(|line| show(line));
    }
}

/// Key of an inherited listener: its region's id, and its slot.
pub type Name = (u32, u32);

/// A forked child's own accept queue, if it got one, and the fork generation in which it asked.
type Own = (u32, Option<Arc<Endpoint>>);

/// Own accept queues by inherited listener.
static OWN: Mutex<BTreeMap<Name, Own>> = Mutex::new(BTreeMap::new());

/// The [`Name`] of a listener.
pub fn name_of(link: &Endpoint) -> Name {
    (link.mapped.id, link.slot())
}

/// Takes the lock of `OWN` before a fork.
pub fn hold_own_queues(held: &mut Held) {
    held.take_static(&OWN);
}

/// The program waits for what may be a listener, by a call that we see: notes it.
pub fn await_by_call(sock: &Arc<Sock>) {
    if let Some(link) = sock.listener() {
        note_awaited(link);
        share(sock);
    }
}

fn note_awaited(link: &Endpoint) {
    if link.state() & state::AWAITED == 0 {
        link.note(state::AWAITED);
    }
}

/// Asks for an accept queue of this process, once in a process that inherited the listener.
pub fn share(sock: &Arc<Sock>) {
    let generation = fork::generation();
    let Some(link) = sock.listener() else { return };
    if generation == 0 || sock.is_parents() {
        return;
    }
    let Some(client) = session::present() else { return };
    let mut queues = lock(&OWN);
    let is_asked = queues.get(&name_of(link)).is_some_and(|(g, _)| *g == generation);
    if Arc::ptr_eq(&link.mapped, &client.home) || is_asked {
        return;
    }
    client.expect_first();
    let request = Request::ShareListener { region: link.mapped.id, slot: link.slot() };
    let own = match client.ask(request) {
        Ok((Reply::Listening { slot }, _)) if client.home.has(slot) => client.take_block().map(|index| {
            let own = Endpoint::queue(client.home.clone(), slot, client.home.clone(), index);
            own.begin(link.is_nonblocking(), true);
            Arc::new(own)
        }),
        _ => None,
    };
    queues.insert(name_of(link), (generation, own));
    drop(queues);
    tell_of_role(sock);
}

/// The process can take connections out of its queues no longer. When this returns the service puts none into them.
pub fn give_up(sock: &Sock, link: &Endpoint, client: &Client) {
    direct_queue::close(link, client.holder_bit());
    let own = own_queue(sock).map(|own| own.slot());
    let first = Arc::ptr_eq(&link.mapped, &client.home).then(|| link.slot());
    for slot in [own, first].into_iter().flatten() {
        // An error: the service is gone, and so are the queues.
        let _ = client.ask(unlisten((client.home.id, slot), Unlisten::GivenUp));
    }
}

/// From now on only the placeholder listens, for all processes that share it by fork: a thread that waits by system calls of its own hears
/// nothing of any queue.
pub fn leave(client: &Client, sock: &Sock) {
    let Some(link) = sock.listener() else { return };
    stop(link);
    if let Some(own) = own_queue(sock) {
        end_own(client, link, &own);
    }
    link.block().holders.fetch_and(!client.holder_bit(), Ordering::AcqRel);
}

/// Stops listening: connections that wait are reset. The caller tells the placeholder.
pub fn stop(link: &Endpoint) {
    link.note(state::SHUT_RD);
    direct_queue::close(link, u64::MAX);
    // Say it once, as in `close`: later the slot may be another listener's. After the answer nothing comes by its queues.
    if link.block().region.swap(0, Ordering::AcqRel) != 0
        && let Some(client) = session::present()
    {
        let _ = client.ask(unlisten(name_of(link), Unlisten::Stopped));
    }
}

fn unlisten((region, slot): Name, because: Unlisten) -> Request {
    Request::Unlisten { region, slot, because }
}

/// Ends a child's own accept queue for an inherited listener.
fn end_own(client: &Client, link: &Endpoint, own: &Endpoint) {
    lock(&OWN).remove(&name_of(link));
    client.say(unlisten(name_of(own), Unlisten::Closed));
    release_block(&client.home, own.index());
}

/// This process has closed its last descriptor of a listener.
pub fn close(sock: &Sock, link: &Endpoint, ours: u64, client: Option<&Client>) {
    direct_queue::close(link, ours);
    match (own_queue(sock), client) {
        (Some(own), Some(client)) => end_own(client, link, &own),
        _ if fork::generation() != 0 => drop(lock(&OWN).remove(&name_of(link))),
        _ => {}
    }
    let b = link.block();
    let others = |holders: u64| Some(holders & !ours).filter(|rest| *rest != 0);
    let is_home = client.filter(|client| Arc::ptr_eq(&link.mapped, &client.home));
    if let Some(client) = is_home.filter(|_| others(b.holders.load(Ordering::Acquire)).is_some())
        && is_closed_behind(client, link)
    {
        b.region.store(0, Ordering::Release);
    }
    // Exactly one process is the last. It says so before the block is free, and once: later the slot may be another listener's.
    if b.holders.fetch_update(Ordering::AcqRel, Ordering::Acquire, others).is_err() {
        if let Some(client) = client.filter(|_| b.region.swap(0, Ordering::AcqRel) != 0) {
            client.say(unlisten(name_of(link), Unlisten::Closed));
        }
        b.holders.fetch_and(!ours, Ordering::AcqRel);
    }
}

/// The queue's own process leaves the listener to those that it has forked. True: they have queues of their own, and this one is gone. Else
/// the queue is theirs from now on, and none of our threads is told of its news.
fn is_closed_behind(client: &Client, link: &Endpoint) -> bool {
    let half = link.halves().0;
    if watcher(half).is_some_and(|context| lock(&client.contexts).contains_key(&context)) {
        watch(half, None);
    }
    matches!(client.ask(unlisten(name_of(link), Unlisten::Closed)), Ok((Reply::Done, _)))
}

/// Takes the next record of an accept queue.
pub fn take(link: &Endpoint) -> Result<Option<AcceptRecord>, Errno> {
    let mut bytes = [0; RECORD_LEN];
    if link.unread() < RECORD_LEN {
        return Ok(None);
    }
    match link.pull(&mut [&mut bytes], 0, How::default())? {
        Progress::Done(RECORD_LEN) => Ok(AcceptRecord::from_bytes(&bytes)),
        _ => Ok(None),
    }
}

/// A connection taken from a listener.
#[derive(Debug)]
pub struct Accepted {
    /// The connection's new descriptor.
    pub fd: RawFd,
    /// The connection; `None` when it is the kernel's.
    pub sock: Option<Arc<Sock>>,
    /// The peer's address; `None` when it is the kernel's.
    pub peer: Option<SocketAddr>,
}

fn admit(
    sock: &Sock,
    link: &Endpoint,
    record: &AcceptRecord,
    place: &mut Place,
) -> Result<Option<Accepted>, Errno> {
    let client = session::present().ok_or(Errno::CONNABORTED)?;
    let region = || client.region(record.region, record.side);
    // Perhaps no descriptor was free for its memory: the connection's own number is used for that meanwhile.
    let mapped = region().map_or_else(|| place.without(region), |mapped| Ok(Some(mapped)))?;
    let Some(mapped) = mapped.filter(|m| m.has(record.slot)) else {
        client.say(Request::Closed { region: record.region, slot: record.slot });
        return Ok(None);
    };
    // Rings that it lends in an ancestor's region must be found there when this process is gone.
    let there = if mapped.is_own() { None } else { client.take_block_of(&link.home) };
    let (home, index) = match there {
        Some(index) => (&link.home, index),
        None => (&client.home, client.take_block().ok_or(Errno::NOBUFS)?),
    };
    client.expect(&mapped, record.slot);
    let link = Endpoint::new(mapped, record.slot, home.clone(), index);
    link.begin(place.is_nonblocking(), true);
    crate::connect::store_addresses(&link, record.local, record.peer, sock.family());
    let accepted = Sock::accepted(sock.family(), link);
    accepted.mark(flag::COMMON, place.is_common());
    crate::socket::options::inherit(sock, &accepted);
    Ok(place.leave().map(|fd| Accepted { fd, sock: Some(Arc::new(accepted)), peer: Some(record.peer) }))
}

/// Takes the oldest record of all queues of a listener.
fn next_record(sock: &Arc<Sock>, link: &Endpoint) -> Result<Option<AcceptRecord>, Errno> {
    let own = own_queue(sock);
    let client = session::present().ok_or(Errno::CONNABORTED)?;
    direct_queue::tidy(sock, link, &client);
    let lines = direct_queue::of(link);
    let by_line = lines.as_ref().and_then(|lines| direct_queue::oldest(lines));
    let mut queues = own.iter().map(|own| &**own).chain([link]);
    let queue = queues.find(|queue| queue.unread() >= RECORD_LEN);
    match (queue, by_line) {
        (None, None) => Ok(None),
        (None, Some((line, _))) => Ok(take_line(sock, link, &client, line)),
        (Some(queue), Some((line, time)))
            if direct_queue::head(queue).is_some_and(|head| time < head.time) =>
        {
            Ok(take_line(sock, link, &client, line))
        }
        (Some(queue), _) => {
            let record = take(queue)?;
            if let Some(record) = record.filter(|record| record.line != 0) {
                direct_queue::adopt(sock, link, &client, &record);
            }
            Ok(record)
        }
    }
}

/// Takes a record from a line. Its connector is not trusted: the record can name only a slot of the line's region.
fn take_line(sock: &Sock, link: &Endpoint, client: &Client, line: &Arc<Endpoint>) -> Option<AcceptRecord> {
    let record = take(line).and_then(|record| {
        let Some(record) = record else { return Ok(None) };
        let [local, peer] = direct_queue::granted(client, line, &record).ok_or(Errno::PROTO)?;
        let (region, side) = (line.mapped.id, line.mapped.side as u8);
        Ok(Some(AcceptRecord { region, side, local, peer, ..record }))
    });
    let record = record.unwrap_or_else(|_| {
        direct_queue::drop_line(sock, link, client, line);
        None
    });
    direct_queue::make_room(link);
    record
}

/// Tries once to accept from queues that are not all empty. Takes a descriptor first: without one the connection stays queued.
fn try_queues(sock: &Arc<Sock>, link: &Endpoint, flags: i32) -> Result<Option<Accepted>, Errno> {
    let mut place = Place::new(sock, link, flags)?;
    let result = loop {
        match next_record(sock, link)
            .map(|record| record.map(|record| admit(sock, link, &record, &mut place)))
        {
            // A record that cannot be used (its peer is gone already) is skipped.
            Ok(Some(Ok(None))) => {}
            Ok(Some(result)) => break result,
            Ok(None) => break Ok(None),
            Err(e) => break Err(e),
        }
    };
    place.give_back()?;
    result
}

/// Tries once to accept from the queues in shared memory.
fn try_ours(sock: &Arc<Sock>, link: &Endpoint, flags: i32) -> Result<Option<Accepted>, Errno> {
    let is_shut = link.state() & state::SHUT_RD != 0 || detached::is_locked();
    if is_shut || sock.readiness() & endpoint::stream::ready::IN == 0 {
        return Ok(None);
    }
    let accepted = try_queues(sock, link, flags)?;
    link.note_busy(accepted.is_some());
    Ok(accepted)
}

/// Tries once to accept from the kernel.
fn try_kernel(sock: &Sock, link: &Endpoint, fd: RawFd, flags: i32) -> Result<Option<Accepted>, Errno> {
    // After another thread's close the number may not be the placeholder's any more.
    while !sock.is_orphan() {
        match sys::accept(fd, flags) {
            Ok(fd) if config::is_required() => turn_away(fd)?,
            Ok(fd) => {
                link.note_busy(false);
                return Ok(Some(Accepted { fd, sock: None, peer: None }));
            }
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// Resets a connection that the kernel must not accept. Logged once: any process on this host may connect.
fn turn_away(fd: RawFd) -> Result<(), Errno> {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let text = format_args!(
            "accept: a connection is reset: its peer is a kernel socket, and {REQUIRE_ENV} is set (said once)"
        );
        log::log(log::Level::Error, text);
    }
    let at_once = [1i32, 0].map(i32::to_ne_bytes).concat();
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &at_once);
    sys::close(fd)
}

/// `accept4` on an accelerated listener. `None`: the listener is the kernel's alone from now on.
///
/// # Errors
/// As Linux's.
pub fn accept(sock: &Arc<Sock>, fd: RawFd, flags: i32) -> Result<Option<Accepted>, Errno> {
    let link = sock.listener().ok_or(Errno::INVAL)?;
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return Err(Errno::INVAL);
    }
    share(sock);
    if let Some(accepted) = try_ours(sock, link, flags)? {
        if !sock.is_nonblocking() {
            note_awaited(link);
        }
        return Ok(Some(accepted));
    }
    let deadline = sock.receive_limit().map(|t| Instant::now() + t);
    let spin = || -> Result<Option<Accepted>, Errno> {
        let _open = sock.begin_use()?;
        let kernel = Some(fd).filter(|_| !sock.is_orphan());
        if wait::spin_for_listener(sock, kernel, deadline)? { try_ours(sock, link, flags) } else { Ok(None) }
    };
    // The kernel's EAGAIN takes longer than an accept of ours: where our connections come often they come first.
    let is_first = link.is_busy() && !sock.is_nonblocking();
    if is_first && let Some(accepted) = spin()? {
        return Ok(Some(accepted));
    }
    if let Some(accepted) = try_kernel(sock, link, fd, flags)? {
        return Ok(Some(accepted));
    }
    if let Some(why) = visibility::notice(sock, fd) {
        if config::is_required() {
            fallback::refuse(format_args!("accept"), why.reason);
            return Err(why.errno);
        }
        return Ok(None);
    }
    if sock.is_nonblocking() {
        // Not noted as awaited: the program may wait by an io_uring.
        return Err(Errno::AGAIN);
    }
    note_awaited(link);
    if !is_first && let Some(accepted) = spin()? {
        return Ok(Some(accepted));
    }
    let _open = sock.begin_use()?;
    // A signal handler runs only inside the sleep.
    let deferred = Deferred::begin();
    loop {
        let kernel = Some(fd).filter(|_| !sock.is_orphan());
        let patience = Patience { deferred: deferred.as_ref(), ..Patience::until(deadline) };
        wait::for_listener(sock, kernel, patience)?;
        if let Some(accepted) = try_ours(sock, link, flags)? {
            return Ok(Some(accepted));
        }
        if let Some(accepted) = try_kernel(sock, link, fd, flags)? {
            return Ok(Some(accepted));
        }
    }
}
