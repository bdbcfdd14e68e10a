//! Reads numbers from a string of bytes; after its end it returns zeros.

/// The bytes that are not read yet; see the module.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn double(&mut self) -> u32 {
        u32::from(self.word()) << 16 | u32::from(self.word())
    }

    /// Reads a length, limited to `most`, and that many bytes.
    pub(crate) fn bytes(&mut self, most: usize) -> Vec<u8> {
        let n = usize::from(self.byte()).min(most).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(n);
        self.rest = rest;
        taken.to_vec()
    }

    /// Reads a number: one of the edge cases of fields, a small one, or any.
    pub(crate) fn number(&mut self) -> u32 {
        const EDGES: [u32; 12] =
            [0, 1, 2, 535, 536, 1460, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];
        match usize::from(self.byte()) {
            n if n < EDGES.len() => EDGES[n],
            n if n < 128 => n as u32,
            n if n < 160 => (n as u32).wrapping_neg(),
            _ => self.double(),
        }
    }
}
