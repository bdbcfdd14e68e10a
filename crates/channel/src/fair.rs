//! A bounded number of places that peers share fairly. When all are taken, the network that has the most of them loses one, chosen by lot, so
//! that no peer can choose which.

use base::Seed;
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
    /// The things of each address; the last one came last.
    by_address: BTreeMap<IpAddr, VecDeque<Item<T>>>,
}

#[derive(Debug)]
struct Item<T> {
    thing: T,
    is_silent: bool,
}

/// Where a thing is: its address, and its place there.
type At = (IpAddr, usize);

impl<T> Held<T> {
    /// Things of the addresses with the most things.
    fn of_largest(&self) -> impl Iterator<Item = (At, bool)> {
        let most = self.by_address.values().map(VecDeque::len).max();
        let largest = self.by_address.iter().filter(move |(_, queue)| Some(queue.len()) == most);
        largest.flat_map(|(address, queue)| things(*address, queue))
    }
}

/// Where each thing of an address is, and whether it is silent.
fn things<T>(address: IpAddr, queue: &VecDeque<Item<T>>) -> impl Iterator<Item = (At, bool)> {
    queue.iter().enumerate().map(move |(at, item)| ((address, at), item.is_silent))
}

/// At most so many things of all peers, and of one address.
#[derive(Debug)]
pub(crate) struct Fair<T> {
    most: usize,
    most_of_address: usize,
    len: usize,
    seed: Seed,
    networks: BTreeMap<Network, Held<T>>,
}

impl<T: PartialEq> Fair<T> {
    /// Room for `most` things, and for `most_of_address` of one address. Both are at least 1. `seed` decides the lots.
    pub const fn new(most: usize, most_of_address: usize, seed: Seed) -> Self {
        Self { most, most_of_address, len: 0, seed, networks: BTreeMap::new() }
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

    /// Adds a thing, silent at first, and returns the one that loses its place to it, if there is no room: one of the same address, if that has too
    /// many; else one of the addresses with the most in the networks with the most. Of those it is a silent one if there is any, and it is drawn by
    /// lot: of the oldest, or any other that can be foreseen, an enemy could make sure. The thing that has just come is never the one, as long as
    /// anything else is there.
    pub fn push(&mut self, address: IpAddr, thing: T) -> Option<T> {
        let network = Network::of(address);
        self.len += 1;
        let held =
            self.networks.entry(network).or_insert_with(|| Held { len: 0, by_address: BTreeMap::new() });
        held.len += 1;
        let queue = held.by_address.entry(address).or_default();
        queue.push_back(Item { thing, is_silent: true });
        let newest = (address, queue.len() - 1);
        let (address, at) = if queue.len() > self.most_of_address {
            draw(&mut self.seed, || things(address, queue), newest)?
        } else if self.len > self.most {
            let most = self.networks.values().map(|held| held.len).max();
            let largest = || self.networks.values().filter(|held| Some(held.len) == most);
            draw(&mut self.seed, || largest().flat_map(Held::of_largest), newest)?
        } else {
            return None;
        };
        self.take(Network::of(address), address, at)
    }

    /// A thing of that address is silent no more.
    pub fn has_spoken(&mut self, address: IpAddr, thing: &T) {
        let held = self.networks.get_mut(&Network::of(address));
        let queue = held.and_then(|held| held.by_address.get_mut(&address));
        let item = queue.and_then(|queue| queue.iter_mut().find(|item| item.thing == *thing));
        if let Some(item) = item {
            item.is_silent = false;
        }
    }

    /// Removes a thing of that address; false: it is not there.
    pub fn remove(&mut self, address: IpAddr, thing: &T) -> bool {
        let network = Network::of(address);
        let queue = self.networks.get(&network).and_then(|held| held.by_address.get(&address));
        let at = queue.and_then(|queue| queue.iter().position(|item| item.thing == *thing));
        at.and_then(|at| self.take(network, address, at)).is_some()
    }

    fn take(&mut self, network: Network, address: IpAddr, at: usize) -> Option<T> {
        let held = self.networks.get_mut(&network)?;
        let queue = held.by_address.get_mut(&address)?;
        let Item { thing, .. } = queue.remove(at)?;
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

/// Draws one of the things, but not `newest`: a silent one, if there is any.
fn draw<I: Iterator<Item = (At, bool)>>(seed: &mut Seed, things: impl Fn() -> I, newest: At) -> Option<At> {
    let others = || things().filter(|(at, _)| *at != newest);
    let silent = others().filter(|(_, is_silent)| *is_silent).count();
    let count = if silent > 0 { silent } else { others().count() };
    let number = seed.below(count as u64) as usize;
    let drawn = others().filter(|(_, is_silent)| *is_silent || silent == 0).nth(number);
    drawn.map(|(at, _)| at)
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

    fn fair(most: usize, each: usize) -> Fair<u64> {
        Fair::new(most, each, Seed::new(3))
    }

    #[test]
    fn the_network_with_the_most_loses_one_of_the_address_with_the_most() {
        let mut fair = fair(6, 4);
        assert_eq!(fair.push(v4(1), 10), None);
        for (host, thing) in [(1, 20), (2, 21), (2, 22), (3, 23), (4, 24)] {
            assert_eq!(fair.push(v6(7, host), thing), None);
        }
        let lost = fair.push(v4(2), 30);
        assert!(lost == Some(21) || lost == Some(22), "{lost:?}");
        for host in 3..6 {
            let lost = fair.push(v4(host), 31);
            assert!(
                lost.is_some_and(|lost| (20..30).contains(&lost)),
                "{lost:?}: the network has more than the others"
            );
        }
        assert!(fair.len() == 6 && fair.has(v4(1)) && fair.has(v4(5)));
        assert!(fair.push(v4(6), 34).is_some_and(|lost| lost != 34), "all networks have one: another one's");
    }

    #[test]
    fn a_silent_one_goes_first_and_of_several_nobody_knows_which() {
        let mut lost = Vec::new();
        for number in 0..200 {
            let mut fair = Fair::new(100, 8, Seed::new(number));
            (0..8).for_each(|thing| assert_eq!(fair.push(v4(1), thing), None));
            [0, 1, 2, 4, 6].iter().for_each(|thing| fair.has_spoken(v4(1), thing));
            let silent = [8, 9, 10].map(|thing| fair.push(v4(1), thing).unwrap());
            assert!(silent.iter().all(|thing| ![0, 1, 2, 4, 6].contains(thing)), "{silent:?}");
            (0..20).for_each(|thing| fair.has_spoken(v4(1), &thing));
            lost.push(fair.push(v4(1), 11).unwrap());
        }
        for thing in [0, 1, 2, 4, 6] {
            let times = lost.iter().filter(|lost| **lost == thing).count();
            assert!((10..40).contains(&times), "{thing}: {times} of 200, and one in eight is meant");
        }
    }

    #[test]
    fn an_address_with_too_many_loses_one_of_its_own() {
        let mut fair = fair(100, 2);
        let lost = [1, 2].map(|thing| fair.push(v4(1), thing));
        assert_eq!(lost, [None, None]);
        fair.has_spoken(v4(1), &2);
        assert_eq!(fair.push(v4(1), 3), Some(1));
        fair.has_spoken(v4(1), &3);
        let lost = fair.push(v4(1), 4);
        assert!(lost == Some(2) || lost == Some(3), "{lost:?}");
        let left = if lost == Some(2) { 3 } else { 2 };
        assert!(fair.remove(v4(1), &4) && !fair.remove(v4(1), &4) && !fair.remove(v4(2), &left));
        assert_eq!((fair.len(), fair.has(v4(1))), (1, true));
        assert!(fair.remove(v4(1), &left) && !fair.has(v4(1)));
        assert!(fair.networks.is_empty());
    }

    /// Against a list of all things: what goes is always of the network that had the most, and the counts are right.
    #[test]
    fn random_comings_and_goings() {
        for number in 0..200 {
            let (mut seed, mut list) = (Seed::new(number), Vec::<(IpAddr, u64)>::new());
            let (most, each) = (1 + seed.below(20) as usize, 1 + seed.below(5) as usize);
            let mut fair = Fair::new(most, each, Seed::new(number));
            let mut spoken = std::collections::BTreeSet::new();
            for thing in 0..400 {
                let host = seed.below(6) as u16;
                let address = if seed.chance(500_000) { v4(host.into()) } else { v6(host % 2, host) };
                if seed.chance(200_000) && !list.is_empty() {
                    let (address, thing) = list.remove(seed.below(list.len() as u64) as usize);
                    assert!(fair.remove(address, &thing));
                    continue;
                }
                if seed.chance(300_000) && !list.is_empty() {
                    let (address, thing) = list[seed.below(list.len() as u64) as usize];
                    fair.has_spoken(address, &thing);
                    spoken.insert(thing);
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
                    let silent = list
                        .iter()
                        .filter(|(other, one)| *other == loser && *one != thing && !spoken.contains(one));
                    assert!(
                        !spoken.contains(&lost) || silent.count() == 0,
                        "seed {number}: a silent one first"
                    );
                    list.remove(at);
                }
                assert_eq!(fair.len(), list.len());
                assert!(list.iter().all(|(address, _)| fair.has(*address)));
            }
        }
    }
}
