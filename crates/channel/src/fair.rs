//! A bounded number of things of peers, shared fairly: when there are too many, the network with the most of them loses its oldest one.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BTreeMap, VecDeque};

/// The addresses that count as one peer's: one address of IPv4, or a network of 64 bits of IPv6, of which a host has as many addresses as it
/// likes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Network(IpAddr);

impl Network {
    fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// What the addresses of a network have. No queue is empty.
#[derive(Debug)]
struct Held<T> {
    len: usize,
    /// Things by the number of their arrival, the oldest first.
    by_address: BTreeMap<IpAddr, VecDeque<(u64, T)>>,
}

impl<T> Held<T> {
    fn oldest(&self) -> Option<u64> {
        self.by_address.values().filter_map(|queue| queue.front()).map(|(order, _)| *order).min()
    }

    /// The address with the most things; of several the one with the oldest thing.
    fn largest(&self) -> Option<IpAddr> {
        let key = |queue: &VecDeque<(u64, T)>| (queue.len(), Reverse(queue.front().map(|(order, _)| *order)));
        self.by_address.iter().max_by_key(|(_, queue)| key(queue)).map(|(address, _)| *address)
    }
}

/// At most so many things of all peers, and of one address.
#[derive(Debug)]
pub(crate) struct Fair<T> {
    most: usize,
    most_of_address: usize,
    len: usize,
    arrivals: u64,
    networks: BTreeMap<Network, Held<T>>,
}

impl<T: PartialEq> Fair<T> {
    /// Room for `most` things, and for `most_of_address` of one address. Both are at least 1.
    pub const fn new(most: usize, most_of_address: usize) -> Self {
        Self { most, most_of_address, len: 0, arrivals: 0, networks: BTreeMap::new() }
    }

    /// How many things there are.
    #[cfg(test)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True when the address has something.
    pub fn has(&self, address: IpAddr) -> bool {
        self.networks.get(&Network::of(address)).is_some_and(|held| held.by_address.contains_key(&address))
    }

    /// Adds a thing, and returns the one that loses its place to it, if there is no room: the oldest of the same address, if that has too many;
    /// else the oldest of the address with the most in the network with the most. The thing that has just come is never the one, as long as
    /// anything else is there.
    pub fn push(&mut self, address: IpAddr, thing: T) -> Option<T> {
        let network = Network::of(address);
        self.arrivals += 1;
        self.len += 1;
        let held =
            self.networks.entry(network).or_insert_with(|| Held { len: 0, by_address: BTreeMap::new() });
        held.len += 1;
        let queue = held.by_address.entry(address).or_default();
        queue.push_back((self.arrivals, thing));
        if queue.len() > self.most_of_address {
            return self.take(network, address, 0);
        }
        if self.len <= self.most {
            return None;
        }
        let largest = self.networks.iter().max_by_key(|(_, held)| (held.len, Reverse(held.oldest())));
        let (network, address) = largest.and_then(|(network, held)| Some((*network, held.largest()?)))?;
        self.take(network, address, 0)
    }

    /// Removes a thing of that address; false: it is not there.
    pub fn remove(&mut self, address: IpAddr, thing: &T) -> bool {
        let network = Network::of(address);
        let queue = self.networks.get(&network).and_then(|held| held.by_address.get(&address));
        let at = queue.and_then(|queue| queue.iter().position(|(_, other)| other == thing));
        at.and_then(|at| self.take(network, address, at)).is_some()
    }

    fn take(&mut self, network: Network, address: IpAddr, at: usize) -> Option<T> {
        let held = self.networks.get_mut(&network)?;
        let queue = held.by_address.get_mut(&address)?;
        let (_, thing) = queue.remove(at)?;
        held.len -= 1;
        self.len -= 1;
        if queue.is_empty() {
            held.by_address.remove(&address);
        }
        if held.len == 0 {
            self.networks.remove(&network);
        }
        Some(thing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;

    fn v4(host: u32) -> IpAddr {
        IpAddr::from((0x0A00_0000 + host).to_be_bytes())
    }

    fn v6(network: u16, host: u16) -> IpAddr {
        IpAddr::from([0x2001, 0xDB8, 0, network, 0, 0, 0, host])
    }

    #[test]
    fn the_network_with_the_most_loses_its_oldest_and_a_single_one_stays() {
        let mut fair = Fair::new(6, 4);
        assert_eq!(fair.push(v4(1), 10), None);
        for (host, thing) in [(1, 20), (2, 21), (2, 22), (3, 23), (4, 24)] {
            assert_eq!(fair.push(v6(7, host), thing), None);
        }
        assert_eq!(fair.push(v4(2), 30), Some(21), "of the network with the most the address with the most");
        assert_eq!(fair.push(v6(7, 5), 25), Some(20), "then all have one: the oldest");
        assert_eq!(fair.push(v4(3), 31), Some(22));
        assert_eq!(fair.push(v4(4), 32), Some(23));
        assert_eq!(fair.push(v4(5), 33), Some(24));
        assert_eq!(fair.push(v4(6), 34), Some(10), "all networks have one: the oldest of all");
        assert_eq!(
            (fair.len(), fair.has(v4(1)), fair.has(v6(7, 5)), fair.has(v6(7, 4))),
            (6, false, true, false)
        );
    }

    #[test]
    fn an_address_with_too_many_loses_its_own_oldest() {
        let mut fair = Fair::new(100, 2);
        assert_eq!([1, 2, 3, 4].map(|thing| fair.push(v4(1), thing)), [None, None, Some(1), Some(2)]);
        assert!(fair.remove(v4(1), &4) && !fair.remove(v4(1), &4) && !fair.remove(v4(2), &3));
        assert_eq!((fair.len(), fair.has(v4(1))), (1, true));
        assert!(fair.remove(v4(1), &3) && !fair.has(v4(1)));
        assert!(fair.networks.is_empty());
    }

    /// Against a list of all things: what goes is always of the network that had the most, and the counts are right.
    #[test]
    fn random_comings_and_goings() {
        for number in 0..200 {
            let (mut seed, mut list) = (Seed::new(number), Vec::<(IpAddr, u64)>::new());
            let (most, each) = (1 + seed.below(20) as usize, 1 + seed.below(5) as usize);
            let mut fair = Fair::new(most, each);
            for thing in 0..400 {
                let host = seed.below(6) as u16;
                let address = if seed.chance(500_000) { v4(host.into()) } else { v6(host % 2, host) };
                if seed.chance(200_000) && !list.is_empty() {
                    let (address, thing) = list.remove(seed.below(list.len() as u64) as usize);
                    assert!(fair.remove(address, &thing));
                    continue;
                }
                list.push((address, thing));
                let of_network = |list: &[(IpAddr, u64)], one: IpAddr| {
                    list.iter().filter(|(other, _)| Network::of(*other) == Network::of(one)).count()
                };
                let largest = list.iter().map(|(one, _)| of_network(&list, *one)).max();
                let of_address = list.iter().filter(|(other, _)| *other == address).count();
                let lost = fair.push(address, thing);
                assert_eq!(lost.is_some(), of_address > each || list.len() > most, "seed {number}");
                if let Some(lost) = lost {
                    let at = list.iter().position(|(_, other)| *other == lost).unwrap();
                    let (loser, _) = list[at];
                    assert!(lost != thing || list.len() == 1, "seed {number}");
                    assert!(
                        if of_address > each {
                            loser == address
                        } else {
                            Some(of_network(&list, loser)) == largest
                        },
                        "seed {number}"
                    );
                    assert_eq!(list.iter().position(|(other, _)| *other == loser), Some(at), "its oldest");
                    list.remove(at);
                }
                assert_eq!(fair.len(), list.len());
                assert!(list.iter().all(|(address, _)| fair.has(*address)));
            }
        }
    }
}
