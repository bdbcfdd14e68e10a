//! A switch with routes: it sends IPv4 packets on by prefix, over several links by a hash of the flow (ECMP, RFC 2992), and answers every ARP
//! request with its own address, so that machines use it as their gateway. It has no addresses, does not count hops, and knows no IPv6.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The Ethernet address of all routers: their links have two ends, so it names the one at the other end.
pub(crate) const MAC: [u8; 6] = [2, 0xFF, 0, 0, 0, 0];

const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
/// Length of an ARP request in an Ethernet frame.
const ARP_LEN: usize = 42;

/// A machine at a port, as the last hop needs it.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    cable: usize,
    mac: [u8; 6],
}

/// The ports towards a prefix.
#[derive(Debug)]
struct Prefix {
    net: u32,
    mask: u32,
    cables: Vec<usize>,
}

/// What becomes of a frame.
#[derive(Debug)]
pub(crate) enum Way {
    /// The frame, changed if need be, leaves by this cable.
    By(usize),
    /// The frame has become the answer, and goes back to where it came from.
    Back,
    /// No route leads there.
    Nowhere,
}

/// A router; see the module.
#[derive(Debug)]
pub(crate) struct Router {
    seed: u64,
    neighbours: BTreeMap<u32, Neighbour>,
    /// Routes to networks, those with the longest prefix first.
    prefixes: Vec<Prefix>,
    pub(crate) ports: Vec<usize>,
}

impl Router {
    /// A router without routes. Routers with the same `seed` choose alike among their links.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, neighbours: BTreeMap::new(), prefixes: Vec::new(), ports: Vec::new() }
    }

    /// The machine with address `addr` is at the end of `cable`.
    pub(crate) fn add_neighbour(&mut self, addr: Ipv4Addr, cable: usize, mac: [u8; 6]) {
        self.neighbours.insert(addr.to_bits(), Neighbour { cable, mac });
    }

    /// One of the ways to a prefix of `len` bits is `cable`.
    pub(crate) fn add_route(&mut self, net: Ipv4Addr, len: u8, cable: usize) {
        let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
        let net = net.to_bits() & mask;
        if let Some(prefix) = self.prefixes.iter_mut().find(|p| (p.net, p.mask) == (net, mask)) {
            return prefix.cables.push(cable);
        }
        self.prefixes.push(Prefix { net, mask, cables: vec![cable] });
        self.prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.mask));
    }

    /// Decides about a frame, and changes its Ethernet addresses where necessary.
    pub(crate) fn decide(&self, frame: &mut [u8]) -> Way {
        match frame.get(12..14) {
            Some(kind) if kind == ARP => answer(frame),
            Some(kind) if kind == IPV4 => self.forward(frame),
            _ => Way::Nowhere,
        }
    }

    fn forward(&self, frame: &mut [u8]) -> Way {
        let Some(dst) = frame.get(30..34).and_then(|b| b.first_chunk()) else { return Way::Nowhere };
        let dst = u32::from_be_bytes(*dst);
        if let Some(neighbour) = self.neighbours.get(&dst) {
            frame[..6].copy_from_slice(&neighbour.mac);
            return Way::By(neighbour.cable);
        }
        let Some(prefix) = self.prefixes.iter().find(|prefix| dst & prefix.mask == prefix.net) else {
            return Way::Nowhere;
        };
        Way::By(match prefix.cables[..] {
            [cable] => cable,
            _ => prefix.cables[(self.hash(frame) % prefix.cables.len() as u64) as usize],
        })
    }

    /// The hash of a packet's addresses and ports: packets of one flow take one way, those of the other direction perhaps another.
    fn hash(&self, frame: &[u8]) -> u64 {
        let word = |at: usize| {
            frame.get(at..at + 4).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
        };
        let addresses = u64::from(word(26)) << 32 | u64::from(word(30));
        let mut seed = base::Seed::new(self.seed ^ addresses);
        let first = seed.next_u64();
        base::Seed::new(first ^ u64::from(word(34))).next_u64()
    }
}

/// Turns an ARP request (RFC 826) into its answer.
fn answer(frame: &mut [u8]) -> Way {
    if frame.len() < ARP_LEN || frame[20..22] != [0, 1] {
        return Way::Nowhere;
    }
    let (mut asker, mut asked) = ([0; 10], [0; 4]);
    asker.copy_from_slice(&frame[22..32]);
    asked.copy_from_slice(&frame[38..42]);
    // An announcement asks for its own address.
    if asker[6..] == asked {
        return Way::Nowhere;
    }
    frame[21] = 2;
    frame[22..28].copy_from_slice(&MAC);
    frame[28..32].copy_from_slice(&asked);
    frame[32..42].copy_from_slice(&asker);
    frame[..6].copy_from_slice(&asker[..6]);
    frame[6..12].copy_from_slice(&MAC);
    Way::Back
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(src: [u8; 4], dst: [u8; 4], port: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&IPV4);
        frame[26..30].copy_from_slice(&src);
        frame[30..34].copy_from_slice(&dst);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame
    }

    #[test]
    fn the_longest_prefix_leads_and_a_neighbour_gets_its_own_address() {
        let mut router = Router::new(1);
        router.add_route(Ipv4Addr::new(10, 0, 0, 0), 8, 1);
        router.add_route(Ipv4Addr::new(10, 1, 0, 0), 16, 2);
        router.add_neighbour(Ipv4Addr::new(10, 1, 0, 9), 3, [9; 6]);
        let way = |dst| {
            let mut frame = packet([10, 0, 0, 1], dst, 80);
            (router.decide(&mut frame), frame[0])
        };
        assert!(matches!(way([10, 7, 0, 1]), (Way::By(1), 0)));
        assert!(matches!(way([10, 1, 0, 8]), (Way::By(2), 0)));
        assert!(matches!(way([10, 1, 0, 9]), (Way::By(3), 9)));
        assert!(matches!(way([11, 1, 0, 9]), (Way::Nowhere, 0)));
    }

    #[test]
    fn flows_are_spread_and_each_keeps_its_way() {
        let mut router = Router::new(5);
        (0..4).for_each(|cable| router.add_route(Ipv4Addr::UNSPECIFIED, 0, cable));
        let mut counts = [0; 4];
        for port in 0..4_000 {
            let mut frame = packet([10, 0, 0, 1], [10, 0, 0, 2], port);
            let (Way::By(a), Way::By(b)) = (router.decide(&mut frame.clone()), router.decide(&mut frame))
            else {
                panic!("a way for every packet")
            };
            assert_eq!(a, b);
            counts[a] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }
}
