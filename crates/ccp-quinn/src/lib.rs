//! Programs of congestion control (`ccp-vm`) for QUIC connections of quinn 0.11, released and unchanged: a `ControllerFactory` for its
//! `TransportConfig`. Reads no clock and opens no sockets: quinn gives the time, and [`Handler`] is the agent.
//!
//! # Signals
//! | signal | here |
//! |---|---|
//! | `Ack.bytes_acked`, `packets_acked` | all that was acknowledged, in whatever order: QUIC has no cumulative acknowledgement |
//! | `Ack.bytes_misordered`, `packets_misordered` | 0: what is acknowledged out of order is in `bytes_acked` at once, and not counted again later |
//! | `Ack.lost_pkts_sample` | lost bytes by the size of a packet, rounded up; a mark (CE) counts as one, as RFC 9002, section 7.1, asks for the same answer |
//! | `Flow.rtt_sample_us` | of the newest packet of an acknowledgement, with the peer's delay in it |
//! | `Flow.rate_incoming`, `rate_outgoing` | by the send times that quinn gives, as Linux samples them |
//! | `Flow.bytes_in_flight`, `packets_in_flight` | bytes as quinn says them, and these by the size of a packet |
//! | `Flow.was_timeout` | persistent congestion (RFC 9002, section 7.6). quinn does not tell of its probe timeouts |
//! | `Ack.ecn_bytes`, `ecn_packets` | **not given**: quinn says that marks came, not how many |
//! | `Flow.bytes_pending` | **not given**: only whether the application is the limit |
//!
//! A program that reads a signal that is not given is refused with its name. `Cwnd` is enforced. For `Rate` quinn has no means: it paces a
//! window over 0.8 round trips, so a rate is enforced as the window that quinn then paces to that rate, once a round-trip time is known.
#![forbid(unsafe_code)]

mod controller;
mod rates;

use std::fmt;
use std::sync::Arc;

pub use ccp_vm::Changes;
use ccp_vm::{Bounds, Primitive, Program};
use quinn_proto::congestion::{Controller, ControllerFactory};

use controller::ProgramController;

/// Signals that quinn does not give.
const MISSING: [Primitive; 3] = [Primitive::EcnBytes, Primitive::EcnPackets, Primitive::BytesPending];

/// A program that needs a signal that quinn cannot give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingSignal {
    /// The name of the signal in the language.
    pub name: &'static str,
}

impl fmt::Display for MissingSignal {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "the program reads {}, which quinn cannot give", self.name)
    }
}

impl std::error::Error for MissingSignal {}

/// The agent's side, in this process. It is called within quinn's handling of an acknowledgement, so it must not wait.
pub trait Handler: Send + Sync {
    /// A connection reports the values of its program's report variables, in order. What is returned is set before the next run: window and
    /// rate are moved into the connection's bounds, and 0 leaves each as it is.
    fn on_report(&self, connection: u64, values: &[u64]) -> Changes;
}

/// Builds a controller with the program for each connection and path.
pub struct ProgramFactory {
    program: Arc<Program>,
    handler: Option<Arc<dyn Handler>>,
    first: Changes,
    cwnd_max: u64,
    next: std::sync::atomic::AtomicU64,
}

impl fmt::Debug for ProgramFactory {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("ProgramFactory").field("cwnd_max", &self.cwnd_max).finish_non_exhaustive()
    }
}

impl ProgramFactory {
    /// A factory for `program`, with windows of at most `cwnd_max` bytes.
    ///
    /// # Errors
    /// The first signal that the program reads and quinn cannot give.
    pub fn new(program: Program, cwnd_max: u64) -> Result<Self, MissingSignal> {
        let missing = MISSING.into_iter().find(|signal| program.is_reading(*signal));
        if let Some(signal) = missing {
            return Err(MissingSignal { name: signal.name() });
        }
        let next = std::sync::atomic::AtomicU64::new(1);
        Ok(Self { program: Arc::new(program), handler: None, first: Changes::default(), cwnd_max, next })
    }

    /// Sets these for each connection before its program runs: what an agent sends with its choice of a program.
    #[must_use]
    pub fn with_first(mut self, first: Changes) -> Self {
        self.first = first;
        self
    }

    /// Has each report answered by `handler`. Without one, programs decide alone.
    #[must_use]
    pub fn with_handler(mut self, handler: Arc<dyn Handler>) -> Self {
        self.handler = Some(handler);
        self
    }
}

impl ControllerFactory for ProgramFactory {
    fn build(self: Arc<Self>, now: std::time::Instant, current_mtu: u16) -> Box<dyn Controller> {
        let connection = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mss = u32::from(current_mtu);
        let bounds = Bounds::of(mss, self.cwnd_max, u64::MAX);
        let (program, handler) = (Arc::clone(&self.program), self.handler.clone());
        let mut controller = ProgramController::new(connection, program, handler, bounds, mss, now);
        controller.change(&self.first);
        Box::new(controller)
    }
}
