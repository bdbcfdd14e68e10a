//! An application that echoes, straight over its region: what the socket library does, without sockets.

use flow::AppRegion;
use queue::pages::{Pool, class_of};
use queue::stream::{self, Sender};
use queue::{Doorbell, Wake};
use shm::{Region, Side, half_flags};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Receiver;

/// Bytes of the rings it lends.
const RING: usize = 4096;
/// Its context.
pub const CONTEXT: u32 = 1;
/// Slots ahead whose lines are fetched, and then the bytes that these lead to: as the core does.
const AHEAD: usize = 8;
const SOON: usize = 4;

/// What the service tells it about a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    Accepted(u32),
    /// TCP is done with it.
    Closed(u32),
    /// And the core.
    Released(u32),
}

#[derive(Debug)]
pub struct Application {
    region: Arc<AppRegion>,
    news: Receiver<News>,
    pool: Pool,
    /// By slot; a free one has no socket.
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
    pub(super) fn new(region: Arc<AppRegion>, news: Receiver<News>) -> Self {
        let slots = region.region().layout().params.slots;
        Self {
            region,
            news,
            pool: Pool::default(),
            socks: vec![None; slots as usize],
            rung: Vec::with_capacity(slots as usize),
            scratch: Vec::with_capacity(RING),
        }
    }

    /// Answers whatever has come. True when something had.
    pub fn round(&mut self) -> bool {
        let mut is_busy = false;
        while let Ok(news) = self.news.try_recv() {
            self.hear(news);
            is_busy = true;
        }
        let region = self.region.region();
        let Some(block) = region.context(Side::One, CONTEXT) else { return is_busy };
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

    /// The request, as the service's half says now.
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
                // Its first request may have rung before this was known.
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
                // Nobody reads it any more, acknowledged or not.
                if let Some(ring) = sock.and_then(|sock| sock.tx.ring) {
                    self.pool.give_back(ring, |i| word(self.region.region(), i));
                }
            }
        }
    }

    fn answer(&mut self, slot: u32) {
        // No `Arc` is cloned here: its count stands beside what the service's core reads of the region for each packet.
        let Self { region, pool, socks, scratch, .. } = self;
        let shared = region.region();
        let Some((service, own)) = region.halves(slot) else { return };
        let Some(Some(sock)) = socks.get_mut(slot as usize) else { return };
        let Ok(Some(got)) = stream::readable(service, sock.rx_tail, shared.layout().params.data_len) else {
            return;
        };
        let _: Result<_, _> = sock.tx.update(service);
        // An empty ring goes back and the one given back last is taken: it is warm.
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
        // Who wants to know is told by the bell that the reply rings.
        let _ = stream::consumed(own, service, sock.rx_tail);
        let [(a, a_len), (b, _)] = lent.spans(sock.tx.head, n);
        shared.write(Side::One, a, &scratch[..a_len]);
        shared.write(Side::One, b, &scratch[a_len..]);
        sock.tx.publish(own, n);
        ring(region, slot);
    }
}

/// Tells the core that serves the slot.
fn ring(region: &AppRegion, slot: u32) {
    let shared = region.region();
    let watcher = region.halves(slot).and_then(|(service, _)| stream::watcher(service));
    if let Some(block) = watcher.and_then(|context| shared.context(Side::Zero, context)) {
        // It never sleeps.
        let _: Wake = Doorbell::new(block, shared.layout().words_per_group).ring(slot);
    }
}

fn word(shared: &Region, i: usize) -> &AtomicU64 {
    shared.page_word(Side::One, i).expect("the pool asks for pages of the region only")
}
