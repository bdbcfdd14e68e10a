//! A longer ring in the place of one that the peer does not read: a program that writes much before its peer reads counts on buffers as
//! long as Linux's, and is perhaps the reader itself. A blocking send gets it after a while, for most readers are only late. A non-blocking
//! send gets it before it reports that there is no space, for that must stay true until the peer reads.

use crate::lock::own;
use crate::{Endpoint, state};
use queue::Ring;
use queue::pages::class_of;
use queue::stream::Sender;
use rustix::io::Errno;

/// Least bytes of such a ring: Linux's buffers take some 2.5 MB between two programs of a host.
const LEAST: usize = 1 << 20;
/// One page in so many stays free for rings of other sizes and other connections.
const LEAVING: usize = 2;
/// Bytes moved at once. Rings are multiples of it, so that no piece crosses a ring's end.
const PIECE: usize = base::limits::RING_MIN as usize;

impl Endpoint {
    /// A send has waited for a while, and its peer reads nothing: gets a ring for the `left` bytes that it sends next, or a longer one.
    ///
    /// # Errors
    /// As [`push`](Self::push)'s.
    pub fn lengthen(&self, left: usize) -> Result<(), Errno> {
        let owned = own(&self.block().tx_lock, &self.mapped)?;
        // Nothing is held back while a send waits for space.
        let is_news = self.let_go_owned();
        let mut sender = self.sender();
        let updated = sender.update(self.halves().1).map_err(|v| self.violated(v));
        if let Ok(Some(ring)) = updated {
            self.part_with(ring, &sender);
        }
        let bounds = self.bounds();
        let most = bounds.map_or(Some(left.max(LEAST)), |bounds| bounds.most(&sender, left));
        if updated.is_ok() && sender.may_lend() {
            self.widen(&mut sender, left, most);
        } else if updated.is_ok() && self.state() & state::TOLD_FULL == 0 {
            let _ = self.relocate(&mut sender, most.unwrap_or(left));
        }
        self.store(&sender);
        drop(owned);
        if is_news {
            self.tell();
        }
        updated.map(drop)
    }

    /// A non-blocking send has found space for `done` bytes, and none for `left` more. True: there is some now. The ring grows by steps, so
    /// that it stays short for a reader that was only late.
    #[cold]
    pub fn lengthen_at_once(&self, sender: &mut Sender, done: usize, left: usize) -> bool {
        // The program was told that there is no space: that stays so until the peer reads.
        if done == 0 && self.state() & state::TOLD_FULL != 0 {
            return false;
        }
        let size = sender.ring.map_or(0, |ring| ring.size() as usize);
        let most = self.bounds().and_then(|bounds| bounds.most(sender, left));
        self.relocate(sender, most.unwrap_or_else(|| (size * 4).max(left)))
    }

    /// Both rings are full: moves the second's bytes into a longer one, of `most` bytes at most. False: there is none.
    fn relocate(&self, sender: &mut Sender, most: usize) -> bool {
        let Some(short) = sender.ring else { return false };
        let (from, to) = (sender.tail.max(sender.start), sender.head);
        if to.checked_sub(from).is_none_or(|len| len > short.size()) {
            // No ring holds so many bytes: the process has overwritten its own block.
            return false;
        }
        let best = class_of(most).min(self.mapped.host.class_most());
        let least = class_of(short.size() as usize) + 1;
        if least > best {
            return false;
        }
        let Some(long) = self.lend_longest(least, best, LEAVING) else { return false };
        self.copy(short, long, from, to);
        if let Some(before) = sender.relocate(self.halves().0, long) {
            self.store(sender);
            self.retire(sender.head, before);
        }
        true
    }

    fn copy(&self, from: Ring, to: Ring, mut at: u64, end: u64) {
        let (region, side) = (&self.mapped.region, self.mapped.side);
        let mut piece = [0; PIECE];
        while at < end {
            let len = ((end - at) as usize).min(PIECE - at as usize % PIECE);
            let [(there, _), _] = from.spans(at, len);
            let [(here, _), _] = to.spans(at, len);
            region.read(side, there, &mut piece[..len]);
            region.write(side, here, &piece[..len]);
            at += len as u64;
        }
    }
}
