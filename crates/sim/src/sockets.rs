//! The socket calls of applications: the socket layer's own code for bytes and readiness, and the service's glue for listeners and
//! connections. Nothing blocks: where Linux would block, the result is EAGAIN or EINPROGRESS.

use crate::host::{APPLICATION, Home, Host, Place, Use};
use control::TcpInfo;
use endpoint::blocked::Blocked;
use endpoint::options::{Options, TCP_INQ};
use endpoint::receive_wait::{Amount, Received, Receiving};
use endpoint::stream::{Progress, Said, ready};
use endpoint::{Endpoint as Stream, state};
use flow::FlowId;
use queue::Doorbell;
use queue::stream::{close_for, watch};
use rustix::io::Errno;
use shm::Side;
use slowpath::{Connect, FlowOptions, PendingId};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use wire::Endpoint;

/// A socket descriptor of a simulated application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fd(pub u32);

/// A connection in an accept queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    place: Place,
    local: SocketAddr,
    peer: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Listener {
    places: Vec<Endpoint>,
    backlog: usize,
    queue: VecDeque<Waiting>,
    /// Number of connections that have entered the queue so far.
    arrivals: u64,
}

impl Listener {
    /// The values of `TCP_INFO` for this listener.
    pub(crate) fn info(&self) -> TcpInfo {
        TcpInfo::listening(self.queue.len() as u32, self.backlog as u32)
    }
}

#[derive(Debug)]
pub(crate) enum Role {
    /// Neither listening nor connected.
    Fresh,
    Listener(Listener),
    Stream(Stream),
}

#[derive(Debug)]
pub(crate) struct Sock {
    /// Index of the application that has it.
    pub(crate) application: u16,
    v6: bool,
    pub(crate) role: Role,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// Options set by the program; an accepted socket inherits them from its listener.
    pub(crate) options: Options,
    /// `TCP_QUICKACK`, which an accepted socket does not inherit.
    pub(crate) is_quick: bool,
}

/// All sockets, and the queue of those with events.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    all: BTreeMap<Fd, Sock>,
    /// The descriptor of the next socket; no descriptor is used twice.
    next: u32,
    news: VecDeque<Fd>,
}

impl Sockets {
    fn add(&mut self, sock: Sock) -> Fd {
        let fd = Fd(self.next);
        self.next += 1;
        self.all.insert(fd, sock);
        fd
    }

    pub(crate) fn get(&self, fd: Fd) -> Result<&Sock, Errno> {
        self.all.get(&fd).ok_or(Errno::BADF)
    }

    pub(crate) fn get_mut(&mut self, fd: Fd) -> Result<&mut Sock, Errno> {
        self.all.get_mut(&fd).ok_or(Errno::BADF)
    }

    /// The connection of a socket; `None` for any other socket.
    pub(crate) fn stream(&self, fd: Fd) -> Option<&Stream> {
        self.all.get(&fd)?.stream()
    }

    /// The connection of a socket. For a socket without one the error is `absent`.
    fn connection(&self, fd: Fd, absent: Errno) -> Result<&Stream, Errno> {
        self.get(fd)?.stream().ok_or(absent)
    }

    /// Number of open sockets.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Number of connections in accept queues.
    pub(crate) fn waiting(&self) -> usize {
        let queue = |sock: &Sock| if let Role::Listener(l) = &sock.role { l.queue.len() } else { 0 };
        self.all.values().map(queue).sum()
    }
}

impl Sock {
    fn fresh(application: u16, v6: bool) -> Self {
        let options = Options::default();
        Self { application, v6, role: Role::Fresh, local: None, peer: None, options, is_quick: true }
    }

    pub(crate) fn stream(&self) -> Option<&Stream> {
        if let Role::Stream(link) = &self.role { Some(link) } else { None }
    }
}

/// Turns a v4-mapped IPv6 address into the IPv4 address.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn any(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn errno(number: u16) -> Errno {
    Errno::from_raw_os_error(i32::from(number))
}

impl Host {
    /// `socket(AF_INET or AF_INET6, SOCK_STREAM | SOCK_NONBLOCK)`.
    pub fn socket(&mut self, v6: bool) -> Fd {
        self.sockets.add(Sock::fresh(self.acting, v6))
    }

    /// `bind`. For port 0, `listen` or `connect` chooses the port.
    ///
    /// # Errors
    /// EADDRNOTAVAIL for an address that is not this host's, EINVAL when the socket is bound or connected already.
    pub fn bind(&mut self, fd: Fd, addr: SocketAddr) -> Result<(), Errno> {
        let owns = addr.ip().is_unspecified() || self.slow.routes().owns(addr.ip().to_canonical());
        let sock = self.sockets.get_mut(fd)?;
        if sock.local.is_some() || !matches!(sock.role, Role::Fresh) {
            return Err(Errno::INVAL);
        }
        if addr.is_ipv6() != sock.v6 {
            return Err(Errno::AFNOSUPPORT);
        }
        if !owns && !sock.options.is_on(libc::IPPROTO_IP, libc::IP_FREEBIND) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        sock.local = Some(addr);
        Ok(())
    }

    /// `listen`. A second call changes the backlog.
    ///
    /// # Errors
    /// EADDRINUSE when another socket listens there, EINVAL for a connected socket.
    pub fn listen(&mut self, fd: Fd, backlog: usize) -> Result<(), Errno> {
        let sock = self.sockets.get_mut(fd)?;
        match &mut sock.role {
            Role::Fresh => {}
            Role::Listener(listener) => {
                listener.backlog = backlog;
                self.tell_room(fd);
                return Ok(());
            }
            Role::Stream(_) => return Err(Errno::INVAL),
        }
        let v6 = sock.v6;
        let v6_only = sock.options.is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
        let mut local = sock.local.unwrap_or(SocketAddr::new(any(v6), 0));
        if local.port() == 0 {
            local.set_port(self.free_port().ok_or(Errno::ADDRINUSE)?);
        }
        let places = places(local, v6_only);
        for (i, at) in places.iter().enumerate() {
            if let Err(error) = self.slow.listen(*at, u64::from(fd.0), backlog as u32) {
                let now = self.now;
                for at in &places[..i] {
                    self.slow.unlisten(now, *at);
                }
                return Err(errno(error.errno()));
            }
        }
        let sock = self.sockets.get_mut(fd)?;
        sock.local = Some(local);
        sock.role = Role::Listener(Listener { places, backlog, queue: VecDeque::new(), arrivals: 0 });
        self.tell(fd);
        self.touch();
        Ok(())
    }

    /// The lowest free port of Linux's ephemeral range. A simple search, because listeners without a port are rare.
    fn free_port(&self) -> Option<u16> {
        let mut taken = std::collections::BTreeSet::new();
        self.slow.for_each_socket(|socket| {
            taken.insert(socket.local.port);
        });
        (32_768..=60_999).find(|port| !taken.contains(port))
    }

    fn tell_room(&mut self, fd: Fd) {
        let Ok(Sock { role: Role::Listener(listener), .. }) = self.sockets.get(fd) else { return };
        let room = (listener.backlog + 1).saturating_sub(listener.queue.len());
        self.slow.set_accept_room(u64::from(fd.0), room);
    }

    /// A peer has completed its handshake with the listener `fd`.
    pub(crate) fn on_incoming(&mut self, fd: Fd, local: Endpoint, remote: Endpoint, pending: PendingId) {
        let now = self.now;
        let Ok(Sock { role: Role::Listener(listener), application, .. }) = self.sockets.get(fd) else {
            return self.slow.refuse(now, pending);
        };
        let application = *application;
        if listener.queue.len() > listener.backlog {
            return self.slow.postpone(now, pending);
        }
        let Some(place) = self.take_slot(application) else { return self.slow.refuse(now, pending) };
        if self.slow.accept(now, pending, self.owner(place)).is_err() {
            return self.free_slot(place);
        }
        let local = SocketAddr::new(local.addr, local.port);
        let peer = SocketAddr::new(remote.addr, remote.port);
        if let Ok(Sock { role: Role::Listener(listener), .. }) = self.sockets.get_mut(fd) {
            listener.queue.push_back(Waiting { place, local, peer });
            listener.arrivals += 1;
        }
        self.sockets.news.push_back(fd);
        self.tell_room(fd);
    }

    /// `accept4(.., SOCK_NONBLOCK)`: the new socket and the peer's address.
    ///
    /// # Errors
    /// EAGAIN when none waits, EINVAL for a socket that does not listen.
    pub fn accept(&mut self, fd: Fd) -> Result<(Fd, SocketAddr), Errno> {
        let sock = self.sockets.get_mut(fd)?;
        let Role::Listener(listener) = &mut sock.role else { return Err(Errno::INVAL) };
        let Waiting { place, local, peer } = listener.queue.pop_front().ok_or(Errno::AGAIN)?;
        let (local, peer_name, options) = (Some(local), Some(peer), sock.options.clone());
        let fresh = Sock { local, peer: peer_name, options, ..Sock::fresh(sock.application, sock.v6) };
        let new = Sock { role: Role::Stream(self.link(place, true)), ..fresh };
        self.apply_options(&new);
        let new = self.sockets.add(new);
        self.set_use(place, Use::Open(new));
        self.touch();
        self.tell_room(fd);
        // Events before the socket was watched have rung no doorbell, so one is queued here.
        self.sockets.news.push_back(new);
        Ok((new, peer))
    }

    /// Builds an endpoint over a slot, and watches it: from now on its doorbell rings.
    fn link(&self, Place { application, slot }: Place, passive: bool) -> Stream {
        let mapped = &self.home(application).mapped;
        let link = Stream::new(mapped.clone(), slot, mapped.clone(), slot);
        link.begin(true, passive);
        watch(link.halves().0, Some(APPLICATION));
        link
    }

    /// `connect`.
    ///
    /// # Errors
    /// EINPROGRESS when the handshake has begun; on a repeated call EALREADY, EISCONN or the handshake's error; else the reason why no
    /// handshake has begun.
    pub fn connect(&mut self, fd: Fd, remote: SocketAddr) -> Result<(), Errno> {
        let sock = self.sockets.get(fd)?;
        match &sock.role {
            Role::Fresh => {}
            Role::Listener(_) => return Err(Errno::ISCONN),
            Role::Stream(link) => return again(link),
        }
        if remote.is_ipv6() != sock.v6 {
            return Err(Errno::AFNOSUPPORT);
        }
        let remote = canonical(remote);
        let (bound, options) = (sock.local.map(canonical), FlowOptions::from(&sock.options.told()));
        let place = self.take_slot(sock.application).ok_or(Errno::NOBUFS)?;
        let local = bound.map(|l| {
            let ip = if l.ip().is_unspecified() { any(remote.is_ipv6()) } else { l.ip() };
            Endpoint::new(ip, l.port())
        });
        let what = Connect {
            token: u64::from(fd.0),
            local,
            remote: Endpoint::new(remote.ip(), remote.port()),
            owner: self.owner(place),
            options,
        };
        let link = self.link(place, false);
        match self.slow.connect(self.now, &what) {
            Ok(end) => {
                let sock = self.sockets.get_mut(fd)?;
                sock.local = Some(SocketAddr::new(end.addr, end.port));
                sock.peer = Some(remote);
                sock.role = Role::Stream(link);
                self.apply_options(self.sockets.get(fd)?);
                self.set_use(place, Use::Open(fd));
                self.touch();
                Err(Errno::INPROGRESS)
            }
            Err(error) => {
                self.free_slot(place);
                Err(errno(error.errno()))
            }
        }
    }

    /// `send` that does not wait. `flags`: `MSG_NOSIGNAL`, `MSG_DONTWAIT`, `MSG_MORE` and `MSG_OOB` are known; `MSG_EOR` changes nothing.
    ///
    /// # Errors
    /// EAGAIN without space, EPIPE (no signal is raised), or the connection's error.
    pub fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> Result<usize, Errno> {
        self.send_on(fd, bytes, flags | libc::MSG_DONTWAIT, &mut None)?.ok_or(Errno::AGAIN)
    }

    /// `send` that may wait. `Ok(None)`: it waits; the caller calls again with the same arguments when the host has run. `sent`: bytes sent
    /// before it waited, `None` at first.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn send_on(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        flags: i32,
        sent: &mut Option<usize>,
    ) -> Result<Option<usize>, Errno> {
        const ABOUT_BYTES: i32 = libc::MSG_MORE | libc::MSG_EOR | libc::MSG_OOB;
        if flags & !(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | ABOUT_BYTES) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // Linux returns EPIPE for a socket that was never connected.
        if sent.is_some() && !self.sockets.connection(fd, Errno::PIPE)?.can_go_on(Blocked::Send) {
            return Ok(None);
        }
        let mut done = sent.unwrap_or(0);
        loop {
            let link = self.sockets.connection(fd, Errno::PIPE)?;
            if done > 0 && link.state() & (state::OVER | state::INTO_THE_VOID) != 0 {
                // The next call reports the error.
                return Ok(Some(done));
            }
            let rest = &bytes[done..];
            match link.push_some(&[rest], 0, Said::from_bits_truncate(flags), link.step(rest.len())) {
                Ok(Progress::Done(n)) => done += n,
                Ok(Progress::Wait) if flags & libc::MSG_DONTWAIT == 0 => {
                    *sent = Some(done);
                    return Ok(None);
                }
                Ok(Progress::Wait) if done == 0 => return Err(Errno::AGAIN),
                Err(errno) if done == 0 => return Err(errno),
                _ => return Ok(Some(done)),
            }
            self.touch();
            if done == bytes.len() {
                return Ok(Some(done));
            }
            // `TCP_NOTSENT_LOWAT` counts unsent bytes: the core, which in reality runs beside the application, sends in between.
            self.run(self.now);
        }
    }

    /// `recv` that does not wait. `flags`: `MSG_PEEK`, `MSG_TRUNC`, `MSG_WAITALL` and `MSG_OOB` are known. `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// EAGAIN when nothing is there, ENOTCONN, or the connection's error.
    pub fn receive(&mut self, fd: Fd, out: &mut [u8], flags: i32) -> Result<usize, Errno> {
        self.receive_on(fd, out, flags | libc::MSG_DONTWAIT, &mut None)?.ok_or(Errno::AGAIN)
    }

    /// `recv` that may wait. `Ok(None)`: it waits; the caller calls again with the same arguments when the host has run. `rest`: `None` at
    /// first.
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive).
    pub fn receive_on(
        &mut self,
        fd: Fd,
        out: &mut [u8],
        flags: i32,
        rest: &mut Option<Receiving>,
    ) -> Result<Option<usize>, Errno> {
        const KNOWN: i32 =
            libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_OOB;
        if flags & !KNOWN != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let link = self.sockets.connection(fd, Errno::NOTCONN)?;
        let done = match rest {
            Some(rest) if !(rest.is_cut(link) || link.can_go_on(rest.blocked())) => return Ok(None),
            Some(rest) => rest.go_on(link, &mut [out])?.then_some(rest.done),
            None => {
                let amount = Amount { total: out.len(), enough: usize::MAX };
                match link.receive(&mut [out], amount, flags, || false)? {
                    Received::Done(n) => Some(n),
                    Received::Wait(left) => {
                        *rest = Some(left);
                        None
                    }
                }
            }
        };
        self.touch();
        Ok(done)
    }

    /// `shutdown`; `how`: `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
    ///
    /// # Errors
    /// ENOTCONN without a connection, EINVAL for another `how`.
    pub fn shutdown(&mut self, fd: Fd, how: i32) -> Result<(), Errno> {
        self.sockets.connection(fd, Errno::NOTCONN)?.shutdown(how)?;
        self.touch();
        Ok(())
    }

    /// `close`; with `SO_LINGER` of 0 seconds it resets the connection.
    ///
    /// # Errors
    /// EBADF when the socket does not exist.
    pub fn close(&mut self, fd: Fd) -> Result<(), Errno> {
        let sock = self.sockets.all.remove(&fd).ok_or(Errno::BADF)?;
        let application = sock.application;
        match sock.role {
            Role::Fresh => {}
            Role::Stream(link) => {
                link.release(u64::MAX, sock.options.linger() == Some(0));
                self.release_slot(Place { application, slot: link.slot() });
            }
            Role::Listener(listener) => self.close_listener(&listener),
        }
        Ok(())
    }

    /// Connections that still wait to be accepted are reset, as on Linux.
    fn close_listener(&mut self, listener: &Listener) {
        let now = self.now;
        for at in &listener.places {
            self.slow.unlisten(now, *at);
        }
        for waiting in &listener.queue {
            self.abandon_slot(waiting.place, true);
        }
        self.touch();
    }

    /// All applications die: the service finds their sockets open and ends their connections for them.
    pub fn crash(&mut self) {
        for sock in std::mem::take(&mut self.sockets.all).into_values() {
            let application = sock.application;
            match sock.role {
                Role::Fresh => {}
                Role::Stream(link) => {
                    self.home(application).mapped.linger(link.slot(), link.sender());
                    self.abandon_slot(Place { application, slot: link.slot() }, false);
                }
                Role::Listener(listener) => self.close_listener(&listener),
            }
        }
    }

    /// Closes a connection in place of its application, by Linux's rule: unread input causes a reset.
    fn abandon_slot(&mut self, place: Place, reset: bool) {
        let Some((own, app)) = self.home(place.application).region.halves(place.slot) else { return };
        close_for(app, own, reset);
        self.release_slot(place);
    }

    /// Returns a socket with events since it was last returned: its readiness may have changed. As with edge-triggered epoll, input that
    /// the application has left unread causes no further event.
    pub fn next_news(&mut self) -> Option<Fd> {
        if self.sockets.news.is_empty() {
            self.take_bells();
        }
        let Sockets { all, news, .. } = &mut self.sockets;
        std::iter::from_fn(|| news.pop_front()).find(|fd| all.contains_key(fd))
    }

    /// True when the readiness of a socket may have changed since the last call of this or of [`next_news`](Self::next_news).
    pub fn take_news(&mut self) -> bool {
        std::iter::from_fn(|| self.next_news()).count() > 0
    }

    fn take_bells(&mut self) {
        let Self { homes, sockets, .. } = self;
        for Home { mapped, uses, .. } in homes {
            let layout = mapped.region.layout();
            let Some(block) = mapped.region.context(Side::One, APPLICATION) else { continue };
            Doorbell::new(block, layout.words_per_group).drain(layout.params.slots, |slot| {
                if let Some(Use::Open(fd)) = uses.get(slot as usize) {
                    sockets.news.push_back(*fd);
                }
            });
        }
    }

    /// The readiness of the socket, in epoll's bits.
    #[must_use]
    pub fn readiness(&self, fd: Fd) -> u32 {
        let Ok(sock) = self.sockets.get(fd) else { return 0 };
        match &sock.role {
            Role::Fresh => ready::OUT | ready::WRNORM | ready::HUP,
            Role::Listener(listener) if listener.queue.is_empty() => 0,
            Role::Listener(_) => ready::IN | ready::RDNORM,
            Role::Stream(link) => link.stream_readiness(),
        }
    }

    /// A value that changes with each byte or connection that arrives, and with each send that found no space. Together with the readiness
    /// it tells a new event from a repeated one.
    #[must_use]
    pub fn pulse(&self, fd: Fd) -> (u64, u32) {
        match self.sockets.get(fd).map(|sock| &sock.role) {
            Ok(Role::Stream(link)) => link.pulse(),
            Ok(Role::Listener(listener)) => (listener.arrivals, 0),
            _ => (0, 0),
        }
    }

    /// `getsockname`; `None` while the socket is unbound.
    #[must_use]
    pub fn local_addr(&self, fd: Fd) -> Option<SocketAddr> {
        self.sockets.get(fd).ok()?.local
    }

    /// `getpeername`; `None` without a peer.
    #[must_use]
    pub fn peer_addr(&self, fd: Fd) -> Option<SocketAddr> {
        self.sockets.get(fd).ok()?.peer
    }

    /// The value that `TCP_INQ` adds to a read: the bytes left, plus 1 for the end of the stream. `None` when the option is off.
    #[must_use]
    pub fn left(&self, fd: Fd) -> Option<usize> {
        let sock = self.sockets.get(fd).ok()?;
        sock.stream().filter(|_| sock.options.is_on(libc::IPPROTO_TCP, TCP_INQ)).map(Stream::left)
    }

    /// The flow record of the connection, while TCP has one.
    #[must_use]
    pub fn flow(&self, fd: Fd) -> Option<FlowId> {
        let sock = self.sockets.get(fd).ok()?;
        self.home(sock.application).region.flow_of(sock.stream()?.slot())
    }
}

/// The endpoints on which the slow path listens for `local`: an IPv6 wildcard includes the IPv4 wildcard unless `v6_only` is set.
fn places(local: SocketAddr, v6_only: bool) -> Vec<Endpoint> {
    let plain = canonical(local);
    let mut places = vec![Endpoint::new(plain.ip(), plain.port())];
    if local.is_ipv6() && local.ip().is_unspecified() && !v6_only {
        places.push(Endpoint::new(any(false), local.port()));
    }
    places
}

/// The result of `connect` on a socket that is connected or connecting.
fn again(link: &Stream) -> Result<(), Errno> {
    let _ = link.peer_flags();
    if let (true, Some(error)) = (link.is_over(), link.take_error()) {
        return Err(error);
    }
    if !link.is_open() {
        return Err(if link.is_over() { Errno::CONNABORTED } else { Errno::ALREADY });
    }
    if link.note(state::TOLD) & state::TOLD == 0 { Ok(()) } else { Err(Errno::ISCONN) }
}
