//! `struct tcp_info` of Linux (`linux/tcp.h`), by name and by byte.

use serde::{Deserialize, Serialize};

/// Declares the fields once: offset in Linux's struct, type, name.
macro_rules! fields {
    ($($(#[doc = $text:literal])+ $at:literal $name:ident: $type:ty,)+) => {
        /// What `getsockopt(TCP_INFO)` tells. Times are as Linux's: microseconds, or milliseconds for the `last_` fields; windows
        /// and queues in segments where Linux counts segments. Zero where nothing is measured.
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct TcpInfo {
            $($(#[doc = $text])+ pub $name: $type,)+
        }

        impl TcpInfo {
            /// As Linux lays it out, in this machine's byte order. A caller with a smaller buffer gets its beginning.
            #[must_use]
            pub fn encode(&self) -> [u8; Self::LEN] {
                let mut bytes = [0; Self::LEN];
                $(
                    let field = self.$name.to_ne_bytes();
                    bytes[$at..$at + field.len()].copy_from_slice(&field);
                )+
                bytes
            }

            /// Names and offsets, for the test against the C header.
            #[must_use]
            pub fn layout() -> Vec<(&'static str, usize, usize)> {
                vec![$((stringify!($name), $at, size_of::<$type>()),)+]
            }
        }
    };
}

fields! {
    /// `TCP_ESTABLISHED` and so on: see [`state`].
    0 state: u8,
    /// 0 open, 1 disorder, 2 window reduced, 3 recovery, 4 loss.
    1 ca_state: u8,
    /// Timeouts of what is outstanding now.
    2 retransmits: u8,
    /// Window or keepalive probes unanswered.
    3 probes: u8,
    /// Doublings of the timeout.
    4 backoff: u8,
    /// Bits: 1 timestamps, 2 SACK, 4 window scaling, 8 ECN.
    5 options: u8,
    /// The peer's shift in the low half, ours in the high one.
    6 wscale: u8,
    /// 1: neither the congestion window nor the peer's has held data back lately, so that more might have arrived.
    7 delivery_rate_app_limited: u8,
    /// Retransmission timeout with backoff, us.
    8 rto: u32,
    /// Delayed acknowledgement, us.
    12 ato: u32,
    /// Payload of the segments we send.
    16 snd_mss: u32,
    /// Payload of the segments the peer sends.
    20 rcv_mss: u32,
    /// Segments in flight; of a listener, connections that wait for `accept`.
    24 unacked: u32,
    /// Of them, held by the peer; of a listener, its backlog.
    28 sacked: u32,
    /// Of them, believed lost.
    32 lost: u32,
    /// Of them, sent again.
    36 retrans: u32,
    /// Since data was last sent, ms.
    44 last_data_sent: u32,
    /// Since a segment last came, ms.
    52 last_data_recv: u32,
    /// The same.
    56 last_ack_recv: u32,
    /// Bytes of the largest IP packet.
    60 pmtu: u32,
    /// Receive window at most at present, bytes.
    64 rcv_ssthresh: u32,
    /// Smoothed round trip, us.
    68 rtt: u32,
    /// Its variation, us.
    72 rttvar: u32,
    /// Slow-start threshold in segments; `0x7fffffff`: none yet.
    76 snd_ssthresh: u32,
    /// Congestion window in segments.
    80 snd_cwnd: u32,
    /// The segment size we announced, options subtracted.
    84 advmss: u32,
    /// Segments that may overtake each other before one counts as lost.
    88 reordering: u32,
    /// Smoothed round trip as the receiver of data measures it, us: by the timestamps that full segments echo, in milliseconds, and by
    /// the time that a window's worth takes; 0 until then, and where only small messages come.
    92 rcv_rtt: u32,
    /// Receive space in bytes.
    96 rcv_space: u32,
    /// Segments sent again, ever.
    100 total_retrans: u32,
    /// Bytes per second let go.
    104 pacing_rate: u64,
    /// Bytes per second at most.
    112 max_pacing_rate: u64,
    /// Bytes the peer has acknowledged.
    120 bytes_acked: u64,
    /// Bytes received in order.
    128 bytes_received: u64,
    /// Segments sent.
    136 segs_out: u32,
    /// Segments received.
    140 segs_in: u32,
    /// Bytes the application has written and nobody has sent.
    144 notsent_bytes: u32,
    /// The least round trip, us.
    148 min_rtt: u32,
    /// Segments received with data.
    152 data_segs_in: u32,
    /// Segments sent with data.
    156 data_segs_out: u32,
    /// Bytes per second that arrive.
    160 delivery_rate: u64,
    /// Microseconds that something was in flight or waited for the peer's window.
    168 busy_time: u64,
    /// Of it, held up by the peer's window.
    176 rwnd_limited: u64,
    /// Of it, held up by a full send buffer.
    184 sndbuf_limited: u64,
    /// Segments delivered.
    192 delivered: u32,
    /// Of them, with congestion echoed.
    196 delivered_ce: u32,
    /// Bytes sent, repetitions included.
    200 bytes_sent: u64,
    /// Bytes sent again.
    208 bytes_retrans: u64,
    /// Duplicates that the peer has reported (RFC 2883).
    216 dsack_dups: u32,
    /// Acknowledgements that showed reordering.
    220 reord_seen: u32,
    /// Segments received out of order.
    224 rcv_ooopack: u32,
    /// The peer's window in bytes.
    228 snd_wnd: u32,
    /// Our window in bytes.
    232 rcv_wnd: u32,
    /// Timeouts, ever, those of the handshake included.
    240 total_rto: u16,
    /// Repairs that they began: timeouts in a row are one.
    242 total_rto_recoveries: u16,
    /// Time that those took, the one under way included, ms.
    244 total_rto_time: u32,
}

impl TcpInfo {
    /// Bytes of the struct as of Linux 6.7. Older kernels' headers have its beginning.
    pub const LEN: usize = 248;

    /// What Linux says of a socket without a connection: no peer, so nothing is measured, and what one would begin with.
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

    /// What Linux says of a listener: `waiting` connections may be accepted, and `backlog` may wait.
    #[must_use]
    pub fn listening(waiting: u32, backlog: u32) -> Self {
        Self { state: state::LISTEN, unacked: waiting, sacked: backlog, ..Self::idle() }
    }

    /// What it says of any socket that sends nothing.
    fn idle() -> Self {
        let (pacing_rate, max_pacing_rate) = (u64::MAX, u64::MAX);
        Self { snd_cwnd: 10, reordering: 3, pacing_rate, max_pacing_rate, ..Self::default() }
    }

    /// The two shifts in one byte, as C lays out the bit fields.
    #[must_use]
    pub const fn shifts(peer: u8, own: u8) -> u8 {
        peer & 0xF | (own & 0xF) << 4
    }
}

/// Values of [`TcpInfo::state`].
pub mod state {
    /// Open both ways.
    pub const ESTABLISHED: u8 = 1;
    /// SYN sent.
    pub const SYN_SENT: u8 = 2;
    /// SYN sent and received.
    pub const SYN_RECV: u8 = 3;
    /// Our FIN is on its way.
    pub const FIN_WAIT1: u8 = 4;
    /// Our FIN is acknowledged.
    pub const FIN_WAIT2: u8 = 5;
    /// Old segments may be under way.
    pub const TIME_WAIT: u8 = 6;
    /// Over.
    pub const CLOSE: u8 = 7;
    /// The peer's FIN has come.
    pub const CLOSE_WAIT: u8 = 8;
    /// It came first; ours is on its way.
    pub const LAST_ACK: u8 = 9;
    /// Waiting for a SYN.
    pub const LISTEN: u8 = 10;
    /// Both FINs crossed.
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
