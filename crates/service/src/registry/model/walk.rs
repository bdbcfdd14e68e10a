//! One walk: draws steps from a seed, takes each in both worlds, and compares what they answer.

use super::checks;
use super::linux::{End, Linux, Pid, SocketId, Stream};
use super::program::{File, Program};
use super::world::World;
use crate::config::Sharing;
use base::Seed;
use control::{KernelReason, Reply};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket, sockopt};
use shm::half_flags::FIN;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Most processes, listening sockets, and sockets of one process.
const PROCESSES: usize = 6;
const LISTENERS: usize = 4;
const FILES: usize = 14;
/// A pause after which the service has done all that it puts off.
const LONG: Duration = Duration::from_millis(1100);
/// The same, for closed connections' ports: twice TIME-WAIT.
const VERY_LONG: Duration = Duration::from_secs(121);

/// Where a listening socket listens, and how.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: SocketAddr,
    backlog: u32,
    /// `SO_REUSEPORT`, and the user: sockets of the same user that have it, too, may listen at the same address.
    shared_by: Option<u32>,
}

/// Both worlds, and what connects them.
pub struct Walk {
    /// What Linux would show.
    pub linux: Linux,
    /// The service, and what the processes see of it.
    pub world: World,
    /// The processes' own sides.
    pub programs: BTreeMap<Pid, Program>,
    seed: Seed,
    /// The kernel's sockets behind descriptors, while some process or message has them.
    kernel: BTreeMap<SocketId, OwnedFd>,
    places: BTreeMap<SocketId, Place>,
    /// Ports of the connectors' ends.
    ports: BTreeMap<SocketId, u16>,
    /// The listener to which each process has connected last: it often connects there again.
    connected: BTreeMap<Pid, SocketId>,
    /// A walk of one user's processes, that do not fork and have room in their queues: they connect without the service.
    is_direct: bool,
    next_pid: Pid,
    /// A process has given a connection up that was not established yet, and left with the service: the service hears of that late, and
    /// meanwhile the connection has its place in the backlog.
    is_behind: bool,
    is_loud: bool,
}

/// A kernel socket that listens, at `at` or at a new port, and its address.
fn listening(at: Option<SocketAddr>, shares_port: bool) -> (OwnedFd, SocketAddr) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseport(&socket, shares_port).unwrap();
    bind(&socket, &at.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    listen(&socket, 128).unwrap();
    let at = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, at)
}

impl Walk {
    /// Two empty worlds. `is_loud`: prints each step.
    pub fn new(seed: u64, sharing: Sharing, is_loud: bool) -> Self {
        Self {
            linux: Linux::default(),
            world: World::new(sharing, Seed::new(!seed)),
            programs: BTreeMap::new(),
            seed: Seed::new(seed),
            kernel: BTreeMap::new(),
            places: BTreeMap::new(),
            ports: BTreeMap::new(),
            connected: BTreeMap::new(),
            is_direct: !seed.is_multiple_of(2),
            next_pid: 1,
            is_behind: false,
            is_loud,
        }
    }

    /// Takes `steps` steps, then ends all processes: nothing may be left. Returns how many connections were made without the service.
    pub fn run(mut self, steps: usize) -> usize {
        for _ in 0..steps {
            self.step();
            checks::after_step(&self);
            if std::mem::take(&mut self.is_behind) {
                self.pass_time(LONG);
            }
        }
        while let Some(pid) = self.any_process() {
            self.kill(pid);
            checks::after_step(&self);
        }
        while !self.linux.messages.is_empty() {
            self.linux.lose(0);
        }
        self.forget_kernel();
        for pause in [LONG, LONG, VERY_LONG, VERY_LONG] {
            self.world.advance(pause);
            checks::after_step(&self);
        }
        checks::nothing_is_left(&self.world);
        self.world.direct
    }

    fn step(&mut self) {
        self.linux.begin_step();
        let Some(pid) = self.any_process() else { return self.spawn() };
        match self.seed.below(100) {
            0..4 => self.spawn(),
            4..11 => self.listen(pid),
            11..30 => self.connect(pid),
            30..48 => self.accept(pid),
            48..60 => self.send(pid),
            60..70 => self.receive(pid),
            70..73 => self.shut_down(pid),
            73..80 => self.close(pid),
            80..83 if !self.is_direct => self.fork(pid),
            80..83 => self.connect(pid),
            83..86 => self.kill(pid),
            86..90 => self.pass(pid),
            90..94 => self.take(pid),
            94..96 => self.execute(pid),
            _ => self.advance(),
        }
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        if self.is_loud {
            eprintln!("{what}");
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.seed.below(from.len() as u64) as usize])
    }

    fn any_process(&mut self) -> Option<Pid> {
        let all: Vec<Pid> = self.programs.keys().copied().collect();
        self.pick(&all)
    }

    fn any_file(&mut self, pid: Pid, is_wanted: impl Fn(&File) -> bool) -> Option<SocketId> {
        let files = self.programs[&pid].files.iter().filter(|(_, file)| is_wanted(file));
        let sockets: Vec<SocketId> = files.map(|(socket, _)| *socket).collect();
        self.pick(&sockets)
    }

    fn program(&mut self, pid: Pid) -> (&mut Program, &mut World) {
        (self.programs.get_mut(&pid).expect("it lives"), &mut self.world)
    }

    fn has_room(&self, pid: Pid) -> bool {
        self.programs[&pid].files.len() < FILES
    }

    fn new_pid(&mut self) -> Pid {
        self.next_pid += 1;
        self.next_pid
    }

    /// Closes the kernel's sockets of which no process has a descriptor.
    fn forget_kernel(&mut self) {
        let Self { kernel, linux, places, is_behind, .. } = self;
        kernel.retain(|socket, _| {
            let is_held = linux.is_held(*socket);
            let is_over = linux.streams.get(socket).is_none_or(|stream| !stream.is_established);
            *is_behind |= !is_held && is_over && !places.contains_key(socket);
            is_held
        });
    }

    /// The kernel's socket behind a connection's descriptor.
    fn placeholder(&mut self, of: SocketId) {
        self.kernel
            .entry(of)
            .or_insert_with(|| socket(AddressFamily::INET, SocketType::STREAM, None).unwrap());
    }

    fn spawn(&mut self) {
        if self.programs.len() >= PROCESSES {
            return;
        }
        let (pid, user) = (self.new_pid(), 1000 + if self.is_direct { 0 } else { self.seed.below(2) as u32 });
        self.say(format_args!("{pid} begins, of user {user}"));
        self.linux.begin(pid);
        self.programs.insert(pid, Program::new(pid, user));
    }

    fn listen(&mut self, pid: Pid) {
        if self.linux.listeners.len() >= LISTENERS || !self.has_room(pid) {
            return;
        }
        let user = self.programs[&pid].user;
        let shared_by = (self.seed.below(3) == 0).then_some(user);
        let is_beside = |place: &&Place| shared_by.is_some() && place.shared_by == shared_by;
        let beside = self.linux.listeners.keys().map(|listener| &self.places[listener]).find(is_beside);
        let (shown, at) = listening(beside.map(|place| place.at), shared_by.is_some());
        let backlog = [self.seed.below(4) as u32, 16][usize::from(self.is_direct)];
        let id = self.linux.listen(pid, backlog as usize);
        self.say(format_args!("{pid} listens by {id} at {at}, backlog {backlog}"));
        self.kernel.insert(id, shown);
        self.places.insert(id, Place { at, backlog, shared_by });
        let shown = &self.kernel[&id];
        let program = self.programs.get_mut(&pid).expect("it lives");
        let reply = program.listen(&mut self.world, id, backlog, shown);
        assert!(matches!(reply, Reply::Listening { is_known: false, .. }), "{reply:?}");
    }

    /// True when a registered process that has the socket has shown it, or was forked from one that had.
    fn is_shown(&self, listener: SocketId) -> bool {
        self.linux.holders(listener).any(|pid| {
            let program = &self.programs[&pid];
            program.registration.is_some() && matches!(program.files[&listener], File::Listener(Some(_)))
        })
    }

    fn connect(&mut self, pid: Pid) {
        let again = self.connected.get(&pid).copied().filter(|_| self.seed.below(3) > 0);
        let all: Vec<SocketId> = self.places.keys().copied().collect();
        let Some(place) = again.or_else(|| self.pick(&all)).filter(|_| self.has_room(pid)) else { return };
        self.connected.insert(pid, place);
        let at = self.places[&place].at;
        // The kernel may have given a new socket the port of an old one.
        let living = self.linux.listeners.keys().copied();
        let group: Vec<SocketId> = living.filter(|listener| self.places[listener].at == at).collect();
        let is_shown = group.iter().any(|listener| self.is_shown(*listener));
        self.say(format_args!("{pid} connects to {group:?}, shown {is_shown}"));
        // Where no process has shown the socket that has it, the kernel keeps the connection for the process that will; or the service does.
        let (program, world) = self.program(pid);
        let answer = program.connect(world, at);
        let link = match answer {
            Ok(link) => link,
            Err(reply) => {
                assert!(!is_shown, "{reply:?}");
                assert_eq!(reply, Reply::Kernel { reason: KernelReason::NoListener });
                return;
            }
        };
        let port = (link.block().ports.load(std::sync::atomic::Ordering::Relaxed) >> 16) as u16;
        let to = match group[..] {
            [_, _, ..] => self.chosen(port).filter(|to| group.contains(to)),
            _ => group.first().copied(),
        };
        let to = to.expect("a socket that listens there");
        let connector = self.linux.connect(pid, to).expect("Linux refuses this connection");
        self.ports.insert(connector, port);
        self.say(format_args!("  by {connector}, port {port}"));
        self.programs.get_mut(&pid).expect("it lives").files.insert(connector, File::Stream(Some(link)));
    }

    /// The listening socket of a group that has got the connection from that port. Linux takes any of them, by a hash.
    fn chosen(&self, port: u16) -> Option<SocketId> {
        let listeners = &self.world.registry.listeners;
        let mut all = listeners.all.iter().flat_map(|(queue, listener)| {
            let queued = listener.grants.iter().filter(|(grant, _)| listener.queue().is_queued(*grant));
            let queued = queued.filter_map(|(grant, _)| listener.grants.get(grant));
            queued.chain(listener.grants.without_room().copied()).map(|incoming| (*queue, incoming))
        });
        let (queue, _) = all.find(|(_, (_, record))| record.peer.port() == port)?;
        let cookie = listeners.all[&queue].cookie;
        let is_it = |(_, socket): &(&SocketId, &OwnedFd)| sockopt::socket_cookie(socket) == Ok(cookie);
        self.kernel.iter().find(is_it).map(|(socket, _)| *socket)
    }

    fn accept(&mut self, pid: Pid) {
        let Some(listener) = self.any_file(pid, |file| matches!(file, File::Listener(_))) else { return };
        if !self.has_room(pid) {
            return;
        }
        self.say(format_args!("{pid} accepts from {listener}"));
        let queue = self.show(pid, listener);
        let (program, world) = self.program(pid);
        let got = program.accept(world, queue);
        let (port, ports) = (got.as_ref().map(|(_, port)| *port), &self.ports);
        let is_it = |connector| ports.get(&connector).copied() == port;
        let Some(acceptor) = self.linux.accept(pid, listener, is_it) else {
            assert!(got.is_none(), "there is nothing to accept");
            return;
        };
        let connector = self.linux.streams.get(&acceptor).map(|stream| stream.peer);
        self.say(format_args!("  {acceptor}, from {connector:?}"));
        let (link, port) = got.expect("a connection waits");
        assert_eq!(Some(&port), connector.and_then(|id| self.ports.get(&id)), "not the oldest connection");
        self.programs.get_mut(&pid).expect("it lives").files.insert(acceptor, File::Stream(Some(link)));
    }

    /// Has the process get the connection of a descriptor, if it has not got it. False: it cannot now.
    fn takes_over(&mut self, pid: Pid, stream: SocketId) -> bool {
        let program = self.programs.get_mut(&pid).expect("it lives");
        if program.endpoint(stream).is_some() {
            return true;
        }
        let answer = program.present(&mut self.world, stream, &self.kernel[&stream]);
        let (own, peer) = (self.linux.streams[&stream], self.linux.peer_of(stream));
        self.say(format_args!("{pid} presents {stream}: {answer:?}"));
        let Err(reply) = answer else { return true };
        if peer.end == End::Reset {
            return false;
        }
        let Reply::Refused { errno, .. } = reply else { panic!("its connection is lost: {reply:?}") };
        assert_eq!(errno, Errno::INPROGRESS.raw_os_error(), "its connection is lost: {reply:?}");
        assert!(!own.is_established, "the connection is established");
        false
    }

    /// A connection that the process can use, which it takes over if it must, with both ends; `is_fit` says how the peer's end may be.
    fn usable_stream(
        &mut self,
        pid: Pid,
        is_fit: impl Fn(End) -> bool,
    ) -> Option<(SocketId, Stream, Stream)> {
        let stream = self.any_file(pid, |file| matches!(file, File::Stream(_)))?;
        let (own, peer) = (self.linux.streams[&stream], self.linux.peer_of(stream));
        let is_usable = own.is_established && is_fit(peer.end);
        (is_usable && self.takes_over(pid, stream)).then_some((stream, own, peer))
    }

    fn send(&mut self, pid: Pid) {
        let Some((stream, own, _)) = self.usable_stream(pid, |end| end == End::Open) else { return };
        self.send_by(pid, stream, own);
        self.world.settle();
        self.hear();
    }

    /// Sends, half of the time, by a socket that the process is about to close: the service hears of the bytes and of the end at once.
    fn say_last_words(&mut self, pid: Pid, socket: SocketId) {
        let Some(own) = self.linux.streams.get(&socket).copied() else { return };
        let is_usable = own.is_established
            && self.linux.peer_of(socket).end == End::Open
            && self.programs[&pid].endpoint(socket).is_some();
        if is_usable && self.seed.below(2) == 0 {
            self.send_by(pid, socket, own);
        }
    }

    fn send_by(&mut self, pid: Pid, stream: SocketId, own: Stream) {
        let wanted = 1 + self.seed.below(3000) as usize;
        let sent = self.programs[&pid].send(stream, own.sent, wanted);
        self.say(format_args!("{pid} sends {sent:?} of {wanted} by {stream}"));
        match sent {
            Ok(n) if !own.is_shut => self.linux.send(stream, n as u64),
            Err(Errno::PIPE) if own.is_shut => {}
            other => panic!("{other:?} from send, shut down {}", own.is_shut),
        }
    }

    fn shut_down(&mut self, pid: Pid) {
        let Some((stream, own, peer)) = self.usable_stream(pid, |end| end != End::Reset) else { return };
        let program = &self.programs[&pid];
        let has_heard = program.endpoint(stream).is_some_and(|link| link.peer_flags() & FIN != 0);
        let answer = program.shut_down(stream);
        self.say(format_args!("{pid} shuts {stream} down: {answer:?}"));
        // Linux has no connection any more once both directions have ended; here that end may be on its way still (`checks::at_rest`).
        let is_over = own.is_shut && peer.has_ended() && has_heard;
        assert_eq!(answer, if is_over { Err(Errno::NOTCONN) } else { Ok(()) });
        self.linux.shut_down(stream);
        self.world.settle();
        self.hear();
    }

    fn receive(&mut self, pid: Pid) {
        let Some((stream, own, peer)) = self.usable_stream(pid, |end| end != End::Reset) else { return };
        let most = 1 + self.seed.below(5000) as usize;
        let got = self.programs[&pid].receive(stream, own.read, most);
        let unread = peer.sent - own.read;
        self.say(format_args!("{pid} receives {got:?} of {unread} by {stream}"));
        match got {
            Ok(Some(0)) => assert!(unread == 0 && peer.has_ended(), "the stream has not ended"),
            Ok(Some(n)) => self.linux.receive(stream, n as u64),
            Ok(None) => assert_eq!(unread, 0, "there are bytes to read"),
            Err(e) => panic!("cannot receive: {e}"),
        }
        self.world.settle();
        self.hear();
    }

    fn hear(&mut self) {
        for program in self.programs.values_mut() {
            program.hear(&mut self.world);
        }
    }

    fn close(&mut self, pid: Pid) {
        let Some(socket) = self.any_file(pid, |_| true) else { return };
        self.say_last_words(pid, socket);
        self.say(format_args!("{pid} closes {socket}"));
        let (program, world) = self.program(pid);
        let needed = program.close(world, socket);
        self.linux.close(pid, socket);
        self.forget_kernel();
        if let Some(queue) = needed {
            let (program, world) = self.program(pid);
            program.closed(world, queue);
        }
        self.hear();
    }

    fn fork(&mut self, pid: Pid) {
        if self.programs.len() >= PROCESSES {
            return;
        }
        let child = self.new_pid();
        let (program, world) = self.program(pid);
        let Some(mut forked) = program.fork(world, child) else { return };
        self.linux.fork(pid, child);
        let says_hello = self.seed.below(3) > 0;
        self.say(format_args!("{pid} forks {child}, says hello {says_hello}"));
        if says_hello {
            let _ = forked.id(&mut self.world);
        }
        self.programs.insert(child, forked);
    }

    /// A child may be killed before it has said hello.
    fn kill(&mut self, pid: Pid) {
        self.say(format_args!("{pid} dies"));
        let dying = self.any_file(pid, |file| matches!(file, File::Stream(_)));
        dying.into_iter().for_each(|socket| self.say_last_words(pid, socket));
        let id = self.programs.remove(&pid).and_then(|program| program.line());
        self.linux.kill(pid);
        let line_first = self.seed.below(2) == 0;
        if !line_first {
            self.forget_kernel();
        }
        if let Some(id) = id {
            self.world.hang_up(id);
        }
        self.forget_kernel();
        self.hear();
    }

    /// The process leaves a connection with the service, because another program may get its descriptor.
    fn leave(&mut self, pid: Pid, stream: SocketId) {
        self.placeholder(stream);
        let program = self.programs.get_mut(&pid).expect("it lives");
        let reply = program.leave(&mut self.world, stream, &self.kernel[&stream]);
        assert!(matches!(reply, None | Some(Reply::Done)), "{reply:?}");
    }

    fn pass(&mut self, pid: Pid) {
        let Some(socket) = self.any_file(pid, |_| true) else { return };
        self.say(format_args!("{pid} passes {socket}"));
        if matches!(self.programs[&pid].files[&socket], File::Stream(_)) {
            self.leave(pid, socket);
        }
        self.linux.pass(socket);
    }

    fn take(&mut self, pid: Pid) {
        if self.linux.messages.is_empty() || !self.has_room(pid) {
            return;
        }
        let index = self.seed.below(self.linux.messages.len() as u64) as usize;
        if self.seed.below(8) == 0 {
            self.say(format_args!("message {index} is lost"));
            self.linux.lose(index);
            return self.forget_kernel();
        }
        let socket = self.linux.take(pid, index);
        self.say(format_args!("{pid} gets {socket}"));
        let is_listener = self.linux.listeners.contains_key(&socket);
        let file = if is_listener { File::Listener(None) } else { File::Stream(None) };
        self.program(pid).0.files.entry(socket).or_insert(file);
    }

    /// The process begins another program, which gets some of its sockets.
    fn execute(&mut self, pid: Pid) {
        let is_forked = self.programs[&pid].is_forked();
        let (program, world) = self.program(pid);
        if is_forked {
            let _ = program.id(world);
        }
        let mut kept = BTreeMap::new();
        for socket in self.linux.sockets_of(pid) {
            if self.seed.below(4) == 0 {
                continue;
            }
            let is_listener = matches!(self.programs[&pid].files[&socket], File::Listener(_));
            if !is_listener {
                self.leave(pid, socket);
            }
            kept.insert(socket, if is_listener { File::Listener(None) } else { File::Stream(None) });
        }
        self.say(format_args!("{pid} executes, and keeps {:?}", kept.keys().collect::<Vec<_>>()));
        let before = self.programs.remove(&pid).expect("it lives");
        for socket in before.files.keys().filter(|socket| !kept.contains_key(socket)) {
            self.linux.close(pid, *socket);
        }
        self.forget_kernel();
        if let Some(registration) = &before.registration {
            self.world.hang_up(registration.id);
        }
        let mut program = Program::new(pid, before.user);
        program.files = kept;
        self.programs.insert(pid, program);
        self.hear();
    }

    /// The service resets what waits for 5 s at a socket from which no process accepts (ARCHITECTURE.md, deserted listener). Linux does not:
    /// so some process that has such a socket uses it before, or the message with it is lost.
    fn show_deserted(&mut self) {
        let all: Vec<SocketId> = self.linux.listeners.keys().copied().collect();
        for listener in all.into_iter().filter(|listener| !self.is_shown(*listener)).collect::<Vec<_>>() {
            let Some(pid) = self.linux.holders(listener).next() else {
                while let Some(index) = self.linux.messages.iter().position(|socket| *socket == listener) {
                    self.linux.lose(index);
                }
                self.forget_kernel();
                continue;
            };
            self.say(format_args!("{pid} shows {listener}"));
            self.show(pid, listener);
        }
    }

    /// The accept queue of a listening socket that the process has.
    fn show(&mut self, pid: Pid, listener: SocketId) -> u32 {
        let (backlog, shown) = (self.places[&listener].backlog, &self.kernel[&listener]);
        let program = self.programs.get_mut(&pid).expect("it lives");
        program.queue_of(&mut self.world, listener, backlog, shown).expect("a listener")
    }

    fn advance(&mut self) {
        let time = match self.seed.below(3) {
            0 => Duration::from_millis(1 + self.seed.below(100)),
            _ => LONG,
        };
        self.pass_time(time);
    }

    fn pass_time(&mut self, time: Duration) {
        self.say(format_args!("{time:?} go by"));
        if time >= LONG {
            self.show_deserted();
        }
        self.world.advance(time);
        self.hear();
        if time >= LONG {
            // A helper thread that starts, of any test in this process, has all descriptors for a moment, and so any listening socket.
            for _ in 0..1000 {
                if self.world.registry.listeners.all.len() <= self.linux.listeners.len() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
                self.world.advance(LONG);
                self.hear();
            }
            checks::at_rest(self);
        }
    }
}
