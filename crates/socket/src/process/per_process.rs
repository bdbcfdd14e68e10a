//! A value that a forked child begins anew with, because its parent goes on with its own.

use crate::process::fork;

/// A value that each process has for itself: a forked child finds the default. It is set at its first use there, so that a child that soon
/// calls exec copies no page for it.
#[derive(Debug)]
pub struct Anew<T> {
    generation: u32,
    value: T,
}

impl<T: Default> Default for Anew<T> {
    fn default() -> Self {
        Self { generation: fork::generation(), value: T::default() }
    }
}

impl<T: Default> Anew<T> {
    /// The value of this process.
    #[inline]
    pub fn get(&mut self) -> &mut T {
        if self.generation != fork::generation() {
            *self = Self::default();
        }
        &mut self.value
    }
}
