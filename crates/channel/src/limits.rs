//! Every limit of channels in one place, with the reason for each.

use base::Duration;

/// Most payload bytes of one DATA frame: 61,440, about the largest segment of a port with segmentation offload, and the chunk that the
/// NetChannel prototype schedules (62,620 there).
pub const FRAME_MAX: u32 = 61_440;
/// Least value that a peer may name as its largest frame: a page, so that headers stay below half a per cent of bulk data.
pub const FRAME_MAX_LEAST: u32 = 4_096;
/// Longest body of a frame that is not DATA: the longest, HELLO, has 96 bytes; later versions may add to it.
pub const CONTROL_MAX: usize = 256;
/// Least room that a transport lends at once, or none: the longest control frame with its header fits.
pub const ROOM_LEAST: usize = 512;

/// Most channels of one session: the paper scales to 4, and more than one for each core of a NUMA node gains nothing.
pub const CHANNELS_MAX: usize = 16;
/// Most runs of bytes that one socket has under way, each on one channel. A receiver has at most one interval ahead of the next byte for
/// each of them.
pub const RUNS_MAX: usize = 64;
/// Most intervals of bytes ahead of the next one that a receiver keeps for one socket.
pub const INTERVALS_MAX: usize = RUNS_MAX;
/// Bytes that wait on one channel from which on the scheduler skips it: 2 MB (NetChannel section 4, by their measurement).
pub const QUEUE_MAX: usize = 2 << 20;
/// Chunks that wait on one channel from which on it is skipped: small messages of many sockets reach this bound first.
pub const CHUNKS_MAX: usize = 4_096;
/// Chunks that a policy puts on the same channel in a row, so that the receiver wakes once for several (NetChannel's prototype: 6).
pub const CHUNKS_IN_A_ROW: u32 = 6;

/// Virtual sockets of one session unless configured otherwise: as many as a region of shared memory has slots.
pub const SOCKETS_MAX_DEFAULT: u32 = 65_536;
/// Answers about sockets that are gone, queued for one session: twice its sockets and so many more. An honest peer repeats only what a
/// dead channel may have lost, which is at most two frames for each socket.
pub const LATE_ANSWERS_SLACK: usize = 1_024;
/// Sessions of one service unless configured otherwise.
pub const SESSIONS_MAX_DEFAULT: usize = 1_024;
/// Sessions that one peer may begin: two classes for each of 64 users. The others are for other peers.
pub const SESSIONS_OF_PEER: usize = 128;
/// Channels that have come in and not yet proved themselves, of peers that have proved themselves before, and as many of those that have not.
pub const GREETINGS_MAX: usize = 256;
/// The same, of one address: as many as a session has channels, for each of two classes.
pub const GREETINGS_OF_PEER: usize = 2 * CHANNELS_MAX;
/// Channels of hosts that the configuration does not name: each is told so.
pub const STRANGERS_MAX: usize = 128;
/// Addresses of peers that have proved themselves that a hub remembers: as many as there may be sessions by default.
pub const KNOWN_MAX: usize = SESSIONS_MAX_DEFAULT;
/// Channels refused or given up in their handshake that a hub remembers for its caller's log: as many as one look may find.
pub const REJECTED_MAX: usize = 2 * GREETINGS_MAX;
/// Most bytes of credit that a socket may give at once: 1 GiB, four times the largest payload ring.
pub const WINDOW_MAX: u64 = 1 << 30;

/// Time that a channel has for its handshake.
pub const GREETING_TIME: Duration = Duration::from_secs(5);
/// Silence on a channel after which a PING is sent.
pub const PING_AFTER: Duration = Duration::from_secs(5);
/// Silence on a channel after which it is taken for dead: three PINGs.
pub const DEAD_AFTER: Duration = Duration::from_secs(15);
/// Time for which a session without a channel waits for a new one (CHANNELS 2.2).
pub const RECONNECT_TIME: Duration = Duration::from_secs(10);
/// First pause after a channel could not be made; doubles up to [`RETRY_MAX`].
pub const RETRY_MIN: Duration = Duration::from_ms(50);
/// Longest pause after a channel could not be made.
pub const RETRY_MAX: Duration = Duration::from_secs(1);
/// Longest time for which the receipt of bytes is not confirmed: they occupy the sender's ring so long, and no reader waits for it.
pub const ACK_DELAY: Duration = Duration::from_ms(10);
/// Channels that may join one session within a second: each that dies again costs a look at all sockets.
pub const JOINS_A_SECOND: u32 = 4 * CHANNELS_MAX as u32;
/// Least time between two looks at all sockets that the peer asks for: with 65,536 sockets a look takes about 0.3 ms, 3 % of this.
pub const REPEAT_PAUSE: Duration = Duration::from_ms(10);
/// Time without sockets after which the opener ends a session.
pub const IDLE_TIME: Duration = Duration::from_secs(60);

const _: () = assert!(FRAME_MAX < 1 << 24 && FRAME_MAX_LEAST <= FRAME_MAX);
const _: () = assert!(GREETINGS_OF_PEER < STRANGERS_MAX && STRANGERS_MAX < GREETINGS_MAX);
const _: () = assert!(SESSIONS_OF_PEER < SESSIONS_MAX_DEFAULT);
const _: () = assert!(ROOM_LEAST >= CONTROL_MAX + 16);
const _: () = assert!(PING_AFTER.as_ns() * 3 <= DEAD_AFTER.as_ns());
const _: () = assert!(ACK_DELAY.as_ns() < PING_AFTER.as_ns());
