//! Names of connections and listeners of one ring: a place in its table and the generation of what lies there.

/// Names a connection or a listener of one ring. After its close the handle is [`crate::Error::Gone`], also when another connection has its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Handle {
    /// The handle as one number, for tables and other languages.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The handle of a number; one that was never a handle's is [`crate::Error::Gone`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}
