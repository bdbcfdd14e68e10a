//! A transport in memory between two hosts: bytes come late, in pieces of any size, and a channel can die at any moment, with any part of
//! what was under way. The same seed gives the same faults.

use base::{Duration, Instant, Seed};
use channel::bytes::Input;
use channel::transport::Gone;
use channel::{ChannelId, Transport};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

/// The address of a host.
pub fn address(host: usize) -> IpAddr {
    address_on(host, 0)
}

/// The address of a host on one of its ways to the other.
pub fn address_on(host: usize, way: u8) -> IpAddr {
    IpAddr::from([10, 0, way, 1 + host as u8])
}

/// The host with that address, and the way that it is on.
fn place_of(address: IpAddr) -> (usize, u8) {
    let IpAddr::V4(v4) = address else { panic!("{address} is no host's") };
    let [_, _, way, host] = v4.octets();
    (usize::from(host) - 1, way)
}

/// How bad the network is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Longest delay of a piece of bytes.
    pub delay_max: Duration,
    /// Most bytes under way in one direction of one channel.
    pub capacity: usize,
    /// Share of attempts to make a channel that fail, per million.
    pub create_fails: u32,
    /// While set, no channel can be made.
    pub is_cut: bool,
}

#[derive(Debug, Default)]
struct Pipe {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    under_way: usize,
}

#[derive(Debug)]
struct Wire {
    /// The two hosts, the one that made the wire first.
    hosts: [usize; 2],
    way: u8,
    connected_at: Instant,
    is_accepted: bool,
    /// Bytes from each end.
    pipes: [Pipe; 2],
    /// When each end learns that the wire is dead.
    dead_at: [Instant; 2],
    is_destroyed: [bool; 2],
    /// True: it takes bytes and delivers none.
    is_mute: bool,
}

/// All wires.
#[derive(Debug)]
pub struct Net {
    pub now: Instant,
    pub weather: Weather,
    seed: Seed,
    wires: BTreeMap<u32, Wire>,
    next: u32,
    /// Pieces that the transport has taken.
    pub enqueued: u64,
    /// Bytes that each wire has taken.
    pub carried: BTreeMap<u32, u64>,
    /// The same of the wires of each way.
    pub carried_on: BTreeMap<u8, u64>,
    /// Nothing comes through on that way any more, and no end is told.
    dead: Option<u8>,
}

impl Net {
    pub fn new(seed: u64, weather: Weather) -> Rc<RefCell<Self>> {
        let seed = Seed::new(seed);
        Rc::new(RefCell::new(Self {
            now: Instant::ZERO,
            weather,
            seed,
            wires: BTreeMap::new(),
            next: 0,
            enqueued: 0,
            carried: BTreeMap::new(),
            carried_on: BTreeMap::new(),
            dead: None,
        }))
    }

    fn delay(&mut self) -> Duration {
        Duration::from_ns(1_000 + self.seed.below(self.weather.delay_max.as_ns()))
    }

    /// Number of wires that some end still has.
    pub fn wires(&self) -> usize {
        self.wires.len()
    }

    /// Kills a wire, or all of them: any part of what is under way is lost, and each end learns it in its own time.
    pub fn kill(&mut self, all: bool) {
        let ids: Vec<u32> = self.wires.keys().copied().collect();
        let chosen = self.seed.below(ids.len() as u64) as usize;
        for (i, id) in ids.into_iter().enumerate() {
            if all || i == chosen {
                self.kill_wire(id);
            }
        }
    }

    /// From now on, the wires that there are deliver nothing, and no end is told.
    pub fn mute(&mut self) {
        self.wires.values_mut().for_each(|wire| wire.is_mute = true);
    }

    /// From now on, a way delivers nothing; `None`: all do, but for wires of the time before.
    pub fn kill_way(&mut self, way: Option<u8>) {
        self.dead = way;
        self.wires.values_mut().for_each(|wire| wire.is_mute |= Some(wire.way) == way);
    }

    /// Kills the wires of a host that has died.
    pub fn kill_host(&mut self, host: usize) {
        let ids: Vec<u32> = self.wires.keys().copied().collect();
        for id in ids {
            self.kill_wire(id);
            let wire = self.wires.get_mut(&id).expect("a wire");
            for end in 0..2 {
                wire.is_destroyed[end] |= wire.hosts[end] == host;
            }
        }
        self.sweep();
    }

    fn kill_wire(&mut self, id: u32) {
        for end in 0..2 {
            self.truncate(id, end);
        }
        let notice = [self.now.plus(self.delay()), self.now.plus(self.delay())];
        let wire = self.wires.get_mut(&id).expect("a wire");
        for (dead_at, notice) in wire.dead_at.iter_mut().zip(notice) {
            *dead_at = notice.min(*dead_at);
        }
    }

    /// Loses some of the last bytes from that end.
    fn truncate(&mut self, id: u32, end: usize) {
        let pipe = &mut self.wires.get_mut(&id).expect("a wire").pipes[end];
        let mut stays = self.seed.below(pipe.under_way as u64 + 1) as usize;
        pipe.under_way = stays;
        for (_, piece) in &mut pipe.pieces {
            let here = piece.len().min(stays);
            piece.truncate(here);
            stays -= here;
        }
        pipe.pieces.retain(|(_, piece)| !piece.is_empty());
    }

    fn sweep(&mut self) {
        self.wires.retain(|_, wire| wire.is_destroyed != [true, true]);
    }

    /// The next channel that has come in at that host.
    fn accept(&mut self, host: usize) -> Option<(ChannelId, IpAddr)> {
        let now = self.now;
        let mut wires = self.wires.iter_mut();
        let (id, wire) = wires.find(|(_, wire)| {
            wire.hosts[1] == host && !wire.is_accepted && wire.connected_at <= now && !wire.is_destroyed[1]
        })?;
        wire.is_accepted = true;
        Some((ChannelId(2 * id + 1), address_on(wire.hosts[0], wire.way)))
    }

    /// When something happens next.
    pub fn next_event(&self) -> Instant {
        let times = self.wires.values().flat_map(|wire| {
            let accept = if wire.is_accepted { Instant::NEVER } else { wire.connected_at };
            let deaths =
                (0..2).map(|end| if wire.is_destroyed[end] { Instant::NEVER } else { wire.dead_at[end] });
            let pieces = wire.pipes.iter().filter_map(|pipe| pipe.pieces.front().map(|(at, _)| *at));
            deaths.chain(pieces).chain([accept]).collect::<Vec<_>>()
        });
        times.min().unwrap_or(Instant::NEVER)
    }
}

/// One host's end of all its wires.
#[derive(Clone, Debug)]
pub struct Host {
    pub host: usize,
    pub net: Rc<RefCell<Net>>,
    /// Longest room lent at once.
    pub room: usize,
    pub scratch: Vec<u8>,
}

impl Host {
    /// The channels of this host that its hub knows.
    pub fn channels(&self) -> Vec<ChannelId> {
        let net = self.net.borrow();
        let ends = net.wires.iter().flat_map(|(id, wire)| (0..2).map(move |end| (id, wire, end)));
        let ours = ends.filter(|(_, wire, end)| {
            wire.hosts[*end] == self.host && !wire.is_destroyed[*end] && (*end == 0 || wire.is_accepted)
        });
        ours.map(|(id, _, end)| ChannelId(2 * id + end as u32)).collect()
    }

    /// The next channel that has come in.
    pub fn accept(&self) -> Option<(ChannelId, IpAddr)> {
        self.net.borrow_mut().accept(self.host)
    }
}

impl Transport for Host {
    type Metadata = ();
    type Room = [u8];

    fn create(&mut self, peer: IpAddr, (): &()) -> Result<ChannelId, Gone> {
        let net = &mut *self.net.borrow_mut();
        if net.weather.is_cut || net.seed.chance(net.weather.create_fails) {
            return Err(Gone);
        }
        let (other, way) = place_of(peer);
        let is_dead = net.dead == Some(way);
        let connected_at = if is_dead { Instant::NEVER } else { net.now.plus(net.delay()) };
        let wire = Wire {
            hosts: [self.host, other],
            way,
            connected_at,
            is_accepted: false,
            pipes: Default::default(),
            dead_at: [Instant::NEVER; 2],
            is_destroyed: [false; 2],
            is_mute: is_dead,
        };
        net.next += 1;
        net.wires.insert(net.next, wire);
        Ok(ChannelId(2 * net.next))
    }

    fn abort(&mut self, channel: ChannelId) {
        self.destroy(channel);
    }

    fn destroy(&mut self, channel: ChannelId) {
        let net = &mut *self.net.borrow_mut();
        let (id, end) = (channel.0 / 2, channel.0 as usize % 2);
        if net.wires.contains_key(&id) {
            net.truncate(id, end);
            let notice = net.now.plus(net.delay());
            let wire = net.wires.get_mut(&id).expect("a wire");
            wire.is_destroyed[end] = true;
            wire.dead_at[end ^ 1] = wire.dead_at[end ^ 1].min(notice);
            // A wire that never came in has no other end.
            wire.is_destroyed[1] |= !wire.is_accepted;
            net.sweep();
        }
    }

    fn enqueue(
        &mut self,
        channel: ChannelId,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Gone> {
        let (id, end) = (channel.0 / 2, channel.0 as usize % 2);
        let room = {
            let net = &mut *self.net.borrow_mut();
            let capacity = net.weather.capacity;
            let wire = net.wires.get(&id).ok_or(Gone)?;
            if wire.dead_at[end] <= net.now {
                return Err(Gone);
            }
            if wire.connected_at > net.now {
                return Ok(0);
            }
            capacity.saturating_sub(wire.pipes[end].under_way).min(self.room)
        };
        if room < channel::limits::ROOM_LEAST {
            return Ok(0);
        }
        // As long as the longest room: clearing it for each call would cost more than the rest of a test.
        self.scratch.resize(self.scratch.len().max(room), 0);
        let len = fill(&mut self.scratch[..room]);
        let bytes = self.scratch[..len].to_vec();
        let net = &mut *self.net.borrow_mut();
        let delay = net.delay();
        let wire = net.wires.get_mut(&id).ok_or(Gone)?;
        // An end that does not know of the death yet sends into the void.
        if len > 0
            && !wire.is_mute
            && wire.dead_at[end ^ 1] == Instant::NEVER
            && wire.dead_at[end] == Instant::NEVER
        {
            let pipe = &mut wire.pipes[end];
            let last = pipe.pieces.back().map_or(Instant::ZERO, |(at, _)| *at);
            pipe.pieces.push_back((last.max(net.now.plus(delay)), bytes));
            pipe.under_way += len;
        }
        net.enqueued += u64::from(len > 0);
        let way = wire.way;
        *net.carried.entry(id).or_default() += len as u64;
        *net.carried_on.entry(way).or_default() += len as u64;
        Ok(len)
    }

    fn dequeue(
        &mut self,
        channel: ChannelId,
        count: usize,
        take: &mut dyn FnMut(Input<'_>),
    ) -> Result<usize, Gone> {
        let (id, end) = (channel.0 / 2, channel.0 as usize % 2);
        let mut total = 0;
        while total < count {
            let piece = {
                let net = &mut *self.net.borrow_mut();
                let wire = net.wires.get_mut(&id).ok_or(Gone)?;
                let pipe = &mut wire.pipes[end ^ 1];
                let Some((at, bytes)) = pipe.pieces.front_mut().filter(|(at, _)| *at <= net.now) else {
                    let is_dead = wire.dead_at[end] <= net.now && pipe.pieces.is_empty();
                    return if is_dead && total == 0 { Err(Gone) } else { Ok(total) };
                };
                // Pieces are split anywhere, also in the middle of a header.
                let most = 1 + net.seed.below(bytes.len().min(count - total) as u64) as usize;
                let rest = bytes.split_off(most);
                let piece = std::mem::replace(bytes, rest);
                pipe.under_way -= piece.len();
                if bytes.is_empty() {
                    pipe.pieces.pop_front();
                } else {
                    *at = net.now;
                }
                piece
            };
            total += piece.len();
            take(Input::Own(&piece));
        }
        Ok(total)
    }
}
