//! One party's end of the streams in a region of shared memory. An [`Endpoint`] is a slot of a region, which the other party sees, and a
//! socket block, which it does not.
//!
//! ```text
//!   endpoint      slot, block, state, errors, close        lock          one thread at a time in each direction
//!   stream        bytes in and out, readiness              receive_fast  the usual receive
//!   send_buffer   SO_SNDBUF, TCP_NOTSENT_LOWAT             send_ring     longer rings for what is not read
//!   options       what each socket option means            option_values  which values Linux accepts and returns
//!   cork, urgent, low_water                                receive_wait  a receive that waits
//!   blocked       what a blocking call waits for
//!   unconnected   connections that the program takes back
//!   in_place      bytes read and written in the rings, without locks
//!   region        a mapped region: rings, doorbells        ring_cache, ring_reclaim, populate, slot_grant
//!   host          what the process around it does          per_process   values that a forked child begins anew with
//! ```
//! There is no service here, no descriptor and no global: the process ([`host::Host`]) is given when a region is mapped. So the socket
//! library, the simulator and tests use the same code.
#![cfg(not(loom))]
#![forbid(unsafe_code)]

pub mod blocked;
pub mod cork;
mod endpoint;
pub mod host;
pub mod in_place;
pub mod lock;
pub mod low_water;
pub mod option_values;
pub mod options;
pub mod per_process;
pub mod populate;
pub mod receive_fast;
pub mod receive_wait;
pub mod region;
pub mod ring_cache;
pub mod ring_reclaim;
pub mod send_buffer;
pub mod send_ring;
pub mod slot_grant;
pub mod stream;
pub mod unconnected;
pub mod urgent;

#[cfg(test)]
mod scribble_tests;

pub use endpoint::{Endpoint, Parts, flags, state};
