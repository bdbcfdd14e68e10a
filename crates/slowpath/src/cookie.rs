//! SYN cookies (RFC 4987 section 3.6): if more SYNs come than a listener may keep half-open connections, no state is kept for
//! them. Our initial sequence number proves the handshake, our timestamp carries the options.
//!
//! ```text
//!   ISS     31                                      3 2     0      our TSval  31                   6 5   4    3    0
//!           +----------------------------------------+-------+                +---------------------+---+----+------+
//!           | 29 bits of SipHash(ends, SEG.SEQ,      | MSS   |                | clock, rounded down |ECN|SACK| shift|
//!           |   minute, MSS class) by the secret     | class |                | in steps of 64 ms   |   |    | or 15|
//!           +----------------------------------------+-------+                +---------------------+---+----+------+
//! ```
//! The acknowledgement proves that its sender received our SYN-ACK within the last two minutes; a blind sender guesses it once in
//! 2^28 segments. Without timestamps, window scaling, SACK and ECN cannot be carried and are not agreed on.
//!
//! A SYN is answered once, without a timer: no more packets are sent than received, and the peer repeats its SYN by itself.

use crate::handshake::{MSS_MIN, Negotiated, Segment, TIMESTAMPS_LEN, Via};
use crate::isn::{Purpose, Secret};
use crate::listeners::HalfOpen;
use crate::{Count, FlowOptions, SlowPath, source_mac};
use base::{Duration, Instant, SeqNumber};
use flow::{AccurateEcn, Challenged, state};
use wire::{Ecn, Endpoint, FourTuple, TcpPacket, Timestamps};

/// When a listener answers with cookies: Linux's `tcp_syncookies`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SynCookies {
    /// Never: SYNs beyond the limit are dropped.
    Never,
    /// When its half-open connections, or those of all listeners, have reached their limit.
    #[default]
    UnderPressure,
    /// For every SYN, even without pressure.
    Always,
}

/// Segment sizes that a cookie can express: each peer gets the largest that it accepts. The usual ones of Ethernet with and without
/// tunnels, and jumbo frames.
const MSS_CLASSES: [u16; 8] = [MSS_MIN, 536, 1220, 1300, 1400, 1440, 1460, 8940];

/// How long a cookie may be valid: so long after its last cookie a listener checks acknowledgements of no connection.
pub(crate) const RECENT: Duration = Duration::from_secs(120);

/// Value of the shift field when window scaling was not offered.
const NO_SHIFT: u32 = 15;
const SACK_BIT: u32 = 1 << 4;
const ECN_BIT: u32 = 1 << 5;
/// The low bits of the timestamp's clock, which the options replace.
const OPTION_BITS: u32 = 63;

/// The class of the largest size that does not exceed `mss`.
fn class_of(mss: u16) -> u8 {
    MSS_CLASSES.iter().rposition(|&size| size <= mss).unwrap_or(0) as u8
}

fn minute(now: Instant) -> u64 {
    now.as_ms() / 60_000
}

impl Secret {
    /// The cookie: our initial sequence number for the peer's `irs` in that minute.
    fn cookie(&self, minute: u64, tuple: &FourTuple, irs: SeqNumber, class: u8) -> SeqNumber {
        // One number of all three: 29 bits suffice for 1,000 years of minutes.
        let number = minute << 35 | u64::from(class) << 32 | u64::from(irs.0);
        let hash = self.hash_with(Purpose::Cookie, tuple, true, number) as u32;
        SeqNumber(hash << 3 | u32::from(class))
    }

    /// The segment size in `iss`, if `iss` is a cookie of ours from this minute or the last.
    fn check_cookie(&self, now: Instant, tuple: &FourTuple, irs: SeqNumber, iss: SeqNumber) -> Option<u16> {
        let (class, this) = ((iss.0 & 7) as u8, minute(now));
        let is_ours =
            [this, this.saturating_sub(1)].iter().any(|&m| self.cookie(m, tuple, irs, class) == iss);
        is_ours.then_some(MSS_CLASSES[usize::from(class)])
    }
}

/// A timestamp that carries the agreed options in its low bits and is not later than `clock`.
fn stamp(clock: u32, agreed: &Negotiated) -> u32 {
    let bit = |feature, bit| if agreed.features & feature != 0 { bit } else { 0 };
    let shift = if agreed.is_scaled { u32::from(agreed.shifts.0) } else { NO_SHIFT };
    let value = clock & !OPTION_BITS | shift | bit(state::SACK, SACK_BIT) | bit(state::ECN, ECN_BIT);
    if value > clock { value.wrapping_sub(OPTION_BITS + 1) } else { value }
}

impl SlowPath {
    /// True when a SYN is to be answered with a cookie; `is_full`: its listener has no room for a half-open connection.
    pub(crate) fn wants_cookie(&self, is_full: bool) -> bool {
        match self.config.syn_cookies {
            SynCookies::Never => false,
            SynCookies::UnderPressure => {
                is_full || self.listeners.half_open_len() >= self.config.half_open_max
            }
            SynCookies::Always => true,
        }
    }

    /// Answers a SYN with a cookie and keeps no state.
    pub(crate) fn answer_with_cookie(
        &mut self,
        now: Instant,
        core: u8,
        at: Endpoint,
        packet: &TcpPacket,
        frame: &[u8],
    ) {
        let Some(listener) = self.listeners.get_mut(&at) else { return };
        listener.cookie_at = Some(now);
        let (asked, tuple, irs) = (listener.options, packet.tuple().reversed(), packet.header.seq);
        let mut agreed = self.negotiate(packet, &asked, self.answer_ecn(packet, &asked));
        let has_timestamps = agreed.features & state::TIMESTAMPS != 0;
        let class = class_of(agreed.mss + if has_timestamps { TIMESTAMPS_LEN } else { 0 });
        if !has_timestamps {
            (agreed.features, agreed.is_scaled) = (0, false);
        }
        let iss = self.secret.cookie(minute(now), &tuple, irs, class);
        let mut options = self.syn_ack_options(now, &tuple, &agreed, &asked);
        options.timestamps = options.timestamps.map(|t| Timestamps { value: stamp(t.value, &agreed), ..t });
        let flags = agreed.syn_ack_flags(0);
        let window = asked.syn_window(self.flow_config());
        let segment =
            Segment { tuple, seq: iss, ack: irs.plus(1), flags, window, options, dscp: agreed.dscp };
        if self.send_segment(now, core, &segment, Via::Reply(source_mac(frame))) {
            self.counters.add(Count::CookiesSent);
        }
    }

    /// Handles an acknowledgement of no connection, at a listener that has sent cookies. True when it carries a valid cookie: then it
    /// is the final acknowledgement of a handshake.
    pub(crate) fn take_cookie(&mut self, now: Instant, core: u8, packet: &TcpPacket, frame: &[u8]) -> bool {
        let (tuple, header) = (packet.tuple().reversed(), &packet.header);
        let Some(at) = self.listeners.find(&tuple.src) else { return false };
        let Some(listener) = self.listeners.get_mut(&at) else { return false };
        if listener.cookie_at.is_none_or(|sent_at| now.since(sent_at) > RECENT) {
            return false;
        }
        let asked = listener.options;
        let (irs, iss) = (header.seq.minus(1), header.ack.minus(1));
        let mss = self.secret.check_cookie(now, &tuple, irs, iss);
        let Some(negotiated) = mss.and_then(|mss| self.agreed_by_cookie(mss, packet, &asked)) else {
            self.counters.add(Count::CookiesRefused);
            return false;
        };
        let half_open = HalfOpen {
            tuple,
            listener: at,
            iss,
            irs,
            negotiated: Negotiated {
                mss: negotiated.mss.min(asked.mss(u16::MAX)),
                dscp: asked.dscp(tuple.dst.addr),
                ..negotiated
            },
            snd_wnd: 0,
            mac: source_mac(frame),
            core,
            tries: 0,
            is_offered: false,
            is_deferred: false,
            is_from_cookie: true,
            sent_at: now,
            established_at: now,
            challenged: Challenged::NEVER,
            timer: None,
            early: Vec::new(),
        };
        // The accept queue's room bounds connections from cookies: if it is full the acknowledgement is dropped; the peer sends another.
        if self.listeners.get_mut(&at).is_some_and(|listener| listener.room == 0) {
            self.counters.add(Count::AcceptQueueFull);
            return true;
        }
        self.counters.add(Count::CookiesTaken);
        if let Some(id) = self.listeners.open(half_open) {
            self.on_final_ack(now, core, id, packet, frame);
        }
        true
    }

    /// The options agreed on by the SYN-ACK with the cookie, from the echoed timestamp. `None` if they are impossible. ECN is left out if
    /// the listener, with its options `asked`, does not speak it, or not any more: no data of ours will say that it can be marked.
    fn agreed_by_cookie(&self, mss: u16, packet: &TcpPacket, asked: &FlowOptions) -> Option<Negotiated> {
        let plain = Negotiated {
            mss,
            features: 0,
            accurate: AccurateEcn::NONE,
            is_marked: false,
            is_scaled: false,
            shifts: (0, 0),
            ts_recent: 0,
            dscp: 0,
        };
        let shared = self.flow_config();
        let Some(times) = packet.options.timestamps.filter(|_| shared.timestamps) else { return Some(plain) };
        let bits = times.echo;
        let shift = Some(bits & NO_SHIFT).filter(|&shift| shift != NO_SHIFT);
        let has_sack = bits & SACK_BIT != 0;
        let has_ecn = bits & ECN_BIT != 0 && self.speaks_ecn(asked);
        let is_possible = (shared.sack || !has_sack) && (shared.window_scaling || shift.is_none());
        let bit = |has, feature| if has { feature } else { 0 };
        is_possible.then(|| Negotiated {
            mss: mss - TIMESTAMPS_LEN,
            features: state::TIMESTAMPS | bit(has_sack, state::SACK) | bit(has_ecn, state::ECN),
            // "The values 0b000 or 0b001 will remind it that it did not enter AccECN mode, because AccECN does not use them" (RFC 9768
            // section 3.2.2.1, note 3).
            accurate: match packet.header.flags.ace() {
                0b000 | 0b001 => AccurateEcn::NONE,
                _ if has_ecn && self.speaks_accurately() => AccurateEcn::server(Ecn::NotEct),
                _ => AccurateEcn::NONE,
            },
            is_scaled: shift.is_some(),
            shifts: shift.map_or((0, 0), |shift| (shift as u8, shared.window_shift())),
            ts_recent: times.value,
            ..plain
        })
    }
}
