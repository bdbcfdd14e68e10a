//! What a figure shows of a flow: window, rate, round-trip times.

use crate::host::Host;
use crate::sockets::Fd;
use base::Duration;

/// The state of a sending flow at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sight {
    /// Congestion window of the flow, bytes.
    pub cwnd: u32,
    /// Rate at which the pacer sends, bytes per second; 0: it does not.
    pub pace_rate: u64,
    /// Smoothed round-trip time, microseconds; 0 before the first sample.
    pub srtt_us: u32,
    /// Least round-trip time, microseconds; `u32::MAX` before the first sample.
    pub min_rtt_us: u32,
    /// The retransmission timeout, before it is backed off.
    pub rto: Duration,
    /// Bytes sent and not acknowledged.
    pub in_flight: u32,
    /// Bytes retransmitted so far.
    pub retransmitted_bytes: u64,
    /// Number of retransmission timeouts so far.
    pub timeouts: u32,
    /// Time during which nothing but the peer's window held data back so far.
    pub window_bound: Duration,
    /// The mark of the last rate sample: see [`flow::FlowProgram::is_app_limited`].
    pub is_app_limited: Option<bool>,
}

impl Host {
    /// The sum of the windows that the peers of an application's connections were last told, bytes.
    #[must_use]
    pub fn offered(&self, application: u16) -> u64 {
        let mut sum = 0;
        self.slow.for_each_socket(|socket| {
            let guard = socket.flow.and_then(|flow| self.slow.flows().lock_briefly(flow));
            let Some(mut guard) = guard else { return };
            let rx = guard.parts().rx;
            if rx.region == application {
                sum += u64::from(rx.rcv_edge.since(rx.last_ack));
            }
        });
        sum
    }

    /// The flow of a socket, while TCP has one.
    #[must_use]
    pub fn sight(&self, fd: Fd) -> Option<Sight> {
        let mut guard = self.slow.flows().lock_briefly(self.flow(fd)?)?;
        let parts = guard.parts();
        let mut delays = parts.cold.delays;
        if parts.rx.has(flow::state::WINDOW_FULL) {
            delays.add_window(self.now, false);
        }
        Some(Sight {
            cwnd: parts.tx.cwnd,
            pace_rate: parts.cold.pace_rate,
            srtt_us: parts.cold.srtt_us,
            min_rtt_us: parts.cold.rtt_us_min,
            rto: parts.cold.rto,
            in_flight: parts.tx.in_flight(),
            retransmitted_bytes: parts.cold.counters.retransmitted_bytes,
            timeouts: parts.cold.counters.timeouts,
            window_bound: delays.window,
            is_app_limited: parts.cold.program.as_ref().and_then(|program| program.is_app_limited()),
        })
    }
}
