//! Listening sockets: an accept queue in shared memory beside the kernel's.

use crate::connect::{Why, fallback, whom_to_ask};
use crate::process::io_uring;
use crate::process::io_uring::rings;
use crate::process::visibility;
use crate::socket::listener::Listener;
use crate::socket::placeholder::{self, Place};
use crate::socket::{Sock, flag, options};
use crate::wait::{self, Patience};
use control::profile::REQUIRE_ENV;
use control::{KernelReason, Reply, Request, Unlisten};
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::accept::{self, Claimed};
use session::accept_queue::Queue;
use session::reserved::Changing;
use session::sys::signal::Deferred;
use session::sys::{self, address};
use session::{self, Client, config, detached, host, log};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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
        Ok(client) => announce(sock, fd, &client, (backlog.max(0) as u32).min(sys::somaxconn())),
        Err(why) => Ok(Listened::Kernel(why)),
    }
}

/// Accelerates a listening kernel socket that came from another program or process, if that may be.
pub fn join(sock: &Arc<Sock>, fd: RawFd) {
    let listened = whom_to_ask(sock, fd).map(|client| announce(sock, fd, &client, backlog_of(fd)));
    match listened {
        Ok(Ok(Listened::Ours)) => options::take_over(sock, fd),
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
    word.map_or_else(sys::somaxconn, |word| u32::from_ne_bytes(*word))
}

/// Tells the service of a kernel socket that listens.
fn announce(sock: &Arc<Sock>, fd: RawFd, client: &Arc<Client>, backlog: u32) -> Result<Listened, Errno> {
    client.expect_first();
    // The program's own setting: in the kernel's socket another process's library may have set O_NONBLOCK.
    let nonblocking = sock.is_nonblocking();
    let answer = client.ask_with(Request::Listen { backlog, nonblocking }, Some(fd));
    let (queue, is_known) = match answer {
        Ok((Reply::Listening { queue, is_known }, _)) => match client.queue(queue) {
            Some(queue) => (queue, is_known),
            None => {
                client.say(Request::Unlisten { queue, because: Unlisten::GivenUp });
                return Ok(Listened::Kernel(Why::asked(KernelReason::NoSharedMemory)));
            }
        },
        Ok((Reply::Refused { errno, .. }, _)) => return Err(Errno::from_raw_os_error(errno)),
        Ok((Reply::Kernel { reason }, _)) => {
            log::log(log::Level::Info, format_args!("fd {fd} listens in the kernel: {reason}"));
            return Ok(Listened::Kernel(Why { reason, errno: Errno::OPNOTSUPP }));
        }
        _ => return Ok(Listened::Kernel(Why::NO_SERVICE)),
    };
    let shown_by = AtomicU32::new(host::generation());
    if let Some(listener) = sock.listener() {
        if !Arc::ptr_eq(&listener.queue, &queue) {
            client.say(Request::Unlisten { queue: queue.id, because: Unlisten::GivenUp });
            wait_as_wanted(sock, fd)?;
            return Ok(Listened::Kernel(Why::asked(KernelReason::OtherQueue)));
        }
        listener.shown_by.store(host::generation(), Ordering::Relaxed);
        return Ok(Listened::Ours);
    }
    // The kernel's accept must never block: accelerated connections may come meanwhile. The program's own O_NONBLOCK is kept in the queue.
    let flags = sys::fcntl(fd, libc::F_GETFL, 0)?;
    sys::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize)?;
    if local_address(fd).is_some_and(|local| address::plain(local).ip().is_unspecified()) {
        sock.set(|settings| settings.is_anywhere = true);
    }
    let [is_busy, is_port_needed] = [const { AtomicBool::new(false) }; 2];
    sock.decide_listener(Listener { queue, is_busy, shown_by, is_port_needed });
    // The service already has the options of a socket that it knows.
    if !is_known {
        options::tell(sock);
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

/// Tells the sets that hold the socket what it has become.
fn tell_of_role(sock: &Arc<Sock>) {
    let sets = sock.sets();
    sets.iter().for_each(|(set, fd)| set.adopt(sock, *fd));
    let is_certain = || !sets.is_empty() || rings::are_for_sets() || config::is_required();
    if let Some(listener) = sock.listener().filter(|_| is_certain()) {
        listener.queue.note_awaited();
    }
    sock.announce_again();
}

/// The program waits for what may be a listener, by a call that we see: notes it.
pub fn await_by_call(sock: &Sock) {
    if let Some(listener) = sock.listener() {
        listener.queue.note_awaited();
    }
}

/// Asks whether a socket that has stopped listening may listen again.
///
/// # Errors
/// EADDRINUSE, as Linux's: connections that it has accepted need its port.
pub fn may_listen_again(sock: &Sock, listener: &Listener) -> Result<(), Errno> {
    let Some(client) = session::present() else { return Ok(()) };
    let reuse_address = options::reuses_address(sock);
    match client.ask(Request::ListenAgain { queue: listener.queue.id, reuse_address }) {
        Ok((Reply::Refused { errno, .. }, _)) => Err(Errno::from_raw_os_error(errno)),
        _ => Ok(()),
    }
}

/// The process can take connections out of the queue no longer. When this returns no connection waits for this process alone.
pub fn give_up(listener: &Listener, client: &Client) {
    // An error: the service is gone, and so is the queue.
    let _ = client.ask(Request::Unlisten { queue: listener.queue.id, because: Unlisten::GivenUp });
}

/// Stops listening, by `in_kernel` first: then the service finds the port as the kernel leaves it. Connections that wait are reset.
///
/// # Errors
/// The kernel's. Nothing has happened then.
pub fn stop_after_kernel(
    listener: &Listener,
    in_kernel: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    in_kernel()?;
    stop(listener);
    Ok(())
}

/// The socket has stopped listening, or is the kernel's in all processes: connections that wait are reset.
pub fn stop(listener: &Listener) {
    if let Some(client) = session::present() {
        let _ = client.ask(Request::Unlisten { queue: listener.queue.id, because: Unlisten::Stopped });
    }
}

/// A descriptor is being closed, until this is dropped.
#[derive(Debug, Default)]
pub struct Closing {
    /// Id of the accept queue of a listener whose port its connections still need.
    ended: Option<u32>,
    _changing: Option<Changing>,
}

impl Closing {
    /// `ended`: the accept queue of such a listener.
    pub const fn new(ended: Option<u32>, changing: Option<Changing>) -> Self {
        Self { ended, _changing: changing }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let Some(queue) = self.ended else { return };
        let _deferred = Deferred::begin();
        if let Some(client) = session::current() {
            // The port is free in the kernel now: the service holds it.
            let _ = client.ask(Request::Unlisten { queue, because: Unlisten::Closed });
        }
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

/// Sets up the connection of a claimed grant.
fn admit(
    sock: &Sock,
    client: &Arc<Client>,
    claimed: Claimed,
    place: &mut Place,
) -> Result<Option<Accepted>, Errno> {
    let peer = claimed.peer;
    let link = accept::begin(client, claimed, sock.family(), place.is_nonblocking())?;
    let accepted = Sock::accepted(sock.family(), link);
    accepted.mark(flag::COMMON, place.is_common());
    options::inherit(sock, &accepted);
    Ok(place.leave().map(|fd| Accepted { fd, sock: Some(Arc::new(accepted)), peer: Some(peer) }))
}

/// Tries once to accept from a queue that is not empty. Takes a descriptor first: without one the connection stays queued.
fn try_queue(sock: &Arc<Sock>, queue: &Queue, flags: i32) -> Result<Option<Accepted>, Errno> {
    let client = session::present().ok_or(Errno::CONNABORTED)?;
    let mut place = Place::new(sock, queue, flags)?;
    let mut useless = 0;
    let result = loop {
        let is_over = useless == accept::USELESS_MOST;
        let claimed = if is_over { None } else { queue.accepting().claim(client.application()) };
        let Some(grant) = claimed else { break Ok(None) };
        // Perhaps no descriptor was free for its memory: the connection's own number is used for that meanwhile.
        let find = |region, side| {
            let find = || client.region(region, side);
            find().map_or_else(|| place.without(find), |mapped| Ok(Some(mapped)))
        };
        let found = match accept::locate(&client, queue, grant, find) {
            Ok(found) => found,
            Err(e) => {
                // No descriptor is left: the connection waits again.
                queue.accepting().put_back(grant, client.application());
                break Err(e);
            }
        };
        let admitted = found.map_or(Ok(None), |found| admit(sock, &client, found, &mut place));
        queue.accepting().finish(grant, client.application());
        if queue.wants_room() {
            client.say(Request::Accepted { queue: queue.id });
        }
        // A grant that cannot be used (its peer is gone already) is skipped.
        if !matches!(admitted, Ok(None)) {
            break admitted;
        }
        useless += 1;
    };
    place.give_back()?;
    result
}

/// Tries once to accept from the queue in shared memory.
fn try_ours(sock: &Arc<Sock>, listener: &Listener, flags: i32) -> Result<Option<Accepted>, Errno> {
    if detached::is_locked() || !listener.has_any() {
        return Ok(None);
    }
    let accepted = try_queue(sock, &listener.queue, flags)?;
    listener.note_busy(accepted.is_some());
    Ok(accepted)
}

/// Tries once to accept from the kernel.
fn try_kernel(sock: &Sock, listener: &Listener, fd: RawFd, flags: i32) -> Result<Option<Accepted>, Errno> {
    // After another thread's close the number may not be the placeholder's any more.
    while !sock.is_orphan() {
        match sys::accept(fd, flags) {
            Ok(fd) if config::is_required() => turn_away(fd)?,
            Ok(fd) => {
                listener.note_busy(false);
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

/// This thread, which takes no connection, may be the one that was woken for it: wakes another.
fn hand_on(listener: &Listener) {
    if let Some(client) = session::present().filter(|_| listener.has_any()) {
        listener.queue.wake(&client);
    }
}

/// `accept4` on an accelerated listener. `None`: the listener is the kernel's alone from now on.
///
/// # Errors
/// As Linux's.
pub fn accept(sock: &Arc<Sock>, fd: RawFd, flags: i32) -> Result<Option<Accepted>, Errno> {
    let listener = sock.listener().ok_or(Errno::INVAL)?;
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return Err(Errno::INVAL);
    }
    if let Some(accepted) = try_ours(sock, listener, flags)? {
        if !sock.is_nonblocking() {
            listener.queue.note_awaited();
        }
        return Ok(Some(accepted));
    }
    let deadline = sock.receive_limit().map(|t| Instant::now() + t);
    let spin = || -> Result<Option<Accepted>, Errno> {
        let _open = sock.begin_use()?;
        let kernel = Some(fd).filter(|_| !sock.is_orphan());
        if wait::spin_for_listener(sock, kernel, deadline)? {
            try_ours(sock, listener, flags)
        } else {
            Ok(None)
        }
    };
    // The kernel's EAGAIN takes longer than an accept of ours: where our connections come often they come first.
    let is_first = listener.is_busy.load(Ordering::Relaxed) && !sock.is_nonblocking();
    if is_first && let Some(accepted) = spin()? {
        return Ok(Some(accepted));
    }
    if let Some(accepted) = try_kernel(sock, listener, fd, flags)? {
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
    listener.queue.note_awaited();
    if !is_first && let Some(accepted) = spin()? {
        return Ok(Some(accepted));
    }
    let _open = sock.begin_use()?;
    // A signal handler runs only inside the sleep.
    let deferred = Deferred::begin();
    loop {
        let kernel = Some(fd).filter(|_| !sock.is_orphan());
        let patience = Patience { deferred: deferred.as_ref(), ..Patience::until(deadline) };
        let is_last = wait::for_listener(sock, kernel, patience).inspect_err(|_| hand_on(listener))?;
        if let Some(accepted) = try_ours(sock, listener, flags)? {
            return Ok(Some(accepted));
        }
        if let Some(accepted) = try_kernel(sock, listener, fd, flags)? {
            return Ok(Some(accepted));
        }
        if is_last {
            hand_on(listener);
            return Err(Errno::AGAIN);
        }
    }
}
