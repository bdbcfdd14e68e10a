//! A service and a far end on two threads with a memory port between them: no kernel, and no system call but to read the clock.
//!
//! ```text
//!   far: clients without a stack  <-- memory port -->  near: core and slow path
//!                                                        |
//!                  application, on either thread  <-- region of shared memory
//! ```

mod application;
mod far;
mod near;

pub use application::Application;
pub use far::{Far, Heard, TCP_AT};
pub use near::{Account, Near, Parts, Served, Shared};

use port::Capabilities;
use port_memory::{LinkOptions, MemoryPort, link};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0A];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0B];
/// The service's address and port; all that begins with ten is on its link.
const NEAR: ([u8; 4], u16) = ([10, 0, 0, 1], 80);

/// How a rig is made.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Connections at most.
    pub connections: u32,
    /// Frames in flight each way.
    pub frames: usize,
    /// The application runs on the service's thread, else wherever its owner runs it.
    pub inline: bool,
    /// The service's thread counts its cycles.
    pub is_metered: bool,
}

/// The service's thread, and the port's other end.
#[derive(Debug)]
pub struct Rig {
    pub shared: Arc<Shared>,
    thread: JoinHandle<Served>,
}

impl Rig {
    /// Starts the service. The application is there when it is not inline.
    ///
    /// # Errors
    /// When no memory or thread is to be had.
    pub fn start(setup: Setup) -> anyhow::Result<(Self, MemoryPort, Option<Application>)> {
        let capabilities = Capabilities::plain(1500, NEAR_MAC).with_checksum();
        let options = LinkOptions { capabilities, peer_mac: FAR_MAC, slots: setup.frames, wakes: false };
        let (port, far) = link(&options)?;
        let (near, application) = Near::new(port, setup)?;
        let shared = Arc::new(Shared::default());
        let (inline, outside) =
            if setup.inline { (Some(application), None) } else { (None, Some(application)) };
        let thread = {
            let shared = shared.clone();
            let name = std::thread::Builder::new().name("near".into());
            name.spawn(move || near.serve(inline, &shared))?
        };
        Ok((Self { shared, thread }, far, outside))
    }

    /// Ends the service.
    ///
    /// # Errors
    /// When its thread has panicked.
    pub fn stop(self) -> anyhow::Result<Served> {
        self.shared.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the service's thread panicked"))
    }
}
