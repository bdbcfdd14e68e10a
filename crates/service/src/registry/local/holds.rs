//! Sockets that hold bytes back within this host (`TCP_CORK`, `MSG_MORE`; see `cork_timer`).

use std::collections::HashMap;
use std::time::Instant;

/// One socket that holds bytes back.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Position of the first byte held back.
    pub from: u64,
    pub due: Instant,
}

/// The sockets that hold bytes back, as far as the control thread knows.
#[derive(Debug, Default)]
pub struct Holds {
    /// Application regions that are looked at each tick, with the number of looks in a row that found nothing.
    pub awake: HashMap<u32, u32>,
    /// Held bytes by application region and socket block.
    pub holds: HashMap<(u32, u32), Hold>,
    pub tick: Option<Instant>,
}

impl Holds {
    /// When to look next; `None`: nothing is held back.
    pub fn due(&self) -> Option<Instant> {
        self.tick
    }
}
