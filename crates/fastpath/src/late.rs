//! Frames of the slow path for which the port had no room: they wait in order and go before flows in the next rounds, so that a SYN, SYN-ACK or RST beside bulk
//! is late by a round and not by its timer.

use crate::counters::Cause;
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

    /// Puts a frame into the port, or keeps it until that has room.
    ///
    /// # Errors
    /// [`Cause::PortFull`]: it waits. [`Cause::FrameLost`]: it is lost.
    pub(crate) fn send<P: Port + ?Sized>(&mut self, frame: &[u8], port: &mut P) -> Result<(), Cause> {
        match if self.is_empty() { put(port, frame) } else { None } {
            Some(true) => Ok(()),
            None if self.push(frame) => Err(Cause::PortFull),
            _ => Err(Cause::FrameLost),
        }
    }

    /// Puts the frames that wait into the port, as far as that has room. Returns their number.
    #[cold]
    pub(crate) fn send_waiting<P: Port + ?Sized>(&mut self, port: &mut P) -> u32 {
        let mut count = 0;
        while let Some((len, bytes)) = self.0.front()
            && let Some(is_put) = put(port, &bytes[..*len])
        {
            self.0.pop_front();
            count += u32::from(is_put);
        }
        count
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

/// Puts a frame into the port. `None`: that has no room now. False: it takes no frame of this length.
fn put<P: Port + ?Sized>(port: &mut P, frame: &[u8]) -> Option<bool> {
    let is_put = port.reserve()?.fill(frame);
    if is_put {
        port.commit();
    }
    Some(is_put)
}
