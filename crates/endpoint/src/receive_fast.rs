//! The usual receive: into one buffer, from one piece of a ring between two applications. It leaves every other case to [`Endpoint::pull`].
//! Also the steps that both take after bytes were copied.

use crate::lock::{own, own_at_once};
use crate::stream::is_enough_space;
use crate::{Endpoint, Parts};
use queue::stream::{Sender, consumed, consumed_some, readable};
use shm::half_flags::{FAILED, MUTE, RESET, URGENT};
use shm::{Half, SockBlock};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Endpoint {
    /// Receives into `buffer` if the bytes there are in one piece and nothing unusual is pending. `None`: nothing was done. Bytes that come
    /// during the call are left to the next one.
    #[inline(always)]
    pub fn pull_piece(&self, buffer: &mut [u8]) -> Option<usize> {
        let parts = self.parts();
        let Parts { block: b, peer, .. } = parts;
        // Only a hint, read without the lock; it is checked again under the lock.
        let is_empty = peer.tx_head.load(Ordering::Relaxed) == b.rx_tail.load(Ordering::Relaxed);
        if is_empty || buffer.is_empty() || !self.mapped.pair || self.mapped.dead.load(Ordering::Relaxed) {
            return None;
        }
        let owned = own_at_once(&b.rx_lock)?;
        let tail = b.rx_tail.load(Ordering::Relaxed);
        let found = readable(peer, tail, self.mapped.data_len()).ok()??;
        let n = found.len.min(buffer.len());
        let [(at, first), _] = found.ring.spans(tail, n);
        // Loaded after the head: then a mark that lies before the head is seen with it.
        let is_unusual = peer.flags.load(Ordering::Relaxed) & (RESET | FAILED | MUTE | URGENT) != 0;
        if is_unusual || first < n || n < buffer.len() && n < found.total {
            return None;
        }
        self.mapped.region.read(self.mapped.side.other(), at, &mut buffer[..n]);
        let left = (found.len - n) as u64;
        let wants = self.consume(parts, tail..tail + n as u64, left == 0);
        drop(owned);
        let drained = n == found.total;
        let is_useful = || {
            let free = found.ring.size().saturating_sub(left);
            drained || found.len < found.total || is_enough_space(free, found.ring)
        };
        self.after_pull(parts, wants && is_useful(), drained);
        Some(n)
    }

    /// Notes that the bytes of `range` were copied; `ends_ring`: up to the end of a ring. True when the sender waits for space.
    #[inline(always)]
    pub fn consume(&self, Parts { block, own, peer }: Parts<'_>, range: Range<u64>, ends_ring: bool) -> bool {
        block.rx_tail.store(range.end, Ordering::Relaxed);
        match ends_ring || !self.mapped.pair {
            true => consumed(own, peer, range.end),
            false => consumed_some(own, peer, range.start, range.end),
        }
    }

    /// After the lock is released: wakes the sender if it `wants` space, and gives up the ring of a connection that is idle.
    #[inline(always)]
    pub fn after_pull(&self, Parts { block, peer, .. }: Parts<'_>, wants: bool, drained: bool) {
        if wants {
            self.tell_of(peer);
        }
        if drained {
            self.rest(block, peer);
        }
    }

    /// Called when everything was read. If the peer has read everything too, the connection is idle, and its ring is given back.
    fn rest(&self, b: &SockBlock, peer: &Half) {
        if b.tx_ring.load(Ordering::Relaxed) << 1 == 0 {
            return;
        }
        let Ok(_owned) = own(&b.tx_lock, &self.mapped) else { return };
        let mut sender = Sender::of(b, self.mapped.data_len());
        if let Ok(old) = sender.update(peer) {
            let ring = sender.give_back();
            sender.keep(b);
            old.into_iter().chain(ring).for_each(|ring| self.mapped.give_back(ring));
        }
    }
}
