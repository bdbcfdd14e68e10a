//! Which channel carries the next chunk of a socket. Policies decide by what they are shown; they know no bytes and no time.
//!
//! All channels that a policy sees belong to one session, and so to one class and one user: see [`Lane`](crate::lane::Lane).

use crate::limits::{CHUNKS_IN_A_ROW, CHUNKS_MAX, QUEUE_MAX};
use crate::runs::Number;

/// A channel as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct ChannelState {
    /// The channel's number in its session.
    pub(crate) number: Number,
    /// Bytes placed on the channel that its transport has not taken.
    pub unsent: usize,
    /// Number of chunks that these bytes are in.
    pub chunks: usize,
    /// Bytes placed on the channel that the peers' sockets have not confirmed: also those that wait in the transport and the network.
    pub unconfirmed: u64,
}

impl ChannelState {
    /// The channel's number in its session.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number.0
    }

    /// True while the channel may be given more.
    #[must_use]
    pub(crate) const fn has_room(&self) -> bool {
        self.unsent < QUEUE_MAX && self.chunks < CHUNKS_MAX
    }
}

/// A policy of placing chunks on channels.
pub trait Scheduler: core::fmt::Debug + Send {
    /// The policy's name, for reports.
    fn name(&self) -> &'static str;

    /// The index in `channels` of the channel for the next chunk of `socket`. `None`: the socket waits until a channel has room. A policy
    /// must return one that [has room](ChannelState::has_room).
    fn place(&mut self, socket: u32, channels: &[ChannelState]) -> Option<usize>;
}

/// The policies of this crate, by the names of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// A socket stays on one channel: its bytes come in order, and one lost segment delays the sockets of one channel only. Default for
    /// sockets that need low latency.
    Sticky,
    /// The channel with the fewest bytes that the peer has not confirmed. Default for bulk data.
    Shortest,
    /// One channel after the other (the paper's prototype, section 4).
    RoundRobin,
}

impl Policy {
    /// A scheduler with this policy.
    #[must_use]
    pub fn scheduler(self) -> Box<dyn Scheduler> {
        match self {
            Self::Sticky => Box::new(Sticky),
            Self::Shortest => Box::<Shortest>::default(),
            Self::RoundRobin => Box::<RoundRobin>::default(),
        }
    }
}

/// The policy [`Policy::Sticky`], without state.
#[derive(Debug)]
struct Sticky;

impl Scheduler for Sticky {
    fn name(&self) -> &'static str {
        "sticky"
    }

    /// The channel with the highest weight for this socket (rendezvous hashing, Thaler and Ravishankar 1998): when a channel goes, only
    /// its own sockets move.
    fn place(&mut self, socket: u32, channels: &[ChannelState]) -> Option<usize> {
        let weight = |state: &ChannelState| {
            base::Seed::new((u64::from(socket) << 32) | u64::from(state.number.0)).next_u64()
        };
        let best = channels.iter().enumerate().max_by_key(|(_, state)| weight(state))?;
        best.1.has_room().then_some(best.0)
    }
}

/// Chunks that still go to the same channel before a policy chooses again.
#[derive(Debug, Default)]
struct Row {
    on: Option<Number>,
    left: u32,
}

impl Row {
    /// The channel of the row, while the row lasts and the channel has room.
    fn next(&mut self, channels: &[ChannelState]) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        channels.iter().position(|state| Some(state.number) == self.on && state.has_room())
    }

    fn begin(&mut self, on: Number) {
        (self.on, self.left) = (Some(on), CHUNKS_IN_A_ROW - 1);
    }
}

/// The policy [`Policy::Shortest`] with its row.
#[derive(Debug, Default)]
struct Shortest {
    row: Row,
}

impl Scheduler for Shortest {
    fn name(&self) -> &'static str {
        "shortest"
    }

    fn place(&mut self, _socket: u32, channels: &[ChannelState]) -> Option<usize> {
        if let Some(same) = self.row.next(channels) {
            return Some(same);
        }
        let with_room = channels.iter().enumerate().filter(|(_, state)| state.has_room());
        let (index, state) = with_room.min_by_key(|(_, state)| state.unconfirmed)?;
        self.row.begin(state.number);
        Some(index)
    }
}

/// The policy [`Policy::RoundRobin`] with its row.
#[derive(Debug, Default)]
struct RoundRobin {
    row: Row,
}

impl Scheduler for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn place(&mut self, _socket: u32, channels: &[ChannelState]) -> Option<usize> {
        if let Some(same) = self.row.next(channels) {
            return Some(same);
        }
        let after = channels.iter().position(|state| Some(state.number) > self.row.on).unwrap_or(0);
        let turns = (after..channels.len()).chain(0..after);
        let index = turns.into_iter().find(|index| channels[*index].has_room())?;
        self.row.begin(channels[index].number);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels(unsent: &[usize]) -> Vec<ChannelState> {
        let states = unsent.iter().enumerate();
        states
            .map(|(i, unsent)| ChannelState {
                number: Number(i as u32 + 1),
                unsent: *unsent,
                chunks: 1,
                unconfirmed: *unsent as u64,
            })
            .collect()
    }

    fn row(policy: &mut dyn Scheduler, states: &[ChannelState]) -> Vec<Option<usize>> {
        (0..CHUNKS_IN_A_ROW).map(|socket| policy.place(socket, states)).collect()
    }

    #[test]
    fn sticky_moves_only_the_sockets_of_the_channel_that_is_gone() {
        let mut policy = Policy::Sticky.scheduler();
        let (all, rest) = (channels(&[0; 4]), channels(&[0; 3]));
        let mut counts = [0; 4];
        for socket in 0..400 {
            let before = policy.place(socket, &all).expect("room");
            counts[before] += 1;
            assert!(before == 3 || policy.place(socket, &rest) == Some(before));
        }
        assert!(counts.iter().all(|count| (60..140).contains(count)), "{counts:?}");
    }

    #[test]
    fn sticky_waits_for_its_own_channel() {
        let mut policy = Policy::Sticky.scheduler();
        let full = channels(&[QUEUE_MAX, 0]);
        let waits = (0..100).filter(|socket| policy.place(*socket, &full).is_none()).count();
        assert!((30..70).contains(&waits));
    }

    #[test]
    fn shortest_stays_for_a_row_and_then_takes_the_shortest() {
        let mut policy = Policy::Shortest.scheduler();
        assert_eq!(row(&mut *policy, &channels(&[5, 3, 9])), [Some(1); 6]);
        assert_eq!(row(&mut *policy, &channels(&[5, 7, 9])), [Some(0); 6]);
    }

    #[test]
    fn round_robin_takes_turns_and_survives_a_channel_that_goes() {
        let mut policy = Policy::RoundRobin.scheduler();
        let all = channels(&[0; 3]);
        for turn in [0, 1, 2, 0] {
            assert_eq!(row(&mut *policy, &all), [Some(turn); 6]);
        }
        assert_eq!(row(&mut *policy, &all[1..]), [Some(0); 6]);
        assert_eq!(row(&mut *policy, &all[2..]), [Some(0); 6]);
        assert_eq!(row(&mut *policy, &all[..1]), [Some(0); 6]);
    }

    #[test]
    fn full_channels_are_skipped_and_a_row_ends_there() {
        for policy in [Policy::Shortest, Policy::RoundRobin] {
            let mut policy = policy.scheduler();
            assert_eq!(policy.place(1, &channels(&[0, 1])), Some(0));
            assert_eq!(policy.place(1, &channels(&[QUEUE_MAX, 1])), Some(1));
            assert_eq!(policy.place(1, &channels(&[QUEUE_MAX, QUEUE_MAX])), None);
            let mut many = channels(&[0, 0]);
            many[1].chunks = CHUNKS_MAX;
            assert_eq!(policy.place(1, &many), Some(0));
            assert_eq!(policy.place(1, &[]), None);
        }
    }
}
