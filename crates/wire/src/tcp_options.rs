//! TCP options: maximum segment size (RFC 9293), window scale and timestamps (RFC 7323), SACK (RFC 2018).
//!
//! Unknown kinds are skipped by their length; an impossible length is an error (RFC 9293, MUST-7). `emit` aligns options to
//! four bytes, in the order that Linux uses.

use base::SeqNumber;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// NOP, NOP, kind 8, length 10: the first four bytes of the options in almost every segment of an established connection.
pub(crate) const TIMESTAMPS_PREFIX: u32 = 0x0101_080A;

error_enum! {
    /// Why TCP options could not be read or written.
    TcpOptionsError {
        /// a TCP option's length is below 2
        LengthTooShort,
        /// a TCP option runs past the end of the header
        PastTheEnd,
        /// a TCP option of a known kind has a length that kind cannot have
        WrongLength,
        /// the TCP options do not fit in 40 bytes
        TooLong,
        /// the buffer is too small for the TCP options
        BufferTooSmall,
    }
}

/// The timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the last clock value received from the other end; valid with ACK.
    pub echo: u32,
}

/// A block of bytes received out of order: `[left, right)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SackBlock {
    /// Sequence number of its first byte.
    pub left: SeqNumber,
    /// Sequence number behind its last byte.
    pub right: SeqNumber,
}

/// Up to four SACK blocks, the most recent first.
#[derive(Clone, Copy, Debug, Default)]
pub struct SackBlocks {
    blocks: [SackBlock; SackBlocks::MAX],
    len: u8,
}

impl SackBlocks {
    /// The largest number of blocks that fit in 40 bytes of options.
    pub const MAX: usize = 4;
    /// A list without blocks.
    pub const EMPTY: Self =
        Self { blocks: [SackBlock { left: SeqNumber(0), right: SeqNumber(0) }; Self::MAX], len: 0 };

    /// The blocks as a slice.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[SackBlock] {
        self.blocks.get(..self.len as usize).unwrap_or(&self.blocks)
    }

    /// The number of blocks.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// True when there are no blocks.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a block; returns false when four are there already.
    #[inline]
    pub fn push(&mut self, block: SackBlock) -> bool {
        match self.blocks.get_mut(self.len as usize) {
            Some(slot) => {
                *slot = block;
                self.len += 1;
                true
            }
            None => false,
        }
    }
}

impl PartialEq for SackBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SackBlocks {}

/// The options of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// Kind 2: the largest segment that the sender accepts, bytes (only with SYN).
    pub mss: Option<u16>,
    /// Kind 3: shift of the sender's later window fields, 0 to 14 (only with SYN).
    pub window_scale: Option<u8>,
    /// Kind 4: the sender accepts SACK (only with SYN).
    pub sack_permitted: bool,
    /// Kind 8: the timestamps option.
    pub timestamps: Option<Timestamps>,
    /// Kind 5: bytes that the sender has received out of order.
    pub sack: SackBlocks,
}

/// Reads the common case, 12 bytes NOP NOP timestamps and nothing else, with one comparison of length and one of 32 bits.
/// `None` for any other options; [`TcpOptions::parse`] reads those.
#[must_use]
#[inline]
pub fn timestamps_only(options: &[u8]) -> Option<Timestamps> {
    let [p0, p1, p2, p3, v0, v1, v2, v3, e0, e1, e2, e3] = *<&[u8; 12]>::try_from(options).ok()?;
    (u32::from_be_bytes([p0, p1, p2, p3]) == TIMESTAMPS_PREFIX).then_some(Timestamps {
        value: u32::from_be_bytes([v0, v1, v2, v3]),
        echo: u32::from_be_bytes([e0, e1, e2, e3]),
    })
}

impl TcpOptions {
    /// A segment without options.
    pub const NONE: Self = Self {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamps: None,
        sack: SackBlocks::EMPTY,
    };
    /// Largest length of all options in a header, bytes.
    pub const LEN_MAX: usize = 40;
    /// The largest window shift (RFC 7323 section 2.3); a larger one counts as this.
    pub const WINDOW_SCALE_MAX: u8 = 14;

    /// The timestamps option and no other.
    #[must_use]
    #[inline]
    pub const fn with_timestamps(value: u32, echo: u32) -> Self {
        Self { timestamps: Some(Timestamps { value, echo }), ..Self::NONE }
    }

    /// Sets timestamps as the only option. The old SACK blocks stay in memory behind the length 0.
    #[inline]
    pub(crate) const fn begin_with(&mut self, timestamps: Timestamps) {
        (self.mss, self.window_scale, self.sack_permitted) = (None, None, false);
        (self.timestamps, self.sack.len) = (Some(timestamps), 0);
    }

    /// Reads `bytes`, the header from byte 20 to the data offset. The last of repeated options counts.
    ///
    /// # Errors
    /// `LengthTooShort`, `PastTheEnd` or `WrongLength`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, TcpOptionsError> {
        if bytes.is_empty() {
            return Ok(Self::NONE);
        }
        if let Some(timestamps) = timestamps_only(bytes) {
            return Ok(Self { timestamps: Some(timestamps), ..Self::NONE });
        }
        Self::walk(bytes)
    }

    #[cold]
    #[inline(never)]
    fn walk(bytes: &[u8]) -> Result<Self, TcpOptionsError> {
        let mut options = Self::NONE;
        let mut rest = bytes;
        // Every iteration removes at least one byte from `rest`.
        while let [kind, tail @ ..] = rest {
            rest = match *kind {
                END => break,
                NOP => tail,
                kind => {
                    let len = *tail.first().ok_or(TcpOptionsError::PastTheEnd)? as usize;
                    if len < 2 {
                        return Err(TcpOptionsError::LengthTooShort);
                    }
                    let data = rest.get(2..len).ok_or(TcpOptionsError::PastTheEnd)?;
                    options.take(kind, data)?;
                    &rest[len..]
                }
            };
        }
        Ok(options)
    }

    /// Stores one option; `data` is its bytes behind kind and length.
    fn take(&mut self, kind: u8, data: &[u8]) -> Result<(), TcpOptionsError> {
        match (kind, data) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(Self::WINDOW_SCALE_MAX)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let (value, echo) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                self.timestamps = Some(Timestamps { value, echo });
            }
            (SACK, data) if data.len() % 8 == 0 => {
                self.sack = SackBlocks::EMPTY;
                for block in data.chunks_exact(8) {
                    let at = |i: usize| {
                        SeqNumber(u32::from_be_bytes([block[i], block[i + 1], block[i + 2], block[i + 3]]))
                    };
                    if !self.sack.push(SackBlock { left: at(0), right: at(4) }) {
                        return Err(TcpOptionsError::WrongLength);
                    }
                }
            }
            (MSS | WINDOW_SCALE | SACK_PERMITTED | TIMESTAMPS | SACK, _) => {
                return Err(TcpOptionsError::WrongLength);
            }
            _ => {}
        }
        Ok(())
    }

    /// Length that [`Self::emit`] writes: a multiple of 4 bytes.
    #[must_use]
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        // Alone, "SACK permitted" needs two NOPs; beside timestamps it replaces theirs.
        let sack_permitted = if self.sack_permitted && self.timestamps.is_none() { 4 } else { 0 };
        let timestamps = if self.timestamps.is_some() { 12 } else { 0 };
        let window_scale = if self.window_scale.is_some() { 4 } else { 0 };
        let sack = if self.sack.is_empty() { 0 } else { 4 + 8 * self.sack.len() };
        mss + sack_permitted + timestamps + window_scale + sack
    }

    /// Number of SACK blocks that fit beside the other options.
    #[must_use]
    #[inline]
    pub const fn sack_room(&self) -> usize {
        let others = Self { sack: SackBlocks::EMPTY, ..*self }.encoded_len();
        (Self::LEN_MAX - others).saturating_sub(4) / 8
    }

    /// Writes the options at the start of `buffer` and returns their length, a multiple of 4 up to 40.
    ///
    /// # Errors
    /// `TooLong` or `BufferTooSmall`.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, TcpOptionsError> {
        let len = self.encoded_len();
        if len == 0 {
            return Ok(0);
        }
        if len > Self::LEN_MAX {
            return Err(TcpOptionsError::TooLong);
        }
        let mut rest = buffer.get_mut(..len).ok_or(TcpOptionsError::BufferTooSmall)?;
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            rest = put(rest, [MSS, 4, a, b]);
        }
        if let Some(timestamps) = self.timestamps {
            let lead = if self.sack_permitted { [SACK_PERMITTED, 2] } else { [NOP, NOP] };
            rest = put(rest, [lead[0], lead[1], TIMESTAMPS, 10]);
            rest = put(rest, timestamps.value.to_be_bytes());
            rest = put(rest, timestamps.echo.to_be_bytes());
        } else if self.sack_permitted {
            rest = put(rest, [NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            rest = put(rest, [NOP, WINDOW_SCALE, 3, shift.min(Self::WINDOW_SCALE_MAX)]);
        }
        if !self.sack.is_empty() {
            rest = put(rest, [NOP, NOP, SACK, 2 + 8 * self.sack.len]);
            for block in self.sack.as_slice() {
                rest = put(rest, block.left.0.to_be_bytes());
                rest = put(rest, block.right.0.to_be_bytes());
            }
        }
        debug_assert!(rest.is_empty(), "encoded_len and emit disagree");
        Ok(len)
    }
}

/// Writes four bytes and returns the rest of the buffer, which is as long as `encoded_len` says.
#[inline]
fn put(rest: &mut [u8], bytes: [u8; 4]) -> &mut [u8] {
    match rest.split_first_chunk_mut::<4>() {
        Some((slot, tail)) => {
            *slot = bytes;
            tail
        }
        None => &mut [],
    }
}

#[cfg(test)]
mod tests;
