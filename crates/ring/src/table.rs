//! All connections and listeners of one ring, each at a place with a generation.

use crate::conn::Connection;
use crate::error::Error;
use crate::handle::Handle;
use crate::listen::Listening;

/// What lies at a place.
#[derive(Debug)]
pub(crate) enum Kept {
    /// Nothing lies at the place.
    Free,
    /// A connection, during its handshake or later.
    Connection(Connection),
    /// A listener, which is larger and rare.
    Listener(Box<Listening>),
}

/// All connections and listeners of a ring.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Each with its generation, which is never 0: a handle of zeros is no handle.
    places: Vec<(u32, Kept)>,
    free: Vec<u32>,
}

impl Table {
    /// Puts something at a free place.
    pub(crate) fn insert(&mut self, kept: Kept) -> Handle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((1, Kept::Free));
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.1 = kept;
        Handle { index, generation: place.0 }
    }

    /// The index of a handle that is not stale.
    pub(crate) fn index(&self, handle: Handle) -> Result<u32, Error> {
        let place = self.places.get(handle.index as usize);
        let is_there = place.is_some_and(|(generation, kept)| {
            *generation == handle.generation && !matches!(kept, Kept::Free)
        });
        if is_there { Ok(handle.index) } else { Err(Error::Gone) }
    }

    /// The handle of what lies at `index`.
    pub(crate) fn handle(&self, index: u32) -> Handle {
        Handle { index, generation: self.places.get(index as usize).map_or(0, |place| place.0) }
    }

    /// The connection at `index`.
    #[inline]
    pub(crate) fn connection(&mut self, index: u32) -> Option<&mut Connection> {
        match self.places.get_mut(index as usize) {
            Some((_, Kept::Connection(connection))) => Some(connection),
            _ => None,
        }
    }

    /// The listener at `index`.
    pub(crate) fn listener(&self, index: u32) -> Option<&Listening> {
        match self.places.get(index as usize) {
            Some((_, Kept::Listener(listener))) => Some(listener),
            _ => None,
        }
    }

    /// Takes what lies at `index`; from then on its handle is stale.
    pub(crate) fn remove(&mut self, index: u32) -> Kept {
        let Some(place) = self.places.get_mut(index as usize) else { return Kept::Free };
        place.0 = place.0.wrapping_add(1).max(1);
        self.free.push(index);
        std::mem::replace(&mut place.1, Kept::Free)
    }

    /// Number of places that are taken.
    pub(crate) const fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The places that are taken.
    pub(crate) fn taken(&self) -> Vec<u32> {
        let is_taken = |(_, (_, kept)): &(usize, &(u32, Kept))| !matches!(kept, Kept::Free);
        self.places.iter().enumerate().filter(is_taken).map(|(i, _)| i as u32).collect()
    }
}
