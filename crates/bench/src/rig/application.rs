//! An application that echoes requests directly over its region: it does what the socket library does, without sockets.

use flow::AppRegion;
use queue::pages::{Pool, class_of};
use queue::stream::{self, Sender};
use queue::{Doorbell, Wake};
use shm::{Region, Side, half_flags};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Receiver;

/// Size in bytes of the transmit rings that it lends.
const RING: usize = 4096;
/// The context number of an application that is alone.
pub const CONTEXT: u32 = 1;
/// Distance, in slots, at which a slot's cache lines are prefetched, and then its payload: as the core does.
const AHEAD: usize = 8;
const SOON: usize = 4;

/// A message from the service about a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    Accepted(u32),
    /// TCP has finished with the slot.
    Closed(u32),
    /// The core has released the slot.
    Released(u32),
}

#[derive(Debug)]
pub struct Application {
    region: Arc<AppRegion>,
    context: u32,
    news: Receiver<News>,
    pool: Pool,
    /// By slot; `None` if the slot is free.
    socks: Vec<Option<Sock>>,
    rung: Vec<u32>,
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Sock {
    tx: Sender,
    rx_tail: u64,
}

impl Application {
    pub(super) fn new(region: Arc<AppRegion>, context: u32, news: Receiver<News>) -> Self {
        let slots = region.region().layout().params.slots;
        Self {
            region,
            context,
            news,
            pool: Pool::default(),
            socks: vec![None; slots as usize],
            rung: Vec::with_capacity(slots as usize),
            scratch: Vec::with_capacity(RING),
        }
    }

    /// Answers all requests that have arrived. True if there was an event.
    pub fn round(&mut self) -> bool {
        let mut is_busy = false;
        while let Ok(news) = self.news.try_recv() {
            self.hear(news);
            is_busy = true;
        }
        let region = self.region.region();
        let Some(block) = region.context(Side::One, self.context) else { return is_busy };
        let bell = Doorbell::new(block, region.layout().words_per_group);
        if !bell.has_news() {
            return is_busy;
        }
        let mut rung = std::mem::take(&mut self.rung);
        bell.drain(region.layout().params.slots, |slot| rung.push(slot));
        rung.iter().take(AHEAD).for_each(|&slot| self.prefetch(slot));
        for i in 0..rung.len() {
            rung.get(i + AHEAD).into_iter().for_each(|&slot| self.prefetch(slot));
            rung.get(i + SOON).into_iter().for_each(|&slot| self.prefetch_bytes(slot));
            self.answer(rung[i]);
        }
        rung.clear();
        self.rung = rung;
        true
    }

    fn prefetch(&self, slot: u32) {
        let shared = self.region.region();
        shared.prefetch_half(Side::Zero, slot, false);
        shared.prefetch_half(Side::One, slot, true);
        self.socks.get(slot as usize).into_iter().for_each(flow::prefetch);
    }

    /// Prefetches the request's bytes. The service's half tells where they are.
    fn prefetch_bytes(&self, slot: u32) {
        let shared = self.region.region();
        let sock = self.socks.get(slot as usize).copied().flatten();
        let (Some(sock), Some((service, _))) = (sock, self.region.halves(slot)) else { return };
        let got = stream::readable(service, sock.rx_tail, shared.layout().params.data_len);
        if let Ok(Some(got)) = got {
            shared.prefetch(Side::Zero, got.ring.spans(sock.rx_tail, got.len)[0].0, false);
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Accepted(slot) => {
                self.socks[slot as usize] = Some(Sock::default());
                // The first request may have rung the doorbell before this message was read.
                self.answer(slot);
            }
            News::Closed(slot) => {
                if let Some((_, own)) = self.region.halves(slot) {
                    stream::raise(own, half_flags::READ_CLOSED | half_flags::RELEASED);
                }
                ring(&self.region, slot);
            }
            News::Released(slot) => {
                let sock = self.socks[slot as usize].take();
                // The core does not read the ring any more, even if some bytes are not acknowledged.
                if let Some(ring) = sock.and_then(|sock| sock.tx.ring) {
                    self.pool.give_back(ring, |i| word(self.region.region(), i));
                }
            }
        }
    }

    fn answer(&mut self, slot: u32) {
        // No `Arc` is cloned: its counter shares a cache line with fields that the service's core reads for each packet.
        let Self { region, pool, socks, scratch, .. } = self;
        let shared = region.region();
        let Some((service, own)) = region.halves(slot) else { return };
        let Some(Some(sock)) = socks.get_mut(slot as usize) else { return };
        let Ok(Some(got)) = stream::readable(service, sock.rx_tail, shared.layout().params.data_len) else {
            return;
        };
        let _: Result<_, _> = sock.tx.update(service);
        // An empty ring goes back to the pool, which lends the ring returned last: it is in the cache.
        if let Some(ring) = sock.tx.give_back() {
            pool.give_back(ring, |i| word(shared, i));
        }
        if sock.tx.ring.is_none() {
            let pages = shared.page_words() * 64;
            let Some(ring) = pool.lend(class_of(RING), pages, |i| word(shared, i)) else { return };
            sock.tx.lend(own, ring);
        }
        let (n, Some(lent)) = (got.len.min(sock.tx.space()), sock.tx.ring) else { return };
        scratch.resize(n, 0);
        let [(a, a_len), (b, _)] = got.ring.spans(sock.rx_tail, n);
        shared.read(Side::Zero, a, &mut scratch[..a_len]);
        shared.read(Side::Zero, b, &mut scratch[a_len..]);
        sock.rx_tail += n as u64;
        // If the service wants to know of consumed bytes, the doorbell rung for the reply tells it.
        let _ = stream::consumed(own, service, sock.rx_tail);
        let [(a, a_len), (b, _)] = lent.spans(sock.tx.head, n);
        shared.write(Side::One, a, &scratch[..a_len]);
        shared.write(Side::One, b, &scratch[a_len..]);
        sock.tx.publish(own, n);
        ring(region, slot);
    }
}

/// Rings the doorbell of the core that serves the slot.
fn ring(region: &AppRegion, slot: u32) {
    let shared = region.region();
    let watcher = region.halves(slot).and_then(|(service, _)| stream::watcher(service));
    if let Some(block) = watcher.and_then(|context| shared.context(Side::Zero, context)) {
        // The core never sleeps, so it need not be woken.
        let _: Wake = Doorbell::new(block, shared.layout().words_per_group).ring(slot);
    }
}

fn word(shared: &Region, i: usize) -> &AtomicU64 {
    shared.page_word(Side::One, i).expect("the pool asks for pages of the region only")
}
