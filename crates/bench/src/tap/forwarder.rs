//! A process that moves frames between two TAP interfaces as they are, virtio header included: the cheapest thing that
//! can stand between two kernels where Towpath would stand.

use anyhow::Context;
use control::Line;
use port::Port;
use port_tap::{Tap, TapOptions};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// The role of this process.
pub const ROLE: &str = "forwarder";
/// Frames moved one way, or answered, before the other way gets its turn.
pub(super) const TURN: usize = base::limits::BATCH;
/// The control line's place in the epoll set.
const LINE: u64 = 2;

/// One end of the link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    /// The network namespace.
    pub namespace: String,
    /// The kernel's address there, of a /24.
    pub address: Ipv4Addr,
}

/// What to make and join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The two ends.
    pub ends: [End; 2],
    /// Checksum and segmentation offload, on both.
    pub offloads: bool,
}

/// Said when frames are being moved: how many ends. (A message of no bytes would look like a hang-up.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ready(pub u8);

/// The main function of this process. It leaves when the control line hangs up.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    let open = |end: &End| {
        let options = TapOptions {
            name: super::link::INTERFACE.to_owned(),
            checksum: orders.offloads,
            gso: orders.offloads,
            host_v4: Some((end.address, 24)),
            namespace: Some(end.namespace.clone()),
            ..TapOptions::default()
        };
        port_tap::open(&options).context("cannot make a TAP interface")
    };
    let taps = [open(&orders.ends[0])?, open(&orders.ends[1])?];
    let ends = [descriptor(&taps[0])?, descriptor(&taps[1])?];
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (i, end) in (0..).zip(&ends) {
        epoll::add(&set, end, epoll::EventData::new_u64(i), epoll::EventFlags::IN)?;
    }
    epoll::add(&set, line, epoll::EventData::new_u64(LINE), epoll::EventFlags::IN)?;
    line.send(&Ready(2), &[], true)?;
    let mut buffer = vec![0; base::limits::FRAME_MAX + 64];
    let mut events: Vec<epoll::Event> = Vec::with_capacity(4);
    loop {
        let moved = turn(ends[0], ends[1], &mut buffer)? + turn(ends[1], ends[0], &mut buffer)?;
        if moved > 0 {
            continue;
        }
        events.clear();
        match epoll::wait(&set, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if events.iter().any(|event| event.data.u64() == LINE) {
            return Ok(());
        }
    }
}

/// Its one queue.
pub(super) fn descriptor(tap: &Tap) -> anyhow::Result<BorrowedFd<'_>> {
    tap.queues.first().and_then(Port::wait_fd).context("a TAP interface has a queue")
}

/// Moves at most [`TURN`] frames; how many.
fn turn(from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let mut moved = 0;
    while moved < TURN {
        let len = match rustix::io::read(from, &mut *buffer) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => break,
            // The interface is still coming up.
            Err(Errno::IO) => break,
            Err(error) => return Err(error),
        };
        moved += 1;
        // A full queue drops, as any link does.
        let _ = rustix::io::write(to, &buffer[..len]);
    }
    Ok(moved)
}
