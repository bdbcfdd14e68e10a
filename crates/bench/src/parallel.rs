//! Many simulations on all processors. The results do not depend on how many there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Calls `simulate` for each of `settings`, and returns the results in their order.
pub fn in_parallel<S: Sync, R: Send>(settings: &[S], simulate: impl Fn(&S) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(settings.len());
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Relaxed: the number only has to be a thread's own; the lock orders the results.
                while let Some((i, setting)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, settings.get(i)?)))
                {
                    let result = simulate(setting);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_their_settings() {
        let settings: Vec<u64> = (0..100).collect();
        assert_eq!(in_parallel(&settings, |n| n * n), settings.iter().map(|n| n * n).collect::<Vec<u64>>());
        assert!(in_parallel(&[0u8; 0], |n| *n).is_empty());
    }
}
