//! What a connection within the host needs its ports for, and how long after its end, as on Linux: the flags of the two halves say which end
//! closed, and which one did so first. They are hostile, but say only what becomes of the connection's own ports.

use shm::half_flags::{FIN, LINGER, LINGER_SHIFT, PASSIVE, RELEASED, RESET};
use std::time::Duration;

/// Linux's length of TIME-WAIT, and of FIN-WAIT-2 of a closed socket without `TCP_LINGER2`.
const USUAL: Duration = Duration::from_secs(60);

/// What the service holds a connector's port for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// Connections of connectors without `SO_REUSEADDR`.
    Plain,
    /// Connections of connectors with `SO_REUSEADDR`: another socket with the option may be bound to the port.
    Reusing,
    /// Lent slots, which need their ports for a long time.
    Lent,
}

/// What an end of a connection needs its port for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// The end is open.
    Live,
    /// FIN-WAIT-2: this end has closed, the other not. The time is the longest that Linux waits.
    FinWait2(Duration),
    /// TIME-WAIT: both ends have closed, this one first, or both at once.
    TimeWait,
    /// For nothing: this end has closed second, or a reset has ended the connection.
    Nothing,
}

impl Need {
    /// The need of an end with the flags `own` in its half; `peer`: the flags of the other half.
    pub const fn of(own: u32, peer: u32) -> Self {
        match () {
            () if (own | peer) & RESET != 0 => Self::Nothing,
            () if own & RELEASED == 0 => Self::Live,
            () if own & FIN == 0 || own & PASSIVE != 0 => Self::Nothing,
            () if peer & FIN == 0 => Self::FinWait2(fin_wait_2(own)),
            () => Self::TimeWait,
        }
    }

    /// The time for which an end with this need keeps its port; `None`: as long as it has the need.
    pub const fn lasts(self) -> Option<Duration> {
        match self {
            Self::Live => None,
            Self::FinWait2(time) => Some(time),
            Self::TimeWait => Some(USUAL),
            Self::Nothing => Some(Duration::ZERO),
        }
    }
}

/// The time that an end waits for the other's FIN after `close`. [`LINGER`] has 0 for the usual time, else the seconds and one more.
const fn fin_wait_2(flags: u32) -> Duration {
    match (flags & LINGER) >> LINGER_SHIFT {
        0 => USUAL,
        more => Duration::from_secs(more as u64 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::half_flags::{OPEN, READ_CLOSED};

    const SHUT: u32 = OPEN | FIN;
    const CLOSED: u32 = SHUT | READ_CLOSED | RELEASED;

    #[test]
    fn the_end_that_closes_first_waits() {
        let linger = |more: u32| CLOSED | more << LINGER_SHIFT;
        let five = Duration::from_secs(5);
        for (own, peer, need) in [
            (OPEN, OPEN, Need::Live),
            (OPEN, CLOSED, Need::Live),
            (SHUT, CLOSED | PASSIVE, Need::Live),
            (CLOSED, OPEN, Need::FinWait2(USUAL)),
            (linger(6), OPEN, Need::FinWait2(five)),
            (linger(1), OPEN, Need::FinWait2(Duration::ZERO)),
            (CLOSED, SHUT | PASSIVE, Need::TimeWait),
            (CLOSED, CLOSED | PASSIVE, Need::TimeWait),
            (CLOSED, CLOSED, Need::TimeWait),
            (CLOSED | PASSIVE, SHUT, Need::Nothing),
            (CLOSED | PASSIVE, CLOSED, Need::Nothing),
            (CLOSED, OPEN | RESET, Need::Nothing),
            (OPEN | RESET | RELEASED, OPEN, Need::Nothing),
            (RELEASED, OPEN, Need::Nothing),
        ] {
            assert_eq!(Need::of(own, peer), need, "{own:#x} {peer:#x}");
        }
    }
}
