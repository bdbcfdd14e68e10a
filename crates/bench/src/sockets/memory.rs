//! The memory of an open socket: of the process, shared, and of the kernel.

use super::actor::Answer;
use super::acts::memory::bytes;
use super::acts::ready;
use super::ask::Ask;
use super::pair::Pair;
use crate::interrupt;
use crate::samples::Samples;
use anyhow::bail;
use std::fs;
use std::hint::black_box;
use std::thread::sleep;
use std::time::Duration;

/// Number of sockets that are measured.
const OPEN: u32 = 10_000;
/// Sockets opened before, so that one-time costs are not counted.
const WARM_UP: u32 = 200;
/// Time after which the kernel has freed what it frees only after an RCU grace period.
const GRACE: Duration = Duration::from_millis(200);

/// Bytes of the kernel's slab caches, of the whole machine.
pub fn slab() -> anyhow::Result<f64> {
    sleep(GRACE);
    bytes(&fs::read_to_string("/proc/meminfo")?, "Slab")
}

/// Writes to `wanted` bytes of memory (at most three quarters of what is available) and frees them. A virtual machine gets memory from its
/// host at the first write, which is slow; without this the first measurement would pay for it.
pub fn touch(wanted: f64) -> anyhow::Result<()> {
    const PIECE: usize = 64 << 20;
    let available = bytes(&fs::read_to_string("/proc/meminfo")?, "MemAvailable")?;
    let mut pieces = Vec::new();
    while ((pieces.len() * PIECE) as f64) < wanted.min(available * 0.75) {
        interrupt::check()?;
        pieces.push(black_box(vec![1_u8; PIECE]));
    }
    Ok(())
}

struct Look {
    near: Answer,
    far: Answer,
    slab: f64,
}

impl Look {
    fn at(pair: &Pair<'_>) -> anyhow::Result<Self> {
        Ok(Self { near: pair.near(&Ask::Memory)?, far: pair.far(&Ask::Memory)?, slab: slab()? })
    }

    /// Adds the growth per socket of [`OPEN`] sockets: of one process's memory, and of the kernel's, divided by `ends` (2 if both ends are
    /// on this host).
    fn add(
        &self,
        later: &Self,
        side: fn(&Self) -> &Answer,
        ends: f64,
        case: &str,
        system: &str,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let (before, after) = (side(self), side(later));
        let ([own, shared], [own_after, shared_after]) = (&before[..], &after[..]) else {
            bail!("no memory of a process");
        };
        let each = f64::from(OPEN);
        samples.add(case, system, "own", "B", (own_after - own) / each);
        samples.add(case, system, "shared", "B", (shared_after - shared) / each);
        samples.add(case, system, "kernel", "B", (later.slab - self.slab) / each / ends);
        Ok(())
    }
}

/// Measures connected sockets on a new pair of processes.
pub fn measure(pair: &Pair<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let near: fn(&Look) -> &Answer = |look| &look.near;
    let far: fn(&Look) -> &Answer = |look| &look.far;
    pair.near(&Ask::Open(WARM_UP))?;
    pair.connect(WARM_UP)?;
    let first = Look::at(pair)?;
    pair.connect(OPEN)?;
    let connected = Look::at(pair)?;
    first.add(&connected, near, 2.0, "sockets/memory/connected", pair.name, samples)?;
    first.add(&connected, far, 2.0, "sockets/memory/accepted", pair.name, samples)?;
    pair.near(&Ask::Ready(ready::Ask::Register(WARM_UP + OPEN)))?;
    let registered = Look::at(pair)?;
    connected.add(&registered, near, 1.0, "sockets/memory/in-epoll", pair.name, samples)
}

/// Measures unconnected sockets on a new pair of processes.
pub fn measure_unconnected(pair: &Pair<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    pair.near(&Ask::Open(WARM_UP))?;
    let first = Look::at(pair)?;
    pair.near(&Ask::Open(OPEN))?;
    let open = Look::at(pair)?;
    first.add(&open, |look| &look.near, 1.0, "sockets/memory/unconnected", pair.name, samples)
}
