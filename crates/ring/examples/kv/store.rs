//! The keys and their values, for both protocols.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The keys with their values.
pub struct Store {
    pub keys: HashMap<Box<[u8]>, Value>,
    /// The time of this round.
    pub now: Instant,
}

/// What a key has.
pub struct Value {
    pub bytes: Vec<u8>,
    /// A number of the client's (memcached).
    pub flags: u32,
    /// The moment at which it expires; `None`: it does not.
    pub end: Option<Instant>,
}

/// A value that is no number, or a sum that is too large.
pub struct NoNumber;

impl Store {
    /// The value of a key that has not expired.
    pub fn find(&self, key: &[u8]) -> Option<&Value> {
        self.keys.get(key).filter(|value| value.end.is_none_or(|end| end > self.now))
    }

    /// Gives a key a value, for `time` (`None`: for ever).
    pub fn set(&mut self, key: &[u8], bytes: &[u8], flags: u32, time: Option<Duration>) {
        let end = time.map(|time| self.now + time);
        match self.keys.get_mut(key) {
            Some(value) => {
                value.bytes.clear();
                value.bytes.extend_from_slice(bytes);
                (value.flags, value.end) = (flags, end);
            }
            None => drop(self.keys.insert(key.into(), Value { bytes: bytes.to_vec(), flags, end })),
        }
    }

    /// Removes a key. False: there was none.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let was_there = self.find(key).is_some();
        self.keys.remove(key);
        was_there
    }

    /// Adds to the number that a key has; one without a value counts as 0.
    ///
    /// # Errors
    /// [`NoNumber`].
    pub fn add(&mut self, key: &[u8], more: i64) -> Result<i64, NoNumber> {
        let (before, flags, end) = match self.find(key) {
            Some(value) => (decimal(&value.bytes).ok_or(NoNumber)?, value.flags, value.end),
            None => (0, 0, None),
        };
        let number = i64::checked_add(before, more).ok_or(NoNumber)?;
        self.keys.insert(key.into(), Value { bytes: number.to_string().into_bytes(), flags, end });
        Ok(number)
    }

    /// Limits the life of a key. False: there is none.
    pub fn expire(&mut self, key: &[u8], time: Option<Duration>) -> bool {
        let is_there = self.find(key).is_some();
        let end = time.map(|time| self.now + time);
        self.keys.get_mut(key).filter(|_| is_there).map(|value| value.end = end).is_some()
    }
}

/// The number that all of `digits` is.
pub fn decimal<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Writes a number without an allocation.
pub fn digits(replies: &mut Vec<u8>, mut number: u64) {
    let mut text = [0; 20];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return replies.extend_from_slice(&text[at..]);
        }
    }
}
