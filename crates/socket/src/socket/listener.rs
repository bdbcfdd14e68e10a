//! What the library keeps for an accelerated listening socket.

use control::{Reply, Request, Unlisten};
use session::accept_queue::Queue;
use session::{Client, host};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// An accelerated listening socket: an accept queue beside the kernel's.
#[derive(Debug)]
pub struct Listener {
    /// The socket's accept queue.
    pub queue: Arc<Queue>,
    /// The connection accepted last came from the queue, not from the kernel.
    pub(crate) is_busy: AtomicBool,
    /// Generation of the process that has shown the socket to the service.
    pub(crate) shown_by: AtomicU32,
    /// The service wants to hear when the descriptor is closed: connections need the port.
    pub is_port_needed: AtomicBool,
}

impl Listener {
    /// True while another thread of any process may bring connections: not after the socket was shut down.
    pub fn has_any(&self) -> bool {
        self.queue.accepting().has_any() && !self.queue.is_over()
    }

    pub(crate) fn note_busy(&self, on: bool) {
        if self.is_busy.load(Ordering::Relaxed) != on {
            self.is_busy.store(on, Ordering::Relaxed);
        }
    }

    /// This process has closed its last descriptor of the socket.
    pub(crate) fn close(&self, client: Option<&Client>) {
        let Some(client) = client else { return };
        let request = Request::Unlisten { queue: self.queue.id, because: Unlisten::Closed };
        if self.queue.is_over() || self.shown_by.load(Ordering::Relaxed) == host::generation() {
            // Perhaps the last holder: when this returns no process connects directly.
            let is_needed = matches!(client.ask(request), Ok((Reply::PortNeeded, _)));
            self.is_port_needed.store(is_needed, Ordering::Relaxed);
        } else {
            client.say(request);
        }
    }
}
