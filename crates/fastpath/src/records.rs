//! Ends of records (`MSG_EOR`): what the application does not want in one segment. The table lies in its region
//! (`queue::records`); who never ends a record has none.

use crate::setup::Work;
use crate::transmit::data_len;
use core::sync::atomic::Ordering::Relaxed;
use queue::Violation;
use queue::records::{Records, place};
use shm::Side;

/// The record that the byte at `position` is part of, `[start, end)`.
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

/// Sequence numbers in flight that belong to the last record, FIN included.
#[cold]
pub(crate) fn last_record(w: &Work<'_>) -> u32 {
    let tx = &w.f.tx;
    let is_fin_out = w.f.rx.is_fin_out();
    let data = tx.in_flight().saturating_sub(u32::from(is_fin_out));
    if data == 0 {
        return u32::MAX;
    }
    let last = tx.tx_una + u64::from(data) - 1;
    // What breaks the rules is found when it is sent.
    let (start, _) = record(w, w.peer.extra.load(Relaxed), last).unwrap_or((0, 0));
    ((last + 1 - start).min(u64::from(u32::MAX)) as u32).saturating_add(u32::from(is_fin_out))
}
