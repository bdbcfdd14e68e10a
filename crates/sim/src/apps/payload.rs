//! The bytes of streams: each byte is a function of stream and position, so that any part of a stream can be checked alone.
//!
//! All streams are cut from one table of random bytes, each from its own place on. Its length is a prime, so that a piece that arrives at a
//! wrong position is wrong bytes: the sizes of rings and windows are no multiples of it.

use base::Seed;
use std::sync::LazyLock;

/// Length of the header at the front of a connector's stream, which contains the connection's number, in bytes.
pub const HEADER: u64 = 16;

/// Bytes after which the table begins anew: a prime.
const PERIOD: usize = 1_048_573;
/// The longest piece that the table gives as one slice.
const PIECE_MAX: usize = 1 << 16;

static TABLE: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut rng = Seed::new(0x746f_7770_6174_6821);
    let mut bytes: Vec<u8> = (0..PERIOD.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(PERIOD);
    bytes.extend_from_within(..PIECE_MAX);
    bytes.into()
});

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// One direction of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Where in the table it begins.
    start: u64,
    /// On the connector's stream: the connection's number, which the first [`HEADER`] bytes contain.
    header: Option<u64>,
}

impl Stream {
    /// The stream from connector to acceptor of connection `id`.
    #[must_use]
    pub fn up(id: u64) -> Self {
        Self { start: mix(id.wrapping_mul(2).wrapping_add(1)) % PERIOD as u64, header: Some(id) }
    }

    /// The stream from acceptor to connector of connection `id`.
    #[must_use]
    pub fn down(id: u64) -> Self {
        Self { start: mix(id.wrapping_mul(2).wrapping_add(2)) % PERIOD as u64, header: None }
    }

    /// The bytes from `position` on: `len` of them, or the first of these. Those of a header are put into `header`.
    #[must_use]
    pub fn piece(self, position: u64, len: usize, header: &mut [u8; HEADER as usize]) -> &[u8] {
        if let Some(id) = self.header.filter(|_| position < HEADER) {
            header[..8].copy_from_slice(&id.to_le_bytes());
            header[8..].copy_from_slice(&mix(id ^ 0x746f_7770_6174_6821).to_le_bytes());
            let rest = &header[position as usize..];
            return &rest[..len.min(rest.len())];
        }
        let at = ((self.start + position) % PERIOD as u64) as usize;
        &TABLE[at..][..len.min(PIECE_MAX)]
    }

    /// The position of the first wrong byte in `bytes`, which lie at `position` in the stream.
    #[must_use]
    pub fn first_wrong(self, position: u64, bytes: &[u8]) -> Option<u64> {
        let mut done = 0;
        while done < bytes.len() {
            let (mut header, at) = ([0; HEADER as usize], position + done as u64);
            let right = self.piece(at, bytes.len() - done, &mut header);
            let here = &bytes[done..][..right.len()];
            if here != right {
                let wrong = here.iter().zip(right).position(|(a, b)| a != b);
                return wrong.map(|i| at + i as u64);
            }
            done += right.len();
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
        let mut whole = Vec::new();
        while whole.len() < 100 {
            let (mut header, at) = ([0; HEADER as usize], whole.len());
            whole.extend_from_slice(stream.piece(at as u64, 100 - at, &mut header));
        }
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

    #[test]
    fn a_piece_at_a_wrong_position_is_wrong() {
        let (stream, mut header) = (Stream::down(3), [0; HEADER as usize]);
        let piece = stream.piece(5 << 20, 1448, &mut header);
        assert_eq!(stream.first_wrong(5 << 20, piece), None);
        for shift in [1, 8, 1448, 4096, 1 << 16, 1 << 20, 1 << 21, 1 << 32] {
            assert!(stream.first_wrong((5 << 20) + shift, piece).is_some(), "{shift}");
        }
        assert!(Stream::down(4).first_wrong(5 << 20, piece).is_some());
    }
}
