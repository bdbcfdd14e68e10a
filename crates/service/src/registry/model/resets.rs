//! What a relay passes on before a reset: the bytes that were published before it, as far as the receiver has room for them.

use super::linux::SocketId;
use super::program::{File, Program};
use super::world::World;
use crate::config::Sharing;
use base::Seed;
use control::Reply;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use shm::half_flags::{FIN, READ_CLOSED, RELEASED, RESET};
use std::net::{SocketAddr, TcpListener};

const USER: u32 = 1000;
/// More than a relay copies in two turns of one round.
const MANY: usize = 100_000;

/// A listening program, in a world in which the service relays all connections.
struct Server {
    world: World,
    program: Program,
    queue: u32,
    address: SocketAddr,
    _socket: OwnedFd,
}

/// How an end of a connection resets it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    /// It closes with unread bytes.
    Unread,
    /// As `SO_LINGER` with time 0.
    Abort,
    /// Its process is killed with unread bytes.
    Death,
}

impl Server {
    fn new() -> Self {
        let mut world = World::new(Sharing::Never, Seed::new(1));
        let mut program = Program::new(11, USER);
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let socket = OwnedFd::from(socket);
        let Reply::Listening { queue, .. } = program.listen(&mut world, 1, 64, &socket) else {
            panic!("it cannot listen")
        };
        Self { world, program, queue, address, _socket: socket }
    }

    /// A connection of a new program. Both ends have the same number in their programs.
    fn connected(&mut self, socket: SocketId) -> Program {
        let mut client = Program::new(100 + socket, USER);
        let link = client.connect(&mut self.world, self.address).unwrap();
        client.files.insert(socket, File::Stream(Some(link)));
        self.world.settle();
        let (link, _) = self.program.accept(&mut self.world, self.queue).expect("it waits");
        self.program.files.insert(socket, File::Stream(Some(link)));
        client
    }
}

/// Raises the flags of an abortive close, as a process that writes its words itself.
fn abort(program: &Program, socket: SocketId) {
    program.endpoint(socket).unwrap().raise(RESET | READ_CLOSED | RELEASED);
}

/// Reads to the end. Returns how many bytes came, and the error behind them.
fn drain(reader: &Program, socket: SocketId) -> (usize, Option<Errno>) {
    let mut got = 0;
    loop {
        match reader.receive(socket, got as u64, 5000) {
            Ok(Some(0)) => return (got, None),
            Ok(Some(n)) => got += n,
            Ok(None) => panic!("neither bytes nor an end after {got} bytes"),
            Err(e) => return (got, Some(e)),
        }
    }
}

/// Of two programs with one connection, `sender` sends and resets in one breath. Returns what `reader` reads.
fn send_and_reset(world: &mut World, mut sender: Program, reader: &mut Program, by: By) -> (usize, usize) {
    if by != By::Abort {
        assert_eq!(reader.send(2, 0, 7), Ok(7));
        world.settle();
    }
    let sent = sender.send(2, 0, MANY).unwrap();
    match by {
        By::Unread => drop(sender.close(world, 2)),
        By::Abort => abort(&sender, 2),
        By::Death => world.hang_up(sender.registration.take().expect("it has registered").id),
    }
    world.settle();
    let (got, error) = drain(reader, 2);
    assert_eq!(error, Some(Errno::CONNRESET), "{by:?}");
    (sent, got)
}

#[test]
fn a_reset_comes_behind_the_bytes_that_were_published_before_it() {
    for by in [By::Unread, By::Abort, By::Death] {
        let mut server = Server::new();
        let client = server.connected(2);
        let (sent, got) = send_and_reset(&mut server.world, client, &mut server.program, by);
        assert!(sent > MANY / 2 && got == sent, "{by:?}: {got} of {sent} bytes from the client");
        let mut server = Server::new();
        let mut client = server.connected(2);
        let (sent, got) = send_and_reset(&mut server.world, server.program, &mut client, by);
        assert!(sent > MANY / 2 && got == sent, "{by:?}: {got} of {sent} bytes from the server");
    }
}

#[test]
fn a_reset_behind_the_end_of_the_stream_leaves_the_end_readable() {
    let mut server = Server::new();
    let client = server.connected(2);
    let Server { mut world, program, .. } = server;
    assert_eq!(program.send(2, 0, 100), Ok(100));
    program.shut_down(2).unwrap();
    abort(&program, 2);
    world.settle();
    let link = client.endpoint(2).unwrap();
    assert_eq!(link.peer_flags() & (FIN | RESET), FIN | RESET);
    assert_eq!(drain(&client, 2), (100, None));
    // As on Linux in CLOSE-WAIT.
    assert_eq!(link.take_error(), Some(Errno::PIPE));
}

#[test]
fn bytes_that_are_published_behind_a_reset_are_not_passed_on() {
    let mut server = Server::new();
    let client = server.connected(2);
    let Server { mut world, program, .. } = server;
    let sent = client.send(2, 0, MANY).unwrap();
    abort(&client, 2);
    let now = world.registry.tcp_now();
    assert!(world.core.turn(now), "the relay has seen the reset");
    let unread = program.endpoint(2).unwrap().unread();
    assert!(0 < unread && unread < sent, "{unread} of {sent} bytes are passed on");
    assert!(client.send(2, sent as u64, 1000).is_ok_and(|n| n > 0));
    client.endpoint(2).unwrap().tell();
    world.settle();
    assert_eq!(drain(&program, 2), (sent, Some(Errno::CONNRESET)));
}

#[test]
fn a_reader_that_does_not_read_keeps_no_relay() {
    let mut server = Server::new();
    let mut client = server.connected(2);
    let Server { mut world, mut program, .. } = server;
    let mut sent = 0;
    loop {
        let n = client.send(2, sent, MANY).unwrap();
        world.settle();
        program.hear(&mut world);
        client.hear(&mut world);
        if n == 0 {
            break;
        }
        sent += n as u64;
    }
    let in_ring = program.endpoint(2).unwrap().unread();
    assert!((in_ring as u64) < sent, "all {sent} bytes fit into the reader's ring");
    abort(&client, 2);
    world.settle();
    let relay = world.registry.relays.values().next().expect("the reader has not closed");
    assert_eq!((relay.place(0), relay.place(1).is_some()), (None, true), "the sender's slot is free");
    assert_eq!(drain(&program, 2), (in_ring, Some(Errno::CONNRESET)), "what was in its ring");
    program.close(&mut world, 2);
    assert!(world.registry.relays.is_empty());
}

#[test]
fn a_reset_waits_for_memory_that_may_come_and_for_no_other() {
    let mut server = Server::new();
    let mut clients = Vec::new();
    let mut early = None;
    for socket in 2..40 {
        let client = server.connected(socket);
        let sent = client.send(socket, 0, MANY).unwrap();
        server.world.settle();
        let is_starved = server.program.endpoint(socket).unwrap().unread() == 0;
        assert!(sent > 0);
        if is_starved && early.is_none() {
            early = Some(socket);
            abort(&client, socket);
            server.world.settle();
            assert_eq!(server.program.endpoint(socket).unwrap().peer_flags() & RESET, 0, "memory may come");
            server.program.hear(&mut server.world);
            let (got, error) = drain(&server.program, socket);
            assert!(got > 0 && error == Some(Errno::CONNRESET), "{got} of {sent} bytes, {error:?}");
        }
        server.program.hear(&mut server.world);
        let unread = server.program.endpoint(socket).unwrap().unread();
        if early != Some(socket) && unread == 0 {
            abort(&client, socket);
            server.world.settle();
            assert_eq!(drain(&server.program, socket), (0, Some(Errno::CONNRESET)), "no memory can come");
            assert!(early.is_some());
            return;
        }
        clients.push(client);
    }
    panic!("the reader's memory never ends");
}
