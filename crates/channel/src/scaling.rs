//! How many channels a session should have, from the load of its channels' cores (CHANNELS 2.2). No clock: the caller asks once a tick of
//! 10 ms.
//!
//! k channels take k fair shares of a bottleneck. So a session never gets a further channel while the network limits it, only while its
//! core does.

use crate::limits::CHANNELS_MAX;

/// Busy share, per thousand, above which a core counts as full.
const BUSY: u32 = 900;
/// Busy share, per thousand, below which a core counts as free.
const IDLE: u32 = 300;
/// Share of ticks' sends, per thousand, that the congestion window stopped, from which on the network is the limit.
const CONGESTED: u32 = 100;
/// Ticks in a row for one channel more: 50 ms, longer than a burst.
const TICKS_TO_GROW: u32 = 5;
/// Ticks in a row without a full congestion window after which the network is no longer the limit: longer than some round trips.
const TICKS_TO_CALM: u32 = 10;
/// Ticks in a row for one channel less: a second, so that a session does not swing.
const TICKS_TO_SHRINK: u32 = 100;

/// What a session's channels and their cores did in one tick.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Busy time of the busiest core with a channel of this session, per thousand.
    pub busy: u32,
    /// Share of attempts to send that the congestion window stopped, per thousand.
    pub congested: u32,
    /// True: another core could carry one more channel.
    pub has_free_core: bool,
}

/// What the load says about the number of channels, with the reason for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Keep the number of channels.
    Stay,
    /// One channel more: the core has been full for long enough.
    More,
    /// One channel less: the cores have been idle for long enough.
    Fewer,
    /// One channel, because the network is the limit and each further channel would take another share of it.
    One,
}

/// The state between two ticks.
#[derive(Clone, Debug, Default)]
pub struct Scaling {
    full: u32,
    idle: u32,
}

impl Scaling {
    /// The advice for a session with `channels` channels after a tick with this load.
    pub fn advise(&mut self, channels: usize, load: &Load) -> Advice {
        if load.congested >= CONGESTED {
            (self.full, self.idle) = (0, 0);
            return if channels > 1 { Advice::One } else { Advice::Stay };
        }
        let may_grow = load.busy > BUSY && load.has_free_core && channels < CHANNELS_MAX;
        self.full = if may_grow { self.full + 1 } else { 0 };
        self.idle = if load.busy < IDLE && channels > 1 { self.idle + 1 } else { 0 };
        if self.full == TICKS_TO_GROW {
            self.full = 0;
            return Advice::More;
        }
        if self.idle == TICKS_TO_SHRINK {
            self.idle = 0;
            return Advice::Fewer;
        }
        Advice::Stay
    }
}

/// What the acceptor of a session tells the opener about the network: that it is the limit, at once; that it is the limit no more, after
/// [`TICKS_TO_CALM`] ticks. So it says little, and the opener does not grow between two losses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Congestion {
    /// Ticks in a row without congestion.
    calm: u32,
    /// What was answered last.
    is: bool,
}

impl Congestion {
    /// Whether the network is the limit after a tick with that share of congested channels, per thousand.
    pub fn look(&mut self, congested: u32) -> bool {
        self.calm = if congested >= CONGESTED { 0 } else { self.calm.saturating_add(1) };
        self.is = self.calm == 0 || (self.is && self.calm < TICKS_TO_CALM);
        self.is
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Load = Load { busy: 950, congested: 0, has_free_core: true };
    const FREE: Load = Load { busy: 100, congested: 0, has_free_core: true };

    #[test]
    fn an_acceptor_says_at_once_that_the_network_is_full_and_late_that_it_is_not() {
        let mut congestion = Congestion::default();
        assert!(!congestion.look(0) && congestion.look(CONGESTED));
        for _ in 1..TICKS_TO_CALM {
            assert!(congestion.look(0));
        }
        assert!(!congestion.look(0) && !congestion.look(0));
    }

    fn ticks(scaling: &mut Scaling, channels: usize, load: Load, ticks: u32) -> Advice {
        for _ in 1..ticks {
            assert_eq!(scaling.advise(channels, &load), Advice::Stay);
        }
        scaling.advise(channels, &load)
    }

    #[test]
    fn grows_only_after_five_full_ticks_in_a_row() {
        let mut scaling = Scaling::default();
        assert_eq!(ticks(&mut scaling, 1, FULL, 4), Advice::Stay);
        assert_eq!(scaling.advise(1, &FREE), Advice::Stay);
        assert_eq!(ticks(&mut scaling, 1, FULL, 5), Advice::More);
        assert_eq!(ticks(&mut scaling, CHANNELS_MAX, FULL, 50), Advice::Stay);
        assert_eq!(ticks(&mut scaling, 1, Load { has_free_core: false, ..FULL }, 50), Advice::Stay);
    }

    #[test]
    fn one_channel_while_the_network_is_the_limit() {
        let mut scaling = Scaling::default();
        let congested = Load { congested: 100, ..FULL };
        assert_eq!(ticks(&mut scaling, 1, congested, 50), Advice::Stay);
        assert_eq!(scaling.advise(3, &congested), Advice::One);
    }

    #[test]
    fn shrinks_after_an_idle_second_and_keeps_one() {
        let mut scaling = Scaling::default();
        assert_eq!(ticks(&mut scaling, 2, FREE, 100), Advice::Fewer);
        assert_eq!(ticks(&mut scaling, 1, FREE, 300), Advice::Stay);
    }
}
