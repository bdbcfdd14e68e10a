//! Shared by active and passive opens: option negotiation, the segments of a handshake, and the installation of a flow.

use crate::ecn::Agreed;
use crate::event::Owner;
use crate::isn::Secret;
use crate::neighbours::Way;
use crate::path_search::Search;
use crate::teardown::{Connection, State};
use crate::time_wait::Remains;
use crate::{Count, FlowOptions, SlowPath};
use base::{Duration, Instant, SeqNumber};
use congestion::{Algorithm, Window};
use flow::{AccurateEcn, Command, FlowId, Install, InstallError, Timeouts, state};
use shm::half_flags;
use std::net::IpAddr;
use wire::{
    FourTuple, IpParameters, MacAddr, TcpFlags, TcpHeader, TcpOptions, TcpPacket, Timestamps, TxChecksum,
    emit_tcp,
};

/// Room for any control segment: Ethernet with tag, IPv6, TCP with all its options.
pub(crate) const SEGMENT_MAX: usize = 18 + 40 + 60;
/// MSS of a peer that sends no MSS option (RFC 9293 MUST-15: 536 for IPv4, 1220 for IPv6).
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;
/// The least segment size that an application can ask for: Linux's `TCP_MIN_MSS`.
pub(crate) const MSS_MIN: u16 = 88;
/// Least segment size, options included, that a peer's MSS option can make us send: Linux's `tcp_min_snd_mss`.
const SND_MSS_MIN: u16 = 48;
/// Bytes of the timestamps option with its padding.
pub(crate) const TIMESTAMPS_LEN: u16 = 12;

/// "If the timer expires awaiting the ACK of a SYN segment ..., the RTO MUST be re-initialized to 3 seconds when data transmission
/// begins" (RFC 6298 section 5.7).
const RTO_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// The result of both ends' SYN options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Negotiated {
    /// Payload bytes of a full segment, with options already subtracted.
    pub(crate) mss: u16,
    /// `state::{TIMESTAMPS, SACK, ECN}`.
    pub(crate) features: u32,
    /// Accurate ECN; agreed on only with `state::ECN`.
    pub(crate) accurate: AccurateEcn,
    /// The peer says that our SYN or SYN-ACK arrived with a congestion mark: the first window is small.
    pub(crate) is_marked: bool,
    /// Both ends sent a window scale option.
    pub(crate) is_scaled: bool,
    /// The peer's window shift and ours; 0 when scaling was not agreed on.
    pub(crate) shifts: (u8, u8),
    /// The peer's latest timestamp; 0 without timestamps.
    pub(crate) ts_recent: u32,
    /// Differentiated services code point of our segments, as the socket asked.
    pub(crate) dscp: u8,
}

impl Negotiated {
    /// What an acknowledgement or RST in SYN-RECEIVED contains.
    pub(crate) fn remains(
        &self,
        secret: &Secret,
        tuple: FourTuple,
        iss: SeqNumber,
        irs: SeqNumber,
    ) -> Remains {
        let ts_recent = (self.features & state::TIMESTAMPS != 0).then_some(self.ts_recent);
        let ts_offset = secret.timestamp_offset(&tuple);
        Remains { snd_nxt: iss.plus(1), rcv_nxt: irs.plus(1), ts_recent, ts_offset, dscp: self.dscp }
    }
}

/// A connection with a completed handshake, to be installed as a flow.
#[derive(Debug)]
pub(crate) struct Born {
    pub(crate) tuple: FourTuple,
    pub(crate) owner: Owner,
    pub(crate) snd_nxt: SeqNumber,
    pub(crate) rcv_nxt: SeqNumber,
    pub(crate) snd_wnd: u32,
    pub(crate) negotiated: Negotiated,
    pub(crate) rtt: Option<Duration>,
    /// Times that our segment of the handshake was sent again: if any, the first data timeout is longer.
    pub(crate) repeats: u8,
    /// Time from the first sending of our segment until it was answered.
    pub(crate) took: Duration,
    /// Time from which on the peer may have reset the connection.
    pub(crate) since: Instant,
    pub(crate) mac: MacAddr,
    pub(crate) options: FlowOptions,
    /// We have sent the first SYN: the peer waits for our acknowledgement of its own.
    pub(crate) is_active: bool,
}

/// Number and duration of the timeouts of a handshake that took `took`, with our segment sent `repeats` times again, first after
/// `patience`. A segment repeated earlier than that was no timeout: it answered the peer's repeated SYN.
pub(crate) fn timeouts(repeats: u8, took: Duration, patience: Duration) -> (u32, Timeouts) {
    if repeats == 0 || took < patience {
        return (0, Timeouts::default());
    }
    let repair = Duration::from_ns(took.as_ns() - patience.as_ns());
    (u32::from(repeats), Timeouts::of_handshake(repair))
}

/// How the next hop's Ethernet address is found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Via {
    /// By the route to the destination; the frame waits for the neighbour's answer if its address is not known.
    Route,
    /// The frame answers one from this Ethernet address, which is used unless the neighbour is known: so a flood of packets with false
    /// sources causes no ARP requests.
    Reply(MacAddr),
}

/// A TCP segment without data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Our end is `src`.
    pub(crate) tuple: FourTuple,
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
    pub(crate) flags: TcpFlags,
    pub(crate) window: u16,
    pub(crate) options: TcpOptions,
    pub(crate) dscp: u8,
}

impl SlowPath {
    /// The MSS that we announce to this peer: bytes in one segment that our link takes.
    pub(crate) fn own_mss(&self, peer: IpAddr) -> u16 {
        self.config.mtu.saturating_sub(if peer.is_ipv4() { 40 } else { 60 }).max(MSS_MIN)
    }

    /// Options of our first SYN.
    pub(crate) fn syn_options(&self, now: Instant, tuple: &FourTuple, asked: &FlowOptions) -> TcpOptions {
        let flow = self.flow_config();
        TcpOptions {
            mss: Some(asked.mss(self.own_mss(tuple.dst.addr))),
            window_scale: flow.window_scaling.then(|| flow.window_shift()),
            sack_permitted: flow.sack,
            timestamps: flow.timestamps.then(|| self.timestamps(now, tuple, 0)),
            ..TcpOptions::NONE
        }
    }

    /// Options of our answer to a SYN: only what the peer offered (RFC 7323 sections 2.2 and 3.2).
    pub(crate) fn syn_ack_options(
        &self,
        now: Instant,
        tuple: &FourTuple,
        agreed: &Negotiated,
        asked: &FlowOptions,
    ) -> TcpOptions {
        let has_timestamps = agreed.features & state::TIMESTAMPS != 0;
        TcpOptions {
            mss: Some(asked.mss(self.own_mss(tuple.dst.addr))),
            window_scale: agreed.is_scaled.then_some(agreed.shifts.1),
            sack_permitted: agreed.features & state::SACK != 0,
            timestamps: has_timestamps.then(|| self.timestamps(now, tuple, agreed.ts_recent)),
            ..TcpOptions::NONE
        }
    }

    /// Our timestamp towards this peer, in milliseconds as `flow::Cold::timestamp`, with `echo`.
    pub(crate) fn timestamps(&self, now: Instant, tuple: &FourTuple, echo: u32) -> Timestamps {
        let value = (now.as_ms() as u32).wrapping_add(self.secret.timestamp_offset(tuple));
        Timestamps { value, echo }
    }

    /// Sets, for later handshakes, whether ECN is agreed to at all, and whether our own SYN asks for it.
    pub const fn set_ecn(&mut self, agrees: bool, asks: bool) {
        self.is_ecn_on = agrees;
        self.config.asks_ecn = asks;
    }

    /// The algorithm that a connection with these options gets.
    pub(crate) fn algorithm(&self, asked: &FlowOptions) -> Algorithm {
        asked.algorithm.unwrap_or(self.config.algorithm)
    }

    /// The options agreed on with the sender of `packet`, a SYN or SYN-ACK, and what is agreed about ECN: `ecn`.
    pub(crate) fn negotiate(&self, packet: &TcpPacket, asked: &FlowOptions, ecn: Agreed) -> Negotiated {
        let (flow, options) = (self.flow_config(), &packet.options);
        let mut features = if ecn.has_ecn { state::ECN } else { 0 };
        if flow.timestamps && options.timestamps.is_some() {
            features |= state::TIMESTAMPS;
        }
        if flow.sack && options.sack_permitted {
            features |= state::SACK;
        }
        let shift = options.window_scale.filter(|_| flow.window_scaling);
        let default = if packet.ip.src.is_ipv4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 };
        // As in Linux, an MSS of 0 counts as no option.
        let peer = options.mss.filter(|mss| *mss > 0).unwrap_or(default);
        let mss = peer.max(SND_MSS_MIN).min(asked.mss(self.own_mss(packet.ip.src)));
        let has_timestamps = features & state::TIMESTAMPS != 0;
        Negotiated {
            mss: mss - if has_timestamps { TIMESTAMPS_LEN } else { 0 },
            features,
            accurate: ecn.accurate,
            is_marked: false,
            is_scaled: shift.is_some(),
            shifts: shift.map_or((0, 0), |peer| (peer, flow.window_shift())),
            ts_recent: options.timestamps.map_or(0, |t| t.value),
            dscp: asked.dscp(packet.ip.src),
        }
    }

    /// Sends a segment without data. False when it could not be sent.
    #[must_use]
    pub(crate) fn send_segment(&mut self, now: Instant, core: u8, segment: &Segment, via: Via) -> bool {
        let mut buffer = [0; SEGMENT_MAX];
        let s = segment;
        let (src_port, dst_port) = (s.tuple.src.port, s.tuple.dst.port);
        let Segment { seq, ack, flags, window, .. } = *s;
        let header = TcpHeader { src_port, dst_port, seq, ack, flags, window, urgent: 0 };
        let mut parameters = IpParameters::new(self.config.mac, MacAddr::ZERO);
        (parameters.hop_limit, parameters.dscp) = (self.flow_config().hop_limit, s.dscp);
        let written = emit_tcp(&parameters, &s.tuple, &header, &s.options, 0, TxChecksum::Full, &mut buffer);
        let Ok(len) = written else { return false };
        self.send_ip(now, core, s.tuple.dst.addr, &mut buffer[..len], via)
    }

    /// Sends a frame that is complete except for the destination's Ethernet address, its first six bytes.
    #[must_use]
    pub(crate) fn send_ip(
        &mut self,
        now: Instant,
        core: u8,
        dst: IpAddr,
        frame: &mut [u8],
        via: Via,
    ) -> bool {
        let Some(route) = self.routes.lookup(dst) else {
            self.counters.add(Count::NoRoute);
            return false;
        };
        let mac = match via {
            Via::Reply(mac) => self.neighbours.known(route.next_hop).unwrap_or(mac),
            Via::Route => match self.neighbours.way(now, route.next_hop, core, frame) {
                Way::Known(mac) => mac,
                Way::Stale(mac) => {
                    self.ask_neighbour(now, core, route.next_hop, Some(mac));
                    mac
                }
                Way::Ask => {
                    self.ask_neighbour(now, core, route.next_hop, None);
                    return true;
                }
                Way::Waits => return true,
                Way::Lost => {
                    self.counters.add(Count::NeighbourUnresolved);
                    return false;
                }
            },
        };
        frame[..6].copy_from_slice(&mac.0);
        self.send_frame(core, frame)
    }

    /// Sends a complete frame. False when it could not be sent.
    #[must_use]
    pub(crate) fn send_frame(&mut self, core: u8, frame: &[u8]) -> bool {
        let is_taken = self.output.send(core, frame);
        if !is_taken {
            self.counters.add(Count::CoreBusy);
        }
        is_taken
    }

    /// Installs a connection as a flow of the fast path and tells its application.
    pub(crate) fn give_birth(&mut self, now: Instant, born: &Born) -> Result<FlowId, InstallError> {
        let Born { tuple, owner, negotiated, .. } = *born;
        let region = self.region(owner.region).ok_or(InstallError::Malformed)?;
        if usize::from(owner.core) >= self.output.cores() {
            return Err(InstallError::Malformed);
        }
        let algorithm = self.algorithm(&born.options);
        let mss = self.path_mss(now, tuple.dst.addr, negotiated.mss, negotiated.features);
        let window = Window::new(algorithm, mss, now);
        let install = Install {
            tuple,
            peer_mac: born.mac,
            core: owner.core,
            region: owner.region,
            slot: owner.slot,
            snd_nxt: born.snd_nxt,
            rcv_nxt: born.rcv_nxt,
            rcv_wnd: born.options.syn_window(self.flow_config()),
            snd_wnd: born.snd_wnd,
            mss,
            shifts: negotiated.shifts,
            features: negotiated.features,
            accurate: negotiated.accurate.established(born.is_active),
            ts_recent: negotiated.ts_recent,
            ts_offset: self.secret.timestamp_offset(&tuple),
            rtt: born.rtt,
            window: if born.repeats > 1 || negotiated.is_marked {
                window.after_lost_handshake()
            } else {
                window
            },
            pace_rate: 0,
        };
        let flow = self.keeper.install(now, &install, &region)?;
        if algorithm.needs_ecn() && negotiated.features & state::ECN == 0 {
            self.counters.add(Count::WithoutEcn);
        }
        if born.repeats > 0 {
            let timeouts = timeouts(born.repeats, born.took, self.config.syn_timeout);
            self.with_flow(flow, |parts| {
                parts.cold.rto = RTO_AFTER_LOST_SYN;
                (parts.cold.counters.timeouts, parts.cold.timeouts) = timeouts;
            });
        }
        let next_hop = self.routes.lookup(tuple.dst.addr).map_or(tuple.dst.addr, |route| route.next_hop);
        let mut connection = Connection::new(tuple, owner, next_hop, State::Established);
        connection.birth = self.note_birth(flow);
        connection.search = Search::new(negotiated.mss);
        self.connections.insert(flow, connection);
        if mss < negotiated.mss {
            self.born_lowered(now, flow);
        }
        self.by_tuple.insert(tuple, flow);
        self.set_options(now, flow, &born.options);
        self.raise(owner.region, owner.slot, half_flags::OPEN);
        // With accurate ECN a pure acknowledgement, which goes before data, says how the peer's SYN-ACK arrived.
        let is_greeting = born.is_active && negotiated.accurate.is_agreed();
        if is_greeting {
            self.output.command(owner.core, Command::Ack { flow });
        }
        // The application may have written, or closed, already.
        self.output.command(owner.core, Command::Transmit { flow });
        if born.is_active && !is_greeting {
            self.output.command(owner.core, Command::Ack { flow });
        }
        if self.keeper.flows().reset_lost_at().is_some_and(|lost_at| born.since <= lost_at) {
            // The lost RST may have been for this connection: after an acknowledgement a peer that has no such connection sends another.
            self.output.command(owner.core, Command::Ack { flow });
        }
        Ok(flow)
    }
}
