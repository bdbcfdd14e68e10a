//! Decides which packets are lost.

use crate::config::Loss;
use base::Seed;

/// The state of a loss process.
#[derive(Clone, Debug)]
pub(crate) struct LossState {
    seed: Seed,
    /// True in the bad state of the Gilbert-Elliott model.
    is_bad: bool,
    /// Index of the first range of a list that does not end before the current packet.
    next: usize,
}

impl LossState {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed: Seed::new(seed), is_bad: false, next: 0 }
    }

    /// True if packet `number` is lost. Must be called once for each packet, in order.
    pub(crate) fn strikes(&mut self, loss: &Loss, number: u64) -> bool {
        match loss {
            Loss::None => false,
            Loss::Random(probability) => probability.strikes(&mut self.seed),
            Loss::Burst(burst) => {
                let (lost, moved) =
                    if self.is_bad { (burst.loss_bad, burst.leave) } else { (burst.loss_good, burst.enter) };
                let lost = lost.strikes(&mut self.seed);
                self.is_bad ^= moved.strikes(&mut self.seed);
                lost
            }
            Loss::List(ranges) => {
                while ranges.get(self.next).is_some_and(|range| range.last < number) {
                    self.next += 1;
                }
                ranges.get(self.next).is_some_and(|range| range.first <= number)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LossState;
    use crate::{Burst, Loss, PacketRange, Probability};

    const COUNT: u64 = 1_000_000;

    fn losses(loss: &Loss, seed: u64) -> Vec<bool> {
        let mut state = LossState::new(seed);
        (1..=COUNT).map(|number| state.strikes(loss, number)).collect()
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|&&lost| lost).count() as f64 / lost.len() as f64
    }

    #[test]
    fn random_loss_is_as_frequent_as_it_should_be_and_independent() {
        for per_million in [1_000, 10_000, 50_000] {
            let lost = losses(&Loss::Random(Probability::per_million(per_million)), 3);
            let p = f64::from(per_million) / 1e6;
            // Five standard deviations of a binomial.
            let bound = 5.0 * (p * (1.0 - p) / COUNT as f64).sqrt();
            assert!((share(&lost) - p).abs() < bound, "{} for {p}", share(&lost));
            let pairs = lost.windows(2).filter(|pair| pair[0] && pair[1]).count() as f64 / COUNT as f64;
            assert!((pairs - p * p).abs() < 5.0 * (p * p / COUNT as f64).sqrt() + 1e-6, "{pairs} for {p}");
        }
        assert!(losses(&Loss::Random(Probability::ALWAYS), 1).iter().all(|&lost| lost));
    }

    #[test]
    fn burst_loss_has_the_share_and_the_length_of_the_model() {
        let burst = Burst {
            enter: Probability::per_million(2_500),
            leave: Probability::percent(25),
            loss_bad: Probability::ALWAYS,
            loss_good: Probability::NEVER,
        };
        let lost = losses(&Loss::Burst(burst), 11);
        // enter / (enter + leave) = 0.0099, mean length 1 / leave = 4.
        assert!((share(&lost) - 0.0099).abs() < 0.0007, "{}", share(&lost));
        let begins = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let length = lost.iter().filter(|&&lost| lost).count() as f64 / begins as f64;
        assert!((length - 4.0).abs() < 0.3, "{length}");
    }

    #[test]
    fn listed_packets_are_lost_and_no_others() {
        let lost = losses(
            &Loss::List([(1, 1), (7, 9), (50, 50)].map(|(first, last)| PacketRange { first, last }).to_vec()),
            0,
        );
        let numbers: Vec<usize> =
            (1..).zip(lost).filter(|(_, lost)| *lost).map(|(number, _)| number).collect();
        assert_eq!(numbers, [1, 7, 8, 9, 50]);
    }
}
