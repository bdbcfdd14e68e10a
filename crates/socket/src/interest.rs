//! What an epoll set holds of accelerated sockets, and which of them may be ready.

use crate::region::Mapped;
use crate::sock::Sock;
use crate::stream::ready;
use control::CONTROL_SLOT;
use rustix::fd::RawFd;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Edge-triggered.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Once, then disarmed.
pub const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// At most so many active sockets make spinning worthwhile.
const LONELY: u32 = 4;

/// One socket in a set.
#[derive(Debug)]
pub struct Item {
    /// The descriptor it was added as.
    pub fd: RawFd,
    /// The socket.
    pub sock: Arc<Sock>,
    /// What is wanted, and how.
    pub events: u32,
    /// The program's own word.
    pub data: u64,
    /// The kernel's epoll has the placeholder too.
    pub kernel: bool,
    armed: bool,
    queued: bool,
    /// The collection that reported it last.
    turn: u32,
    /// Edge-triggered: what was so when it was reported last.
    reported: Option<Reported>,
}

/// Readiness in full, and the socket's pulse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reported {
    readiness: u32,
    pulse: (u64, u32),
}

impl Item {
    /// What of the wanted it is ready for, with what to remember when it is reported. Nothing when edge-triggered and
    /// nothing has come since the last report: doorbells ring for other reasons, too.
    fn due(&self) -> Option<(u32, Reported)> {
        if !self.armed {
            return None;
        }
        // Pulse first: what comes between the two looks is reported twice rather than never.
        let pulse = self.sock.pulse();
        let readiness = self.sock.readiness();
        let now = readiness & (self.events | ready::ALWAYS);
        let is_news = match self.reported {
            Some(before) if self.events & EDGE != 0 => {
                // Another process that shares the socket may have filled it: stalls are counted only here.
                let shared = crate::fork::may_dispute() && now & ready::OUT != 0;
                before.pulse != pulse || readiness & !before.readiness != 0 || shared
            }
            _ => true,
        };
        (now != 0 && is_news).then_some((now, Reported { readiness, pulse }))
    }
}

/// A region that brings news to a set.
#[derive(Debug)]
struct Watch {
    mapped: Arc<Mapped>,
    /// By slot: 1 + the item.
    items: Vec<u32>,
    count: u32,
    dead: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Interest {
    items: Vec<Option<Item>>,
    free: Vec<u32>,
    by_fd: HashMap<RawFd, u32>,
    watches: Vec<Watch>,
    ready: VecDeque<u32>,
    turn: u32,
    /// Sockets active at the same time, times 8, smoothed.
    crowd: u32,
    /// Others look into the set, so what follows is counted.
    counts: bool,
    /// How often something that is reported has come.
    edges: u64,
}

impl Interest {
    /// The item of `fd`, if `sock` is still what stands there.
    pub fn find(&self, fd: RawFd, sock: &Sock) -> Option<u32> {
        let i = *self.by_fd.get(&fd)?;
        let item = self.item(i)?;
        std::ptr::eq(&*item.sock, sock).then_some(i)
    }

    /// An item by number.
    pub fn item(&self, i: u32) -> Option<&Item> {
        self.items.get(i as usize)?.as_ref()
    }

    /// True when nothing accelerated is in the set.
    pub fn is_empty(&self) -> bool {
        self.by_fd.is_empty()
    }

    /// True when some item may be ready.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Adds a socket.
    pub fn add(&mut self, fd: RawFd, sock: Arc<Sock>, events: u32, data: u64, kernel: bool) -> u32 {
        let (turn, reported) = (self.turn, None);
        let item = Item { fd, sock, events, data, kernel, armed: true, queued: false, turn, reported };
        let i = match self.free.pop() {
            Some(i) => i,
            None => {
                self.items.push(None);
                self.items.len() as u32 - 1
            }
        };
        self.items[i as usize] = Some(item);
        self.by_fd.insert(fd, i);
        self.connect(i);
        self.enqueue(i);
        i
    }

    /// Changes what is wanted, arms it again, and looks.
    pub fn change(&mut self, i: u32, events: u32, data: u64) {
        if let Some(item) = self.items.get_mut(i as usize).and_then(Option::as_mut) {
            (item.events, item.data, item.armed, item.reported) = (events, data, true, None);
        }
        self.enqueue(i);
    }

    /// The kernel's epoll holds it (no more).
    pub fn set_kernel(&mut self, i: u32, kernel: bool) {
        if let Some(item) = self.items.get_mut(i as usize).and_then(Option::as_mut) {
            item.kernel = kernel;
        }
    }

    /// Takes out what stands for `sock` under the number `fd`.
    pub fn take(&mut self, fd: RawFd, sock: &Sock) -> Option<Item> {
        let i = self.find(fd, sock)?;
        self.remove(i)
    }

    /// Takes a socket out.
    pub fn remove(&mut self, i: u32) -> Option<Item> {
        let item = self.items.get_mut(i as usize)?.take()?;
        self.by_fd.remove(&item.fd);
        self.free.push(i);
        if item.queued {
            self.ready.retain(|r| *r != i);
        }
        for watch in &mut self.watches {
            for place in watch.items.iter_mut().filter(|place| **place == i + 1) {
                *place = 0;
                watch.count -= 1;
            }
        }
        self.watches.retain(|w| w.count > 0 || !w.mapped.pair);
        Some(item)
    }

    /// Listens for news of the item's slots.
    pub fn connect(&mut self, i: u32) {
        let Some(sock) = self.item(i).map(|item| item.sock.clone()) else { return };
        if let Some(link) = sock.link() {
            self.watch(&link.mapped, Some((link.slot(), i)));
        }
        if let Some(own) = crate::listener::own_queue(&sock) {
            self.watch(&own.mapped, Some((own.slot(), i)));
        }
    }

    /// Listens for news of a region.
    pub fn watch(&mut self, mapped: &Arc<Mapped>, place: Option<(u32, u32)>) {
        let at = self.watches.iter().position(|w| Arc::ptr_eq(&w.mapped, mapped)).unwrap_or_else(|| {
            self.watches.push(Watch { mapped: mapped.clone(), items: Vec::new(), count: 0, dead: false });
            self.watches.len() - 1
        });
        let Some((slot, i)) = place else { return };
        let watch = &mut self.watches[at];
        let slot = slot as usize;
        if watch.items.len() <= slot {
            watch.items.resize(slot + 1, 0);
        }
        if watch.items[slot] == 0 {
            watch.count += 1;
        }
        watch.items[slot] = i + 1;
    }

    /// The item may be ready: something has come.
    pub fn enqueue(&mut self, i: u32) {
        if self.counts && self.item(i).is_some_and(|item| item.due().is_some()) {
            self.edges += 1;
        }
        self.queue(i);
    }

    fn queue(&mut self, i: u32) {
        if let Some(item) = self.items.get_mut(i as usize).and_then(Option::as_mut)
            && !item.queued
        {
            item.queued = true;
            self.ready.push_back(i);
        }
    }

    /// The item of `fd` may be ready.
    pub fn enqueue_fd(&mut self, fd: RawFd) {
        if let Some(i) = self.by_fd.get(&fd) {
            self.enqueue(*i);
        }
    }

    /// Every socket that tells another context than `ours` may be ready. False: there is none.
    pub fn enqueue_disputed(&mut self, ours: u32) -> bool {
        let is_disputed = |item: &Item| {
            item.sock.link().is_some_and(|l| l.halves().0.context.load(Ordering::Relaxed) != ours + 1)
        };
        let found: Vec<u32> =
            (0..self.items.len() as u32).filter(|i| self.item(*i).is_some_and(is_disputed)).collect();
        found.iter().for_each(|i| self.queue(*i));
        !found.is_empty()
    }

    /// Everything may be ready.
    pub fn enqueue_all(&mut self) {
        for i in 0..self.items.len() as u32 {
            self.enqueue(i);
        }
    }

    /// All descriptors with their sockets.
    pub fn all(&self) -> Vec<(RawFd, Arc<Sock>)> {
        self.items.iter().flatten().map(|item| (item.fd, item.sock.clone())).collect()
    }

    /// Their places in shared memory.
    pub fn links(&self) -> impl Iterator<Item = &crate::link::Link> {
        self.items.iter().flatten().filter_map(|item| item.sock.link())
    }

    /// Takes the news of `context` from all regions. True when there is something to read on the control socket.
    pub fn drain(&mut self, context: u32) -> bool {
        let (mut control, mut dead) = (false, false);
        for watch in &mut self.watches {
            if watch.mapped.dead.load(Ordering::Relaxed) && !watch.dead {
                (watch.dead, dead) = (true, true);
            }
            let Some(bell) = watch.mapped.own_bell(context) else { continue };
            let (pair, items, list, ready) =
                (watch.mapped.pair, &watch.items, &mut self.items, &mut self.ready);
            let (counts, edges) = (self.counts, &mut self.edges);
            let mut news = |slot: u32| {
                if slot == CONTROL_SLOT && !pair {
                    control = true;
                    return;
                }
                let Some(i) = items.get(slot as usize).and_then(|i| i.checked_sub(1)) else { return };
                let Some(item) = list.get_mut(i as usize).and_then(Option::as_mut) else { return };
                if counts && item.due().is_some() {
                    *edges += 1;
                }
                if !item.queued {
                    item.queued = true;
                    ready.push_back(i);
                }
            };
            bell.drain(watch.mapped.region.layout().params.slots, &mut news);
            if watch.mapped.is_mute() {
                (0..items.len() as u32).for_each(news);
            }
        }
        if dead {
            self.enqueue_all();
        }
        control
    }

    /// True when the other side of some region rings nobody.
    pub fn is_mute(&self) -> bool {
        self.watches.iter().any(|watch| watch.mapped.is_mute())
    }

    /// Announces in all regions that `context` sleeps. True: nothing has come.
    pub fn arm(&self, context: u32) -> bool {
        // One that has news ends it; what was announced before is withdrawn by `disarm`.
        self.regions().filter_map(|m| m.own_bell(context)).all(|bell| bell.prepare_sleep())
    }

    /// Nobody sleeps there any more.
    pub fn disarm(&self, context: u32) {
        self.regions().filter_map(|m| m.own_bell(context)).for_each(|bell| bell.awake());
    }

    /// From now on [`Self::edges`] are counted.
    pub const fn count_edges(&mut self) {
        self.counts = true;
    }

    /// How often something that is reported has come.
    pub const fn edges(&self) -> u64 {
        self.edges
    }

    /// The regions that bring news.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<Mapped>> {
        self.watches.iter().map(|w| &w.mapped)
    }

    /// Writes what is ready into `out`. How many.
    pub fn collect(&mut self, out: &mut [libc::epoll_event]) -> usize {
        let mut n = 0;
        let mut gap = 0;
        for _ in 0..self.ready.len() {
            if n == out.len() {
                break;
            }
            let Some(i) = self.ready.pop_front() else { break };
            let Some(item) = self.items.get_mut(i as usize).and_then(Option::as_mut) else { continue };
            item.queued = false;
            let Some((now, reported)) = item.due() else { continue };
            item.reported = Some(reported);
            out[n] = libc::epoll_event { events: now, u64: item.data };
            if n == 0 {
                gap = self.turn.wrapping_sub(item.turn).wrapping_add(1);
            }
            item.turn = self.turn.wrapping_add(1);
            n += 1;
            if item.events & ONCE != 0 {
                item.armed = false;
            } else if item.events & EDGE == 0 {
                item.queued = true;
                self.ready.push_back(i);
            }
        }
        if n > 0 {
            self.turn = self.turn.wrapping_add(1);
            // A socket that comes round every `gap` collections of `n`: so many are active.
            let active = gap.saturating_mul(n as u32).min(1 << 10);
            self.crowd = self.crowd - self.crowd / 8 + active;
        }
        n
    }

    /// True when one or a few sockets are active: then each answer is waited for, and spinning pays. With many, sleeping
    /// lets news gather, and one wake-up serves them all.
    pub fn is_lonely(&self) -> bool {
        self.crowd <= 8 * LONELY
    }

    /// True when something would be collected.
    pub fn would_collect(&mut self) -> bool {
        while let Some(i) = self.ready.front() {
            match self.items.get_mut(*i as usize).and_then(Option::as_mut) {
                Some(item) if item.due().is_some() => return true,
                Some(item) => item.queued = false,
                None => {}
            }
            self.ready.pop_front();
        }
        false
    }
}
