//! A machine with the released crate `smoltcp` as its TCP: an independent implementation as peer.

use crate::machine::{Machine, Stack};
use crate::sockets::Fd;
use base::{Instant, Seed};
use rustix::io::Errno;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant as Moment;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Bytes of each buffer of a socket.
const BUFFER: usize = 65_535;
/// Number of listening sockets kept ready; each takes one connection.
const READY: usize = 16;

/// The machine's network card.
#[derive(Debug)]
struct Card {
    mtu: usize,
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct Take(Vec<u8>);
struct Give<'a>(&'a mut VecDeque<Vec<u8>>);

impl smoltcp::phy::RxToken for Take {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl smoltcp::phy::TxToken for Give<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Card {
    type RxToken<'a> = Take;
    type TxToken<'a> = Give<'a>;

    fn receive(&mut self, _: Moment) -> Option<(Take, Give<'_>)> {
        Some((Take(self.received.pop_front()?), Give(&mut self.sent)))
    }

    fn transmit(&mut self, _: Moment) -> Option<Give<'_>> {
        Some(Give(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + 14;
        capabilities
    }
}

#[derive(Debug)]
enum Role {
    Listener { port: u16, ready: Vec<SocketHandle>, queue: VecDeque<SocketHandle> },
    Stream(SocketHandle),
}

/// The machine; see the module.
pub struct Smoltcp {
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    roles: BTreeMap<Fd, Role>,
    next_fd: u32,
    /// Sockets that the application has closed and TCP has not.
    leaving: Vec<SocketHandle>,
    news: VecDeque<Fd>,
    rng: Seed,
    now: Instant,
    due: Instant,
    must_run: bool,
}

impl std::fmt::Debug for Smoltcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Smoltcp").field("roles", &self.roles).finish_non_exhaustive()
    }
}

fn moment(now: Instant) -> Moment {
    Moment::from_micros(now.as_us() as i64)
}

fn socket() -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = Socket::new(buffer(), buffer());
    // As on our hosts: the last segment of a peer that died may be lost, and keepalive finds that out.
    socket.set_keep_alive(Some(smoltcp::time::Duration::from_secs(60)));
    socket
}

impl Smoltcp {
    /// A machine with these addresses and prefix lengths.
    #[must_use]
    pub fn new(mac: [u8; 6], addresses: &[(IpAddr, u8)], mtu: u16, now: Instant, seed: u64) -> Self {
        let mut card = Card { mtu: usize::from(mtu), received: VecDeque::new(), sent: VecDeque::new() };
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac)));
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut card, moment(now));
        interface.update_ip_addrs(|own| {
            for &(addr, prefix) in addresses {
                // The list has room for two addresses.
                let _ = own.push(IpCidr::new(addr.into(), prefix));
            }
        });
        Self {
            card,
            interface,
            sockets: SocketSet::new(Vec::new()),
            roles: BTreeMap::new(),
            next_fd: 0,
            leaving: Vec::new(),
            news: VecDeque::new(),
            rng: Seed::new(seed),
            now,
            due: now,
            must_run: true,
        }
    }

    fn add(&mut self, role: Role) -> Fd {
        let fd = Fd(self.next_fd);
        self.next_fd += 1;
        self.roles.insert(fd, role);
        self.news.push_back(fd);
        self.must_run = true;
        fd
    }

    fn stream(&mut self, fd: Fd) -> Result<&mut Socket<'static>, Errno> {
        match self.roles.get(&fd) {
            Some(Role::Stream(handle)) => Ok(self.sockets.get_mut::<Socket<'static>>(*handle)),
            _ => Err(Errno::BADF),
        }
    }

    /// Moves listening sockets that have become connections into the accept queue, and replaces them by new ones.
    fn tend(&mut self) {
        let Self { sockets, roles, leaving, .. } = self;
        for role in roles.values_mut() {
            let Role::Listener { port, ready, queue } = role else { continue };
            for handle in ready.iter_mut() {
                let state = sockets.get_mut::<Socket<'static>>(*handle).state();
                match state {
                    State::Listen | State::SynReceived => continue,
                    State::Closed => sockets.get_mut::<Socket<'static>>(*handle).abort(),
                    _ => {
                        queue.push_back(*handle);
                        *handle = sockets.add(socket());
                    }
                }
                // It cannot fail: the socket is fresh, and the port is not 0.
                let _ = sockets.get_mut::<Socket<'static>>(*handle).listen(*port);
            }
        }
        leaving.retain(|handle| {
            let socket = sockets.get_mut::<Socket<'static>>(*handle);
            // An aborted socket still has to send its reset.
            let is_open = socket.state() != State::Closed || socket.remote_endpoint().is_some();
            if !is_open {
                sockets.remove(*handle);
            }
            is_open
        });
    }
}

impl Machine for Smoltcp {
    fn inject(&mut self, frame: &[u8]) {
        self.card.received.push_back(frame.to_vec());
    }

    fn run(&mut self, now: Instant) {
        self.now = now;
        self.must_run = false;
        while self.interface.poll(moment(now), &mut self.card, &mut self.sockets)
            == PollResult::SocketStateChanged
        {
            self.news = self.roles.keys().copied().collect();
            self.tend();
        }
        let at = self.interface.poll_at(moment(now), &self.sockets);
        // smoltcp's clock counts microseconds: the next call must not be within the same one.
        let soonest = Instant::from_ns((now.as_us() + 1) * 1000);
        self.due =
            at.map_or(Instant::NEVER, |at| Instant::from_ns(at.total_micros() as u64 * 1000).max(soonest));
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.card.sent.pop_front()
    }

    fn next_deadline(&self) -> Instant {
        if self.must_run || !self.card.received.is_empty() {
            return self.now;
        }
        self.due
    }

    fn stack(&mut self) -> Option<&mut dyn Stack> {
        Some(self)
    }
}

impl Stack for Smoltcp {
    fn listen_on(&mut self, port: u16, _: usize) -> Result<Fd, Errno> {
        let mut ready = Vec::new();
        for _ in 0..READY {
            let mut socket = socket();
            socket.listen(port).map_err(|_| Errno::INVAL)?;
            ready.push(self.sockets.add(socket));
        }
        Ok(self.add(Role::Listener { port, ready, queue: VecDeque::new() }))
    }

    fn open(&mut self, remote: SocketAddr) -> Result<Fd, Errno> {
        let handle = self.sockets.add(socket());
        let local = 49_152 + self.rng.below(16_000) as u16;
        let socket = self.sockets.get_mut::<Socket<'static>>(handle);
        if socket.connect(self.interface.context(), remote, local).is_err() {
            self.sockets.remove(handle);
            return Err(Errno::ADDRNOTAVAIL);
        }
        Ok(self.add(Role::Stream(handle)))
    }

    fn is_connected(&mut self, fd: Fd) -> Result<bool, Errno> {
        match self.stream(fd)?.state() {
            State::Closed => Err(Errno::CONNREFUSED),
            State::SynSent | State::SynReceived | State::Listen => Ok(false),
            _ => Ok(true),
        }
    }

    fn take(&mut self, fd: Fd) -> Result<Fd, Errno> {
        let Some(Role::Listener { queue, .. }) = self.roles.get_mut(&fd) else { return Err(Errno::INVAL) };
        let handle = queue.pop_front().ok_or(Errno::AGAIN)?;
        Ok(self.add(Role::Stream(handle)))
    }

    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        self.must_run = true;
        match self.stream(fd)?.send_slice(bytes) {
            Ok(0) => Err(Errno::AGAIN),
            Ok(n) => Ok(n),
            Err(_) => Err(Errno::CONNRESET),
        }
    }

    fn read(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        self.must_run = true;
        match self.stream(fd)?.recv_slice(out) {
            Ok(0) => Err(Errno::AGAIN),
            Ok(n) => Ok(n),
            Err(RecvError::Finished) => Ok(0),
            Err(RecvError::InvalidState) => Err(Errno::CONNRESET),
        }
    }

    fn finish(&mut self, fd: Fd) -> Result<(), Errno> {
        self.stream(fd)?.close();
        self.must_run = true;
        Ok(())
    }

    /// As Linux: closing with unread bytes, or before the end was sent, resets the connection.
    fn drop_fd(&mut self, fd: Fd) {
        self.must_run = true;
        match self.roles.remove(&fd) {
            Some(Role::Stream(handle)) => {
                let socket = self.sockets.get_mut::<Socket<'static>>(handle);
                if socket.may_recv() || socket.may_send() {
                    socket.abort();
                }
                self.leaving.push(handle);
            }
            Some(Role::Listener { ready, queue, .. }) => {
                for handle in ready.into_iter().chain(queue) {
                    self.sockets.get_mut::<Socket<'static>>(handle).abort();
                    self.leaving.push(handle);
                }
            }
            None => {}
        }
    }

    fn news(&mut self) -> Option<Fd> {
        self.news.pop_front()
    }
}
