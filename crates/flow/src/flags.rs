//! Bits of a record: its state, and the events that its core owes the slow path.

/// Bits of `ReceiveLine::flags`.
pub mod state {
    /// The record is in use.
    pub const LIVE: u32 = 1;
    /// The addresses are IPv6, in the record's third line.
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
    /// The slow path's timer runs for this flow. Set by the core together with `event::ACTIVE`; cleared by the slow path
    /// when no data is in flight.
    pub const TIMER_ARMED: u32 = 1 << 11;
    /// There is data to send, nothing is in flight, and the peer's window is closed: the slow path sends window probes.
    pub const BLOCKED: u32 = 1 << 12;
    /// The application was asked to ring when it consumes.
    pub const WANT_SPACE: u32 = 1 << 13;
    /// An acknowledgement is delayed, to be carried by data.
    pub const ACK_DUE: u32 = 1 << 14;
    /// An acknowledgement is to be sent at the end of this batch.
    pub const ACK_NOW: u32 = 1 << 15;
    /// Acknowledgements carry ECE until the peer says (CWR) that it has reduced its window. With accurate ECN always set: each segment
    /// carries the count of [`AccurateEcn`](crate::AccurateEcn).
    pub const ECHO_CE: u32 = 1 << 16;
    /// The next segment with new data carries CWR: we have reduced our window.
    pub const SEND_CWR: u32 = 1 << 17;
    /// The peer's window holds data back; the time counts in `Delays::window`.
    pub const WINDOW_FULL: u32 = 1 << 18;
    /// The next acknowledgement reports a duplicate: `Cold::duplicate` (RFC 2883).
    pub const REPORT_DUPLICATE: u32 = 1 << 31;
    /// The application has let go of the connection: no reader is left for data that comes now.
    pub const APP_CLOSED: u32 = 1 << 19;
    /// The application broke the rules of its region: its slot is not read any more.
    pub const POISONED: u32 = 1 << 20;
    /// `Cold::rtt_seq` is being timed.
    pub const TIMING: u32 = 1 << 21;
    /// The slow path has removed the flow; the core has not let go of it yet.
    pub const LEAVING: u32 = 1 << 22;
    /// Each acknowledgement echoes exactly whether the data that it covers was marked (RFC 8257 section 3.2), instead of RFC 3168's
    /// latch.
    pub const EXACT_ECN: u32 = 1 << 24;
    /// The application has requested a reset of the connection.
    pub const APP_RESET: u32 = 1 << 25;
    /// The application has not been told yet of news (data, FIN, space).
    pub const TELL: u32 = 1 << 26;
    /// No data came to carry the last delayed acknowledgement: later ones are sent at once, until the application replies again.
    pub const QUICK: u32 = 1 << 23;
    /// The oldest unacknowledged segment is to be sent again.
    pub const RESEND: u32 = 1 << 27;
    /// The loss timer of the core runs for the flow, early enough for the data in flight.
    pub const WATCHED: u32 = 1 << 28;
    /// A tail loss probe was sent and not judged yet; it ends at `Recovery::probe_end`.
    pub const PROBED: u32 = 1 << 29;
    /// The congestion window held data back in the flow's last turn to send.
    pub const CWND_FULL: u32 = 1 << 30;
}

/// Bits of `ReceiveLine::events`: events of a flow that its core owes the slow path.
pub mod event {
    /// Data or FIN is in flight and no timer was armed.
    pub const ACTIVE: u8 = 1;
    /// The peer's FIN has come in order.
    pub const FIN_RECEIVED: u8 = 1 << 1;
    /// Our FIN has been acknowledged.
    pub const FIN_ACKED: u8 = 1 << 2;
    /// The application has let go of the connection.
    pub const APP_CLOSED: u8 = 1 << 3;
    /// The application has requested a reset.
    pub const APP_RESET: u8 = 1 << 4;
    /// A rare event has happened: one of `Cold::rare_events`.
    pub const RARE: u8 = 1 << 5;
    /// Not for the slow path: bytes were acknowledged, and the application waits for space.
    pub const SPACE: u8 = 1 << 6;
    /// Not for the slow path: bytes were sent, and the application wants to know how many.
    pub const SENT: u8 = 1 << 7;
    /// The events that concern the sending application, not the slow path.
    pub const SENDER: u8 = SPACE | SENT;
}

/// Bits of `Cold::rare_events`, in the order in which they are handed over: events of few flows that a core owes the slow path.
pub mod rare {
    /// A SYN, or a RST that may not be the peer's: to be acknowledged.
    pub const CHALLENGE: u8 = 1;
    /// Data has come for an application that has let go of the connection.
    pub const LATE_DATA: u8 = 1 << 1;
    /// The peer has reset the connection.
    pub const PEER_RESET: u8 = 1 << 2;
    /// The core has let go of the record, as `Command::Drop` asked.
    pub const DROPPED: u8 = 1 << 3;
    /// A report of the flow's program is due.
    pub const REPORT: u8 = 1 << 4;
}
