//! The four calls by which channels use a transport (NetChannel, Table 2): create, destroy, enqueue, dequeue. A TCP connection, or a pair of
//! queues in memory.

use core::net::IpAddr;

use crate::bytes::{Input, Room};

/// The transport's number of a channel. Not used again while the hub may still name it, which ends with `destroy`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ChannelId(pub u32);

/// The transport of a channel is gone; what it had taken may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone;

/// A reliable transport in order, such as TCP.
///
/// Where the paper passes lists of packet buffers, this trait lends memory to a function: the frames are built where the transport wants
/// them, and no buffer changes hands.
pub trait Transport {
    /// What the transport needs to know of a new channel beside the address: the paper's metadata.
    type Metadata;
    /// The memory in which frames are built.
    type Room: Room + ?Sized;

    /// Begins a channel to that service. It may be used at once; until it is connected, it lends no room.
    ///
    /// # Errors
    /// [`Gone`], when none can be made now.
    fn create(&mut self, peer: IpAddr, metadata: &Self::Metadata) -> Result<ChannelId, Gone>;

    /// Ends a channel. What it has taken and not yet delivered may be lost.
    fn destroy(&mut self, channel: ChannelId);

    /// As [`destroy`](Self::destroy), of a channel whose peer has not proved itself: nothing is owed to it, and it must not be able to keep what
    /// the channel has taken up by reading nothing and ending nothing.
    fn abort(&mut self, channel: ChannelId);

    /// Lends room to `fill`, which returns how many bytes it has put there from the beginning; these are taken for delivery. Room is at least
    /// [`ROOM_LEAST`](crate::limits::ROOM_LEAST) bytes; if there is less, `fill` is not called. Returns the bytes taken.
    ///
    /// # Errors
    /// [`Gone`]. `fill` was not called.
    fn enqueue(
        &mut self,
        channel: ChannelId,
        fill: &mut dyn FnMut(&mut Self::Room) -> usize,
    ) -> Result<usize, Gone>;

    /// Lends at most `count` bytes that have come to `take`, in one or more pieces, in order; all lent bytes are taken. Returns their number.
    ///
    /// # Errors
    /// [`Gone`], after all bytes that came before the end.
    fn dequeue(
        &mut self,
        channel: ChannelId,
        count: usize,
        take: &mut dyn FnMut(Input<'_>),
    ) -> Result<usize, Gone>;
}
