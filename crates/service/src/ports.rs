//! The port the service was told to use: opened, wrapped, or none at all.

use crate::ServiceError;
use crate::config::{Config, PortKind};
use crate::values::Mac;
use base::Instant;
use port::{Batch, Capabilities, FaultRates, Faults, PacketBuf, Port, Stats, Wait};
use port_tap::TapOptions;
use std::net::IpAddr;

/// The queues of the port, one for each core.
pub struct Opened {
    /// In the order of the cores.
    pub queues: Vec<Box<dyn Port>>,
    /// Our Ethernet address.
    pub mac: [u8; 6],
    /// For the banner.
    pub description: String,
}

/// No network: nothing comes, nothing goes.
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
    fn commit(&mut self) {}
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

/// Opens what the configuration names.
pub fn open(config: &Config) -> Result<Opened, ServiceError> {
    match config.port {
        PortKind::None => Ok(Opened {
            queues: (0..config.cores).map(|_| Box::new(Nowhere) as Box<dyn Port>).collect(),
            mac: [0; 6],
            description: "none; connections inside this host are accelerated, all others are the kernel's"
                .to_owned(),
        }),
        PortKind::Tap => open_tap(config),
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
        queues: u16::from(config.cores),
        checksum: link.checksum,
        gso: link.gso,
        mtu: link.mtu,
        mac: link.mac.map(|mac| mac.0),
        persist: false,
        host_v4,
        host_v6,
        namespace: link.namespace.clone(),
    };
    let tap = port_tap::open(&options).map_err(|e| ServiceError::Port(e.to_string()))?;
    let offloads = match (link.checksum, link.gso) {
        (true, true) => "checksum and segmentation offload",
        (true, false) => "checksum offload",
        _ => "no offloads",
    };
    let own: Vec<String> = link.own.iter().map(|n| String::from(*n)).collect();
    let mac = Mac(tap.mac);
    let description = format!("tap {}, {} at {mac}, {offloads}", tap.name, own.join(" and "));
    let rates = FaultRates {
        loss: link.loss.0,
        reorder: link.reorder.0,
        duplicate: link.duplicate.0,
        ..FaultRates::NONE
    };
    let wrap = |(index, queue)| -> Box<dyn Port> {
        if rates == FaultRates::NONE {
            return Box::new(queue);
        }
        Box::new(Faults::new(queue, link.seed ^ index, rates, rates))
    };
    Ok(Opened { queues: (0..).zip(tap.queues).map(wrap).collect(), mac: tap.mac, description })
}
