//! How large regions are.

use shm::{Kind, Layout, Params};

/// Size of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Number of slots: a power of two.
    pub slots: u32,
    /// Payload bytes of each side: a multiple of 1 MiB.
    pub data_len: u64,
}

/// The smallest region.
const LEAST: Size = Size { slots: 64, data_len: 1 << 20 };

/// The size of an application region: the `usual` one, halved until the region needs at most half of `room` bytes of address space.
pub fn fitting(usual: Size, room: u64) -> Size {
    let mut size = usual;
    let total = |Size { slots, data_len }| {
        Layout::new(Params { kind: Kind::Application, id: 0, slots, data_len }).map_or(0, |l| l.total as u64)
    };
    while total(size) > room / 2 && size != LEAST {
        size.slots = (size.slots / 2).max(LEAST.slots);
        size.data_len = (size.data_len / 2).next_multiple_of(LEAST.data_len);
    }
    size
}
