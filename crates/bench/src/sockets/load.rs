//! RPCs between two processes over many long or short connections: the cost of a request with sockets, and of a connection.

use super::acts::load::{Ask, Offer, SIZE};
use super::ask;
use super::pair::Pair;
use crate::clock;
use crate::cpu::Meter;
use crate::samples::{Sample, Samples};
use anyhow::bail;

/// Number of listeners. Several are needed because a closed connection blocks its local port for the same destination (TIME-WAIT).
const PLACES: u32 = 4;

/// Offers the load once to a pair of processes.
pub fn measure(pair: &Pair<'_>, offer: Offer, samples: &mut Samples) -> anyhow::Result<()> {
    let ports = pair.far(&ask::Ask::Load(Ask::Listen(PLACES)))?;
    let ports = ports.into_iter().map(|port| port as u16).collect();
    let (accepted, start, meter) = (pair.accepted()?, clock::now_ns(), Meter::start(&pair.pids()));
    let (near, far) = (Ask::Offer(ports, offer), Ask::Serve);
    let (answer, _) = pair.both(&ask::Ask::Load(near), &ask::Ask::Load(far))?;
    let (cpu_ns, wall_ns) = (meter.used_ns() as f64, (clock::now_ns() - start) as f64);
    let [rpcs, ns, all_rpcs, all_ended] = answer[..] else { bail!("no answer of the client") };
    pair.prove(all_ended as u32, accepted)?;
    // The rate counts RPCs of unfinished short connections too: within the measured time many do not end.
    let value = rpcs * 1e9 / ns;
    let sample = Sample { value, cores: Some(cpu_ns / wall_ns), cpu_ns: Some(cpu_ns / all_rpcs) };
    samples.add(&offer.case(), pair.name, "rate", "RPC/s", sample);
    Ok(())
}

impl Offer {
    /// The case's name in results.
    pub fn case(&self) -> String {
        match self.rpcs {
            None => format!("echo/{SIZE}B/n{}/sockets", self.connections),
            Some(each) => format!("short/rpcs{each}"),
        }
    }
}
