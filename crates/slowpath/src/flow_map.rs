//! A map from flow records to values, stored at the record's number. We choose these numbers, the lowest first, so that entries in use
//! lie together; and an entry's address is known, and can be prefetched, before the entry is read.

use flow::FlowId;

/// Number of entries allocated together, when the first of them is used.
const CHUNK: usize = 256;

type Chunk<T> = Box<[Option<T>]>;

/// A map with flows as keys.
#[derive(Debug)]
pub(crate) struct FlowMap<T> {
    chunks: Vec<Option<Chunk<T>>>,
    len: usize,
}

impl<T> Default for FlowMap<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> FlowMap<T> {
    /// Number of flows in the map.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn contains_key(&self, flow: &FlowId) -> bool {
        self.get(flow).is_some()
    }

    #[inline]
    pub(crate) fn get(&self, flow: &FlowId) -> Option<&T> {
        self.place(*flow)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, flow: &FlowId) -> Option<&mut T> {
        let (chunk, i) = split(*flow);
        self.chunks.get_mut(chunk)?.as_mut()?[i].as_mut()
    }

    /// Hints the processor to fetch all lines of the flow's entry.
    #[inline]
    pub(crate) fn prefetch(&self, flow: FlowId) {
        if let Some(place) = self.place(flow) {
            flow::prefetch_all(place);
        }
    }

    /// Stores `what` for the flow, in place of any value before.
    pub(crate) fn insert(&mut self, flow: FlowId, what: T) {
        let (chunk, i) = split(flow);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(|| (0..CHUNK).map(|_| None).collect());
        self.len += usize::from(chunk[i].replace(what).is_none());
    }

    pub(crate) fn remove(&mut self, flow: &FlowId) -> Option<T> {
        let (chunk, i) = split(*flow);
        let what = self.chunks.get_mut(chunk)?.as_mut()?[i].take();
        self.len -= usize::from(what.is_some());
        what
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (FlowId, &T)> {
        let chunks = self.chunks.iter().enumerate().filter_map(|(n, chunk)| Some((n, chunk.as_ref()?)));
        let places = chunks.flat_map(|(n, chunk)| chunk.iter().enumerate().map(move |(i, at)| (n, i, at)));
        places.filter_map(|(n, i, at)| Some((FlowId((n * CHUNK + i) as u32), at.as_ref()?)))
    }

    /// The flows from that number on, in order.
    pub(crate) fn from(&self, first: u32) -> impl Iterator<Item = (FlowId, &T)> {
        let (start, within) = split(FlowId(first));
        let chunks =
            self.chunks.iter().enumerate().skip(start).filter_map(|(n, chunk)| Some((n, chunk.as_ref()?)));
        chunks.flat_map(move |(n, chunk)| {
            let skipped = if n == start { within } else { 0 };
            let places = chunk.iter().enumerate().skip(skipped);
            places.filter_map(move |(i, at)| Some((FlowId((n * CHUNK + i) as u32), at.as_ref()?)))
        })
    }

    #[inline]
    fn place(&self, flow: FlowId) -> Option<&Option<T>> {
        let (chunk, i) = split(flow);
        Some(&self.chunks.get(chunk)?.as_ref()?[i])
    }
}

#[inline]
const fn split(flow: FlowId) -> (usize, usize) {
    (flow.0 as usize / CHUNK, flow.0 as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;
    use std::collections::BTreeMap;

    #[test]
    fn flow_map_agrees_with_a_tree() {
        let (mut map, mut oracle, mut rng) = (FlowMap::default(), BTreeMap::new(), Seed::new(5));
        for step in 0..20_000u32 {
            let flow = FlowId(rng.below(5) as u32 * 300 + rng.below(8) as u32);
            match rng.below(3) {
                0 => {
                    map.insert(flow, step);
                    oracle.insert(flow.0, step);
                }
                1 => assert_eq!(map.remove(&flow), oracle.remove(&flow.0)),
                _ => {
                    if let Some(what) = map.get_mut(&flow) {
                        *what += 1;
                    }
                    oracle.entry(flow.0).and_modify(|what| *what += 1);
                }
            }
            map.prefetch(flow);
            assert_eq!((map.get(&flow), map.len()), (oracle.get(&flow.0), oracle.len()));
            assert_eq!(map.contains_key(&flow), oracle.contains_key(&flow.0));
        }
        assert!(map.iter().map(|(flow, what)| (flow.0, *what)).eq(oracle.clone()));
        for first in [0, 1, 255, 256, 299, 300, 605, 5_000] {
            let behind = map.from(first).map(|(flow, what)| (flow.0, *what));
            assert!(behind.eq(oracle.range(first..).map(|(flow, what)| (*flow, *what))), "{first}");
        }
    }
}
