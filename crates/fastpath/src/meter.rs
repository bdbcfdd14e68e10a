//! What a round turns to, for whoever counts where its time goes. Reads no clock: the meter does, or none.

/// Parts of a round, in their order. Borders lie between stages of a batch: what a packet or a slot makes the core send is that
/// part's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Part {
    /// Taking packets from the port.
    PortReceive,
    /// IP and TCP of the packets that came, and what they let go out: acknowledgements, and what waited for one.
    Receive,
    /// Telling applications.
    Events,
    /// Looking which applications have rung, and for which slots.
    Doorbells,
    /// What these slots have: bytes to send, room to announce, ends.
    Transmit,
    /// Pacing, acknowledgements whose time has come, probes, rings that linger.
    Timers,
    /// Handing over to the port what is not handed over yet.
    PortSend,
}

impl Part {
    /// How many there are.
    pub const COUNT: usize = 7;
}

/// Is told.
pub trait Meter {
    /// The round turns to `part`.
    fn enter(&mut self, part: Part);
}

/// Nobody counts.
impl Meter for () {
    #[inline(always)]
    fn enter(&mut self, _part: Part) {}
}
