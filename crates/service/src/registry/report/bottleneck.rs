//! Finds what limits a connection at this moment, from its numbers at this moment. For reports only: the numbers come from memory that
//! applications write, and a program that writes wrong numbers spoils only the report about itself.

use serde::Serialize;

/// The reason why a connection waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The handshake is not complete.
    Handshake,
    /// A listener: it waits for connections.
    Connections,
    /// A listener: it waits for its program to accept connections.
    Accept,
    /// The connection is closing; its program writes nothing more.
    Closing,
    /// It waits for its program: everything that the program has written is sent.
    Application,
    /// It waits for its program to read received bytes.
    Reader,
    /// It waits for the program at the other end, on this host, to read.
    PeerReader,
    /// It waits for the peer's receive window to open.
    ReceiverWindow,
    /// It waits for the congestion window.
    CongestionWindow,
    /// It waits for acknowledgements after a timeout: bytes are sent again.
    Loss,
    /// Its program waits for room to write; everything written before is sent.
    SendBuffer,
    /// It waits for a full segment, because of Nagle's algorithm or a cork.
    SmallWrites,
    /// It waits for the pacer, or for the core's next round.
    Pacing,
}

/// The numbers of one end of an established connection, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// Received bytes that the program has not read.
    pub unread: u64,
    /// Bytes written and not acknowledged (within one host: not read by the other program).
    pub queued: u64,
    /// Those of `queued` that were not sent.
    pub unsent: u64,
    /// The peer's receive window.
    pub peer_window: u64,
    /// The sender's congestion window.
    pub congestion_window: u64,
    /// This end's receive window.
    pub own_window: u64,
    /// Payload bytes of a full segment.
    pub segment: u64,
    /// Number of retransmission timeouts in a row.
    pub timeouts: u8,
    /// The program waits for room to write.
    pub wants_space: bool,
    /// The program has set `TCP_NODELAY`.
    pub no_delay: bool,
    /// The program has set `TCP_CORK`, or its last send had `MSG_MORE`.
    pub is_corked: bool,
}

/// The limit of a connection through shared memory.
pub fn of_shared(n: &Numbers) -> Limit {
    match () {
        () if n.wants_space => Limit::PeerReader,
        () if n.unread > 0 => Limit::Reader,
        () if n.queued > 0 => Limit::PeerReader,
        () => Limit::Application,
    }
}

/// The limit of a connection over the port.
pub fn of_flow(n: &Numbers) -> Limit {
    let in_flight = n.queued.saturating_sub(n.unsent);
    let next = in_flight.saturating_add(n.segment.min(n.unsent).max(1));
    let is_shut_out = n.unread > 0 && n.own_window < 2 * n.segment;
    match () {
        () if n.timeouts > 0 && in_flight > 0 => Limit::Loss,
        () if n.unsent == 0 && n.wants_space => Limit::SendBuffer,
        () if n.unsent == 0 && n.unread > 0 => Limit::Reader,
        () if n.unsent == 0 => Limit::Application,
        () if next > n.peer_window && n.peer_window <= n.congestion_window => Limit::ReceiverWindow,
        () if next > n.congestion_window => Limit::CongestionWindow,
        () if is_shut_out => Limit::Reader,
        () if n.unsent < n.segment && (n.is_corked || !n.no_delay && in_flight > 0) => Limit::SmallWrites,
        () => Limit::Pacing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer at its full rate: 20 segments in flight, both windows have room.
    const BUSY: Numbers = Numbers {
        unread: 0,
        queued: 100_000,
        unsent: 80_000,
        peer_window: 60_000,
        congestion_window: 40_000,
        own_window: 65_535,
        segment: 1_000,
        timeouts: 0,
        wants_space: false,
        no_delay: true,
        is_corked: false,
    };

    #[test]
    fn a_sender_waits_for_the_smaller_window_that_is_full() {
        assert_eq!(of_flow(&Numbers { congestion_window: 20_500, ..BUSY }), Limit::CongestionWindow);
        assert_eq!(of_flow(&Numbers { peer_window: 20_500, ..BUSY }), Limit::ReceiverWindow);
        assert_eq!(of_flow(&Numbers { peer_window: 0, queued: 80_000, ..BUSY }), Limit::ReceiverWindow);
        let both = Numbers { peer_window: 20_900, congestion_window: 20_100, ..BUSY };
        assert_eq!(of_flow(&both), Limit::CongestionWindow);
        assert_eq!(of_flow(&BUSY), Limit::Pacing);
        assert_eq!(of_flow(&Numbers { timeouts: 2, congestion_window: 1_000, ..BUSY }), Limit::Loss);
    }

    #[test]
    fn a_sender_without_unsent_bytes_waits_for_its_program() {
        let sent = Numbers { unsent: 0, ..BUSY };
        assert_eq!(of_flow(&sent), Limit::Application);
        assert_eq!(of_flow(&Numbers { queued: 0, ..sent }), Limit::Application);
        assert_eq!(of_flow(&Numbers { wants_space: true, ..sent }), Limit::SendBuffer);
        assert_eq!(of_flow(&Numbers { unread: 1, ..sent }), Limit::Reader);
    }

    #[test]
    fn part_of_a_segment_waits_for_nagle_and_for_the_cork() {
        let small = Numbers { queued: 20_300, unsent: 300, no_delay: false, ..BUSY };
        assert_eq!(of_flow(&small), Limit::SmallWrites);
        assert_eq!(of_flow(&Numbers { no_delay: true, ..small }), Limit::Pacing);
        assert_eq!(of_flow(&Numbers { queued: 300, is_corked: true, ..small }), Limit::SmallWrites);
        assert_eq!(of_flow(&Numbers { queued: 300, ..small }), Limit::Pacing);
    }

    #[test]
    fn on_one_host_only_programs_wait_for_each_other() {
        let full = Numbers { queued: 9, wants_space: true, unread: 5, ..Numbers::default() };
        assert_eq!(of_shared(&full), Limit::PeerReader);
        assert_eq!(of_shared(&Numbers { wants_space: false, ..full }), Limit::Reader);
        assert_eq!(of_shared(&Numbers { queued: 9, ..Numbers::default() }), Limit::PeerReader);
        assert_eq!(of_shared(&Numbers::default()), Limit::Application);
    }

    #[test]
    fn nonsense_is_no_panic() {
        let most = Numbers { unread: u64::MAX, queued: u64::MAX, unsent: 1, segment: 1 << 40, ..BUSY };
        assert_eq!(of_flow(&most), Limit::CongestionWindow);
    }
}
