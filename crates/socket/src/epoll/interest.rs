//! The accelerated sockets that an epoll set holds, and which of them may be ready.

use crate::socket::{Role, Sock};
use control::CONTROL_SLOT;
use endpoint::region::Mapped;
use endpoint::stream::ready;
use rustix::fd::RawFd;
use session::accept_queue::{Queue, Rest};
use session::sleeper::Context;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The item is edge-triggered.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// The item is disarmed after one report.
pub const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// Spinning is worthwhile with at most so many active sockets.
const LONELY: u32 = 4;

/// Hash of a descriptor. Descriptors are the program's own, so no attacker makes them collide. One multiplication: neighbours go to
/// different places, and the high bits differ, too.
#[derive(Clone, Copy, Debug, Default)]
struct OwnNumber(u64);

impl Hasher for OwnNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_i32(i32::from(*byte)));
    }

    #[inline]
    fn write_i32(&mut self, number: i32) {
        self.0 =
            (self.0.rotate_left(32) ^ u64::from(number.cast_unsigned())).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// One socket in a set.
#[derive(Debug)]
pub struct Item {
    /// The descriptor under which it was added.
    pub fd: RawFd,
    /// The socket that is watched.
    pub sock: Arc<Sock>,
    /// Wanted events and flags, as given to `epoll_ctl`.
    pub events: u32,
    /// The data word, as given to `epoll_ctl`.
    pub data: u64,
    /// The kernel's set holds the placeholder, too.
    pub kernel: bool,
    armed: bool,
    queued: bool,
    /// The number of the collection that reported it last.
    turn: u32,
    /// Edge-triggered: the socket's state at the last report.
    reported: Option<Reported>,
}

/// A socket's full readiness, and its pulse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reported {
    readiness: u32,
    pulse: (u64, u32),
}

impl Item {
    /// The events that it still reports: after `EPOLLONESHOT` has reported, none, but only the flags.
    pub fn armed_events(&self) -> u32 {
        if self.armed { self.events } else { self.events & (EDGE | ONCE) }
    }

    /// The wanted events that are ready, with what to remember when they are reported. `None` also when edge-triggered and nothing has come
    /// since the last report: doorbells ring for other reasons, too.
    fn due(&self) -> Option<(u32, Reported)> {
        if !self.armed {
            return None;
        }
        // Pulse first: news that comes between the two looks is reported twice rather than never.
        let pulse = self.sock.pulse();
        let readiness = self.sock.readiness();
        let now = readiness & (self.events | ready::ALWAYS);
        let is_news = match self.reported {
            Some(before) if self.events & EDGE != 0 => {
                // Another process that shares the socket may have filled it: this process counts only its own stalls.
                let shared = session::host::may_dispute() && now & ready::OUT != 0;
                // Bytes below the low-water mark are no news.
                let has_bytes = before.pulse.0 != pulse.0 && !self.sock.is_held_back(readiness);
                has_bytes || before.pulse.1 != pulse.1 || readiness & !before.readiness != 0 || shared
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
    /// By slot: 1 + the number of the item; 0: none.
    items: Vec<u32>,
    count: u32,
    dead: bool,
}

/// A listener in a set.
#[derive(Debug)]
struct Listening {
    /// The number of its item.
    item: u32,
    queue: Arc<Queue>,
    /// Number of connections that had come at the last look.
    arrivals: u32,
    /// The set's place among those that sleep at the queue.
    rest: Option<Arc<Rest>>,
}

/// The accelerated sockets of one epoll set.
#[derive(Debug, Default)]
pub struct Interest {
    items: Vec<Option<Item>>,
    free: Vec<u32>,
    by_fd: HashMap<RawFd, u32, BuildHasherDefault<OwnNumber>>,
    watches: Vec<Watch>,
    listeners: Vec<Listening>,
    ready: VecDeque<u32>,
    /// Items with news that are yet to be sorted: age of the news, item.
    fresh: Vec<(u32, u32)>,
    /// Entries of `ready` for items that have left the set meanwhile.
    vacant: u32,
    /// A region was added to which the threads that sleep here do not listen yet.
    has_grown: bool,
    turn: u32,
    /// Number of sockets active at the same time, times 8, smoothed.
    crowd: u32,
    /// `edges` is counted: other sets, or `poll`, look into this one.
    counts: bool,
    /// Number of reportable events so far.
    edges: u64,
}

impl Interest {
    /// The number of the item of `fd`, if it still stands for `sock`.
    pub fn find(&self, fd: RawFd, sock: &Sock) -> Option<u32> {
        let i = *self.by_fd.get(&fd)?;
        let item = self.item(i)?;
        std::ptr::eq(&*item.sock, sock).then_some(i)
    }

    /// The item with number `i`.
    pub fn item(&self, i: u32) -> Option<&Item> {
        self.items.get(i as usize)?.as_ref()
    }

    /// True when nothing accelerated is in the set.
    pub fn is_empty(&self) -> bool {
        self.by_fd.is_empty()
    }

    /// True when some item may be ready.
    pub fn has_ready(&self) -> bool {
        self.ready.len() > self.vacant as usize
    }

    /// True when threads that sleep here must look, or listen to more regions. The latter is told once.
    pub fn must_stir(&mut self) -> bool {
        std::mem::take(&mut self.has_grown) | self.has_ready()
    }

    /// Adds `sock` as `fd`. Returns the item's number.
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
        self.look(i);
        i
    }

    /// Changes the wanted events, arms the item again, and queues it if it is ready.
    pub fn change(&mut self, i: u32, events: u32, data: u64) {
        if let Some(item) = self.items.get_mut(i as usize).and_then(Option::as_mut) {
            (item.events, item.data, item.armed, item.reported) = (events, data, true, None);
        }
        self.look(i);
    }

    /// Notes whether the kernel's set holds the placeholder.
    pub fn set_kernel(&mut self, i: u32, kernel: bool) {
        if let Some(item) = self.items.get_mut(i as usize).and_then(Option::as_mut) {
            item.kernel = kernel;
        }
    }

    /// Removes the item that stands for `sock` under the number `fd`.
    pub fn take(&mut self, fd: RawFd, sock: &Sock) -> Option<Item> {
        let i = self.find(fd, sock)?;
        self.remove(i)
    }

    /// Removes an item. Its number is not free before it has left the queue.
    pub fn remove(&mut self, i: u32) -> Option<Item> {
        let item = self.items.get_mut(i as usize)?.take()?;
        self.by_fd.remove(&item.fd);
        if item.queued {
            self.vacant += 1;
            self.compact();
        } else {
            self.free.push(i);
        }
        match item.sock.decided() {
            // A connection has one slot, for good. Sets have thousands of them, so its region is not searched.
            Some(Role::Stream(link)) => self.ignore(i, &link.mapped, link.slot()),
            _ => self.listeners.retain(|listening| listening.item != i),
        }
        Some(item)
    }

    /// Stops listening for news of an item at its slot.
    fn ignore(&mut self, i: u32, mapped: &Arc<Mapped>, slot: u32) {
        let watch = self.watches.iter_mut().find(|w| Arc::ptr_eq(&w.mapped, mapped));
        let Some(watch) = watch else { return };
        if let Some(place) = watch.items.get_mut(slot as usize).filter(|place| **place == i + 1) {
            *place = 0;
            watch.count -= 1;
        }
        if watch.count == 0 && mapped.pair {
            self.watches.retain(|w| w.count > 0 || !w.mapped.pair);
        }
    }

    /// Removes vacant entries from the queue, once they are many.
    fn compact(&mut self) {
        if self.vacant < 64 || (self.vacant as usize) < self.ready.len() / 2 {
            return;
        }
        let Self { ready, items, free, .. } = self;
        ready.retain(|i| {
            let stays = items.get(*i as usize).is_some_and(Option::is_some);
            if !stays {
                free.push(*i);
            }
            stays
        });
        self.vacant = 0;
    }

    /// The first entry of the queue that is not vacant. Removes those before it.
    fn first_ready(&mut self) -> Option<u32> {
        loop {
            let i = *self.ready.front()?;
            if self.item(i).is_some() {
                return Some(i);
            }
            self.ready.pop_front();
            self.free.push(i);
            self.vacant -= 1;
        }
    }

    /// Listens for news of the item's slots.
    pub fn connect(&mut self, i: u32) {
        let Some(sock) = self.item(i).map(|item| item.sock.clone()) else { return };
        if let Some(link) = sock.link() {
            self.watch(&link.mapped, Some((link.slot(), i)));
        }
        if let Some(Role::Listener(listener)) = sock.decided()
            && self.listeners.iter().all(|listening| listening.item != i)
        {
            let queue = listener.queue.clone();
            let arrivals = queue.accepting().arrivals();
            self.listeners.push(Listening { item: i, queue, arrivals, rest: None });
            self.has_grown = true;
        }
    }

    /// Listens for news of a region; `place`: a slot, and the item that its news is for.
    pub fn watch(&mut self, mapped: &Arc<Mapped>, place: Option<(u32, u32)>) {
        let at = self.watches.iter().position(|w| Arc::ptr_eq(&w.mapped, mapped)).unwrap_or_else(|| {
            self.watches.push(Watch { mapped: mapped.clone(), items: Vec::new(), count: 0, dead: false });
            self.has_grown = true;
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

    /// Queues the item if it is ready. Else later news queues it, behind items that get news first.
    fn look(&mut self, i: u32) {
        if self.item(i).is_some_and(|item| item.due().is_some()) {
            self.enqueue(i);
        }
    }

    /// Queues the item of `fd` if it is ready.
    pub fn look_at(&mut self, fd: RawFd) {
        if let Some(i) = self.by_fd.get(&fd) {
            self.look(*i);
        }
    }

    /// Queues the item, which may be ready: something has come.
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

    /// Queues the item of `fd`, which may be ready.
    pub fn enqueue_fd(&mut self, fd: RawFd) {
        if let Some(i) = self.by_fd.get(&fd) {
            self.enqueue(*i);
        }
    }

    /// Queues every socket that tells another context than `ours`: it may be ready. False: there is none.
    pub fn enqueue_disputed(&mut self, ours: u32) -> bool {
        let is_disputed = |item: &Item| {
            item.sock.link().is_some_and(|l| l.halves().0.context.load(Ordering::Relaxed) != ours + 1)
        };
        let found: Vec<u32> =
            (0..self.items.len() as u32).filter(|i| self.item(*i).is_some_and(is_disputed)).collect();
        found.iter().for_each(|i| self.queue(*i));
        !found.is_empty()
    }

    /// Queues every item that is ready. News will come of the others.
    pub fn enqueue_all(&mut self) {
        for i in 0..self.items.len() as u32 {
            self.look(i);
        }
    }

    /// All descriptors with their sockets.
    pub fn all(&self) -> Vec<(RawFd, Arc<Sock>)> {
        self.items.iter().flatten().map(|item| (item.fd, item.sock.clone())).collect()
    }

    /// The links of the sockets: their places in shared memory.
    pub fn links(&self) -> impl Iterator<Item = &endpoint::Endpoint> {
        self.items.iter().flatten().filter_map(|item| item.sock.link())
    }

    /// Takes the news of `context` from all regions and queues its items, oldest news first. True when there is something to read on the
    /// control socket.
    pub fn drain(&mut self, context: u32) -> bool {
        let (mut control, mut dead) = (false, false);
        let now = cycles::moment();
        for watch in &mut self.watches {
            if watch.mapped.dead.load(Ordering::Relaxed) && !watch.dead {
                (watch.dead, dead) = (true, true);
            }
            let Some(bell) = watch.mapped.own_bell(context) else { continue };
            let (mapped, items, list, fresh) =
                (&watch.mapped, &watch.items, &mut self.items, &mut self.fresh);
            let (counts, edges) = (self.counts, &mut self.edges);
            let mut news = |slot: u32| {
                if slot == CONTROL_SLOT && !mapped.pair {
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
                    fresh.push((mapped.age(slot, now), i));
                }
            };
            bell.drain(mapped.region.layout().params.slots, &mut news);
            if mapped.is_mute() {
                (0..items.len() as u32).for_each(news);
            }
        }
        self.look_at_queues(now);
        self.queue_fresh();
        if dead {
            self.enqueue_all();
        }
        control
    }

    /// Queues the listeners with connections to accept.
    fn look_at_queues(&mut self, now: u32) {
        for at in 0..self.listeners.len() {
            let Listening { item, queue, arrivals, rest } = &mut self.listeners[at];
            let (i, queue) = (*item, queue.accepting());
            let age = now.wrapping_sub(queue.look());
            if !rest.as_ref().map_or_else(|| queue.has_any(), |rest| rest.has_any()) {
                continue;
            }
            let is_new = std::mem::replace(arrivals, queue.arrivals()) != queue.arrivals();
            let Some(item) = self.items.get_mut(i as usize).and_then(Option::as_mut) else { continue };
            if self.counts && is_new && item.due().is_some() {
                self.edges += 1;
            }
            if !item.queued {
                item.queued = true;
                self.fresh.push((age, i));
            }
        }
    }

    /// The set's places at the accept queues of its listeners.
    pub fn rests(&self) -> impl Iterator<Item = &Arc<Rest>> {
        self.listeners.iter().filter_map(|listening| listening.rest.as_ref())
    }

    /// Moves `fresh` to the queue, oldest news first, whatever bit and region the news came by.
    fn queue_fresh(&mut self) {
        if self.fresh.len() > 1 {
            self.fresh.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
        }
        self.ready.extend(self.fresh.drain(..).map(|(_, i)| i));
    }

    /// True when some news wakes no thread: the other side of some region rings no doorbell, or too many sleep at an accept queue.
    pub fn is_mute(&self) -> bool {
        self.watches.iter().any(|watch| watch.mapped.is_mute())
            || self.listeners.iter().any(|listening| listening.rest.is_none())
    }

    /// Announces in all regions, and at all accept queues, that `context` sleeps. True: nothing has come.
    pub fn arm(&mut self, context: &Context) -> bool {
        // Stops at a region with news; `disarm` withdraws what was announced before.
        self.regions().filter_map(|m| m.own_bell(context.number)).all(|bell| bell.prepare_sleep())
            && self.arm_queues(context)
    }

    fn arm_queues(&mut self, context: &Context) -> bool {
        let Self { listeners, items, .. } = self;
        listeners.iter_mut().all(|Listening { item, queue, rest, .. }| {
            if rest.as_ref().is_none_or(|rest| !rest.is_for(context.number)) {
                let events = items.get(*item as usize).and_then(Option::as_ref).map_or(0, |item| item.events);
                let is_exclusive = events & libc::EPOLLEXCLUSIVE as u32 != 0;
                // First: the place is free for the new one.
                *rest = None;
                *rest = Rest::new(queue, &context.client, context.number, is_exclusive).map(Arc::new);
            }
            rest.as_ref().is_none_or(|rest| rest.prepare_sets_sleep())
        })
    }

    /// Withdraws [`Self::arm`]: no thread sleeps in `context` any more.
    pub fn disarm(&self, context: u32) {
        self.regions().filter_map(|m| m.own_bell(context)).for_each(|bell| bell.awake());
        self.listeners.iter().filter_map(|listening| listening.rest.as_ref()).for_each(|rest| rest.awake());
    }

    /// From now on [`Self::edges`] is counted.
    pub const fn count_edges(&mut self) {
        self.counts = true;
    }

    /// Number of reportable events so far, once they are counted.
    pub const fn edges(&self) -> u64 {
        self.edges
    }

    /// The regions that bring news to this set.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<Mapped>> {
        self.watches.iter().map(|w| &w.mapped)
    }

    /// Writes ready items into `out`. Returns how many.
    pub fn collect(&mut self, out: &mut [libc::epoll_event]) -> usize {
        let mut n = 0;
        let mut gap = 0;
        for _ in 0..self.ready.len() - self.vacant as usize {
            if n == out.len() {
                break;
            }
            let Some(i) = self.first_ready() else { break };
            self.ready.pop_front();
            let Some(item) = self.items[i as usize].as_mut() else { continue };
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
            // A socket that returns every `gap` collections, each of `n` sockets: `gap * n` are active.
            let active = gap.saturating_mul(n as u32).min(1 << 10);
            self.crowd = self.crowd - self.crowd / 8 + active;
        }
        n
    }

    /// True when few sockets are active: then each answer is waited for, and spinning pays. With many, news gathers while other threads
    /// have the core, and one look serves all of it.
    pub fn is_lonely(&self) -> bool {
        self.crowd <= 8 * LONELY
    }

    /// True when [`Self::collect`] would report something.
    pub fn would_collect(&mut self) -> bool {
        while let Some(i) = self.first_ready() {
            match &mut self.items[i as usize] {
                Some(item) if item.due().is_none() => item.queued = false,
                _ => return true,
            }
            self.ready.pop_front();
        }
        false
    }
}

#[cfg(test)]
#[path = "interest_tests.rs"]
mod tests;
