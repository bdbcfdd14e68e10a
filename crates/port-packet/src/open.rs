//! Opens packet sockets on an interface.

use crate::error::PacketError;
use crate::filter;
use crate::queue::PacketQueue;
use crate::ring::Ring;
use crate::sys::{self, Facts};
use port::{Capabilities, VnetQueue};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// The kernel takes more members of a group, but we have no more cores (`PACKET_FANOUT_MAX` is 256 by default).
const QUEUES_MAX: u16 = 256;
/// Bytes that may wait in a socket, as the kernel counts: some 400 super-frames. Short ones wait in the ring.
const BUFFER_BYTES: i32 = 32 << 20;
/// As for a TAP: what IPv4 asks for (RFC 791), and the longest that Linux takes.
const MTU_RANGE: std::ops::RangeInclusive<u16> = 576..=65_521;

/// How an interface is to be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketOptions {
    /// The interface.
    pub name: String,
    /// Queues, one port each; flows are spread over them.
    pub queues: u16,
    /// Frames with unfinished checksums may be sent: the interface, or the kernel for it, finishes them.
    pub checksum: bool,
    /// Super-frames may be sent; needs `checksum`.
    pub gso: bool,
    /// Bytes of the largest IP packet; the interface's own by default, which it must not exceed.
    pub mtu: Option<u16>,
    /// Our Ethernet address; random and locally administered by default. The interface's own belongs to the kernel's stack.
    pub mac: Option<[u8; 6]>,
    /// Our IP addresses: only what goes to them, or is about them, is received. None: every address is taken for ours.
    pub addresses: Vec<IpAddr>,
    /// All frames are wanted, to whatever address and of whatever protocol; else those to us that a TCP stack has a use for: ARP,
    /// neighbour discovery, TCP, ICMP.
    pub everything: bool,
    /// The network namespace of the interface: a name as in `ip netns`, or a path; ours by default.
    pub namespace: Option<String>,
}

impl PacketOptions {
    /// One queue of the interface `name`, with offloads.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            queues: 1,
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

/// An interface in use.
#[derive(Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index in its namespace.
    pub index: u32,
    /// Our Ethernet address.
    pub mac: [u8; 6],
    /// The interface's own Ethernet address, that of the kernel's stack.
    pub host_mac: [u8; 6],
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// One port for each queue.
    pub queues: Vec<PacketQueue>,
}

/// Opens sockets on the interface. It must exist and be up; it is made promiscuous while they are open.
///
/// # Errors
/// A [`PacketError`] whose message says what to do.
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
    let first = sys::socket().map_err(refused("open a packet socket"))?;
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
    let wanted = (!options.everything).then_some((mac, options.addresses.as_slice()));
    let capabilities = capabilities(options, mtu, mac);
    let (mut queues, mut group) = (Vec::new(), None);
    let mut sockets = vec![first];
    for _ in 1..options.queues {
        sockets.push(sys::socket().map_err(refused("open another packet socket"))?);
    }
    for (number, socket) in (0..).zip(sockets) {
        let ring = prepare(&socket, &facts, wanted)
            .map_err(|(what, source)| PacketError::refused(name, what, source))?;
        if options.queues > 1 {
            let joined = sys::join_group(&socket, group).map_err(refused("share the frames among queues"))?;
            group = Some(joined);
        }
        let socket = VnetQueue::new(socket, capabilities, number).with_overruns(sys::drops);
        queues.push(PacketQueue::new(socket, ring));
    }
    let (index, host_mac) = (facts.index as u32, facts.mac);
    Ok(Interface { name: name.to_owned(), index, mac, host_mac, mtu, queues })
}

/// `wanted`: our Ethernet and IP addresses, or every frame. Without a ring where the kernel has no memory for it, or where frames of
/// other protocols are wanted: one whose offload has no words in
/// the header (segments of UDP before Linux 6.2, of SCTP) keeps its slot of the ring for ever, and with it the ring.
fn prepare(
    socket: &OwnedFd,
    facts: &Facts,
    wanted: Option<([u8; 6], &[IpAddr])>,
) -> Result<Option<Ring>, (&'static str, io::Error)> {
    sys::set_buffers(socket, BUFFER_BYTES).map_err(|e| ("set the buffers", e))?;
    sys::set_frames(socket).map_err(|e| ("set the virtio header (Linux 4.20 or later)", e))?;
    // More addresses than the kernel takes in a program are left to the fast path, which asks once more.
    let attach =
        |(mac, own)| filter::attach(socket, mac, own).or_else(|_| filter::attach(socket, mac, &[])).is_ok();
    let is_filtered = wanted.is_some_and(attach);
    let ring = if is_filtered { Ring::new(socket).ok() } else { None };
    sys::bind(socket, facts.index).map_err(|e| ("receive the frames", e))?;
    sys::set_promiscuous(socket, facts.index).map_err(|e| ("receive frames to all addresses", e))?;
    Ok(ring)
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
        // What comes may have an unfinished checksum all the same.
        (false, false) => Capabilities { rx_checksum: true, ..plain },
    };
    // The kernel picks a member of the group by a symmetric hash of the flow.
    Capabilities { queues: options.queues, rss: options.queues > 1, ..offloads }
}
