//! One queue of an interface: a packet socket as a [`Port`].

use crate::ring::{Ring, Shown};
use port::{
    Batch, Capabilities, Checksum, DropCause, Lent, Look, PacketBuf, Port, Stats, Ticket, VNET_HEADER_LEN,
    VnetQueue, Wait, decode, lent,
};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, TryRecvError};

/// A batch ends after this many dropped frames, so that good frames do not wait for many bad ones.
const DROPPED_MAX: usize = 256;
/// Most frames that one call looks at ahead of their turn.
const LOOKS_MAX: usize = 256;
/// Largest number of bytes at a frame's beginning that may be skipped: Ethernet, IPv6 and TCP headers with all options.
const SKIP_MAX: usize = 14 + 40 + 60;

/// A packet socket. Short frames are read from the ring without a system call. Long frames are read from the socket, their payload directly
/// to its final place if the fast path knows that place. Without a ring all frames are read from the socket.
#[derive(Debug)]
pub struct PacketQueue {
    socket: VnetQueue,
    ring: Option<Ring>,
    /// Brings the ring, or says that there is none, before the socket begins to receive.
    coming: Option<Receiver<Option<Ring>>>,
    copies: Copies,
    /// Overruns as of the last sleep; `is_suspect`: their number had grown then, although the ring had shown no frame since the sleep
    /// before.
    overruns: u64,
    is_suspect: bool,
}

/// Ticket numbers of the long frames that wait in the socket, in order.
#[derive(Clone, Copy, Debug, Default)]
struct Copies {
    /// Ticket of the oldest frame that waits.
    oldest: u32,
    /// Ticket for the next long frame that the ring shows.
    next: u32,
}

impl PacketQueue {
    pub(crate) fn new(socket: VnetQueue, ring: Option<Ring>) -> Self {
        Self { socket, ring, coming: None, copies: Copies::default(), overruns: 0, is_suspect: false }
    }

    /// A queue that receives nothing until it hears of its ring.
    pub(crate) fn waiting(socket: VnetQueue, coming: Receiver<Option<Ring>>) -> Self {
        Self { coming: Some(coming), ..Self::new(socket, None) }
    }

    /// True while the socket does not receive. Takes the ring when it comes.
    fn is_waiting(&mut self) -> bool {
        let Some(coming) = &self.coming else { return false };
        match coming.try_recv() {
            Ok(ring) => (self.ring, self.coming) = (ring, None),
            Err(TryRecvError::Disconnected) => self.coming = None,
            Err(TryRecvError::Empty) => return true,
        }
        false
    }

    /// Index of this queue in the interface, from 0.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.socket.index()
    }

    /// Copies the next frame of the ring to `slot`, or counts it as dropped. Returns its length in bytes; `None` when the ring shows no
    /// frame.
    fn show(&mut self, slot: &mut PacketBuf) -> Option<usize> {
        self.ring.as_mut()?.skip_taken();
        let shown = self.ring.as_ref()?.front()?;
        let Copies { oldest, next } = self.copies;
        let must_be_whole = shown.is_ok_and(|shown| shown.is_copied && !may_be_in_part(&shown));
        if must_be_whole && oldest != next {
            // This frame must be completed at once, but earlier long frames are not: it begins the next batch.
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

    /// Drops long frames until that of `ticket` is the oldest that waits. False when it does not wait any more.
    fn advance(&mut self, ticket: u32) -> bool {
        let Copies { oldest, next } = self.copies;
        if ticket.wrapping_sub(oldest) >= next.wrapping_sub(oldest) {
            return false;
        }
        self.let_go(ticket);
        true
    }

    /// Drops all long frames before `ticket`.
    fn let_go(&mut self, ticket: u32) {
        while self.copies.oldest != ticket {
            // The buffer is too small for a frame, so the kernel discards it.
            self.read([&mut [0; VNET_HEADER_LEN], &mut []], Lent::NONE);
        }
    }

    /// Reads the oldest long frame; returns the number of bytes read. It does not wait any more, even if the read fails.
    fn read(&mut self, mut parts: [&mut [u8]; 2], rest: Lent<'_>) -> usize {
        self.copies.oldest = self.copies.oldest.wrapping_add(1);
        // A pending error of the socket, as when the interface goes down, is returned once in place of a frame: so try twice.
        for _ in 0..2 {
            self.socket.stats_mut().system_calls += 1;
            let Some(fd) = self.socket.wait_fd() else { return 0 };
            let [header, begin] = &mut parts;
            match lent::read(fd, [header, begin], rest) {
                Ok(len) => return len,
                // There was no frame, or it is lost.
                Err(Errno::AGAIN | Errno::FAULT | Errno::INVAL) => break,
                Err(error) => self.socket.note_failure(error),
            }
        }
        0
    }

    /// The frame read was not the one shown by the ring: drops all waiting frames and clears their marks in the ring, so that ring and
    /// socket agree again from the next frame on.
    fn lose(&mut self) -> bool {
        let forgotten = self.ring.as_ref().map_or(0, Ring::forget_copies);
        // The frame just read is neither among the waiting ones nor among those in the ring.
        let known = u64::from(self.copies.next.wrapping_sub(self.copies.oldest)) + 1;
        self.socket.stats_mut().drops.add(DropCause::Device, known);
        // The frames still in the ring count as overruns when they are shown.
        let most = known + forgotten + DROPPED_MAX as u64;
        for _ in 0..most {
            if self.read([&mut [0; VNET_HEADER_LEN], &mut []], Lent::NONE) == 0 {
                break;
            }
        }
        self.copies.oldest = self.copies.next;
        false
    }

    /// Gives the ring up, because it is blocked: a frame with an offload that the header cannot express keeps the next slot for ever (up to
    /// Linux 6.18 at least), and all later frames find no room. From now on frames are read from the socket.
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

    /// Called before a sleep, with nothing in the ring: finds out whether the ring is blocked.
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

/// True when the beginning of the frame is enough for the fast path: TCP directly over IPv4 or IPv6, with a checksum that the device has
/// verified, or that was never on a wire.
fn may_be_in_part(shown: &Shown<'_>) -> bool {
    let is_tcp = match shown.bytes.get(12..24) {
        Some([8, 0, 0x45, .., 6]) => true,
        Some([0x86, 0xDD, ..]) => shown.bytes.get(20) == Some(&6),
        _ => false,
    };
    is_tcp && decode(shown.header, shown.bytes).is_none_or(|meta| meta.checksum != Checksum::Unknown)
}

/// Copies a frame, or its beginning, into the buffer.
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
        // The ring has only part of the frame, and the socket had no room for the whole.
        return Err(DropCause::Overrun);
    }
    let meta = decode(header, bytes).ok_or(DropCause::Malformed)?;
    // Of a frame that waits in the socket only the headers are read here.
    let bytes = if ticket.is_some() { &bytes[..bytes.len().min(SKIP_MAX)] } else { bytes };
    slot.storage_mut()[..bytes.len()].copy_from_slice(bytes);
    slot.set_len(len);
    slot.meta = meta;
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
        if self.is_waiting() {
            batch.clear();
            return 0;
        }
        if self.ring.is_none() {
            return self.socket.receive(batch);
        }
        self.let_go(self.copies.next);
        batch.clear();
        let mut dropped = 0;
        while dropped < DROPPED_MAX {
            let Some(slot) = batch.slot() else { break };
            let Some(len) = self.show(slot) else { break };
            if slot.is_empty() {
                dropped += 1;
                continue;
            }
            self.socket.stats_mut().count_received(len);
            batch.push_slot();
        }
        batch.len()
    }

    fn waiting_most(&self) -> usize {
        self.ring.as_ref().map_or(usize::MAX, Ring::filled)
    }

    /// Only frames that are whole in the ring: long ones come out of the socket in their order.
    fn receive_ahead(&mut self, batch: &mut Batch, look: &mut dyn FnMut(&[u8]) -> Look) -> usize {
        batch.clear();
        let Some(ring) = &mut self.ring else { return 0 };
        let mut later = None;
        for _ in 0..LOOKS_MAX {
            let Some(slot) = batch.slot() else { break };
            let Some((place, shown)) = ring.look_ahead() else { break };
            let Ok(shown) = shown else { continue };
            let what = if shown.is_copied { Look::Leave } else { look(shown.bytes) };
            if what == Look::Later {
                later = later.or(Some(place));
            // A frame that cannot be taken is dropped, and counted, when its turn comes.
            } else if what == Look::Take && fill(slot, shown.header, shown.bytes, shown.len, None).is_ok() {
                let len = shown.len;
                ring.take(place);
                self.socket.stats_mut().count_received(len);
                batch.push_slot();
            }
        }
        if let Some(place) = later {
            ring.look_again(place);
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

    /// The descriptor is readable while a slot is not released, and also on an error, which reading slots does not show.
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
