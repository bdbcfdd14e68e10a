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
    /// True while the channel may be given more.
    #[must_use]
    pub(crate) const fn has_room(&self) -> bool {
        self.unsent < QUEUE_MAX && self.chunks < CHUNKS_MAX
    }
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

/// The scheduler of one session: a policy, and the row of chunks that it is in.
#[derive(Debug)]
pub(crate) struct Scheduler {
    policy: Policy,
    row: Row,
}

impl Scheduler {
    pub fn new(policy: Policy) -> Self {
        Self { policy, row: Row::default() }
    }

    /// The index in `channels` of the channel for the next chunk of `socket`, one that [has room](ChannelState::has_room). `None`: the
    /// socket waits until a channel has room.
    pub fn place(&mut self, socket: u32, channels: &[ChannelState]) -> Option<usize> {
        match self.policy {
            Policy::Sticky => sticky(socket, channels),
            Policy::Shortest => self.row.place(channels, |_| shortest(channels)),
            Policy::RoundRobin => self.row.place(channels, |last| after(last, channels)),
        }
    }
}

/// Chunks that still go to the same channel before a policy chooses again.
#[derive(Debug, Default)]
struct Row {
    on: Option<Number>,
    left: u32,
}

impl Row {
    /// The channel of the row, while the row lasts and the channel has room; else the one that `choose` finds, with a new row. `choose` is
    /// told the channel of the last row.
    fn place(
        &mut self,
        channels: &[ChannelState],
        choose: impl FnOnce(Option<Number>) -> Option<usize>,
    ) -> Option<usize> {
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            let same = channels.iter().position(|state| Some(state.number) == self.on && state.has_room());
            if same.is_some() {
                return same;
            }
        }
        let chosen = choose(self.on)?;
        (self.on, self.left) = (Some(channels[chosen].number), CHUNKS_IN_A_ROW - 1);
        Some(chosen)
    }
}

/// The channel with the highest weight for this socket (rendezvous hashing, Thaler and Ravishankar 1998): when a channel goes, only its own
/// sockets move.
fn sticky(socket: u32, channels: &[ChannelState]) -> Option<usize> {
    let weight = |state: &ChannelState| {
        base::Seed::new((u64::from(socket) << 32) | u64::from(state.number.0)).next_u64()
    };
    let best = channels.iter().enumerate().max_by_key(|(_, state)| weight(state))?;
    best.1.has_room().then_some(best.0)
}

/// The channel with room that has the fewest bytes unconfirmed.
fn shortest(channels: &[ChannelState]) -> Option<usize> {
    let with_room = channels.iter().enumerate().filter(|(_, state)| state.has_room());
    with_room.min_by_key(|(_, state)| state.unconfirmed).map(|(index, _)| index)
}

/// The next channel with room behind the last one.
fn after(last: Option<Number>, channels: &[ChannelState]) -> Option<usize> {
    let first = channels.iter().position(|state| Some(state.number) > last).unwrap_or(0);
    (first..channels.len()).chain(0..first).find(|index| channels[*index].has_room())
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

    fn row(policy: &mut Scheduler, states: &[ChannelState]) -> Vec<Option<usize>> {
        (0..CHUNKS_IN_A_ROW).map(|socket| policy.place(socket, states)).collect()
    }

    #[test]
    fn sticky_moves_only_the_sockets_of_the_channel_that_is_gone() {
        let mut policy = Scheduler::new(Policy::Sticky);
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
        let mut policy = Scheduler::new(Policy::Sticky);
        let full = channels(&[QUEUE_MAX, 0]);
        let waits = (0..100).filter(|socket| policy.place(*socket, &full).is_none()).count();
        assert!((30..70).contains(&waits));
    }

    #[test]
    fn shortest_stays_for_a_row_and_then_takes_the_shortest() {
        let mut policy = Scheduler::new(Policy::Shortest);
        assert_eq!(row(&mut policy, &channels(&[5, 3, 9])), [Some(1); 6]);
        assert_eq!(row(&mut policy, &channels(&[5, 7, 9])), [Some(0); 6]);
    }

    #[test]
    fn round_robin_takes_turns_and_survives_a_channel_that_goes() {
        let mut policy = Scheduler::new(Policy::RoundRobin);
        let all = channels(&[0; 3]);
        for turn in [0, 1, 2, 0] {
            assert_eq!(row(&mut policy, &all), [Some(turn); 6]);
        }
        assert_eq!(row(&mut policy, &all[1..]), [Some(0); 6]);
        assert_eq!(row(&mut policy, &all[2..]), [Some(0); 6]);
        assert_eq!(row(&mut policy, &all[..1]), [Some(0); 6]);
    }

    #[test]
    fn full_channels_are_skipped_and_a_row_ends_there() {
        for policy in [Policy::Shortest, Policy::RoundRobin] {
            let mut policy = Scheduler::new(policy);
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
