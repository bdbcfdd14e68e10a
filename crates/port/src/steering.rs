//! How an interface with several queues is told which queue gets the frames of a group of flows. It belongs to the whole interface, so the
//! thread that leads the cores has it, not a core. Moves no flow and parks no frame: cores do, before and after.

use std::fmt::Debug;
use std::io;
use wire::GROUPS;

/// Queue of the interface for each group of flows (`wire::FourTuple::group`).
pub type Table = [u8; GROUPS];

/// An interface that is steered by groups: a program in the kernel, a map, or a table of its own.
///
/// ```text
///   packet socket   a classic BPF program computes the group; a new table is a new program
///   TAP             an eBPF program computes the group and reads an array that is mapped here
///   memory          the sending end reads the array
/// ```
/// Frames that have no group (ARP, ICMP, fragments) come to queue 0. A frame may come to another queue than its group's all the same (behind an
/// IPv6 extension header, after a change): the core there hands it on.
pub trait Steering: Send + Debug {
    /// From the return on, a frame of group `g` that enters the interface comes to queue `table[g]`. A frame that entered before may yet come
    /// to the queue that its group had then. May wait for other processors, for some milliseconds: not to be called by a core.
    ///
    /// # Errors
    /// The kernel refuses the table; the one before stays in force.
    fn apply(&mut self, table: &Table) -> io::Result<()>;

    /// What brings frames to queues, in a few words, for reports.
    fn means(&self) -> &'static str;
}
