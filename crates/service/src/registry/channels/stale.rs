//! Finds channels on a dead way through the network, while another channel of the same session gets through. Their bytes then go over the
//! others seconds after the death, where a session with one channel waits for its PINGs. Reads no clock.

use super::flows::Flows;
use base::{Duration, Instant};
use channel::{ChannelId, Hub};

/// Time between two looks.
const TICK: Duration = Duration::from_secs(1);
/// Retransmission timeouts in a row after which a channel is given up: what Linux has for a subflow of MPTCP (`stale_loss_cnt`). With the least
/// timeout of 200 ms they take 3 s.
const TIMEOUTS: u8 = 4;

/// When channels are looked at.
#[derive(Debug, Default)]
pub struct Stale {
    at: Instant,
    /// A session has sockets and several channels.
    must_look: bool,
}

impl Stale {
    /// Looks, if a look is due. What is given up is gone for the hub, which then has the connection ended.
    pub fn tick(&mut self, now: Instant, hub: &mut Hub, flows: &Flows) {
        if now < self.at {
            return;
        }
        (self.at, self.must_look) = (now.plus(TICK), false);
        let mut stale = Vec::new();
        for (_, session) in hub.sessions() {
            let timeouts = |id| flows.seen(id).map(|seen| seen.timeouts);
            let channels = session.channels_by_address().map(|(id, ..)| (id, timeouts(id)));
            if session.sockets() > 0 && session.channels().nth(1).is_some() {
                self.must_look = true;
                stale.extend(dead(&channels.collect::<Vec<_>>()));
            }
        }
        stale.into_iter().for_each(|id| hub.gone(now, id));
    }

    /// When the next look is due.
    pub fn deadline(&self) -> Instant {
        if self.must_look { self.at } else { Instant::NEVER }
    }
}

/// The channels of one session to give up, by their timeouts in a row. When none gets through, all wait: the peer may be what stands still.
fn dead(channels: &[(ChannelId, Option<u8>)]) -> impl Iterator<Item = ChannelId> {
    let has_good = channels.iter().any(|(_, timeouts)| *timeouts == Some(0));
    let is_dead =
        move |timeouts: Option<u8>| has_good && timeouts.is_some_and(|timeouts| timeouts >= TIMEOUTS);
    channels.iter().filter(move |(_, timeouts)| is_dead(*timeouts)).map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_given_up_only_beside_one_that_gets_through() {
        let none: [u32; 0] = [];
        let of = |timeouts: &[Option<u8>]| {
            let channels: Vec<_> = (0..).map(ChannelId).zip(timeouts.iter().copied()).collect();
            dead(&channels).map(|id| id.0).collect::<Vec<_>>()
        };
        assert_eq!(of(&[Some(0), Some(TIMEOUTS), Some(TIMEOUTS - 1), None]), [1]);
        assert_eq!(of(&[Some(9), Some(TIMEOUTS)]), none, "the peer stands still");
        assert_eq!(of(&[Some(9), Some(1)]), none);
        assert_eq!(of(&[None, Some(9)]), none, "nothing is known of the other one");
        assert_eq!(of(&[Some(0), Some(0)]), none);
    }
}
