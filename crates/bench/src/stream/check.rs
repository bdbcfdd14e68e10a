//! Whether every tuple arrives exactly once, and counted.
//!
//! Tuples that left the source on one connection and belong to one partition stay in order, so that of these none comes twice when
//! their numbers grow; and none was lost when there are as many as were sent. The counts of a topic go up by one each.

use super::topics::{Topics, write_key};
use super::tuple::{Tuple, partition};
use anyhow::bail;

/// See the module.
pub struct Check {
    topics: Topics,
    partitions: usize,
    /// For each partition, and in it for each connection of the source, the least number that may come next.
    at_least: Vec<u64>,
    /// The last count of each topic.
    counts: Vec<u32>,
    arrived: u64,
    /// A key as it should be.
    key: Vec<u8>,
}

impl Check {
    /// As many partitions as the source has connections.
    pub fn new(topics: Topics, partitions: usize) -> Self {
        let counts = topics.counts(0);
        let at_least = vec![0; partitions * partitions];
        Self { topics, partitions, at_least, counts, arrived: 0, key: Vec::new() }
    }

    /// What tuples are about.
    pub fn topics(&self) -> &Topics {
        &self.topics
    }

    /// Tuples so far.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// One has come from that partition.
    ///
    /// # Errors
    /// When it should not have.
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

    /// All have, of so many.
    ///
    /// # Errors
    /// When they have not.
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

    /// Gives a check the tuples of these numbers as the stages would, but for what `spoil` does.
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
        // Ways of different connections overtake each other.
        assert!(checked(&[3, 1, 0, 2], right).is_ok());
        assert!(checked(&[0, 1, 2], right).is_err(), "lost");
        assert!(checked(&[0, 1, 2, 2], right).is_err(), "twice, another lost");
        assert!(checked(&[0, 1, 2, 3, 3], right).is_err(), "twice");
        assert!(checked(&[0, 1, 2, 4], right).is_err(), "never sent");
        assert!(checked(&[0, 1, 2, 3], |tuple| tuple.count += 1).is_err(), "counted twice");
        assert!(checked(&[0, 1, 2, 3], |tuple| tuple.key = b"#other").is_err(), "another key");
    }
}
