//! Several cores of one service. Each is a lane: a core, an application and a far end on one thread, with a memory port of their own between them.
//! The first lane has the slow path besides. All share the flow table and the records; each application has a region, as programs do.
//!
//! ```text
//!   thread 0:  far ◄─ memory port ─► core 0, slow path ─┐
//!                       region 0 ──► application 0      ├── flows
//!   thread 1:  far ◄─ memory port ─► core 1            ─┘
//!                       region 1 ──► application 1
//! ```

use super::application::{CONTEXT, News};
use super::near::{clear, region, slow_path};
use super::{Application, FAR_MAC, Far, NEAR_MAC, Setup};
use crate::clock;
use base::Instant;
use fastpath::{Core, Others};
use flow::{AppRegion, ExceptionReceiver, Flows};
use port::{Capabilities, Port};
use port_memory::{LinkOptions, MemoryPort, link};
use slowpath::{Event, Owner, SlowPath};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// The first address of the clients of each lane: the third byte of the first lane's, and the distance to the next.
const FIRST_HOST: u8 = 1;
const HOSTS: u8 = 16;

/// A core with its own application, and the far end of its port, for one thread.
pub struct Lane {
    /// What the thread does for the service.
    pub service: Service,
    /// The clients.
    pub far: Far,
}

/// The part of the service that one thread serves.
pub struct Service {
    core: Core,
    port: MemoryPort,
    application: Application,
    /// The first lane's slow path.
    control: Option<Control>,
}

/// The slow path, and what it says to applications.
struct Control {
    slow: SlowPath,
    exceptions: Vec<ExceptionReceiver>,
    served: Vec<Served>,
}

/// A lane's application, as the slow path sees it.
struct Served {
    region: Arc<AppRegion>,
    /// Slots without a connection.
    free: Vec<u32>,
    news: Sender<News>,
}

/// Makes a service with so many cores, each with the connections and frames of `setup`, which sends requests of `request_len` bytes.
///
/// # Errors
/// When there is not enough memory.
pub fn several(cores: u8, setup: Setup, request_len: usize) -> anyhow::Result<Vec<Lane>> {
    let slots = (setup.connections + 1).next_power_of_two().max(64);
    let flows = slots * u32::from(cores).next_power_of_two();
    let shared = flow::Config { flows, regions: u16::from(cores) + 1, ..flow::Config::default() };
    let flows = Arc::new(Flows::new(shared.clone(), [3, 4]));
    let (mut lanes, mut commands, mut exceptions, mut served) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, others) in Others::join(cores, &shared).into_iter().enumerate() {
        let capabilities = Capabilities {
            queues: u16::from(cores),
            rss: cores > 1,
            ..Capabilities::plain(1500, NEAR_MAC).with_checksum()
        };
        let options = LinkOptions { capabilities, peer_mac: FAR_MAC, slots: setup.frames, wakes: false };
        let (port, far) = link(&options)?;
        let (exception_tx, exception_rx) = flow::exceptions(shared.ring_slots);
        let (command_tx, command_rx) = flow::commands(shared.ring_slots);
        let core =
            Core::new(index as u8, flows.clone(), exception_tx, command_rx, port.capabilities(), others);
        let region = region(slots)?;
        let (news, hears) = channel();
        let application = Application::new(region.clone(), CONTEXT, hears);
        let far = Far::at(far, FIRST_HOST + HOSTS * index as u8, setup.connections, request_len);
        lanes.push(Lane { service: Service { core, port, application, control: None }, far });
        commands.push(command_tx);
        exceptions.push(exception_rx);
        served.push(Served { region, free: (1..slots).rev().collect(), news });
    }
    let slow = slow_path(flows, commands, served.iter().map(|served| &served.region));
    lanes[0].service.control = Some(Control { slow, exceptions, served });
    Ok(lanes)
}

impl Lane {
    /// Opens all connections. The first lane's thread must serve meanwhile.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn establish(&mut self, count: u32) -> anyhow::Result<()> {
        let Self { service, far } = self;
        far.establish(count, || service.round())
    }
}

impl Service {
    /// One round of the core, the application, and the slow path if it is here.
    pub fn round(&mut self) {
        let now = Instant::from_ns(clock::now_ns());
        self.core.round(now, &mut self.port, &mut ());
        // Nothing sleeps here.
        self.core.wakes().for_each(drop);
        self.control.iter_mut().for_each(|control| control.round(now));
        self.application.round();
    }

    /// Bytes that the core has sent again.
    pub fn retransmitted(&self) -> u64 {
        self.core.counters().retransmitted_bytes
    }
}

impl Control {
    fn round(&mut self, now: Instant) {
        let Self { slow, exceptions, .. } = self;
        for (core, ring) in exceptions.iter_mut().enumerate() {
            let mut take = |exception, frame: &[u8]| slow.handle_exception(now, core as u8, exception, frame);
            while ring.pop(&mut take).is_some() {}
        }
        if self.slow.next_deadline() <= now {
            self.slow.handle_timers(now);
        }
        while let Some(event) = self.slow.poll_event() {
            self.on_event(now, &event);
        }
        while self.slow.poll_news().is_some() {}
    }

    fn on_event(&mut self, now: Instant, event: &Event) {
        let Event::Incoming { pending, remote, .. } = event else { return };
        let lane = lane_of(remote.addr);
        let Some(Served { region, free, news }) = self.served.get_mut(lane) else {
            return self.slow.refuse(now, *pending);
        };
        let Some(slot) = free.pop() else { return self.slow.refuse(now, *pending) };
        clear(region, slot, CONTEXT);
        // The core is that to which the handshake came.
        let owner = Owner { region: lane as u16, slot, core: lane as u8 };
        if self.slow.accept(now, *pending, owner).is_ok() {
            // This fails when the application is gone, at the end of a run.
            let _ = news.send(News::Accepted(slot));
        } else {
            free.push(slot);
        }
        let room = self.served.iter().map(|served| served.free.len()).sum();
        self.slow.set_accept_room(1, room);
    }
}

/// The lane of a client.
fn lane_of(addr: IpAddr) -> usize {
    let IpAddr::V4(addr) = addr else { return 0 };
    usize::from(addr.octets()[2].saturating_sub(FIRST_HOST) / HOSTS)
}
