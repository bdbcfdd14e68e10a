//! The bytes of a region, drawn and asserted. Maps no memory.

use crate::atomic::{AtomicU32, AtomicU64};
use base::limits::{PAGE, RING_MIN, SLOTS_MAX};
use core::sync::atomic::Ordering;

/// First eight bytes of every region: "TOWPATH" and a layout letter.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TOWPATHa");
/// Changes whenever a byte of this file's tables moves. The service refuses a library of another version at registration.
pub const VERSION: u32 = 10;
/// Contexts per side of a region.
pub const CONTEXTS: usize = 256;
/// The service-side context that the slow path watches; the contexts 0, 1, ... belong to the fast-path cores.
pub const SLOW_CONTEXT: u32 = 255;
/// The service-side context with a bit for each socket block that holds corked bytes. A process that finds it asleep wakes the slow path.
pub const HELD_CONTEXT: u32 = 253;
/// The application-side context that the service watches at a connection which it holds in the place of a process.
pub const TRUST_CONTEXT: u32 = 254;
/// The bit of [`Half::context`] that says that threads sleep on that word itself; the other bits tell one such sleep from the next. As a
/// number of a context such a word is out of range.
pub const NAP: u32 = 1 << 31;
/// Number of words of a context's bit table: one bit per slot.
#[cfg(not(loom))]
pub const WORDS_MAX: usize = SLOTS_MAX / 64;
/// For loom models: few slots, so that all interleavings can be checked.
#[cfg(loom)]
pub const WORDS_MAX: usize = 2;

/// One of the two sides of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Side {
    /// The service in an application region; the connecting application in a pair region.
    Zero = 0,
    /// The application in an application region; the accepting application in a pair region.
    One = 1,
}

impl Side {
    /// The other side of the region.
    #[must_use]
    #[inline]
    pub const fn other(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }

    /// The side as an index, 0 or 1.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The side with index 0 or 1; `None` for other numbers.
    #[must_use]
    pub const fn from_index(i: u8) -> Option<Self> {
        match i {
            0 => Some(Self::Zero),
            1 => Some(Self::One),
            _ => None,
        }
    }
}

/// The two kinds of region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Application region: side 0 is the service, side 1 the application.
    Application = 1,
    /// Pair region: both sides are applications of this host.
    Pair = 2,
}

/// Region header, one page, written once by the creator before the descriptor leaves it.
///
/// ```text
///   0  magic u64 | 8 version u32 | 12 kind u32 | 16 slots u32 | 20 cycles u32 | 24 data_len u64 | 32 id u64
///   40 holders_taken u64 | 48 accounts_taken u64
///   64 context_taken: u64 x 4 per side (bit = context in use)
///   128 hand u32 | - u32 | 136 direct: u64 x 2
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    /// Equal to [`MAGIC`] once the header is complete.
    pub magic: AtomicU64,
    /// Layout version of the creator: [`VERSION`].
    pub version: AtomicU32,
    /// The region's [`Kind`] as a number.
    pub kind: AtomicU32,
    /// Number of slots, a power of two, 64..=65536.
    pub slots: AtomicU32,
    /// In an application region: a word of the service, changed at any time, that says whether the application is to count its cycles; 0:
    /// no.
    /// Its format is that of `Switch` in crate `cycles`.
    pub cycles: AtomicU32,
    /// Size of each side's data area, bytes.
    pub data_len: AtomicU64,
    /// The service's number of this region.
    pub id: AtomicU64,
    /// Bits of `SockBlock::holders` that belong to a process each; used in the oldest ancestor's application region. A parent takes
    /// one for each child before it forks; the service frees the bits of dead processes.
    pub holders_taken: AtomicU64,
    /// Bits of the [`ThreadAccount`]s that belong to a thread each; written by the application.
    pub accounts_taken: AtomicU64,
    pad: AtomicU64,
    /// Contexts of each side in use, a bit each, so that the forked children of a process take others.
    pub context_taken: [[AtomicU64; CONTEXTS / 64]; 2],
    /// Where the search for a free socket block goes on, modulo the slots; shared by all processes of the application.
    pub hand: AtomicU32,
    pad2: AtomicU32,
    /// Connections that this process has made, and accepted, without the service. Hostile: the service only displays them.
    pub direct: [AtomicU64; 2],
    tail: [AtomicU32; 10],
}

/// The doorbell of one context of one side: its slots with news.
///
/// ```text
///   line 0:  top u64 | sleeping u32 | - u32 | words[0..6]      slots 0..383 need this one line
///   then:    words[6..1024]
/// ```
/// Bit `s % 64` of `words[s / 64]` says that slot `s` has news; bit `g` of `top` says that group `g` of words
/// (`words_per_group` of them, see [`Layout`]) holds a set bit. Producers set the word first, then the top; the
/// consumer clears the top first, then the words.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub struct ContextBlock {
    /// Bit `g`: group `g` of `words` has a set bit.
    pub top: AtomicU64,
    /// 1 while the consumer sleeps, or is about to, and wants its eventfd written.
    pub sleeping: AtomicU32,
    reserved: AtomicU32,
    /// One bit per slot: the slot has news.
    pub words: [AtomicU64; WORDS_MAX],
    tail: [AtomicU64; 6],
}

/// One side's state of one connection: one cache line, written by that side only, read by the other.
///
/// ```text
///   0  tx_head u64      bytes this side ever produced
///   8  rx_tail u64      bytes of the other side's stream this side ever consumed
///   16 ring[2] u64      where this side's payload lies: offset/4096 (bits 0..32) | log2(size) (bits 32..40)
///   32 start[2] u64     first position that lies in ring[i]; the larger start at or below a position rules
///   48 flags u32        see half_flags
///   52 context u32      1 + the context of this side to ring for news of this slot; with bit NAP: threads of this side sleep on this
///                       very word; 0: none. The ringer that wakes them stores 0
///   56 extra u64        application region, side 1: see application_flags; side 0: see Sending; pair region: bits 32..64 are the
///                       time at which this side rang for the slot, so that slots with news can be put in order
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub struct Half {
    /// Number of bytes that this side has produced.
    pub tx_head: AtomicU64,
    /// Number of bytes that this side has consumed.
    pub rx_tail: AtomicU64,
    /// Packed descriptors of this side's rings; 0: none.
    pub ring: [AtomicU64; 2],
    /// First stream position in each ring.
    pub start: [AtomicU64; 2],
    /// State of this side: bits of [`half_flags`].
    pub flags: AtomicU32,
    /// 1 + the context of this side to ring for news of this slot; with [`NAP`]: threads sleep on this word; 0: none.
    pub context: AtomicU32,
    /// Depends on region and side: [`application_flags`], [`Sending`], or a time.
    pub extra: AtomicU64,
}

impl Half {
    /// Clears a half before its slot is handed out. `tx_head` is cleared last, with Release: a thread that sees it cleared sees the rest
    /// cleared.
    pub fn clear(&self) {
        self.flags.store(0, Ordering::Relaxed);
        self.context.store(0, Ordering::Relaxed);
        self.rx_tail.store(0, Ordering::Relaxed);
        self.extra.store(0, Ordering::Relaxed);
        for (ring, start) in self.ring.iter().zip(&self.start) {
            ring.store(0, Ordering::Relaxed);
            start.store(0, Ordering::Relaxed);
        }
        self.tx_head.store(0, Ordering::Release);
    }
}

/// Bits of [`Half::flags`]. Each is written by the half's owner (or by the service for a dead owner).
pub mod half_flags {
    /// This side has connected (application region, side 0: the handshake is complete).
    pub const OPEN: u32 = 1;
    /// The stream of this side ends at `tx_head`: RFC 9293's FIN.
    pub const FIN: u32 = 1 << 1;
    /// This side has reset the connection.
    pub const RESET: u32 = 1 << 2;
    /// This side reads no more (`SHUT_RD`, or closed).
    pub const READ_CLOSED: u32 = 1 << 3;
    /// This side found no space and is to be rung when there is some.
    pub const WANT_SPACE: u32 = 1 << 4;
    /// All holders on this side have released the slot: it may be reused when both sides have set this flag.
    pub const RELEASED: u32 = 1 << 5;
    /// The connection failed; the errno is in bits 16..28.
    pub const FAILED: u32 = 1 << 6;
    /// This side's stream has had urgent bytes: [`Urgent::up`](super::Urgent::up) tells the position after the last of them.
    pub const URGENT: u32 = 1 << 7;
    /// This side rings no more (pair regions): its process is under a seccomp filter, and may lack an eventfd of the other side.
    pub const MUTE: u32 = 1 << 8;
    /// log2 of the number of bytes for which this side waits before it is to be rung (`SO_RCVLOWAT`): see
    /// [`low_water`](super::low_water).
    /// A producer that has no space for so many rings as well.
    pub const LOW_WATER: u32 = 0x1F << LOW_WATER_SHIFT;
    /// Lowest bit of [`LOW_WATER`].
    pub const LOW_WATER_SHIFT: u32 = 9;
    /// In an acceptor's half (pair regions), set by the connector as it connects: the slot is lent to it, and may be reused when both sides have
    /// released it. The service clears it when the connection is left with it (`Request::Leave`): the slot is lent no more.
    pub const LENT: u32 = 1 << 14;
    /// The service is publishing bytes that this side holds back: the slot must not be reused meanwhile.
    pub const PUSHING: u32 = 1 << 15;
    /// In the service's half: the application's data stays on this host, forwarded by the service. As in a pair region, the application
    /// itself holds back bytes for `TCP_CORK` and `MSG_MORE`.
    pub const NEAR: u32 = 1 << 28;
    /// In an acceptor's half: a process has taken the connection out of the accept queue. Only the first that sets it has the connection.
    pub const ACCEPTED: u32 = 1 << 29;
    /// This side has ended its stream after the other had: it was the second to close.
    pub const PASSIVE: u32 = 1 << 30;
    /// Lowest bit of the errno of [`FAILED`].
    pub const ERRNO_SHIFT: u32 = 16;
    /// `TCP_LINGER2` of this side (pair regions, which have no [`FAILED`]): seconds and one more, 1 for "do not wait"; 0: not set.
    pub const LINGER: u32 = 0xFF << LINGER_SHIFT;
    /// Lowest bit of [`LINGER`].
    pub const LINGER_SHIFT: u32 = 16;
}

/// Number of bytes for which the side with these `flags` waits before it is to be rung, a power of two; 1: any byte is news.
#[must_use]
#[inline]
pub const fn low_water(flags: u32) -> u32 {
    1 << ((flags & half_flags::LOW_WATER) >> half_flags::LOW_WATER_SHIFT)
}

/// The flags for `bytes`, rounded up to a power of two: the inverse of [`low_water`].
#[must_use]
pub const fn low_water_flags(bytes: u32) -> u32 {
    let log2 = if bytes > 1 { u32::BITS - (bytes - 1).leading_zeros() } else { 0 };
    (if log2 > 31 { 31 } else { log2 }) << half_flags::LOW_WATER_SHIFT
}

/// Bits of [`Half::extra`] of an application's half in its application region: socket options for the service's TCP.
pub mod application_flags {
    /// `TCP_NODELAY`: small segments do not wait for acknowledgements.
    pub const NODELAY: u64 = 1;
    /// `TCP_QUICKACK`: acknowledgements do not wait for data.
    pub const QUICKACK: u64 = 1 << 1;
    /// `TCP_CORK`: a partial segment is held back until more is written.
    pub const CORK: u64 = 1 << 2;
    /// The last call that sent had `MSG_MORE`: as [`CORK`], until the next segment from the peer.
    pub const MORE: u64 = 1 << 3;
    /// [`CORK`] or [`MORE`]: partial segments are held back.
    pub const HOLD: u64 = CORK | MORE;
    /// The service keeps [`Sending`](super::Sending) up to date with every segment.
    pub const WATCH: u64 = 1 << 4;
    /// As [`half_flags::URGENT`](super::half_flags::URGENT), in the word that the service reads when it sends.
    pub const URGENT: u64 = 1 << 30;
    /// Lowest bit of the low half of a stream position: a partial segment that ends there is not held back (`TCP_NODELAY` was set there).
    pub const PUSHED_SHIFT: u32 = 32;
}

/// [`Half::extra`] of the service's half in an application region: bounds of the sender besides its ring. Written when the connection
/// is made, when the application waits for space, and after every segment if it has set [`application_flags::WATCH`].
///
/// ```text
///   0..32  sent: low half of the stream position up to which data was sent
///   32..48 goal: bytes to write at once
///   48..64 buffer: most bytes unacknowledged or unsent, in units of 256; 0: no bound
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sending {
    /// Low half of the stream position up to which data was sent.
    pub sent: u32,
    /// Bytes that the application should write at once.
    pub goal: u16,
    /// Most bytes unacknowledged or unsent; 0: no bound.
    pub buffer: u32,
}

impl Sending {
    const UNIT: u32 = 256;

    /// The value as one word. The buffer is rounded down to its unit, but a bound is at least one unit.
    #[must_use]
    pub const fn packed(self) -> u64 {
        let units = self.buffer / Self::UNIT;
        let units = match self.buffer {
            0 => 0,
            _ if units == 0 => 1,
            _ if units > 0xFFFF => 0xFFFF,
            _ => units,
        };
        self.sent as u64 | (self.goal as u64) << 32 | (units as u64) << 48
    }

    /// The value of a word; every word is valid.
    #[must_use]
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self { sent: word as u32, goal: (word >> 32) as u16, buffer: (word >> 48) as u32 * Self::UNIT }
    }
}

/// One connection: a cache line per side.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// The halves, indexed by [`Side::index`].
    pub half: [Half; 2],
}

/// Urgent bytes of one connection; each word belongs to one side (indexed by [`Side::index`]) and is valid only while a flag of that
/// side says so, so that connections without urgent bytes do not touch it.
#[repr(C)]
#[derive(Debug)]
pub struct Urgent {
    /// Position after the last urgent byte of this side's stream; valid with [`half_flags::URGENT`].
    pub up: [AtomicU64; 2],
    /// The socket library's state of the other side's urgent bytes.
    pub seen: [AtomicU64; 2],
}

/// The bit of [`SockBlock::holders`] with which the service holds a connection for the process that shows its descriptor next.
pub const TRUST: u64 = 1 << 63;
/// In [`SockBlock::tx_lock`] and [`SockBlock::rx_lock`], in place of a thread: the connection was moved to another process.
pub const MOVED: u32 = u32::MAX;
/// In [`SockBlock::rx_lock`], in place of a thread: a ring has the connection, and no other holder of its descriptor gets it.
pub const KEPT: u32 = u32::MAX - 1;

/// The bits of `SockBlock::state`.
pub mod sock_state {
    /// The peer's `OPEN` was seen: the handshake is over.
    pub const OPEN: u32 = 1;
    /// The end of the connection was noted: it was reset, it failed, or its region is gone.
    pub const OVER: u32 = 1 << 1;
    /// The program has called `shutdown(SHUT_RD)`.
    pub const SHUT_RD: u32 = 1 << 2;
    /// The program has called `shutdown(SHUT_WR)`.
    pub const SHUT_WR: u32 = 1 << 3;
    /// `connect` has reported success to the program, or the connection was accepted.
    pub const TOLD: u32 = 1 << 4;
    /// Bytes were sent to a peer that has closed: the next send fails.
    pub const INTO_THE_VOID: u32 = 1 << 5;
    /// The error queue may hold a `MSG_ZEROCOPY` notice.
    pub const NOTICE: u32 = 1 << 6;
    /// The program gave up the connection, or the attempt to make one: the socket is unconnected again.
    pub const UNCONNECTED: u32 = 1 << 7;
    /// Sent bytes may be held back. The service reads this.
    pub const HELD: u32 = 1 << 8;
    /// The program has set `TCP_CORK`.
    pub const CORKED: u32 = 1 << 9;
    /// A non-blocking send has found no space, and the program was told so.
    pub const TOLD_FULL: u32 = 1 << 10;
    /// This side is `Side::One` of the connection.
    pub const SIDE_ONE: u32 = 1 << 11;
    /// No socket uses the block: it names a ring that an open socket has given up.
    pub const RETIRED: u32 = 1 << 12;
    /// Mask: a send must decide whether to hold bytes back.
    pub const HOLDS: u32 = HELD | CORKED;
}

/// The bits of `SockBlock::flags`.
pub mod sock_flags {
    /// The program has set `O_NONBLOCK`.
    pub const NONBLOCK: u32 = 1;
    /// A send found no space, and no later send has found any.
    pub const FULL: u32 = 1 << 1;
    /// The connection was accepted, not connected.
    pub const PASSIVE: u32 = 1 << 2;
    /// The program has set `SO_OOBINLINE`.
    pub const INLINE: u32 = 1 << 3;
    /// An urgent mark was seen: `queue::urgent` says which.
    pub const MARKED: u32 = 1 << 4;
    /// Lowest bit of `SO_RCVLOWAT` in bytes; the value 0 means 1.
    pub const MARK_SHIFT: u32 = 5;
}

/// An application's own state of one socket: two lines in the application region, shared with forked children.
/// The service reads `holders`, `region`, `slot`, `ports`, `state`, `flags` and `tx_head`, untrusted, to clean up after a death, and takes
/// over locks and positions when the connection moves to another process; all other fields are the library's. Crate `endpoint` defines
/// their meaning.
///
/// ```text
///   0   holders u64 | tx_head u64 | rx_tail u64 | tx_ring u64 | tx_start u64 | tx_old u64
///   48  tx_lock u32 | rx_lock u32 | state u32 | flags u32
///   64  region u32 | slot u32 | error u32 | 0 u32 | local 16 bytes | peer 16 bytes
///   112 ports u32 (local << 16 | peer) | family u32 | tx_tail u64
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub struct SockBlock {
    /// Processes that hold the socket, a bit each.
    pub holders: AtomicU64,
    /// Number of bytes produced: the library's trusted copy (the half may be overwritten by the other side).
    pub tx_head: AtomicU64,
    /// Number of bytes consumed: the library's trusted copy.
    pub rx_tail: AtomicU64,
    /// The packed current ring, trusted; bit 63: index of its descriptor.
    pub tx_ring: AtomicU64,
    /// First stream position in that ring.
    pub tx_start: AtomicU64,
    /// The packed earlier ring while bytes in it are unread, or 0.
    pub tx_old: AtomicU64,
    /// Thread that holds the lock of the sending side; 0: free.
    pub tx_lock: AtomicU32,
    /// Thread that holds the lock of the receiving side; 0: free.
    pub rx_lock: AtomicU32,
    /// State of the socket's life cycle, with the bits of [`sock_state`].
    pub state: AtomicU32,
    /// Open-file flags and shutdown bits.
    pub flags: AtomicU32,
    /// Index of the region that the connection is in.
    pub region: AtomicU32,
    /// Slot of the connection in that region.
    pub slot: AtomicU32,
    /// Pending `SO_ERROR`: an errno, or 0.
    pub error: AtomicU32,
    pad: AtomicU32,
    /// Local IP address, 16 bytes.
    pub local: [AtomicU64; 2],
    /// Peer's IP address, 16 bytes.
    pub peer: [AtomicU64; 2],
    /// Local port (high half) and peer's port (low half).
    pub ports: AtomicU32,
    /// Address family of the socket.
    pub family: AtomicU32,
    /// Number of bytes that the peer is known to have consumed (`queue::stream::Sender::tail`).
    pub tx_tail: AtomicU64,
}

/// Number of thread accounts in an application region.
pub const ACCOUNTS: usize = 64;
/// Number of sections of a [`ThreadAccount`].
pub const SECTIONS: usize = 8;

/// Time spent by one thread of the application, by section: written by that thread only. The service only displays it, because an
/// application may write anything. The first account is shared: it sums up threads that have ended.
///
/// ```text
///   0  generation u32 | section u32    number of the measurement; what the thread does now
///   8  at u64 | owner u32              counter when the section was entered; the thread
///   64 spent[8] of (ticks u64 | times u64)
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ThreadAccount {
    /// Generation of the [`Header::cycles`] switch that is counted.
    pub generation: AtomicU32,
    /// Present section: an index of `spent`.
    pub section: AtomicU32,
    /// Value of the counter when the section was entered.
    pub at: AtomicU64,
    /// The kernel's id of the thread; written by the application.
    pub owner: AtomicU32,
    pad: [AtomicU32; 11],
    /// By section: ticks, and number of times that it was entered.
    pub spent: [[AtomicU64; 2]; SECTIONS],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<ThreadAccount>() == 192 && core::mem::offset_of!(ThreadAccount, spent) == 64);
    assert!(
        core::mem::offset_of!(Header, cycles) == 20 && core::mem::offset_of!(Header, accounts_taken) == 48
    );
    assert!(size_of::<Header>() == 192 && core::mem::offset_of!(Header, hand) == 128);
    assert!(size_of::<Half>() == 64 && size_of::<Slot>() == 128);
    assert!(size_of::<SockBlock>() == 128);
    assert!(size_of::<ContextBlock>() == 16 + WORDS_MAX * 8 + 48);
    assert!(NAP as usize > CONTEXTS);
    assert!(core::mem::offset_of!(Half, flags) == 48 && core::mem::offset_of!(Half, context) == 52);
    assert!(core::mem::offset_of!(ContextBlock, words) == 16);
};

/// Parameters of a region, chosen by its creator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Application region or pair region.
    pub kind: Kind,
    /// The service's number of the region.
    pub id: u64,
    /// Most connections: a power of two, 64..=65536.
    pub slots: u32,
    /// Bytes of each side's data area: a multiple of 1 MiB, at most 64 GiB.
    pub data_len: u64,
}

/// Offsets of all parts of a region: computed from [`Params`] by both sides, never read from shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Parameters from which it was computed.
    pub params: Params,
    /// Offset of the context blocks, bytes.
    pub contexts: usize,
    /// Offset of the slots, bytes.
    pub slots: usize,
    /// Offset of the table of urgent bytes: an [`Urgent`] for each slot.
    pub urgent: usize,
    /// Offset of each side's page bitmap.
    pub pages: [usize; 2],
    /// Offset of the socket blocks (application regions; else equal to the end of `pages`).
    pub socks: usize,
    /// Offset of the threads' accounts (application regions; else equal to `socks`).
    pub accounts: usize,
    /// Offset of each side's data area.
    pub data: [usize; 2],
    /// Size of the region in bytes.
    pub total: usize,
    /// Number of a context's words covered by one bit of `top`.
    pub words_per_group: usize,
}

impl Layout {
    /// The layout for `params`, or `None` when they break a limit.
    #[must_use]
    pub fn new(params: Params) -> Option<Self> {
        let slots_ok = params.slots.is_power_of_two() && (64..=SLOTS_MAX as u32).contains(&params.slots);
        let data_ok =
            params.data_len.is_multiple_of(1 << 20) && (1 << 20..=64 << 30).contains(&params.data_len);
        if !(slots_ok && data_ok) {
            return None;
        }
        let (n, data_len) = (params.slots as usize, params.data_len as usize);
        let page_up = |x: usize| x.next_multiple_of(PAGE);
        let bitmap = page_up(data_len / RING_MIN as usize / 8);
        let contexts = PAGE;
        let slots = page_up(contexts + 2 * CONTEXTS * size_of::<ContextBlock>());
        let urgent = page_up(slots + n * size_of::<Slot>());
        let pages = page_up(urgent + n * size_of::<Urgent>());
        let socks = pages + 2 * bitmap;
        let is_application = params.kind == Kind::Application;
        let accounts = if is_application { page_up(socks + n * size_of::<SockBlock>()) } else { socks };
        let data =
            if is_application { page_up(accounts + ACCOUNTS * size_of::<ThreadAccount>()) } else { accounts };
        Some(Self {
            params,
            contexts,
            slots,
            urgent,
            pages: [pages, pages + bitmap],
            socks,
            accounts,
            data: [data, data + data_len],
            total: data + 2 * data_len,
            words_per_group: (n / 64).div_ceil(64),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_low_water_mark_is_said_rounded_up_to_a_power_of_two() {
        let said = |bytes| low_water(low_water_flags(bytes) | !half_flags::LOW_WATER);
        for (bytes, power) in [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1 << 30, 1 << 30)] {
            assert_eq!(said(bytes), power, "{bytes}");
        }
        assert_eq!(said(u32::MAX), 1 << 31);
    }

    #[test]
    fn cleared_half_says_nothing_of_the_connection_before() {
        let atom = || AtomicU64::new(u64::MAX);
        let half = Half {
            tx_head: atom(),
            rx_tail: atom(),
            ring: [atom(), atom()],
            start: [atom(), atom()],
            flags: AtomicU32::new(u32::MAX),
            context: AtomicU32::new(u32::MAX),
            extra: atom(),
        };
        half.clear();
        let Half { tx_head, rx_tail, ring, start, flags, context, extra } = half;
        let longs = [tx_head, rx_tail, extra].into_iter().chain(ring).chain(start);
        assert!(longs.map(AtomicU64::into_inner).all(|value| value == 0));
        assert_eq!((flags.into_inner(), context.into_inner()), (0, 0));
    }
}
