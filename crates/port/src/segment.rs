//! Segmentation offload in software: cuts a super-frame into the frames that a wire carries.

use crate::checksum::pseudo_header;
use crate::headers::{Layout, TCP_CWR, TCP_FIN, TCP_PSH, read_u16, read_u32, write};
use crate::packet::{Checksum, Gso, GsoKind, PacketBuf};
use wire::checksum::Sum;

/// Why a super-frame cannot be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentError {
    /// According to its metadata the frame is no super-frame.
    NotSuperFrame,
    /// The frame's headers contradict its metadata.
    Malformed,
}

/// A cursor over the segments of one super-frame. It makes one segment at a time, so that the caller can wait while a port is full.
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
    /// Number of payload bytes already cut.
    done: usize,
    index: u16,
    /// True after the last segment. A super-frame without payload still has one segment.
    finished: bool,
}

impl Segmenter {
    /// A cursor at the first segment of `frame`.
    ///
    /// # Errors
    /// When `frame` is no super-frame, or its headers contradict its metadata.
    pub fn new(frame: &PacketBuf) -> Result<Self, SegmentError> {
        let gso = frame.meta.gso.ok_or(SegmentError::NotSuperFrame)?;
        let layout = check(frame.frame(), &gso).ok_or(SegmentError::Malformed)?;
        Ok(Self { layout, segment_size: usize::from(gso.segment_size), done: 0, index: 0, finished: false })
    }

    /// Number of segments of `frame` still to come; `frame` must be the one that the cursor was made for.
    #[must_use]
    pub fn remaining(&self, frame: &PacketBuf) -> usize {
        let payload = (frame.len() - self.layout.payload) - self.done;
        if self.finished { 0 } else { payload.div_ceil(self.segment_size).max(1) }
    }

    /// Number of segments of the whole frame.
    #[must_use]
    pub fn count(&self, frame: &PacketBuf) -> usize {
        (frame.len() - self.layout.payload).div_ceil(self.segment_size).max(1)
    }

    /// Length of the headers in bytes: the offset of a segment's payload.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.layout.payload
    }

    /// Payload bytes of each segment except the last.
    #[must_use]
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// Writes the segments `first` to `first + count - 1` of `frame` into `out` as one frame, a super-frame if `count` is above 1,
    /// with its TCP checksum left to the port. Returns false when there are no such segments, or when `out` is too small.
    #[must_use]
    pub fn run_into(&self, frame: &PacketBuf, first: usize, count: usize, out: &mut PacketBuf) -> bool {
        let (headers, bytes) = (self.layout.payload, frame.frame());
        let from = headers + first * self.segment_size;
        let to = bytes.len().min(from + count * self.segment_size);
        if count == 0 || self.count(frame) < first + count || out.capacity() < headers + (to - from) {
            return false;
        }
        out.clear();
        out.set_len(headers + (to - from));
        out.frame_mut()[..headers].copy_from_slice(&bytes[..headers]);
        out.frame_mut()[headers..].copy_from_slice(&bytes[from..to]);
        let cursor = Self { done: first * self.segment_size, index: first as u16, ..*self };
        cursor.fix_place(out.frame_mut(), to == bytes.len());
        let tcp = self.layout.tcp;
        let partial = pseudo_header(out.frame(), &self.layout).partial();
        write(out.frame_mut(), tcp + 16, &partial.to_be_bytes());
        out.meta = frame.meta;
        out.meta.checksum = Checksum::Partial { start: tcp as u16, offset: 16 };
        let has_cwr = out.frame()[tcp + 13] & TCP_CWR != 0;
        out.meta.gso = frame.meta.gso.filter(|_| count > 1).map(|gso| Gso { ecn: has_cwr, ..gso });
        true
    }

    /// Writes the next segment of `frame` into `out`, with complete checksums and without offload metadata. Returns false when there
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
        self.fix_place(segment, is_last);
        let tcp = self.layout.tcp;
        write(segment, tcp + 16, &[0, 0]);
        let sum = pseudo_header(segment, &self.layout).add_bytes(&segment[tcp..]).finish();
        write(segment, tcp + 16, &sum.to_be_bytes());
    }

    /// Adjusts the headers to the segment at the cursor's position, except the TCP checksum.
    fn fix_place(&self, segment: &mut [u8], is_last: bool) {
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
    }
}

/// The layout of the frame; `None` when its headers contradict its metadata.
fn check(frame: &[u8], gso: &Gso) -> Option<Layout> {
    let layout = Layout::of(frame)?;
    let kind = if layout.v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    let agrees = gso.kind == kind && usize::from(gso.header_len) == layout.payload && gso.segment_size > 0;
    // Length fields have 16 bits: a segment with its headers must fit.
    let fits = layout.payload - layout.ip + usize::from(gso.segment_size) <= 0xFFFF;
    (agrees && fits).then_some(layout)
}

#[cfg(test)]
mod tests;
