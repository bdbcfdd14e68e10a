//! The addresses of a session's peer, and over which of them the session's next channel goes. Makes no channels and reads no clock.

use core::net::IpAddr;

use base::Instant;

use crate::limits::{RETRY_MAX, RETRY_MIN};

/// What is known of one address.
#[derive(Clone, Copy, Debug)]
struct Path {
    address: IpAddr,
    /// Channels to the address that are being made.
    pending: usize,
    /// No channel is made to the address before this time, because one has failed.
    retry_at: Instant,
    /// How long the address rests after the next failure.
    pause: base::Duration,
}

/// All addresses of a session's peer: first the one that the session was begun with, then the others.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    all: Vec<Path>,
}

impl Paths {
    /// The addresses `first`, then `others`.
    pub fn new(now: Instant, first: IpAddr, others: impl Iterator<Item = IpAddr>) -> Self {
        let path = |address| Path { address, pending: 0, retry_at: now, pause: RETRY_MIN };
        let others = others.filter(|other| *other != first);
        Self { all: core::iter::once(first).chain(others).map(path).collect() }
    }

    /// Number of the peer's addresses.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Channels that are being made.
    pub fn pending(&self) -> usize {
        self.all.iter().map(|path| path.pending).sum()
    }

    /// The addresses that a channel may go to. `only_first`: the peer does not know the session yet, and the others may be addresses of
    /// another host.
    fn usable(&self, only_first: bool) -> impl Iterator<Item = &Path> {
        self.all.iter().take(if only_first { 1 } else { self.all.len() })
    }

    /// From when on some address does not rest.
    pub fn due(&self, only_first: bool) -> Instant {
        self.usable(only_first).map(|path| path.retry_at).min().unwrap_or(Instant::NEVER)
    }

    /// The address for the next channel: of those that do not rest the one with the fewest channels, the first of several. `open`: the number
    /// of channels to an address.
    pub fn next(&self, now: Instant, only_first: bool, open: impl Fn(IpAddr) -> usize) -> Option<IpAddr> {
        let awake = self.usable(only_first).filter(|path| path.retry_at <= now);
        awake.min_by_key(|path| path.pending + open(path.address)).map(|path| path.address)
    }

    /// When to try an address without a channel, while another one has several: channels go back to an address that was dead.
    pub fn uneven(&self, open: impl Fn(IpAddr) -> usize) -> Option<Instant> {
        let is_crowded = self.all.iter().any(|path| open(path.address) > 1);
        let empty = self.all.iter().filter(|path| open(path.address) == 0);
        empty.map(|path| path.retry_at).min().filter(|_| is_crowded)
    }

    /// A channel to the address is being made.
    pub fn begin(&mut self, address: IpAddr) {
        self.change(address, |path| path.pending += 1);
    }

    /// The channel is made.
    pub fn made(&mut self, address: IpAddr) {
        self.change(address, |path| {
            path.pending = path.pending.saturating_sub(1);
            path.pause = RETRY_MIN;
        });
    }

    /// The channel cannot be made: the address rests.
    pub fn not_made(&mut self, now: Instant, address: IpAddr) {
        self.change(address, |path| path.pending = path.pending.saturating_sub(1));
        self.rest(now, address);
    }

    /// A channel to the address has died: the address rests if there is another one to go to.
    pub fn lost(&mut self, now: Instant, address: IpAddr) {
        if self.all.len() > 1 {
            self.rest(now, address);
        }
    }

    fn rest(&mut self, now: Instant, address: IpAddr) {
        self.change(address, |path| {
            path.retry_at = now.plus(path.pause);
            path.pause = path.pause.times(2).min(RETRY_MAX);
        });
    }

    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut Path)) {
        if let Some(path) = self.all.iter_mut().find(|path| path.address == address) {
            change(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, last, 1])
    }

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_ms(ms))
    }

    fn paths(number: u8) -> Paths {
        Paths::new(Instant::ZERO, address(0), (0..number).map(address))
    }

    #[test]
    fn channels_go_over_the_addresses_in_turn() {
        let mut paths = paths(3);
        let mut turns = Vec::new();
        for _ in 0..6 {
            let next = paths.next(Instant::ZERO, false, |_| 0).unwrap();
            paths.begin(next);
            turns.push(next);
        }
        assert_eq!(turns, [0, 1, 2, 0, 1, 2].map(address));
        assert_eq!(paths.pending(), 6);
    }

    #[test]
    fn an_unknown_session_begins_at_its_own_address_alone() {
        let mut paths = paths(2);
        for _ in 0..3 {
            assert_eq!(paths.next(Instant::ZERO, true, |_| 0), Some(address(0)));
            paths.begin(address(0));
        }
        paths.not_made(Instant::ZERO, address(0));
        assert_eq!(paths.next(Instant::ZERO, true, |_| 0), None);
        assert_eq!((paths.due(true), paths.due(false)), (at_ms(50), Instant::ZERO));
    }

    #[test]
    fn an_address_that_fails_rests_for_longer_each_time() {
        let mut paths = paths(2);
        let mut now = Instant::ZERO;
        for pause_ms in [50, 100, 200, 400, 800, 1_000, 1_000] {
            paths.begin(address(0));
            paths.not_made(now, address(0));
            assert_eq!(paths.next(now, false, |_| 7), Some(address(1)));
            let due = paths.due(true);
            assert_eq!(due, now.plus(Duration::from_ms(pause_ms)));
            now = due;
        }
        let is_second = |at: IpAddr| usize::from(at == address(1));
        assert_eq!(paths.next(now, false, is_second), Some(address(0)), "it rests no more");
        paths.begin(address(0));
        paths.made(address(0));
        paths.not_made(now, address(0));
        assert_eq!(paths.due(true), now.plus(RETRY_MIN), "a channel was made between");
    }

    #[test]
    fn an_empty_address_is_tried_again_while_another_is_crowded() {
        let mut paths = paths(2);
        let open = |first, second| move |at: IpAddr| if at == address(0) { first } else { second };
        assert_eq!(paths.uneven(open(1, 0)), None);
        assert_eq!(paths.uneven(open(1, 2)), None);
        assert_eq!(paths.uneven(open(2, 0)), Some(Instant::ZERO));
        paths.lost(at_ms(10), address(1));
        assert_eq!(paths.uneven(open(2, 0)), Some(at_ms(60)));
    }

    #[test]
    fn the_only_address_does_not_rest_for_a_channel_that_dies() {
        let mut paths = paths(1);
        paths.lost(at_ms(10), address(0));
        assert_eq!(paths.next(at_ms(10), false, |_| 0), Some(address(0)));
    }
}
