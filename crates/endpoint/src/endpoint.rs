//! A socket's place in shared memory: its slot, and its block, which holds the state that the peer cannot write.

use crate::host::Process;
use crate::lock::own;
use crate::region::Mapped;
use base::limits::SLOTS_MAX;
use control::Left;
use queue::Violation;
use queue::stream::{Sender, closing, ending, raise};
use rustix::io::Errno;
use shm::half_flags::{self, FAILED, FIN, LENT, LINGER, LINGER_SHIFT, MUTE, NEAR, OPEN, RELEASED, RESET};
use shm::{Half, MOVED, Side, SockBlock, TRUST};
pub use shm::{sock_flags as flags, sock_state as state};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The bits of `Endpoint::marks`.
mod marks {
    /// A send waits for space no longer: other threads that wait for it are to be told.
    pub const FREED: u32 = 1;
    /// One send that found no space; from this bit on they are counted.
    pub const STALL: u32 = 1 << 1;
}

/// All errors with which a connection, or an attempt to make one, ends: those of the slow path and of this crate.
const ERRORS: [Errno; 10] = [
    Errno::CONNREFUSED,
    Errno::CONNRESET,
    Errno::PIPE,
    Errno::TIMEDOUT,
    Errno::HOSTUNREACH,
    Errno::NETUNREACH,
    Errno::NOPROTOOPT,
    Errno::NOBUFS,
    Errno::ADDRINUSE,
    Errno::ADDRNOTAVAIL,
];

/// The error of a connection that `word` says. A word with which no connection ends comes from a process that overwrites its own block, or
/// from a hostile peer: it must not be taken for EAGAIN, EINTR or an error of this library's own.
fn error_of(word: u32) -> Errno {
    let found = ERRORS.into_iter().find(|e| e.raw_os_error().cast_unsigned() == word);
    found.unwrap_or(Errno::CONNRESET)
}

/// A connection in shared memory.
#[derive(Debug)]
pub struct Endpoint {
    /// The region of the connection.
    pub mapped: Arc<Mapped>,
    /// The application region that holds the socket block.
    pub home: Arc<Mapped>,
    slot: u16,
    index: u16,
    /// Bits and a counter: see [`marks`].
    marks: AtomicU32,
    /// Bound of the send buffer from `SO_SNDBUF`, bytes; 0: not set.
    pub buffer: AtomicU32,
    /// `TCP_NOTSENT_LOWAT` as set, bytes; 0: the system's default.
    pub lowat: AtomicU32,
}

// A program may have very many sockets, so each is small.
const _: () = assert!(size_of::<Endpoint>() == 32 && SLOTS_MAX <= 1 << 16);

/// The memory of an endpoint, looked up once in a call.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The socket block.
    pub block: &'a SockBlock,
    /// This side's half of the slot.
    pub own: &'a Half,
    /// The other side's half.
    pub peer: &'a Half,
}

impl Endpoint {
    /// A connection in slot `slot` of `mapped`, with block `index` of `home`.
    pub const fn new(mapped: Arc<Mapped>, slot: u32, home: Arc<Mapped>, index: u32) -> Self {
        assert!(slot < SLOTS_MAX as u32 && index < SLOTS_MAX as u32, "no region has so many");
        Self {
            mapped,
            home,
            slot: slot as u16,
            index: index as u16,
            marks: AtomicU32::new(0),
            buffer: AtomicU32::new(0),
            lowat: AtomicU32::new(0),
        }
    }

    /// The number of the slot in the region.
    #[inline]
    pub fn slot(&self) -> u32 {
        u32::from(self.slot)
    }

    /// The number of the block in `home`.
    #[inline]
    pub fn index(&self) -> u32 {
        u32::from(self.index)
    }

    /// Counts a send that found no space: the next space is news (see [`Endpoint::pulse`]).
    pub fn stall(&self) {
        self.marks.fetch_add(marks::STALL, Ordering::Relaxed);
    }

    /// Notes that a send waits for space no longer, or has found that the peer is gone.
    pub fn free(&self) {
        self.marks.fetch_or(marks::FREED, Ordering::Relaxed);
    }

    /// True once after `free`: other threads that wait for space are to be told.
    #[inline]
    pub fn was_freed(&self) -> bool {
        self.marks.load(Ordering::Relaxed) & marks::FREED != 0
            && self.marks.fetch_and(!marks::FREED, Ordering::Relaxed) & marks::FREED != 0
    }

    /// What the process around this endpoint does for it.
    pub(crate) fn process(&self) -> &'static dyn Process {
        self.mapped.host.process
    }

    /// The socket block: state that the peer cannot write.
    ///
    /// # Panics
    /// Never: the index was taken from the region.
    #[inline]
    pub fn block(&self) -> &SockBlock {
        self.home.region.sock(self.index()).expect("a block's index was checked when it was taken")
    }

    /// This side's half of the slot, and the peer's.
    #[inline]
    pub fn halves(&self) -> (&Half, &Half) {
        self.mapped.halves(self.slot())
    }

    /// The block and both halves.
    #[inline]
    pub fn parts(&self) -> Parts<'_> {
        let (own, peer) = self.halves();
        Parts { block: self.block(), own, peer }
    }

    /// Initializes the block of a fresh connection.
    pub fn begin(&self, nonblock: bool, passive: bool) {
        let b = self.block();
        b.tx_lock.store(0, Ordering::Relaxed);
        b.rx_lock.store(0, Ordering::Relaxed);
        self.begin_locked(nonblock, passive);
    }

    /// As [`begin`](Self::begin); the locks of both directions stay as they are ([`queue::holding`]).
    pub fn begin_locked(&self, nonblock: bool, passive: bool) {
        let b = self.block();
        self.store(&Sender::default());
        b.rx_tail.store(0, Ordering::Relaxed);
        // `connect` need not report an accepted connection.
        let side = if self.mapped.side == Side::One { state::SIDE_ONE } else { 0 };
        b.state.store(if passive { state::TOLD } else { 0 } | side, Ordering::Relaxed);
        b.error.store(0, Ordering::Relaxed);
        let bits = if nonblock { flags::NONBLOCK } else { 0 } | if passive { flags::PASSIVE } else { 0 };
        b.flags.store(bits, Ordering::Relaxed);
        b.slot.store(self.slot(), Ordering::Relaxed);
        b.region.store(self.mapped.id, Ordering::Release);
    }

    /// The sending side's positions, from the block.
    #[inline]
    pub fn sender(&self) -> Sender {
        Sender::of(self.block(), self.mapped.data_len())
    }

    /// Stores the sending side's positions in the block.
    #[inline]
    pub fn store(&self, s: &Sender) {
        s.keep(self.block());
    }

    /// Sets or clears `flags` of `shm::application_flags`. True when one of them was set before.
    pub fn advise(&self, flags: u64, on: bool) -> bool {
        if self.has_moved() {
            // The slot may belong to another connection.
            return on;
        }
        let own = self.halves().0;
        let before = if on {
            own.extra.fetch_or(flags, Ordering::AcqRel)
        } else {
            own.extra.fetch_and(!flags, Ordering::AcqRel)
        };
        before & flags != 0
    }

    /// Changes whenever bytes have come or a send found no space: with the readiness this tells new events from repeated ones.
    #[inline]
    pub fn pulse(&self) -> (u64, u32) {
        (self.halves().1.tx_head.load(Ordering::Acquire), self.marks.load(Ordering::Relaxed) / marks::STALL)
    }

    /// Tells the peer that there is news.
    #[inline]
    pub fn tell(&self) {
        self.tell_of(self.halves().1);
    }

    /// Like [`Self::tell`], for a caller that has looked up the peer's half.
    #[inline]
    pub fn tell_of(&self, peer: &Half) {
        if let Some(context) = self.mapped.tell_of(peer, self.slot()) {
            self.process().wake_other(&self.mapped, context);
        }
    }

    /// Returns the bits of [`state`] that are set.
    #[inline]
    pub fn state(&self) -> u32 {
        self.block().state.load(Ordering::Relaxed)
    }

    /// Sets bits of [`state`]. Returns the bits before.
    pub fn note(&self, bits: u32) -> u32 {
        self.block().state.fetch_or(bits, Ordering::AcqRel)
    }

    /// Clears bits of [`state`]. Returns the bits before.
    pub fn forget(&self, bits: u32) -> u32 {
        self.block().state.fetch_and(!bits, Ordering::AcqRel)
    }

    /// True when the program has set `O_NONBLOCK`.
    #[inline]
    pub fn is_nonblocking(&self) -> bool {
        self.block().flags.load(Ordering::Relaxed) & flags::NONBLOCK != 0
    }

    /// The peer's flags; an end of the connection that they announce is noted.
    #[inline]
    pub fn peer_flags(&self) -> u32 {
        self.flags_of(self.halves().1)
    }

    /// Like [`Self::peer_flags`], for a caller that has looked up the peer's half.
    #[inline]
    pub fn flags_of(&self, peer: &Half) -> u32 {
        // Acquire: read the flags before the bytes, so that all bytes published before a FIN are seen.
        let seen = peer.flags.load(Ordering::Acquire);
        if seen & (RESET | FAILED | MUTE) != 0 || self.mapped.dead.load(Ordering::Relaxed) {
            self.take_note(seen);
        }
        seen
    }

    #[cold]
    fn take_note(&self, seen: u32) {
        if seen & MUTE != 0 {
            self.mapped.fall_silent();
        }
        if seen & (RESET | FAILED) != 0 || self.mapped.dead.load(Ordering::Relaxed) {
            self.end(seen);
        }
    }

    fn end(&self, seen: u32) {
        let before = self.note(state::OVER);
        if before & state::OVER != 0 {
            return;
        }
        let error = if seen & FAILED != 0 {
            (seen >> half_flags::ERRNO_SHIFT & 0xfff) as i32
        } else if seen & FIN != 0 && before & state::SHUT_WR != 0 && self.mapped.pair {
            // Both sides had finished: nothing is left to be reset.
            0
        } else if seen & (FIN | RESET) == FIN | RESET && before & state::SHUT_WR == 0 {
            // In CLOSE-WAIT.
            libc::EPIPE
        } else if seen & (OPEN | RESET) == RESET && before & state::OPEN == 0 {
            // In SYN-SENT.
            libc::ECONNREFUSED
        } else {
            libc::ECONNRESET
        };
        self.block().error.store(error as u32, Ordering::Release);
    }

    /// True once the connection has ended other than by FIN.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.state() & state::OVER != 0
    }

    /// True once both sides have finished and all bytes have arrived: TCP's state is CLOSED (or TIME-WAIT, in which no socket is). Within
    /// one host, bytes arrive when they are written. Also true after a send to a peer that has closed.
    pub fn is_closed(&self) -> bool {
        if self.state() & state::INTO_THE_VOID != 0 {
            return true;
        }
        let finished = self.halves().1.flags.load(Ordering::Acquire) & FIN != 0;
        finished && self.state() & state::SHUT_WR != 0 && (self.mapped.pair || self.unsent() == 0)
    }

    /// True for an accepted connection.
    pub fn is_passive(&self) -> bool {
        self.block().flags.load(Ordering::Relaxed) & flags::PASSIVE != 0
    }

    /// True once the handshake is over.
    pub fn is_open(&self) -> bool {
        self.state() & state::OPEN != 0 || {
            let open = self.halves().1.flags.load(Ordering::Acquire) & OPEN != 0;
            if open {
                self.note(state::OPEN);
            }
            open
        }
    }

    /// True for a connection during its handshake.
    pub fn is_connecting(&self) -> bool {
        let _ = self.peer_flags();
        self.state() & (state::OPEN | state::OVER) == 0 && !self.is_open()
    }

    /// Takes the pending error (`SO_ERROR`), with an end of the connection that the peer has just announced.
    pub fn pending_error(&self) -> Option<Errno> {
        let _ = self.peer_flags();
        self.take_error()
    }

    /// Takes the pending error.
    pub fn take_error(&self) -> Option<Errno> {
        let b = self.block();
        if b.error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match b.error.swap(0, Ordering::AcqRel) {
            0 => None,
            word => Some(error_of(word)),
        }
    }

    /// The peer broke the protocol: resets the connection.
    #[cold]
    pub fn violated(&self, violation: Violation) -> Errno {
        if self.note(state::OVER) & state::OVER == 0 {
            self.process().report(&violation);
            raise(self.halves().0, RESET);
            self.tell();
        }
        Errno::CONNRESET
    }

    /// True when another process has the connection, or the program gave it up: the slot says nothing about this socket any more.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.block().rx_lock.load(Ordering::Acquire) == MOVED
    }

    /// True when another process has the connection.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.has_moved() && !self.is_unconnected()
    }

    /// True when only the service holds the connection, for the next process that shows its descriptor.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.block().holders.load(Ordering::Acquire) == TRUST
    }

    /// True when the slot stays with this process for its next connection ([`Lease`](crate::slot_grant::Lease)).
    #[must_use]
    pub fn is_lent(&self) -> bool {
        // The service takes the flag from a connection that was left with it.
        self.halves().1.flags.load(Ordering::Acquire) & LENT != 0 && self.mapped.lease.has(self.slot())
    }

    /// Marks a connection that may appear in another process. Returns its place, as the service needs it (`Request::Leave`).
    #[must_use]
    pub fn leave(&self) -> Left {
        self.block().holders.fetch_or(TRUST, Ordering::AcqRel);
        Left {
            region: self.mapped.id,
            slot: self.slot(),
            side: self.mapped.side as u8,
            home: self.home.id,
            sock: self.index(),
        }
    }

    /// Ends this side's stream.
    pub fn end_stream(&self) {
        let (own, peer) = self.halves();
        raise(own, ending(own.flags.load(Ordering::Relaxed), peer.flags.load(Ordering::Acquire)));
    }

    /// Notes `TCP_LINGER2` for the service, which gives the port of a closed connection back to the kernel. As on Linux a negative number
    /// means no wait, 0 the system's default, and no wait is longer than two minutes.
    pub fn set_linger2(&self, seconds: i32) {
        if !self.mapped.pair {
            return;
        }
        let code = match seconds {
            ..0 => 1,
            0 => 0,
            _ => seconds.min(120) as u32 + 1,
        };
        let flags = &self.halves().0.flags;
        let set = |flags: u32| Some(flags & !LINGER | code << LINGER_SHIFT);
        let _ = flags.fetch_update(Ordering::AcqRel, Ordering::Relaxed, set);
    }

    /// Raises flags of this side's half and tells the peer.
    pub fn raise(&self, bits: u32) {
        raise(self.halves().0, bits);
        self.tell();
    }

    /// This process (`ours`: its holder bit) holds the socket no more. The last holder closes the connection by Linux's rule: unread input
    /// or `hard` resets it, else FIN. True when this process was the last.
    pub fn release(&self, ours: u64, hard: bool) -> bool {
        let b = self.block();
        // Exactly one process is the last; it holds the block until the connection is closed.
        let others = |holders: u64| Some(holders & !ours).filter(|rest| *rest != 0);
        if b.holders.fetch_update(Ordering::AcqRel, Ordering::Acquire, others).is_ok() {
            return false;
        }
        if self.has_moved() {
            // The slot may belong to another connection.
            b.region.store(0, Ordering::Release);
            b.holders.store(0, Ordering::Release);
            return false;
        }
        let (own_half, peer) = self.halves();
        // Take both locks: another thread's copy finishes first. A copy that this very call interrupted cannot.
        let locks = (own(&b.tx_lock, &self.mapped), own(&b.rx_lock, &self.mapped));
        let others = self.peer_flags();
        let is_unread = peer.tx_head.load(Ordering::Acquire) != b.rx_tail.load(Ordering::Relaxed);
        // A connection may also be over by what only this side knows.
        let cut = if self.is_over() { RESET } else { 0 };
        let bits = closing(own_half.flags.load(Ordering::Relaxed) | cut, others, is_unread, hard);
        self.let_go_owned();
        own_half.flags.fetch_or(bits & !RELEASED, Ordering::AcqRel);
        // What waits for a lock finds the end.
        self.note(state::OVER);
        if !self.leave_rings() {
            b.region.store(0, Ordering::Release);
        }
        // First the locks, because the next socket in the block has its own. Then the block: once both sides have released the slot it is the next
        // connection's, which the service would close for this process if it died while its block named the slot.
        drop(locks);
        b.holders.store(0, Ordering::Release);
        raise(own_half, RELEASED);
        self.tell();
        true
    }

    /// Whether the service is to be told with a message that this end is released ([`release`](Self::release), [`give_up`](Self::give_up)). Not of a live
    /// connection over the port: its core was rung and sees it, and the service frees the slot when the core has let go. Both sides raise
    /// RELEASED first and look at the other's next, so one of them sees both. By now the slot may be another connection's: the service
    /// does nothing then.
    #[must_use]
    pub fn must_say_closed(&self) -> bool {
        let flags = self.halves().1.flags.load(Ordering::SeqCst);
        !self.mapped.pair && flags & (OPEN | NEAR | RELEASED) != OPEN
    }
}
