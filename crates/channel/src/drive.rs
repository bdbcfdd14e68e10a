//! One round of a hub over a transport: what a core does for its channels in each turn of its loop. The hub decides, the transport moves
//! bytes; this file only joins the calls.

use base::Instant;

use crate::hub::Hub;
use crate::streams::Streams;
use crate::transport::{ChannelId, Gone, Transport};

/// Bytes taken from one channel before the next is served: about four frames of bulk data, some forty microseconds. What a round costs beside
/// its bytes (an answer to the peer, the wake-up of a program) is then paid once for all four.
const TURN: usize = 256 << 10;

/// One whole round: [`receive`], then [`send`]. A caller that takes the events between the two has what they ask for in the same round.
/// Returns true when some channel may have more to do at once.
pub fn round<T: Transport>(
    now: Instant,
    hub: &mut Hub,
    transport: &mut T,
    metadata: &T::Metadata,
    channels: &[ChannelId],
    streams: &mut impl Streams,
) -> bool {
    let has_more = receive(now, hub, transport, metadata, channels, streams);
    send(now, hub, transport, channels, streams) | has_more
}

/// Makes the channels that sessions need, and takes in what has come over `channels`. Returns true when more has come than one turn takes.
pub fn receive<T: Transport>(
    now: Instant,
    hub: &mut Hub,
    transport: &mut T,
    metadata: &T::Metadata,
    channels: &[ChannelId],
    streams: &mut impl Streams,
) -> bool {
    hub.tick(now);
    while let Some(wanted) = hub.poll_create() {
        match transport.create(wanted.address, metadata) {
            Ok(channel) => hub.created(now, wanted, channel),
            Err(Gone) => hub.not_created(now, wanted),
        }
    }
    let mut has_more = false;
    for channel in channels {
        let came =
            transport.dequeue(*channel, TURN, &mut |bytes| hub.received(now, *channel, bytes, streams));
        has_more |= came == Ok(TURN);
        if came == Err(Gone) {
            hub.gone(now, *channel);
        }
    }
    has_more
}

/// Sends what there is over `channels`, and destroys what is over. Returns true when some channel has more to send and may have room.
pub fn send<T: Transport>(
    now: Instant,
    hub: &mut Hub,
    transport: &mut T,
    channels: &[ChannelId],
    streams: &mut impl Streams,
) -> bool {
    let mut has_more = false;
    for channel in channels {
        if !hub.has_output(*channel) {
            continue;
        }
        let sent = transport.enqueue(*channel, &mut |room| hub.transmit(now, *channel, room, streams));
        match sent {
            Ok(bytes) => has_more |= bytes > 0 && hub.has_output(*channel),
            Err(Gone) => hub.gone(now, *channel),
        }
    }
    while let Some(channel) = hub.poll_destroy() {
        transport.destroy(channel);
    }
    while let Some(channel) = hub.poll_abort() {
        transport.abort(channel);
    }
    has_more
}
