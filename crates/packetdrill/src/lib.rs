//! `libtowpath_packetdrill.so`, which the public tool packetdrill loads with `--so_filename` to drive the stack instead of a kernel. All
//! calls, packets and times of a script pass through it; the time is virtual.
//!
//! ```text
//!   packetdrill, main thread:  packets to and from the stack, sleeps, looks at the clock  -> time passes
//!                call thread:  calls that wait                                            -> time stands until it has
//!                                                                                           looked at the clock
//!        abi (C) -> calls -> world (threads and time) -> stack: sim::Host and its network
//! ```
//! The library reads no clock and sends no packet. Besides the tool's interface it answers the tool's own `getsockopt`, `sendfile` and
//! `close` on its descriptors (module `interpose`). `docs/packetdrill.md` lists the scripts that pass.

mod abi;
mod address;
mod calls;
mod cut;
mod files;
mod interpose;
mod settings;
mod stack;
mod world;

use std::sync::{Arc, PoisonError, RwLock};
use world::World;

/// The world that the tool has made. There is at most one: a second one replaces the first.
static WORLD: RwLock<Option<Arc<World>>> = RwLock::new(None);

fn world() -> Option<Arc<World>> {
    WORLD.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn set_world(world: Option<Arc<World>>) {
    *WORLD.write().unwrap_or_else(PoisonError::into_inner) = world;
}
