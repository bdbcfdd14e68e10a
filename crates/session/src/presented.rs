//! A connection that came into this process with a descriptor: shows the descriptor to the service and sets up the process's own end. What the
//! descriptor's socket is besides, its door knows.

use crate::addresses;
use crate::log::{Level, log};
use crate::{Client, sys};
use control::{Reply, Request};
use endpoint::lock::thread_number;
use endpoint::{Endpoint, state};
use queue::holding;
use queue::stream::{Sender, raise};
use rustix::fd::RawFd;
use rustix::io::Errno;
use shm::half_flags::{FIN, READ_CLOSED};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the service is asked for a connection, and the pause after each try: the process that has it may be in the middle
/// of a call, or its request to hand it over may still be on the way.
const TRIES: (usize, Duration) = (5, Duration::from_millis(4));

/// A descriptor and what is known of its socket.
#[derive(Clone, Copy, Debug)]
pub struct Presented {
    /// The descriptor as the process knows it.
    pub fd: RawFd,
    /// Address family of the socket: `AF_INET` or `AF_INET6`.
    pub family: i32,
    /// True when the descriptor has `O_NONBLOCK`.
    pub is_nonblocking: bool,
    /// A handshake that goes on is waited for.
    pub waits: bool,
    /// The connection is for a ring, which keeps it from the beginning ([`queue::holding::keep`]).
    pub keeps: bool,
}

/// Gets the connection behind a descriptor for this process, from whichever process has it.
///
/// # Errors
/// ENOTCONN when the service has none for it, EBUSY when a ring keeps it, EAGAIN when the process that has it does not leave its call,
/// EINPROGRESS during the handshake, ENOBUFS when a limit is reached.
pub fn take(client: &Arc<Client>, shown: Presented) -> Result<Endpoint, Errno> {
    client.expect_first();
    let index = client.take_block().ok_or(Errno::NOBUFS)?;
    let block = client.home.region.sock(index).ok_or(Errno::NOBUFS)?;
    // Both directions stay locked until all is set up: a process that asks for the connection meanwhile must find us in a call.
    Sender::default().keep(block);
    block.rx_tail.store(0, Ordering::Relaxed);
    holding::set_up(block, thread_number());
    let taken = ask(client, shown, index).and_then(|reply| adopt(client, shown, index, &reply));
    taken.inspect_err(|_| block.holders.store(0, Ordering::Release))
}

fn ask(client: &Client, Presented { fd, waits, .. }: Presented, sock: u32) -> Result<Reply, Errno> {
    let mut why = Errno::NOTCONN;
    let mut tries = 0;
    while tries < TRIES.0 {
        match client.ask_with(Request::Present { sock }, Some(fd)).map_err(|_| Errno::NOTCONN)?.0 {
            Reply::Refused { errno, reason } => match Errno::from_raw_os_error(errno) {
                // That may take long, so it does not count as a try.
                Errno::INPROGRESS if waits => {
                    sys::pause(TRIES.1);
                    continue;
                }
                Errno::AGAIN => why = Errno::AGAIN,
                e => {
                    log(Level::Info, format_args!("fd {fd} has no connection here: {reason}"));
                    return Err(e);
                }
            },
            Reply::Kernel { .. } => why = Errno::NOTCONN,
            reply => return Ok(reply),
        }
        tries += 1;
        std::thread::sleep(TRIES.1);
    }
    Err(why)
}

fn adopt(client: &Arc<Client>, shown: Presented, index: u32, reply: &Reply) -> Result<Endpoint, Errno> {
    let Reply::Moved { slot, local, peer, shut_read, shut_write } = *reply else {
        return Err(Errno::NOTCONN);
    };
    if !client.home.has(slot) {
        return Err(Errno::NOTCONN);
    }
    let link = Endpoint::new(client.home.clone(), slot, client.home.clone(), index);
    link.begin_locked(shown.is_nonblocking, true);
    addresses::store(&link, local, peer, shown.family);
    let shut = [(shut_read, state::SHUT_RD), (shut_write, state::SHUT_WR)];
    link.note(shut.iter().filter(|(is, _)| *is).fold(state::OPEN | state::TOLD, |all, (_, bit)| all | bit));
    let ended = [(shut_read, READ_CLOSED), (shut_write, FIN)];
    raise(link.halves().0, ended.iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit));
    let open = if shown.keeps { holding::open_kept } else { holding::open };
    open(link.block());
    Ok(link)
}
