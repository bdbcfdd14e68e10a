//! Frames on the way, each in one buffer however many of its segments are still to come.

use port::{PacketBuf, Segmenter};

/// Frames up to this length are copied into small buffers: acknowledgements must not hold 64 KiB each.
const SMALL: usize = 2_048;
/// Bytes of frames on the way at most: 10 Gbit/s for most of a second.
const BYTES_MAX: usize = 1 << 30;

/// A frame and how many packets of it are on the way.
#[derive(Debug)]
pub(crate) struct Held {
    pub frame: PacketBuf,
    /// For super-frames.
    pub segmenter: Option<Segmenter>,
    uses: u32,
}

/// Buffers that are used again.
#[derive(Debug, Default)]
pub(crate) struct Store {
    all: Vec<Held>,
    spare_small: Vec<u32>,
    spare_large: Vec<u32>,
    bytes: usize,
}

impl Store {
    /// Takes the frame out of `packet`; none, and the frame stays, when too much is on the way.
    pub(crate) fn put(&mut self, packet: &mut PacketBuf, segmenter: Option<Segmenter>) -> Option<u32> {
        let len = packet.len();
        if BYTES_MAX < self.bytes + len {
            return None;
        }
        let is_small = len <= SMALL;
        let spare = if is_small { &mut self.spare_small } else { &mut self.spare_large };
        let key = spare.pop().unwrap_or_else(|| {
            let frame = if is_small { PacketBuf::with_capacity(SMALL) } else { PacketBuf::new() };
            self.all.push(Held { frame, segmenter: None, uses: 0 });
            (self.all.len() - 1) as u32
        });
        let held = &mut self.all[key as usize];
        if is_small {
            let fits = held.frame.copy_from(packet);
            debug_assert!(fits, "small frames fit into small buffers");
        } else {
            std::mem::swap(&mut held.frame, packet);
        }
        (held.segmenter, held.uses) = (segmenter, 0);
        self.bytes += len;
        Some(key)
    }

    /// The frame of `key`.
    pub(crate) fn get(&self, key: u32) -> &Held {
        &self.all[key as usize]
    }

    /// One more packet of it is on the way.
    pub(crate) fn hold(&mut self, key: u32) {
        self.all[key as usize].uses += 1;
    }

    /// `packets` of it have arrived; the buffer is free after the last, or when there were none.
    pub(crate) fn release(&mut self, key: u32, packets: u32) {
        let held = &mut self.all[key as usize];
        held.uses -= packets;
        if held.uses == 0 {
            self.bytes -= held.frame.len();
            let is_small = held.frame.capacity() <= SMALL;
            if is_small { self.spare_small.push(key) } else { self.spare_large.push(key) }
        }
    }

    /// Buffers in use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.all.len() - self.spare_small.len() - self.spare_large.len()
    }
}
