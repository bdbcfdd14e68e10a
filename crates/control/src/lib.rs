//! The messages between the service and its clients (the application library and the command line) over the control socket: a UNIX
//! `SOCK_SEQPACKET` socket, one message per packet, descriptors by `SCM_RIGHTS`, the sender known by its credentials.
//!
//! Only set-up and tear-down use these messages; payload and wake-ups go through shared memory (crates `shm` and `queue`).
#![deny(unsafe_code)]

mod accept;
mod address;
mod congestion;
#[allow(unsafe_code)]
pub mod credentials;
mod defer_accept;
mod dial;
pub mod known;
mod line;
mod message;
mod paths;
pub mod profile;
mod reason;
mod socket_options;
mod tcp_info;
#[allow(unsafe_code)]
pub mod variables;

pub use accept::AcceptRecord;
pub use address::{address_from_words, address_to_words};
pub use congestion::{
    CongestionAsk, CongestionName, CongestionRule, FlowEnds, FlowSelector, FlowSubject, Prefix,
};
pub use defer_accept::DeferAccept;
pub use dial::{DialError, Distrust, PATIENCE, TRUST_UID_ENV, check_folder, dial, dial_at_once};
pub use line::{FDS_MAX, Line, LineError, MESSAGE_MAX, Received};
pub use message::{
    CONTROL_SLOT, CoresWish, Counting, Grant, Itself, Left, Lent, POPULATED_MOST, PROTOCOL, Parent, Push,
    RegionInfo, Reply, Report, Request, Settings, ToApplication, ToService, Unlisten, Welcome, grown,
};
pub use paths::{
    CONTROL_ENV, VERSIONS_ENV, default_control_path, own_control_path, private_control_path, versions,
};
pub use reason::KernelReason;
pub use socket_options::{AppType, ChannelWish, SocketOptions};
pub use tcp_info::{TcpInfo, state as tcp_state};
