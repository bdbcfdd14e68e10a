//! A list that allocates nothing while it is short, so that a wait's lists lie on the waiting thread's stack.

/// `N` elements in place and further ones on the heap, in order of insertion.
#[derive(Debug)]
pub struct Few<T, const N: usize> {
    first: [Option<T>; N],
    count: usize,
    rest: Vec<T>,
}

impl<T, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self { first: [const { None }; N], count: 0, rest: Vec::new() }
    }
}

impl<T, const N: usize> Few<T, N> {
    /// Adds an element at the end.
    pub fn push(&mut self, value: T) {
        match self.first.get_mut(self.count) {
            Some(place) => {
                *place = Some(value);
                self.count += 1;
            }
            None => self.rest.push(value),
        }
    }

    /// True when there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All elements, in order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().flatten().chain(&self.rest)
    }
}

impl<T, const N: usize> FromIterator<T> for Few<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut few = Self::default();
        all.into_iter().for_each(|value| few.push(value));
        few
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lists_need_no_memory_and_long_ones_keep_their_order() {
        let mut few: Few<u32, 2> = (0..2).collect();
        assert!(!few.is_empty() && few.rest.capacity() == 0);
        few.push(2);
        few.push(3);
        assert!(few.iter().copied().eq(0..4));
        assert!(Few::<u32, 2>::default().is_empty());
    }
}
