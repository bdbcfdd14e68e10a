//! The channels' own TCP connections: flows of a region of the service's own, in which the engine acts as the application. The control
//! thread makes them and ends them.
//!
//! ```text
//!   engine (side 1) --frames--> ring --fast path--> peer          peer --fast path--> ring (side 0) --frames--> engine
//! ```

use super::engine::Told;
use crate::cores::wakers::Wakers;
use crate::registry::memory::Memory;
use crate::registry::relay::endpoint::{End, Place};
use crate::registry::relay::{make_room, want_no_space};
use base::limits::RING_MIN;
use channel::bytes::{Input, Room};
use channel::lane::Class;
use channel::limits::ROOM_LEAST;
use channel::transport::Gone;
use channel::{ChannelId, SessionId, Transport};
use flow::state;
use queue::Ring;
use queue::pages::Pool;
use queue::stream::{Sender, consumed, raise, readable, watcher};
use rustix::fd::OwnedFd;
use shm::application_flags::{NODELAY, QUICKACK};
use shm::half_flags::{FAILED, FIN, OPEN, READ_CLOSED, RELEASED, RESET};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of the first ring of frames on their way to the peer: a frame of the largest size, and small ones beside it.
const RING_FIRST: usize = 64 << 10;
/// Most bytes that are built at once: four frames of the largest size. With one, the super-frame of each round leaves a small segment behind.
const ROOM: usize = 256 << 10;
/// Bytes of the largest ring of frames on their way to the peer.
const RING_MOST: usize = 1 << 20;

/// Room in a channel's ring: frames are built where the fast path sends them from.
#[derive(Debug)]
pub struct RingRoom {
    /// The application's side of the service's own region.
    place: Place,
    ring: Ring,
    /// Position of the first byte in the stream.
    head: u64,
    size: usize,
}

impl Room for RingRoom {
    fn size(&self) -> usize {
        self.size
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= self.size);
        self.place.write_ring(self.ring, self.head + at as u64, bytes);
    }

    fn put_shared(&mut self, at: usize, bytes: &[AtomicU8]) {
        debug_assert!(at + bytes.len() <= self.size);
        self.place.write_ring_shared(self.ring, self.head + at as u64, bytes);
    }
}

/// What the number of channels depends on.
#[derive(Clone, Copy, Debug)]
pub struct FlowSeen {
    /// The core that serves the connection.
    pub core: usize,
    /// The congestion window holds bytes back.
    pub is_congested: bool,
    /// Retransmission timeouts in a row: nothing that was sent is acknowledged.
    pub timeouts: u8,
}

/// All TCP connections of one engine's channels.
#[derive(Debug)]
pub struct Flows {
    /// The records of the connections.
    records: Arc<flow::Flows>,
    /// Room of the channel that is served now; the place is that of all channels.
    room: RingRoom,
    wakers: Arc<Wakers>,
    pool: Pool,
    /// `None`: the control thread has not made the connection yet.
    all: BTreeMap<ChannelId, Option<End>>,
    /// Ends that have closed, by slot, until the fast path no longer reads their rings.
    leaving: HashMap<u32, End>,
    /// Channels with a connection and with sockets of a class that is not known yet.
    fresh: Vec<ChannelId>,
    next: u32,
    /// Channels without a connection, for which the control thread has not been asked yet, with the peers' addresses.
    asked: Vec<(ChannelId, IpAddr)>,
    /// Reports to the control thread.
    pub told: Vec<Told>,
}

impl Flows {
    /// No connections yet; `memory` is the service's own region.
    pub fn new(
        memory: Arc<Memory>,
        cores: Arc<[Arc<OwnedFd>]>,
        wakers: Arc<Wakers>,
        records: Arc<flow::Flows>,
    ) -> Self {
        Self {
            records,
            room: RingRoom {
                place: Place::of_application(memory, cores),
                ring: Ring::new(0, RING_MIN.ilog2() as u8),
                head: 0,
                size: 0,
            },
            wakers,
            pool: Pool::default(),
            all: BTreeMap::new(),
            leaving: HashMap::new(),
            fresh: Vec::new(),
            next: 1,
            asked: Vec::new(),
            told: Vec::new(),
        }
    }

    /// The numbers of all channels.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.all.keys().copied()
    }

    /// What a channel's connection does now; `None`: there is none yet, or none any more.
    pub fn seen(&self, channel: ChannelId) -> Option<FlowSeen> {
        let end = self.all.get(&channel)?.as_ref()?;
        let id = end.place.memory()?.area.flow_of(end.slot)?;
        // A record that its core uses now says nothing: the next tick asks again.
        let (is_congested, timeouts) = self.records.try_lock(id).map_or((false, 0), |mut flow| {
            let parts = flow.parts();
            // Probes of a closed window count the same way, and say that the reader reads nothing.
            let timeouts = if parts.rx.has(state::BLOCKED) { 0 } else { parts.cold.backoff };
            (parts.rx.has(state::CWND_FULL), timeouts)
        });
        Some(FlowSeen { core: self.core_of(channel)?, is_congested, timeouts })
    }

    /// Segments that a channel's connection has sent again; `None`: there is no connection, or its core uses the record now.
    pub fn retransmits(&self, channel: ChannelId) -> Option<u32> {
        let end = self.all.get(&channel)?.as_ref()?;
        let id = end.place.memory()?.area.flow_of(end.slot)?;
        self.records.lock_briefly(id).map(|mut flow| flow.parts().cold.counters.retransmits)
    }

    /// The slot of a channel's connection; `None`: there is none yet, or none any more.
    pub fn slot_of(&self, channel: ChannelId) -> Option<u32> {
        Some(self.all.get(&channel)?.as_ref()?.slot)
    }

    /// The core with a channel's connection.
    pub fn core_of(&self, channel: ChannelId) -> Option<usize> {
        let end = self.all.get(&channel)?.as_ref()?;
        let (_, service) = end.place.halves(end.slot)?;
        Some(watcher(service)? as usize)
    }

    /// Has the control thread make the connections of new channels. `session_of`: the session that a channel is for.
    pub fn ask(&mut self, session_of: impl Fn(ChannelId) -> Option<SessionId>) {
        let Self { asked, told, .. } = self;
        let connect = |(channel, peer)| Some(Told::Connect { channel, session: session_of(channel)?, peer });
        told.extend(asked.drain(..).filter_map(connect));
    }

    fn new_id(&mut self) -> ChannelId {
        // Numbers repeat after 2^32 channels; the first have ended by then.
        let id = ChannelId(self.next);
        self.next = self.next.checked_add(1).unwrap_or(1);
        id
    }

    fn end_at(&self, slot: u32) -> End {
        let end = End::deputy(self.room.place.clone(), slot, Sender::default());
        if let Some((own, _)) = end.place.halves(slot) {
            // The handshake waits for no acknowledgement.
            own.extra.store(NODELAY, Ordering::Release);
        }
        end
    }

    /// The control thread has begun the connection of a channel in that slot. False: the channel is not wanted any more.
    pub fn made(&mut self, channel: ChannelId, slot: u32) -> bool {
        let end = self.end_at(slot);
        if let Some(place) = self.all.get_mut(&channel) {
            *place = Some(end);
            self.fresh.push(channel);
            return true;
        }
        self.leave(end, FIN);
        false
    }

    /// A peer has made a connection, which is in that slot.
    pub fn accepted(&mut self, slot: u32) -> ChannelId {
        let (id, end) = (self.new_id(), self.end_at(slot));
        self.all.insert(id, Some(end));
        self.fresh.push(id);
        id
    }

    /// Has each connection send as its sockets need, once `class_of` knows their class. Latency: frames go out at the end of each round.
    /// Throughput: while bytes are under way, small messages gather until these are acknowledged (Nagle, RFC 896); the peer, which does the
    /// same, acknowledges at once and mostly with data. So the wait is one round trip at most, and many small messages share a segment.
    pub fn tell_classes(&mut self, class_of: impl Fn(ChannelId) -> Option<Class>) {
        let Self { fresh, all, .. } = self;
        fresh.retain(|channel| {
            let Some(Some(end)) = all.get(channel) else { return false };
            let Some(class) = class_of(*channel) else { return true };
            if let (Class::Throughput, Some((own, _))) = (class, end.place.halves(end.slot)) {
                own.extra.store(QUICKACK, Ordering::Release);
            }
            false
        });
    }

    /// The control thread cannot make the connection of a channel.
    pub fn not_made(&mut self, channel: ChannelId) {
        self.all.remove(&channel);
    }

    /// The fast path has let go of a slot: its rings are free.
    pub fn freed(&mut self, slot: u32) {
        let Some(mut end) = self.leaving.remove(&slot) else { return };
        end.give_rings_back(&mut self.pool);
    }

    /// Takes the fast path's rings of the doorbell. True: some connection has news.
    pub fn listen(&self) -> bool {
        let bell = self.room.place.bell().filter(|bell| bell.has_news());
        bell.is_some_and(|bell| bell.drain(self.room.place.slots(), |_| ()) > 0)
    }

    /// Announces sleep. False: a connection has news.
    pub fn prepare_sleep(&self) -> bool {
        self.room.place.bell().is_none_or(queue::Doorbell::prepare_sleep)
    }

    /// Announces that the engine is awake.
    pub fn awake(&self) {
        self.room.place.bell().into_iter().for_each(queue::Doorbell::awake);
    }

    /// Closes an end. With FIN the bytes that it has taken are sent, then a FIN; with RESET nothing, and its slot is soon free, whatever the
    /// peer does.
    fn leave(&mut self, end: End, how: u32) {
        if let Some((own, _)) = end.place.halves(end.slot) {
            raise(own, how | READ_CLOSED | RELEASED);
            end.tell(&self.wakers);
        }
        self.told.push(Told::Left { slot: end.slot });
        self.leaving.insert(end.slot, end);
    }

    /// Lends what has come to `take`, at most `most` bytes, where it lies: the fast path writes these bytes only after they are consumed.
    fn take_some(end: &mut End, wakers: &Wakers, most: usize, take: &mut dyn FnMut(Input<'_>)) -> usize {
        let Some((own, peer)) = end.place.halves(end.slot) else { return 0 };
        // The region is the service's own: its positions make sense.
        let Ok(Some(found)) = readable(peer, end.tail, end.place.data_len()) else { return 0 };
        let n = found.len.min(most);
        let pieces = end.place.shared_ring(found.ring, end.tail, n);
        pieces.into_iter().filter(|piece| !piece.is_empty()).for_each(|piece| take(Input::Shared(piece)));
        end.tail += n as u64;
        if consumed(own, peer, end.tail) {
            end.tell(wakers);
        }
        n
    }
}

impl Transport for Flows {
    type Metadata = ();
    type Room = RingRoom;

    fn create(&mut self, peer: IpAddr, (): &()) -> Result<ChannelId, Gone> {
        let id = self.new_id();
        self.all.insert(id, None);
        self.asked.push((id, peer));
        Ok(id)
    }

    fn destroy(&mut self, channel: ChannelId) {
        if let Some(end) = self.all.remove(&channel).flatten() {
            self.leave(end, FIN);
        }
    }

    fn abort(&mut self, channel: ChannelId) {
        if let Some(end) = self.all.remove(&channel).flatten() {
            self.leave(end, RESET);
        }
    }

    fn enqueue(
        &mut self,
        channel: ChannelId,
        fill: &mut dyn FnMut(&mut RingRoom) -> usize,
    ) -> Result<usize, Gone> {
        let Some(end) = self.all.get_mut(&channel).ok_or(Gone)? else { return Ok(0) };
        let flags = end.flags();
        if flags & (RESET | FAILED) != 0 {
            return Err(Gone);
        }
        if flags & OPEN == 0 {
            return Ok(0);
        }
        let place = &self.room.place;
        let Some((own, peer)) = place.halves(end.slot) else { return Err(Gone) };
        let room = make_room(end, &mut self.pool, own, peer, RING_FIRST, RING_MOST).map_err(|_| Gone)?;
        if room < ROOM_LEAST {
            let is_new = || place.memory().is_some_and(|memory| memory.area.note_shortage());
            if end.sender.ring.is_none() && is_new() {
                self.told.push(Told::MemoryShort { region: place.region_id });
            } else if room > 0 && end.sender.want_space(own, peer, |_| ()) == Ok(false) {
                // Room has come meanwhile: the doorbell that tells so is not needed.
                end.tell(&self.wakers);
            }
            return Ok(0);
        }
        want_no_space(own);
        let Some(ring) = end.sender.ring else { return Ok(0) };
        (self.room.ring, self.room.head, self.room.size) = (ring, end.sender.head, room.min(ROOM));
        let n = fill(&mut self.room);
        if let Some((own, _)) = self.room.place.halves(end.slot).filter(|_| n > 0) {
            end.sender.publish(own, n);
            end.tell(&self.wakers);
        }
        Ok(n)
    }

    fn dequeue(
        &mut self,
        channel: ChannelId,
        count: usize,
        take: &mut dyn FnMut(Input<'_>),
    ) -> Result<usize, Gone> {
        let Some(end) = self.all.get_mut(&channel).ok_or(Gone)? else { return Ok(0) };
        // Flags before bytes: a FIN seen here was raised after the last byte.
        let flags = end.flags();
        let mut taken = 0;
        while taken < count {
            let n = Self::take_some(end, &self.wakers, count - taken, take);
            if n == 0 {
                let is_over = flags & (FIN | RESET | FAILED) != 0;
                return if taken == 0 && is_over { Err(Gone) } else { Ok(taken) };
            }
            taken += n;
        }
        Ok(taken)
    }
}
