//! Every limit of the system in one place, with the reason for each, and compile-time checks that they fit together.

/// Bytes in a cache line of every machine we run on.
pub const CACHE_LINE: usize = 64;
/// Bytes in a small page.
pub const PAGE: usize = 4096;

/// Packets that a fast-path core takes from a port at once: enough to hide a memory access behind the others
/// (a miss is about 100 ns, a packet's work about 50 ns), few enough to stay in the first-level cache.
pub const BATCH: usize = 32;
/// Bytes after which a batch takes no further packet: a small packet behind it waits for as long as these bytes take, and they are still in
/// a cache when their applications read them.
pub const BATCH_BYTES: usize = 64 << 10;

/// Largest frame a port handles: a 64 KiB segmentation-offload super-frame plus headers.
pub const FRAME_MAX: usize = 65_536 + 256;

/// Most connection slots of one region: an index of 16 bits.
pub const SLOTS_MAX: usize = 65_536;
/// Contexts per side of one region: 64, so that a set of them is one word.
pub const CONTEXTS_MAX: usize = 64;
/// Processes that may hold the same socket (by fork): one bit each.
pub const HOLDERS_MAX: usize = 64;

/// Smallest payload ring: one page, enough for a request and its reply.
pub const RING_MIN: u32 = 4096;
/// Largest payload ring: 256 MiB, twice what 10 Gbit/s brings in a round trip of 100 ms.
pub const RING_MAX: u32 = 256 << 20;
/// Largest payload ring unless configured otherwise: 4 MiB, Linux's default `tcp_wmem` maximum.
pub const RING_MAX_DEFAULT: u32 = 4 << 20;
/// First receive buffer of a connection over a port unless configured otherwise: 128 KiB, Linux's default `tcp_rmem`.
pub const BUFFER_INITIAL_DEFAULT: u32 = 128 << 10;
/// Connections of an application over a port for which memory of their first windows is made present and kept. If there are more, they
/// seldom all use their windows at the same moment.
pub const FIRST_WINDOWS: u32 = 128;

/// Largest receive window unless configured otherwise: 32 MiB, Linux's default `tcp_rmem` maximum. It grows that far only while
/// the application consumes what a round trip brings.
pub const RECEIVE_MAX_DEFAULT: u32 = 32 << 20;

const _: () = assert!(RECEIVE_MAX_DEFAULT.is_power_of_two() && RECEIVE_MAX_DEFAULT <= RING_MAX);
const _: () = assert!(RING_MIN.is_power_of_two() && RING_MAX.is_power_of_two());
const _: () = assert!(RING_MAX_DEFAULT.is_power_of_two() && RING_MAX_DEFAULT <= RING_MAX);
const _: () = assert!(SLOTS_MAX.is_power_of_two() && SLOTS_MAX.is_multiple_of(64 * 64));
