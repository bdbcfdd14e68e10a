//! The topics of tuples: each number has a topic, chosen by Zipf's law and named in the tuple's text. The seed determines all tuples.

use crate::client::chance::Zipf;
use crate::client::protocol::Shape;
use base::Seed;

/// Number of topics, and Zipf's exponent in hundredths: as the keys in TAS's key-value store.
const TOPICS: u32 = 100_000;
const SKEW: u32 = 90;
/// Number of topics chosen beforehand; further tuples use them again from the first.
const CHOSEN: usize = 1 << 16;
/// The first byte of a topic's name in a text.
const SIGN: u8 = b'#';
/// The form of a topic's name.
const NAME: Shape = Shape { keys: TOPICS, key_bytes: 8, value_bytes: 0 };
/// Texts before the topic. With them tuples have 99 to 135 bytes when they leave the source, and 9 more with their key.
const TEXTS: [&str; 4] = [
    "user 81730 says that the barge is late at the second lock, again, ",
    "user 24 says that the water is high today and that everyone on the towpath should look out ",
    "user 5502 says that there will be music at the old mill when the sun has set, ",
    "user 990213 asks whether anybody has seen a grey horse with a white star between its ears go by here, ",
];

/// The topic of each tuple.
pub struct Topics {
    chosen: Vec<u32>,
}

impl Topics {
    pub fn new(seed: u64) -> Self {
        let (zipf, mut random) = (Zipf::new(TOPICS, SKEW), Seed::new(seed));
        Self { chosen: (0..CHOSEN).map(|_| zipf.pick(&mut random)).collect() }
    }

    /// The topic of the tuple with that number.
    pub fn of(&self, number: u64) -> u32 {
        self.chosen[number as usize % CHOSEN]
    }

    /// Writes the text of the tuple with that number.
    pub fn write_text(&self, number: u64, into: &mut Vec<u8>) {
        into.extend_from_slice(TEXTS[number as usize % TEXTS.len()].as_bytes());
        write_key(self.of(number), into);
    }

    /// The number of tuples of each topic among the first `tuples` tuples.
    pub fn counts(&self, tuples: u64) -> Vec<u32> {
        let mut counts = vec![0; TOPICS as usize];
        let (rounds, rest) = (tuples / CHOSEN as u64, (tuples % CHOSEN as u64) as usize);
        for (i, topic) in self.chosen.iter().enumerate() {
            counts[*topic as usize] += rounds as u32 + u32::from(i < rest);
        }
        counts
    }
}

/// Writes a topic's name as a key.
pub fn write_key(topic: u32, into: &mut Vec<u8>) {
    into.push(SIGN);
    NAME.write_key(topic, into);
}

/// The key in a text: the name of its topic.
pub fn key(text: &[u8]) -> Option<&[u8]> {
    text.split(|byte| *byte == b' ').find(|word| word.first() == Some(&SIGN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_its_topic() {
        let topics = Topics::new(5);
        for number in 0..100 {
            let (mut text, mut wanted) = (Vec::new(), Vec::new());
            topics.write_text(number, &mut text);
            write_key(topics.of(number), &mut wanted);
            assert_eq!(key(&text), Some(&wanted[..]));
        }
        assert_eq!(key(b"no topic"), None);
    }

    #[test]
    fn counts_add_up_over_rounds() {
        let topics = Topics::new(5);
        for tuples in [0, 1, CHOSEN as u64 + 3, 3 * CHOSEN as u64] {
            let counts = topics.counts(tuples);
            assert_eq!(counts.iter().map(|count| u64::from(*count)).sum::<u64>(), tuples);
        }
        assert_eq!(topics.counts(1)[topics.of(0) as usize], 1);
    }
}
