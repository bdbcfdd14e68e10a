//! Messages between a core and the slow path, in both directions.

use crate::ring::{Consumer, Producer, ring};
use crate::{AppRegion, FlowId, GroupSet};
use core::sync::atomic::{AtomicUsize, Ordering};
use queue::Violation;
use queue::pages::Pool;
use std::sync::Arc;

pub use crate::ring::FRAME_COPY_MAX;

/// Why a core hands a frame to the slow path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameReason {
    /// ARP, ICMP, ICMPv6 (neighbour discovery), or another protocol than TCP.
    NotTcp,
    /// A SYN of no flow. If it is lost its sender repeats it.
    Syn,
    /// Another TCP segment of no flow: a handshake's last step, or for a connection in TIME-WAIT, or for none of ours.
    UnknownFlow,
    /// A segment of a flow with a record that the slow path holds for unusually long (its thread was preempted): it returns the frame.
    Busy,
}

/// A message from a core to the slow path.
#[derive(Debug)]
pub enum Exception {
    /// A frame with verified checksums; its first [`FRAME_COPY_MAX`] bytes travel with the message.
    Frame {
        /// Why the core does not handle it.
        reason: FrameReason,
    },
    /// The peer's FIN has come in order and was acknowledged; the application was told.
    FinReceived {
        /// The flow on which the FIN came.
        flow: FlowId,
    },
    /// Our FIN has been acknowledged.
    FinAcked {
        /// The flow with the acknowledged FIN.
        flow: FlowId,
    },
    /// The application has let go of the connection (RELEASED); its FIN, if any, is queued after its data.
    AppClosed {
        /// The flow of the application's slot.
        flow: FlowId,
    },
    /// The application asks for a reset.
    AppReset {
        /// The flow of the application's slot.
        flow: FlowId,
    },
    /// The peer has reset the connection: its RST had exactly the number that was expected (RFC 5961 section 3.2).
    PeerReset {
        /// The flow that was reset.
        flow: FlowId,
    },
    /// A SYN, or a RST that may not be the peer's, has come: to be acknowledged, so that a peer without this connection resets it (RFC
    /// 5961).
    Challenge {
        /// The flow on which it came.
        flow: FlowId,
    },
    /// Data has come for an application that has let go of its connection: to be answered with RST, as Linux does.
    LateData {
        /// The flow on which it came.
        flow: FlowId,
    },
    /// Data or FIN is in flight and no timer was armed (`state::TIMER_ARMED` is set now).
    Active {
        /// The flow that needs a timer.
        flow: FlowId,
    },
    /// A report of the flow's program is due. It stays in the record, and later ones are merged with it, until the slow path takes it;
    /// the core says it once for each report.
    Report {
        /// The flow with the program.
        flow: FlowId,
    },
    /// The core has let go of a record, as [`Command::Drop`] asked: `Keeper::release` it now.
    Dropped {
        /// The flow with the record.
        flow: FlowId,
    },
    /// An application broke the rules. Its slot is not read any more.
    Violation {
        /// Index of the application's region.
        region: u16,
        /// Index of the slot in its region.
        slot: u32,
        /// The broken rule, with its values.
        what: Violation,
    },
    /// The populated part of a region is too small for what its flows receive: the application is to populate more, then the service
    /// calls `AppRegion::set_watermark`. Sent once per watermark.
    MemoryShort {
        /// Index of the region.
        region: u16,
    },
    /// The core parks what comes for flows of these groups that it does not serve, as [`Command::Expect`] asked.
    Expecting {
        /// The number in that command.
        number: u32,
    },
    /// The core has handled every frame that its queue of the port had when [`Command::Yield`] came.
    Quiet {
        /// The number in that command.
        number: u32,
    },
    /// All flows that were moved to the core are served there: the answer to [`Command::Moved`].
    Taken,
    /// The core has let go of a region, as [`Command::RemoveRegion`] asked. The receiver drops the parts here, which unmaps the region
    /// away from the packet path.
    Drained {
        /// Index of the region.
        index: u16,
        /// The region itself.
        region: Arc<AppRegion>,
        /// The core's pool of warm rings.
        pool: Box<Pool>,
    },
}

/// A message from the slow path to a core.
#[derive(Debug)]
pub enum Command {
    /// Serve this region from now on. Made by [`Command::add_region`].
    AddRegion {
        /// Index in the core's table, below `Config::regions`.
        index: u16,
        /// The region itself.
        region: Arc<AppRegion>,
        /// An empty pool for the region's rings.
        pool: Box<Pool>,
    },
    /// Forget this region, after all its flows were dropped. Answered by [`Exception::Drained`].
    RemoveRegion {
        /// Index of the region.
        index: u16,
    },
    /// Treat the flow as if its application had rung: send what may be sent. After a timeout the slow path has called
    /// `SendLine::rewind`; the core acts on it once it has handled the packets that came in meanwhile.
    Transmit {
        /// The flow that is to send.
        flow: FlowId,
    },
    /// Send a segment that the peer must answer: window probe or keepalive.
    Probe {
        /// The flow to probe.
        flow: FlowId,
    },
    /// Send the next `len` bytes as one segment, longer than the others, if there are so many and the peer's window takes
    /// them; the result is in `Cold::path_probe`.
    ProbePath {
        /// The flow that is to send the probe.
        flow: FlowId,
        /// Payload bytes of the probe: at most what both ends' MSS allow.
        len: u16,
    },
    /// Send an acknowledgement now (RFC 5961's challenge).
    Ack {
        /// The flow that is to acknowledge.
        flow: FlowId,
    },
    /// Send the frame that travels with the message; its checksums are complete.
    Frame,
    /// Treat the frame that travels with the message, verified before, as received now: data that came with a handshake's last step.
    Receive,
    /// Flows of these groups will come from another core: park frames of them, instead of the groups named before. Answered by
    /// [`Exception::Expecting`]. No group: hand what is parked to the cores that serve the flows.
    Expect {
        /// All groups that this core is to expect.
        groups: GroupSet,
        /// Comes back in the answer.
        number: u32,
    },
    /// The port brings no more frames of the groups that are to move. Answered by [`Exception::Quiet`].
    Yield {
        /// Comes back in the answer.
        number: u32,
    },
    /// Hand the flow over to another core.
    Move {
        /// The flow that leaves this core.
        flow: FlowId,
        /// Index of the core that serves it from then on.
        to: u8,
    },
    /// All flows were moved. The other core answers by [`Exception::Taken`].
    Moved {
        /// Index of the core that has them.
        to: u8,
    },
    /// Let go of a flow that `Keeper::remove` took out of the table. Answered by [`Exception::Dropped`].
    Drop {
        /// The flow to let go of.
        flow: FlowId,
    },
}

impl Command {
    /// The command to serve `region` under `index`.
    // SETUP: the slow path calls it when an application registers.
    #[must_use]
    pub fn add_region(index: u16, region: Arc<AppRegion>) -> Self {
        Self::AddRegion { index, region, pool: Box::new(Pool::default()) }
    }
}

/// A core's end of its exception ring.
pub struct ExceptionSender {
    ring: Producer<Exception>,
    /// What this end has put in, for each kind of frame that comes unasked.
    put: [Amount; UNASKED],
    taken: Arc<Taken>,
}

/// The slow path's end of a core's exception ring.
pub struct ExceptionReceiver {
    ring: Consumer<Exception>,
    /// What this end has taken out, as in `taken`.
    out: [Amount; UNASKED],
    taken: Arc<Taken>,
}

/// Frames that come unasked, of one kind, since the start, modulo 2^64: their number and their bytes.
#[derive(Clone, Copy, Default)]
struct Amount {
    frames: usize,
    bytes: usize,
}

/// Amounts that the slow path has taken out of the ring: frames and bytes of each kind that comes unasked. They say only how much may be put in; a
/// core that reads old ones puts in less.
#[repr(align(64))]
#[derive(Default)]
struct Taken([[AtomicUsize; 2]; UNASKED]);

/// Kinds of frames that come unasked, from senders without a connection here. Any of them may come as a flood.
const UNASKED: usize = 3;
/// The last of them: other segments of no flow.
const UNKNOWN_FLOW: usize = 2;
/// How many sixteenths of the ring, of its slots and of its bytes, each kind may fill, so that a flood of one takes no room from another: frames
/// that are not TCP, SYNs, other segments of no flow. The rest is for what belongs to connections.
const SHARES: [usize; UNASKED] = [1, 8, 4];

impl FrameReason {
    /// Index of the kind in `SHARES`; `None` for a frame of a connection.
    const fn unasked(self) -> Option<usize> {
        match self {
            Self::NotTcp => Some(0),
            Self::Syn => Some(1),
            Self::UnknownFlow => Some(UNKNOWN_FLOW),
            Self::Busy => None,
        }
    }
}
/// The slow path's end of a core's command ring.
pub struct CommandSender(Producer<Command>);
/// A core's end of its command ring.
pub struct CommandReceiver(Consumer<Command>);

/// Bytes for frames in each ring: 32,768 segments without data, or 256 of the longest.
const FRAMES_BYTES: usize = 4 << 20;
/// Bytes of the longest segment without data: Ethernet with two tags, IPv6 and TCP with all options, and room for extension headers.
const BARE_MAX: usize = 192;

/// Bytes for frames in a ring of so many slots.
fn bytes_for(slots: usize) -> usize {
    (slots * FRAME_COPY_MAX).min(FRAMES_BYTES)
}

/// A core's exception ring, with both its ends.
// SETUP: called once per core.
#[must_use]
pub fn exceptions(slots: usize) -> (ExceptionSender, ExceptionReceiver) {
    let (tx, rx) = ring(slots, bytes_for(slots), FRAME_COPY_MAX);
    let none = [Amount::default(); UNASKED];
    let taken = Arc::new(Taken::default());
    let sender = ExceptionSender { ring: tx, put: none, taken: taken.clone() };
    (sender, ExceptionReceiver { ring: rx, out: none, taken })
}

/// A core's command ring, with both its ends.
// SETUP: called once per core.
#[must_use]
pub fn commands(slots: usize) -> (CommandSender, CommandReceiver) {
    let (tx, rx) = ring(slots, bytes_for(slots), FRAME_COPY_MAX);
    (CommandSender(tx), CommandReceiver(rx))
}

impl ExceptionSender {
    /// Hands an exception to the slow path.
    ///
    /// # Errors
    /// The event, when the ring is full: keep it and try again.
    #[inline]
    pub fn push(&mut self, exception: Exception) -> Result<(), Exception> {
        self.ring.push(exception, &[])
    }

    /// Hands the beginning of a frame to the slow path. False when it is lost. Each kind of frame that comes unasked has a share of the ring; a
    /// frame of a connection leaves a sixteenth to events.
    #[inline]
    #[must_use]
    pub fn push_frame(&mut self, reason: FrameReason, frame: &[u8]) -> bool {
        let copy = &frame[..frame.len().min(FRAME_COPY_MAX)];
        let kind = reason.unasked();
        let is_crowded = match kind {
            Some(kind) => !self.has_share(kind, copy.len()),
            None => self.ring.is_crowded(16),
        };
        if is_crowded || self.ring.push(Exception::Frame { reason }, copy).is_err() {
            return false;
        }
        if let Some(kind) = kind {
            let put = &mut self.put[kind];
            put.frames = put.frames.wrapping_add(1);
            put.bytes = put.bytes.wrapping_add(copy.len());
        }
        true
    }

    /// True when frames of this kind do not fill their share yet. Segments with data, of no flow, may fill half of it: a handshake's last step has none.
    fn has_share(&self, kind: usize, len: usize) -> bool {
        let [frames, bytes] = &self.taken.0[kind];
        // Relaxed: the ring itself says what room there is; this only bounds its use.
        let frames = self.put[kind].frames.wrapping_sub(frames.load(Ordering::Relaxed));
        let bytes = self.put[kind].bytes.wrapping_sub(bytes.load(Ordering::Relaxed));
        let parts = if kind == UNKNOWN_FLOW && len > BARE_MAX { 32 } else { 16 };
        let most = |all: usize| (all * SHARES[kind] / parts).max(1);
        frames < most(self.ring.capacity()) && bytes < most(self.ring.bytes())
    }

    /// True, once, when the slow path sleeps and must be woken.
    #[must_use]
    #[inline]
    pub fn must_wake(&self) -> bool {
        self.ring.must_wake()
    }
}

impl ExceptionReceiver {
    /// Takes the oldest exception; the bytes are the frame of a `Frame`, else empty.
    pub fn pop<R>(&mut self, take: impl FnOnce(Exception, &[u8]) -> R) -> Option<R> {
        let Self { ring, out, taken } = self;
        ring.pop(|exception, frame| {
            if let Exception::Frame { reason } = exception
                && let Some(kind) = reason.unasked()
            {
                let out = &mut out[kind];
                out.frames = out.frames.wrapping_add(1);
                out.bytes = out.bytes.wrapping_add(frame.len());
                let [frames, bytes] = &taken.0[kind];
                frames.store(out.frames, Ordering::Relaxed);
                bytes.store(out.bytes, Ordering::Relaxed);
            }
            take(exception, frame)
        })
    }

    /// Announces sleep. True: no exception waits, and the core will ask for a wake-up.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.ring.prepare_sleep()
    }

    /// Withdraws the announcement of sleep.
    pub fn awake(&mut self) {
        self.ring.awake();
    }
}

impl CommandSender {
    /// Hands a command to the core.
    ///
    /// # Errors
    /// The command, when the ring is full: keep it and try again.
    pub fn push(&mut self, command: Command) -> Result<(), Command> {
        self.0.push(command, &[])
    }

    /// Hands over a frame to send. False when the ring is full or the frame longer than [`FRAME_COPY_MAX`].
    #[must_use]
    pub fn push_frame(&mut self, frame: &[u8]) -> bool {
        self.0.push(Command::Frame, frame).is_ok()
    }

    /// Hands over a frame to treat as received. False as for [`push_frame`](Self::push_frame).
    #[must_use]
    pub fn push_received(&mut self, frame: &[u8]) -> bool {
        self.0.push(Command::Receive, frame).is_ok()
    }

    /// After pushing: true, once, when the core sleeps and must be woken.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        self.0.must_wake()
    }
}

impl CommandReceiver {
    /// Takes the oldest command, with its frame if it has one.
    #[inline]
    pub fn pop<R>(&mut self, take: impl FnOnce(Command, &[u8]) -> R) -> Option<R> {
        self.0.pop(take)
    }

    /// Announces sleep. True: no command waits, and the slow path will ask for a wake-up.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.0.prepare_sleep()
    }

    /// Withdraws the announcement of sleep.
    pub fn awake(&mut self) {
        self.0.awake();
    }
}

macro_rules! opaque_debug {
    ($($name:ident)+) => {$(
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )+};
}
opaque_debug!(ExceptionSender ExceptionReceiver CommandSender CommandReceiver);

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots of the ring in these tests; its area has room for all short frames.
    const SLOTS: usize = 256;
    const KINDS: [FrameReason; UNASKED] = [FrameReason::NotTcp, FrameReason::Syn, FrameReason::UnknownFlow];

    /// Pushes frames of so many bytes until one is refused; returns the number of the others.
    fn flood(tx: &mut ExceptionSender, reason: FrameReason, len: usize) -> usize {
        (0..2 * SLOTS).take_while(|_| tx.push_frame(reason, &vec![0; len])).count()
    }

    #[test]
    fn a_flood_of_one_kind_takes_no_room_from_another_in_whatever_order_they_come() {
        for first in KINDS {
            for len in [60, FRAME_COPY_MAX] {
                let (mut tx, mut rx) = exceptions(SLOTS);
                assert!(flood(&mut tx, first, len) > 0);
                for (kind, reason) in KINDS.into_iter().enumerate().filter(|(_, reason)| *reason != first) {
                    assert_eq!(
                        flood(&mut tx, reason, 60),
                        SLOTS * SHARES[kind] / 16,
                        "{first:?}, then {reason:?}"
                    );
                }
                assert!(flood(&mut tx, FrameReason::Busy, 60) > 0 && tx.push(Exception::Taken).is_ok());
                // What was taken out makes room for its own kind only.
                while rx
                    .pop(|exception, _| !matches!(exception, Exception::Frame { reason } if reason == first))
                    == Some(true)
                {}
                assert_eq!(
                    KINDS.map(|reason| tx.push_frame(reason, &[0; 60])),
                    KINDS.map(|reason| reason == first)
                );
            }
        }
    }

    #[test]
    fn data_of_no_flow_leaves_half_of_its_share_to_the_last_steps_of_handshakes() {
        let (mut tx, _rx) = exceptions(SLOTS);
        assert_eq!(flood(&mut tx, FrameReason::UnknownFlow, BARE_MAX + 1), SLOTS / 8);
        assert_eq!(flood(&mut tx, FrameReason::UnknownFlow, BARE_MAX), SLOTS / 8);
    }

    #[test]
    fn a_share_is_whole_again_when_the_ring_was_emptied_however_often() {
        let (mut tx, mut rx) = exceptions(SLOTS);
        for _ in 0..20 {
            assert_eq!(flood(&mut tx, FrameReason::UnknownFlow, 60), SLOTS / 4);
            while rx.pop(|_, _| ()).is_some() {}
        }
    }
}
