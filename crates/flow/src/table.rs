//! The hash table from a packet's addresses to its flow: a bucket per cache line, lock-free for the cores that look up.
//!
//! ```text
//!   bucket (64 bytes):  entry[7]: hash (bits 32..64) | flow id + 1 (bits 0..32), 0 = free
//!                       passed: entries that belong here or before and live in a later bucket
//! ```
//! The slow path is the only writer. An entry is one word, so a reader sees all of it or nothing. A reader that finds a match compares
//! the addresses in the record, under its lock, because the record may serve another flow by now.

use crate::FlowId;
use crate::cell::prefetch;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use siphasher::sip::SipHasher13;
use wire::FourTuple;

const ENTRIES: usize = 7;
/// Buckets searched after the first. At a load of at most 4/7 an entry does not lie farther away in practice.
const REACH: usize = 16;

#[repr(C, align(64))]
struct Bucket {
    entries: [AtomicU64; ENTRIES],
    passed: AtomicU64,
}

/// Number of counters for peer addresses.
pub const PEERS: usize = 1 << 10;

const _: () = assert!(size_of::<Bucket>() == 64);

/// Hash table from addresses to flows.
pub struct FlowTable {
    buckets: Box<[Bucket]>,
    mask: usize,
    keys: [u64; 2],
    hasher: SipHasher13,
}

impl core::fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FlowTable").field("buckets", &self.buckets.len()).finish_non_exhaustive()
    }
}

impl FlowTable {
    /// An empty table for `flows` flows, hashed with secret `keys`.
    // SETUP: called once when the service starts.
    #[must_use]
    pub fn new(flows: u32, keys: [u64; 2]) -> Self {
        // At most four flows per bucket of seven entries, on average.
        let buckets = (flows as usize).div_ceil(4).next_power_of_two().max(2);
        let bucket = || Bucket { entries: Default::default(), passed: AtomicU64::new(0) };
        Self {
            buckets: (0..buckets).map(|_| bucket()).collect(),
            mask: buckets - 1,
            keys,
            hasher: SipHasher13::new_with_keys(keys[0], keys[1]),
        }
    }

    /// The keyed hash of a received packet's tuple (source = peer, destination = us).
    #[must_use]
    #[inline]
    pub fn hash(&self, tuple: &FourTuple) -> u64 {
        let ports = (u32::from(tuple.src.port) << 16 | u32::from(tuple.dst.port)).to_be_bytes();
        match (tuple.src.addr, tuple.dst.addr) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut bytes = [0u8; 12];
                bytes[..4].copy_from_slice(&src.octets());
                bytes[4..8].copy_from_slice(&dst.octets());
                bytes[8..].copy_from_slice(&ports);
                self.hash_v4(&bytes)
            }
            (src, dst) => {
                let mut bytes = [0u8; 36];
                bytes[..16].copy_from_slice(&sixteen(src));
                bytes[16..32].copy_from_slice(&sixteen(dst));
                bytes[32..].copy_from_slice(&ports);
                self.hasher.hash(&bytes)
            }
        }
    }

    /// The counter of a peer's address, below [`PEERS`]: of an IPv6 address the first half counts, because one host has all of the second. Addresses that
    /// fall on one counter share its part; a secret decides which.
    #[must_use]
    pub fn peer(&self, addr: IpAddr) -> u16 {
        let mut bytes = [0; 12];
        match addr {
            IpAddr::V4(addr) => bytes[..4].copy_from_slice(&addr.octets()),
            IpAddr::V6(addr) => {
                bytes[..8].copy_from_slice(&addr.octets()[..8]);
                bytes[8] = 1;
            }
        }
        (self.hash_v4(&bytes) % PEERS as u64) as u16
    }

    /// The hash of an IPv4 tuple as it stands in a received segment: addresses, then ports. SipHash-1-3 of twelve bytes, unrolled.
    #[must_use]
    #[inline]
    pub fn hash_v4(&self, tuple: &[u8; 12]) -> u64 {
        let [a, b, c, d, e, f, g, h, ports @ ..] = *tuple;
        let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        // The last word contains the length in its top byte.
        let last = u64::from(u32::from_le_bytes(ports)) | 12 << 56;
        let [k0, k1] = self.keys;
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        for word in [first, last] {
            v[3] ^= word;
            sip_round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xFF;
        (0..3).for_each(|_| sip_round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }

    /// Hints the processor to fetch the bucket of `hash`.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets[hash as usize & self.mask]);
    }

    /// The first flow with this hash for which `is_it` is true.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(FlowId) -> bool) -> Option<FlowId> {
        let tag = hash >> 32;
        for step in 0..REACH + 1 {
            let bucket = &self.buckets[(hash as usize).wrapping_add(step) & self.mask];
            for entry in &bucket.entries {
                // Acquire: pairs with the Release in `insert`; the record was filled before that.
                let word = entry.load(Ordering::Acquire);
                if word >> 32 == tag && word as u32 != 0 {
                    let id = FlowId(word as u32 - 1);
                    if is_it(id) {
                        return Some(id);
                    }
                }
            }
            if bucket.passed.load(Ordering::Acquire) == 0 {
                return None;
            }
        }
        None
    }

    /// For the slow path: adds a flow; its record must be complete. False when the table is too full around its hash.
    pub(crate) fn insert(&self, hash: u64, id: FlowId) -> bool {
        let word = (hash >> 32) << 32 | u64::from(id.0 + 1);
        let place = (0..=REACH).find_map(|step| {
            let bucket = &self.buckets[(hash as usize).wrapping_add(step) & self.mask];
            let free = bucket.entries.iter().find(|e| e.load(Ordering::Relaxed) == 0)?;
            Some((step, free))
        });
        let Some((step, free)) = place else { return false };
        for passed in 0..step {
            let bucket = &self.buckets[(hash as usize).wrapping_add(passed) & self.mask];
            bucket.passed.fetch_add(1, Ordering::Release);
        }
        free.store(word, Ordering::Release);
        true
    }

    /// For the slow path: removes a flow. False when it is not in the table.
    pub(crate) fn remove(&self, hash: u64, id: FlowId) -> bool {
        let word = (hash >> 32) << 32 | u64::from(id.0 + 1);
        for step in 0..=REACH {
            let bucket = &self.buckets[(hash as usize).wrapping_add(step) & self.mask];
            let Some(entry) = bucket.entries.iter().find(|e| e.load(Ordering::Relaxed) == word) else {
                continue;
            };
            entry.store(0, Ordering::Release);
            for passed in 0..step {
                let bucket = &self.buckets[(hash as usize).wrapping_add(passed) & self.mask];
                bucket.passed.fetch_sub(1, Ordering::Release);
            }
            return true;
        }
        false
    }
}

/// One round of SipHash (SipRound).
#[inline(always)]
fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32).wrapping_add(v[3]);
    v[2] = v[2].wrapping_add(v[1]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

fn sixteen(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;
    use std::collections::HashMap;

    #[test]
    fn an_ipv6_network_is_one_peer_and_addresses_are_spread_by_a_secret() {
        let [one, two] = [1, 2].map(|seed| FlowTable::new(64, [seed, 5]));
        let v6 = |network: u16, host: u16| IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
        assert!((0..99).all(|host| one.peer(v6(7, host)) == one.peer(v6(7, 1))));
        let of = |table: &FlowTable| {
            let v4 = (0..200).map(|last| IpAddr::from([10, 0, 0, last])).chain((0..200).map(|n| v6(n, 1)));
            v4.map(|addr| table.peer(addr)).collect::<Vec<_>>()
        };
        let mut found = of(&one);
        assert_ne!(found, of(&two));
        found.sort_unstable();
        found.dedup();
        assert!(found.len() > 300, "{} counters of {PEERS} for 400 peers", found.len());
    }

    #[test]
    fn twelve_bytes_hash_as_siphash_says() {
        let mut rng = Seed::new(5);
        for _ in 0..1000 {
            let keys = [rng.below(u64::MAX), rng.below(u64::MAX)];
            let [a, b] = [rng.below(u64::MAX), rng.below(1 << 32)];
            let mut tuple = [0u8; 12];
            tuple[..8].copy_from_slice(&a.to_be_bytes());
            tuple[8..].copy_from_slice(&(b as u32).to_be_bytes());
            let table = FlowTable::new(4, keys);
            assert_eq!(table.hash_v4(&tuple), SipHasher13::new_with_keys(keys[0], keys[1]).hash(&tuple));
        }
    }

    /// Oracle: a map. Hashes are limited to few values, so that buckets overflow into each other.
    #[test]
    fn table_agrees_with_a_map_even_when_buckets_overflow() {
        let table = FlowTable::new(256, [1, 2]);
        let (mut map, mut rng) = (HashMap::new(), Seed::new(3));
        for round in 0..20_000u32 {
            let id = FlowId(rng.below(256) as u32);
            let hash = (u64::from(id.0) * 7) << 32 | u64::from(id.0 % 16);
            if map.remove(&id).is_some() {
                assert!(table.remove(hash, id), "round {round}");
            } else if table.insert(hash, id) {
                map.insert(id, hash);
            }
            let probe = FlowId(rng.below(256) as u32);
            let hash = (u64::from(probe.0) * 7) << 32 | u64::from(probe.0 % 16);
            assert_eq!(table.find(hash, |f| f == probe), map.contains_key(&probe).then_some(probe));
        }
        for (id, hash) in map {
            assert!(table.remove(hash, id));
        }
        assert!(table.buckets.iter().all(|b| b.passed.load(Ordering::Relaxed) == 0));
    }
}
