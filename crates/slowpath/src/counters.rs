//! Counters of what the slow path did and dropped, by name.

use wire::DropReason;

/// Declares the counters once: the variant and its name in metrics.
macro_rules! counts {
    ($($(#[doc = $text:literal])+ $variant:ident = $name:literal,)+) => {
        /// An event that the slow path counts.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum Count {
            $($(#[doc = $text])+ $variant,)+
        }

        impl Count {
            /// All counts, in the order of their counters.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The count's name in metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

counts! {
    /// SYN sent for an active open, the first time.
    ActiveOpens = "active_opens",
    /// A passive open completed its handshake.
    PassiveOpens = "passive_opens",
    /// SYN of an active open sent again.
    SynRetransmits = "syn_retransmits",
    /// SYN answered with a cookie; no state is kept.
    CookiesSent = "cookies_sent",
    /// A valid cookie came back: a passive open completed its handshake.
    CookiesTaken = "cookies_taken",
    /// Acknowledgement of no connection and without a valid cookie, at a listener that has sent cookies (answered with RST unless
    /// limited).
    CookiesRefused = "cookies_refused",
    /// SYN-ACK of a passive open sent again.
    SynAckRetransmits = "syn_ack_retransmits",
    /// Half-open connection reset because its SYNs asked for classic and for accurate ECN (RFC 9768 section 3.1.5).
    EcnContradictions = "ecn_contradictions",
    /// A connection was established without ECN, and its algorithm does not work without it.
    WithoutEcn = "without_ecn",
    /// An active open that failed.
    FailedOpens = "failed_opens",
    /// RST sent, for any reason.
    ResetsSent = "resets_sent",
    /// RST that ended a connection.
    ResetsTaken = "resets_taken",
    /// Challenge acknowledgement sent (RFC 5961).
    Challenges = "challenges",
    /// Retransmission timeout of an established flow.
    Timeouts = "timeouts",
    /// Window probe sent to a peer with a closed window.
    WindowProbes = "window_probes",
    /// Keepalive probe sent on an idle connection.
    KeepaliveProbes = "keepalive_probes",
    /// Connection given up after too many timeouts.
    GivenUp = "given_up",
    /// Connection reset because its application had let go: there were too many of these, or it was told not to wait.
    OrphanResets = "orphan_resets",
    /// A connection entered TIME-WAIT.
    TimeWaits = "time_waits",
    /// Connection reused out of TIME-WAIT (RFC 6191).
    TimeWaitReuses = "time_wait_reuses",
    /// ICMP or ICMPv6 echo request answered.
    Echoes = "echoes",
    /// ARP request or neighbour solicitation sent.
    NeighbourAsks = "neighbour_asks",
    /// Another station has claimed one of our addresses.
    AddressConflicts = "address_conflicts",
    /// Segment size lowered after ICMP "too big".
    PathMtuLowered = "path_mtu_lowered",
    /// Segment size lowered after timeouts in a row: the path may swallow full packets (RFC 4821).
    BlackHolesSuspected = "black_holes_suspected",
    /// Path probe acknowledged: the segment size was raised.
    PathProbesArrived = "path_probes_arrived",
    /// Path probe lost: the segment size stays.
    PathProbesLost = "path_probes_lost",
    /// Frame returned to a core, because its flow was installed in the meantime.
    Returned = "returned",
    /// Dropped: segment for a port without a listener (answered with RST unless limited).
    NoListener = "no_listener",
    /// Dropped: a RST, because of the peer's limit per second.
    ResetLimited = "reset_limited",
    /// Dropped: a challenge ACK, because of the connection's or the peer's limit. (Those of flows that the core drops are not counted here.)
    ChallengeLimited = "challenge_limited",
    /// Dropped: SYN or final ACK, because the accept queue was full.
    AcceptQueueFull = "accept_queue_full",
    /// Dropped: SYN, because there was no room for a half-open connection.
    HalfOpenFull = "half_open_full",
    /// Dropped: half-open connection, because its SYN-ACK was never acknowledged.
    HalfOpenExpired = "half_open_expired",
    /// Dropped: segment not acceptable in the handshake of its connection, or without ACK at a listener.
    UnacceptableSegment = "unacceptable_segment",
    /// Dropped: RST with an unexpected sequence number.
    UnacceptableReset = "unacceptable_reset",
    /// Dropped: data that came before its connection was accepted, beyond the limit of what is kept.
    EarlyData = "early_data",
    /// Dropped: the oldest connection in TIME-WAIT, for a newer one.
    TimeWaitCrowded = "time_wait_crowded",
    /// Dropped: RST or old segment in TIME-WAIT.
    TimeWaitIgnored = "time_wait_ignored",
    /// Dropped: frame for a neighbour that did not answer, or for which too many frames wait.
    NeighbourUnresolved = "neighbour_unresolved",
    /// Dropped: reply of a neighbour that was not asked, or that changes its address too often.
    NeighbourUnasked = "neighbour_unasked",
    /// Dropped: frame to send to a destination without a route.
    NoRoute = "no_route",
    /// Dropped: ICMP error that quotes no segment in flight.
    StrayIcmp = "stray_icmp",
    /// Dropped: ICMP message of a kind that is not handled.
    OtherIcmp = "other_icmp",
    /// Dropped: frame to send, because its core took none for too long.
    CoreBusy = "core_busy",
}

/// The slow path's counters.
#[derive(Clone, Debug)]
pub struct Counters {
    counts: [u64; Count::ALL.len()],
    drops: [u64; DropReason::COUNT],
}

impl Default for Counters {
    fn default() -> Self {
        Self { counts: [0; Count::ALL.len()], drops: [0; DropReason::COUNT] }
    }
}

impl Counters {
    /// How often `count` happened.
    #[must_use]
    pub fn of(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    /// Number of frames dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// Every counter with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = Count::ALL.iter().map(|&count| (count.name(), self.of(count)));
        counts.chain(DropReason::ALL.iter().map(|&reason| (reason.name(), self.dropped(reason))))
    }

    pub(crate) fn add(&mut self, count: Count) {
        self.counts[count as usize] += 1;
    }

    pub(crate) fn add_many(&mut self, count: Count, n: usize) {
        self.counts[count as usize] += n as u64;
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason.index()] += 1;
    }
}
