//! `libtowpath_packetdrill.so`: what the public tool packetdrill loads with `--so_filename`, so that it drives the stack
//! instead of a kernel. Calls, packets and time of a script all go through it; the time is virtual.
//!
//! ```text
//!   packetdrill, main thread:  packets to and from the stack, sleeps, looks at the clock  -> time passes
//!                call thread:  calls that wait                                            -> time stands until it has
//!                                                                                           looked at the clock
//!        abi (C) -> calls -> world (threads and time) -> stack: sim::Host and its network
//! ```
//! It reads no clock and sends no packet; beside the tool's interface it answers the tool's own `getsockopt`, `sendfile` and
//! `close` where they are about its descriptors (module `interpose`). `docs/packetdrill.md` says what passes.

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

/// The world that the tool has begun. There is one: a second beginning replaces the first.
static WORLD: RwLock<Option<Arc<World>>> = RwLock::new(None);

fn world() -> Option<Arc<World>> {
    WORLD.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn set_world(world: Option<Arc<World>>) {
    *WORLD.write().unwrap_or_else(PoisonError::into_inner) = world;
}
