//! The service's side on one thread: a core, the slow path and, if inline, the application.

use super::application::{CONTEXT, News};
use super::{Application, NEAR, NEAR_MAC, Setup};
use crate::clock;
use base::Instant;
use cycles::{Spent, Switch, Ticks};
use fastpath::{Cause, Core, Meter, Others, Part};
use flow::{AppRegion, CommandSender, ExceptionReceiver, Flows};
use port::Port;
use port_memory::MemoryPort;
use queue::stream;
use shm::{Kind, Params, Region, Side};
use slowpath::{Config, Count, Event, OwnAddress, Owner, SlowPath};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Sender, channel};
use wire::{Endpoint, MacAddr};

/// Bytes of each side's data area per connection: a small ring, plus one more ring (retired but still in use) for every fourth.
const DATA_PER_CONNECTION: u64 = 5 << 10;
const DATA_MIN: u64 = 16 << 20;
const BACKLOG: u32 = 128;

/// State that both threads access.
#[derive(Debug, Default)]
pub struct Shared {
    pub stop: AtomicBool,
    spent: [AtomicU64; 3],
}

impl Shared {
    /// The time that the service has spent so far.
    pub fn account(&self) -> Account {
        let [fast, slow, application] = [0, 1, 2].map(|i| self.spent[i].load(Relaxed));
        Account { fast_ns: fast, slow_ns: slow, application_ns: application }
    }

    /// Adds to a section. Only the service's thread writes, so load and store suffice.
    fn add(&self, section: usize, ns: u64) {
        let spent = &self.spent[section];
        spent.store(spent.load(Relaxed) + ns, Relaxed);
    }
}

/// Nanoseconds in rounds that found work.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Account {
    pub fast_ns: u64,
    pub slow_ns: u64,
    /// The application's time, if it is inline.
    pub application_ns: u64,
}

impl Account {
    pub fn since(self, before: Self) -> Self {
        Self {
            fast_ns: self.fast_ns - before.fast_ns,
            slow_ns: self.slow_ns - before.slow_ns,
            application_ns: self.application_ns - before.application_ns,
        }
    }

    pub fn all_ns(self) -> u64 {
        self.fast_ns + self.slow_ns + self.application_ns
    }
}

/// Results of the service's thread.
#[derive(Debug)]
pub struct Served {
    pub cookies_sent: u64,
    pub cookies_taken: u64,
    pub half_open: usize,
    pub exceptions_lost: u64,
    /// Bytes that were retransmitted.
    pub retransmitted: u64,
    /// Time of the thread by part, if metered.
    pub parts: [Spent; Parts::COUNT],
}

/// Accounts the thread's time: the fast path's parts of a round, everything else, and rounds without work.
#[derive(Debug, Default)]
pub struct Parts(cycles::Account<{ Parts::COUNT }>);

impl Parts {
    /// The index of the slow path, the inline application and reading the clock.
    pub const REST: usize = Part::COUNT;
    /// The index of rounds without work.
    pub const IDLE: usize = Self::REST + 1;
    /// The number of indices.
    pub const COUNT: usize = Self::IDLE + 1;

    fn new(is_metered: bool) -> Self {
        let mut parts = Self::default();
        if is_metered {
            parts.0.follow(Switch::on(1, 0, Ticks::here()), Self::REST);
        }
        parts
    }
}

impl Meter for Parts {
    #[inline]
    fn enter(&mut self, part: Part) {
        self.0.enter(part as usize);
    }
}

pub struct Near {
    port: MemoryPort,
    slow: SlowPath,
    core: Core,
    exceptions: ExceptionReceiver,
    region: Arc<AppRegion>,
    free: Vec<u32>,
    news: Sender<News>,
    parts: Parts,
}

impl Near {
    /// Makes a service that listens, and its application.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(port: MemoryPort, setup: Setup) -> anyhow::Result<(Self, Application)> {
        // Slot 0 is not used.
        let slots = (setup.connections + 1).next_power_of_two().max(64);
        let shared = flow::Config { flows: slots, regions: 2, ..flow::Config::default() };
        let flows = Arc::new(Flows::new(shared.clone(), [3, 4]));
        let (exception_tx, exceptions) = flow::exceptions(shared.ring_slots);
        let (command_tx, command_rx) = flow::commands(shared.ring_slots);
        let others = Others::alone(&shared);
        let core = Core::new(0, flows.clone(), exception_tx, command_rx, port.capabilities(), others);
        let region = region(slots)?;
        let slow = slow_path(flows, vec![command_tx], [&region]);
        let (news, hears) = channel();
        let application = Application::new(region.clone(), CONTEXT, hears);
        let free = (1..slots).rev().collect();
        let parts = Parts::new(setup.is_metered);
        Ok((Self { port, slow, core, exceptions, region, free, news, parts }, application))
    }

    /// Serves until `shared.stop` is set.
    pub fn serve(mut self, mut inline: Option<Application>, shared: &Shared) -> Served {
        let mut at = clock::now_ns();
        let lap = |at: &mut u64, section| {
            let now = clock::now_ns();
            shared.add(section, now - std::mem::replace(at, now));
        };
        while !shared.stop.load(Relaxed) {
            let now = Instant::from_ns(at);
            self.parts.0.mark(Parts::REST);
            let progress = self.core.round(now, &mut self.port, &mut self.parts);
            self.parts.0.enter(Parts::REST);
            self.core.wakes().for_each(drop);
            if progress.is_busy() {
                lap(&mut at, 0);
            } else {
                at = clock::now_ns();
            }
            let mut is_busy = progress.is_busy();
            if self.slow_path(now) {
                lap(&mut at, 1);
                is_busy = true;
            }
            if inline.as_mut().is_some_and(Application::round) {
                lap(&mut at, 2);
                is_busy = true;
            }
            if !is_busy {
                self.parts.0.redeem(Parts::IDLE);
            }
        }
        let counters = self.slow.counters();
        Served {
            cookies_sent: counters.of(Count::CookiesSent),
            cookies_taken: counters.of(Count::CookiesTaken),
            half_open: self.slow.sizes()[0],
            exceptions_lost: self.core.counters().of(Cause::ExceptionLost),
            retransmitted: self.core.counters().retransmitted_bytes,
            parts: self.parts.0.spent().1,
        }
    }

    /// One round of the slow path. True if it did something.
    fn slow_path(&mut self, now: Instant) -> bool {
        let mut is_busy = false;
        let Self { slow, exceptions, .. } = self;
        while exceptions.pop(|e, frame| slow.handle_exception(now, 0, e, frame)).is_some() {
            is_busy = true;
        }
        if self.slow.next_deadline() <= now {
            self.slow.handle_timers(now);
            is_busy = true;
        }
        while let Some(event) = self.slow.poll_event() {
            self.on_event(now, &event);
        }
        // No application sleeps, so no wake-up is needed.
        while self.slow.poll_news().is_some() {}
        is_busy
    }

    fn on_event(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Incoming { pending, .. } => {
                let Some(slot) = self.free.pop() else { return self.slow.refuse(now, *pending) };
                self.clear(slot);
                if self.slow.accept(now, *pending, Owner { region: 0, slot, core: 0 }).is_ok() {
                    self.tell(News::Accepted(slot));
                } else {
                    self.free.push(slot);
                }
                self.slow.set_accept_room(1, self.free.len());
            }
            Event::Closed { owner, .. } => self.tell(News::Closed(owner.slot)),
            Event::Released { slot, .. } => {
                self.tell(News::Released(*slot));
                self.free.push(*slot);
            }
            _ => {}
        }
    }

    fn tell(&self, news: News) {
        // This fails when the application is gone, at the end of a run.
        let _ = self.news.send(news);
    }

    fn clear(&self, slot: u32) {
        clear(&self.region, slot, CONTEXT);
    }
}

/// A slow path that listens at [`NEAR`], for applications in those regions, which are numbered from 0.
pub(super) fn slow_path<'a>(
    flows: Arc<Flows>,
    commands: Vec<CommandSender>,
    regions: impl IntoIterator<Item = &'a Arc<AppRegion>>,
) -> SlowPath {
    let config = Config {
        mac: MacAddr(NEAR_MAC),
        addresses: vec![OwnAddress { addr: NEAR.0.into(), prefix_len: 8 }],
        secret: [7; 16],
        ..Config::default()
    };
    let mut slow = SlowPath::new(config, flows, commands, Instant::ZERO);
    for (number, region) in (0..).zip(regions) {
        slow.add_region(number, region);
    }
    slow.listen(Endpoint::new(NEAR.0.into(), NEAR.1), 1, BACKLOG).expect("the address is ours and free");
    slow
}

/// Resets both halves of a slot of the application with that context.
pub(super) fn clear(region: &AppRegion, slot: u32, context: u32) {
    let Some((service, own)) = region.halves(slot) else { return };
    service.clear();
    own.clear();
    stream::watch(own, Some(context));
}

/// Makes a region and populates all of its memory at once, as the library does with its first memory, so that no use counts as growth.
pub(super) fn region(slots: u32) -> anyhow::Result<Arc<AppRegion>> {
    let data_len = (u64::from(slots) * DATA_PER_CONNECTION).next_multiple_of(1 << 20).max(DATA_MIN);
    let params = Params { kind: Kind::Application, id: 1, slots, data_len };
    let (region, _) = Region::create(params)?;
    for side in [Side::Zero, Side::One] {
        region.populate(side, 0, data_len as usize)?;
    }
    let region = Arc::new(AppRegion::new(region));
    region.set_watermark(data_len);
    Ok(region)
}
