//! An echo server on an io_uring: a reply and the next receive of its connection are linked; all completions are handled together.

use super::echo::ROOM;
use anyhow::{Context, bail};
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Entries of the submission queue: two for each connection with a completion.
const ENTRIES: u32 = 4096;
/// Flag in `user_data` of a receive; the lower bits are the connection's index. Without it the completion is of a send.
const REQUEST: u64 = 1 << 32;

/// A connection and the buffer that its receives and sends share.
struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// Echoes until the peer has closed all connections.
pub fn echo(streams: Vec<TcpStream>) -> anyhow::Result<()> {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(2 * ENTRIES)
        .build(ENTRIES)
        .context("this kernel has no io_uring for us")?;
    let mut connections: Vec<Connection> =
        streams.into_iter().map(|stream| Connection { stream, bytes: vec![0; ROOM] }).collect();
    let mut living = connections.len();
    for (at, connection) in (0..).zip(&mut connections) {
        let request = connection.request(at);
        push(&mut ring, &[request])?;
    }
    let mut news = Vec::with_capacity(living);
    while living > 0 {
        ring.submit_and_wait(1)?;
        news.extend(ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (data, result) in news.drain(..) {
            if data & REQUEST == 0 {
                if result < 0 {
                    bail!("echoing: {}", std::io::Error::from_raw_os_error(-result));
                }
                continue;
            }
            let at = data & (REQUEST - 1);
            match result {
                0 => living -= 1,
                1.. => {
                    let connection = &mut connections[at as usize];
                    let chain = [connection.reply(at, result as u32), connection.request(at)];
                    push(&mut ring, &chain)?;
                }
                _ if -result == libc::ECONNRESET => living -= 1,
                _ => bail!("a connection of the server: {}", std::io::Error::from_raw_os_error(-result)),
            }
        }
    }
    Ok(())
}

impl Connection {
    fn fd(&self) -> types::Fd {
        types::Fd(self.stream.as_raw_fd())
    }

    fn request(&mut self, at: u64) -> Entry {
        opcode::Recv::new(self.fd(), self.bytes.as_mut_ptr(), self.bytes.len() as u32)
            .build()
            .user_data(REQUEST | at)
    }

    /// `IO_LINK` delays the next receive until this send has ended, because both use the same buffer.
    fn reply(&self, at: u64, bytes: u32) -> Entry {
        let send = opcode::Send::new(self.fd(), self.bytes.as_ptr(), bytes).flags(libc::MSG_WAITALL);
        send.build().user_data(at).flags(Flags::IO_LINK)
    }
}

fn push(ring: &mut IoUring, entries: &[Entry]) -> anyhow::Result<()> {
    let queue = ring.submission();
    let room = queue.capacity() - queue.len();
    drop(queue);
    if room < entries.len() {
        ring.submit()?;
    }
    // SAFETY: `connections` owns the descriptors and buffers of these entries, is not changed and outlives their use: each connection has
    // at most one chain under way, and its buffer never moves.
    unsafe { ring.submission().push_multiple(entries) }.context("the ring of submissions is full")
}
