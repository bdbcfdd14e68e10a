//! Opens the configured port, with faults around it if tests ask for them, or a port without a network.

use crate::ServiceError;
use crate::config::values::{Cores, Mac, PortKind};
use crate::config::{Config, Link};
use crate::registry::scaling::first_table;
use base::Instant;
use port::{Batch, Capabilities, FaultRates, Faults, Lent, PacketBuf, Port, Stats, Steering, Wait};
use port_packet::{PacketError, PacketOptions};
use port_tap::{TapError, TapOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Default MTU of a TAP: Ethernet's usual one.
const TAP_MTU: u16 = 1500;

/// The queues of the port, one for each core.
pub struct Opened {
    /// The queues, in the order of the cores: perhaps fewer than the configuration has cores.
    pub queues: Vec<Box<dyn Port>>,
    /// Ethernet address of the service.
    pub mac: [u8; 6],
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// Description of the port for the banner.
    pub description: String,
    /// Has the port bring the frames of groups of flows to queues; `None`: there is one queue, or the port cannot.
    pub steering: Option<Box<dyn Steering>>,
    /// How frames come to the cores of their flows, in words.
    pub means: String,
}

/// A port without a network: no packet comes or goes.
#[derive(Debug)]
struct Nowhere;

impl Port for Nowhere {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(1500, [0; 6])
    }
    fn receive(&mut self, _batch: &mut Batch) -> usize {
        0
    }
    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        None
    }
    fn commit_with(&mut self, _payload: Lent<'_>) {}
    fn flush(&mut self) {}
    fn arm(&mut self) -> Wait {
        Wait::Readable
    }
    fn next_deadline(&self) -> Instant {
        Instant::NEVER
    }
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// Opens the port that the configuration names.
pub fn open(config: &Config) -> Result<Opened, ServiceError> {
    match config.port {
        PortKind::None => Ok(Opened {
            queues: (0..config.cores.most).map(|_| Box::new(Nowhere) as Box<dyn Port>).collect(),
            mac: [0; 6],
            mtu: TAP_MTU,
            description: "none; connections inside this host are accelerated, all others are the kernel's"
                .to_owned(),
            steering: None,
            means: ONE.to_owned(),
        }),
        PortKind::Tap => open_tap(config),
        PortKind::Packet => open_packet(config),
    }
}

fn open_tap(config: &Config) -> Result<Opened, ServiceError> {
    let link = &config.link;
    let host_v4 = link.host.iter().find_map(|n| match n.address {
        IpAddr::V4(a) => Some((a, n.prefix)),
        IpAddr::V6(_) => None,
    });
    let host_v6 = link.host.iter().find_map(|n| match n.address {
        IpAddr::V6(a) => Some((a, n.prefix)),
        IpAddr::V4(_) => None,
    });
    let options = TapOptions {
        name: link.name.clone(),
        queues: u16::from(config.cores.most),
        table: Some(first_table(config.cores)),
        checksum: link.checksum,
        gso: link.gso,
        mtu: link.mtu.unwrap_or(TAP_MTU),
        mac: link.mac.map(|mac| mac.0),
        persist: false,
        host_v4,
        host_v6,
        namespace: link.namespace.clone(),
    };
    // Before the link exists: the link brings the host's addresses with it.
    check_addresses(link)?;
    let mtu = options.mtu;
    let tap = port_tap::open(&options).map_err(|e| {
        let flag = if matches!(e, TapError::NoNamespace { .. }) { "--netns" } else { "--port tap" };
        ServiceError::Port(format!("{flag}: {e}"))
    })?;
    let description = describe(&format!("tap {}", tap.name), link, tap.mac);
    let queues = wrap(link, tap.queues);
    let opened = Opened { queues, mac: tap.mac, mtu, description, steering: None, means: ONE.to_owned() };
    Ok(opened.steered(config.cores, tap.steering))
}

fn open_packet(config: &Config) -> Result<Opened, ServiceError> {
    let link = &config.link;
    let options = PacketOptions {
        name: link.name.clone(),
        queues: u16::from(config.cores.most),
        table: first_table(config.cores),
        checksum: link.checksum,
        gso: link.gso,
        mtu: link.mtu,
        mac: link.mac.map(|mac| mac.0),
        addresses: link.own.iter().map(|n| n.address).collect(),
        everything: false,
        namespace: link.namespace.clone(),
    };
    check_addresses(link)?;
    let interface = port_packet::open(&options).map_err(|e| {
        let flag = match e {
            PacketError::NoNamespace { .. } => "--netns".to_owned(),
            // All other options were checked with the configuration.
            PacketError::BadOption { .. } => "--mtu".to_owned(),
            _ => format!("--port packet:{}", link.name),
        };
        ServiceError::Port(format!("{flag}: {e}"))
    })?;
    let description = describe(&format!("packet {}", interface.name), link, interface.mac);
    let (mac, mtu) = (interface.mac, interface.mtu);
    let queues = wrap(link, interface.queues);
    let opened = Opened { queues, mac, mtu, description, steering: None, means: ONE.to_owned() };
    Ok(opened.steered(config.cores, interface.steering))
}

/// How frames come to cores where there is one queue.
const ONE: &str = "one queue";

impl Opened {
    /// The port with the steering that it has. A refusal is no error: the cores, if their number was asked for, hand frames on. That costs more than
    /// cores that come and go by themselves are worth: with `auto` there is one.
    fn steered<S: Steering + 'static>(mut self, cores: Cores, steering: io::Result<Option<S>>) -> Self {
        let error = match steering {
            Ok(None) => return self,
            Ok(Some(steering)) => {
                let means = steering.means().to_owned();
                return Self { steering: Some(Box::new(steering)), means, ..self };
            }
            Err(error) => error,
        };
        let lacks = if error.kind() == io::ErrorKind::PermissionDenied { "; it needs CAP_BPF" } else { "" };
        let why = format!("the port is not steered by groups of flows ({error}{lacks})");
        let means = if cores.is_auto {
            self.queues.truncate(1);
            tracing::warn!("{why}: one core serves all flows");
            format!("one queue, and one core serves all flows: {why}")
        } else {
            tracing::warn!("{why}: cores hand packets on");
            format!("what the kernel chooses, and cores hand packets on: {why}")
        };
        Self { means, ..self }
    }
}

fn check_addresses(link: &Link) -> Result<(), ServiceError> {
    let Some(taken) = taken_by_host(link) else { return Ok(()) };
    Err(ServiceError::Port(format!(
        "--address: {taken} is the host's own already: give the service another address of the link"
    )))
}

fn describe(port: &str, link: &Link, mac: [u8; 6]) -> String {
    let offloads = match (link.checksum, link.gso) {
        (true, true) => "checksum and segmentation offload",
        (true, false) => "checksum offload",
        _ => "no offloads",
    };
    let own: Vec<String> = link.own.iter().map(|n| String::from(*n)).collect();
    format!("{port}, {} at {}, {offloads}", own.join(" and "), Mac(mac))
}

/// Puts the faults that the configuration asks for around each queue.
fn wrap<P: Port + 'static>(link: &Link, queues: Vec<P>) -> Vec<Box<dyn Port>> {
    let rates = FaultRates {
        loss: link.loss.0,
        reorder: link.reorder.0,
        duplicate: link.duplicate.0,
        corrupt: link.corrupt.0,
        truncate: link.truncate.0,
        ..FaultRates::NONE
    };
    let wrap = |(index, queue)| -> Box<dyn Port> {
        if rates == FaultRates::NONE {
            return Box::new(queue);
        }
        Box::new(Faults::new(queue, link.seed ^ index, rates, rates))
    };
    (0..).zip(queues).map(wrap).collect()
}

/// The first of the service's addresses that the host has on an interface in the link's network namespace. The kernel would keep packets to
/// it for itself.
fn taken_by_host(link: &Link) -> Option<IpAddr> {
    let first = || link.own.iter().map(|n| n.address).find(|address| is_of_host(*address));
    let Some(namespace) = &link.namespace else { return first() };
    // The port reports a namespace that cannot be entered.
    port::in_namespace(namespace, first).ok().flatten()
}

/// Asks the kernel's routes, without sending: the kernel sends to an address of its own from that same address, and to any other address
/// from a different one.
fn is_of_host(address: IpAddr) -> bool {
    let any = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let Ok(socket) = UdpSocket::bind((any, 0)) else { return false };
    address.is_loopback()
        || socket.connect((address, 9)).is_ok() && socket.local_addr().is_ok_and(|own| own.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_host_are_known() {
        assert!(is_of_host(Ipv4Addr::LOCALHOST.into()) && is_of_host(Ipv4Addr::new(127, 9, 9, 9).into()));
        // No host has addresses of TEST-NET-1 (RFC 5737) or of the documentation prefix (RFC 3849).
        assert!(!is_of_host(Ipv4Addr::new(192, 0, 2, 77).into()));
        assert!(!is_of_host("2001:db8::77".parse().unwrap()));
    }
}
