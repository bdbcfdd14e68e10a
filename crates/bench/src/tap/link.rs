//! Two kernels joined by a link: two TAPs and a forwarder, or veth.

use super::forwarder::{self, End, Orders, Ready};
use super::namespace::{Namespace, ip};
use crate::peer::Peer;
use std::net::Ipv4Addr;

/// The interface's name in each namespace.
pub const INTERFACE: &str = "bench0";

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 78, 0, 1), Ipv4Addr::new(10, 78, 0, 2)];

/// How the two are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Two TAPs and a forwarder, checksum and segmentation offload on.
    TapOffloads,
    /// Two TAPs and a forwarder, no offloads.
    TapPlain,
    /// veth, as the kernel sets it up, with all offloads.
    Veth,
}

impl Kind {
    /// As systems are called in results.
    pub fn system(self) -> &'static str {
        match self {
            Self::TapOffloads | Self::TapPlain => "kernel-tap",
            Self::Veth => "kernel-veth",
        }
    }
}

/// The link and its two ends.
#[derive(Debug)]
pub struct Link {
    /// The ends.
    pub namespaces: [Namespace; 2],
    /// Their addresses.
    pub addresses: [Ipv4Addr; 2],
    forwarder: Option<Peer>,
}

impl Link {
    /// Makes it.
    ///
    /// # Errors
    /// Without root, `ip` or `/dev/net/tun`.
    pub fn new(kind: Kind) -> anyhow::Result<Self> {
        let namespaces = [Namespace::new()?, Namespace::new()?];
        let addresses = ADDRESSES;
        let forwarder = match kind {
            Kind::Veth => {
                veth(&namespaces, addresses.map(Some))?;
                None
            }
            Kind::TapOffloads | Kind::TapPlain => {
                let end =
                    |i: usize| End { namespace: namespaces[i].name().to_owned(), address: addresses[i] };
                let peer = Peer::start(forwarder::ROLE)?;
                let offloads = kind == Kind::TapOffloads;
                peer.send(&Orders { ends: [end(0), end(1)], offloads }, &[])?;
                peer.receive::<Ready>()?;
                Some(peer)
            }
        };
        Ok(Self { namespaces, addresses, forwarder })
    }

    /// veth, of which the ends that are marked are services': their addresses are not the kernel's there.
    ///
    /// # Errors
    /// Without root or `ip`.
    pub fn veth_for(services: [bool; 2]) -> anyhow::Result<Self> {
        let namespaces = [Namespace::new()?, Namespace::new()?];
        veth(&namespaces, [0, 1].map(|i| (!services[i]).then_some(ADDRESSES[i])))?;
        Ok(Self { namespaces, addresses: ADDRESSES, forwarder: None })
    }

    /// The processes that the link itself needs.
    pub fn pids(&self) -> Vec<u32> {
        self.forwarder.iter().map(Peer::pid).collect()
    }
}

fn veth(namespaces: &[Namespace; 2], addresses: [Option<Ipv4Addr>; 2]) -> anyhow::Result<()> {
    let [a, b] = [namespaces[0].name(), namespaces[1].name()];
    ip(&["-n", a, "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", b])?;
    for (namespace, address) in [a, b].into_iter().zip(addresses) {
        if let Some(address) = address {
            ip(&["-n", namespace, "address", "add", &format!("{address}/24"), "dev", INTERFACE])?;
        }
        ip(&["-n", namespace, "link", "set", INTERFACE, "up"])?;
    }
    Ok(())
}
