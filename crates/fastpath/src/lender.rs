//! Records that flows borrow from their core, made with the cores: those lent, by number, and those idle.
//!
//! A peer gets a record while what it has is a small enough part of what is idle ([`Part`]): the fewer are left, the fewer each may have. So a peer, on
//! however many connections, leaves something of what those before it have left to the next.

use flow::PEERS;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Idle records that a core keeps at most when several cores share them, and how many it takes from them, or returns, at once.
const CACHE: usize = 64;
const SHARE: usize = 32;

/// A peer gets a record while `times` the number that it has is below `of` times the number of idle ones: at last it has `of` parts of the
/// `times + of` that those before it have left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub times: usize,
    pub of: usize,
}

/// The idle records that all cores of a service share.
// SETUP: the lock is only tried; a core that does not get it goes on with the records that it has.
#[derive(Debug)]
pub(crate) struct Stock<T> {
    idle: Arc<std::sync::Mutex<Vec<T>>>,
    /// Length of `idle`, for a core that does not hold the lock.
    left: Arc<AtomicUsize>,
    /// Number of records in all.
    count: usize,
}

/// The records of a core.
#[derive(Debug)]
pub(crate) struct Lender<T> {
    lent: Box<[Option<T>]>,
    /// For each of `lent`: the peer whose flow has it (`Cold::peer`).
    whose: Box<[u16]>,
    /// Number of records that each peer has of this core.
    peers: Box<[u16]>,
    /// Numbers of `lent` without a record.
    free: Vec<u16>,
    idle: Vec<T>,
    /// The records of all cores, if there are several.
    stock: Option<Stock<T>>,
    /// What a peer may have.
    part: Part,
}

impl<T> Clone for Stock<T> {
    fn clone(&self) -> Self {
        Self { idle: self.idle.clone(), left: self.left.clone(), count: self.count }
    }
}

impl<T> Stock<T> {
    /// As many records as `count`, below 65,535.
    // SETUP: made with the cores.
    pub(crate) fn new(count: usize, make: impl Fn() -> T) -> Self {
        let idle = (0..count).map(|_| make()).collect();
        let left = Arc::new(AtomicUsize::new(count));
        Self { idle: Arc::new(std::sync::Mutex::new(idle)), left, count }
    }

    /// Moves up to `SHARE` records to `idle`. None when another core is at it just now.
    #[cold]
    fn fill(&self, idle: &mut Vec<T>) {
        if let Ok(mut all) = self.idle.try_lock() {
            let left = all.len().saturating_sub(SHARE);
            idle.extend(all.drain(left..));
            self.left.store(left, Ordering::Relaxed);
        }
    }

    /// Moves `SHARE` records back from `idle`, unless another core is at it just now.
    #[cold]
    fn spill(&self, idle: &mut Vec<T>) {
        if let Ok(mut all) = self.idle.try_lock() {
            all.extend(idle.drain(idle.len().saturating_sub(SHARE)..));
            self.left.store(all.len(), Ordering::Relaxed);
        }
    }
}

impl<T> Lender<T> {
    /// The records of a core that is alone.
    // SETUP: made with the core.
    pub(crate) fn new(count: usize, part: Part, make: impl Fn() -> T) -> Self {
        Self { idle: (0..count).map(|_| make()).collect(), ..Self::numbers(count, part) }
    }

    /// The records of a core that shares them with others. It has a number for each record of all.
    // SETUP: made with the core.
    pub(crate) fn shared(stock: Stock<T>, part: Part) -> Self {
        let lender = Self::numbers(stock.count, part);
        Self { idle: Vec::with_capacity(stock.count), stock: Some(stock), ..lender }
    }

    // SETUP: made with the core.
    fn numbers(count: usize, part: Part) -> Self {
        Self {
            lent: (0..count).map(|_| None).collect(),
            whose: vec![0; count].into(),
            peers: vec![0; PEERS].into(),
            free: (0..count as u16).rev().collect(),
            idle: Vec::new(),
            stock: None,
            part,
        }
    }

    /// Number of records that are lent by this core.
    pub(crate) fn lent(&self) -> usize {
        self.lent.len() - self.free.len()
    }

    /// Takes an idle record for a flow of this peer, if there is one and the peer has no more than its part.
    #[must_use]
    pub(crate) fn idle(&mut self, peer: u16) -> Option<T> {
        let left = self.stock.as_ref().map_or(0, |stock| stock.left.load(Ordering::Relaxed));
        let its = usize::from(self.peers[usize::from(peer)]);
        if self.part.times * its >= self.part.of * (self.idle.len() + left) {
            return None;
        }
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

    /// Lends a record, of this core, or of a flow that comes from another core, to a flow of this peer. Returns 1 + its number.
    pub(crate) fn put_in(&mut self, record: T, peer: u16) -> u16 {
        let number = self.free.pop().expect("a core has a number for each record of all cores");
        self.lent[usize::from(number)] = Some(record);
        self.whose[usize::from(number)] = peer;
        self.peers[usize::from(peer)] += 1;
        number + 1
    }

    /// Takes a record that is lent out, and sets its number to 0.
    pub(crate) fn take_out(&mut self, number: &mut u16) -> Option<T> {
        let index = std::mem::take(number).checked_sub(1)?;
        self.free.push(index);
        self.peers[usize::from(self.whose[usize::from(index)])] -= 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Part = Part { times: 2, of: 1 };

    /// Lends to the peer until it gets none; returns how many it got.
    fn greedy(lender: &mut Lender<u8>, peer: u16) -> usize {
        (0..1_000)
            .take_while(|_| lender.idle(peer).map(|record| lender.put_in(record, peer)).is_some())
            .count()
    }

    #[test]
    fn greedy_peers_leave_something_to_the_next() {
        for count in [64, 256, 1024] {
            let mut lender = Lender::new(count, HALF, || 0);
            let mut left = count;
            for peer in 0..8 {
                let got = greedy(&mut lender, peer);
                assert!(got > 0 && 3 * got <= left + 2, "{count}, {peer}: {got} of {left}");
                left -= got;
            }
            assert!(left > 0);
        }
        let mut lender = Lender::new(1, HALF, || 0);
        assert_eq!((greedy(&mut lender, 5), greedy(&mut lender, 5)), (1, 0), "the last one is lent, too");
    }

    #[test]
    fn what_comes_back_is_the_peers_again_also_by_another_core() {
        let stock = Stock::new(256, || 0);
        let (mut here, mut there) = (Lender::shared(stock.clone(), HALF), Lender::shared(stock, HALF));
        let mut numbers: Vec<u16> = (0..8)
            .map(|_| here.idle(7).map(|record| here.put_in(record, 7)).expect("some are idle"))
            .collect();
        let lent = here.lent();
        for number in &mut numbers {
            let record = here.take_out(number).expect("lent");
            *number = there.put_in(record, 7);
        }
        assert_eq!((lent, here.lent(), there.lent(), here.peers[7], there.peers[7]), (8, 0, 8, 0, 8));
        for number in &mut numbers {
            let record = there.take_out(number).expect("lent");
            there.give_back(record);
        }
        assert_eq!((there.lent(), there.peers[7]), (0, 0));
        // What lies in the stock counts as idle.
        assert!(greedy(&mut there, 7) > SHARE);
    }
}
