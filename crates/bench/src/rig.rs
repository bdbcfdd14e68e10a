//! A service and a far end on two threads, with a memory port between them. They make no system call except to read the clock.
//!
//! ```text
//!   far: clients without a stack  <-- memory port -->  near: core and slow path
//!                                                        |
//!                  application, on either thread  <-- region of shared memory
//! ```

mod application;
mod closed_loop;
mod far;
mod near;
mod several;

pub use application::Application;
pub use closed_loop::ClosedLoop;
pub use far::{Far, Heard, TCP_AT};
pub use near::{Account, Near, Parts, Served, Shared};
pub use several::{Lane, several};

use port::Capabilities;
use port_memory::{LinkOptions, MemoryPort, link};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0A];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0B];
/// The service's address and port; all of 10.0.0.0/8 is on its link.
const NEAR: ([u8; 4], u16) = ([10, 0, 0, 1], 80);

/// The parameters of a rig.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The most connections at once.
    pub connections: u32,
    /// The most frames in flight in each direction.
    pub frames: usize,
    /// True: the application runs on the service's thread. False: the caller runs it.
    pub inline: bool,
    /// True: the service's thread counts its cycles.
    pub is_metered: bool,
}

/// The running service's thread.
#[derive(Debug)]
pub struct Rig {
    pub shared: Arc<Shared>,
    thread: JoinHandle<Served>,
}

impl Rig {
    /// Starts the service. Returns the far end's port, and the application unless it is inline.
    ///
    /// # Errors
    /// When memory or a thread cannot be had.
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

    /// Ends the service and returns its totals.
    ///
    /// # Errors
    /// When the service's thread has panicked.
    pub fn stop(self) -> anyhow::Result<Served> {
        self.shared.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the service's thread panicked"))
    }
}
