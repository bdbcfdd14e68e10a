//! How evenly flows share the bandwidth.

use crate::samples::median;

/// Two measures of how evenly flows share the bandwidth.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fairness {
    /// Jain's index: 1 when all have the same, 1/n when one of n has everything.
    pub jain: f64,
    /// The first percentile over the median (of up to 100 flows: the least): 1 when all have the same, 0 when one has nothing.
    pub p1_of_median: f64,
}

impl Fairness {
    /// Computes both from the bytes of each flow; `None` if the median is 0.
    #[must_use]
    pub fn of(shares: &[f64]) -> Option<Self> {
        let median = median(shares).filter(|median| 0.0 < *median)?;
        let sum: f64 = shares.iter().sum();
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        let mut sorted = shares.to_vec();
        sorted.sort_by(f64::total_cmp);
        // The nearest rank: the smallest share such that at least 1 % of the shares are not larger.
        let p1 = sorted[shares.len().div_ceil(100) - 1];
        Some(Self { jain: sum * sum / (shares.len() as f64 * squares), p1_of_median: p1 / median })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_whatever_their_size() {
        for share in [1.0, 3e9] {
            assert_eq!(Fairness::of(&[share; 100]), Some(Fairness { jain: 1.0, p1_of_median: 1.0 }));
        }
    }

    #[test]
    fn who_starves_shows_in_the_first_percentile_more_than_in_the_index() {
        let mut shares = [1.0; 100];
        shares[42] = 0.0;
        let fairness = Fairness::of(&shares).unwrap();
        assert!((fairness.jain - 0.99).abs() < 1e-9, "{fairness:?}");
        assert_eq!(fairness.p1_of_median, 0.0);
    }

    #[test]
    fn half_with_three_times_as_much_have_an_index_of_four_fifths() {
        let shares: Vec<f64> = (0..100).map(|i| if i % 2 == 0 { 1.0 } else { 3.0 }).collect();
        assert_eq!(Fairness::of(&shares), Some(Fairness { jain: 0.8, p1_of_median: 0.5 }));
    }

    #[test]
    fn the_first_percentile_of_many_is_not_their_least() {
        let shares: Vec<f64> = (1..=200).map(f64::from).collect();
        let fairness = Fairness::of(&shares).unwrap();
        assert_eq!(fairness.p1_of_median, 2.0 / 100.5);
    }

    #[test]
    fn nothing_is_not_shared() {
        assert_eq!(Fairness::of(&[]), None);
        assert_eq!(Fairness::of(&[0.0; 100]), None);
    }
}
