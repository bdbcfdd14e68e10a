//! Bits: of a record's state, of the events it owes the slow path, of what an application asks for.

/// Bits of `ReceiveLine::flags`.
pub mod state {
    /// The record is in use.
    pub const LIVE: u32 = 1;
    /// The addresses stand in the third line.
    pub const V6: u32 = 1 << 1;
    /// Both ends agreed on timestamps.
    pub const TIMESTAMPS: u32 = 1 << 2;
    /// Both ends agreed on selective acknowledgements.
    pub const SACK: u32 = 1 << 3;
    /// Both ends agreed on congestion notification.
    pub const ECN: u32 = 1 << 4;
    /// The application sends no more: FIN follows its last byte.
    pub const FIN_QUEUED: u32 = 1 << 5;
    /// Our FIN has been sent; its sequence number is `snd_max - 1`.
    pub const FIN_SENT: u32 = 1 << 6;
    /// Our FIN has been acknowledged.
    pub const FIN_ACKED: u32 = 1 << 7;
    /// The peer's FIN has come in order; its sequence number is `rcv_nxt - 1`.
    pub const FIN_RECEIVED: u32 = 1 << 8;
    /// The peer's FIN has come ahead of missing data, at `Cold::fin_at`.
    pub const FIN_AHEAD: u32 = 1 << 9;
    /// Fast recovery, until `recover` is acknowledged.
    pub const RECOVERY: u32 = 1 << 10;
    /// The slow path watches over this flow. Set by the core together with `event::ACTIVE`; cleared by the slow path
    /// when nothing is outstanding.
    pub const TIMER_ARMED: u32 = 1 << 11;
    /// There is data to send, nothing in flight, and the peer's window is closed: the slow path probes.
    pub const BLOCKED: u32 = 1 << 12;
    /// The application was asked to tell when it consumes.
    pub const WANT_SPACE: u32 = 1 << 13;
    /// An acknowledgement waits for data to carry it.
    pub const ACK_DUE: u32 = 1 << 14;
    /// An acknowledgement goes out at the end of this batch.
    pub const ACK_NOW: u32 = 1 << 15;
    /// Congestion is echoed until the peer says that it has reduced its window.
    pub const ECHO_CE: u32 = 1 << 16;
    /// The next segment with new data says that we have reduced our window.
    pub const SEND_CWR: u32 = 1 << 17;
    /// The peer's window holds data back: `Delays::window` grows.
    pub const WINDOW_FULL: u32 = 1 << 18;
    /// The next acknowledgement reports a duplicate: `Cold::duplicate` (RFC 2883).
    pub const REPORT_DUPLICATE: u32 = 1 << 31;
    /// The application has let go of the connection: data that comes now is for nobody.
    pub const APP_CLOSED: u32 = 1 << 19;
    /// The application broke the rules of its region: nothing of it is read any more.
    pub const POISONED: u32 = 1 << 20;
    /// `Cold::rtt_seq` is being timed.
    pub const TIMING: u32 = 1 << 21;
    /// The slow path has removed the flow; the core has yet to let go of it.
    pub const LEAVING: u32 = 1 << 22;
    /// Each acknowledgement echoes exactly whether the data it covers was marked (RFC 8257 section 3.2), not RFC 3168's
    /// latch.
    pub const EXACT_ECN: u32 = 1 << 24;
    /// The application has asked for a reset.
    pub const APP_RESET: u32 = 1 << 25;
    /// The application has news (data, FIN, space) that it has not been told of yet.
    pub const TELL: u32 = 1 << 26;
    /// The last acknowledgement that waited for data waited in vain: the next do not, until the application replies again.
    pub const QUICK: u32 = 1 << 23;
    /// The oldest unacknowledged segment is to be sent again.
    pub const RESEND: u32 = 1 << 27;
    /// The core looks at the flow again in a while: something is in flight.
    pub const WATCHED: u32 = 1 << 28;
    /// The end of what is in flight was sent once more as a probe, up to `Cold::probe_end`.
    pub const PROBED: u32 = 1 << 29;
    /// The congestion window held data back when the flow last had its turn to send.
    pub const CWND_FULL: u32 = 1 << 30;
}

/// Bits of `ReceiveLine::events`: what a core owes the slow path about a flow.
pub mod event {
    /// Data or FIN is outstanding and no timer was armed.
    pub const ACTIVE: u8 = 1;
    /// The peer's FIN has come.
    pub const FIN_RECEIVED: u8 = 1 << 1;
    /// Our FIN has been acknowledged.
    pub const FIN_ACKED: u8 = 1 << 2;
    /// The application has let go.
    pub const APP_CLOSED: u8 = 1 << 3;
    /// The application wants a reset.
    pub const APP_RESET: u8 = 1 << 4;
    /// Something rare has happened: `Cold::rare_events` says what.
    pub const RARE: u8 = 1 << 5;
    /// Not for the slow path: bytes were acknowledged, and the application waits for space.
    pub const SPACE: u8 = 1 << 6;
    /// Not for the slow path: bytes were sent, and the application asks how far.
    pub const SENT: u8 = 1 << 7;
    /// What is the application's.
    pub const SENDER: u8 = SPACE | SENT;
}

/// Bits of `Cold::rare_events`, in the order in which they are handed over: what a core owes the slow path about few flows.
pub mod rare {
    /// A SYN, or a RST that only may be the peer's: acknowledge.
    pub const CHALLENGE: u8 = 1;
    /// Data has come for an application that has let go.
    pub const LATE_DATA: u8 = 1 << 1;
    /// The peer has reset the connection.
    pub const PEER_RESET: u8 = 1 << 2;
    /// The core has let go of the record, as `Command::Drop` asked.
    pub const DROPPED: u8 = 1 << 3;
}
