//! One end of a hand-over of 64-byte messages: over a region as Towpath does it, over eventfds alone, or over kernel TCP.

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

/// A request or a reply.
pub type Message = [u8; 64];

/// The connection's slot; its number does not matter.
const SLOT: u32 = 3;
/// The longest sleep: after it the other processes count as gone.
const SLEEP_MAX: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// One end of a hand-over.
pub trait Hop {
    /// Sends a message to the other end.
    fn send(&mut self, message: &Message) -> anyhow::Result<()>;
    /// Takes a message if there is one.
    fn try_receive(&mut self) -> anyhow::Result<Option<Message>>;
    /// Sleeps until there may be a message.
    fn sleep(&mut self) -> anyhow::Result<()>;
}

/// An end on one side of a region.
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
    /// `wakes_us`: the eventfd that the other side writes to wake this one; `wakes_other`: the eventfd that wakes the other side.
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
        // The rings are never full here, so the other side never waits for space.
        let _ = stream::consumed(own, other, tail);
        self.tail = tail;
        Ok(Some(message))
    }

    fn sleep(&mut self) -> anyhow::Result<()> {
        sleep_on(&[self], &self.sleeper)
    }
}

/// Sleeps until one of the ends may have a message. `sleeper` contains the eventfds of all ends.
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

/// The service's part of a relay: forwards messages between its two ends.
pub struct Relay {
    ends: [RegionHop; 2],
    sleeper: OwnedFd,
}

impl Relay {
    /// A relay between two ends.
    pub fn new(ends: [RegionHop; 2]) -> anyhow::Result<Self> {
        let sleeper = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for end in &ends {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&sleeper, &end.wakes_us, epoll::EventData::new_u64(0), flags)?;
        }
        Ok(Self { ends, sleeper })
    }

    /// Forwards one message if there is one.
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

    /// Sleeps until one end may have a message.
    pub fn sleep(&self) -> anyhow::Result<()> {
        let [a, b] = &self.ends;
        sleep_on(&[a, b], &self.sleeper)
    }
}

/// Two eventfds and nothing else: the cost of waking alone. The counter's value is the message's first byte plus 1.
pub struct EventfdHop {
    /// The eventfd to read.
    pub ours: OwnedFd,
    /// The eventfd to write.
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

    /// [`try_receive`](Hop::try_receive) blocks in its read, so there is nothing to do.
    fn sleep(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// An end that uses kernel TCP over loopback.
pub struct TcpHop {
    stream: TcpStream,
    blocks: bool,
}

impl TcpHop {
    /// If `blocks`, a read sleeps until bytes come; otherwise it returns at once.
    pub fn new(stream: TcpStream, blocks: bool) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(!blocks)?;
        Ok(Self { stream, blocks })
    }
}

impl Hop for TcpHop {
    fn send(&mut self, message: &Message) -> anyhow::Result<()> {
        // 64 bytes always fit into the send buffer, because nothing else is in it.
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
