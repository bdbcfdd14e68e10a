//! Frames of the slow path for which the port had no room: they wait in order and go before flows in the next rounds, so that a SYN, SYN-ACK or RST beside bulk
//! is late by a round and not by its timer.

use crate::counters::Cause;
use crate::setup::State;
use port::Port;
use std::collections::VecDeque;

/// Most frames that wait.
const FRAMES_MAX: usize = 64;
/// Bytes of the longest of them: every segment without data, ARP and neighbour discovery.
const LONGEST: usize = 256;

/// The frames that wait, the oldest first. The memory is made with the core.
#[derive(Debug)]
pub(crate) struct Late(VecDeque<(usize, [u8; LONGEST])>);

impl Late {
    // SETUP: made with the core.
    pub(crate) fn new() -> Self {
        Self(VecDeque::with_capacity(FRAMES_MAX))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// False when there is no room, or the frame is too long.
    fn push(&mut self, frame: &[u8]) -> bool {
        let mut bytes = [0; LONGEST];
        let Some(place) = bytes.get_mut(..frame.len()).filter(|_| self.0.len() < FRAMES_MAX) else {
            return false;
        };
        place.copy_from_slice(frame);
        self.0.push_back((frame.len(), bytes));
        true
    }
}

/// Puts a whole frame into the port, if that has room.
fn put<P: Port + ?Sized>(port: &mut P, frame: &[u8]) -> bool {
    let is_put = port.reserve().is_some_and(|buf| buf.fill(frame));
    if is_put {
        port.commit();
    }
    is_put
}

impl State {
    /// Sends a frame that the slow path has built, or keeps it until the port has room.
    pub(crate) fn send_frame<P: Port + ?Sized>(&mut self, frame: &[u8], port: &mut P) {
        if self.late.is_empty() && put(port, frame) {
            self.sent += 1;
            return;
        }
        self.counters.count(if self.late.push(frame) { Cause::PortFull } else { Cause::FrameLost });
    }

    /// Sends the frames that wait, as far as the port has room. They go before what flows have to send.
    #[cold]
    pub(crate) fn send_late<P: Port + ?Sized>(&mut self, port: &mut P) {
        while let Some((len, bytes)) = self.late.0.front()
            && put(port, &bytes[..*len])
        {
            self.late.0.pop_front();
            self.sent += 1;
        }
    }
}
