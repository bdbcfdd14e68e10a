//! One end of a hand-over of 64-byte messages: over a region as Towpath does it, over eventfds alone, over kernel TCP.

use anyhow::{Context, bail};
use control::RegionInfo;
use queue::pages::Pool;
use queue::stream::{self, Sender};
use queue::{Doorbell, Wake};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use shm::{Half, Region, Side};
use std::io::{Read, Write};
use std::net::TcpStream;

/// A request, and its reply.
pub type Message = [u8; 64];

/// The connection's slot; any would do.
const SLOT: u32 = 3;
/// Nobody sleeps longer: the other processes are gone then.
const SLEEP_MAX: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// What a hand-over can do, however it waits.
pub trait Hop {
    /// Hands a message over.
    fn send(&mut self, message: &Message) -> anyhow::Result<()>;
    /// Takes a message if there is one.
    fn try_receive(&mut self) -> anyhow::Result<Option<Message>>;
    /// Sleeps until there may be one.
    fn sleep(&mut self) -> anyhow::Result<()>;
}

/// A side of a region.
pub struct RegionHop {
    region: Region,
    side: Side,
    sender: Sender,
    pool: Pool,
    tail: u64,
    wakes_us: OwnedFd,
    wakes_other: OwnedFd,
    sleeper: OwnedFd,
}

impl RegionHop {
    /// `wakes_us` is what the other side writes when we sleep, `wakes_other` the reverse.
    pub fn new(
        memfd: &OwnedFd,
        info: RegionInfo,
        wakes_us: OwnedFd,
        wakes_other: OwnedFd,
    ) -> anyhow::Result<Self> {
        let side = Side::from_index(info.side).context("a side is 0 or 1")?;
        let region = Region::open(memfd.as_fd(), info.params())?;
        let sleeper = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&sleeper, &wakes_us, epoll::EventData::new_u64(0), flags)?;
        let hop = Self {
            region,
            side,
            sender: Sender::default(),
            pool: Pool::default(),
            tail: 0,
            wakes_us,
            wakes_other,
            sleeper,
        };
        stream::watch(hop.halves().0, Some(0));
        Ok(hop)
    }

    fn halves(&self) -> (&Half, &Half) {
        let slot = self.region.slot(SLOT).expect("every region has 64 slots at least");
        (&slot.half[self.side.index()], &slot.half[self.side.other().index()])
    }

    fn bell(&self, side: Side) -> Doorbell<'_> {
        let block = self.region.context(side, 0).expect("context 0 exists");
        Doorbell::new(block, self.region.layout().words_per_group)
    }
}

impl Hop for RegionHop {
    fn send(&mut self, message: &Message) -> anyhow::Result<()> {
        let slot = self.region.slot(SLOT).expect("every region has 64 slots at least");
        let (own, other) = (&slot.half[self.side.index()], &slot.half[self.side.other().index()]);
        self.sender.update(other).map_err(|v| anyhow::anyhow!("{v}"))?;
        if self.sender.ring.is_none() {
            let pages = self.region.page_words() * 64;
            let word = |i| self.region.page_word(self.side, i).expect("inside the bitmap");
            let ring = self.pool.lend(0, pages, word).context("no ring to lend")?;
            self.sender.lend(own, ring);
        }
        if self.sender.space() < message.len() {
            bail!("the other side does not consume");
        }
        let ring = self.sender.ring.context("no ring")?;
        let [(first, n), (second, _)] = ring.spans(self.sender.head, message.len());
        self.region.write(self.side, first, &message[..n]);
        self.region.write(self.side, second, &message[n..]);
        self.sender.publish(own, message.len());
        if stream::watcher(other).is_some() && self.bell(self.side.other()).ring(SLOT) == Wake::Needed {
            rustix::io::write(&self.wakes_other, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn try_receive(&mut self) -> anyhow::Result<Option<Message>> {
        if !self.bell(self.side).has_news() {
            return Ok(None);
        }
        self.bell(self.side).drain(64, |_| ());
        let (own, other) = self.halves();
        let data_len = self.region.layout().params.data_len;
        let found = stream::readable(other, self.tail, data_len).map_err(|v| anyhow::anyhow!("{v}"))?;
        let Some(found) = found else { return Ok(None) };
        let mut message = [0; 64];
        let [(first, n), (second, _)] = found.ring.spans(self.tail, message.len());
        self.region.read(self.side.other(), first, &mut message[..n]);
        self.region.read(self.side.other(), second, &mut message[n..]);
        let tail = self.tail + message.len() as u64;
        // The rings are never full here: nobody waits for space.
        let _ = stream::consumed(own, other, tail);
        self.tail = tail;
        Ok(Some(message))
    }

    fn sleep(&mut self) -> anyhow::Result<()> {
        sleep_on(&[self], &self.sleeper)
    }
}

/// Sleeps on all ends at once; `sleeper` holds the eventfds of each.
fn sleep_on(ends: &[&RegionHop], sleeper: &OwnedFd) -> anyhow::Result<()> {
    let nothing_yet = ends.iter().all(|end| end.bell(end.side).prepare_sleep());
    let mut events = Vec::with_capacity(4);
    let slept =
        if nothing_yet { epoll::wait(sleeper, spare_capacity(&mut events), Some(&SLEEP_MAX)) } else { Ok(1) };
    for end in ends {
        end.bell(end.side).awake();
    }
    match slept {
        Ok(0) => bail!("nothing came for {} s", SLEEP_MAX.tv_sec),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The service's part of a relay: what comes on one end goes out on the other.
pub struct Relay {
    ends: [RegionHop; 2],
    sleeper: OwnedFd,
}

impl Relay {
    /// Joins two ends.
    pub fn new(ends: [RegionHop; 2]) -> anyhow::Result<Self> {
        let sleeper = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for end in &ends {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&sleeper, &end.wakes_us, epoll::EventData::new_u64(0), flags)?;
        }
        Ok(Self { ends, sleeper })
    }

    /// Moves one message, if there is one.
    pub fn step(&mut self) -> anyhow::Result<Option<Message>> {
        let [a, b] = &mut self.ends;
        if let Some(message) = a.try_receive()? {
            b.send(&message)?;
            return Ok(Some(message));
        }
        let Some(message) = b.try_receive()? else { return Ok(None) };
        a.send(&message)?;
        Ok(Some(message))
    }

    /// Sleeps until one end may have something.
    pub fn sleep(&self) -> anyhow::Result<()> {
        let [a, b] = &self.ends;
        sleep_on(&[a, b], &self.sleeper)
    }
}

/// Two eventfds and nothing else: the price of waking. The message's kind is the counter's value.
pub struct EventfdHop {
    /// What we wait for.
    pub ours: OwnedFd,
    /// What the other side waits for.
    pub theirs: OwnedFd,
}

impl Hop for EventfdHop {
    fn send(&mut self, message: &Message) -> anyhow::Result<()> {
        rustix::io::write(&self.theirs, &(u64::from(message[0]) + 1).to_ne_bytes())?;
        Ok(())
    }

    fn try_receive(&mut self) -> anyhow::Result<Option<Message>> {
        let mut value = [0; 8];
        rustix::io::read(&self.ours, &mut value)?;
        let mut message = [0; 64];
        message[0] = (u64::from_ne_bytes(value) - 1) as u8;
        Ok(Some(message))
    }

    /// Reading is sleeping.
    fn sleep(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Kernel TCP over loopback.
pub struct TcpHop {
    stream: TcpStream,
    blocks: bool,
}

impl TcpHop {
    /// `blocks`: the read sleeps, else it is repeated.
    pub fn new(stream: TcpStream, blocks: bool) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(!blocks)?;
        Ok(Self { stream, blocks })
    }
}

impl Hop for TcpHop {
    fn send(&mut self, message: &Message) -> anyhow::Result<()> {
        // 64 bytes always fit the send buffer: nothing else is on its way.
        Ok(self.stream.write_all(message)?)
    }

    fn try_receive(&mut self) -> anyhow::Result<Option<Message>> {
        let mut message = [0; 64];
        match self.stream.read(&mut message) {
            Ok(0) => bail!("the other side closed"),
            Ok(n) if n < message.len() => {
                self.stream.read_exact(&mut message[n..])?;
                Ok(Some(message))
            }
            Ok(_) => Ok(Some(message)),
            Err(e) if !self.blocks && e.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn sleep(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
