//! Requests in a closed loop.

use super::{Far, Heard};
use anyhow::bail;

/// The largest share of the replies' bytes that may be retransmitted.
const AGAIN_MOST: f64 = 0.02;

/// Requests of `len` bytes from a far end, with replies of the same length: each reply is followed by the connection's next request.
#[derive(Debug)]
pub struct ClosedLoop {
    len: u32,
    heard: Vec<Heard>,
    /// Replies so far.
    pub rpcs: u64,
    /// Replies of another length.
    odd: u64,
}

impl ClosedLoop {
    /// A loop of requests of that length.
    pub fn new(len: usize) -> Self {
        Self { len: len as u32, heard: Vec::new(), rpcs: 0, odd: 0 }
    }

    /// One round of the far end. True if it did something.
    pub fn round(&mut self, far: &mut Far) -> bool {
        let is_busy = far.round(&mut self.heard);
        for heard in self.heard.drain(..) {
            let Heard::Bytes { client, len } = heard else { continue };
            self.rpcs += 1;
            self.odd += u64::from(len != self.len);
            far.request(client);
        }
        is_busy
    }

    /// Checks a run in which `measured` of the replies came while it was measured, and so many bytes were sent again.
    ///
    /// # Errors
    /// When there were no replies, or replies of a wrong length, or too much was sent again.
    pub fn check(&self, connections: u32, measured: u64, retransmitted: u64) -> anyhow::Result<()> {
        // A handshake's round trip is much shorter than one through a full queue, so each connection may send one or two tail loss probes;
        // more if a thread loses its core for milliseconds. A run with many probes measures something else.
        let probes = 2 * u64::from(connections) * u64::from(self.len);
        let bytes = self.rpcs.max(1) * u64::from(self.len);
        let again = retransmitted.saturating_sub(probes) as f64 / bytes as f64;
        if self.odd > 0 || again > AGAIN_MOST || measured == 0 {
            bail!(
                "{measured} replies, {} of them of another length than asked for, {retransmitted} bytes sent again",
                self.odd
            );
        }
        Ok(())
    }
}
