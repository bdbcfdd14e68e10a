//! The packet sockets of one interface, of which the table of flow groups says which one gets a frame.
//!
//! ```text
//!   until a table names a queue other than 0       from then on
//!
//!   frames --> socket of queue 0                   frames --> group, with a program --> socket of queue 0
//!              (the others receive nothing,                                        \--> socket of queue 1
//!               and have no ring)                                                  \--> ..
//! ```
//! A group costs the kernel about 150 ns for each frame, and a ring 32 MiB: an interface that one core serves pays neither. A new table is a
//! new program: the kernel puts it in the old one's place while frames come, and loses none.

mod program;

use crate::filter::{self, Program};
use crate::ring::Ring;
use crate::sys;
use port::{Steering, Table};
use program::program;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

/// Brings the frames of groups of flows to the queues of an interface.
#[derive(Debug)]
pub struct PacketSteering {
    /// The socket of queue 0.
    first: OwnedFd,
    /// Number of the other queues.
    others: u8,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The socket of queue 0 gets all frames.
    Alone(Idle),
    /// All sockets are members of a group.
    Group,
    /// There is no group: the kernel has refused it.
    Refused(io::ErrorKind),
}

/// The sockets that receive nothing yet.
#[derive(Debug)]
pub(crate) struct Idle {
    /// Index of the interface.
    pub index: i32,
    /// The filter of the socket of queue 0; `None`: it gets all frames, and has no ring.
    pub filter: Option<Program>,
    /// The socket of each queue from 1 on, and the way to its owner.
    pub sockets: Vec<(OwnedFd, Sender<Ring>)>,
}

impl PacketSteering {
    /// The socket `first` receives; those of `idle` do not, and were made before it: in this order the kernel makes them members again when the
    /// interface has been down.
    pub(crate) fn new(first: OwnedFd, idle: Idle) -> Self {
        Self { first, others: idle.sockets.len() as u8, state: State::Alone(idle) }
    }

    /// Gives the group its program.
    fn set(&self, socket: &OwnedFd, table: &Table) -> io::Result<()> {
        let member = |queue: u8| if queue == 0 { self.others } else { queue - 1 };
        sys::set_group_program(socket, &program(&table.map(member), member(0)))
    }

    /// Makes a group of all sockets, with that of queue 0 as its last member. No frame is lost: while that one changes from the interface to the
    /// group, the socket of queue 1 gets all frames, and perhaps some that queue 0 has, too. Its core hands them on.
    fn join(&self, idle: &Idle) -> io::Result<()> {
        let mut group = None;
        for (socket, owner) in &idle.sockets {
            filter::refuse_all(socket)?;
            // Without memory for a ring, frames are read from the socket. The owner may be gone, and then needs none.
            if idle.filter.is_some()
                && let Ok(ring) = Ring::new(socket)
            {
                let _ = owner.send(ring);
            }
            sys::bind(socket, idle.index, sys::ALL)?;
            group = Some(sys::join_group(socket, group)?);
        }
        let Some((second, _)) = idle.sockets.first() else { return Ok(()) };
        // Until the last member is there, its number stands for the first one, which is queue 1 (the kernel takes the remainder).
        self.set(second, &[0; wire::GROUPS])?;
        for (socket, _) in &idle.sockets {
            sys::set_filter(socket, idle.filter.as_deref().unwrap_or(&[filter::TAKE]))?;
        }
        sys::join_group(&self.first, group)?;
        Ok(())
    }
}

impl Steering for PacketSteering {
    fn apply(&mut self, table: &Table) -> io::Result<()> {
        match &self.state {
            State::Refused(kind) => return Err((*kind).into()),
            State::Group => {}
            State::Alone(_) if table.iter().all(|queue| *queue == 0) => return Ok(()),
            State::Alone(idle) => {
                if let Err(error) = self.join(idle) {
                    for (socket, _) in &idle.sockets {
                        // A socket that cannot even refuse frames gets each frame once more than needed, and its core hands it on.
                        let _ = filter::refuse_all(socket);
                    }
                    self.state = State::Refused(error.kind());
                    return Err(error);
                }
                self.state = State::Group;
            }
        }
        self.set(&self.first, table)
    }

    fn means(&self) -> &'static str {
        "a program of the group of packet sockets"
    }
}
