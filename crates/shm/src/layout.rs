//! The bytes of a region, drawn and asserted. Never maps, never decides.

use crate::atomic::{AtomicU32, AtomicU64};
use base::limits::{PAGE, RING_MIN, SLOTS_MAX};
use core::sync::atomic::Ordering;

/// First eight bytes of every region: "TOWPATH" and a layout letter.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TOWPATHa");
/// Changes whenever a byte of this file's tables moves. A library of another version is refused at registration.
pub const VERSION: u32 = 6;
/// Contexts per side of a region.
pub const CONTEXTS: usize = 256;
/// Words of a context's bit table: one bit per slot.
#[cfg(not(loom))]
pub const WORDS_MAX: usize = SLOTS_MAX / 64;
/// A model has few slots, so that all interleavings can be walked.
#[cfg(loom)]
pub const WORDS_MAX: usize = 2;

/// One of the two parties of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Side {
    /// The service in an application region; the connecting application in a pair region.
    Zero = 0,
    /// The application in an application region; the accepting application in a pair region.
    One = 1,
}

impl Side {
    /// The other party.
    #[must_use]
    #[inline]
    pub const fn other(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }

    /// 0 or 1.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// From 0 or 1.
    #[must_use]
    pub const fn from_index(i: u8) -> Option<Self> {
        match i {
            0 => Some(Self::Zero),
            1 => Some(Self::One),
            _ => None,
        }
    }
}

/// What a region is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Service and application.
    Application = 1,
    /// Application and application.
    Pair = 2,
}

/// Region header, one page, written once by the creator before the descriptor leaves it.
///
/// ```text
///   0  magic u64 | 8 version u32 | 12 kind u32 | 16 slots u32 | 20 cycles u32 | 24 data_len u64 | 32 id u64
///   40 holders_taken u64 | 48 accounts_taken u64
///   64 context_taken: u64 x 4 per side (bit = context in use)
///   128 hand u32
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`Kind`] as a number.
    pub kind: AtomicU32,
    /// Number of slots, a power of two, 64..=65536.
    pub slots: AtomicU32,
    /// In an application region: whether the application is to count its cycles. Written by the service at any time; 0: no. What else
    /// it says is crate `cycles`' matter.
    pub cycles: AtomicU32,
    /// Bytes of each side's data area.
    pub data_len: AtomicU64,
    /// The service's name for this region.
    pub id: AtomicU64,
    /// Which bits of `SockBlock::holders` are some process's; in the oldest ancestor's application region. A parent takes
    /// one for each child before it forks, the service frees those of the dead.
    pub holders_taken: AtomicU64,
    /// Which [`ThreadAccount`]s are some thread's, a bit each: the application's.
    pub accounts_taken: AtomicU64,
    pad: AtomicU64,
    /// Which contexts of each side are in use, so that the forked children of a process take others.
    pub context_taken: [[AtomicU64; CONTEXTS / 64]; 2],
    /// The socket block that was looked at last, modulo the slots, by all processes that take one: the application's.
    pub hand: AtomicU32,
    tail: [AtomicU32; 15],
}

/// Where one context of one side is told which of its slots have news.
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
    /// Which groups of words have set bits.
    pub top: AtomicU64,
    /// 1 while the consumer sleeps, or is about to, and wants its eventfd written.
    pub sleeping: AtomicU32,
    reserved: AtomicU32,
    /// A bit per slot.
    pub words: [AtomicU64; WORDS_MAX],
    tail: [AtomicU64; 6],
}

/// What one side says about one connection: one cache line, written by that side only, read by the other.
///
/// ```text
///   0  tx_head u64      bytes this side ever produced
///   8  rx_tail u64      bytes of the other side's stream this side ever consumed
///   16 ring[2] u64      where this side's payload lies: offset/4096 (bits 0..32) | log2(size) (bits 32..40)
///   32 start[2] u64     first position that lies in ring[i]; the larger start at or below a position rules
///   48 flags u32        see half_flags
///   52 context u32      1 + the context of this side that wants news of this slot; 0: nobody does
///   56 extra u64        application region, side 1: see application_flags; side 0: see Sending; pair region: bits 32..64 say when
///                       this side rang for the slot, so that what has come can be put in order
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub struct Half {
    /// Bytes produced so far.
    pub tx_head: AtomicU64,
    /// Bytes consumed so far.
    pub rx_tail: AtomicU64,
    /// Packed ring descriptors.
    pub ring: [AtomicU64; 2],
    /// First position of each ring.
    pub start: [AtomicU64; 2],
    /// See [`half_flags`].
    pub flags: AtomicU32,
    /// 1 + the context to tell, or 0.
    pub context: AtomicU32,
    /// See [`application_flags`] and [`Sending`].
    pub extra: AtomicU64,
}

impl Half {
    /// As if never used, before a slot is handed out. `tx_head` comes last and releases: whoever sees it cleared sees the rest
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
    /// This side has connected (application region: the service says that the handshake is over).
    pub const OPEN: u32 = 1;
    /// Nothing follows `tx_head`: RFC 9293's FIN.
    pub const FIN: u32 = 1 << 1;
    /// The connection was reset by this side.
    pub const RESET: u32 = 1 << 2;
    /// This side reads no more (`SHUT_RD`, or fully closed).
    pub const READ_CLOSED: u32 = 1 << 3;
    /// This side found no space and wants news when there is some.
    pub const WANT_SPACE: u32 = 1 << 4;
    /// Every holder on this side has let go: the slot may be reused once both sides say so.
    pub const RELEASED: u32 = 1 << 5;
    /// The connection failed; the errno stands in bits 16..28.
    pub const FAILED: u32 = 1 << 6;
    /// This side's stream has had urgent bytes: how far the last of them reach stands in the table behind the slots.
    pub const URGENT: u32 = 1 << 7;
    /// This side rings nobody any more (pair regions): its process has locked itself in, and may lack an eventfd.
    pub const MUTE: u32 = 1 << 8;
    /// Bytes that this side wants to be there before they are news (`SO_RCVLOWAT`): see [`low_water`](super::low_water). Who has no
    /// space for so many tells.
    pub const LOW_WATER: u32 = 0x1F << LOW_WATER_SHIFT;
    /// Where [`LOW_WATER`] begins.
    pub const LOW_WATER_SHIFT: u32 = 9;
    /// At an acceptor's half (pair regions): the slot is lent, its connector may use it again once both sides have let go.
    pub const LENT: u32 = 1 << 14;
    /// The service lets go what this side holds back: until it has, the slot is not used again.
    pub const PUSHING: u32 = 1 << 15;
    /// At the service's half: what the application sends stays on this host, by way of the service. As within a pair region, it holds
    /// back by itself what `TCP_CORK` and `MSG_MORE` say.
    pub const NEAR: u32 = 1 << 28;
    /// Where the errno of [`FAILED`] begins.
    pub const ERRNO_SHIFT: u32 = 16;
}

/// Bytes that the side with these `flags` wants to be there before they are news, rounded up to a power of two; 1: any byte is.
#[must_use]
#[inline]
pub const fn low_water(flags: u32) -> u32 {
    1 << ((flags & half_flags::LOW_WATER) >> half_flags::LOW_WATER_SHIFT)
}

/// The flags that say so of `bytes`.
#[must_use]
pub const fn low_water_flags(bytes: u32) -> u32 {
    let log2 = if bytes > 1 { u32::BITS - (bytes - 1).leading_zeros() } else { 0 };
    (if log2 > 31 { 31 } else { log2 }) << half_flags::LOW_WATER_SHIFT
}

/// Bits of [`Half::extra`] of an application's half in its application region: what the service's TCP should know.
pub mod application_flags {
    /// `TCP_NODELAY`: small segments do not wait for acknowledgements.
    pub const NODELAY: u64 = 1;
    /// `TCP_QUICKACK`: acknowledgements do not wait for data.
    pub const QUICKACK: u64 = 1 << 1;
    /// `TCP_CORK`: a partial segment waits for more.
    pub const CORK: u64 = 1 << 2;
    /// The last call that sent said `MSG_MORE`: as [`CORK`], until the peer is heard.
    pub const MORE: u64 = 1 << 3;
    /// Either of the two.
    pub const HOLD: u64 = CORK | MORE;
    /// The service keeps [`Sending`](super::Sending) up to date with every segment.
    pub const WATCH: u64 = 1 << 4;
    /// 1 + the page of the table that says where records end (`MSG_EOR`, see `queue::records`); 0: no record ever did.
    pub const RECORDS: u64 = ((1 << 25) - 1) << RECORDS_SHIFT;
    /// Where [`RECORDS`] begins.
    pub const RECORDS_SHIFT: u32 = 5;
    /// As [`half_flags::URGENT`](super::half_flags::URGENT), where the service looks when it sends.
    pub const URGENT: u64 = 1 << 30;
    /// From here on: the low half of a stream position. What ends there is not held back: `TCP_NODELAY` was set then.
    pub const PUSHED_SHIFT: u32 = 32;
}

/// [`Half::extra`] of the service's half in an application region: what bounds a sender beside the bytes that are not consumed.
/// Written when the application waits for space or asks for it by [`application_flags::WATCH`], and when the connection is made.
///
/// ```text
///   0..32  sent: low half of the position up to which the stream has been sent
///   32..48 goal: bytes that are taken at once
///   48..64 buffer: bytes that may be on their way or wait for it, in units of 256; 0: no bound
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sending {
    /// Low half of a stream position.
    pub sent: u32,
    /// Bytes.
    pub goal: u16,
    /// Bytes; 0: no bound.
    pub buffer: u32,
}

impl Sending {
    const UNIT: u32 = 256;

    /// As one word. The buffer is rounded down to its unit, and is one unit at least where there is a bound.
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

    /// From a word; any will do.
    #[must_use]
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self { sent: word as u32, goal: (word >> 32) as u16, buffer: (word >> 48) as u32 * Self::UNIT }
    }
}

/// One connection: a line per side.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// Indexed by [`Side::index`].
    pub half: [Half; 2],
}

/// Urgent bytes of one connection; each word is one side's (indexed by [`Side::index`]) and means something only where a flag of that
/// side says so, so that who has no urgent bytes touches none of it.
#[repr(C)]
#[derive(Debug)]
pub struct Urgent {
    /// One after the last urgent byte of this side's stream: [`half_flags::URGENT`].
    pub up: [AtomicU64; 2],
    /// What this side remembers of the other's: the socket library's.
    pub seen: [AtomicU64; 2],
}

/// The bit of [`SockBlock::holders`] by which the service holds a connection for whoever shows its descriptor next.
pub const TRUST: u64 = 1 << 63;
/// In [`SockBlock::state`]: `SockBlock::tx_head` may be ahead of the half's, by what is held back (`TCP_CORK`, `MSG_MORE`).
pub const HELD: u32 = 1 << 8;
/// In [`SockBlock::state`] of an accept queue: the program waits for connections by calls that the library sees.
pub const AWAITED: u32 = 1 << 13;
/// In [`SockBlock::tx_lock`] and [`SockBlock::rx_lock`], in place of a thread: the connection lives in another process now.
pub const MOVED: u32 = u32::MAX;

/// In [`SockBlock::rx_lock`], in place of a thread: the service takes back what waits in an accept queue. It takes a moment.
pub const SEIZED: u32 = u32::MAX - 1;
/// In [`SockBlock::flags`]: `O_NONBLOCK`.
pub const NONBLOCK: u32 = 1;

/// An application's own state of one socket: two lines in the application region, shared with forked children.
/// The service reads `holders`, `region` and `slot` (hostile) to clean up after a death, and takes over locks and positions
/// when the connection moves to another process; everything else is the library's. Crate `socket` gives the fields their
/// meaning.
///
/// ```text
///   0   holders u64 | tx_head u64 | rx_tail u64 | tx_ring u64 | tx_start u64 | tx_old u64
///   48  tx_lock u32 | rx_lock u32 | state u32 | flags u32
///   64  region u32 | slot u32 | error u32 | records u32 | local 16 bytes | peer 16 bytes
///   112 ports u32 (local << 16 | peer) | family u32 | spare u64
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub struct SockBlock {
    /// A bit per process that holds the socket.
    pub holders: AtomicU64,
    /// The position this side trusts (its own half can be scribbled over by the other side).
    pub tx_head: AtomicU64,
    /// The position this side trusts.
    pub rx_tail: AtomicU64,
    /// The packed ring this side trusts; bit 63: which of the two descriptors it is.
    pub tx_ring: AtomicU64,
    /// First position of that ring.
    pub tx_start: AtomicU64,
    /// The packed ring before it while bytes in it are unread, or 0.
    pub tx_old: AtomicU64,
    /// Owner of the sending side, 0 when free.
    pub tx_lock: AtomicU32,
    /// Owner of the receiving side, 0 when free.
    pub rx_lock: AtomicU32,
    /// Life cycle.
    pub state: AtomicU32,
    /// Open-file flags and shutdown bits.
    pub flags: AtomicU32,
    /// Region the connection lives in.
    pub region: AtomicU32,
    /// Slot in that region.
    pub slot: AtomicU32,
    /// Pending `SO_ERROR`.
    pub error: AtomicU32,
    /// 1 + the page of the table of record ends, or 0.
    pub records: AtomicU32,
    /// Local address.
    pub local: [AtomicU64; 2],
    /// Peer address.
    pub peer: [AtomicU64; 2],
    /// Local port, peer port.
    pub ports: AtomicU32,
    /// Address family.
    pub family: AtomicU32,
    /// Spare.
    pub spare: AtomicU64,
}

/// Accounts of an application region.
pub const ACCOUNTS: usize = 64;
/// Sections of a [`ThreadAccount`].
pub const SECTIONS: usize = 8;

/// Where the time of one thread of the application went: written by that thread only, and said by the application, so that the service
/// shows it and does nothing else with it. The first account is everybody's: of threads that have ended.
///
/// ```text
///   0  generation u32 | section u32    which counting this is, and what the thread does now
///   8  at u64 | owner u32              the counter when it began to; whose it is
///   64 spent[8] of (ticks u64 | times u64)
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ThreadAccount {
    /// As the switch said.
    pub generation: AtomicU32,
    /// Index in `spent`.
    pub section: AtomicU32,
    /// The counter when the section was entered.
    pub at: AtomicU64,
    /// The thread, as the kernel names it; the application's.
    pub owner: AtomicU32,
    pad: [AtomicU32; 11],
    /// By section: ticks, and how often it was entered.
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
    assert!(core::mem::offset_of!(Half, flags) == 48 && core::mem::offset_of!(Half, context) == 52);
    assert!(core::mem::offset_of!(ContextBlock, words) == 16);
};

/// What a creator chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// For whom.
    pub kind: Kind,
    /// The service's name for it.
    pub id: u64,
    /// Number of connections at most: a power of two, 64..=65536.
    pub slots: u32,
    /// Payload bytes per side: a multiple of 1 MiB, at most 64 GiB.
    pub data_len: u64,
}

/// Where everything lies: computed from [`Params`] by both sides, never read from shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// What it was computed from.
    pub params: Params,
    /// Offset of the context blocks.
    pub contexts: usize,
    /// Offset of the slots.
    pub slots: usize,
    /// Offset of the table of urgent bytes: an [`Urgent`] for each slot.
    pub urgent: usize,
    /// Offset of each side's page bitmap.
    pub pages: [usize; 2],
    /// Offset of the socket blocks (application regions; else equal to the end of `pages`).
    pub socks: usize,
    /// Offset of the threads' accounts (application regions; else equal to `socks`).
    pub accounts: usize,
    /// Offset of each side's payload.
    pub data: [usize; 2],
    /// Bytes in all.
    pub total: usize,
    /// Words of a context's table covered by one bit of `top`.
    pub words_per_group: usize,
}

impl Layout {
    /// The layout of `params`, or `None` when they break a limit.
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
