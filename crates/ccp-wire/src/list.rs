//! Lists inside a message: items of one size that are decoded one by one out of the datagram's bytes, without a copy.

use std::marker::PhantomData;

use ccp_vm::{ENCODED_LEN, Event, Instruction, Register};

use crate::message::Update;

/// What a list holds: its size on the wire, and its bytes.
pub trait Item: Sized {
    /// Bytes of one item.
    const LEN: usize;
    /// The item in `bytes`, which are [`Self::LEN`] bytes; `None` if they have no meaning.
    fn decode(bytes: &[u8]) -> Option<Self>;
    /// Appends the item to `to`.
    fn encode(&self, to: &mut Vec<u8>);
}

/// A list in a message: decoded bytes of a datagram, or a slice that is to be encoded.
#[derive(Debug)]
pub struct List<'a, T> {
    source: Source<'a, T>,
}

#[derive(Debug)]
enum Source<'a, T> {
    Bytes(&'a [u8], PhantomData<T>),
    Slice(&'a [T]),
}

/// Values of a report, in the order of the program's report variables.
pub type Values<'a> = List<'a, u64>;
/// Variables and what they are set to.
pub type Fields<'a> = List<'a, Update>;
/// Instructions of a program: definitions, then those of the events.
pub type Instructions<'a> = List<'a, Instruction>;
/// Events of a program.
pub type Events<'a> = List<'a, Event>;

impl<'a, T: Item + Copy> List<'a, T> {
    /// The items of `slice`.
    #[must_use]
    pub const fn of(slice: &'a [T]) -> Self {
        Self { source: Source::Slice(slice) }
    }

    /// The items in `bytes`, if all of them have a meaning.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let is_whole = bytes.len().is_multiple_of(T::LEN);
        let is_good = is_whole && bytes.chunks_exact(T::LEN).all(|item| T::decode(item).is_some());
        is_good.then_some(Self { source: Source::Bytes(bytes, PhantomData) })
    }

    /// The number of items.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.source {
            Source::Bytes(bytes, _) => bytes.len() / T::LEN,
            Source::Slice(slice) => slice.len(),
        }
    }

    /// True if there are no items.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Item `index`, if there are that many.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<T> {
        match self.source {
            Source::Bytes(bytes, _) => {
                let start = index.checked_mul(T::LEN)?;
                T::decode(bytes.get(start..start.checked_add(T::LEN)?)?)
            }
            Source::Slice(slice) => slice.get(index).copied(),
        }
    }

    /// The items in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len()).map_while(|index| self.at(index))
    }

    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        match self.source {
            Source::Bytes(bytes, _) => to.extend_from_slice(bytes),
            Source::Slice(slice) => slice.iter().for_each(|item| item.encode(to)),
        }
    }
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<'_, T> {}

impl<T> Clone for Source<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Source<'_, T> {}

impl<T: Item + Copy + PartialEq> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: Item + Copy + Eq> Eq for List<'_, T> {}

impl Item for u64 {
    const LEN: usize = 8;

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_le_bytes)
    }

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.to_le_bytes());
    }
}

/// `register | value u64`
impl Item for Update {
    const LEN: usize = Register::LEN + u64::LEN;

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (register, value) = bytes.split_first_chunk()?;
        Some(Self { register: Register::decode(register)?, value: u64::decode(value)? })
    }

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.register.encode());
        self.value.encode(to);
    }
}

impl Item for Instruction {
    const LEN: usize = ENCODED_LEN;

    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes.try_into().ok()?)
    }

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.encode());
    }
}

impl Item for Event {
    const LEN: usize = ENCODED_LEN;

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self::decode(bytes.try_into().ok()?))
    }

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.encode());
    }
}
