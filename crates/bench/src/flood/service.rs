//! The service's side on one thread: a core, the slow path, and an application that echoes.

use super::SERVICE_MAC;
use crate::clock;
use base::Instant;
use fastpath::{Cause, Core};
use flow::{AppRegion, ExceptionReceiver, Flows};
use port::Port;
use port_memory::MemoryPort;
use queue::pages::{Pool, class_of};
use queue::stream::{self, Sender};
use queue::{Doorbell, Wake};
use shm::{Kind, Params, Region, Side, half_flags};
use slowpath::{Config, Count, Event, OwnAddress, Owner, SlowPath};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use wire::{Endpoint, MacAddr};

const SLOTS: u32 = 1024;
const RING: usize = 4096;
/// The application's context.
const CONTEXT: u32 = 1;

/// What both threads look at.
#[derive(Debug, Default)]
pub struct Shared {
    pub stop: AtomicBool,
    /// Time spent in rounds that found something to do.
    pub busy_ns: AtomicU64,
}

/// How it went.
#[derive(Debug)]
pub struct Served {
    pub cookies_sent: u64,
    pub cookies_taken: u64,
    pub half_open: usize,
    pub exceptions_lost: u64,
}

struct Service {
    slow: SlowPath,
    core: Core,
    exceptions: ExceptionReceiver,
    region: Arc<AppRegion>,
    pool: Pool,
    /// By slot; a free one has no socket.
    socks: Vec<Option<Sock>>,
    free: Vec<u32>,
    rung: Vec<u32>,
    scratch: Vec<u8>,
}

#[derive(Default)]
struct Sock {
    tx: Sender,
    rx_tail: u64,
}

/// Serves until it is told to stop.
pub fn serve(mut port: MemoryPort, shared: &Shared) -> Served {
    let mut service = Service::new(port.capabilities());
    while !shared.stop.load(Ordering::Relaxed) {
        let start = clock::now_ns();
        if service.round(Instant::from_ns(start), &mut port) {
            shared.busy_ns.fetch_add(clock::now_ns() - start, Ordering::Relaxed);
        }
    }
    let counters = service.slow.counters();
    Served {
        cookies_sent: counters.of(Count::CookiesSent),
        cookies_taken: counters.of(Count::CookiesTaken),
        half_open: service.slow.sizes()[0],
        exceptions_lost: service.core.counters().of(Cause::ExceptionLost),
    }
}

impl Service {
    fn new(capabilities: port::Capabilities) -> Self {
        let shared = flow::Config { flows: SLOTS, regions: 2, ..flow::Config::default() };
        let flows = Arc::new(Flows::new(shared.clone(), [3, 4]));
        let (exception_tx, exceptions) = flow::exceptions(shared.ring_slots);
        let (command_tx, command_rx) = flow::commands(shared.ring_slots);
        let local = [10, 0, 0, 1];
        let config = Config {
            mac: MacAddr(SERVICE_MAC),
            addresses: vec![OwnAddress { addr: local.into(), prefix_len: 8 }],
            secret: [7; 16],
            ..Config::default()
        };
        let core = Core::new(0, flows.clone(), exception_tx, command_rx, capabilities);
        let mut slow = SlowPath::new(config, flows, vec![command_tx], Instant::ZERO);
        let params = Params { kind: Kind::Application, id: 1, slots: SLOTS, data_len: 16 << 20 };
        let (region, _) = Region::create(params).expect("memfds can be made");
        // The application makes its region present at once, as the library does: none of it counts as growth.
        for side in [Side::Zero, Side::One] {
            region.populate(side, 0, 16 << 20).expect("memory for a region of 16 MiB");
        }
        let region = Arc::new(AppRegion::new(region));
        region.set_watermark(16 << 20);
        slow.add_region(0, &region);
        let at = Endpoint::new(local.into(), 80);
        slow.listen(at, 1, 128).expect("the address is ours and free");
        Self {
            slow,
            core,
            exceptions,
            region,
            pool: Pool::default(),
            socks: (0..SLOTS).map(|_| None).collect(),
            free: (1..SLOTS).rev().collect(),
            rung: Vec::with_capacity(SLOTS as usize),
            scratch: Vec::with_capacity(RING),
        }
    }

    /// True when something was done.
    fn round(&mut self, now: Instant, port: &mut MemoryPort) -> bool {
        let progress = self.core.poll(now, port);
        self.core.wakes().for_each(drop);
        let mut count = 0;
        let Self { slow, exceptions, .. } = self;
        while exceptions.pop(|e, frame| slow.handle_exception(now, 0, e, frame)).is_some() {
            count += 1;
        }
        if self.slow.next_deadline() <= now {
            self.slow.handle_timers(now);
        }
        while let Some(event) = self.slow.poll_event() {
            self.on_event(now, &event);
        }
        while self.slow.poll_news().is_some() {}
        progress.is_busy() || self.echo() || count > 0
    }

    fn on_event(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Incoming { pending, .. } => {
                let Some(slot) = self.free.pop() else { return self.slow.refuse(now, *pending) };
                self.clear(slot);
                if self.slow.accept(now, *pending, Owner { region: 0, slot, core: 0 }).is_ok() {
                    self.socks[slot as usize] = Some(Sock::default());
                } else {
                    self.free.push(slot);
                }
                self.slow.set_accept_room(1, self.free.len());
            }
            Event::Closed { owner, .. } => {
                if let Some((_, own)) = self.region.halves(owner.slot) {
                    stream::raise(own, half_flags::READ_CLOSED | half_flags::RELEASED);
                }
                self.ring(owner.slot);
            }
            Event::Released { slot, .. } => {
                let sock = self.socks[*slot as usize].take();
                let shared = self.region.region();
                // Nobody reads it any more, acknowledged or not.
                if let Some(ring) = sock.and_then(|sock| sock.tx.ring) {
                    self.pool.give_back(ring, |i| word(shared, i));
                }
                self.free.push(*slot);
            }
            _ => {}
        }
    }

    /// Both halves of a slot as new.
    fn clear(&self, slot: u32) {
        let Some((service, own)) = self.region.halves(slot) else { return };
        service.clear();
        own.clear();
        stream::watch(own, Some(CONTEXT));
    }

    fn ring(&self, slot: u32) {
        let region = self.region.region();
        let watcher = self.region.halves(slot).and_then(|(service, _)| stream::watcher(service));
        if let Some(block) = watcher.and_then(|context| region.context(Side::Zero, context)) {
            let _: Wake = Doorbell::new(block, region.layout().words_per_group).ring(slot);
        }
    }

    /// The application's turn.
    fn echo(&mut self) -> bool {
        let region = self.region.clone();
        let region = region.region();
        let Some(block) = region.context(Side::One, CONTEXT) else { return false };
        let bell = Doorbell::new(block, region.layout().words_per_group);
        if !bell.has_news() {
            return false;
        }
        let mut rung = std::mem::take(&mut self.rung);
        bell.drain(SLOTS, |slot| rung.push(slot));
        for slot in rung.drain(..) {
            self.answer(region, slot);
        }
        self.rung = rung;
        true
    }

    fn answer(&mut self, shared: &Region, slot: u32) {
        let Some((service, own)) = self.region.halves(slot) else { return };
        let Some(Some(sock)) = self.socks.get_mut(slot as usize) else { return };
        let Ok(Some(got)) = stream::readable(service, sock.rx_tail, shared.layout().params.data_len) else {
            return;
        };
        let _: Result<_, _> = sock.tx.update(service);
        if sock.tx.ring.is_none() {
            let pages = shared.page_words() * 64;
            let Some(ring) = self.pool.lend(class_of(RING), pages, |i| word(shared, i)) else { return };
            sock.tx.lend(own, ring);
        }
        let (n, Some(ring)) = (got.len.min(sock.tx.space()), sock.tx.ring) else { return };
        self.scratch.resize(n, 0);
        let [(a, a_len), (b, _)] = got.ring.spans(sock.rx_tail, n);
        shared.read(Side::Zero, a, &mut self.scratch[..a_len]);
        shared.read(Side::Zero, b, &mut self.scratch[a_len..]);
        sock.rx_tail += n as u64;
        // Who wants to know is told by the bell that the reply rings.
        let _ = stream::consumed(own, service, sock.rx_tail);
        let [(a, a_len), (b, _)] = ring.spans(sock.tx.head, n);
        shared.write(Side::One, a, &self.scratch[..a_len]);
        shared.write(Side::One, b, &self.scratch[a_len..]);
        sock.tx.publish(own, n);
        self.ring(slot);
    }
}

fn word(shared: &Region, i: usize) -> &AtomicU64 {
    shared.page_word(Side::One, i).expect("the pool asks for pages of the region only")
}
