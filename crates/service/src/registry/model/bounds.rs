//! What one user can make the registry do: bounds that hold whatever programs ask for.

use super::program::Program;
use super::world::World;
use crate::config::Sharing;
use crate::registry::listen::table::Holders;
use crate::registry::local::port_space::PortSpace;
use crate::registry::policy::permission::LISTENERS_MOST;
use base::Seed;
use control::{KernelReason, Reply, Request, SocketOptions};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

const USER: u32 = 1000;

/// A world, a registered program that listens, its address, and the socket.
fn listening() -> (World, Program, SocketAddr, OwnedFd) {
    let mut world = World::new(Sharing::Always, Seed::new(1));
    let mut server = Program::new(11, USER);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let socket = OwnedFd::from(socket);
    server.listen(&mut world, 1, 8, &socket);
    (world, server, address, socket)
}

#[test]
fn a_connection_for_which_no_port_may_be_held_is_the_kernels() {
    let (mut world, _server, address, _socket) = listening();
    world.registry.ports = PortSpace::with_most(0);
    let answer = Program::new(12, USER).connect(&mut world, address);
    let reason = KernelReason::ServiceDescriptors;
    assert!(answer.is_err_and(|reply| reply == Reply::Kernel { reason }));
    world.registry.ports = PortSpace::with_most(1);
    assert!(Program::new(13, USER).connect(&mut world, address).is_ok());
}

/// A socket that listens with `SO_REUSEPORT`.
fn shared(at: SocketAddr) -> OwnedFd {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseport(&fd, true).unwrap();
    bind(&fd, &at).unwrap();
    listen(&fd, 8).unwrap();
    fd
}

/// The address of a socket.
fn address_of(fd: &OwnedFd) -> SocketAddr {
    rustix::net::getsockname(fd).unwrap().try_into().unwrap()
}

#[test]
fn of_very_many_listeners_at_one_place_some_are_asked_about_at_once() {
    let (mut world, mut server, _, _) = listening();
    let mut sockets = vec![shared("127.0.0.1:0".parse().unwrap())];
    let at = address_of(&sockets[0]);
    sockets.extend((0..LISTENERS_MOST).map(|_| shared(at)));
    let mut listen = |world: &mut World, i: usize| server.listen(world, 2 + i as u32, 8, &sockets[i]);
    for i in 0..LISTENERS_MOST - 1 {
        assert!(matches!(listen(&mut world, i), Reply::Listening { .. }), "{i}");
    }
    world.registry.listeners.alive.asked.clear();
    assert!(matches!(listen(&mut world, LISTENERS_MOST - 1), Reply::Listening { .. }));
    let reason = KernelReason::TooManyListeners;
    assert_eq!(listen(&mut world, LISTENERS_MOST), Reply::Kernel { reason }, "the kernel has it");
    let known: Vec<u32> = world.registry.listeners.at_port(at.port());
    assert_eq!(known.len(), LISTENERS_MOST);
    // No process certainly accepts: each choice asks the kernel.
    world.registry.listeners.all.values_mut().for_each(|listener| listener.holders = Holders::default());
    world.registry.choose(&known);
    let asked = std::mem::take(&mut world.registry.listeners.alive.asked);
    assert!(asked.iter().any(|count| *count > 1) && asked.iter().all(|count| *count <= 32), "{asked:?}");
    drop(sockets);
    world.advance(Duration::from_secs(1));
    assert!(world.registry.listeners.at_port(at.port()).is_empty(), "the rounds find the others");
}

#[test]
fn a_stranger_sets_no_options_of_a_listener() {
    let (mut world, mut server, ..) = listening();
    let queue = *world.registry.listeners.all.keys().next().unwrap();
    let options = SocketOptions { defer_accept: 20, ..SocketOptions::default() };
    let request = Request::SetOptions { region: queue, slot: 0, options };
    let defers = |world: &World| world.registry.listeners.all[&queue].options.defer_accept.is_some();
    let thief = Program::new(12, USER).id(&mut world);
    world.say(thief, request.clone());
    assert!(!defers(&world));
    let holder = server.id(&mut world);
    world.say(holder, request);
    assert!(defers(&world));
}

#[test]
fn ends_that_come_without_end_cause_no_look_at_all_processes_each() {
    let (mut world, mut server, ..) = listening();
    server.id(&mut world);
    world.advance(Duration::from_secs(1));
    let before = world.registry.timers.reaps;
    let children: Vec<Program> = (20..79).filter_map(|pid| server.fork(&mut world, pid)).collect();
    assert_eq!(children.len(), 59);
    for child in children {
        world.hang_up(child.line().unwrap());
        world.registry.handle_timers();
    }
    assert!(world.registry.timers.reaps - before <= 1, "{}", world.registry.timers.reaps - before);
    world.advance(Duration::from_secs(1));
    assert_eq!(world.registry.timers.reaps - before, 2, "what the later ends have ended is found");
}

#[test]
fn a_private_service_waits_for_a_promised_child_as_for_a_process() {
    let (mut world, mut server, ..) = listening();
    let child = server.fork(&mut world, 20).unwrap();
    world.hang_up(server.line().unwrap());
    assert!(world.registry.has_applications());
    world.hang_up(child.line().unwrap());
    assert!(!world.registry.has_applications());
}
