//! The bytes of streams: each byte is a function of stream and position, so that any part of a stream can be checked alone.

/// Length of the header at the front of a connector's stream, which contains the connection's number, in bytes.
pub const HEADER: u64 = 16;

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// One direction of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    key: u64,
    /// On the connector's stream: the connection's number, which the first [`HEADER`] bytes contain.
    header: Option<u64>,
}

impl Stream {
    /// The stream from connector to acceptor of connection `id`.
    #[must_use]
    pub fn up(id: u64) -> Self {
        Self { key: mix(id.wrapping_mul(2).wrapping_add(1)), header: Some(id) }
    }

    /// The stream from acceptor to connector of connection `id`.
    #[must_use]
    pub fn down(id: u64) -> Self {
        Self { key: mix(id.wrapping_mul(2).wrapping_add(2)), header: None }
    }

    fn word(self, index: u64) -> u64 {
        match (self.header, index) {
            (Some(id), 0) => id,
            (Some(id), 1) => mix(id ^ 0x746f_7770_6174_6821),
            _ => mix(self.key.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15))),
        }
    }

    /// Fills `out` with the bytes of the stream from `position` on.
    pub fn fill(self, position: u64, out: &mut [u8]) {
        let mut at = position;
        let mut rest = out;
        while !rest.is_empty() {
            let skip = (at % 8) as usize;
            let n = (8 - skip).min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&self.word(at / 8).to_le_bytes()[skip..skip + n]);
            at += n as u64;
            rest = later;
        }
    }

    /// The position of the first wrong byte in `bytes`, which lie at `position` in the stream.
    #[must_use]
    pub fn first_wrong(self, position: u64, bytes: &[u8]) -> Option<u64> {
        let (mut at, mut i) = (position, 0);
        while i < bytes.len() {
            let skip = (at % 8) as usize;
            let n = (8 - skip).min(bytes.len() - i);
            let word = self.word(at / 8).to_le_bytes();
            if word[skip..skip + n] != bytes[i..i + n] {
                let wrong = (0..n).find(|&k| word[skip + k] != bytes[i + k]);
                return wrong.map(|k| at + k as u64);
            }
            (at, i) = (at + n as u64, i + n);
        }
        None
    }
}

/// The connection's number in the first bytes of a stream; `None` when they are damaged.
#[must_use]
pub fn parse_header(bytes: &[u8; HEADER as usize]) -> Option<u64> {
    let id = u64::from_le_bytes(*bytes.first_chunk()?);
    Stream::up(id).first_wrong(0, bytes).is_none().then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_is_checked_by_itself() {
        let stream = Stream::up(77);
        let mut whole = [0; 100];
        stream.fill(0, &mut whole);
        for from in 0..90 {
            let mut piece = whole[from..from + 10].to_vec();
            assert_eq!(stream.first_wrong(from as u64, &piece), None);
            piece[7] ^= 1;
            assert_eq!(stream.first_wrong(from as u64, &piece), Some(from as u64 + 7));
        }
        assert_eq!(parse_header(whole.first_chunk().expect("100 bytes")), Some(77));
        whole[12] ^= 4;
        assert_eq!(parse_header(whole.first_chunk().expect("100 bytes")), None);
    }
}
