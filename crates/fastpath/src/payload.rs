//! Payload where it lies: copies between frames and the rings of a flow's region, and the checks before them.
//!
//! The service reads what the application has written (side one) and writes what the application reads (side zero).

use crate::setup::Work;
use port::Lent;
use queue::stream::Readable;
use queue::{Ring, Violation};
use shm::Side;

/// Bytes of the region's data area, which bounds every ring.
#[inline]
pub(crate) fn data_len(w: &Work<'_>) -> u64 {
    w.region.region().layout().params.data_len
}

/// Checks that `sent` bytes, which were sent before, are still there, and that the ring lies in populated memory.
#[inline]
pub(crate) fn checked(
    w: &Work<'_>,
    found: Option<Readable>,
    position: u64,
    sent: u32,
) -> Result<Option<Readable>, Violation> {
    let total = found.map_or(0, |r| r.total as u64);
    if total < u64::from(sent) {
        return Err(Violation::Position { known: position + u64::from(sent), found: position + total });
    }
    if let Some(r) = found {
        w.region.check_ring(r.ring)?;
    }
    Ok(found)
}

/// Copies bytes that the application has written, from `position` of the stream on. The caller has checked that `ring` holds them.
#[inline(always)]
pub(crate) fn read(w: &Work<'_>, ring: Ring, position: u64, bytes: &mut [u8]) {
    let [(a, a_len), (b, b_len)] = ring.spans(position, bytes.len());
    let region = w.region.region();
    region.read(Side::One, a, &mut bytes[..a_len]);
    if b_len > 0 {
        region.read(Side::One, b, &mut bytes[a_len..]);
    }
}

/// Copies `bytes` into `ring` at stream `position`. The caller has checked that they fit. Always true.
#[inline(always)]
pub(crate) fn write(w: &Work<'_>, ring: Ring, position: u64, bytes: &[u8]) -> bool {
    let [(a, a_len), (b, b_len)] = ring.spans(position, bytes.len());
    let region = w.region.region();
    region.write(Side::Zero, a, &bytes[..a_len]);
    if b_len > 0 {
        region.write(Side::Zero, b, &bytes[a_len..]);
    }
    true
}

/// The memory of `len` bytes from `position` of the stream on, in `ring` of that side, which holds all of them.
pub(crate) fn lent<'a>(w: &'a Work<'_>, side: Side, ring: Ring, position: u64, len: usize) -> Lent<'a> {
    let region = w.region.region();
    Lent(ring.spans(position, len).map(|(at, len)| region.shared(side, at, len)))
}
