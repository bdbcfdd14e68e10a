//! Frames on the way, each in one buffer, no matter how many of its segments are still on the way.

use port::{PacketBuf, Segmenter};

/// Frames up to this length are copied into small buffers, so that an acknowledgement does not occupy 64 KiB.
const SMALL: usize = 2_048;
/// The most bytes of frames on the way: 10 Gbit/s for most of a second.
const BYTES_MAX: usize = 1 << 30;

/// A frame, and the number of its packets on the way.
#[derive(Debug)]
pub(crate) struct Held {
    pub frame: PacketBuf,
    /// The segmenter of a super-frame; `None` for other frames.
    pub segmenter: Option<Segmenter>,
    uses: u32,
}

/// The frames on the way, and buffers for reuse.
#[derive(Debug, Default)]
pub(crate) struct Store {
    all: Vec<Held>,
    spare_small: Vec<u32>,
    spare_large: Vec<u32>,
    bytes: usize,
}

impl Store {
    /// Takes the frame out of `packet` and returns its key. `None`, and the frame stays, if too many bytes are on the way.
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

    /// Adds one to the number of packets of this frame on the way.
    pub(crate) fn hold(&mut self, key: u32) {
        self.all[key as usize].uses += 1;
    }

    /// Subtracts `packets` from the number of packets of this frame on the way. At 0 the buffer is free.
    pub(crate) fn release(&mut self, key: u32, packets: u32) {
        let held = &mut self.all[key as usize];
        held.uses -= packets;
        if held.uses == 0 {
            self.bytes -= held.frame.len();
            let is_small = held.frame.capacity() <= SMALL;
            if is_small { self.spare_small.push(key) } else { self.spare_large.push(key) }
        }
    }

    /// Number of buffers in use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.all.len() - self.spare_small.len() - self.spare_large.len()
    }
}
