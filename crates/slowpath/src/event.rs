//! What the slow path tells the service, what it is asked, and why it refuses.

use crate::FlowOptions;
use flow::{AppRegion, FlowId};
use queue::Violation;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use wire::{Endpoint, MacAddr};

/// Linux's error numbers, which applications see; the same on every Linux machine we run on.
pub mod errno {
    /// The address is in use.
    pub const EADDRINUSE: u16 = 98;
    /// The address is not ours.
    pub const EADDRNOTAVAIL: u16 = 99;
    /// No route.
    pub const ENETUNREACH: u16 = 101;
    /// No room.
    pub const ENOBUFS: u16 = 105;
    /// The peer took too long.
    pub const ETIMEDOUT: u16 = 110;
    /// The peer refused.
    pub const ECONNREFUSED: u16 = 111;
    /// The peer reset the connection.
    pub const ECONNRESET: u16 = 104;
    /// The host does not answer.
    pub const EHOSTUNREACH: u16 = 113;
    /// The peer's host does not speak TCP.
    pub const ENOPROTOOPT: u16 = 92;
}

/// Whose a connection is: a slot of an application region, served by a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The region's index, as given to `SlowPath::add_region`.
    pub region: u16,
    /// The slot, its halves zeroed by the service.
    pub slot: u32,
    /// The core that serves the flow: of an active open the one that sends the SYN. The core to which the handshake's last packet comes
    /// serves it from then on.
    pub core: u8,
}

/// Names a passive open that waits for the service's answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PendingId(pub(crate) u64);

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Both ends sent FIN and acknowledged the other's.
    Finished,
    /// The peer reset it.
    ResetByPeer,
    /// The application, or the service in its place, reset it.
    ResetByUs,
    /// The peer did not answer for too long; the errno that the application was given.
    TimedOut(u16),
}

/// From the slow path to the service.
#[derive(Debug)]
pub enum Event {
    /// An active open succeeded; the slot shows OPEN already.
    Established {
        /// As given to `connect`.
        token: u64,
        /// The flow.
        flow: FlowId,
    },
    /// An active open failed; the slot shows FAILED with the errno already.
    ConnectFailed {
        /// As given to `connect`.
        token: u64,
        /// Linux's error number.
        errno: u16,
    },
    /// A passive open has completed its handshake: answer with `accept`, `refuse` or `postpone`.
    Incoming {
        /// As given to `listen`.
        token: u64,
        /// Our end.
        local: Endpoint,
        /// The peer's.
        remote: Endpoint,
        /// To answer with.
        pending: PendingId,
    },
    /// A connection is over for TCP; its slot stays the application's until it lets go.
    Closed {
        /// The flow; its record is not reused before `Released`.
        flow: FlowId,
        /// Whose it was.
        owner: Owner,
        /// How it ended.
        how: How,
    },
    /// The core has let go of a flow that was closed, because its application has read everything or has let go: nothing here
    /// touches the slot any more. May come before the application lets go of the slot.
    Released {
        /// The region's index.
        region: u16,
        /// The slot.
        slot: u32,
    },
    /// An application broke the rules of shared memory: detach it.
    Violation {
        /// The region's index.
        region: u16,
        /// The slot.
        slot: u32,
        /// What it did.
        what: Violation,
    },
    /// Another station on the link says that it has one of our addresses. Said once in ten seconds for each address.
    AddressConflict {
        /// The address that both claim.
        addr: IpAddr,
        /// The Ethernet address of the other station.
        by: MacAddr,
    },
    /// The populated part of a region is too small for what its flows receive: ask the application for more, then raise
    /// the region's watermark.
    MemoryShort {
        /// The region's index.
        region: u16,
    },
    /// All cores have let go of a region, as `remove_region` asked.
    RegionDrained {
        /// Its index, free now.
        index: u16,
        /// The region; dropping it unmaps the memory.
        region: Arc<AppRegion>,
    },
}

/// An active open.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// Comes back in the event.
    pub token: u64,
    /// The address bound to, or `None`; port 0 and the unspecified address mean "any".
    pub local: Option<Endpoint>,
    /// The peer.
    pub remote: Endpoint,
    /// Whose it is.
    pub owner: Owner,
    /// What the socket was told before.
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
            /// Linux's error number for it.
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
    /// The peer has given up meanwhile: the slot is still free.
    Gone,
    /// No flow record is left, or the slot is outside its region; the peer got a reset.
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

/// What is left to do with a slot that its application let go of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Nothing here uses it: it may be handed out again.
    Free,
    /// `Event::Released` will follow.
    Pending,
}
