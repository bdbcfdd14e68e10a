//! Applications that misbehave: the service goes on, their neighbours notice nothing, they are detached.

use crate::common::{App, Conn, Daemon, PATIENCE, hello, listener};
use crate::hostile_holder::scribble_queue;
use base::Seed;
use control::{Line, LineError, Parent, Report, Request, SocketOptions, ToApplication, ToService, Unlisten};
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, send, socketpair};
use service::{Options, Sharing};
use shm::{Region, Side};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// True when the service has hung up.
fn is_detached(line: &Line) -> bool {
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        match line.receive::<ToApplication>(false) {
            Err(LineError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return true,
            Ok(_) => {}
        }
    }
    false
}

/// The byte that says what kind of request follows.
fn kind_of(request: Request) -> u8 {
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    Line::new(near).send(&ToService { number: 1, request }, &[], true).unwrap();
    let mut bytes = [0; 16];
    assert!(rustix::net::recv(&far, &mut bytes[..], RecvFlags::empty()).unwrap().0 >= 2);
    bytes[1]
}

/// Two honest applications that talk all the time.
struct Neighbours {
    stop: Arc<AtomicBool>,
    /// Connections that were made, used and closed.
    rounds: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Neighbours {
    fn start(daemon: &Daemon) -> Self {
        let (mut server, mut client) = (App::new(daemon), App::new(daemon));
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (over, count) = (stop.clone(), rounds.clone());
        let thread = std::thread::spawn(move || {
            let (socket, address) = listener();
            let queue = server.listen(&socket, 8);
            while !over.load(Ordering::Relaxed) {
                let mut there = client.connect(address);
                let (mut here, _) = server.accept_wait(queue);
                for i in 0..20u8 {
                    client.send(&mut there, &[i; 300]);
                    assert_eq!(server.receive_exact(&mut here, 300), [i; 300]);
                    server.send(&mut here, &[!i; 200]);
                    assert_eq!(client.receive_exact(&mut there, 200), [!i; 200]);
                }
                client.close(&there);
                server.close(&here);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { stop, rounds, thread }
    }

    /// Waits until the neighbours have made three connections more, and ends them.
    fn finish(self) {
        let enough = self.rounds.load(Ordering::Relaxed) + 3;
        let end = Instant::now() + PATIENCE;
        while self.rounds.load(Ordering::Relaxed) < enough && !self.thread.is_finished() {
            assert!(Instant::now() < end, "the neighbours come to a stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the neighbours notice nothing");
    }
}

/// Writes random words everywhere in a region that an application can write without unsafe code: all lines and the
/// beginning of both data areas.
fn scribble(region: &Region, rng: &mut Seed) {
    let slots = region.layout().params.slots as u64;
    for _ in 0..200 {
        let word = match rng.below(4) {
            0 => rng.next_u64(),
            1 => rng.below(1 << 20),
            2 => rng.below(64),
            _ => u64::MAX - rng.below(64),
        };
        // Mostly where something is going on.
        let slot = if rng.chance(700_000) { rng.below(8) } else { rng.below(slots) } as u32;
        let half = &region.slot(slot).unwrap().half[rng.below(2) as usize];
        match rng.below(12) {
            0 => half.tx_head.store(word, Ordering::SeqCst),
            1 => half.rx_tail.store(word, Ordering::SeqCst),
            2 | 3 => half.ring[rng.below(2) as usize].store(word & (0xff << 32 | 0xfff), Ordering::SeqCst),
            4 => half.start[rng.below(2) as usize].store(word, Ordering::SeqCst),
            5 => half.flags.store(word as u32, Ordering::SeqCst),
            6 => half.context.store(word as u32, Ordering::SeqCst),
            7 | 8 => {
                let side = if rng.chance(500_000) { Side::Zero } else { Side::One };
                let index = if rng.chance(500_000) { 253 + rng.below(3) as u32 } else { rng.below(3) as u32 };
                let block = region.context(side, index).unwrap();
                block.words[rng.below(16) as usize].store(word, Ordering::SeqCst);
                block.top.store(rng.next_u64(), Ordering::SeqCst);
                block.sleeping.store(rng.below(2) as u32, Ordering::SeqCst);
            }
            9 => {
                let block = region.sock(slot).unwrap();
                block.holders.store(rng.next_u64(), Ordering::SeqCst);
                block.region.store(rng.below(6) as u32, Ordering::SeqCst);
                block.slot.store(rng.below(6) as u32, Ordering::SeqCst);
                block.tx_head.store(word, Ordering::SeqCst);
                block.state.store(rng.next_u64() as u32, Ordering::SeqCst);
            }
            10 => region.header().context_taken[1][0].store(word, Ordering::SeqCst),
            _ => region.write(Side::Zero, (word % 65_536) as usize, &word.to_ne_bytes()),
        }
    }
}

/// Writes random words over the slots of a region that it shares with the victim: connections and lent slots.
fn scribble_slots(region: &Region, rng: &mut Seed) {
    for _ in 0..50 {
        let half = &region.slot(rng.below(16) as u32).unwrap().half[rng.below(2) as usize];
        match rng.below(4) {
            0 => half.tx_head.store(rng.next_u64() >> rng.below(64), Ordering::SeqCst),
            1 => half.rx_tail.store(rng.next_u64() >> rng.below(64), Ordering::SeqCst),
            2 => half.flags.store(rng.next_u64() as u32, Ordering::SeqCst),
            _ => half.context.store(rng.below(512) as u32, Ordering::SeqCst),
        }
    }
}

/// A hostile application with listeners and connections of its own; returns when it is detached or time is over.
fn rampage(daemon: &Daemon, seed: u64) {
    let mut rng = Seed::new(seed);
    let (mut hostile, mut victim) = (App::new(daemon), App::new(daemon));
    let (socket, address) = listener();
    hostile.listen(&socket, 16);
    let me = hostile.welcome.application;
    let (own_socket, own_address) = listener();
    victim.listen(&own_socket, 100);
    let mut lines = Vec::new();
    let _conns: Vec<Conn> = (0..3).filter_map(|_| victim.try_connect(address).ok()).collect();
    let _mine: Vec<Conn> = (0..3).filter_map(|_| hostile.try_connect(own_address).ok()).collect();
    let end = Instant::now() + Duration::from_millis(150);
    while Instant::now() < end {
        scribble(&hostile.region, &mut rng);
        for (region, _) in hostile.pairs.values() {
            scribble_slots(region, &mut rng);
        }
        hostile.queues.mapped.values().for_each(|q| scribble_queue(q.words(), &mut rng, me));
        for bell in &hostile.service_wakers {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            // Wake-ups are the application's to steal: its own.
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        if !seed.is_multiple_of(3) {
            // Only memory: nothing here ends the line at once.
            let _ = victim.try_connect(address);
            continue;
        }
        let request = match rng.below(11) {
            10 => {
                // Children that never come, of this process and of others.
                let welcome = &hostile.welcome;
                let application = if rng.chance(500_000) { me } else { rng.below(8) as u32 };
                let promised = Parent { application, secret: welcome.secret, holder: rng.below(256) as u8 };
                lines.push(daemon.dial());
                let said = ToService { number: 0, request: Request::Expect(promised) };
                let _ = lines[lines.len() - 1].send(&said, &[], false);
                lines.drain(..lines.len().saturating_sub(32));
                continue;
            }
            9 => Request::Take { queue: rng.below(8) as u32, grant: rng.below(1 << 17) as u32 },
            8 => Request::QueueWaker {
                queue: rng.below(8) as u32,
                application: rng.below(8) as u32,
                context: rng.below(3) as u32,
            },
            7 => Request::SetOptions {
                region: rng.below(8) as u32,
                slot: rng.below(1 << 32) as u32,
                options: Default::default(),
            },
            6 => Request::Info { region: rng.below(8) as u32, slot: rng.below(1 << 32) as u32 },
            0 => Request::Closed { region: rng.below(8) as u32, slot: rng.below(8) as u32 },
            1 => Request::Connect { remote: own_address, options: Default::default(), has_looked: true },
            2 => Request::Region { region: rng.below(8) as u32 },
            3 => Request::Waker { region: rng.below(8) as u32, context: rng.below(4) as u32 },
            4 => Request::FellBack {
                reason: control::KernelReason::Rule(rng.below(1 << 32) as u32),
                inode: rng.below(1 << 32),
            },
            _ => Request::Mapped { region: rng.below(8) as u32 },
        };
        if hostile.line.send(&ToService { number: 0, request }, &[], false).is_err() {
            return;
        }
    }
    drop(hostile);
    // The victim of its connections still has a service.
    let (socket, _) = listener();
    assert!(victim.listen(&socket, 1) > 0);
}

#[test]
fn scribbling_over_a_whole_region_hurts_nobody_else() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
        let neighbours = Neighbours::start(&daemon);
        for seed in 0..12 {
            rampage(&daemon, seed);
        }
        neighbours.finish();
        daemon.until("nothing is left", |sockets| sockets.is_empty());
        assert_eq!(daemon.report(Report::Statistics)["applications"], 0);
    }
}

#[test]
fn garbled_messages_end_the_line_and_nothing_else() {
    let daemon = Daemon::start(Options::default());
    let neighbours = Neighbours::start(&daemon);
    let mut rng = Seed::new(3);
    let report = kind_of(Request::Report(Report::Shutdown));
    for round in 0..300 {
        let line = daemon.dial();
        if round % 2 == 0 {
            line.send(&ToService { number: 1, request: hello(None) }, &[], true).unwrap();
            line.receive::<ToApplication>(true).unwrap();
        }
        for _ in 0..20 {
            let longest = if rng.chance(100_000) { 4000 } else { 60 };
            let n = 1 + rng.below(longest) as usize;
            let bytes: Vec<u8> = (0..n).map(|_| (rng.next_u64() >> 13) as u8 & 0x1f).collect();
            // A report or a shutdown would be obeyed: this test is root's own user.
            let harmless = bytes.get(1) != Some(&report);
            if harmless && send(&line, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
                break;
            }
        }
    }
    neighbours.finish();
}

/// What an application does to be detached; the second one is a stranger.
type Offence = fn(&mut App, &App);

fn offend(app: &App, request: Request) {
    app.line.send(&ToService { number: 9, request }, &[], true).unwrap();
}

const OFFENCES: &[(&str, Offence)] = &[
    ("descriptors nobody asked for", |app, _| {
        let request = Request::Unlisten { queue: 1, because: Unlisten::Stopped };
        app.line.send(&ToService { number: 9, request }, &[app.woken.as_fd()], true).unwrap();
    }),
    ("a lie about its memory", |app, _| {
        offend(app, Request::Populated { region: app.info.id, bytes: 8 << 20 });
    }),
    ("a stranger's memory", |app, other| {
        offend(app, Request::Populated { region: other.info.id, bytes: 64 << 10 });
    }),
    ("a second hello", |app, _| offend(app, hello(None))),
    ("a second region", |app, _| offend(app, Request::OpenRegion { room: u64::MAX })),
    ("a context out of range", |app, _| offend(app, Request::Context { context: 256 })),
    ("closing a stranger's socket", |app, other| {
        app.say(Request::Closed { region: other.info.id, slot: 1 });
    }),
    ("ending a stranger's listener", |app, other| {
        let queue = *other.queues.mapped.keys().next().unwrap();
        app.say(Request::Unlisten { queue, because: Unlisten::Stopped });
    }),
    ("asking about a stranger's socket", |app, other| {
        offend(app, Request::Info { region: other.info.id, slot: 1 });
    }),
    ("setting options of a stranger's socket", |app, other| {
        let options = SocketOptions::default();
        app.say(Request::SetOptions { region: other.info.id, slot: 1, options });
    }),
];

#[test]
fn every_kind_of_offender_is_detached_at_once() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let mut server = App::new(&daemon);
    let queue = server.listen(&socket, 8);
    let mut bystander = App::new(&daemon);
    let (other_socket, _) = listener();
    bystander.listen(&other_socket, 8);
    for (what, offence) in OFFENCES {
        let mut app = App::new(&daemon);
        let conn = app.connect(address);
        let (here, _) = server.accept_wait(queue);
        offence(&mut app, &bystander);
        assert!(is_detached(&app.line), "{what}");
        let region = here.region;
        server.until("its peers lose their region", |s| {
            s.listen_to_pushes();
            s.pushes.contains(&control::Push::Revoked { region })
        });
        assert_ne!(server.peer_flags(&here) & shm::half_flags::RESET, 0, "{what}");
        server.pairs.clear();
        let _ = conn;
    }
    assert_eq!(daemon.report(Report::Statistics)["detached"], OFFENCES.len());
    daemon.until("only the listeners are left", |sockets| sockets.len() == 2);
}

#[test]
fn who_does_not_read_its_control_line_is_detached() {
    let daemon = Daemon::start(Options::default());
    let app = App::new(&daemon);
    let sent = (0..1_000_000).find(|n| {
        let message = ToService { number: 1 + n, request: Request::Mapped { region: 999 } };
        matches!(app.line.send(&message, &[], true), Err(LineError::Closed))
    });
    assert!(sent.is_some());
    Neighbours::start(&daemon).finish();
}
