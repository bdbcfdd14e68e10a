//! A process that holds a listening socket and writes what it likes into the socket's accept queue: other holders get no wrong address and
//! no connection of another process, and the service goes on.

use crate::common::{App, Conn, Daemon, PATIENCE, can_be_other_users, listener};
use base::Seed;
use control::{Parent, Reply, Report, Request, Unlisten};
use queue::accept::Sleeper;
use service::{Options, Sharing};
use shm::grant_state::{CLAIMED, QUEUED, VALUE};
use shm::half_flags::{RELEASED, RESET};
use shm::{GRANTS, QueueWords, SLEEPERS};
use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Writes random words over the whole of an accept queue, mostly where something is going on. `me`: the id of the process that writes.
pub fn scribble_queue(words: &QueueWords, rng: &mut Seed, me: u32) {
    for _ in 0..100 {
        let grant = if rng.chance(800_000) { rng.below(64) } else { rng.below(GRANTS as u64) } as usize;
        let bits = rng.next_u64() >> rng.below(64);
        match rng.below(12) {
            0 => words.next.store(bits as u32, Ordering::SeqCst),
            1 => words.turn.store(bits as u32, Ordering::SeqCst),
            2 => words.flags.store(bits as u32, Ordering::SeqCst),
            3 => words.asleep[rng.below(4) as usize].store(bits, Ordering::SeqCst),
            4 => words.top.store(bits, Ordering::SeqCst),
            5 => words.waiting[grant / 64].store(bits, Ordering::SeqCst),
            6 => words.sleepers[rng.below(SLEEPERS as u64) as usize].store(rng.next_u64(), Ordering::SeqCst),
            7 => words.arrivals.store(bits as u32, Ordering::SeqCst),
            8 => words.states[grant].store(QUEUED | bits as u32, Ordering::SeqCst),
            9 => words.states[grant].store(CLAIMED | me, Ordering::SeqCst),
            10 => words.states[grant].store(bits as u32, Ordering::SeqCst),
            _ => words.states[grant].store(0, Ordering::SeqCst),
        }
    }
}

/// A process that gets the socket: of another user, where the tests can make one.
fn other_holder(daemon: &Daemon, socket: &TcpListener) -> App {
    let mut app = if can_be_other_users() { App::of_user(daemon, 61_041) } else { App::new(daemon) };
    assert!(app.show(socket, 64).unwrap().1, "the service knows the socket");
    app
}

/// An honest process that listens, and a hostile one that holds the same socket.
struct Shared {
    daemon: Daemon,
    honest: App,
    hostile: App,
    client: App,
    address: SocketAddr,
    queue: u32,
    _socket: TcpListener,
}

fn shared(options: Options) -> Shared {
    let daemon = Daemon::start(options);
    let (mut honest, client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = honest.listen(&socket, 64);
    let hostile = other_holder(&daemon, &socket);
    Shared { daemon, honest, hostile, client, address, queue, _socket: socket }
}

impl Shared {
    fn state(&self, grant: u32) -> &std::sync::atomic::AtomicU32 {
        &self.hostile.memory(self.queue).words().states[grant as usize]
    }

    /// The service has done all that was asked before.
    fn settle(&mut self) {
        self.honest.ask(Request::Region { region: 1 << 20 });
    }
}

/// Names an accepted connection in a socket block, as the library does.
fn name(app: &App, conn: &Conn, local: u16, peer: u16, sock: u32) {
    let block = app.region.sock(sock).unwrap();
    block.region.store(conn.region, Ordering::Relaxed);
    block.slot.store(conn.slot, Ordering::Relaxed);
    block.ports.store(u32::from(local) << 16 | u32::from(peer), Ordering::Relaxed);
    block.holders.store(1 << app.welcome.holder, Ordering::SeqCst);
}

/// What both holders accepted while the hostile one scribbled: the peers' ports.
fn rampage(all: &mut Shared, seed: u64) -> [Vec<u16>; 2] {
    let over = AtomicBool::new(false);
    let (queue, address) = (all.queue, all.address);
    let Shared { honest, hostile, client, .. } = all;
    std::thread::scope(|scope| {
        let theft = scope.spawn(|| {
            let (mut rng, mut ports) = (Seed::new(seed), Vec::new());
            while !over.load(Ordering::SeqCst) {
                scribble_queue(hostile.memory(queue).words(), &mut rng, hostile.welcome.application);
                let grant = rng.below(64) as u32;
                ports.extend(hostile.take(queue, grant).map(|(_, record)| record.peer.port()));
            }
            ports
        });
        let mut ports = Vec::new();
        for n in 0..40 {
            if let Ok(mut conn) = client.try_connect(address) {
                client.publish(&mut conn, b"hello");
            }
            // No more attempts than that, however many grants there seem to be.
            for _ in 0..50 {
                let Some(grant) = honest.claim(queue) else { break };
                if let Some((mut conn, record)) = honest.set_up(queue, grant) {
                    assert_eq!(record.local, address, "seed {seed}, round {n}");
                    assert_eq!(honest.receive_exact(&mut conn, 5), b"hello", "seed {seed}, round {n}");
                    ports.push(record.peer.port());
                }
                honest.finish(queue, grant);
            }
        }
        over.store(true, Ordering::SeqCst);
        [ports, theft.join().unwrap()]
    })
}

#[test]
fn a_holder_that_scribbles_over_the_queue_makes_no_connection_come_twice() {
    let mut accepted = 0;
    for seed in 0..8 {
        let mut all = shared(Options { sharing: Some(Sharing::Always), ..Options::default() });
        let both = rampage(&mut all, seed).concat();
        let once: HashSet<u16> = both.iter().copied().collect();
        assert_eq!(once.len(), both.len(), "seed {seed}: a connection was accepted twice");
        accepted += both.len();
        // The honest process's other listener is as before, also when the hostile process dies.
        let (socket, address) = listener();
        let queue = all.honest.listen(&socket, 8);
        drop(all.hostile);
        let mut there = all.client.connect(address);
        let (mut here, _) = all.honest.accept_wait(queue);
        all.client.send(&mut there, b"well");
        assert_eq!(all.honest.receive_exact(&mut here, 4), b"well");
        assert_eq!(all.honest.unlisten(all.queue, Unlisten::Stopped), Reply::Done);
        assert_eq!(all.daemon.report(Report::Statistics)["applications"], 2);
    }
    assert!(accepted > 20, "{accepted}");
}

#[test]
fn a_holder_that_takes_all_places_of_sleepers_keeps_no_connection_back() {
    let mut all = shared(Options::default());
    let queue = all.queue;
    all.honest.leave_rest(queue);
    let words = all.hostile.memory(queue).words();
    let (me, honest) = (all.hostile.welcome.application, all.honest.welcome.application);
    for (place, word) in words.sleepers.iter().enumerate() {
        // Its own, invented ones, and contexts of the honest process that do not exist.
        let application = [me, VALUE, honest][place % 3];
        let sleeper = u64::from(application) << shm::sleeper::APPLICATION_SHIFT | (place % 256) as u64;
        word.store(shm::sleeper::TAKEN | sleeper, Ordering::SeqCst);
    }
    words.asleep.iter().for_each(|word| word.store(u64::MAX, Ordering::SeqCst));
    all.honest.rest_at(queue);
    assert!(!all.honest.queues.places.contains_key(&queue), "no place is left");
    for _ in 0..3 {
        all.client.connect(all.address);
        words.asleep.iter().for_each(|word| word.store(u64::MAX, Ordering::SeqCst));
        assert_eq!(all.honest.accept(queue).unwrap().1.local, all.address);
    }
    drop(all.hostile);
    let sleeper = Sleeper { application: honest, context: 0, is_exclusive: false };
    let honest = &mut all.honest;
    honest.until("the dead process's places are free", |app| app.queue(queue).register(sleeper).is_some());
}

#[test]
fn a_holder_that_marks_everything_claimed_keeps_no_connection_back() {
    let mut all = shared(Options::default());
    let words = all.hostile.memory(all.queue).words();
    for _ in 0..3 {
        words.states.iter().for_each(|state| state.store(CLAIMED | VALUE, Ordering::SeqCst));
        let mut there = all.client.connect(all.address);
        let (mut here, record) = all.honest.accept_wait(all.queue);
        assert_eq!(record.local, all.address);
        all.client.send(&mut there, b"heard");
        assert_eq!(all.honest.receive_exact(&mut here, 5), b"heard");
    }
}

/// A grant whose connection is over, a connection to another listener of the same process, which the hostile one does not hold, and that
/// listener with its queue. `None`: the connection is in another slot.
fn grant_and_later_connection(all: &mut Shared, pause: Duration) -> Option<(u32, Conn, TcpListener, u32)> {
    let there = all.client.connect(all.address);
    let grant = all.honest.claim(all.queue).unwrap();
    let (here, record) = all.honest.set_up(all.queue, grant).unwrap();
    all.honest.finish(all.queue, grant);
    all.client.close(&there);
    all.honest.close(&here);
    all.daemon.until("only the listener is left", |sockets| sockets.len() == 1);
    // The service looks for slots of closed connections from time to time.
    std::thread::sleep(pause);
    let (socket, address) = listener();
    let own = all.honest.listen(&socket, 8);
    let private = all.client.connect(address);
    let is_same = (private.region, private.slot) == (record.region, record.slot);
    is_same.then_some((grant, private, socket, own))
}

#[test]
fn a_grant_whose_connection_is_over_names_no_later_connection_of_its_slot() {
    let mut pause = Duration::from_millis(1500);
    let (mut all, (grant, private, socket, own)) = loop {
        let mut all = shared(Options::default());
        match grant_and_later_connection(&mut all, pause) {
            Some(found) => break (all, found),
            None => pause *= 2,
        }
        assert!(pause < PATIENCE, "the slot is not used again");
    };
    assert!(all.hostile.take(all.queue, grant).is_none(), "it is none of the hostile process's");
    all.state(grant).store(QUEUED, Ordering::SeqCst);
    all.hostile.memory(all.queue).words().waiting[grant as usize / 64]
        .store(1 << (grant % 64), Ordering::SeqCst);
    assert_eq!(all.hostile.unlisten(all.queue, Unlisten::Stopped), Reply::Done);
    assert_eq!(all.client.peer_flags(&private) & (RESET | RELEASED), 0);
    assert_eq!(all.honest.accept_wait(own).1.local, socket.local_addr().unwrap());
}

#[test]
fn an_accepted_connection_is_neither_reset_nor_taken_by_another_holder() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let mut all = shared(Options { sharing: Some(sharing), ..Options::default() });
        let own = other_holder(&all.daemon, &all._socket);
        let welcome = &all.honest.welcome;
        let place = Parent { application: welcome.application, secret: welcome.secret, holder: 1 };
        let relative = App::with(&all.daemon, Some(place), 1);
        let mut there = all.client.connect(all.address);
        let grant = all.honest.claim(all.queue).unwrap();
        let (mut here, record) = all.honest.set_up(all.queue, grant).unwrap();
        name(&all.honest, &here, record.local.port(), record.peer.port(), 9);
        all.honest.finish(all.queue, grant);
        assert!(all.hostile.take(all.queue, grant).is_none());
        // It says that a process had claimed it which then dies: one of its own, and one of the honest family.
        for dying in [own, relative] {
            all.state(grant).store(CLAIMED | dying.welcome.application, Ordering::SeqCst);
            drop(dying);
            let Shared { daemon, honest, queue, .. } = &mut all;
            let left = |d: &Daemon| d.report(Report::Statistics)["applications"].as_u64().unwrap();
            honest.until("it has died", |_| left(daemon) <= 4);
            honest.until("the service has looked", |app| app.queue(*queue).is_idle(grant));
            assert!(all.hostile.take(all.queue, grant).is_none(), "{sharing:?}");
        }
        all.state(grant).store(QUEUED, Ordering::SeqCst);
        assert_eq!(all.hostile.unlisten(all.queue, Unlisten::Stopped), Reply::Done);
        all.settle();
        all.client.send(&mut there, b"still");
        assert_eq!(all.honest.receive_exact(&mut here, 5), b"still", "{sharing:?}");
    }
}

#[test]
fn what_the_service_has_carried_on_for_one_holder_no_other_one_gets() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let mut all = shared(Options { sharing: Some(sharing), ..Options::default() });
        let mut other = App::new(&all.daemon);
        other.show(&all._socket, 64).unwrap();
        let mut there = all.client.connect(all.address);
        let grant = other.claim(all.queue).unwrap();
        let (mut here, _) = other.take(all.queue, grant).unwrap();
        all.client.send(&mut there, b"hello");
        assert_eq!(other.receive_exact(&mut here, 5), b"hello");
        for state in [0, QUEUED, CLAIMED | all.hostile.welcome.application] {
            all.state(grant).store(state, Ordering::SeqCst);
            assert!(all.hostile.take(all.queue, grant).is_none(), "{sharing:?}");
        }
        other.send(&mut here, b"still");
        assert_eq!(all.client.receive_exact(&mut there, 5), b"still");
    }
}

#[test]
fn the_table_of_grants_cannot_be_written() {
    let mut all = shared(Options::default());
    all.client.connect(all.address);
    all.client.connect(all.address);
    let table = &all.hostile.queues.files[&all.queue][1];
    // That a writable mapping is refused, too, a test of crate `shm` shows.
    assert!(rustix::io::pwrite(table, &[1], 0).is_err() && rustix::fs::ftruncate(table, 0).is_err());
    let words = &all.hostile.queues.files[&all.queue][0];
    assert!(rustix::fs::ftruncate(words, 0).is_err(), "no holder can have another one killed by SIGBUS");
}
