//! The ends of control lines, and when each is carried out. A forked child sends its hello before it closes its copies of other lines (its
//! parent's, and the one on which it was promised). So when the service reads the end of a line, a hello that was sent before lies at a line
//! that waits in the listening socket, or that is accepted and has an event. It must be heard first: the end could close what that child holds.
//!
//! ```text
//!   seen      the end was read: the kernel may have events that the loop has not taken
//!   taken     all events of that time were taken: lines may wait in the listening socket
//!   marked    the lines that waited are accepted, and have a turn. The end waits for the turns that began before its mark, of lines that
//!             have not said hello; then it is due
//! ```
//! A line has one turn at a time, so a line that says nothing, or says more and more, delays no end for longer than it takes to look at it
//! once. This type reads no clock and makes no call.

use std::collections::{BTreeSet, VecDeque};

/// A listening socket keeps so many lines: when more have been accepted, all those have that waited before.
const WAIT_MOST: u64 = super::control_socket::BACKLOG as u64 + 1;
/// After so many looks that brought as many events as fit, each descriptor of the loop has been looked at.
const LOOKS_MOST: u64 = super::DESCRIPTORS / super::EVENTS as u64;

/// The ends that are still to be carried out, and the turns that they wait for.
#[derive(Debug, Default)]
pub struct Ends {
    /// Each with the number of the look at events in which it was seen.
    seen: VecDeque<(u32, u64)>,
    /// Each with the number of lines that had been accepted.
    taken: VecDeque<(u32, u64)>,
    /// Each with its mark.
    marked: VecDeque<(u32, u64)>,
    /// The turns that lines without a hello are waiting for.
    turns: BTreeSet<u64>,
    next_turn: u64,
    looks: u64,
    accepted: u64,
}

impl Ends {
    /// True when no end is to be carried out.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty() && self.taken.is_empty() && self.marked.is_empty()
    }

    /// A line has ended, and all its messages are read.
    pub fn add(&mut self, line: u32) {
        self.seen.push_back((line, self.looks));
    }

    /// Events were taken from the kernel: `are_all` that there were, or as many as fit. The lines concerned have their turns.
    pub fn events_taken(&mut self, are_all: bool) {
        self.looks += 1;
        while let Some((line, _)) = pop_if(&mut self.seen, |look| are_all || look + LOOKS_MOST < self.looks) {
            self.taken.push_back((line, self.accepted));
        }
    }

    /// True while the loop should look whether lines wait in the listening socket.
    pub fn wants_accept(&self) -> bool {
        !self.taken.is_empty()
    }

    /// A line was accepted, and has a turn if it is served.
    pub fn line_accepted(&mut self) {
        self.accepted += 1;
        while let Some((line, _)) = pop_if(&mut self.taken, |at| at + WAIT_MOST <= self.accepted) {
            self.marked.push_back((line, self.next_turn));
        }
    }

    /// No line waits in the listening socket, or none can be accepted now.
    pub fn none_waits(&mut self) {
        let mark = self.next_turn;
        self.marked.extend(self.taken.drain(..).map(|(line, _)| (line, mark)));
    }

    /// A line without a hello waits for its turn from now on. Returns the number of the turn.
    pub fn wait(&mut self) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.turns.insert(turn);
        turn
    }

    /// A line has had that turn, or is closed.
    pub fn had(&mut self, turn: u64) {
        self.turns.remove(&turn);
    }

    /// Takes an end that is due.
    pub fn next(&mut self) -> Option<u32> {
        let first = self.turns.first().copied();
        pop_if(&mut self.marked, |mark| first.is_none_or(|turn| mark <= turn)).map(|(line, _)| line)
    }
}

/// Takes the first line if it is as far as that: the lines behind it are not further.
fn pop_if(lines: &mut VecDeque<(u32, u64)>, is_so_far: impl Fn(u64) -> bool) -> Option<(u32, u64)> {
    let (_, number) = lines.front()?;
    if is_so_far(*number) { lines.pop_front() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_waits_for_lines_that_waited_in_the_listening_socket_when_it_was_seen() {
        let mut ends = Ends::default();
        ends.add(7);
        assert!(ends.next().is_none() && !ends.wants_accept(), "events may be there");
        ends.events_taken(true);
        assert!(ends.next().is_none() && ends.wants_accept());
        let child = ends.wait();
        ends.line_accepted();
        assert_eq!(ends.next(), None, "more may wait");
        ends.none_waits();
        assert_eq!(ends.next(), None, "the child has not had its turn");
        let later = ends.wait();
        ends.had(child);
        assert_eq!((ends.next(), ends.next()), (Some(7), None), "a line that has come later delays nothing");
        ends.had(later);
        assert!(ends.is_empty());
    }

    #[test]
    fn an_end_waits_for_events_that_were_there_before_it_was_seen() {
        let mut ends = Ends::default();
        ends.add(7);
        ends.none_waits();
        assert_eq!(ends.next(), None);
        let child = ends.wait();
        ends.events_taken(true);
        ends.none_waits();
        assert_eq!(ends.next(), None);
        ends.had(child);
        assert_eq!(ends.next(), Some(7));
    }

    #[test]
    fn a_flood_of_lines_and_events_delays_an_end_by_as_many_as_could_have_been_there() {
        let mut ends = Ends::default();
        ends.add(7);
        let looks = (1..).find(|_| {
            ends.events_taken(false);
            ends.wants_accept()
        });
        assert_eq!(looks, Some(LOOKS_MOST + 1));
        let accepted = (1..).find(|_| {
            let turn = ends.wait();
            ends.line_accepted();
            ends.had(turn);
            ends.next() == Some(7)
        });
        assert_eq!(accepted, Some(WAIT_MOST));
    }
}
