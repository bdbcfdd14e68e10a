//! Algorithms of congestion control, each in one file to learn from. They decide; what carries their decisions is crate `ccp_agent`.
//!
//! | algorithm | what lives in the datapath | what the agent does |
//! |---|---|---|
//! | [`aimd`] (CCP paper, section 4.2) | sums for a round trip | the window, each round trip |
//! | [`reno`] (RFC 5681) | everything | notes losses in its log |
//! | [`cubic`] (RFC 9438) | the curve for each acknowledgement | the cube root, after each loss |
//! | [`dctcp`] (RFC 8257) | everything | notes `alpha` |
//! | [`bbr`] (CCP paper, section 4.3) | the pulses of the rate | filters of rate and round-trip time, phases |
//! | [`copa`] (NSDI 2018) | the least round-trip time of half a round trip | window, velocity, mode |
//! | [`vegas`] (SIGCOMM 1994) | the least round-trip time of a round trip | the window |
//! | [`nimbus`] (SIGCOMM 2022) | sums of 10 ms | the Fourier transform, the pulses, both rates |
//! | [`slow_start`] (CCP paper, section 4.4) | three ways | until the first loss |
//! | [`aggregate`] (CCP paper, section 6.3) | sums for a round trip | one window for all flows of an address |
//!
//! [`all`] is an agent with all of them. Windows are bytes, rates bytes per second, times microseconds, unless a name says otherwise.
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod aimd;
pub mod bbr;
pub mod copa;
pub mod cubic;
pub mod dctcp;
mod elasticity;
pub mod nimbus;
pub mod reno;
pub mod slow_start;
pub mod vegas;

use ccp_agent::{Agent, Aggregated, Error};

/// Sums of a round trip that several algorithms decide by: `acked`, `lost`, `timeout`, the least `rtt` ([`ccp_agent::INFINITY`] without a
/// sample), the most bytes in flight (`flight`); a report each `interval_us` and at each loss.
pub const ROUND: &str = include_str!("programs/round.ccp");

/// An agent with all algorithms of this crate; Cubic is the default.
///
/// # Errors
/// None, as a test shows.
pub fn all() -> Result<Agent, Error> {
    let mut agent = Agent::new();
    agent.add(cubic::Cubic)?;
    agent.add(aimd::Aimd)?;
    agent.add(reno::Reno)?;
    agent.add(dctcp::Dctcp)?;
    agent.add(bbr::Bbr)?;
    agent.add(copa::Copa)?;
    agent.add(vegas::Vegas)?;
    agent.add(nimbus::Nimbus::default())?;
    for way in slow_start::Way::ALL {
        agent.add(slow_start::SlowStart(way))?;
    }
    agent.add(Aggregated::new(aggregate::BySource))?;
    Ok(agent)
}

/// The largest window of a new flow, segments (RFC 6928).
const INITIAL_SEGMENTS: u64 = 10;

/// The window, bytes, at which slow start ends for a flow that is handed over in mid-life, as its window says, which has grown: that window. The
/// algorithm that has brought it there may have found it in congestion avoidance, and a second slow start would fill the path's queue and lose a
/// window of segments. `None`: a new flow. Its slow start ends with a loss.
fn grown(info: &ccp_agent::FlowInfo) -> Option<u64> {
    (info.cwnd > INITIAL_SEGMENTS * info.mss).then_some(info.cwnd)
}

/// True if a window of `cwnd` bytes, of which at most `flight` were in flight in a round trip, is used and may grow, as in Linux: slow start may
/// open it to twice that, later growth to an eighth more, at least a segment. An application or a receiver that holds data back would else let it
/// grow without an end (RFC 7661).
fn is_used(cwnd: u64, flight: u64, mss: u64, is_slow_start: bool) -> bool {
    if is_slow_start { flight > cwnd / 2 } else { flight + mss.max(cwnd / 8) > cwnd }
}

/// A program under a name, as [`ccp_agent::Algorithm::programs`] returns it.
fn named(name: &str, text: &str) -> (String, String) {
    (name.to_owned(), text.to_owned())
}
