//! Numbers that figures show: means with confidence intervals, percentiles, Jain's index.

/// The mean of several numbers, and half of its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mean {
    /// The arithmetic mean of the numbers.
    pub value: f64,
    /// The true mean lies at most this far away with a probability of 95 %, if the numbers are normal and independent; infinite for fewer
    /// than two.
    pub half: f64,
}

/// Student's t for 95 % on both sides, by degrees of freedom from 1 to 30; beyond, 1.96 is close enough.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

impl Mean {
    /// The mean of `values`; NaN if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let value = values.iter().sum::<f64>() / n;
        if values.len() < 2 {
            return Self { value, half: f64::INFINITY };
        }
        let variance = values.iter().map(|x| (x - value).powi(2)).sum::<f64>() / (n - 1.0);
        let t = STUDENT.get(values.len() - 2).copied().unwrap_or(1.96);
        Self { value, half: t * (variance / n).sqrt() }
    }
}

/// The value below which a share of `sorted` lies, from 0 to 1: the nearest rank. `None` if there are none.
#[must_use]
pub fn percentile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied()
}

/// Jain's index of fairness: 1 when all are equal, 1/n when one has everything; NaN when all are 0.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    sum * sum / (values.len() as f64 * values.iter().map(|x| x * x).sum::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_students_interval() {
        let mean = Mean::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(mean.value, 3.0);
        // s = 1.581, / sqrt(5) = 0.707, * 2.776
        assert!((mean.half - 1.963).abs() < 0.001, "{mean:?}");
        assert_eq!(Mean::of(&[7.0]), Mean { value: 7.0, half: f64::INFINITY });
    }

    #[test]
    fn percentiles_and_fairness() {
        let sorted: Vec<u32> = (1..=100).collect();
        let at = |share| percentile(&sorted, share);
        assert_eq!([at(0.0), at(0.01), at(0.5), at(0.99), at(1.0)], [1, 1, 50, 99, 100].map(Some));
        assert_eq!(percentile::<u32>(&[], 0.5), None);
        assert_eq!((jain(&[2.0; 5]), jain(&[1.0, 0.0, 0.0, 0.0])), (1.0, 0.25));
    }
}
