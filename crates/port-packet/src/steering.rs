//! The packet sockets of one interface, of which the table of flow groups says which one gets a frame.
//!
//! ```text
//!   until a table names a queue other than 0       from then on
//!
//!   frames --> socket of queue 0                   frames --> group, with a program --> socket of queue 0
//!                                                                                  \--> socket of queue 1
//!                                                                                  \--> ..
//! ```
//! A socket becomes a member when a table names its queue, or a later one, for the first time; until then it receives nothing and has no ring. A
//! group costs the kernel about 150 ns for each frame, and a ring takes 21 MB: an interface that one core serves pays neither. A new table is a new
//! program: the kernel puts it in the old one's place while frames come, and loses none.

mod program;

use crate::filter::{self, Program};
use crate::ring::{self, Ring};
use crate::sys;
use port::{Steering, Table};
use program::program;
use rustix::net::sockopt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

/// Brings the frames of groups of flows to the queues of an interface.
#[derive(Debug)]
pub struct PacketSteering {
    /// Index of the interface. It is kept, because a service may not ask for it any more once it has given its rights up.
    pub(crate) index: i32,
    /// The filter of the socket of queue 0; `None`: it gets all frames, and has no ring.
    pub(crate) filter: Option<Program>,
    /// The socket of queue 0, which receives.
    pub(crate) first: OwnedFd,
    /// The sockets of the queues from 1 on, and the ways to their owners. Sockets must be made in the order of [`member`]: so the kernel makes
    /// them members again when the interface has been down.
    pub(crate) others: Vec<(OwnedFd, Sender<Option<Ring>>)>,
    /// Number of the others that are members of the group; 0: there is no group.
    pub(crate) joined: usize,
}

/// The number in the group of the socket of a queue: that of queue 1 is the first that joins.
fn member(queue: u8) -> u8 {
    match queue {
        0 => 1,
        1 => 0,
        other => other,
    }
}

impl PacketSteering {
    /// Gives the group its program.
    fn set(&self, socket: &OwnedFd, table: &Table) -> io::Result<()> {
        sys::set_group_program(socket, &program(&table.map(member), member(0)))
    }

    /// Makes the next socket a member of the group, and first of all that of queue 0 as well. No frame is lost: while that one changes from the
    /// interface to the group, the socket of queue 1 gets all frames, and perhaps some that queue 0 has, too. Its core hands them on.
    fn join_next(&self) -> io::Result<()> {
        let (socket, owner) = &self.others[self.joined];
        let filter = self.filter.as_deref();
        filter::refuse_all(socket)?;
        // An interface that is down reports that to a socket whose protocol changes. No socket joins a group there.
        let _ = sockopt::socket_error(socket)?;
        sys::bind(socket, self.index, sys::ALL)?;
        if let Err(error) = sockopt::socket_error(socket)? {
            // So that the protocol changes at the next attempt, too.
            sys::bind(socket, self.index, sys::UNUSED)?;
            return Err(error.into());
        }
        let ring = ring::receive(socket, self.index, filter.is_some())?;
        // The owner may be gone, and then needs no ring.
        let _ = owner.send(ring);
        let is_first = self.joined == 0;
        let group = if is_first { None } else { Some(sys::group(&self.first)?) };
        let group = sys::join_group(socket, group)?;
        if is_first {
            // Until queue 0 is there, its number stands for queue 1, too: the kernel takes the remainder.
            self.set(socket, &[0; wire::GROUPS])?;
        }
        sys::set_filter(socket, filter.unwrap_or(&[filter::TAKE]))?;
        if is_first && let Err(error) = sys::join_group(&self.first, Some(group)) {
            // If even this fails, each frame comes twice, and the core of queue 1 hands it on.
            let _ = filter::refuse_all(socket);
            return Err(error);
        }
        Ok(())
    }
}

impl Steering for PacketSteering {
    fn apply(&mut self, table: &Table) -> io::Result<()> {
        let last = table.iter().max().map_or(0, |queue| usize::from(*queue));
        while self.joined < last.min(self.others.len()) {
            self.join_next()?;
            self.joined += 1;
        }
        if self.joined == 0 { Ok(()) } else { self.set(&self.first, table) }
    }

    fn means(&self) -> &'static str {
        "a program of the group of packet sockets"
    }
}
