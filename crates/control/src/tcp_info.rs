//! `struct tcp_info` of Linux (`linux/tcp.h`): its fields by name, its bytes by offset.

use serde::{Deserialize, Serialize};

/// Declares the fields once: offset in Linux's struct in bytes, type, name.
macro_rules! fields {
    ($($(#[doc = $text:literal])+ $at:literal $name:ident: $type:ty,)+) => {
        /// The result of `getsockopt(TCP_INFO)`. Units are Linux's: times in microseconds, or milliseconds in the `last_` fields; windows
        /// and queues in segments where Linux counts segments. Zero where nothing is measured.
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct TcpInfo {
            $($(#[doc = $text])+ pub $name: $type,)+
        }

        impl TcpInfo {
            /// The bytes of Linux's struct, in this machine's byte order. A caller with a smaller buffer gets its beginning.
            #[must_use]
            pub fn encode(&self) -> [u8; Self::LEN] {
                let mut bytes = [0; Self::LEN];
                $(
                    let field = self.$name.to_ne_bytes();
                    bytes[$at..$at + field.len()].copy_from_slice(&field);
                )+
                bytes
            }

            /// Name, offset and length of each field, for the test against the C header.
            #[must_use]
            pub fn layout() -> Vec<(&'static str, usize, usize)> {
                vec![$((stringify!($name), $at, size_of::<$type>()),)+]
            }
        }
    };
}

fields! {
    /// State of the connection, `TCP_ESTABLISHED` and so on: see [`state`].
    0 state: u8,
    /// Congestion state: 0 open, 1 disorder, 2 window reduced, 3 recovery, 4 loss.
    1 ca_state: u8,
    /// Consecutive retransmission timeouts of the outstanding data.
    2 retransmits: u8,
    /// Window or keepalive probes that are not answered.
    3 probes: u8,
    /// How often the retransmission timeout has been doubled.
    4 backoff: u8,
    /// Negotiated options, bits: 1 timestamps, 2 SACK, 4 window scaling, 8 ECN.
    5 options: u8,
    /// Window shifts: the peer's in the low four bits, ours in the high four.
    6 wscale: u8,
    /// 1: recently neither the congestion window nor the peer's window limited sending, so `delivery_rate` may be too low.
    7 delivery_rate_app_limited: u8,
    /// Retransmission timeout with backoff, us.
    8 rto: u32,
    /// Delay of a delayed acknowledgement, us.
    12 ato: u32,
    /// Largest payload of the segments we send, bytes.
    16 snd_mss: u32,
    /// Payload of the segments the peer sends, bytes.
    20 rcv_mss: u32,
    /// Segments in flight; for a listener, connections that wait for `accept`.
    24 unacked: u32,
    /// Segments in flight that the peer has acknowledged selectively; for a listener, its backlog.
    28 sacked: u32,
    /// Segments in flight that are believed lost.
    32 lost: u32,
    /// Segments in flight that have been retransmitted.
    36 retrans: u32,
    /// Time since data was last sent, ms.
    44 last_data_sent: u32,
    /// Time since a segment was last received, ms.
    52 last_data_recv: u32,
    /// Time since a segment was last received, ms; equal to `last_data_recv`.
    56 last_ack_recv: u32,
    /// Path MTU: bytes of the largest IP packet.
    60 pmtu: u32,
    /// Largest receive window at present, bytes.
    64 rcv_ssthresh: u32,
    /// Smoothed round-trip time, us.
    68 rtt: u32,
    /// Variation of the round-trip time, us.
    72 rttvar: u32,
    /// Slow-start threshold in segments; `0x7fffffff`: not set yet.
    76 snd_ssthresh: u32,
    /// Congestion window in segments.
    80 snd_cwnd: u32,
    /// The MSS we announced, less the bytes of the options in each segment.
    84 advmss: u32,
    /// By how many segments a packet may be overtaken before it counts as lost.
    88 reordering: u32,
    /// Smoothed round-trip time as the receiver of data measures it, us: from timestamp echoes in full segments (in milliseconds), and from
    /// the time that one window of data takes. 0 before the first measurement, and where only small messages arrive.
    92 rcv_rtt: u32,
    /// Receive buffer space, bytes.
    96 rcv_space: u32,
    /// Segments retransmitted since the connection began.
    100 total_retrans: u32,
    /// Pacing rate, bytes per second.
    104 pacing_rate: u64,
    /// Largest pacing rate, bytes per second.
    112 max_pacing_rate: u64,
    /// Bytes that the peer has acknowledged.
    120 bytes_acked: u64,
    /// Bytes received in order.
    128 bytes_received: u64,
    /// Number of segments sent.
    136 segs_out: u32,
    /// Number of segments received.
    140 segs_in: u32,
    /// Bytes that the application has written and that have not been sent.
    144 notsent_bytes: u32,
    /// The smallest round-trip time, us.
    148 min_rtt: u32,
    /// Segments received with data.
    152 data_segs_in: u32,
    /// Segments sent with data.
    156 data_segs_out: u32,
    /// Delivery rate, bytes per second.
    160 delivery_rate: u64,
    /// Time with data in flight or waiting for the peer's window, us.
    168 busy_time: u64,
    /// The part of `busy_time` in which the peer's window limited sending, us.
    176 rwnd_limited: u64,
    /// The part of `busy_time` in which a full send buffer limited sending, us.
    184 sndbuf_limited: u64,
    /// Segments delivered to the peer.
    192 delivered: u32,
    /// Delivered segments for which the peer echoed congestion (ECE).
    196 delivered_ce: u32,
    /// Bytes sent, retransmissions included.
    200 bytes_sent: u64,
    /// Number of bytes retransmitted.
    208 bytes_retrans: u64,
    /// Duplicates that the peer has reported by D-SACK (RFC 2883).
    216 dsack_dups: u32,
    /// Acknowledgements that showed reordering.
    220 reord_seen: u32,
    /// Segments received out of order.
    224 rcv_ooopack: u32,
    /// The peer's receive window, bytes.
    228 snd_wnd: u32,
    /// Our receive window, bytes.
    232 rcv_wnd: u32,
    /// Retransmission timeouts since the connection began, those of the handshake included.
    240 total_rto: u16,
    /// Recoveries that timeouts began; timeouts in a row count as one.
    242 total_rto_recoveries: u16,
    /// Time spent in those recoveries, the present one included, ms.
    244 total_rto_time: u32,
    /// Segments received with a congestion mark (CE), where the ends use accurate ECN (RFC 9768).
    248 received_ce: u32,
}

impl TcpInfo {
    /// Length of the struct in bytes, as of Linux 6.18. Headers of older kernels have only its beginning. What follows `received_ce` there are
    /// counters of the option of accurate ECN, which is not used here: 0.
    pub const LEN: usize = 280;

    /// The values of a socket without a connection, as Linux gives them: initial values; nothing is measured.
    #[must_use]
    pub fn unconnected() -> Self {
        Self {
            state: state::CLOSE,
            delivery_rate_app_limited: 1,
            rto: 1_000_000,
            rttvar: 250_000,
            snd_mss: 536,
            snd_ssthresh: 0x7FFF_FFFF,
            min_rtt: u32::MAX,
            ..Self::idle()
        }
    }

    /// The values of a listener, as Linux gives them: `waiting` connections may be accepted, and `backlog` may wait.
    #[must_use]
    pub fn listening(waiting: u32, backlog: u32) -> Self {
        Self { state: state::LISTEN, unacked: waiting, sacked: backlog, ..Self::idle() }
    }

    /// The values common to all sockets that send nothing.
    fn idle() -> Self {
        let (pacing_rate, max_pacing_rate) = (u64::MAX, u64::MAX);
        Self { snd_cwnd: 10, reordering: 3, pacing_rate, max_pacing_rate, ..Self::default() }
    }

    /// Both window shifts in one byte, as C lays out the bit fields.
    #[must_use]
    pub const fn shifts(peer: u8, own: u8) -> u8 {
        peer & 0xF | (own & 0xF) << 4
    }
}

/// Values of [`TcpInfo::state`].
pub mod state {
    /// The connection is open in both directions.
    pub const ESTABLISHED: u8 = 1;
    /// We have sent a SYN.
    pub const SYN_SENT: u8 = 2;
    /// We have sent and received a SYN.
    pub const SYN_RECV: u8 = 3;
    /// Our FIN is sent and not yet acknowledged.
    pub const FIN_WAIT1: u8 = 4;
    /// Our FIN is acknowledged; the peer's has not come.
    pub const FIN_WAIT2: u8 = 5;
    /// Both FINs are acknowledged; old segments may still be in the network.
    pub const TIME_WAIT: u8 = 6;
    /// There is no connection.
    pub const CLOSE: u8 = 7;
    /// The peer's FIN has come; ours is not sent.
    pub const CLOSE_WAIT: u8 = 8;
    /// The peer's FIN came first; ours is sent and not yet acknowledged.
    pub const LAST_ACK: u8 = 9;
    /// The socket waits for a SYN.
    pub const LISTEN: u8 = 10;
    /// Both ends have sent FINs that crossed in the network; ours is not acknowledged.
    pub const CLOSING: u8 = 11;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_neither_overlap_nor_leave_the_struct() {
        let mut end = 0;
        for (name, at, len) in TcpInfo::layout() {
            assert!(at >= end && at % len == 0 && at + len <= TcpInfo::LEN, "{name}");
            end = at + len;
        }
    }

    #[test]
    fn bytes_are_where_linux_has_them() {
        let info = TcpInfo {
            state: state::ESTABLISHED,
            wscale: TcpInfo::shifts(7, 9),
            rtt: 4000,
            ..TcpInfo::default()
        };
        let bytes = info.encode();
        assert_eq!((bytes[0], bytes[6], &bytes[68..72]), (1, 0x97, &4000u32.to_ne_bytes()[..]));
    }
}
