//! DCTCP's estimate of the marked fraction (RFC 8257 section 3.3). Growth and the reaction to losses are Reno's.

/// The fraction 1 in fixed point.
const ONE: u32 = 1 << 16;
/// g = 1/16 (section 4.1), as a shift.
const G_SHIFT: u32 = 4;

/// Marked and acknowledged bytes of one observation window, and the running estimate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    alpha: u32,
    acked: u32,
    marked: u32,
    window_left: u32,
}

impl Marks {
    /// "DCTCP.Alpha ... initialized to 1" (section 3.3): the first mark halves the window.
    pub(crate) const NEW: Self = Self { alpha: ONE, acked: 0, marked: 0, window_left: 0 };

    /// Counts an acknowledgement; the estimate is updated once per window.
    pub(crate) fn on_ack(&mut self, acked: u32, marked: u32, in_flight: u32) {
        self.acked = self.acked.saturating_add(acked);
        self.marked = self.marked.saturating_add(marked.min(acked));
        self.window_left = self.window_left.saturating_sub(acked);
        if self.window_left > 0 || self.acked == 0 {
            return;
        }
        // Alpha = Alpha * (1 - g) + g * M
        let fraction = (u64::from(self.marked) * u64::from(ONE) / u64::from(self.acked)) as u32;
        // Rounded up, so that alpha can reach zero.
        let decay = self.alpha.div_ceil(1 << G_SHIFT);
        self.alpha = (self.alpha - decay + (fraction >> G_SHIFT)).min(ONE);
        *self = Self { alpha: self.alpha, acked: 0, marked: 0, window_left: in_flight };
    }

    /// The window after a marked one: `cwnd * (1 - Alpha / 2)`.
    pub(crate) fn reduced(&self, cwnd: u32) -> u32 {
        cwnd - (u64::from(cwnd) * u64::from(self.alpha) / u64::from(2 * ONE)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_converges_to_the_marked_fraction() {
        let mut marks = Marks::NEW;
        for i in 0..4000u32 {
            marks.on_ack(1000, if i % 4 == 0 { 1000 } else { 0 }, if i % 8 == 7 { 8000 } else { 4000 });
        }
        let quarter = 100_000 - marks.reduced(100_000);
        assert!((11_500..13_500).contains(&quarter), "{quarter}");
    }

    #[test]
    fn unmarked_windows_forget() {
        let mut marks = Marks::NEW;
        for _ in 0..1000 {
            marks.on_ack(1000, 0, 1000);
        }
        assert_eq!(marks.reduced(100_000), 100_000);
    }
}
