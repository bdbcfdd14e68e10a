//! A hostile application punches holes into its region: which group is charged and which process is killed, before and after sealing.

use super::cgroup::MemoryGroup;
use crate::peer::Peer;
use crate::samples::Samples;
use crate::{Report, clock};
use anyhow::Context;
use base::limits::PAGE;
use control::{Line, RegionInfo};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use shm::{Region, Side};
use std::hint::black_box;

/// The role of the two processes.
pub const ROLE: &str = "holes";

const MIB: u64 = 1 << 20;
/// Bytes of the data area of the application's side.
const AREA: u64 = 48 * MIB;
/// The application's memory limit: enough for its area and itself, but not for twice the area.
const APPLICATION_LIMIT: u64 = 80 * MIB;
/// The service's memory limit: less than the area, so that the service is killed if it pays for all of it.
const SERVICE_LIMIT: u64 = 32 * MIB;
/// Bytes that the service can read from punched pages without being killed.
const SOME: u64 = 16 * MIB;

/// A request to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Act {
    /// Populate the first bytes of side one's area.
    Populate(u64),
    /// Punch out the pages of the first bytes of side one's area.
    Punch(u64),
    /// Read a byte of each page of the first bytes of side one's area.
    Read(u64),
}

/// The answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Came {
    /// Number of pages populated, punched or read.
    pages: u64,
    /// Duration of the act in nanoseconds.
    ns: u64,
}

/// The main function of these processes.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let received = line.receive::<RegionInfo>(true)?;
    let info = received.message;
    let memfd = received.fds.first().context("the region's memfd")?;
    let region = Region::open(memfd.as_fd(), info.params())?;
    line.send(&Came { pages: 0, ns: 0 }, &[], true)?;
    while let Ok(received) = line.receive::<Act>(true) {
        let start = clock::now_ns();
        let pages = act(&region, memfd, received.message);
        line.send(&Came { pages, ns: clock::now_ns() - start }, &[], true)?;
    }
    Ok(())
}

fn act(region: &Region, memfd: &OwnedFd, act: Act) -> u64 {
    let pages = |bytes: u64| bytes / PAGE as u64;
    match act {
        Act::Populate(bytes) => region.populate(Side::One, 0, bytes as usize).map_or(0, |()| pages(bytes)),
        Act::Punch(bytes) => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let at = region.layout().data[1] as u64;
            fallocate(memfd, flags, at, bytes).map_or(0, |()| pages(bytes))
        }
        Act::Read(bytes) => {
            let mut byte = [0];
            for page in 0..pages(bytes) {
                region.read(Side::One, page as usize * PAGE, &mut byte);
                black_box(&byte);
            }
            pages(bytes)
        }
    }
}

/// A region, the application and the service, each process in its own control group.
struct Scene {
    application: Peer,
    service: Peer,
    application_group: MemoryGroup,
    service_group: MemoryGroup,
    memfd: OwnedFd,
}

impl Scene {
    /// `None` if there are no memory control groups or no right to use them.
    fn new(name: &str, data_len: u64) -> anyhow::Result<Option<Self>> {
        let group = |who: &str, limit| MemoryGroup::new(&format!("{name}-{who}"), limit);
        let Some(application_group) = group("application", APPLICATION_LIMIT) else { return Ok(None) };
        let Some(service_group) = group("service", SERVICE_LIMIT) else { return Ok(None) };
        let info = RegionInfo { id: 1, pair: false, slots: 64, data_len, side: 1, is_own: true };
        let (creator, memfd) = Region::create(info.params())?;
        drop(creator);
        let start = |group: &MemoryGroup| {
            let peer = Peer::start(ROLE)?;
            group.add(peer.pid())?;
            peer.send(&info, &[memfd.as_fd()])?;
            peer.receive::<Came>()?;
            anyhow::Ok(peer)
        };
        let (application, service) = (start(&application_group)?, start(&service_group)?);
        Ok(Some(Self { application, service, application_group, service_group, memfd }))
    }
}

fn ask(peer: &Peer, act: Act) -> anyhow::Result<Came> {
    peer.send(&act, &[])?;
    peer.receive()
}

/// Adds rows `memory/holes/...`. One run each suffices, because they count pages and killed processes.
pub fn measure(samples: &mut Samples, report: &mut Report) -> anyhow::Result<()> {
    for sealed in [false, true] {
        let case = if sealed { "memory/holes/after-seal" } else { "memory/holes/before-seal" };
        let Some(scene) = Scene::new(&format!("sealed-{sealed}"), AREA)? else {
            report.note("memory/holes: skipped: it needs root and the memory controller of cgroups");
            return Ok(());
        };
        punch(scene, sealed, case, samples)?;
    }
    if let Some(scene) = Scene::new("beyond", 2 * AREA)? {
        populate_beyond_limit(&scene, samples)?;
    }
    report.note(
        "memory/holes: the service reads a byte of each page of an area that the application populated and then \
         tried to punch out; charged: growth of the memory control group's usage; died: killed by the group's limit",
    );
    Ok(())
}

fn punch(mut scene: Scene, sealed: bool, case: &str, samples: &mut Samples) -> anyhow::Result<()> {
    let mut add = |system: &str, metric: &str, unit: &str, value: f64| {
        samples.add(case, system, metric, unit, value);
    };
    let before = scene.application_group.usage()?;
    ask(&scene.application, Act::Populate(AREA))?;
    let charged = (scene.application_group.usage()? - before) / MIB as f64;
    add("application", "charged for populating", "MiB", charged);
    if sealed {
        Region::seal(scene.memfd.as_fd())?;
    }
    let punched = ask(&scene.application, Act::Punch(AREA))?.pages;
    add("application", "punched", "pages", punched as f64);
    let before = scene.service_group.usage()?;
    let came = ask(&scene.service, Act::Read(SOME))?;
    let charged = (scene.service_group.usage()? - before) / MIB as f64;
    add("service", "charged for reading 16 MiB", "MiB", charged);
    add("service", "first read of a page", "ns", came.ns as f64 / came.pages as f64);
    let died = ask(&scene.service, Act::Read(AREA)).is_err();
    add("service", "died of reading it all", "0/1", f64::from(u8::from(died)));
    if died {
        scene.service.ended()?;
    }
    Ok(())
}

fn populate_beyond_limit(scene: &Scene, samples: &mut Samples) -> anyhow::Result<()> {
    let case = "memory/holes/populate-beyond-limit";
    Region::seal(scene.memfd.as_fd())?;
    let survived = ask(&scene.application, Act::Populate(2 * AREA)).is_ok_and(|came| came.pages > 0);
    samples.add(case, "application", "died or was refused", "0/1", f64::from(u8::from(!survived)));
    // The application has published nothing as populated, so the service reads nothing and survives.
    let alive = ask(&scene.service, Act::Read(0)).is_ok();
    samples.add(case, "service", "died", "0/1", f64::from(u8::from(!alive)));
    Ok(())
}
