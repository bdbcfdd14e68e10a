//! Opens packet sockets on an interface.

use crate::error::PacketError;
use crate::filter::{self, Program};
use crate::queue::PacketQueue;
use crate::ring::{self, Ring};
use crate::steering::PacketSteering;
use crate::sys::{self, Facts};
use port::{Capabilities, Steering, Table, VnetQueue};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;

/// Largest number of queues. The kernel allows more members in a group (`PACKET_FANOUT_MAX` is at least 256), but we have no more cores.
const QUEUES_MAX: u16 = 256;
/// Size of a socket's buffer as the kernel counts, bytes: about 400 super-frames. Short frames wait in the ring.
const BUFFER_BYTES: i32 = 32 << 20;
/// As for a TAP: the least that IPv4 requires (RFC 791), and the most that Linux allows.
const MTU_RANGE: std::ops::RangeInclusive<u16> = 576..=65_521;

/// Options for the use of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketOptions {
    /// Name of the interface.
    pub name: String,
    /// Number of queues, with one port each.
    pub queues: u16,
    /// Which queue gets the frames of a group of flows, at first.
    pub table: Table,
    /// Frames with partial checksums may be sent: the interface, or the kernel, completes them.
    pub checksum: bool,
    /// Super-frames may be sent; needs `checksum`.
    pub gso: bool,
    /// Bytes of the largest IP packet; `None`: the interface's MTU, which is also the maximum.
    pub mtu: Option<u16>,
    /// Our Ethernet address; `None`: random and locally administered. The interface's own address belongs to the kernel's stack.
    pub mac: Option<[u8; 6]>,
    /// Our IP addresses: only frames to them, or about them, are received. Empty: all addresses count as ours.
    pub addresses: Vec<IpAddr>,
    /// True: receive all frames, of any address and protocol. False: only frames for us of the protocols that a TCP stack uses: ARP,
    /// neighbour discovery, TCP, ICMP.
    pub everything: bool,
    /// Network namespace of the interface: a name as in `ip netns`, or a path; `None`: this process's.
    pub namespace: Option<String>,
}

impl PacketOptions {
    /// One queue of the interface `name`, with offloads.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            queues: 1,
            table: [0; wire::GROUPS],
            checksum: true,
            gso: true,
            mtu: None,
            mac: None,
            addresses: Vec::new(),
            everything: false,
            namespace: None,
        }
    }
}

/// An interface that was opened.
#[derive(Debug)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface in its namespace.
    pub index: u32,
    /// Our Ethernet address on this link.
    pub mac: [u8; 6],
    /// The interface's own Ethernet address, which the kernel's stack uses.
    pub host_mac: [u8; 6],
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// One port for each queue.
    pub queues: Vec<PacketQueue>,
    /// Brings the frames of groups of flows to queues. `Ok(None)`: there is one queue. `Err`: the kernel refuses, and queue 0 gets all frames.
    pub steering: io::Result<Option<PacketSteering>>,
}

/// Opens sockets on the interface, which must exist and be up. It is promiscuous while they are open.
///
/// # Errors
/// A [`PacketError`]; its message says what to do.
pub fn open(options: &PacketOptions) -> Result<Interface, PacketError> {
    check(options)?;
    let Some(namespace) = &options.namespace else { return open_here(options) };
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PacketError::NoPermission { what: "enter a network namespace" },
        _ => PacketError::NoNamespace { name: namespace.clone(), source },
    };
    port::in_namespace(namespace, || open_here(options)).map_err(failed)?
}

fn check(options: &PacketOptions) -> Result<(), PacketError> {
    let bad = |what| Err(PacketError::BadOption { what });
    if !(1..=QUEUES_MAX).contains(&options.queues) {
        return bad("queues must be 1 to 256");
    }
    if options.gso && !options.checksum {
        return bad("segmentation offload needs checksum offload");
    }
    if options.mac.is_some_and(|mac| mac[0] & 1 == 1 || mac == [0; 6]) {
        return bad("the MAC must be an address of one station");
    }
    if options.mtu.is_some_and(|mtu| !MTU_RANGE.contains(&mtu)) {
        return bad("the MTU must be 576 to 65521");
    }
    Ok(())
}

fn open_here(options: &PacketOptions) -> Result<Interface, PacketError> {
    let name = options.name.as_str();
    let refused = |what| move |source| PacketError::refused(name, what, source);
    let sockets: io::Result<Vec<OwnedFd>> = (0..options.queues).map(|_| sys::socket()).collect();
    let mut others = sockets.map_err(refused("open a packet socket"))?;
    // That of queue 1 was made before that of queue 0: see `PacketSteering`.
    let first = others.remove(usize::from(options.queues > 1));
    let facts = sys::facts(&first, name).map_err(refused("read the state"))?;
    if !facts.is_ethernet {
        return Err(PacketError::NotEthernet { name: name.to_owned() });
    }
    if !facts.is_up {
        return Err(PacketError::Down { name: name.to_owned() });
    }
    let mtu = mtu(options, &facts)?;
    let mac = match options.mac {
        Some(mac) => mac,
        None => port::random_mac().map_err(refused("choose a random MAC"))?,
    };
    let failed = |(what, source)| PacketError::refused(name, what, source);
    for socket in others.iter().chain([&first]) {
        prepare(socket, facts.index).map_err(failed)?;
    }
    let wanted = (!options.everything).then_some((mac, options.addresses.as_slice()));
    let (filter, ring) = receive(&first, &facts, wanted).map_err(failed)?;
    let capabilities = capabilities(options, mtu, mac);
    let queue = |socket, number| VnetQueue::new(socket, capabilities, number).with_overruns(sys::drops);
    let double = |socket: &OwnedFd| socket.try_clone().map_err(refused("open a packet socket"));
    let mut steering = PacketSteering { index: facts.index, filter, first, others: Vec::new(), joined: 0 };
    let mut queues = vec![PacketQueue::new(queue(double(&steering.first)?, 0), ring)];
    for (number, socket) in (1..).zip(others) {
        let (give, coming) = channel();
        queues.push(PacketQueue::waiting(queue(double(&socket)?, number), coming));
        steering.others.push((socket, give));
    }
    let steering = (options.queues > 1).then(|| steering.apply(&options.table).map(|()| steering));
    let (index, host_mac) = (facts.index as u32, facts.mac);
    Ok(Interface { name: name.to_owned(), index, mac, host_mac, mtu, queues, steering: steering.transpose() })
}

/// The step that failed, for the message, and the kernel's error.
type Failure = (&'static str, io::Error);

/// Prepares a socket to send to the interface, and to receive when it is told to.
fn prepare(socket: &OwnedFd, index: i32) -> Result<(), Failure> {
    sys::set_buffers(socket, BUFFER_BYTES).map_err(|e| ("set the buffers", e))?;
    sys::set_frames(socket).map_err(|e| ("set the virtio header (Linux 4.20 or later)", e))?;
    sys::bind(socket, index, sys::NONE).map_err(|e| ("send frames", e))
}

/// Has the socket of queue 0 get the frames of the interface. `wanted`: our Ethernet and IP addresses; `None`: all frames. Returns the filter and
/// the ring, where it has them.
fn receive(
    socket: &OwnedFd,
    facts: &Facts,
    wanted: Option<([u8; 6], &[IpAddr])>,
) -> Result<(Option<Program>, Option<Ring>), Failure> {
    let filter = wanted.and_then(|(mac, own)| filter::attach(socket, mac, own));
    let ring = ring::receive(socket, facts.index, filter.is_some()).map_err(|e| ("receive the frames", e))?;
    sys::set_promiscuous(socket, facts.index).map_err(|e| ("receive frames to all addresses", e))?;
    Ok((filter, ring))
}

fn mtu(options: &PacketOptions, facts: &Facts) -> Result<u16, PacketError> {
    let most = u16::try_from(facts.mtu).unwrap_or(u16::MAX).min(*MTU_RANGE.end());
    match options.mtu {
        None if most < *MTU_RANGE.start() => {
            Err(PacketError::BadOption { what: "the interface's MTU must be at least 576" })
        }
        None => Ok(most),
        Some(mtu) if most < mtu => {
            Err(PacketError::BadOption { what: "the MTU must be at most the interface's" })
        }
        Some(mtu) => Ok(mtu),
    }
}

fn capabilities(options: &PacketOptions, mtu: u16, mac: [u8; 6]) -> Capabilities {
    let plain = Capabilities::plain(mtu, mac);
    let offloads = match (options.checksum, options.gso) {
        (_, true) => plain.with_tso(),
        (true, false) => plain.with_checksum(),
        // Received frames may have partial checksums in any case.
        (false, false) => Capabilities { rx_checksum: true, ..plain },
    };
    Capabilities { queues: options.queues, rss: options.queues > 1, ..offloads }
}
