//! A value that a forked child begins anew with, because its parent goes on with its own.

/// A value that each process has for itself: a forked child finds the default. It is set at its first use there, so that a child that soon
/// calls exec copies no page for it.
#[derive(Debug, Default)]
pub struct PerProcess<T> {
    generation: u32,
    value: T,
}

impl<T: Default> PerProcess<T> {
    /// The value of the process of that generation ([`crate::host::Host::generation`]).
    #[inline]
    pub fn get(&mut self, generation: u32) -> &mut T {
        if self.generation != generation {
            *self = Self { generation, value: T::default() };
        }
        &mut self.value
    }
}
