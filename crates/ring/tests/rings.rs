//! Rings with rings, and with ordinary servers, as peers.

use crate::common::{PATIENCE, Place, service};
use ring::{ConnectOptions, Counters, Error, Event, Handle, Kind, ListenOptions, Options, Ring, Service};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// All tests of a process share its registration, so they run one after the other in one service.
fn each(test: impl FnOnce(&Place, &Service)) {
    use std::sync::{Mutex, OnceLock, PoisonError};
    static PLACE: OnceLock<Place> = OnceLock::new();
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = PLACE.get_or_init(service);
    let options = Options { control: Some(place.control.clone()), ..Options::default() };
    test(place, &Service::open(options).unwrap());
}

/// Waits for events of `ring` until one satisfies `found`.
fn until(ring: &mut Ring, mut found: impl FnMut(&Event) -> bool) -> Event {
    let end = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    loop {
        ring.wait(Some(Duration::from_millis(100)), &mut events).unwrap();
        if let Some(event) = events.iter().find(|event| found(event)) {
            return *event;
        }
        assert!(Instant::now() < end, "the event does not come; last were {events:?}");
    }
}

/// A connection between two rings: the ends of `client` and of `server`, which listens at the address that is returned.
fn pair(client: &mut Ring, server: &mut Ring) -> (Handle, Handle, Handle, SocketAddr) {
    let listener = server.listen(ANY, ListenOptions::default(), 7).unwrap();
    let address = server.local_address(listener).unwrap();
    let ours = client.connect(address, ConnectOptions::default(), 8).unwrap();
    let accepted = until(server, |event| matches!(event.kind, Kind::Accepted { .. }));
    assert_eq!(accepted.token, 7);
    let connected = until(client, |event| event.kind == Kind::Connected);
    assert_eq!((connected.handle, connected.token), (ours, 8));
    (ours, accepted.handle, listener, address)
}

#[test]
fn bytes_go_both_ways_between_two_rings_and_ends_are_told() {
    each(|_, service| {
        let (mut a, mut b) = (service.ring().unwrap(), service.ring().unwrap());
        let (x, y, listener, address) = pair(&mut a, &mut b);
        assert_eq!(b.conn(y).unwrap().info().unwrap().local, address);
        assert_eq!(a.conn(x).unwrap().info().unwrap().peer, address);
        assert_eq!(a.conn(x).unwrap().write(b"question\n").unwrap(), 9);
        a.conn(x).unwrap().finish().unwrap();
        until(&mut b, |event| event.kind == Kind::Finished && event.handle == y);
        let mut read = b.conn(y).unwrap().read().unwrap();
        assert_eq!((read.find(b'\n'), read.contiguous(8)), (Some(8), &b"question"[..]));
        read.consume(9);
        assert!(b.conn(y).unwrap().is_finished());
        let mut write = b.conn(y).unwrap().reserve(6, 100).unwrap().unwrap();
        assert_eq!((write.put(b"ans"), write.put(b"wer")), (3, 3));
        write.done();
        b.conn(y).unwrap().close();
        until(&mut a, |event| event.kind == Kind::Finished && event.handle == x);
        let mut out = [0; 16];
        assert_eq!(a.conn(x).unwrap().read().unwrap().copy_to(&mut out), 6);
        assert_eq!(&out[..6], b"answer");
        b.close_listener(listener).unwrap();
        assert!(b.is_empty() && a.len() == 1);
    });
}

#[test]
fn a_handle_of_a_closed_connection_is_gone_and_never_another_connection() {
    each(|_, service| {
        let (mut a, mut b) = (service.ring().unwrap(), service.ring().unwrap());
        let (x, y, listener, address) = pair(&mut a, &mut b);
        a.conn(x).unwrap().close();
        assert_eq!(a.conn(x).unwrap_err(), Error::Gone);
        let again = a.connect(address, ConnectOptions::default(), 9).unwrap();
        until(&mut a, |event| event.handle == again);
        assert_ne!(again, x);
        assert_eq!(a.conn(x).unwrap_err(), Error::Gone);
        assert_eq!(a.conn(Handle::from_bits(0)).unwrap_err(), Error::Gone);
        assert_eq!(b.conn(listener).unwrap_err(), Error::WrongKind);
        assert_eq!(b.close_listener(y).unwrap_err(), Error::WrongKind);
        assert_eq!(Handle::from_bits(y.to_bits()), y);
    });
}

#[test]
fn what_is_left_unread_is_told_when_more_comes_or_when_asked_for() {
    each(|_, service| {
        let (mut a, mut b) = (service.ring().unwrap(), service.ring().unwrap());
        let (x, y, ..) = pair(&mut a, &mut b);
        let mut events = Vec::new();
        a.conn(x).unwrap().write(b"one").unwrap();
        a.flush();
        until(&mut b, |event| event.kind == Kind::Readable);
        b.conn(y).unwrap().read().unwrap().consume(1);
        b.poll(&mut events).unwrap();
        assert_eq!(events, [], "nothing new has come");
        b.conn(y).unwrap().again().unwrap();
        b.poll(&mut events).unwrap();
        assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), [Kind::Readable]);
        a.conn(x).unwrap().write(b"two").unwrap();
        a.flush();
        until(&mut b, |event| event.kind == Kind::Readable);
        assert_eq!(b.conn(y).unwrap().read().unwrap().bytes(), b"netwo");
    });
}

#[test]
fn a_writer_that_finds_no_room_is_told_of_room_and_loses_no_byte() {
    const TOTAL: usize = 12 << 20;
    each(|_, service| {
        let (mut a, mut b) = (service.ring().unwrap(), service.ring().unwrap());
        let (x, y, ..) = pair(&mut a, &mut b);
        let byte = |at: usize| (at * 7 + at / 253) as u8;
        let chunk: Vec<u8> = (0..TOTAL).map(byte).collect();
        let (mut sent, mut got, mut stalls) = (0, 0, 0);
        let mut events = Vec::new();
        while got < chunk.len() {
            if sent < chunk.len() {
                sent += a.conn(x).unwrap().write(&chunk[sent..]).unwrap();
            }
            if sent < chunk.len() {
                stalls += 1;
                a.poll(&mut events).unwrap();
                assert_eq!(events, [], "there is no room before the reader reads");
            }
            a.flush();
            until(&mut b, |event| event.kind == Kind::Readable);
            let mut read = b.conn(y).unwrap().read().unwrap();
            let n = read.len();
            assert!(read.bytes() == &chunk[got..got + n], "at {got}");
            read.consume(n);
            got += n;
            b.flush();
            if sent < chunk.len() {
                until(&mut a, |event| event.kind == Kind::Writable);
            }
        }
        assert!(stalls > 0, "the ring is shorter than what was sent");
    });
}

#[test]
fn one_barrier_and_few_bells_publish_all_connections() {
    each(|_, service| {
        let (mut a, mut b) = (service.ring().unwrap(), service.ring().unwrap());
        let (x, _, _, address) = pair(&mut a, &mut b);
        let mut all = vec![x];
        for token in 0..40 {
            let handle = a.connect(address, ConnectOptions::default(), token).unwrap();
            until(&mut b, |event| matches!(event.kind, Kind::Accepted { .. }));
            all.push(handle);
        }
        let mut events = Vec::new();
        a.poll(&mut events).unwrap();
        let before = a.counters();
        for handle in &all {
            a.conn(*handle).unwrap().write(b"hello").unwrap();
        }
        a.flush();
        let Counters { barriers, flushes, bells, .. } = a.counters();
        assert_eq!((barriers - before.barriers, flushes - before.flushes), (1, 1));
        // One for each word of 64 slots in which the service has put some of them.
        let bells = bells - before.bells;
        assert!((1..=8).contains(&bells), "{bells} bells for {} connections", all.len());
        let mut readable = 0;
        while readable < all.len() {
            b.wait(Some(PATIENCE), &mut events).unwrap();
            readable += events.iter().filter(|event| event.kind == Kind::Readable).count();
        }
        assert_eq!(readable, all.len(), "each is told once");
    });
}

#[test]
fn a_reset_is_told_and_what_came_before_it_can_be_read() {
    each(|_, service| {
        let (mut a, mut b) = (service.ring().unwrap(), service.ring().unwrap());
        let (x, y, ..) = pair(&mut a, &mut b);
        a.conn(x).unwrap().write(b"last words").unwrap();
        a.conn(x).unwrap().reset();
        let closed = until(&mut b, |event| matches!(event.kind, Kind::Closed(_)));
        assert_eq!(closed.kind, Kind::Closed(rustix_errno(libc::ECONNRESET)));
        assert_eq!(b.conn(y).unwrap().read().unwrap().bytes(), b"last words");
        assert!(matches!(b.conn(y).unwrap().reserve(1, 1), Err(Error::Ended(_))));
        b.conn(y).unwrap().close();
        assert_eq!(b.conn(y).unwrap_err(), Error::Gone);
    });
}

fn rustix_errno(number: i32) -> rustix::io::Errno {
    rustix::io::Errno::from_raw_os_error(number)
}

#[test]
fn refusals_name_their_cause() {
    each(|_, service| {
        let mut a = service.ring().unwrap();
        // Nothing listens there: the kernel would find that out.
        let free = std::net::TcpListener::bind(ANY).unwrap().local_addr().unwrap();
        let refused = a.connect(free, ConnectOptions::default(), 0).unwrap_err();
        assert!(matches!(refused, Error::KernelOnly(_) | Error::Refused(_)), "{refused}");
        let taken = std::net::TcpListener::bind(ANY).unwrap();
        let address = taken.local_addr().unwrap();
        let e = a.listen(address, ListenOptions::default(), 0).unwrap_err();
        assert_eq!(e, Error::Os(rustix_errno(libc::EADDRINUSE)));
        assert!(matches!(a.connect(address, ConnectOptions::default(), 0), Err(Error::KernelOnly(_))));
        assert_eq!(e.errno(), libc::EADDRINUSE);
    });
}

#[test]
fn a_peer_that_does_not_use_the_service_is_reset_and_counted() {
    use std::io::Read;
    each(|_, service| {
        let mut ring = service.ring().unwrap();
        let listener = ring.listen(ANY, ListenOptions::default(), 0).unwrap();
        let address = ring.local_address(listener).unwrap();
        let mut stranger = std::net::TcpStream::connect(address).unwrap();
        let mut events = Vec::new();
        let end = Instant::now() + PATIENCE;
        while ring.counters().kernel_refused == 0 && Instant::now() < end {
            ring.wait(Some(Duration::from_millis(100)), &mut events).unwrap();
        }
        let e = stranger.read(&mut [0]).unwrap_err();
        assert_eq!((ring.counters().kernel_refused, e.kind()), (1, std::io::ErrorKind::ConnectionReset));
    });
}

#[test]
fn another_thread_wakes_a_ring_that_sleeps_and_timers_are_told_in_order() {
    each(|_, service| {
        let mut ring = service.ring().unwrap();
        let waker = ring.waker();
        let mut events = Vec::new();
        let thread = std::thread::spawn(move || waker.wake());
        let woken = until(&mut ring, |event| event.kind == Kind::Woken);
        assert_eq!(woken.token, 0);
        thread.join().unwrap();
        ring.poll(&mut events).unwrap();
        assert_eq!(events, [], "it is told once");
        let now = Instant::now();
        ring.timer(now + Duration::from_millis(2), 2);
        ring.timer(now + Duration::from_millis(1), 1);
        ring.timer(now + Duration::from_secs(3600), 3);
        let mut told = Vec::new();
        while told.len() < 2 {
            ring.wait(None, &mut events).unwrap();
            told.extend(events.iter().map(|event| (event.kind, event.token)));
        }
        assert_eq!(told, [(Kind::Timer, 1), (Kind::Timer, 2)]);
        assert!(now.elapsed() >= Duration::from_millis(2));
        assert_eq!(ring.next_timer(), Some(now + Duration::from_secs(3600)));
    });
}

#[test]
fn a_foreign_loop_sleeps_on_the_descriptor() {
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;
    each(|_, service| {
        let (mut a, mut b) = (service.ring().unwrap(), service.ring().unwrap());
        let (x, y, ..) = pair(&mut a, &mut b);
        let mut events = Vec::new();
        while !b.arm().unwrap() {
            b.poll(&mut events).unwrap();
        }
        // A duplicate stands for the same kernel object, and borrows nothing.
        let fd = b.as_fd().try_clone_to_owned().unwrap();
        let mut wait = [PollFd::new(&fd, PollFlags::IN)];
        assert_eq!(poll(&mut wait, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap(), 0);
        a.conn(x).unwrap().write(b"x").unwrap();
        a.flush();
        assert_eq!(poll(&mut wait, Some(&rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap(), 1);
        b.poll(&mut events).unwrap();
        let told: Vec<_> = events.iter().map(|event| (event.handle, event.kind)).collect();
        assert_eq!(told, [(y, Kind::Readable)]);
        a.conn(x).unwrap().write(b"y").unwrap();
        a.flush();
        assert!(!b.arm().unwrap(), "there is news: the loop must not sleep");
    });
}

#[test]
fn an_ordinary_server_answers_a_ring() {
    each(|place, service| {
        let program = place.compile("answers");
        let mut command = place.ordinary(program);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
        let port: u16 = line.trim().parse().unwrap();
        let mut ring = service.ring().unwrap();
        let handle = ring.connect((Ipv4Addr::LOCALHOST, port).into(), ConnectOptions::default(), 0).unwrap();
        until(&mut ring, |event| event.kind == Kind::Connected);
        for round in 0..1000_u32 {
            let text = format!("request {round}\n");
            ring.conn(handle).unwrap().write(text.as_bytes()).unwrap();
            let mut answer = Vec::new();
            while answer.len() < text.len() {
                until(&mut ring, |event| event.kind == Kind::Readable);
                let mut read = ring.conn(handle).unwrap().read().unwrap();
                answer.extend_from_slice(read.bytes());
                let n = read.len();
                read.consume(n);
            }
            assert_eq!(answer, text.as_bytes());
        }
        ring.conn(handle).unwrap().finish().unwrap();
        until(&mut ring, |event| event.kind == Kind::Finished);
        assert!(child.wait().unwrap().success());
    });
}
