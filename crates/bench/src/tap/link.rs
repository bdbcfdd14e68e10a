//! Two kernels joined by a link: two TAPs and a forwarder, or veth.

use super::forwarder::{self, End, Orders, Ready};
use super::namespace::{Namespace, ip};
use crate::peer::Peer;
use std::net::Ipv4Addr;

/// The interface's name in each namespace.
pub const INTERFACE: &str = "bench0";

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 78, 0, 1), Ipv4Addr::new(10, 78, 0, 2)];

/// The type of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Two TAPs and a forwarder, with checksum and segmentation offload.
    TapOffloads,
    /// Two TAPs and a forwarder, without offloads.
    TapPlain,
    /// A veth pair with the kernel's defaults: all offloads.
    Veth,
}

impl Kind {
    /// The system's name in results.
    pub fn system(self) -> &'static str {
        match self {
            Self::TapOffloads | Self::TapPlain => "kernel-tap",
            Self::Veth => "kernel-veth",
        }
    }
}

/// A link and the namespaces of its two ends.
#[derive(Debug)]
pub struct Link {
    /// The network namespaces of the two ends.
    pub namespaces: [Namespace; 2],
    /// The addresses of the two ends.
    pub addresses: [Ipv4Addr; 2],
    forwarder: Option<Peer>,
}

impl Link {
    /// Makes a link; both addresses are the kernels'.
    ///
    /// # Errors
    /// When the user is not root, or `ip` or `/dev/net/tun` is missing.
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

    /// Makes a veth link. Where `services` is true, the end is for a service: the kernel does not get the end's address.
    ///
    /// # Errors
    /// When the user is not root, or `ip` is missing.
    pub fn veth_for(services: [bool; 2]) -> anyhow::Result<Self> {
        let namespaces = [Namespace::new()?, Namespace::new()?];
        veth(&namespaces, [0, 1].map(|i| (!services[i]).then_some(ADDRESSES[i])))?;
        Ok(Self { namespaces, addresses: ADDRESSES, forwarder: None })
    }

    /// The ids of the processes that forward the link's packets.
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
