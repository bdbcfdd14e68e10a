//! Path MTU: messages of routers (RFC 1191, RFC 8201), detection of black holes (RFC 4821), and probing for larger sizes.
//!
//! Probes are segments of real data, longer than the others, that a core sends at our command; the fast path knows no more of path MTU
//! than that. The loss of a probe is repaired and counted as any other.

use crate::path_cache::EXPIRY;
use crate::timeouts::Timer;
use crate::{Count, SlowPath};
use base::{Duration, Instant};
use flow::{Command, FlowId, FlowMut, PathProbe, state};
use std::net::IpAddr;
use wire::QuotedFlow;

/// RFC 791: every link takes 68 bytes; Linux believes no IPv4 path below 552 (its `min_pmtu`).
const MTU_MIN_V4: u32 = 552;
/// RFC 8200 section 5: every IPv6 link takes 1280 bytes.
const MTU_MIN_V6: u32 = 1280;
/// RFC 4821 section 7.2: "an appropriate value for the minimum ... 1024 bytes"; Linux's `tcp_base_mss`.
const MTU_BASE_V4: u32 = 1024 + 40;
/// Consecutive timeouts after which segments are suspected to be too large: Linux's `tcp_retries1`.
const SUSPECT_AFTER: u8 = 3;
/// Least time between two probes: enough to repair a lost one; on the longest paths 8 round trips are used instead.
const PROBE_INTERVAL: Duration = Duration::from_ms(200);
/// Time until a probe is tried again if there was not enough data for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of the IP and TCP headers without options.
const fn headers(is_v4: bool) -> u16 {
    if is_v4 { 40 } else { 60 }
}

const fn options(flags: u32) -> u16 {
    if flags & state::TIMESTAMPS != 0 { 12 } else { 0 }
}

/// Result of a probe, or of an attempt to send one.
enum Step {
    /// No data is in flight: wait until the flow sends again.
    Idle,
    /// The probe is in flight, or the flow is repairing losses.
    Wait,
    /// The core did not have enough data, or window, to send the probe.
    NotSent,
    Arrived,
    Lost,
    /// Send a probe of this size now.
    Probe(u16),
    /// No larger size is left to probe for now.
    Over,
}

impl SlowPath {
    /// Payload bytes of a full segment to `to`, at most `mss`, with what is known of the path.
    pub(crate) fn path_mss(&self, now: Instant, to: IpAddr, mss: u16, features: u32) -> u16 {
        let all = headers(to.is_ipv4()) + options(features);
        self.paths.mtu(now, to).map_or(mss, |mtu| mss.min(mtu.saturating_sub(all)))
    }

    /// Handles an ICMP message that a packet of `flow`, which it quotes, was larger than `mtu`.
    pub(crate) fn on_too_big(&mut self, now: Instant, flow: FlowId, quoted: &QuotedFlow, mtu: u32) {
        let to = quoted.tuple.dst.addr;
        let is_v4 = to.is_ipv4();
        // "A node MUST NOT reduce its estimate of the Path MTU below the IPv6 minimum link MTU" (RFC 8201 section 4): such a
        // message is discarded. IPv4 routers older than RFC 1191 say 0.
        let is_quoted = self.with_flow(flow, |parts| {
            quoted.seq.is_within(parts.tx.snd_una, parts.tx.snd_max.since(parts.tx.snd_una))
        });
        if !is_quoted || !is_v4 && mtu < MTU_MIN_V6 || !self.path_limit.take(now, &self.secret, to) {
            return self.counters.add(Count::StrayIcmp);
        }
        let mtu = mtu.max(if is_v4 { MTU_MIN_V4 } else { MTU_MIN_V6 }).min(0xFFFF) as u16;
        let Some(connection) = self.connections.get_mut(&flow).filter(|c| !c.is_over) else { return };
        if is_v4 && connection.options.may_fragment {
            return;
        }
        let flags = self.keeper.lock(flow).parts().rx.flags;
        let mss = mtu - headers(is_v4) - options(flags);
        // Each packet in flight may cause a message of its own: only the first changes anything. "A node MUST NOT increase its estimate
        // of the Path MTU in response to the contents of a Packet Too Big message"; but the message may be about a probe.
        if !lower(now, &mut self.keeper.lock(flow).parts(), mss) {
            return connection.search.limit(mss);
        }
        connection.search.suspect();
        let core = connection.owner.core;
        self.paths.learn(now, to, mtu);
        self.counters.add(Count::PathMtuLowered);
        self.output.command(core, Command::Transmit { flow });
        self.search_at(flow, now.plus(EXPIRY));
    }

    /// The flow has timed out `backoff` times in a row: its segments may be lost because they are too large (RFC 4821 section 7.7.1,
    /// "full-stop timeouts"). Called after the rewind, so that the next segment is small already.
    pub(crate) fn suspect_path(&mut self, now: Instant, flow: FlowId, backoff: u8) {
        let may_suspect = self.config.black_hole_detection && backoff >= SUSPECT_AFTER;
        let Some(connection) = self.connections.get_mut(&flow).filter(|_| may_suspect) else { return };
        let is_v4 = connection.tuple.dst.addr.is_ipv4();
        let (base, least) = if is_v4 { (MTU_BASE_V4, MTU_MIN_V4) } else { (MTU_MIN_V6, MTU_MIN_V6) };
        let mut guard = self.keeper.lock(flow);
        let mut parts = guard.parts();
        let size = |mtu: u32| mtu as u16 - headers(is_v4) - options(parts.rx.flags);
        // A segment that is not full may be too large as well: with an MSS of 9,000 bytes most segments are not full.
        let largest = parts.tx.snd_max.since(parts.tx.snd_una).min(u32::from(parts.tx.mss));
        let mss = if u32::from(size(base)) < largest { size(base) } else { size(least) };
        let is_lowered = u32::from(mss) < largest && lower(now, &mut parts, mss);
        drop(guard);
        if is_lowered {
            connection.search.suspect();
            self.counters.add(Count::BlackHolesSuspected);
            self.search_at(flow, now.plus(PROBE_INTERVAL));
        }
    }

    fn search_at(&mut self, flow: FlowId, at: Instant) {
        let Some(connection) = self.connections.get_mut(&flow) else { return };
        if let Some(old) = connection.path_timer.take() {
            self.wheel.cancel(old);
        }
        connection.search.is_timed = true;
        connection.path_timer = Some(self.wheel.set(at, Timer::Path(flow)));
    }

    /// A new flow starts with a smaller size than both ends allow: probe when the knowledge about its path has expired.
    pub(crate) fn born_lowered(&mut self, now: Instant, flow: FlowId) {
        if let Some(connection) = self.connections.get_mut(&flow) {
            connection.search.suspect();
            self.search_at(flow, now.plus(EXPIRY));
        }
    }

    /// The flow sends again after a pause that suspended its search.
    pub(crate) fn resume_search(&mut self, now: Instant, flow: FlowId) {
        let search = self.connections.get(&flow).map(|c| c.search);
        if search.is_some_and(|search| search.is_lowered && !search.is_timed) {
            self.search_at(flow, now.plus(PROBE_INTERVAL));
        }
    }

    pub(crate) fn on_path_timer(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow) else { return };
        connection.path_timer = None;
        let (core, to) = (connection.owner.core, connection.tuple.dst.addr);
        let search = &mut connection.search;
        search.is_timed = false;
        let mut guard = self.keeper.lock(flow);
        let mut parts = guard.parts();
        let (mss, features) = (parts.tx.mss, parts.rx.flags);
        let pause = Duration::from_us(8 * u64::from(parts.cold.srtt_us)).max(PROBE_INTERVAL);
        let step = match search.probe {
            None if parts.tx.snd_una == parts.tx.snd_max => Step::Idle,
            None if parts.rx.has(state::RECOVERY) || parts.cold.backoff > 0 => Step::Wait,
            None => search.candidate(mss).map_or(Step::Over, Step::Probe),
            Some(_) => outcome(&parts),
        };
        if let Step::Arrived = step {
            let len = parts.cold.path_probe.len;
            parts.resize(now, len);
        }
        if matches!(step, Step::Arrived | Step::Lost | Step::Probe(_)) {
            parts.cold.path_probe = PathProbe::default();
        }
        drop(guard);
        let next = match step {
            Step::Idle => return,
            Step::Wait => pause,
            Step::Arrived => {
                let len = search.probe.unwrap_or(mss);
                let is_all = search.arrived(len);
                self.paths.forget(to);
                self.counters.add(Count::PathProbesArrived);
                if is_all {
                    return;
                }
                pause
            }
            Step::Lost => {
                search.lost(search.probe.unwrap_or(mss));
                self.counters.add(Count::PathProbesLost);
                pause
            }
            Step::Probe(len) => {
                search.probe = Some(len);
                self.output.command(core, Command::ProbePath { flow, len });
                pause
            }
            Step::NotSent => {
                search.probe = None;
                PATIENCE
            }
            Step::Over => {
                // New connections start with the size found; this one probes again when the path may have changed.
                self.paths.learn(now, to, mss + headers(to.is_ipv4()) + options(features));
                search.suspect();
                EXPIRY
            }
        };
        self.search_at(flow, now.plus(next));
    }
}

/// Result of the probe that the core was told to send.
fn outcome(parts: &FlowMut<'_>) -> Step {
    let probe = parts.cold.path_probe;
    if probe.len == 0 {
        Step::NotSent
    } else if probe.is_lost {
        Step::Lost
    } else if parts.tx.snd_una.is_before(probe.end) {
        Step::Wait
    } else {
        Step::Arrived
    }
}

/// Reduces the segment size and retransmits the data in flight at once. It was lost because of its size, so the congestion window
/// stays (RFC 8201 section 5.4). False, and nothing changed, when segments are that small already.
fn lower(now: Instant, parts: &mut FlowMut<'_>, mss: u16) -> bool {
    let is_lower = mss < parts.tx.mss;
    if is_lower {
        parts.resize(now, mss);
        parts.tx.rewind();
        parts.rx.clear(state::TIMING | state::RECOVERY | state::RESEND);
        parts.cold.progress_at = now;
        parts.cold.path_probe = PathProbe::default();
    }
    is_lower
}
