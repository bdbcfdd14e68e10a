//! Sockets that hold bytes back: how much of a hostile program's bits and blocks the control thread looks at, and at which.

use super::program::{File, Program};
use super::world::World;
use crate::config::Sharing;
use crate::registry::Answer;
use base::Seed;
use control::{POPULATED_MOST, Reply, Request};
use endpoint::region::Mapped;
use queue::Doorbell;
use rustix::fd::OwnedFd;
use shm::sock_state::HELD;
use shm::{HELD_CONTEXT, Side, SockBlock};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SLOTS: u32 = 8192;
/// Most bits and holds that may be looked at before other events.
const PIECE: usize = 512;
/// Most holds of a region.
const HOLDS_MAX: usize = 1024;
const TICK: Duration = Duration::from_millis(50);
const HOSTILE: u32 = 1000;

/// A program with a region of so many slots and a connection within the host.
struct Hostile {
    world: World,
    program: Program,
    id: u32,
    home: Arc<Mapped>,
    _socket: OwnedFd,
}

impl Hostile {
    fn new() -> Self {
        let mut world = World::with_slots(Sharing::Always, Seed::new(1), SLOTS);
        let (mut server, mut program) = (Program::new(11, HOSTILE), Program::new(12, HOSTILE));
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let socket = OwnedFd::from(socket);
        server.listen(&mut world, 1, 8, &socket);
        let link = program.connect(&mut world, address).unwrap();
        program.files.insert(2, File::Stream(Some(link)));
        world.settle();
        let (id, home) = program.region(&mut world);
        Self { world, program, id, home, _socket: socket }
    }

    fn bell(&self) -> Doorbell<'_> {
        Doorbell::of(&self.home.region, Side::Zero, HELD_CONTEXT).unwrap()
    }

    fn ring_all(&self) {
        for slot in 0..SLOTS {
            let _ = self.bell().ring(slot);
        }
    }

    fn bits(&self) -> usize {
        let block = self.home.region.context(Side::Zero, HELD_CONTEXT).unwrap();
        block.words.iter().map(|word| word.load(Ordering::SeqCst).count_ones() as usize).sum()
    }

    /// Every block says that it holds back bytes of the program's one connection.
    fn claim_all(&mut self) {
        let File::Stream(Some(link)) = &self.program.files[&2] else { panic!("it has a connection") };
        let its = link.block();
        let [region, slot, ports] = [&its.region, &its.slot, &its.ports].map(|w| w.load(Ordering::Relaxed));
        for block in (0..SLOTS).map(|index| self.home.region.sock(index).unwrap()) {
            block.region.store(region, Ordering::Relaxed);
            block.slot.store(slot, Ordering::Relaxed);
            block.ports.store(ports, Ordering::Relaxed);
            block.tx_head.store(u64::MAX >> 1, Ordering::Relaxed);
            block.state.store(HELD, Ordering::Release);
        }
    }

    fn holds(&self) -> usize {
        self.world.registry.held.awake.values().map(|awake| awake.holds.len()).sum()
    }

    /// Pages of the region that are present.
    fn present(&self) -> usize {
        let layout = self.home.region.layout();
        let blocks =
            layout.socks as u64..layout.socks as u64 + u64::from(SLOTS) * size_of::<SockBlock>() as u64;
        let parts = self.world.registry.regions[&self.id].memory.pages().present_parts(&blocks);
        parts.iter().map(|part| (part.end - part.start) as usize).sum()
    }

    /// One round of the control loop, at the time when something is due.
    fn round(&mut self) {
        let registry = &mut self.world.registry;
        let due = registry.next_deadline().expect("it looks again");
        registry.now = registry.now.max(due);
        registry.handle_timers();
        self.world.carry_out();
    }
}

#[test]
fn bits_of_held_sockets_are_looked_at_in_pieces() {
    let mut hostile = Hostile::new();
    hostile.ring_all();
    hostile.world.registry.hear_held(hostile.id);
    assert_eq!(hostile.bits(), SLOTS as usize - PIECE);
    let before = hostile.world.registry.now;
    for _ in 0..40 {
        let left = hostile.bits();
        hostile.round();
        assert!(left - hostile.bits() <= PIECE, "{} bits in one piece", left - hostile.bits());
    }
    assert_eq!(hostile.bits(), 0, "all were looked at");
    assert!(hostile.world.registry.now - before >= TICK);
    hostile.world.advance(Duration::from_secs(2));
    assert!(hostile.world.registry.held.awake.is_empty(), "nothing is held back");
    let charged = hostile.world.spent.get(&HOSTILE).copied().unwrap_or_default();
    assert!(charged >= Duration::from_nanos(500) * SLOTS, "the region's user pays: {charged:?}");
}

#[test]
fn the_service_makes_no_page_of_socket_blocks_present() {
    let mut hostile = Hostile::new();
    let before = hostile.present();
    hostile.ring_all();
    hostile.world.registry.hear_held(hostile.id);
    hostile.world.advance(Duration::from_secs(2));
    assert_eq!((hostile.bits(), hostile.present()), (0, before));
}

#[test]
fn a_region_has_so_many_holds_and_the_rest_waits_as_bits() {
    let mut hostile = Hostile::new();
    hostile.claim_all();
    hostile.ring_all();
    hostile.world.registry.hear_held(hostile.id);
    let mut most = 0;
    for _ in 0..20 {
        hostile.round();
        most = most.max(hostile.holds());
        assert!(hostile.holds() <= HOLDS_MAX, "{}", hostile.holds());
    }
    assert_eq!(most, HOLDS_MAX, "the bits of the others are still set: {}", hostile.bits());
    hostile.world.advance(Duration::from_secs(10));
    assert_eq!((hostile.bits(), hostile.holds()), (0, 0), "each was taken in its turn");
}

#[test]
fn one_message_makes_the_service_ask_about_so_many_pages_and_no_more() {
    let mut hostile = Hostile::new();
    let id = hostile.program.id(&mut hostile.world);
    let populated = |bytes| Request::Populated { region: hostile.id, bytes };
    let known = hostile.world.registry.regions[&hostile.id].memory.area.lendable();
    let answer = hostile.world.registry.request(id, populated(known + POPULATED_MOST + (64 << 10)), None);
    assert!(matches!(answer, Answer::Reply(Reply::Refused { .. }, _)), "{answer:?}");
}
