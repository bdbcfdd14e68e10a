//! Tests against the kernel's own stack, in a network namespace of their own. Needs root.

use crate::{Tap, TapError, TapOptions, open, sys};
use port::{Batch, Checksum, DropCause, Gso, GsoKind, PacketBuf, Port, VnetQueue, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const IP: usize = 14;
const TCP: usize = 34;

/// Runs the test in a thread with its own network namespace; prints a message if that is not possible.
fn in_a_namespace(test: impl FnOnce() + Send + 'static) {
    let test = move || {
        if let Err(error) = sys::enter_new_network_namespace() {
            println!("skipped: needs root for a network namespace ({error})");
        } else if let Err(error) = open(&TapOptions::default()) {
            println!("skipped: {error}");
        } else {
            test();
        }
    };
    std::thread::spawn(test).join().expect("the test passes");
}

fn options() -> TapOptions {
    TapOptions { name: "twp0".to_owned(), host_v4: Some((HOST, 24)), ..TapOptions::default() }
}

/// Opens the interface as soon as the last one of that name is gone: a process that another test has just forked may hold it until it
/// executes its program.
fn open_anew(options: &TapOptions) -> Result<Tap, TapError> {
    for _ in 0..500 {
        match open(options) {
            Err(TapError::NameInUse { .. }) => std::thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
    open(options)
}

struct Station {
    queue: VnetQueue,
    mac: [u8; 6],
    host_mac: [u8; 6],
    batch: Batch,
    /// Frames that were received and not yet examined.
    waiting: VecDeque<PacketBuf>,
}

impl Station {
    fn new(options: &TapOptions) -> Self {
        let Tap { mac, host_mac, mut queues, .. } = open_anew(options).expect("root and a new namespace");
        Self { queue: queues.remove(0), mac, host_mac, batch: Batch::new(), waiting: VecDeque::new() }
    }

    fn send(&mut self, frame: &[u8], meta: port::PacketMeta) {
        let buf = self.queue.reserve().expect("a TAP has room");
        assert!(buf.fill(frame));
        buf.meta = meta;
        self.queue.commit();
        self.queue.flush();
        assert_eq!(self.queue.stats().drops.total(), 0);
    }

    /// Waits for the first frame that `is_it` accepts; panics after some seconds.
    fn wait_for(&mut self, mut is_it: impl FnMut(&PacketBuf) -> bool) -> PacketBuf {
        for _ in 0..100 {
            while let Some(packet) = self.waiting.pop_front() {
                if is_it(&packet) {
                    return packet;
                }
            }
            assert_eq!(self.queue.arm(), Wait::Readable);
            let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let fd = self.queue.wait_fd().expect("a TAP has one");
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("poll works");
            self.queue.disarm();
            self.queue.receive(&mut self.batch);
            self.waiting.extend(self.batch.packets_mut().iter_mut().map(std::mem::take));
        }
        panic!("the kernel did not send the expected frame: {:?}", self.queue.stats());
    }

    /// ARP in both directions: our request for the kernel's address also teaches the kernel ours.
    fn resolve(&mut self) {
        let mut arp = vec![0xFF; 6];
        arp.extend(self.mac);
        arp.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
        arp.extend(self.mac);
        arp.extend(OURS.octets());
        arp.extend([0; 6]);
        arp.extend(HOST.octets());
        self.send(&arp, port::PacketMeta::default());
        let reply = self.wait_for(|p| p.frame()[12..14] == [0x08, 0x06] && p.frame()[20..22] == [0, 2]);
        assert_eq!(reply.frame()[..6], self.mac);
        assert_eq!(reply.frame()[22..28], self.host_mac);
        assert_eq!(reply.frame()[28..32], HOST.octets());
    }

    /// An IPv4 frame to the kernel with a correct header checksum.
    fn ipv4(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&self.host_mac[..], &self.mac, &[0x08, 0, 0x45, 0]].concat();
        frame.extend((20 + payload.len() as u16).to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
        frame.extend(OURS.octets());
        frame.extend(HOST.octets());
        let sum = !sum(&frame[IP..]);
        frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Sends a TCP segment to the kernel; its checksum is partial.
    fn tcp(&mut self, ports: (u16, u16), seq: u32, ack: u32, flags: u8, payload: &[u8]) {
        let mut tcp = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
        tcp.extend(seq.to_be_bytes());
        tcp.extend(ack.to_be_bytes());
        tcp.extend([0x60, flags, 0xFF, 0xFF, 0, 0, 0, 0, 2, 4, 5, 0xB4]);
        let length = tcp.len() + payload.len();
        let pseudo = [&OURS.octets()[..], &HOST.octets(), &[0, 6], &(length as u16).to_be_bytes()].concat();
        tcp[16..18].copy_from_slice(&sum(&pseudo).to_be_bytes());
        tcp.extend(payload);
        let checksum = Checksum::Partial { start: TCP as u16, offset: 16 };
        let gso = Gso { kind: GsoKind::TcpV4, segment_size: 1436, header_len: 58, ecn: false };
        let gso = (payload.len() > 1436).then_some(gso);
        let frame = self.ipv4(6, &tcp);
        self.send(&frame, port::PacketMeta { checksum, gso, flow_hash: None });
    }
}

fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let sum = (sum >> 16) + (sum & 0xFFFF);
    (sum + (sum >> 16)) as u16
}

fn be32(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"))
}

#[test]
fn the_kernel_answers_arp_and_ping() {
    in_a_namespace(|| {
        for (checksum, gso) in [(true, true), (true, false), (false, false)] {
            let mut station = Station::new(&TapOptions { checksum, gso, mtu: 1400, ..options() });
            assert_eq!(station.queue.capabilities().tx_checksum, checksum);
            station.resolve();
            let mut echo = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1, b'h', b'i'];
            let check = !sum(&echo);
            echo[2..4].copy_from_slice(&check.to_be_bytes());
            let frame = station.ipv4(1, &echo);
            station.send(&frame, port::PacketMeta::default());
            let reply = station.wait_for(|p| p.len() > 34 && p.frame()[23] == 1 && p.frame()[34] == 0);
            assert_eq!(reply.frame()[38..44], echo[4..]);
        }
    });
}

#[test]
fn checksums_are_left_out_only_when_asked_for() {
    in_a_namespace(|| {
        for checksum in [true, false] {
            let mut station = Station::new(&TapOptions { checksum, gso: false, ..options() });
            station.resolve();
            let socket = UdpSocket::bind((HOST, 0)).expect("the address is there");
            socket.send_to(&[7; 100], (OURS, 9)).expect("a route");
            let packet =
                station.wait_for(|p| p.len() > 34 && p.frame()[12..14] == [8, 0] && p.frame()[23] == 17);
            let frame = packet.frame();
            assert_eq!(packet.meta.checksum.is_trusted(), checksum);
            let pseudo = [&frame[26..34], &[0, 17], &frame[38..40]].concat();
            let total = sum(&[&pseudo, &frame[34..]].concat());
            assert_eq!(
                total == 0xFFFF,
                !checksum,
                "partial sums are not complete, and complete ones are right"
            );
        }
    });
}

#[test]
fn what_ten_thousand_say_at_once_waits() {
    in_a_namespace(|| {
        const SAID: usize = 10_000;
        let mut station = Station::new(&options());
        station.resolve();
        let socket = UdpSocket::bind((HOST, 0)).expect("the address is there");
        for number in 0..SAID as u32 {
            socket.send_to(&number.to_be_bytes(), (OURS, 9)).expect("a route");
        }
        for number in 0..SAID as u32 {
            let packet =
                station.wait_for(|p| p.len() > 42 && p.frame()[12..14] == [8, 0] && p.frame()[23] == 17);
            assert_eq!(be32(packet.frame(), 42), number);
        }
    });
}

#[test]
fn super_frames_pass_both_ways() {
    in_a_namespace(|| {
        const BYTES: usize = 14_000;
        let mut station = Station::new(&options());
        station.resolve();
        let listener = TcpListener::bind((HOST, 0)).expect("the address is there");
        let ports = (4711, listener.local_addr().expect("bound").port());
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            let mut bytes = vec![0; BYTES];
            stream.read_exact(&mut bytes)?;
            stream.write_all(&bytes).map(|()| (bytes, stream))
        });
        station.tcp(ports, 999, 0, 0x02, &[]);
        let is_tcp = |p: &PacketBuf| p.len() > 53 && p.frame()[12..14] == [8, 0] && p.frame()[23] == 6;
        let accepted = station.wait_for(is_tcp);
        assert_eq!(accepted.frame()[TCP + 13], 0x12, "SYN, ACK");
        let theirs = be32(accepted.frame(), TCP + 4).wrapping_add(1);
        station.tcp(ports, 1000, theirs, 0x10, &[]);
        let payload: Vec<u8> = (0..BYTES as u32).map(|i| (i % 251) as u8).collect();
        station.tcp(ports, 1000, theirs, 0x18, &payload);
        let (mut echoed, mut largest) = (vec![None; BYTES], 0);
        while echoed.contains(&None) {
            let packet = station.wait_for(|p| is_tcp(p) && p.len() > TCP + 20);
            let header = TCP + usize::from(packet.frame()[TCP + 12] >> 4) * 4;
            let at = be32(packet.frame(), TCP + 4).wrapping_sub(theirs) as usize;
            let data = &packet.frame()[header..];
            echoed[at..at + data.len()].iter_mut().zip(data).for_each(|(to, from)| *to = Some(*from));
            if let Some(gso) = packet.meta.gso {
                assert_eq!((gso.kind, usize::from(gso.header_len)), (GsoKind::TcpV4, header));
                assert!(packet.meta.checksum.is_trusted() && gso.segment_size <= 1460);
                largest = largest.max(data.len());
            }
        }
        let (received, _stream) = echo.join().expect("no panic").expect("the kernel takes the super-frame");
        assert!(received == payload && echoed.into_iter().flatten().eq(payload));
        assert!(largest > 1460, "the kernel sent super-frames too");
        assert_eq!(station.queue.stats().drops.total(), 0);
    });
}

#[test]
fn what_cannot_be_sent_is_dropped_and_counted() {
    in_a_namespace(|| {
        let mut station = Station::new(&options());
        for len in [0, 13, 1600] {
            let buf = station.queue.reserve().expect("room");
            buf.set_len(len);
            station.queue.commit();
        }
        station.queue.commit();
        assert_eq!(station.queue.stats().drops.of(DropCause::Unsendable), 3);
        assert_eq!(station.queue.stats().sent_packets, 0);
    });
}

#[test]
fn queues_share_an_interface_and_a_second_owner_is_refused() {
    in_a_namespace(|| {
        let wanted = TapOptions { queues: 2, ..options() };
        let tap = open(&wanted).expect("root and a new namespace");
        assert_eq!(tap.queues.len(), 2);
        assert_eq!(tap.name, "twp0");
        assert_ne!(tap.mac, tap.host_mac);
        assert_eq!((tap.mac[0] & 3, tap.queues[1].index()), (2, 1));
        assert!(matches!(open(&wanted), Err(TapError::NameInUse { .. })));
        assert!(matches!(open(&options()), Err(TapError::NameInUse { .. })));
        drop(tap);
        drop(open(&wanted).expect("the interface went with its queues"));
        let kept = TapOptions { persist: true, ..options() };
        for _ in 0..2 {
            drop(open(&kept).expect("a persisting interface is taken up again"));
        }
        assert!(matches!(open(&TapOptions { persist: true, ..wanted }), Err(TapError::NotATap { .. })));
    });
}

#[test]
fn ipv6_address_is_usable_without_waiting_for_duplicates() {
    in_a_namespace(|| {
        let host = "fd77::1".parse().expect("an address");
        let _tap =
            open(&TapOptions { host_v6: Some((host, 64)), ..options() }).expect("root and a new namespace");
        UdpSocket::bind((host, 0)).expect("the address is not tentative");
    });
}

#[test]
fn every_refusal_says_what_to_do() {
    let named = |name: &str| TapOptions { name: name.to_owned(), ..TapOptions::default() };
    for name in ["", "a/b", "sixteen-bytes-xx", "a b"] {
        assert!(matches!(open(&named(name)), Err(TapError::BadName { .. })), "{name:?}");
    }
    let bad = [
        TapOptions { queues: 0, ..named("x") },
        TapOptions { mtu: 100, ..named("x") },
        TapOptions { checksum: false, ..named("x") },
        TapOptions { mac: Some([1, 0, 0, 0, 0, 0]), ..named("x") },
    ];
    for options in bad {
        assert!(matches!(open(&options), Err(TapError::BadOption { .. })));
    }
    let nowhere = TapOptions { namespace: Some("no-such-namespace".to_owned()), ..named("x") };
    let error = open(&nowhere).expect_err("there is none");
    assert!(error.to_string().contains("ip netns add no-such-namespace"), "{error}");
    in_a_namespace(|| {
        let lo = TapOptions { name: "lo".to_owned(), persist: true, ..options() };
        assert!(matches!(open(&lo), Err(TapError::NotATap { .. })));
    });
}

#[test]
fn a_deleted_interface_is_a_failure() {
    in_a_namespace(|| {
        let mut station = Station::new(&TapOptions { persist: true, ..options() });
        assert!(station.queue.failure().is_none());
        let deleted = std::process::Command::new("ip").args(["link", "delete", "twp0"]).status();
        if !deleted.is_ok_and(|status| status.success()) {
            println!("skipped: needs ip(8)");
            return;
        }
        station.queue.receive(&mut Batch::new());
        assert!(station.queue.failure().is_some());
    });
}

/// True when this thread's network namespace has the interface.
fn sees(name: &str) -> bool {
    std::fs::read_to_string("/proc/thread-self/net/dev").expect("proc is there").contains(name)
}

#[test]
fn an_interface_can_be_opened_in_another_namespace() {
    in_a_namespace(|| {
        let here = format!("/proc/self/task/{}/ns/net", rustix::thread::gettid().as_raw_nonzero());
        let opener = std::thread::spawn(move || {
            sys::enter_new_network_namespace()?;
            let tap = open(&TapOptions { namespace: Some(here), ..options() }).map_err(io::Error::other)?;
            io::Result::Ok((sees(&tap.name), tap))
        });
        let (opener_sees, mut tap) = opener.join().expect("no panic").expect("root");
        assert!(!opener_sees && sees(&tap.name), "the opener's own network is untouched");
        let queue = tap.queues.remove(0);
        let mut station = Station {
            queue,
            mac: tap.mac,
            host_mac: tap.host_mac,
            batch: Batch::new(),
            waiting: VecDeque::new(),
        };
        station.resolve();
    });
}

/// Begins so many connections from the kernel to `to`, which answers nothing. Their sockets, with the ports that the kernel chose.
fn knock(to: std::net::SocketAddr, count: usize) -> Vec<(std::os::fd::OwnedFd, u16)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getsockname, socket_with};
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let one = || {
        let socket = socket_with(family, SocketType::STREAM, flags, None).expect("a socket");
        assert_eq!(connect(&socket, &to), Err(rustix::io::Errno::INPROGRESS));
        let own =
            std::net::SocketAddr::try_from(getsockname(&socket).expect("it has a name")).expect("of IP");
        (socket, own.port())
    };
    (0..count).map(|_| one()).collect()
}

/// The queue to which the SYN from each port came: port, queue.
fn queues_of_syns(tap: &mut Tap, count: usize) -> Vec<(u16, usize)> {
    let (mut batch, mut found) = (Batch::new(), Vec::new());
    for _ in 0..2_000 {
        for (index, queue) in tap.queues.iter_mut().enumerate() {
            queue.receive(&mut batch);
            for packet in batch.packets() {
                let frame = packet.frame();
                let (protocol, tcp) = if frame[12] == 0x08 { (frame[23], 34) } else { (frame[20], 54) };
                if matches!(frame[12..14], [0x08, 0] | [0x86, 0xDD]) && protocol == 6 {
                    found.push((u16::from_be_bytes([frame[tcp], frame[tcp + 1]]), index));
                }
            }
        }
        // A SYN may be there twice, if this thread did not run for a second.
        found.sort_unstable();
        found.dedup();
        if found.len() >= count {
            break;
        }
        std::thread::yield_now();
    }
    found
}

#[test]
fn each_group_of_flows_comes_to_the_queue_that_the_table_names_also_after_changes() {
    in_a_namespace(|| {
        let mut table: port::Table = std::array::from_fn(|group| (group % 3) as u8);
        let v6: std::net::Ipv6Addr = "fd77::1".parse().expect("an address");
        let mut tap =
            open(&TapOptions { queues: 3, table: Some(table), host_v6: Some((v6, 64)), ..options() })
                .expect("root and a new namespace");
        let mut steering = match std::mem::replace(&mut tap.steering, Ok(None)) {
            Ok(steering) => steering.expect("there are three queues"),
            Err(error) => return println!("skipped: needs CAP_BPF ({error})"),
        };
        for far in ["10.77.0.2", "fd77::2"] {
            let mac = tap.mac.map(|byte| format!("{byte:02x}")).join(":");
            let command = ["neigh", "replace", far, "lladdr", &mac, "dev", "twp0"];
            if !std::process::Command::new("ip").args(command).status().is_ok_and(|status| status.success()) {
                return println!("skipped: needs ip(8)");
            }
        }
        for change in 1..=4 {
            for (near, far) in [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")] {
                let end = |addr: &str, port| wire::Endpoint::new(addr.parse().expect("an address"), port);
                let queue = |port| {
                    usize::from(
                        table[usize::from(wire::FourTuple::new(end(near, port), end(far, 80)).group())],
                    )
                };
                let knocking = knock((far.parse::<std::net::IpAddr>().expect("an address"), 80).into(), 40);
                let mut expected: Vec<_> = knocking.iter().map(|(_, port)| (*port, queue(*port))).collect();
                expected.sort_unstable();
                assert_eq!(queues_of_syns(&mut tap, expected.len()), expected);
            }
            table = std::array::from_fn(|group| (group * change / 4 % 3) as u8);
            port::Steering::apply(&mut steering, &table).expect("a few bytes are written");
        }
    });
}
