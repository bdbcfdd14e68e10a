//! Ends of records (`MSG_EOR`): bytes of two records must not go into one segment. The table lies in the application's region
//! (`queue::records`); an application that never ends a record has none.

use crate::payload::data_len;
use crate::setup::Work;
use core::sync::atomic::Ordering::Relaxed;
use queue::Violation;
use queue::records::{Records, place};
use shm::Side;

/// The record that contains the byte at `position`: stream positions `[start, end)`.
#[cold]
fn record(w: &Work<'_>, advice: u64, position: u64) -> Result<(u64, u64), Violation> {
    let Some(ring) = place(advice, data_len(w))? else { return Ok((0, u64::MAX)) };
    w.region.check_ring(ring)?;
    Ok(Records::new(w.region.region(), Side::One, ring).around(position))
}

/// Bytes from `position` to the end of its record.
#[cold]
pub(crate) fn record_left(w: &Work<'_>, advice: u64, position: u64) -> Result<u32, Violation> {
    let (_, end) = record(w, advice, position)?;
    Ok((end - position).min(u64::from(u32::MAX)) as u32)
}

/// Number of sequence numbers in flight that belong to the last record, FIN included.
#[cold]
pub(crate) fn last_record(w: &Work<'_>) -> u32 {
    let tx = &w.f.tx;
    let is_fin_out = w.f.rx.is_fin_out();
    let data = tx.in_flight().saturating_sub(u32::from(is_fin_out));
    if data == 0 {
        return u32::MAX;
    }
    let last = tx.tx_una + u64::from(data) - 1;
    // An invalid table is reported when these bytes are sent.
    let (start, _) = record(w, w.peer.extra.load(Relaxed), last).unwrap_or((0, 0));
    ((last + 1 - start).min(u64::from(u32::MAX)) as u32).saturating_add(u32::from(is_fin_out))
}
