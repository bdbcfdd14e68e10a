//! Publishing: everything that was committed and consumed since the last time, behind one barrier.

use crate::ring::Ring;
use endpoint::in_place::owed;
use queue::stream::barrier;

impl Ring {
    /// Publishes what was committed, and tells peers what they wait for. [`Ring::wait`] and [`Ring::poll`] do so at their beginning; a
    /// program that works long after a commit calls it before.
    pub fn flush(&mut self) {
        if self.unpublished.is_empty() || self.check().is_err() {
            return;
        }
        self.counters.flushes += 1;
        for index in &self.unpublished {
            if let Some(connection) = self.table.connection(*index)
                && connection.owed & owed::BYTES != 0
            {
                connection.link.publish();
            }
        }
        barrier();
        self.counters.barriers += 1;
        while let Some(index) = self.unpublished.pop() {
            if let Some(connection) = self.table.connection(index) {
                let owed = std::mem::take(&mut connection.owed);
                self.counters.bells += u64::from(connection.link.announce_progress(owed));
            }
        }
    }

    /// Connection `index` owes its peer something at the next flush.
    #[inline]
    pub(crate) fn owe(&mut self, index: u32, owed: u8) {
        if let Some(connection) = self.table.connection(index)
            && owed != 0
        {
            if connection.owed == 0 {
                self.unpublished.push(index);
            }
            connection.owed |= owed;
        }
    }
}
