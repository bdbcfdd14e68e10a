//! Shared memory between two parties that do not trust each other: sealed memfd regions and their layout.
//!
//! A [`Region`] has two sides. In an *application region* side 0 is the service and side 1 the application; in a
//! *pair region* the sides are two applications of one host. The layout is the same, so the same code moves bytes
//! through both. The protocol over these cache lines is in crate `queue`.
//!
//! ```text
//!   offset        what                                   written by
//!   0             Header                                 the creator (the service) once; some words by both
//!   contexts      ContextBlock[side][CONTEXTS]           producers set bits, the consumer clears them
//!   slots         Slot[slots]: Half[side 0], Half[1]     each side its own half
//!   urgent        Urgent[slots]                          each side its own words
//!   pages         page bitmap[side]                      each side its own (the service keeps its own privately)
//!   socks         SockBlock[slots] (application region)  the application (and its forked children)
//!   accounts      ThreadAccount[64] (application r.)     each thread of the application its own
//!   data 0        payload bytes of side 0's rings        side 0
//!   data 1        payload bytes of side 1's rings        side 1
//! ```
//!
//! The other side may write anything, anywhere, at any time: every value is loaded once, checked, then used.

mod accept_queue;
pub mod alone;
mod atomic;
#[cfg(not(loom))]
pub mod futex;
mod layout;
#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod region;

#[cfg(not(loom))]
pub use accept_queue::AcceptQueue;
pub use accept_queue::{
    GRANTS, QueueWords, RECORD_WORDS, SLEEPERS, WORDS_PER_GROUP, grant_state, queue_flags, sleeper,
};
pub use layout::{
    ACCOUNTS, CONTEXTS, ContextBlock, HELD_CONTEXT, Half, Header, KEPT, Kind, Layout, MAGIC, MOVED, NAP,
    Params, SECTIONS, SLOW_CONTEXT, Sending, Side, Slot, SockBlock, TRUST, TRUST_CONTEXT, ThreadAccount,
    Urgent, VERSION, WORDS_MAX, application_flags, half_flags, low_water, low_water_flags, sock_flags,
    sock_state,
};
#[cfg(not(loom))]
pub use region::{Region, RegionError};
