//! Both ends' addresses of a connection, as its socket block keeps them.

use control::{address_from_words, address_to_words};
use endpoint::Endpoint;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes both ends' addresses into the socket block.
pub fn store(link: &Endpoint, local: SocketAddr, peer: SocketAddr, family: i32) {
    let b = link.block();
    for (words, address) in [(&b.local, local), (&b.peer, peer)] {
        let [low, high] = address_to_words(address.ip());
        words[0].store(low, Ordering::Relaxed);
        words[1].store(high, Ordering::Relaxed);
    }
    b.ports.store(u32::from(local.port()) << 16 | u32::from(peer.port()), Ordering::Relaxed);
    b.family.store(family as u32, Ordering::Relaxed);
}

/// Local and peer address, as the block has them.
#[must_use]
pub fn both(link: &Endpoint) -> (SocketAddr, SocketAddr) {
    let b = link.block();
    let ports = b.ports.load(Ordering::Relaxed);
    let words = |w: &[AtomicU64; 2]| w.each_ref().map(|x| x.load(Ordering::Relaxed));
    let of = |w: &[AtomicU64; 2], port| SocketAddr::new(address_from_words(words(w)), port);
    (of(&b.local, (ports >> 16) as u16), of(&b.peer, ports as u16))
}
