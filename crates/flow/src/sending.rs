//! State of a flow's sending direction that its application may ask for, and times during which sending was held up.

use crate::{Config, FlowMut, state};
use base::{Duration, Instant};
use shm::Sending;

/// Payload bytes of Linux's largest super-frame: most bytes of one of its buffers, without headers.
const GOAL_MAX: u32 = 65_535 - 320;
/// Bytes: a peer with a window no larger than this is sent whole windows.
const WINDOW_TINY: u32 = 536;
/// Least segments of window for which a send buffer has room: the initial window (RFC 6928).
const SEGMENTS_MIN: u32 = 10;
/// Bytes that Linux adds for a segment's headers and bookkeeping, before and after it rounds up to a power of two.
const BESIDE: (u32, u32) = (640, 256);

/// Linux's chronographs, except the time with data in flight, which is `Cold::busy_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Delays {
    /// Time during which the peer's window held data back.
    pub window: Duration,
    /// Part of `window` with nothing in flight.
    pub alone: Duration,
    /// Time without data to send while the application had no room for more in its send buffer.
    pub buffer: Duration,
    /// Time up to which `window` is counted, while `state::WINDOW_FULL` is set.
    pub window_since: Instant,
    /// Time since when the application has no room; `ZERO` when it has room.
    pub buffer_since: Instant,
}

impl Delays {
    /// Counts the time until `now` during which the window held data back. `is_alone`: with nothing in flight.
    pub const fn add_window(&mut self, now: Instant, is_alone: bool) {
        let time = now.since(self.window_since);
        self.window = self.window.plus(time);
        if is_alone {
            self.alone = self.alone.plus(time);
        }
        self.window_since = now;
    }

    /// Counts the time until `now` during which the application had no room, if it has none.
    pub const fn add_buffer(&mut self, now: Instant) {
        if self.buffer_since.as_ns() > 0 {
            self.buffer = self.buffer.plus(now.since(self.buffer_since));
            self.buffer_since = now;
        }
    }
}

impl FlowMut<'_> {
    /// The state to publish to the application. `grows`: the application waits for space, so its send buffer grows with the congestion
    /// window, as long as that has room ("tcp_wmem" in Linux's ip-sysctl).
    pub fn sending(&mut self, config: &Config, grows: bool) -> Sending {
        let (tx, cold) = (&*self.tx, &mut *self.cold);
        let mss = u32::from(tx.mss).max(1);
        let in_flight = tx.in_flight();
        let is_fin_out = self.rx.is_fin_out();
        let sent = (tx.tx_una as u32).wrapping_add(in_flight).wrapping_sub(u32::from(is_fin_out));
        if config.send_buffer_initial > 0 {
            let segments = (tx.cwnd / mss).max(SEGMENTS_MIN);
            let each = (mss + BESIDE.0).next_power_of_two() + BESIDE.1;
            // Room for one window to be repaired, and another to be sent meanwhile.
            let room = segments.saturating_mul(2 * each).min(config.send_buffer_max);
            // A turn may end before the window is full and leave the rest to the next, so data held back by the window counts, too.
            let has_room = grows && in_flight < tx.cwnd && !self.rx.has(state::CWND_FULL);
            let least = config.send_buffer_initial;
            cold.send_buffer = cold.send_buffer.max(least).max(if has_room { room } else { 0 });
        }
        Sending { sent, goal: goal(tx.snd_wnd.max(1 << tx.window_log2_max), mss), buffer: cold.send_buffer }
    }
}

/// Bytes to write at once: whole segments, at most half of the peer's largest window.
fn goal(window: u32, mss: u32) -> u16 {
    let most = if window > WINDOW_TINY { window / 2 } else { window };
    let segments = (GOAL_MAX.min(most) / mss).max(1);
    (segments * mss).min(0xFFFF) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_whole_segments_and_half_a_window_at_most() {
        assert_eq!(goal(32_896, 1000), 16_000);
        assert_eq!(goal(50_000, 1000), 25_000);
        assert_eq!(goal(10_000, 1000), 5_000);
        assert_eq!(goal(1 << 20, 1000), 65_000);
        assert_eq!((goal(10, 1460), goal(1 << 20, 65_483)), (1460, 65_483));
    }

    #[test]
    fn a_word_holds_what_is_said_and_a_bound_never_vanishes_in_it() {
        let said = Sending { sent: u32::MAX - 3, goal: 65_483, buffer: 51_200 };
        assert_eq!(Sending::unpack(said.packed()), said);
        let bound = |buffer| Sending::unpack(Sending { buffer, ..said }.packed()).buffer;
        assert_eq!((bound(0), bound(1), bound(50_000), bound(u32::MAX)), (0, 256, 49_920, 0xFF_FF00));
    }

    #[test]
    fn delays_count_from_when_they_began() {
        let ms = |n| Instant::ZERO.plus(Duration::from_ms(n));
        let mut delays = Delays { window_since: ms(10), ..Delays::default() };
        delays.add_window(ms(40), true);
        delays.add_window(ms(45), false);
        assert_eq!((delays.window, delays.alone), (Duration::from_ms(35), Duration::from_ms(30)));
        delays.add_buffer(ms(50));
        assert_eq!(delays.buffer, Duration::ZERO, "it had room");
        delays.buffer_since = ms(50);
        delays.add_buffer(ms(60));
        delays.add_buffer(ms(75));
        assert_eq!(delays.buffer, Duration::from_ms(25));
    }
}
