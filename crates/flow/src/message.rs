//! What a core tells the slow path, and the other way.

use crate::ring::{Consumer, Producer, ring};
use crate::{AppRegion, FlowId};
use queue::Violation;
use queue::pages::Pool;
use std::sync::Arc;

pub use crate::ring::FRAME_COPY_MAX;

/// Why a frame is not the core's business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameReason {
    /// ARP, ICMP, ICMPv6 (neighbour discovery), or another protocol.
    NotTcp,
    /// A SYN that belongs to no flow. Its sender repeats it.
    Syn,
    /// Other TCP that belongs to no flow: a handshake's last step, TIME-WAIT's business, or nothing to us.
    UnknownFlow,
    /// TCP of a flow whose record the slow path holds, and its processor was taken away meanwhile: it gives the frame back.
    Busy,
}

/// From a core to the slow path.
#[derive(Debug)]
pub enum Exception {
    /// A frame, its checksums verified, its first [`FRAME_COPY_MAX`] bytes beside.
    Frame {
        /// Why.
        reason: FrameReason,
    },
    /// The peer's FIN has come in order and was acknowledged; the application was told.
    FinReceived {
        /// The flow on which it came.
        flow: FlowId,
    },
    /// Our FIN has been acknowledged.
    FinAcked {
        /// The flow on which it came.
        flow: FlowId,
    },
    /// The application has let go (RELEASED); its FIN, if any, is queued behind its data.
    AppClosed {
        /// Of which flow.
        flow: FlowId,
    },
    /// The application asks for a reset.
    AppReset {
        /// Of which flow.
        flow: FlowId,
    },
    /// The peer has reset the connection: its RST had exactly the number that was expected (RFC 5961 section 3.2).
    PeerReset {
        /// The flow that the exception is about.
        flow: FlowId,
    },
    /// A SYN, or a RST that only may be the peer's: acknowledge, so that a peer without this connection resets it (RFC 5961).
    Challenge {
        /// The flow on which it came.
        flow: FlowId,
    },
    /// Data has come for an application that has let go of its connection: answer with RST, as Linux does.
    LateData {
        /// The flow on which it came.
        flow: FlowId,
    },
    /// Something is outstanding and no timer was armed (`state::TIMER_ARMED` is set now).
    Active {
        /// The flow that the exception is about.
        flow: FlowId,
    },
    /// The core has let go of a record, as [`Command::Drop`] asked: `Keeper::release` it now.
    Dropped {
        /// The flow that the exception is about.
        flow: FlowId,
    },
    /// An application broke the rules. Nothing of its slot is read any more.
    Violation {
        /// Whose region.
        region: u16,
        /// Which slot.
        slot: u32,
        /// What it did.
        what: Violation,
    },
    /// The populated part of a region is too small for what its flows receive: ask the application to populate more, then
    /// call `AppRegion::set_watermark`. Said once per watermark.
    MemoryShort {
        /// Whose region.
        region: u16,
    },
    /// The core has let go of a region, as [`Command::RemoveRegion`] asked. Dropping the parts here unmaps it, away from
    /// the packet path.
    Drained {
        /// Its index.
        index: u16,
        /// The region.
        region: Arc<AppRegion>,
        /// The core's warm rings.
        pool: Box<Pool>,
    },
}

/// From the slow path to a core.
#[derive(Debug)]
pub enum Command {
    /// Serve this region from now on. Made by [`Command::add_region`].
    AddRegion {
        /// Index in the core's table, below `Config::regions`.
        index: u16,
        /// The region.
        region: Arc<AppRegion>,
        /// An empty pool.
        pool: Box<Pool>,
    },
    /// Forget this region, after all its flows were dropped. Answered by [`Exception::Drained`].
    RemoveRegion {
        /// Its index.
        index: u16,
    },
    /// Look at the flow as if its application had rung: send what may be sent. After a timeout the slow path has called
    /// `SendLine::rewind`; the core takes note once it has seen what has come in meanwhile.
    Transmit {
        /// The flow that the exception is about.
        flow: FlowId,
    },
    /// Send a segment that the peer must answer: window probe or keepalive.
    Probe {
        /// The flow that the exception is about.
        flow: FlowId,
    },
    /// Send the next `len` bytes as one segment, longer than the others, when there are as many and the peer's window takes
    /// them; `Cold::path_probe` tells.
    ProbePath {
        /// The flow that the exception is about.
        flow: FlowId,
        /// Payload bytes: at most what both ends' MSS allow.
        len: u16,
    },
    /// Send an acknowledgement now (RFC 5961's challenge).
    Ack {
        /// The flow that the exception is about.
        flow: FlowId,
    },
    /// Send the frame beside, complete with checksums.
    Frame,
    /// Treat the frame beside, verified before, as just received: data that came with a handshake's last step.
    Receive,
    /// Let go of a flow that `Keeper::remove` took out of the table. Answered by [`Exception::Dropped`].
    Drop {
        /// The flow that the exception is about.
        flow: FlowId,
    },
}

impl Command {
    /// Serve `region` under `index`.
    // SETUP: the slow path calls it when an application registers.
    #[must_use]
    pub fn add_region(index: u16, region: Arc<AppRegion>) -> Self {
        Self::AddRegion { index, region, pool: Box::new(Pool::default()) }
    }
}

/// A core's end of its exceptions.
pub struct ExceptionSender(Producer<Exception>);
/// The slow path's end.
pub struct ExceptionReceiver(Consumer<Exception>);
/// The slow path's end of a core's commands.
pub struct CommandSender(Producer<Command>);
/// The core's end.
pub struct CommandReceiver(Consumer<Command>);

/// Room for frames in each ring: 32,768 segments without data, or 256 of the longest.
const FRAMES_BYTES: usize = 4 << 20;
/// No longer is a segment without data: Ethernet with two tags, IPv6 and TCP with all its options, and room for extension headers.
const BARE_MAX: usize = 192;

/// Bytes for the frames of so many slots.
fn bytes_for(slots: usize) -> usize {
    (slots * FRAME_COPY_MAX).min(FRAMES_BYTES)
}

/// A core's exceptions.
// SETUP: called once per core.
#[must_use]
pub fn exceptions(slots: usize) -> (ExceptionSender, ExceptionReceiver) {
    let (tx, rx) = ring(slots, bytes_for(slots));
    (ExceptionSender(tx), ExceptionReceiver(rx))
}

/// A core's commands.
// SETUP: called once per core.
#[must_use]
pub fn commands(slots: usize) -> (CommandSender, CommandReceiver) {
    let (tx, rx) = ring(slots, bytes_for(slots));
    (CommandSender(tx), CommandReceiver(rx))
}

impl ExceptionSender {
    /// Hands over an event.
    ///
    /// # Errors
    /// The event, when the ring is full: keep it and try again.
    #[inline]
    pub fn push(&mut self, exception: Exception) -> Result<(), Exception> {
        self.0.push(exception, &[])
    }

    /// Hands over the beginning of a frame. False when it is lost. What a flood is made of (SYNs, ARP, data of no flow) leaves half of
    /// the ring to the rest, so that it crowds out no connection's segments; these leave an eighth to events.
    #[inline]
    pub fn push_frame(&mut self, reason: FrameReason, frame: &[u8]) -> bool {
        let copy = &frame[..frame.len().min(FRAME_COPY_MAX)];
        let share = match reason {
            FrameReason::NotTcp | FrameReason::Syn => 2,
            FrameReason::UnknownFlow if copy.len() > BARE_MAX => 2,
            FrameReason::UnknownFlow | FrameReason::Busy => 8,
        };
        !self.0.is_crowded(share) && self.0.push(Exception::Frame { reason }, copy).is_ok()
    }

    /// True, once, when the slow path sleeps and must be woken.
    #[must_use]
    #[inline]
    pub fn must_wake(&self) -> bool {
        self.0.must_wake()
    }
}

impl ExceptionReceiver {
    /// Takes the oldest exception; the bytes are a frame's for `Frame`, else none.
    pub fn pop<R>(&mut self, take: impl FnOnce(Exception, &[u8]) -> R) -> Option<R> {
        self.0.pop(take)
    }

    /// Announces sleep; true: nothing waits and the core will ask for a wake-up.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.0.prepare_sleep()
    }

    /// Awake again.
    pub fn awake(&mut self) {
        self.0.awake();
    }
}

impl CommandSender {
    /// Hands over a command.
    ///
    /// # Errors
    /// The command, when the ring is full: keep it and try again.
    pub fn push(&mut self, command: Command) -> Result<(), Command> {
        self.0.push(command, &[])
    }

    /// Hands over a frame to send. False when the ring is full or the frame longer than [`FRAME_COPY_MAX`].
    pub fn push_frame(&mut self, frame: &[u8]) -> bool {
        self.0.push(Command::Frame, frame).is_ok()
    }

    /// Hands over a frame to treat as received. False as for [`push_frame`](Self::push_frame).
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
    /// Takes the oldest command with its frame.
    #[inline]
    pub fn pop<R>(&mut self, take: impl FnOnce(Command, &[u8]) -> R) -> Option<R> {
        self.0.pop(take)
    }

    /// Announces sleep; true: nothing waits and the slow path will ask for a wake-up.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.0.prepare_sleep()
    }

    /// Awake again.
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
