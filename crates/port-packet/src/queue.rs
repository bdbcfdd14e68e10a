//! One queue of an interface: a packet socket as a [`Port`].

use crate::ring::{Ring, Shown};
use port::{
    Batch, Capabilities, Checksum, DropCause, Lent, PacketBuf, Port, Stats, Ticket, VNET_HEADER_LEN,
    VnetQueue, Wait, decode, lent,
};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes after which a batch ends early, as for a [`VnetQueue`]: what an application is to read shall still be in a cache.
const RECEIVE_BYTES_MAX: usize = 256 * 1024;
/// Frames of a batch that nobody gets: what is good shall not wait for all of them.
const DROPPED_MAX: usize = 256;
/// Bytes of a frame's beginning that may be skipped: Ethernet, IPv6 and TCP with all options.
const SKIP_MAX: usize = 14 + 40 + 60;

/// A packet socket. Short frames are read where the kernel shows them, without a system call; long ones are read from the socket,
/// their payload straight to where it belongs if the fast path knows where that is. Where the kernel shows nothing all are read.
#[derive(Debug)]
pub struct PacketQueue {
    socket: VnetQueue,
    ring: Option<Ring>,
    copies: Copies,
    /// Frames that had no room, when we last slept; and whether none had come since the time before, though there were more of them.
    overruns: u64,
    is_suspect: bool,
}

/// The long frames that wait in the socket, in order: numbers of tickets.
#[derive(Clone, Copy, Debug, Default)]
struct Copies {
    /// The oldest that waits.
    oldest: u32,
    /// The next one to be shown.
    next: u32,
}

impl PacketQueue {
    pub(crate) fn new(socket: VnetQueue, ring: Option<Ring>) -> Self {
        Self { socket, ring, copies: Copies::default(), overruns: 0, is_suspect: false }
    }

    /// Which queue of the interface this is, from 0.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.socket.index()
    }

    /// What the kernel shows next goes into the batch, or is counted. None: it shows nothing. How long the frame is.
    fn show(&mut self, slot: &mut PacketBuf) -> Option<usize> {
        let shown = self.ring.as_ref()?.front()?;
        let Copies { oldest, next } = self.copies;
        let must_be_whole = shown.is_ok_and(|shown| shown.is_copied && !may_be_in_part(&shown));
        if must_be_whole && oldest != next {
            // It is completed at once, which those before it are not: it begins the next batch.
            return None;
        }
        let stats = self.socket.stats_mut();
        let len = match shown {
            Ok(shown) => {
                self.is_suspect = false;
                let ticket = shown.is_copied.then_some(Ticket(self.copies.next));
                self.copies.next = self.copies.next.wrapping_add(u32::from(shown.is_copied));
                fill(slot, shown.header, shown.bytes, shown.len, ticket).unwrap_or_else(|cause| {
                    stats.drops.count(cause);
                    slot.clear();
                });
                shown.len
            }
            Err(()) => {
                stats.drops.count(DropCause::Malformed);
                0
            }
        };
        self.ring.as_mut()?.release();
        if must_be_whole && !self.complete(slot) {
            slot.clear();
        }
        Some(len)
    }

    /// Lets go of long frames until that of `ticket` is the oldest that waits. False when it does not wait any more.
    fn advance(&mut self, ticket: u32) -> bool {
        let Copies { oldest, next } = self.copies;
        if ticket.wrapping_sub(oldest) >= next.wrapping_sub(oldest) {
            return false;
        }
        self.let_go(ticket);
        true
    }

    /// Lets go of all before that one.
    fn let_go(&mut self, ticket: u32) {
        while self.copies.oldest != ticket {
            // What does not fit is gone, and so is the frame.
            self.read([&mut [0; VNET_HEADER_LEN], &mut []], Lent::NONE);
        }
    }

    /// Reads the oldest long frame that waits: how many bytes of it there was room for. Whatever comes of it, it waits no more.
    fn read(&mut self, mut parts: [&mut [u8]; 2], rest: Lent<'_>) -> usize {
        self.copies.oldest = self.copies.oldest.wrapping_add(1);
        // The socket's error, as when its interface goes down, is said once, instead of a frame.
        for _ in 0..2 {
            self.socket.stats_mut().system_calls += 1;
            let Some(fd) = self.socket.wait_fd() else { return 0 };
            let [header, begin] = &mut parts;
            match lent::read(fd, [header, begin], rest) {
                Ok(len) => return len,
                // Nothing there; or it was, and is gone.
                Err(Errno::AGAIN | Errno::FAULT | Errno::INVAL) => break,
                Err(error) => self.socket.note_failure(error),
            }
        }
        0
    }

    /// What was read was not what had been shown: whatever waits, and is shown already, is let go of, so that shown and waiting begin anew
    /// with what comes next.
    fn lose(&mut self) -> bool {
        let forgotten = self.ring.as_ref().map_or(0, Ring::forget_copies);
        // The one that was read is not among those that wait, nor among the shown.
        let known = u64::from(self.copies.next.wrapping_sub(self.copies.oldest)) + 1;
        self.socket.stats_mut().drops.add(DropCause::Device, known);
        // Those count as overruns when they are shown.
        let most = known + forgotten + DROPPED_MAX as u64;
        for _ in 0..most {
            if self.read([&mut [0; VNET_HEADER_LEN], &mut []], Lent::NONE) == 0 {
                break;
            }
        }
        self.copies.oldest = self.copies.next;
        false
    }

    /// A frame whose offload has no words in the header has taken the slot that is next for ever (Linux to 6.18 at least): every later one
    /// finds no room though nothing is shown. Frames are read from the socket from now on.
    fn leave_ring(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        if let Some(fd) = self.socket.wait_fd()
            && let Err(error) = ring.close(fd)
            && let Some(errno) = Errno::from_io_error(&error)
        {
            self.socket.note_failure(errno);
        }
        self.copies.oldest = self.copies.next;
    }

    /// Nothing is shown, and we are about to sleep: whether the ring is stuck.
    fn watch_ring(&mut self) {
        if self.ring.as_ref().is_none_or(|ring| ring.front().is_some()) {
            return;
        }
        let overruns = self.socket.stats().drops.of(DropCause::Overrun);
        let has_grown = overruns > std::mem::replace(&mut self.overruns, overruns);
        if has_grown && self.is_suspect {
            self.leave_ring();
        }
        self.is_suspect = has_grown;
    }
}

/// Nobody needs more than its beginning to know what it is: TCP over IPv4 or IPv6 as such, which somebody else has summed, or which never
/// was on a wire.
fn may_be_in_part(shown: &Shown<'_>) -> bool {
    let is_tcp = match shown.bytes.get(12..24) {
        Some([8, 0, 0x45, .., 6]) => true,
        Some([0x86, 0xDD, ..]) => shown.bytes.get(20) == Some(&6),
        _ => false,
    };
    is_tcp && decode(shown.header, shown.bytes).is_none_or(|meta| meta.checksum != Checksum::Unknown)
}

/// Puts a frame, or its beginning, into the buffer.
fn fill(
    slot: &mut PacketBuf,
    header: &[u8; VNET_HEADER_LEN],
    bytes: &[u8],
    len: usize,
    ticket: Option<Ticket>,
) -> Result<(), DropCause> {
    if len >= slot.capacity() {
        return Err(DropCause::Oversized);
    }
    if bytes.len() < len && ticket.is_none() {
        // The socket had no room for the whole of it.
        return Err(DropCause::Overrun);
    }
    slot.storage_mut()[..bytes.len()].copy_from_slice(bytes);
    slot.set_len(len);
    slot.meta = decode(header, slot.frame()).ok_or(DropCause::Malformed)?;
    slot.set_ticket(ticket);
    Ok(())
}

impl Port for PacketQueue {
    fn capabilities(&self) -> Capabilities {
        self.socket.capabilities()
    }

    fn receive(&mut self, batch: &mut Batch) -> usize {
        let count = self.receive_heads(batch);
        for packet in batch.packets_mut() {
            if !self.complete(packet) {
                packet.clear();
            }
        }
        count
    }

    fn receive_heads(&mut self, batch: &mut Batch) -> usize {
        if self.ring.is_none() {
            return self.socket.receive(batch);
        }
        self.let_go(self.copies.next);
        batch.clear();
        let (mut bytes, mut dropped) = (0, 0);
        while bytes < RECEIVE_BYTES_MAX && dropped < DROPPED_MAX {
            let Some(slot) = batch.slot() else { break };
            let Some(len) = self.show(slot) else { break };
            if slot.is_empty() {
                dropped += 1;
                continue;
            }
            bytes += len;
            self.socket.stats_mut().count_received(len);
            batch.push_slot();
        }
        batch.len()
    }

    fn take(&mut self, frame: &[u8], Ticket(ticket): Ticket, skip: usize, into: Lent<'_>) -> bool {
        let mut begin = [0; SKIP_MAX];
        let (Some(begin), Some(head)) = (begin.get_mut(..skip), frame.get(..skip)) else { return false };
        if !self.advance(ticket) {
            return false;
        }
        let len = self.read([&mut [0; VNET_HEADER_LEN], begin], into);
        (len == VNET_HEADER_LEN + skip + into.len() && begin == head) || self.lose()
    }

    fn complete(&mut self, packet: &mut PacketBuf) -> bool {
        let Some(Ticket(ticket)) = packet.ticket() else { return true };
        packet.set_ticket(None);
        if !self.advance(ticket) {
            return false;
        }
        let mut head = [0; SKIP_MAX];
        head.copy_from_slice(&packet.storage()[..SKIP_MAX]);
        let len = self.read([&mut [0; VNET_HEADER_LEN], packet.frame_mut()], Lent::NONE);
        (len == VNET_HEADER_LEN + packet.len() && packet.frame().starts_with(&head)) || self.lose()
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.socket.reserve()
    }

    fn commit_with(&mut self, payload: Lent<'_>) {
        self.socket.commit_with(payload);
    }

    fn flush(&mut self) {
        self.socket.flush();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.wait_fd()
    }

    /// The descriptor is readable as long as a slot is not released, and when there is an error, which reading slots does not show.
    fn arm(&mut self) -> Wait {
        self.watch_ring();
        if self.ring.is_some()
            && let Some(fd) = self.socket.wait_fd()
            && let Ok(Err(error)) = sockopt::socket_error(fd)
        {
            self.socket.note_failure(error);
        }
        self.socket.arm()
    }

    fn failure(&self) -> Option<io::Error> {
        self.socket.failure()
    }

    fn stats(&self) -> Stats {
        self.socket.stats()
    }
}
