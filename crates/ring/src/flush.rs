//! Publishing: everything that was committed and consumed since the last time, behind one barrier. A peer with news of many connections is
//! told by one write to each word of its doorbell.

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
        let moment = cycles::moment();
        while let Some(index) = self.unpublished.pop() {
            self.settle(index, moment);
        }
        while let Some((index, bell)) = self.bells.pop() {
            self.counters.bells += 1;
            if let Some(connection) = self.table.connection(index) {
                connection.link.ring(bell);
            }
        }
    }

    /// Finds the bell of connection `index`, if its peer is to be told.
    #[inline]
    fn settle(&mut self, index: u32, moment: u32) {
        let Some(connection) = self.table.connection(index) else { return };
        let owed = std::mem::take(&mut connection.owed);
        let Some(bell) = connection.link.settle_progress(owed, moment) else { return };
        self.bells.add(index, &connection.link.mapped, bell);
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
