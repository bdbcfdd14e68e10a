//! Connections to other hosts that run this service, over channels (docs/channels.md): a second relay. The application's end is an ordinary
//! slot of its region; a channel is an ordinary TCP connection in a region of the service's own.
//!
//! ```text
//!   control thread    rules, peers    which connections go by channel        core 0    engine     one hub, driven once a round
//!                     control         slots, listeners                                ends       applications' slots as byte streams
//!                                                                                      flows      channels' connections
//! ```
//! The crate `channel` decides about frames, sessions and channels; nothing here does.

mod connections;
pub(crate) mod control;
pub(crate) mod ends;
pub(crate) mod engine;
pub(crate) mod flows;
mod peer_log_limit;
pub(crate) mod peers;
pub(crate) mod report;
pub(crate) mod rules;
pub(crate) mod scale;
pub(crate) mod snapshot;
mod stale;
#[cfg(test)]
mod tests;

/// Id of the process that owns the service's own region: no process has it.
pub const OWNER: u32 = 0;
/// TCP port at which services make channels to each other, unless configured otherwise: none that IANA has assigned.
pub const PORT: u16 = 7_117;
