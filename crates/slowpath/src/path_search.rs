//! The search for the largest segment that a path takes, by probes: RFC 4821 with the terms of RFC 8899, for one connection.
//!
//! ```text
//!   base             mss                 high        ceiling
//!   ---|--- passes ----|-- not known yet --|--- lost ----|
//!                             ^ the next probe: one segment of real data of that length
//! ```
//! Sizes are payload bytes, options already subtracted. There is no search until segments had to be made smaller.

/// Bytes: the search ends when the interval of unknown sizes is no longer than this: Linux's `tcp_probe_threshold`.
const CLOSE_ENOUGH: u16 = 8;
/// Probes of one size that must be lost before it counts as too large. RFC 8899 section 5.1.2 has at most 3 (`MAX_PROBES`).
const TRIES: u8 = 2;

/// The state of the search for one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Search {
    /// Largest size that both ends' MSS allow.
    ceiling: u16,
    /// Least size known not to pass; `ceiling + 1` when none is known.
    high: u16,
    /// Number of lost probes of the present size.
    tries: u8,
    /// Size of the probe that the core was told to send.
    pub(crate) probe: Option<u16>,
    /// Segments are smaller than the ceiling: larger sizes are to be probed, now or later.
    pub(crate) is_lowered: bool,
    /// The connection's path timer runs.
    pub(crate) is_timed: bool,
}

impl Search {
    pub(crate) fn new(ceiling: u16) -> Self {
        Self { ceiling, high: ceiling.saturating_add(1), ..Self::default() }
    }

    /// A router says that no segment larger than `mss` passes.
    pub(crate) fn limit(&mut self, mss: u16) {
        (self.high, self.tries) = (self.high.min(mss.saturating_add(1)), 0);
    }

    /// Segments were made smaller. Any size up to the ceiling may still pass, or pass again.
    pub(crate) fn suspect(&mut self) {
        (self.high, self.is_lowered) = (self.ceiling.saturating_add(1), true);
        (self.tries, self.probe) = (0, None);
    }

    /// The next size to probe, if segments of `mss` pass; `None`: the search is over. The ceiling comes first: an outage looks like
    /// a black hole, and after an outage one probe ends the search.
    pub(crate) fn candidate(&self, mss: u16) -> Option<u16> {
        if !self.is_lowered || mss >= self.ceiling {
            return None;
        }
        if self.high > self.ceiling {
            return Some(self.ceiling);
        }
        (self.high.saturating_sub(mss) > CLOSE_ENOUGH).then(|| mss + (self.high - mss) / 2)
    }

    /// A probe of `len` was lost.
    pub(crate) fn lost(&mut self, len: u16) {
        self.probe = None;
        self.tries += 1;
        if self.tries >= TRIES {
            (self.high, self.tries) = (len, 0);
        }
    }

    /// A probe of `len` arrived. True when the ceiling is reached.
    pub(crate) fn arrived(&mut self, len: u16) -> bool {
        (self.probe, self.tries) = (None, 0);
        self.is_lowered = len < self.ceiling;
        !self.is_lowered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a path that takes `limit`; returns the size found and the probes needed.
    fn find(base: u16, ceiling: u16, limit: u16) -> (u16, u32) {
        let mut search = Search::new(ceiling);
        let (mut mss, mut probes) = (base, 0);
        search.suspect();
        while let Some(len) = search.candidate(mss) {
            assert!(len > mss && len <= ceiling, "probes are larger than what is known to pass");
            probes += 1;
            if len <= limit {
                search.arrived(len);
                mss = len;
            } else {
                search.lost(len);
            }
        }
        (mss, probes)
    }

    #[test]
    fn an_outage_that_looked_like_a_black_hole_costs_one_probe() {
        assert_eq!(find(1012, 1448, 1448), (1448, 1));
    }

    #[test]
    fn every_limit_is_found_to_within_eight_bytes_and_soon() {
        for limit in 1012..1448 {
            let (found, probes) = find(1012, 1448, limit);
            assert!(
                found <= limit && limit - found <= CLOSE_ENOUGH && probes <= 14,
                "{limit} {found} {probes}"
            );
        }
        let (found, probes) = find(1012, 8948, 4000);
        assert!((3992..=4000).contains(&found) && probes <= 24, "{found} {probes}");
    }

    #[test]
    fn one_lost_probe_is_no_proof() {
        let mut search = Search::new(1448);
        search.suspect();
        search.lost(1448);
        assert_eq!(search.candidate(1012), Some(1448));
        search.lost(1448);
        assert_eq!(search.candidate(1012), Some(1230));
    }

    #[test]
    fn what_the_path_said_about_a_probe_bounds_the_search() {
        let mut search = Search::new(1448);
        assert_eq!(search.candidate(1448), None);
        search.suspect();
        search.limit(1360);
        let next = search.candidate(1012).expect("there is more to find");
        assert!(next <= 1360);
        assert_eq!(search.candidate(1356), None, "close enough");
    }
}
