//! `TCP_INFO` of a connection.

use crate::teardown::State;
use crate::{Feedback, SlowPath};
use base::{Duration, Instant};
use congestion::Algorithm;
use control::{TcpInfo, tcp_state};
use flow::{Episode, FlowId, FlowMut, state};
use std::sync::atomic::Ordering;

/// `snd_ssthresh` as long as no loss has set the threshold: Linux's `TCP_INFINITE_SSTHRESH`.
const SSTHRESH_INFINITE: u32 = 0x7FFF_FFFF;
/// Values of `ca_state`, as Linux numbers them.
const CA_DISORDER: u8 = 1;
const CA_REDUCED: u8 = 2;
const CA_RECOVERY: u8 = 3;
const CA_LOSS: u8 = 4;

impl SlowPath {
    /// `TCP_INFO` of a live flow.
    #[must_use]
    pub fn info(&self, now: Instant, flow: FlowId) -> Option<TcpInfo> {
        let connection = self.connections.get(&flow)?;
        let info = self.with_flow(flow, |parts| {
            let mut info = TcpInfo::default();
            sender(now, parts, &mut info);
            receiver(now, parts, self.flow_config(), &mut info);
            counted(now, parts, &mut info);
            let position = parts.tx.tx_una + u64::from(parts.tx.snd_max.since(parts.tx.snd_una));
            info.notsent_bytes = self.unsent(connection.owner.region, connection.owner.slot, position);
            let is_v4 = !parts.rx.has(state::V6);
            let options = if parts.rx.has(state::TIMESTAMPS) { 12 } else { 0 };
            info.pmtu = info.snd_mss + options + if is_v4 { 40 } else { 60 };
            let link = self.own_mss(connection.tuple.dst.addr);
            info.advmss = u32::from(connection.options.mss(link)) - options;
            let is_fin_sent = parts.rx.has(state::FIN_SENT);
            let step = crate::Step::FinSent;
            let now = if is_fin_sent { connection.state.next(step) } else { connection.state };
            info.state = number_of(now);
            info.probes = connection.probes.unanswered(parts.cold.heard_at);
            info
        });
        Some(info)
    }

    /// `TCP_INFO` of the connection, or active open, in a slot.
    #[must_use]
    pub fn slot_info(&self, now: Instant, region: u16, slot: u32) -> Option<TcpInfo> {
        if let Some(opening) = self.opening_at.get(&(region, slot)).and_then(|id| self.openings.get(id)) {
            let link = u32::from(self.own_mss(opening.tuple.dst.addr));
            let took = now.since(opening.sent_at);
            let (timeouts, repair) = crate::handshake::timeouts(opening.tries, took, self.config.syn_timeout);
            let state = if opening.crossed.is_some() { State::SynReceived } else { State::SynSent };
            return Some(TcpInfo {
                state: number_of(state),
                rto: micros(opening.timeout(&self.config)),
                retransmits: opening.tries,
                rcv_mss: 536,
                unacked: 1,
                advmss: link,
                total_rto: timeouts as u16,
                total_rto_recoveries: repair.episodes,
                total_rto_time: repair.ms_until(now),
                ..TcpInfo::unconnected()
            });
        }
        let flow = self.region(region)?.flow_of(slot)?;
        let owner = self.connections.get(&flow)?.owner;
        if (owner.region, owner.slot) == (region, slot) { self.info(now, flow) } else { None }
    }

    /// The congestion control algorithm of the connection, or active open, in a slot.
    #[must_use]
    pub fn slot_algorithm(&self, region: u16, slot: u32) -> Option<Algorithm> {
        let opening = self.opening_at.get(&(region, slot)).and_then(|id| self.openings.get(id));
        if let Some(opening) = opening {
            return Some(opening.options.algorithm.unwrap_or(self.config.algorithm));
        }
        let flow = self.region(region)?.flow_of(slot)?;
        Some(self.with_flow(flow, |parts| parts.cold.window.algorithm()))
    }

    /// How congestion marks are fed back in the connection in a slot; `None` while it is not established.
    #[must_use]
    pub fn slot_feedback(&self, region: u16, slot: u32) -> Option<Feedback> {
        let flow = self.region(region)?.flow_of(slot)?;
        Some(self.with_flow(flow, |parts| match () {
            () if !parts.rx.has(state::ECN) => Feedback::None,
            () if parts.cold.accurate.is_agreed() => Feedback::Accurate,
            () if parts.rx.has(state::EXACT_ECN) => Feedback::Dctcp,
            () => Feedback::Classic,
        }))
    }

    /// Bytes that the application has published after `position`. Its half may hold any value, so the result is bounded.
    fn unsent(&self, region: u16, slot: u32, position: u64) -> u32 {
        let Some(region) = self.region(region) else { return 0 };
        // Relaxed: the number is for display only.
        let head = region.halves(slot).map_or(0, |(_, app)| app.tx_head.load(Ordering::Relaxed));
        head.saturating_sub(position).min(u64::from(base::limits::RING_MAX)) as u32
    }
}

/// Fills in the sending side: bytes in flight, windows, rates.
fn sender(now: Instant, parts: &FlowMut<'_>, info: &mut TcpInfo) {
    let (rx, tx, cold) = (&*parts.rx, &*parts.tx, &*parts.cold);
    let mss = u32::from(tx.mss).max(1);
    let segments = |bytes: u32| bytes.div_ceil(mss);
    let outstanding = tx.snd_max.since(tx.snd_una);
    let losses = &cold.recovery;
    // A timeout that the core has yet to carry out. Retransmitted data counts as lost until it is acknowledged, as on Linux.
    let is_overdue = tx.snd_nxt.is_before(tx.snd_max);
    let lost = if is_overdue { outstanding.saturating_sub(losses.held) } else { losses.lost + losses.again };
    info.ca_state = match () {
        () if is_overdue || losses.episode == Episode::Timeout => CA_LOSS,
        () if rx.has(state::RECOVERY) => CA_RECOVERY,
        () if rx.has(state::SEND_CWR) => CA_REDUCED,
        () if losses.held > 0 || rx.dup_acks > 0 => CA_DISORDER,
        () => 0,
    };
    (info.backoff, info.options) = (cold.backoff, options(parts));
    info.retransmits = if rx.has(state::BLOCKED) { 0 } else { cold.backoff };
    info.wscale = TcpInfo::shifts(tx.snd_shift, rx.rcv_shift);
    info.rto = micros(cold.rto.times(1 << cold.backoff.min(16)));
    (info.snd_mss, info.unacked, info.sacked) = (mss, segments(outstanding), segments(losses.held));
    (info.lost, info.retrans) = (segments(lost), segments(losses.again));
    (info.rtt, info.rttvar) = (cold.srtt_us, cold.rttvar_us);
    info.min_rtt = cold.rtt_us_min;
    info.snd_cwnd = (tx.cwnd / mss).max(1);
    let ssthresh = cold.window.ssthresh();
    info.snd_ssthresh = if ssthresh == u32::MAX { SSTHRESH_INFINITE } else { (ssthresh / mss).max(1) };
    (info.reordering, info.snd_wnd) = (u32::from(losses.reordering), tx.snd_wnd);
    (info.reord_seen, info.dsack_dups) = (losses.reorderings, losses.duplicates);
    info.last_data_sent = millis(sent_ago(now, cold));
    info.delivery_rate = cold.delivery_rate;
    let of_program = cold.program.as_ref().and_then(|program| program.is_app_limited());
    let is_limited = of_program.unwrap_or(rx.flags & (state::CWND_FULL | state::WINDOW_FULL) == 0);
    info.delivery_rate_app_limited = u8::from(is_limited);
    // A flow that is not paced: Linux's estimate in slow start is twice the window per round trip.
    let rate = u64::from(tx.cwnd) * 1_000_000 / u64::from(cold.srtt_us.max(1));
    info.pacing_rate = if cold.pace_rate > 0 { cold.pace_rate } else { 2 * rate };
    info.max_pacing_rate = if cold.pace_most > 0 { cold.pace_most } else { u64::MAX };
    delays(now, parts, info);
}

/// Fills in Linux's chronographs, up to `now`: time with data in flight or blocked, and of that the time limited by the peer's window
/// and by the application's send buffer.
fn delays(now: Instant, parts: &FlowMut<'_>, info: &mut TcpInfo) {
    let (rx, cold) = (&*parts.rx, &*parts.cold);
    let is_out = parts.tx.in_flight() > 0;
    let mut delays = cold.delays;
    if rx.has(state::WINDOW_FULL) {
        delays.add_window(now, !is_out);
    }
    delays.add_buffer(now);
    let lately = if is_out { now.since(cold.progress_at) } else { Duration::ZERO };
    let busy = Duration::from_ns(cold.busy_ns).plus(lately).plus(delays.alone);
    info.busy_time = busy.as_us();
    (info.rwnd_limited, info.sndbuf_limited) = (delays.window.as_us(), delays.buffer.as_us());
}

/// How long ago data was last sent, to a sixteenth of a round trip. The record has that time in microseconds modulo 2^32 (71 minutes),
/// so `progress_at`, which is not much later, tells which turn of the clock is meant.
fn sent_ago(now: Instant, cold: &flow::Cold) -> Duration {
    let before = (cold.progress_at.as_us() as u32).wrapping_sub(cold.sent_at);
    if before < 1 << 31 {
        now.since(cold.progress_at).plus(Duration::from_us(u64::from(before)))
    } else {
        Duration::from_us(u64::from((now.as_us() as u32).wrapping_sub(cold.sent_at)))
    }
}

fn receiver(now: Instant, parts: &FlowMut<'_>, config: &flow::Config, info: &mut TcpInfo) {
    let (rx, cold) = (&*parts.rx, &*parts.cold);
    info.rcv_mss = u32::from(cold.rcv_mss);
    info.ato = micros(config.delayed_ack);
    info.rcv_wnd = rx.rcv_edge.since(rx.rcv_nxt);
    (info.rcv_ssthresh, info.rcv_space) = (1 << rx.window_log2.min(30), 1 << rx.window_log2.min(30));
    info.rcv_rtt = cold.rcv_rtt_us;
    info.last_ack_recv = millis(now.since(cold.heard_at));
    info.last_data_recv = info.last_ack_recv;
}

/// Fills in the counters of the flow so far.
fn counted(now: Instant, parts: &FlowMut<'_>, info: &mut TcpInfo) {
    let (rx, tx, cold) = (&*parts.rx, &*parts.tx, &*parts.cold);
    let counters = &cold.counters;
    let mss = u64::from(tx.mss).max(1);
    (info.segs_in, info.segs_out) = (counters.segments_in, counters.segments_out);
    (info.data_segs_in, info.data_segs_out) = (counters.data_in, counters.data_out);
    (info.total_retrans, info.bytes_retrans) = (counters.retransmits, counters.retransmitted_bytes);
    (info.bytes_acked, info.bytes_received) = (tx.tx_una, rx.rx_head);
    info.bytes_sent = tx.tx_una + u64::from(tx.snd_max.since(tx.snd_una)) + counters.retransmitted_bytes;
    info.delivered = tx.tx_una.div_ceil(mss) as u32;
    info.delivered_ce = counters.marked_bytes.div_ceil(mss) as u32;
    if cold.accurate.is_agreed() {
        info.delivered_ce = cold.accurate.heard();
        info.received_ce = cold.accurate.received();
    }
    info.rcv_ooopack = counters.out_of_order;
    info.total_rto = counters.timeouts.min(u32::from(u16::MAX)) as u16;
    info.total_rto_recoveries = cold.timeouts.episodes;
    info.total_rto_time = cold.timeouts.ms_until(now);
}

fn options(parts: &FlowMut<'_>) -> u8 {
    let has = |bit, value| if parts.rx.has(bit) { value } else { 0 };
    let scaled = if parts.tx.snd_shift | parts.rx.rcv_shift > 0 { 4 } else { 0 };
    has(state::TIMESTAMPS, 1) | has(state::SACK, 2) | scaled | has(state::ECN, 8)
}

fn micros(d: Duration) -> u32 {
    d.as_us().min(u64::from(u32::MAX)) as u32
}

fn millis(d: Duration) -> u32 {
    d.as_ms().min(u64::from(u32::MAX)) as u32
}

/// Linux's number of a TCP state.
const fn number_of(state: State) -> u8 {
    match state {
        State::Listen => tcp_state::LISTEN,
        State::SynSent => tcp_state::SYN_SENT,
        State::SynReceived => tcp_state::SYN_RECV,
        State::Established => tcp_state::ESTABLISHED,
        State::FinWait1 => tcp_state::FIN_WAIT1,
        State::FinWait2 => tcp_state::FIN_WAIT2,
        State::CloseWait => tcp_state::CLOSE_WAIT,
        State::Closing => tcp_state::CLOSING,
        State::LastAck => tcp_state::LAST_ACK,
        State::TimeWait => tcp_state::TIME_WAIT,
        State::Closed => tcp_state::CLOSE,
    }
}
