//! Parts of a round, reported to a profiler through [`Meter`]. This crate reads no clock; an implementation may.

/// Parts of a round, in their order. A part ends where a stage of the batch ends: segments that a packet or slot makes the core send
/// are counted with that packet's or slot's part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Part {
    /// The port delivers packets.
    PortReceive,
    /// IP and TCP processing of received packets, and sending what they cause: acknowledgements, and data that waited for one.
    Receive,
    /// Telling applications that their slots have news.
    Events,
    /// Looking for applications that have rung, and for which slots.
    Doorbells,
    /// Handling these slots: bytes to send, space to announce, ends of streams.
    Transmit,
    /// Pacing, delayed acknowledgements, loss timers, lingering rings.
    Timers,
    /// Flushing the port: it sends what it has not sent yet.
    PortSend,
}

impl Part {
    /// Number of parts of a round.
    pub const COUNT: usize = 7;
}

/// Told when a new part of a round begins.
pub trait Meter {
    /// Part `part` begins; the part before ends.
    fn enter(&mut self, part: Part);
}

/// The meter that measures nothing.
impl Meter for () {
    #[inline(always)]
    fn enter(&mut self, _part: Part) {}
}
