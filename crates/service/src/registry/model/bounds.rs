//! What one user can make the registry do: bounds that hold whatever programs ask for.

use super::program::Program;
use super::world::World;
use crate::config::Sharing;
use crate::registry::local::port_space::PortSpace;
use base::Seed;
use control::{KernelReason, Reply};
use rustix::fd::OwnedFd;
use std::net::TcpListener;

const USER: u32 = 1000;

/// A world, a registered program that listens, its address, and the socket.
fn listening() -> (World, Program, std::net::SocketAddr, OwnedFd) {
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
