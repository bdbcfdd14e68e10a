//! Which sockets may share channels: those of one lane. Each lane has a session of its own, so that no policy can put a frame of one lane
//! on a channel of another.

use core::net::IpAddr;

pub use crate::hello::Class;

/// The sockets that may share channels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Lane {
    /// The address of the other service.
    pub peer: IpAddr,
    /// What the sockets need most.
    pub class: Class,
    /// The user of this host with these sockets; `None`: all users share.
    pub user: Option<u32>,
}

/// Whether sockets of several users may share a channel. A shared channel shows each user by its delays how much the others send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// Each user has channels of its own.
    #[default]
    SameUser,
    /// All users share channels.
    Always,
}

impl Lane {
    /// The lane for a socket of that user and class to that peer.
    #[must_use]
    pub const fn of(peer: IpAddr, class: Class, user: u32, sharing: Sharing) -> Self {
        let user = match sharing {
            Sharing::SameUser => Some(user),
            Sharing::Always => None,
        };
        Self { peer, class, user }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_never_share_and_users_only_if_told() {
        let peer = IpAddr::from([10, 0, 0, 2]);
        let lane = |class, user, sharing| Lane::of(peer, class, user, sharing);
        for sharing in [Sharing::SameUser, Sharing::Always] {
            assert_ne!(lane(Class::Latency, 1, sharing), lane(Class::Throughput, 1, sharing));
        }
        assert_ne!(lane(Class::Latency, 1, Sharing::SameUser), lane(Class::Latency, 2, Sharing::SameUser));
        assert_eq!(lane(Class::Latency, 1, Sharing::Always), lane(Class::Latency, 2, Sharing::Always));
    }
}
