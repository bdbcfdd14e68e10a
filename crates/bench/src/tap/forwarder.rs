//! A process that forwards frames unchanged, with their virtio headers, between two TAP interfaces: the cheapest possible process in
//! Towpath's place between two kernels.

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
/// The most frames forwarded in one direction, or answered, before the other direction's turn.
pub(super) const TURN: usize = base::limits::BATCH;
/// The epoll data of the control socket.
const LINE: u64 = 2;

/// One end of the link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    /// The network namespace's name.
    pub namespace: String,
    /// The kernel's address in it; its prefix is /24.
    pub address: Ipv4Addr,
}

/// The two ends that the forwarder makes and joins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The two ends of the link.
    pub ends: [End; 2],
    /// True: both interfaces have checksum and segmentation offload.
    pub offloads: bool,
}

/// Sent when frames are being forwarded; the number of ends keeps the message from being empty, which looks like a closed socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ready(pub u8);

/// The main function of this process. It returns when the control socket is closed.
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
    line.send(&Ready(2), &[], true)?;
    let mut buffer = vec![0; base::limits::FRAME_MAX + 64];
    until_hang_up(line, &ends, || {
        Ok(turn(ends[0], ends[1], &mut buffer)? + turn(ends[1], ends[0], &mut buffer)?)
    })
}

/// Calls `turn`, which returns the number of frames handled, and sleeps after a turn without frames; until the control socket is closed.
pub(super) fn until_hang_up(
    line: &Line,
    queues: &[BorrowedFd<'_>],
    mut turn: impl FnMut() -> rustix::io::Result<usize>,
) -> anyhow::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (i, queue) in (0..).zip(queues) {
        epoll::add(&set, queue, epoll::EventData::new_u64(i), epoll::EventFlags::IN)?;
    }
    epoll::add(&set, line, epoll::EventData::new_u64(LINE), epoll::EventFlags::IN)?;
    let mut events: Vec<epoll::Event> = Vec::with_capacity(4);
    loop {
        if turn()? > 0 {
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

/// Reads the next frame. Returns its length, or `None` if there is none.
pub(super) fn receive(from: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<Option<usize>> {
    match rustix::io::read(from, buffer) {
        Ok(len) => Ok(Some(len)),
        // EIO: the interface is not up yet.
        Err(Errno::AGAIN | Errno::INTR | Errno::IO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The descriptor of the interface's only queue.
pub(super) fn descriptor(tap: &Tap) -> anyhow::Result<BorrowedFd<'_>> {
    tap.queues.first().and_then(Port::wait_fd).context("a TAP interface has a queue")
}

/// Forwards at most [`TURN`] frames. Returns their number.
fn turn(from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let mut moved = 0;
    while moved < TURN {
        let Some(len) = receive(from, buffer)? else { break };
        moved += 1;
        // A full queue drops the frame, as on any link.
        let _ = rustix::io::write(to, &buffer[..len]);
    }
    Ok(moved)
}
