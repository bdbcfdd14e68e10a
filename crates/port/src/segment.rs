//! Segmentation offload in software: cuts a super-frame into the frames that a wire would carry.

use crate::checksum::pseudo_header;
use crate::headers::{Layout, TCP_CWR, TCP_FIN, TCP_PSH, read_u16, read_u32, write};
use crate::packet::{Checksum, Gso, GsoKind, PacketBuf};
use wire::checksum::Sum;

/// Why a super-frame cannot be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentError {
    /// The metadata says that it is an ordinary frame.
    NotSuperFrame,
    /// The frame's headers are not what the metadata says.
    Malformed,
}

/// A cursor over the segments of one super-frame; makes one segment at a time, so that a full port can be waited for.
///
/// ```text
///   | headers |   size   |   size   |  rest |      super-frame
///   | headers |   size   |                         segment 0: CWR if set
///   | headers |   size   |                         segment 1: sequence + size, IPv4 id + 1
///   | headers |  rest |                            segment 2: FIN, PSH if set
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Segmenter {
    layout: Layout,
    segment_size: usize,
    /// Payload bytes done.
    done: usize,
    index: u16,
    /// A super-frame without payload still is one segment.
    finished: bool,
}

impl Segmenter {
    /// Begins with the first segment of `frame`.
    ///
    /// # Errors
    /// When `frame` is no super-frame, or its headers contradict its metadata.
    pub fn new(frame: &PacketBuf) -> Result<Self, SegmentError> {
        let gso = frame.meta.gso.ok_or(SegmentError::NotSuperFrame)?;
        let layout = check(frame.frame(), &gso).ok_or(SegmentError::Malformed)?;
        Ok(Self { layout, segment_size: usize::from(gso.segment_size), done: 0, index: 0, finished: false })
    }

    /// Segments still to come of `frame`, which must be the frame that the cursor was made for.
    #[must_use]
    pub fn remaining(&self, frame: &PacketBuf) -> usize {
        let payload = (frame.len() - self.layout.payload) - self.done;
        if self.finished { 0 } else { payload.div_ceil(self.segment_size).max(1) }
    }

    /// Writes the next segment of `frame` into `out`, with complete checksums and without offload metadata. False when there
    /// is none, or when `out` is too small.
    ///
    /// # Panics
    /// When `frame` is not the frame that the cursor was made for: a bug of the caller.
    #[must_use]
    pub fn next_into(&mut self, frame: &PacketBuf, out: &mut PacketBuf) -> bool {
        let Layout { payload: headers, .. } = self.layout;
        let bytes = frame.frame();
        let from = headers + self.done;
        let to = bytes.len().min(from + self.segment_size);
        let len = headers + (to - from);
        if self.finished || out.capacity() < len {
            return false;
        }
        out.clear();
        out.meta.flow_hash = frame.meta.flow_hash;
        out.set_len(len);
        out.frame_mut()[..headers].copy_from_slice(&bytes[..headers]);
        out.frame_mut()[headers..].copy_from_slice(&bytes[from..to]);
        self.fix_headers(out.frame_mut(), to == bytes.len());
        out.meta.checksum = Checksum::Unknown;
        self.finished = to == bytes.len();
        self.done += to - from;
        self.index = self.index.wrapping_add(1);
        true
    }

    fn fix_headers(&self, segment: &mut [u8], is_last: bool) {
        let Layout { v4, ip, tcp, .. } = self.layout;
        let end = segment.len();
        if v4 {
            let id = read_u16(segment, ip + 4).unwrap_or(0).wrapping_add(self.index);
            write(segment, ip + 2, &((end - ip) as u16).to_be_bytes());
            write(segment, ip + 4, &id.to_be_bytes());
            write(segment, ip + 10, &[0, 0]);
            let sum = Sum::ZERO.add_bytes(&segment[ip..tcp]).finish();
            write(segment, ip + 10, &sum.to_be_bytes());
        } else {
            write(segment, ip + 4, &((end - tcp) as u16).to_be_bytes());
        }
        let sequence = read_u32(segment, tcp + 4).unwrap_or(0).wrapping_add(self.done as u32);
        write(segment, tcp + 4, &sequence.to_be_bytes());
        if !is_last {
            segment[tcp + 13] &= !(TCP_FIN | TCP_PSH);
        }
        // RFC 3168 section 6.1.2: CWR goes with the first new data packet only.
        if self.index > 0 {
            segment[tcp + 13] &= !TCP_CWR;
        }
        write(segment, tcp + 16, &[0, 0]);
        let sum = pseudo_header(segment, &self.layout).add_bytes(&segment[tcp..]).finish();
        write(segment, tcp + 16, &sum.to_be_bytes());
    }
}

/// The layout, when the frame's headers are what the metadata says.
fn check(frame: &[u8], gso: &Gso) -> Option<Layout> {
    let layout = Layout::of(frame)?;
    let kind = if layout.v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    let agrees = gso.kind == kind && usize::from(gso.header_len) == layout.payload && gso.segment_size > 0;
    // Lengths are 16 bits: a segment with its headers must fit.
    let fits = layout.payload - layout.ip + usize::from(gso.segment_size) <= 0xFFFF;
    (agrees && fits).then_some(layout)
}

#[cfg(test)]
mod tests;
