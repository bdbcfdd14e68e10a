//! A flow of the kernel between two addresses of this namespace: one thread sends a pattern, another checks it.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::place::{PATIENCE, until};

/// Sent at once, then a pause of a millisecond: enough acknowledgements, and little work.
const PIECE: usize = 1 << 13;

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    is_paused: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
}

pub struct Flow {
    /// The sender's end, and the receiver's.
    ends: [TcpStream; 2],
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Flow {
    /// Connects the addresses, and begins to send.
    pub fn between(from: &str, to: &str) -> Self {
        let [from, to]: [IpAddr; 2] = [from, to].map(|text| text.parse().unwrap());
        let listener = TcpListener::bind((to, 0)).unwrap();
        let family = if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let sender = socket(family, SocketType::STREAM, None).unwrap();
        bind(&sender, &SocketAddr::from((from, 0))).unwrap();
        connect(&sender, &listener.local_addr().unwrap()).unwrap();
        let ends = [TcpStream::from(sender), listener.accept().unwrap().0];
        let shared = Arc::new(Shared::default());
        let [sender, receiver] = ends.each_ref().map(|end| end.try_clone().unwrap());
        let (of_sender, of_receiver) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            std::thread::spawn(move || send(sender, &of_sender)),
            std::thread::spawn(move || check(receiver, &of_receiver)),
        ];
        Self { ends, shared, threads }
    }

    pub fn peer(&self) -> SocketAddr {
        self.ends[0].peer_addr().unwrap()
    }

    /// The receiver's port.
    pub fn port(&self) -> u16 {
        self.peer().port()
    }

    pub fn choose(&self, algorithm: &str) {
        set_tcp_congestion(&self.ends[0], algorithm).unwrap();
    }

    /// What the kernel says of the sender's end.
    pub fn algorithm(&self) -> String {
        tcp_congestion(&self.ends[0]).unwrap()
    }

    pub fn algorithm_of_peer(&self) -> String {
        tcp_congestion(&self.ends[1]).unwrap()
    }

    pub fn until_algorithm(&self, name: &str) {
        until(&format!("algorithm {name}"), || (self.algorithm() == name).then_some(()));
    }

    /// Waits until bytes have come that were not sent yet.
    pub fn until_moved(&self) {
        let [sent, _] = self.counts();
        until("another byte", || (self.counts()[1] > sent).then_some(()));
    }

    /// Sends no more; every byte is acknowledged when this returns.
    pub fn pause(&self) {
        self.shared.is_paused.store(true, Ordering::Release);
        until("the last acknowledgement", || {
            let [sent, received] = self.counts();
            (sent == received && self.is_acknowledged()).then_some(())
        });
    }

    /// The kernel's list of IPv4 flows says that the sender's end has nothing to send and nothing in flight.
    fn is_acknowledged(&self) -> bool {
        let port = format!(":{:04X}", self.ends[0].local_addr().unwrap().port());
        let list = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let rows = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Columns: number, local address, remote address, state, bytes to send and in flight.
        let row = rows.into_iter().find(|row| row[1].ends_with(&port)).unwrap();
        row[4].starts_with("00000000:")
    }

    /// Bytes sent and bytes received so far.
    fn counts(&self) -> [u64; 2] {
        [&self.shared.sent, &self.shared.received].map(|count| count.load(Ordering::Acquire))
    }

    pub fn resume(&self) {
        self.shared.is_paused.store(false, Ordering::Release);
    }

    /// Ends the flow: every byte was right.
    pub fn ends(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| thread.join().expect("every byte is as it was sent"));
        let [sent, received] = self.counts();
        assert_eq!(sent, received);
    }
}

fn byte_at(place: u64) -> u8 {
    (place % 251) as u8
}

fn send(mut stream: TcpStream, shared: &Shared) {
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut place = 0;
    while !shared.is_over.load(Ordering::Acquire) {
        if !shared.is_paused.load(Ordering::Acquire) {
            let piece: Vec<u8> = (place..place + PIECE as u64).map(byte_at).collect();
            place += PIECE as u64;
            shared.sent.store(place, Ordering::Release);
            stream.write_all(&piece).expect("the flow moves");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
}

fn check(mut stream: TcpStream, shared: &Shared) {
    stream.set_read_timeout(Some(PATIENCE * 2)).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let mut place = 0;
    loop {
        let len = stream.read(&mut buffer).expect("the flow moves");
        if len == 0 {
            return;
        }
        assert!(buffer[..len].iter().zip(place..).all(|(byte, at)| *byte == byte_at(at)), "at {place}");
        place += len as u64;
        shared.received.store(place, Ordering::Release);
    }
}
