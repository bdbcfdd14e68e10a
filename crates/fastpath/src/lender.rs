//! Records that flows borrow from their core, made with the cores: those lent, by number, and those idle.

use std::sync::Arc;

/// Idle records that a core keeps at most when several cores share them, and how many it takes from them, or returns, at once.
const CACHE: usize = 64;
const SHARE: usize = 32;

/// The idle records that all cores of a service share.
// SETUP: the lock is only tried; a core that does not get it goes on with the records that it has.
#[derive(Debug)]
pub(crate) struct Stock<T> {
    idle: Arc<std::sync::Mutex<Vec<T>>>,
    /// Number of records in all.
    count: usize,
}

/// The records of a core.
#[derive(Debug)]
pub(crate) struct Lender<T> {
    lent: Box<[Option<T>]>,
    /// Numbers of `lent` without a record.
    free: Vec<u16>,
    idle: Vec<T>,
    /// The records of all cores, if there are several.
    stock: Option<Stock<T>>,
}

impl<T> Clone for Stock<T> {
    fn clone(&self) -> Self {
        Self { idle: self.idle.clone(), count: self.count }
    }
}

impl<T> Stock<T> {
    /// As many records as `count`, below 65,535.
    // SETUP: made with the cores.
    pub(crate) fn new(count: usize, make: impl Fn() -> T) -> Self {
        let idle = (0..count).map(|_| make()).collect();
        Self { idle: Arc::new(std::sync::Mutex::new(idle)), count }
    }

    /// Moves up to `SHARE` records to `idle`. None when another core is at it just now.
    #[cold]
    fn fill(&self, idle: &mut Vec<T>) {
        if let Ok(mut all) = self.idle.try_lock() {
            let left = all.len().saturating_sub(SHARE);
            idle.extend(all.drain(left..));
        }
    }

    /// Moves `SHARE` records back from `idle`, unless another core is at it just now.
    #[cold]
    fn spill(&self, idle: &mut Vec<T>) {
        if let Ok(mut all) = self.idle.try_lock() {
            all.extend(idle.drain(idle.len().saturating_sub(SHARE)..));
        }
    }
}

impl<T> Lender<T> {
    /// The records of a core that is alone.
    // SETUP: made with the core.
    pub(crate) fn new(count: usize, make: impl Fn() -> T) -> Self {
        Self { idle: (0..count).map(|_| make()).collect(), ..Self::numbers(count) }
    }

    /// The records of a core that shares them with others. It has a number for each record of all.
    // SETUP: made with the core.
    pub(crate) fn shared(stock: Stock<T>) -> Self {
        let lender = Self::numbers(stock.count);
        Self { idle: Vec::with_capacity(stock.count), stock: Some(stock), ..lender }
    }

    // SETUP: made with the core.
    fn numbers(count: usize) -> Self {
        let lent = (0..count).map(|_| None).collect();
        Self { lent, free: (0..count as u16).rev().collect(), idle: Vec::new(), stock: None }
    }

    /// Number of records of all cores.
    pub(crate) fn count(&self) -> usize {
        self.lent.len()
    }

    /// Number of records that are lent by this core.
    pub(crate) fn lent(&self) -> usize {
        self.lent.len() - self.free.len()
    }

    /// Takes an idle record, if there is one.
    pub(crate) fn idle(&mut self) -> Option<T> {
        if let (true, Some(stock)) = (self.idle.is_empty(), &self.stock) {
            stock.fill(&mut self.idle);
        }
        self.idle.pop()
    }

    /// Takes a record back that was taken out, or never lent.
    pub(crate) fn give_back(&mut self, record: T) {
        self.idle.push(record);
        if let (true, Some(stock)) = (self.idle.len() > CACHE, &self.stock) {
            stock.spill(&mut self.idle);
        }
    }

    /// Lends a record: of this core, or of a flow that comes from another core. Returns 1 + its number.
    pub(crate) fn put_in(&mut self, record: T) -> u16 {
        let number = self.free.pop().expect("a core has a number for each record of all cores");
        self.lent[usize::from(number)] = Some(record);
        number + 1
    }

    /// Takes a record that is lent out, and sets its number to 0.
    pub(crate) fn take_out(&mut self, number: &mut u16) -> Option<T> {
        let index = std::mem::take(number).checked_sub(1)?;
        self.free.push(index);
        self.lent[usize::from(index)].take()
    }

    /// The record that is lent under this number.
    pub(crate) fn of(&self, number: u16) -> Option<&T> {
        self.lent.get(usize::from(number).checked_sub(1)?)?.as_ref()
    }

    /// The same, for changing it.
    pub(crate) fn of_mut(&mut self, number: u16) -> Option<&mut T> {
        self.lent.get_mut(usize::from(number).checked_sub(1)?)?.as_mut()
    }
}
