//! Cubic (RFC 9438) in congestion avoidance, in integers: bytes and milliseconds.
//!
//! ```text
//! W_cubic(t) = C * (t - K)^3 + W_max      C = 0.4 segments/s^3
//! ```

/// beta_cubic = 0.7 (section 4.6), in tenths.
pub(crate) const BETA_TENTHS: u32 = 7;
/// Milliseconds from `K` after which the curve exceeds any window (0.4 * 262^3 segments); up to there products fit in 64 bits.
const REACH_MS: i64 = 1 << 18;

/// One epoch of congestion avoidance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch {
    /// When the epoch began, in milliseconds modulo 2^32.
    start_ms: u32,
    /// Time from the start until the curve reaches `w_max`.
    k_ms: u32,
    /// The window at which the curve is flat, in bytes.
    w_max: u32,
    /// The window that Reno would have, in bytes.
    w_est: u32,
    /// The window before the last reduction, in bytes.
    cwnd_prior: u32,
}

impl Epoch {
    /// The epoch after a reduction from `prior` to `cwnd`; `last_max` is `w_max` of the epoch before, if there was one.
    pub(crate) fn reduced(now_ms: u32, mss: u32, prior: u32, cwnd: u32, last_max: Option<u32>) -> Self {
        // Section 4.7, fast convergence: "if cwnd < W_max ... further reduce W_max: W_max = cwnd * (1 + beta) / 2".
        let w_max = match last_max {
            Some(last) if prior < last => prior / 20 * (10 + BETA_TENTHS),
            _ => prior,
        };
        // K = cbrt((W_max - cwnd_epoch) / C), here in milliseconds: 1 / 0.4 * 1000^3 = 2.5e9; 2^32 * 2.5e9 < 2^64.
        let k_ms = cube_root(u64::from(w_max.saturating_sub(cwnd)) * 2_500_000_000 / u64::from(mss));
        Self { start_ms: now_ms, k_ms, w_max, w_est: cwnd, cwnd_prior: prior }
    }

    /// The epoch after slow start: "K MUST be set to 0 and W_max to the congestion window at the beginning" (section 4.8).
    pub(crate) fn after_slow_start(now_ms: u32, cwnd: u32, prior: u32) -> Self {
        Self { start_ms: now_ms, k_ms: 0, w_max: cwnd, w_est: cwnd, cwnd_prior: prior }
    }

    pub(crate) fn w_max(&self) -> u32 {
        self.w_max
    }

    /// "Size of cwnd ... at the time of setting ssthresh most recently" (section 4.1.2); a timeout does not change it.
    pub(crate) fn cwnd_prior(&self) -> u32 {
        self.cwnd_prior
    }

    /// Excludes idle time from the epoch (section 5.8: otherwise the curve would jump).
    pub(crate) fn shift(&mut self, idle_ms: u32) {
        self.start_ms = self.start_ms.wrapping_add(idle_ms);
    }

    /// The curve's window `ahead_ms` after `now_ms`, in bytes.
    pub(crate) fn curve(&self, now_ms: u32, ahead_ms: u32, mss: u32) -> u32 {
        let t = i64::from(now_ms.wrapping_sub(self.start_ms)) + i64::from(ahead_ms);
        let d = (t - i64::from(self.k_ms)).clamp(-REACH_MS, REACH_MS);
        let change = (d * d * d / 1_000) * 4 * i64::from(mss) / 10_000_000;
        i64::from(self.w_max).saturating_add(change).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// The window after `acked` bytes were acknowledged; `carry` keeps the fraction of a byte of Reno's growth.
    pub(crate) fn grow(
        &mut self,
        now_ms: u32,
        rtt_ms: u32,
        mss: u32,
        cwnd: u32,
        acked: u32,
        carry: &mut u32,
    ) -> u32 {
        self.grow_friendly(rtt_ms, mss, cwnd, acked, carry);
        if self.curve(now_ms, 0, mss) < self.w_est {
            // Section 4.3: "CUBIC is in the Reno-friendly region and cwnd SHOULD be set to W_est".
            return cwnd.max(self.w_est);
        }
        // Section 4.2: the target lies between cwnd and 1.5 cwnd; sections 4.4 and 4.5: cwnd += (target - cwnd) / cwnd
        // for each acknowledged segment.
        let target = self.curve(now_ms, rtt_ms, mss).clamp(cwnd, cwnd.saturating_add(cwnd / 2));
        let step = u64::from(target - cwnd) * u64::from(acked) / u64::from(cwnd.max(1));
        cwnd.saturating_add(step.min(u64::from(target - cwnd)) as u32)
    }

    /// Section 4.3: `W_est += alpha * segments_acked / cwnd`, alpha = 3 (1 - beta) / (1 + beta) = 9/17 until W_est has
    /// reached the window before the reduction, then 1. On round trips below a millisecond alpha is 1 from the start: Linux computes
    /// the curve once a clock tick and in whole segments, so that its window grows by a segment a round trip there, and a flow that
    /// grows by 9/17 beside it would not get its share (docs/evaluation.md, "Loss").
    fn grow_friendly(&mut self, rtt_ms: u32, mss: u32, cwnd: u32, acked: u32, carry: &mut u32) {
        let is_far = rtt_ms > 0;
        let (num, den) = if is_far && self.w_est < self.cwnd_prior { (9, 17) } else { (1, 1) };
        let divisor = u64::from(cwnd.max(1)) * den;
        let product = u64::from(acked) * u64::from(mss) * num + u64::from(*carry) * den;
        self.w_est = self.w_est.saturating_add((product / divisor).min(u64::from(u32::MAX)) as u32);
        *carry = (product % divisor / den) as u32;
    }
}

/// The largest whole number with a cube of at most `n`.
fn cube_root(n: u64) -> u32 {
    let mut root = 0u64;
    for bit in (0..22).rev() {
        let next = root | 1 << bit;
        if next.checked_pow(3).is_some_and(|cube| cube <= n) {
            root = next;
        }
    }
    root as u32
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn cube_root_is_exact() {
        for n in [0u64, 1, 7, 8, 26, 27, 999_999, 1_000_000, u64::MAX] {
            let root = u128::from(cube_root(n));
            assert!(root.pow(3) <= u128::from(n) && (root + 1).pow(3) > u128::from(n), "{n}");
        }
    }

    /// RFC 9438 section 4.2, figure 1 and 2, computed in floating point.
    #[test]
    fn curve_follows_the_formula() {
        let mss = 1448u32;
        for prior_segments in [20u32, 100, 1000, 10_000] {
            let prior = prior_segments * mss;
            let cwnd = prior / 10 * BETA_TENTHS;
            let epoch = Epoch::reduced(5_000, mss, prior, cwnd, None);
            let k = ((f64::from(prior - cwnd) / f64::from(mss)) / 0.4).cbrt();
            for ms in (0..30_000).step_by(250) {
                let t = f64::from(ms) / 1000.0;
                let want = (0.4 * (t - k).powi(3) + f64::from(prior_segments)) * f64::from(mss);
                let got = f64::from(epoch.curve(5_000 + ms, 0, mss));
                let slack = f64::from(mss) + want.abs() * 0.01;
                assert!((got - want.max(0.0)).abs() < slack, "{prior_segments} at {t}: {got} for {want}");
            }
        }
    }

    #[test]
    fn fast_convergence_gives_way() {
        let first = Epoch::reduced(0, 1000, 100_000, 70_000, None);
        assert_eq!(first.w_max(), 100_000);
        assert_eq!(Epoch::reduced(0, 1000, 80_000, 56_000, Some(100_000)).w_max(), 68_000);
        assert_eq!(Epoch::reduced(0, 1000, 110_000, 77_000, Some(100_000)).w_max(), 110_000);
    }
}
