//! Checks that every tuple arrives exactly once and is counted correctly.
//!
//! Tuples that left the source on one connection and belong to one partition stay in order. So none arrived twice if their numbers grow,
//! and none was lost if as many arrived as were sent. The count of a topic goes up by one with each of its tuples.

use super::topics::{Topics, write_key};
use super::tuple::{Tuple, partition};
use anyhow::bail;

/// The checks of the arriving tuples, and the counts so far.
pub struct Check {
    topics: Topics,
    partitions: usize,
    /// The least number that may come next, for each partition and in it for each connection of the source.
    at_least: Vec<u64>,
    /// The last count of each topic.
    counts: Vec<u32>,
    arrived: u64,
    /// A buffer for the expected key.
    key: Vec<u8>,
}

impl Check {
    /// The source has as many connections as there are `partitions`.
    pub fn new(topics: Topics, partitions: usize) -> Self {
        let counts = topics.counts(0);
        let at_least = vec![0; partitions * partitions];
        Self { topics, partitions, at_least, counts, arrived: 0, key: Vec::new() }
    }

    /// The topics of the tuples.
    pub fn topics(&self) -> &Topics {
        &self.topics
    }

    /// Number of tuples that have arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Checks a tuple that arrived from the partition `from`.
    ///
    /// # Errors
    /// When the tuple is wrong: another key, partition or count than expected, a duplicate, or out of order.
    pub fn take(&mut self, from: usize, tuple: &Tuple<'_>) -> anyhow::Result<()> {
        let (number, topic) = (tuple.number, self.topics.of(tuple.number));
        self.key.clear();
        write_key(topic, &mut self.key);
        if tuple.key != self.key || partition(tuple.key, self.partitions) != from {
            bail!("tuple {number} is not the one that was sent, or came by another partition's way");
        }
        let class = from * self.partitions + number as usize % self.partitions;
        if number < self.at_least[class] {
            bail!("tuple {number} came twice, or too late");
        }
        self.at_least[class] = number + 1;
        let count = &mut self.counts[topic as usize];
        *count += 1;
        if tuple.count != *count {
            bail!("tuple {number} is number {} of its topic, not {count}", tuple.count);
        }
        self.arrived += 1;
        Ok(())
    }

    /// Checks that all `sent` tuples have arrived.
    ///
    /// # Errors
    /// When tuples are missing, or the counts of topics are wrong.
    pub fn finish(&self, sent: u64) -> anyhow::Result<()> {
        if self.arrived != sent {
            bail!("{} tuples arrived, {sent} were sent", self.arrived);
        }
        if self.counts != self.topics.counts(sent) {
            bail!("the counts of topics do not add up");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a check the tuples of these numbers as the stages would, after `spoil` has changed each of them.
    fn checked(numbers: &[u64], spoil: impl Fn(&mut Tuple<'_>)) -> anyhow::Result<()> {
        let mut check = Check::new(Topics::new(1), 4);
        let mut counts = check.topics.counts(0);
        for number in numbers {
            let topic = check.topics.of(*number);
            let mut key = Vec::new();
            write_key(topic, &mut key);
            counts[topic as usize] += 1;
            let count = counts[topic as usize];
            let mut tuple =
                Tuple { number: *number, due_ns: 0, is_measured: true, count, key: &key, text: b"" };
            spoil(&mut tuple);
            check.take(partition(&key, 4), &tuple)?;
        }
        check.finish(4)
    }

    #[test]
    fn only_every_tuple_once_and_counted_is_right() {
        let right = |_: &mut Tuple<'_>| {};
        assert!(checked(&[0, 1, 2, 3], right).is_ok());
        // Tuples of different connections of the source may overtake each other.
        assert!(checked(&[3, 1, 0, 2], right).is_ok());
        assert!(checked(&[0, 1, 2], right).is_err(), "lost");
        assert!(checked(&[0, 1, 2, 2], right).is_err(), "twice, another lost");
        assert!(checked(&[0, 1, 2, 3, 3], right).is_err(), "twice");
        assert!(checked(&[0, 1, 2, 4], right).is_err(), "never sent");
        assert!(checked(&[0, 1, 2, 3], |tuple| tuple.count += 1).is_err(), "counted twice");
        assert!(checked(&[0, 1, 2, 3], |tuple| tuple.key = b"#other").is_err(), "another key");
    }
}
