//! Events from the slow path to the service, requests of the service, and reasons for refusal.

use crate::FlowOptions;
use flow::{AppRegion, FlowId, GroupSet};
use queue::Violation;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use wire::{Endpoint, MacAddr};

/// Linux's error numbers, which applications see; the same on every Linux machine we run on.
pub mod errno {
    /// The local address and port are in use.
    pub const EADDRINUSE: u16 = 98;
    /// The local address is not ours.
    pub const EADDRNOTAVAIL: u16 = 99;
    /// No route leads to the peer.
    pub const ENETUNREACH: u16 = 101;
    /// No room for another connection.
    pub const ENOBUFS: u16 = 105;
    /// The peer did not answer in time.
    pub const ETIMEDOUT: u16 = 110;
    /// The peer refused the connection by RST.
    pub const ECONNREFUSED: u16 = 111;
    /// The peer reset the connection.
    pub const ECONNRESET: u16 = 104;
    /// The peer's host does not answer.
    pub const EHOSTUNREACH: u16 = 113;
    /// The peer's host does not speak TCP.
    pub const ENOPROTOOPT: u16 = 92;
}

/// The owner of a connection: a slot of an application region, and the core that serves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The region's index, as given to `SlowPath::add_region`.
    pub region: u16,
    /// The slot, its halves zeroed by the service.
    pub slot: u32,
    /// The core that serves the flow. For an active open: the core that sends the SYN. The flow is served by the core of its group, if the
    /// port is steered by groups; else by the core to which the handshake's last packet comes.
    pub core: u8,
}

/// Identifies a passive open that waits for the service's answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PendingId(pub(crate) u64);

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Both ends sent FIN and acknowledged the other's.
    Finished,
    /// The peer has reset the connection.
    ResetByPeer,
    /// The application, or the service for it, has reset the connection.
    ResetByUs,
    /// The peer did not answer for too long. The errno is the one that the application got.
    TimedOut(u16),
}

/// An event from the slow path to the service.
#[derive(Debug)]
pub enum Event {
    /// An active open succeeded; the slot shows OPEN already.
    Established {
        /// As given to `connect`.
        token: u64,
        /// The flow that was installed.
        flow: FlowId,
    },
    /// An active open failed; the slot shows FAILED with the errno already.
    ConnectFailed {
        /// As given to `connect`.
        token: u64,
        /// Linux's error number, as in the slot.
        errno: u16,
    },
    /// A passive open has completed its handshake: answer with `accept`, `refuse` or `postpone`.
    Incoming {
        /// As given to `listen`.
        token: u64,
        /// Address and port of our end.
        local: Endpoint,
        /// Address and port of the peer.
        remote: Endpoint,
        /// Id for `accept`, `refuse` or `postpone`.
        pending: PendingId,
    },
    /// A connection has ended for TCP; the application keeps its slot until it releases it.
    Closed {
        /// The flow; its record is not reused before `Released`.
        flow: FlowId,
        /// The owner of the connection.
        owner: Owner,
        /// The way in which it ended.
        how: How,
    },
    /// The core has let go of a closed flow, because its application has read everything or has released the slot: the slow path and the
    /// cores no longer touch the slot. May come before the application releases the slot.
    Released {
        /// Index of the slot's region.
        region: u16,
        /// Index of the slot in its region.
        slot: u32,
    },
    /// An application broke the rules of shared memory: the service must detach it.
    Violation {
        /// Index of the application's region.
        region: u16,
        /// Index of the slot in its region.
        slot: u32,
        /// The broken rule and its values.
        what: Violation,
    },
    /// Another station on the link claims one of our addresses. Sent at most once in ten seconds for each address.
    AddressConflict {
        /// The address that both claim.
        addr: IpAddr,
        /// The Ethernet address of the other station.
        by: MacAddr,
    },
    /// The populated part of a region is too small for what its flows receive: ask the application for more, then raise
    /// the region's watermark.
    MemoryShort {
        /// Index of the region.
        region: u16,
    },
    /// From now on the port is to bring the frames of these groups to the queue of that core; then the service calls
    /// [`SlowPath::steered`](crate::SlowPath::steered).
    Steer {
        /// The groups that the queue is to get.
        groups: GroupSet,
        /// Index of the core.
        core: u8,
    },
    /// A move of groups is over; another may begin.
    MoveOver {
        /// Number of groups that have moved; 0: a core did not answer in time, and nothing has moved.
        groups: usize,
    },
    /// All cores have let go of a region, as `remove_region` asked.
    RegionDrained {
        /// The region's index, which is free now.
        index: u16,
        /// The region; dropping it unmaps the memory.
        region: Arc<AppRegion>,
    },
}

/// A request for an active open.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// Value of the service's choice that comes back in the event.
    pub token: u64,
    /// The local address and port; port 0 and the unspecified address mean "any", as does `None`.
    pub local: Option<Endpoint>,
    /// Address and port of the peer.
    pub remote: Endpoint,
    /// The region, slot and core of the connection.
    pub owner: Owner,
    /// Options that were set on the socket before.
    pub options: FlowOptions,
}

macro_rules! refusals {
    ($(#[doc = $head:literal])+ $name:ident { $(#[doc = $message:literal] $variant:ident = $errno:ident,)+ }) => {
        $(#[doc = $head])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $(#[doc = $message] $variant,)+
        }

        impl $name {
            /// Linux's error number for this refusal.
            #[must_use]
            pub const fn errno(self) -> u16 {
                match self {
                    $(Self::$variant => errno::$errno,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $message.trim_ascii(),)+
                })
            }
        }

        impl std::error::Error for $name {}
    };
}

refusals! {
    /// Why an active open was not begun.
    ConnectError {
        /// no route leads to the peer
        NoRoute = ENETUNREACH,
        /// the local address is not one of this service's, or of the other family
        NotOurs = EADDRNOTAVAIL,
        /// the local port is taken for this peer
        InUse = EADDRNOTAVAIL,
        /// no local port is free for this peer
        NoPort = EADDRNOTAVAIL,
        /// the peer is this service itself
        Ourselves = ECONNREFUSED,
        /// too many connections are being opened
        TooMany = ENOBUFS,
        /// the slot lies outside every region, or the peer's port is 0
        Malformed = EADDRNOTAVAIL,
    }
}

refusals! {
    /// Why a listener was not made.
    ListenError {
        /// the address is not one of this service's
        NotOurs = EADDRNOTAVAIL,
        /// somebody listens there already
        InUse = EADDRINUSE,
    }
}

/// Why a passive open was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcceptError {
    /// The peer has given up in the meantime: the slot is still free.
    Gone,
    /// No flow record is free, or the slot is outside its region; the peer was sent a RST.
    NoFlow(flow::InstallError),
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the peer has given up meanwhile"),
            Self::NoFlow(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for AcceptError {}

/// State of a slot after its application has released it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// The slow path and the cores do not use the slot: it may be given out again.
    Free,
    /// `Event::Released` will follow.
    Pending,
}
