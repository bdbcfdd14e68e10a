//! The service's own table of a region's slots and their uses. It reads nothing from shared memory.

/// The slots `first..end` of a region with their uses.
#[derive(Debug)]
pub struct Slots<T> {
    uses: Vec<Option<T>>,
    free: Vec<u32>,
    first: u32,
    end: u32,
    used: u32,
}

impl<T> Slots<T> {
    /// Slots `first..end`, all of them free.
    pub fn new(first: u32, end: u32) -> Self {
        Self { uses: Vec::new(), free: Vec::new(), first, end, used: 0 }
    }

    /// Takes a slot: the last one freed, because its cache lines are warm. Returns the use when no slot is free.
    pub fn take(&mut self, what: T) -> Result<u32, T> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = self.first + self.uses.len() as u32;
                if slot >= self.end {
                    return Err(what);
                }
                self.uses.push(None);
                slot
            }
        };
        self.uses[(slot - self.first) as usize] = Some(what);
        self.used += 1;
        Ok(slot)
    }

    /// Frees a slot and returns its use, if it had one.
    pub fn release(&mut self, slot: u32) -> Option<T> {
        let what = self.uses.get_mut(slot.checked_sub(self.first)? as usize)?.take()?;
        self.free.push(slot);
        self.used -= 1;
        Some(what)
    }

    /// The use of a slot; `None`: it is free.
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.uses.get(slot.checked_sub(self.first)? as usize)?.as_ref()
    }

    /// The use of a slot, mutable.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.uses.get_mut(slot.checked_sub(self.first)? as usize)?.as_mut()
    }

    /// The slots in use with their uses, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.uses.iter().enumerate().filter_map(|(i, u)| Some((self.first + i as u32, u.as_ref()?)))
    }

    /// The slots from this number on have never been used.
    pub fn end_used(&self) -> u32 {
        self.first + self.uses.len() as u32
    }

    /// Number of slots in use.
    pub fn used(&self) -> u32 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn a_slot_is_lent_once_and_the_last_freed_comes_first() {
        let mut s = Slots::new(1, 4);
        assert_eq!([s.take('a'), s.take('b'), s.take('c')], [Ok(1), Ok(2), Ok(3)]);
        assert_eq!(s.take('d'), Err('d'));
        assert_eq!((s.release(2), s.release(2), s.release(0), s.release(9)), (Some('b'), None, None, None));
        assert_eq!((s.take('e'), s.used(), s.get(2)), (Ok(2), 3, Some(&'e')));
        assert_eq!(s.iter().map(|(i, _)| i).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
