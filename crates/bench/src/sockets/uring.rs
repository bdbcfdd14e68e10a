//! A server on an io_uring: a reply and the next receive of its connection are linked; all completions are handled together.

use crate::exchange::{Answers, Counts};
use anyhow::{Context, bail};
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Entries of the submission queue: two for each connection with a completion.
const ENTRIES: u32 = 4096;
/// Flag in `user_data` of a receive; the lower bits are the connection's index. Without it the completion is of a send.
const REQUEST: u64 = 1 << 32;

/// A connection and its buffers.
struct Connection {
    stream: TcpStream,
    /// Received bytes: those of an incomplete request, then room.
    bytes: Vec<u8>,
    /// Number of received bytes.
    filled: usize,
    /// The replies that are being sent.
    replies: Vec<u8>,
}

/// Serves these connections until the peer has closed all of them; `room`: the most bytes of an incomplete request and of one receive.
pub fn serve<P: Answers + ?Sized>(
    streams: Vec<TcpStream>,
    program: &P,
    room: usize,
) -> anyhow::Result<Counts> {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(2 * ENTRIES)
        .build(ENTRIES)
        .context("this kernel has no io_uring for us")?;
    let connection = |stream| Connection { stream, bytes: vec![0; room], filled: 0, replies: Vec::new() };
    let mut connections: Vec<Connection> = streams.into_iter().map(connection).collect();
    let (mut living, mut counts) = (connections.len(), Counts::default());
    for (at, connection) in (0..).zip(&mut connections) {
        let request = connection.request(at);
        push(&mut ring, &[request])?;
    }
    let mut news = Vec::with_capacity(living);
    while living > 0 {
        ring.submit_and_wait(1)?;
        news.extend(ring.completion().map(|entry| (entry.user_data(), entry.result())));
        counts.add(news.iter().filter(|(data, _)| data & REQUEST != 0).count());
        for (data, result) in news.drain(..) {
            if data & REQUEST == 0 {
                if result < 0 {
                    bail!("replies of the server: {}", std::io::Error::from_raw_os_error(-result));
                }
                continue;
            }
            let at = data & (REQUEST - 1);
            match result {
                0 => living -= 1,
                1.. => {
                    let connection = &mut connections[at as usize];
                    connection.answer(program, result as usize)?;
                    let chain = [connection.reply(at), connection.request(at)];
                    let from = usize::from(connection.replies.is_empty());
                    push(&mut ring, &chain[from..])?;
                }
                _ if -result == libc::ECONNRESET => living -= 1,
                _ => bail!("a connection of the server: {}", std::io::Error::from_raw_os_error(-result)),
            }
        }
    }
    Ok(counts)
}

impl Connection {
    fn fd(&self) -> types::Fd {
        types::Fd(self.stream.as_raw_fd())
    }

    /// Answers the requests that are whole with `taken` more bytes.
    fn answer<P: Answers + ?Sized>(&mut self, program: &P, taken: usize) -> anyhow::Result<()> {
        self.filled += taken;
        self.replies.clear();
        let used = program.answer(&self.bytes[..self.filled], &mut self.replies)?;
        self.bytes.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(())
    }

    fn request(&mut self, at: u64) -> Entry {
        let fd = self.fd();
        let room = &mut self.bytes[self.filled..];
        opcode::Recv::new(fd, room.as_mut_ptr(), room.len() as u32).build().user_data(REQUEST | at)
    }

    /// `IO_LINK` delays the next receive until this send has ended: what it brings may change the replies.
    fn reply(&self, at: u64) -> Entry {
        let bytes = self.replies.len() as u32;
        let send = opcode::Send::new(self.fd(), self.replies.as_ptr(), bytes).flags(libc::MSG_WAITALL);
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
    // at most one chain under way, which ends with the receive. Its buffers are touched, and the replies' may move, only after that.
    unsafe { ring.submission().push_multiple(entries) }.context("the ring of submissions is full")
}
