//! Creates a TAP interface, or attaches to one that persists, and configures the kernel's side of it.

use crate::error::TapError;
use crate::steering::TapSteering;
use crate::sys::{self, Interface, Name};
use port::{Capabilities, Table, VNET_HEADER_LEN, VnetQueue};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

/// Largest number of queues of a TAP in Linux (`MAX_TAP_QUEUES`).
const QUEUES_MAX: u16 = 256;
/// Frames that may wait in a queue of the kernel. Its default of 1,000 is too small when thousands of connections send at once: the
/// excess is lost, and all senders retransmit at the same moment, after a timeout that doubles. The bytes lie in the senders' buffers in
/// any case; an empty place takes 8 bytes.
const QUEUE_LEN: u16 = 16_384;
/// Each IPv4 host accepts packets of 576 bytes (RFC 791); Ethernet interfaces of Linux allow 68 to 65,521.
const MTU_RANGE: std::ops::RangeInclusive<u16> = 576..=65_521;

/// Options of a TAP interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapOptions {
    /// Name of the interface; the kernel replaces a `%d` in it by a number.
    pub name: String,
    /// Number of queues, with one port each.
    pub queues: u16,
    /// Which queue gets the frames of a group of flows, at first. `None`: the kernel learns it, from the queue by which a flow's last frame came.
    pub table: Option<Table>,
    /// Checksum offload in both directions.
    pub checksum: bool,
    /// TCP segmentation offload in both directions; needs `checksum`.
    pub gso: bool,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// Our Ethernet address; `None`: random and locally administered. The kernel's side has its own.
    pub mac: Option<[u8; 6]>,
    /// True: the interface outlives us, and may exist already. False: it must be new, and is deleted with its ports.
    pub persist: bool,
    /// The kernel's IPv4 address and prefix length on this link.
    pub host_v4: Option<(Ipv4Addr, u8)>,
    /// The kernel's IPv6 address and prefix length on this link, in addition to its link-local address.
    pub host_v6: Option<(Ipv6Addr, u8)>,
    /// Network namespace of the interface: a name as in `ip netns`, or a path; `None`: this process's.
    pub namespace: Option<String>,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self {
            name: "towpath%d".to_owned(),
            queues: 1,
            table: None,
            checksum: true,
            gso: true,
            mtu: 1500,
            mac: None,
            persist: false,
            host_v4: None,
            host_v6: None,
            namespace: None,
        }
    }
}

/// An open TAP interface.
#[derive(Debug)]
pub struct Tap {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface in its namespace.
    pub index: u32,
    /// Our Ethernet address on this link.
    pub mac: [u8; 6],
    /// The Ethernet address of the kernel's side.
    pub host_mac: [u8; 6],
    /// One port for each queue.
    pub queues: Vec<VnetQueue>,
    /// Brings the frames of groups of flows to queues. `Ok(None)`: not asked for, or there is one queue. `Err`: the kernel refuses, mostly for
    /// lack of `CAP_BPF`, and learns the queue of each flow.
    pub steering: io::Result<Option<TapSteering>>,
}

/// Creates the interface, configures it, and opens its queues.
///
/// # Errors
/// A [`TapError`]; its message says what to do. Nothing remains then, except settings of a persistent interface.
pub fn open(options: &TapOptions) -> Result<Tap, TapError> {
    check(options)?;
    let Some(namespace) = &options.namespace else { return open_here(options) };
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => TapError::NoPermission { what: "enter a network namespace" },
        _ => TapError::NoNamespace { name: namespace.clone(), source },
    };
    port::in_namespace(namespace, || open_here(options)).map_err(failed)?
}

fn check(options: &TapOptions) -> Result<(), TapError> {
    let bad = |what| Err(TapError::BadOption { what });
    if !(1..=QUEUES_MAX).contains(&options.queues) {
        return bad("queues must be 1 to 256");
    }
    if !MTU_RANGE.contains(&options.mtu) {
        return bad("the MTU must be 576 to 65521");
    }
    if options.gso && !options.checksum {
        return bad("segmentation offload needs checksum offload");
    }
    if options.mac.is_some_and(|mac| mac[0] & 1 == 1 || mac == [0; 6]) {
        return bad("the MAC must be an address of one station");
    }
    if options.host_v4.is_some_and(|(_, prefix)| prefix > 32) {
        return bad("an IPv4 prefix length must be 0 to 32");
    }
    if options.host_v6.is_some_and(|(_, prefix)| prefix > 128) {
        return bad("an IPv6 prefix length must be 0 to 128");
    }
    if options.host_v6.is_some() && options.mtu < 1280 {
        return bad("IPv6 needs an MTU of at least 1280 (RFC 8200 section 5)");
    }
    Ok(())
}

fn open_here(options: &TapOptions) -> Result<Tap, TapError> {
    let bad_name = || TapError::BadName { name: options.name.clone() };
    let wanted = Name::new(&options.name).ok_or_else(bad_name)?;
    let first = open_device()?;
    let name = attach_first(&first, wanted, options)?;
    let text = name.text();
    let refused = |what| move |source| (what, source);
    let set_up = || -> Result<Tap, (&'static str, io::Error)> {
        let mut descriptors = vec![first];
        for _ in 1..options.queues {
            let fd = open_device().map_err(|e| ("open another queue", io::Error::other(e)))?;
            sys::attach(fd.as_fd(), name, true, false).map_err(refused("attach another queue"))?;
            descriptors.push(fd);
        }
        let tun = descriptors[0].as_fd();
        sys::set_header(tun, VNET_HEADER_LEN as i32).map_err(refused("set the virtio header"))?;
        sys::set_offload(tun, options.checksum, options.gso).map_err(refused("set the offloads"))?;
        sys::set_persist(tun, options.persist).map_err(refused("set the persistence"))?;
        let interface = Interface::new(name).map_err(refused("open a control socket"))?;
        configure(&interface, &text, options)?;
        let mac = match options.mac {
            Some(mac) => mac,
            None => port::random_mac().map_err(refused("choose a random MAC"))?,
        };
        let capabilities = capabilities(options, mac);
        let table = options.table.as_ref().filter(|_| options.queues > 1);
        let steering = table.map(|table| TapSteering::new(tun, table)).transpose();
        let most = usize::from(QUEUE_LEN);
        let queue = |(index, fd)| VnetQueue::new(fd, capabilities, index).with_frames_most(most);
        Ok(Tap {
            index: interface.index().map_err(refused("read the index"))?,
            host_mac: interface.mac().map_err(refused("read the MAC"))?,
            name: text.clone(),
            mac,
            queues: (0..).zip(descriptors).map(queue).collect(),
            steering,
        })
    };
    set_up().map_err(|(what, source)| TapError::refused(&text, what, source))
}

fn open_device() -> Result<OwnedFd, TapError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => TapError::NoDevice,
        Errno::ACCESS | Errno::PERM => TapError::NoPermission { what: "open /dev/net/tun" },
        other => TapError::refused("(none yet)", "open the device /dev/net/tun", other.into()),
    })
}

fn attach_first(tun: &OwnedFd, wanted: Name, options: &TapOptions) -> Result<Name, TapError> {
    let multi_queue = options.queues > 1;
    let mut result = sys::attach(tun.as_fd(), wanted, multi_queue, true);
    let exists = matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EBUSY));
    if exists && options.persist {
        result = sys::attach(tun.as_fd(), wanted, multi_queue, false);
    }
    let name = options.name.clone();
    result.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => TapError::NameInUse { name },
        Some(libc::EINVAL) if exists => TapError::NotATap { name },
        Some(libc::EINVAL) => TapError::BadName { name },
        Some(libc::EPERM | libc::EACCES) => TapError::NoPermission { what: "make a TAP interface" },
        _ => TapError::refused(&name, "attach the first queue", error),
    })
}

fn configure(
    interface: &Interface,
    name: &str,
    options: &TapOptions,
) -> Result<(), (&'static str, io::Error)> {
    // Only two stations are on this link, and ours does not use the kernel's addresses: so these need no duplicate address detection, which
    // makes them tentative for a second. If the file is missing or read-only, they stay tentative.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0");
    interface.set_mtu(options.mtu).map_err(|e| ("set the MTU", e))?;
    interface.set_queue_len(QUEUE_LEN).map_err(|e| ("set the length of the queues", e))?;
    interface.set_up().map_err(|e| ("set the state", e))?;
    if let Some((address, prefix)) = options.host_v4 {
        interface.set_address_v4(address, prefix).map_err(|e| ("set the IPv4 address", e))?;
    }
    if let Some((address, prefix)) = options.host_v6 {
        interface.set_address_v6(address, prefix).map_err(|e| ("set the IPv6 address", e))?;
        wait_until_usable(name);
    }
    Ok(())
}

/// Waits until no IPv6 address of the interface is tentative. The kernel ends that in a work queue, soon if there is no detection of
/// duplicates; until then a `connect` fails with EADDRNOTAVAIL. Gives up after a moment: where detection goes on, the address comes later.
fn wait_until_usable(name: &str) {
    // The kernel's IFA_F_TENTATIVE, of the flags in hexadecimal, the fifth column; the name is the last.
    const TENTATIVE: u32 = 0x40;
    let is_tentative = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let flags = columns.get(4).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        columns.last() == Some(&name) && flags.is_some_and(|flags| flags & TENTATIVE != 0)
    };
    for _ in 0..100 {
        let Ok(all) = std::fs::read_to_string("/proc/thread-self/net/if_inet6") else { return };
        if !all.lines().any(is_tentative) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn capabilities(options: &TapOptions, mac: [u8; 6]) -> Capabilities {
    let plain = Capabilities::plain(options.mtu, mac);
    let offloads = match (options.checksum, options.gso) {
        (_, true) => plain.with_tso(),
        (true, false) => plain.with_checksum(),
        (false, false) => plain,
    };
    // Unless it is steered, Linux sends a flow's frames to the queue from which the flow's last frame came, and new flows by hash.
    Capabilities { queues: options.queues, rss: options.queues > 1, ..offloads }
}
