//! A tuple as bytes, in the same form between all stages.
//!
//! ```text
//!  0        2     3      4       8        16        24
//! ┌────────┬─────┬──────┬───────┬────────┬─────────┬─────┬──────┐
//! │ length │ key │ meas-│ count │ number │ due, ns │ key │ text │
//! │ of all │     │ ured │       │        │         │     │      │
//! └────────┴─────┴──────┴───────┴────────┴─────────┴─────┴──────┘
//! ```
//!
//! Numbers are little-endian; the second field is the length of the key.

use anyhow::bail;
use base::Seed;

/// Bytes before the key.
const HEAD: usize = 24;
/// The most bytes of a tuple.
pub const LONGEST: usize = 512;

/// A tuple, with key and text borrowed from a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuple<'a> {
    /// The tuple's number from 0, in the order in which tuples leave the source.
    pub number: u64,
    /// The time at which it should leave the source, as of [`crate::clock::now_ns`].
    pub due_ns: u64,
    /// True if it was due in the measured time.
    pub is_measured: bool,
    /// The number of tuples of its key counted so far, including itself; 0 before the second stage.
    pub count: u32,
    /// The name of its topic; empty before the first stage.
    pub key: &'a [u8],
    pub text: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// Appends the tuple's bytes. Key and text are short enough for [`LONGEST`].
    pub fn write(&self, into: &mut Vec<u8>) {
        let length = HEAD + self.key.len() + self.text.len();
        debug_assert!(length <= LONGEST);
        into.extend_from_slice(&(length as u16).to_le_bytes());
        into.extend_from_slice(&[self.key.len() as u8, u8::from(self.is_measured)]);
        into.extend_from_slice(&self.count.to_le_bytes());
        into.extend_from_slice(&self.number.to_le_bytes());
        into.extend_from_slice(&self.due_ns.to_le_bytes());
        into.extend_from_slice(self.key);
        into.extend_from_slice(self.text);
    }

    /// Reads the first tuple of `bytes`; also returns its length. `None` if the tuple is incomplete.
    ///
    /// # Errors
    /// When the bytes are not a tuple.
    pub fn read(bytes: &'a [u8]) -> anyhow::Result<Option<(Self, usize)>> {
        let Some((head, _)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
        let (length, key_end) =
            (usize::from(u16::from_le_bytes([head[0], head[1]])), HEAD + usize::from(head[2]));
        if length < key_end || length > LONGEST {
            bail!("a tuple of {length} bytes with a key up to {key_end}");
        }
        let Some(whole) = bytes.get(..length) else { return Ok(None) };
        let tuple = Self {
            number: word(head, 8),
            due_ns: word(head, 16),
            is_measured: head[3] != 0,
            count: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
            key: &whole[HEAD..key_end],
            text: &whole[key_end..],
        };
        Ok(Some((tuple, length)))
    }
}

fn word(head: &[u8; HEAD], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The partition of a key, from 0 to `of` - 1, by its hash (FNV-1a).
pub fn partition(key: &[u8], of: usize) -> usize {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    // FNV-1a alone puts most of a few similar keys into one partition; the generator mixes the hash once more.
    Seed::new(hash).below(of as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Tuple<'_> =
        Tuple { number: 7, due_ns: 1 << 40, is_measured: true, count: 3, key: b"#key", text: b"some words" };

    #[test]
    fn what_was_written_is_read_when_it_is_whole() {
        let mut bytes = Vec::new();
        ONE.write(&mut bytes);
        let one = bytes.len();
        Tuple { number: 8, key: b"", ..ONE }.write(&mut bytes);
        for cut in 0..one {
            assert_eq!(Tuple::read(&bytes[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(Tuple::read(&bytes).unwrap(), Some((ONE, one)));
        let (second, length) = Tuple::read(&bytes[one..]).unwrap().unwrap();
        assert_eq!((second.number, second.key, length), (8, &b""[..], one - ONE.key.len()));
    }

    #[test]
    fn what_is_no_tuple_is_an_error() {
        let mut bytes = Vec::new();
        ONE.write(&mut bytes);
        let of_length = |length: u16| {
            let mut bytes = bytes.clone();
            bytes[..2].copy_from_slice(&length.to_le_bytes());
            Tuple::read(&bytes).map(|_| ())
        };
        assert!(of_length((HEAD + ONE.key.len()) as u16).is_ok());
        assert!(of_length((HEAD + ONE.key.len() - 1) as u16).is_err());
        assert!(of_length(LONGEST as u16 + 1).is_err());
    }

    #[test]
    fn keys_are_spread_and_each_has_its_place() {
        let mut all = [0; 4];
        for key in 0..10_000u32 {
            let key = format!("#{key:08x}");
            assert_eq!(partition(key.as_bytes(), 4), partition(key.as_bytes(), 4));
            all[partition(key.as_bytes(), 4)] += 1;
        }
        assert!(all.iter().all(|share| (2_000..3_000).contains(share)), "{all:?}");
    }
}
