//! One direction of a virtual socket at the side that sends. The bytes themselves stay with the caller until the peer's socket has them.
//!
//! ```text
//!   acked              placed                     head                edge
//!     |-- on channels ---|-- waits for a channel ---|                   |      edge: the peer's credit, also before head
//! ```

use crate::runs::{Chunk, Number, Runs};
use crate::violation::Violation;

/// The state of the direction; all positions count bytes from the beginning of the stream.
#[derive(Clone, Debug, Default)]
pub struct Sending {
    /// The peer's socket has every byte before this position.
    pub acked: u64,
    /// Every byte before this position was given to a channel.
    pub placed: u64,
    /// The application has written so far.
    pub head: u64,
    /// The peer may be sent bytes before this position.
    pub edge: u64,
    /// True: `head` is final.
    pub is_finished: bool,
    /// True: the peer's socket has the end of the stream, too.
    is_end_acked: bool,
    /// The channel that was given bytes last.
    on: Option<Number>,
    runs: Runs,
}

/// What a CREDIT frame has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// `acked` has moved: the caller may forget bytes.
    pub is_acked: bool,
    /// `edge` has moved: more may be sent.
    pub is_widened: bool,
}

impl Sending {
    /// Begins a new stream in the memory of an old one.
    pub fn clear(&mut self) {
        let mut runs = core::mem::take(&mut self.runs);
        runs.clear();
        *self = Self { runs, ..Self::default() };
    }

    /// The next bytes to give to a channel, at most `most`; `None`: there are none, or no credit.
    #[must_use]
    pub fn next(&self, most: u64) -> Option<Chunk> {
        self.runs.next(self.placed, self.head.min(self.edge), most)
    }

    /// That channel carries the chunk now.
    pub fn place(&mut self, chunk: Chunk, on: Number) {
        self.runs.place(chunk, on);
        self.on = Some(on);
        self.placed = self.placed.max(chunk.end);
    }

    /// That channel has died: what it carried must go again.
    pub fn lose(&mut self, on: Number) {
        self.runs.lose(on);
    }

    /// Takes in the peer's confirmation of all before `acked`, and its credit up to `edge`. Older values than the known ones change nothing:
    /// frames of several channels come in any order. Tells `freed` how many bytes less each channel has under way.
    ///
    /// # Errors
    /// [`Violation::AckedUnsent`], and [`Violation::Window`] for more than any window.
    pub fn confirm(
        &mut self,
        socket: u32,
        acked: u64,
        edge: u64,
        freed: impl FnMut(Number, u64),
    ) -> Result<Progress, Violation> {
        let mut progress = Progress { is_widened: self.widen(edge)?, is_acked: false };
        // A FIN takes one number behind the last byte, as in TCP.
        let is_end = self.is_finished && acked == self.head + 1 && self.placed == self.head;
        let bytes = if is_end { self.head } else { acked };
        if bytes > self.placed {
            return Err(Violation::AckedUnsent { socket, acked });
        }
        if bytes > self.acked {
            self.acked = bytes;
            self.runs.acknowledge(bytes, freed);
            progress.is_acked = true;
        }
        if is_end && !self.is_end_acked {
            (self.is_end_acked, progress.is_acked) = (true, true);
        }
        Ok(progress)
    }

    /// Takes in the peer's credit. True: more may be sent than before.
    ///
    /// # Errors
    /// [`Violation::Window`] for more than any window.
    pub fn widen(&mut self, edge: u64) -> Result<bool, Violation> {
        if edge > self.placed.saturating_add(crate::limits::WINDOW_MAX) {
            return Err(Violation::Window(edge));
        }
        let is_wider = edge > self.edge;
        self.edge = self.edge.max(edge);
        Ok(is_wider)
    }

    /// The stream is given up: tells `freed` how many bytes each channel has under way of it.
    pub fn give_up(&mut self, freed: impl FnMut(Number, u64)) {
        self.runs.give_up(freed);
    }

    /// True when the peer's socket has everything, and the end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_end_acked
    }

    /// The channel that was given bytes last, which may be gone.
    #[must_use]
    pub fn on(&self) -> Option<Number> {
        self.on
    }

    /// Bytes that channels carry now.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.runs.under_way()
    }

    /// Number of runs under way, for the check of memory.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Number = Number(1);

    fn sent() -> Sending {
        let mut sending = Sending { head: 100, edge: 60, ..Sending::default() };
        let chunk = sending.next(1_000).expect("credit");
        sending.place(chunk, A);
        sending
    }

    #[test]
    fn nothing_goes_beyond_the_credit() {
        let mut sending = sent();
        assert_eq!((sending.placed, sending.next(1_000)), (60, None));
        let progress = sending.confirm(1, 10, 70, |_, _| ());
        assert_eq!(progress, Ok(Progress { is_acked: true, is_widened: true }));
        assert_eq!(sending.next(1_000), Some(Chunk { start: 60, end: 70, must: None }));
    }

    #[test]
    fn credit_that_comes_late_changes_nothing() {
        let mut sending = sent();
        assert!(sending.confirm(1, 50, 80, |_, _| ()).is_ok());
        assert_eq!(sending.confirm(1, 20, 60, |_, _| ()), Ok(Progress::default()));
        assert_eq!((sending.acked, sending.edge), (50, 80));
    }

    #[test]
    fn peer_can_confirm_only_what_was_placed() {
        let mut sending = sent();
        assert_eq!(
            sending.confirm(7, 61, 80, |_, _| ()),
            Err(Violation::AckedUnsent { socket: 7, acked: 61 })
        );
        sending.is_finished = true;
        assert_eq!(
            sending.confirm(7, 101, 80, |_, _| ()),
            Err(Violation::AckedUnsent { socket: 7, acked: 101 })
        );
        let huge = sending.placed + crate::limits::WINDOW_MAX + 1;
        assert_eq!(sending.confirm(7, 0, huge, |_, _| ()), Err(Violation::Window(huge)));
    }

    #[test]
    fn end_is_confirmed_by_one_more() {
        let mut sending = sent();
        assert!(sending.widen(100).is_ok());
        let chunk = sending.next(1_000).expect("credit");
        sending.place(chunk, A);
        sending.is_finished = true;
        assert!(sending.confirm(1, 100, 100, |_, _| ()).is_ok());
        assert!(!sending.is_over());
        assert!(sending.confirm(1, 101, 100, |_, _| ()).is_ok());
        assert!(sending.is_over() && sending.acked == 100);
    }
}
