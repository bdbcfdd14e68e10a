//! Sockets that hold bytes back within this host (`TCP_CORK`, `MSG_MORE`; see `cork_timer`).

use std::collections::BTreeMap;
use std::time::Instant;

/// One socket that holds bytes back.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Position of the first byte held back.
    pub from: u64,
    pub due: Instant,
}

/// A region that is looked at each tick.
#[derive(Debug, Default)]
pub struct Awake {
    /// Held bytes by socket block.
    pub holds: BTreeMap<u32, Hold>,
    /// Looks in a row that have found nothing.
    pub quiet: u32,
}

/// A look at all regions, which is taken piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Time limit of what it finds.
    pub due: Instant,
    /// The regions below this number have been looked at.
    pub region: u32,
    /// Of that region, the holds below this number have been looked at; `None`: nothing yet.
    pub from: Option<u32>,
    /// Bits found in that region.
    pub found: usize,
}

/// The sockets that hold bytes back, as far as the control thread knows.
#[derive(Debug, Default)]
pub struct Holds {
    /// Application regions that are looked at each tick.
    pub awake: BTreeMap<u32, Awake>,
    /// When the next look begins.
    pub tick: Option<Instant>,
    /// The look that is under way.
    pub look: Option<Look>,
}

impl Holds {
    /// When to look next; `None`: nothing is held back.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if self.look.is_some() { Some(now) } else { self.tick }
    }
}
