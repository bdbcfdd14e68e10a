//! Loom models of lookups, close and reuse of one descriptor at once. A probe fails when it is touched after its end.

use super::Cell;
use crate::fd::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

struct Probe {
    name: u64,
    alive: Arc<AtomicU64>,
}

impl Probe {
    fn new(name: u64, alive: &Arc<AtomicU64>) -> Arc<Self> {
        alive.fetch_add(1, Ordering::SeqCst);
        Arc::new(Self { name, alive: alive.clone() })
    }

    fn touch(&self) -> u64 {
        assert!(self.alive.load(Ordering::SeqCst) > 0, "used after its end");
        self.name
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        assert!(self.alive.fetch_sub(1, Ordering::SeqCst) > 0, "dropped twice");
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// A descriptor is looked up while another thread puts another object there.
#[test]
fn loom_lookup_and_exchange() {
    model(|| {
        let (cell, alive) = (Arc::new(Cell::<Probe>::default()), Arc::new(AtomicU64::new(0)));
        let first = Probe::new(1, &alive);
        assert!(cell.insert(first.clone()).is_ok());
        let reader = {
            let cell = cell.clone();
            thread::spawn(move || {
                let p = cell.pin().map(|p| p.touch());
                assert!(p == Some(1) || p == Some(2), "there is always one");
            })
        };
        assert!(cell.exchange(&first, Probe::new(2, &alive)));
        drop(first);
        assert_eq!(cell.pin().map(|p| p.touch()), Some(2));
        reader.join().unwrap();
        assert_eq!(cell.remove().map(|p| p.touch()), Some(2));
        assert!(cell.pin().is_none());
    });
}

/// A descriptor is looked up while another thread closes it and a third takes the number over for a new socket.
#[test]
fn loom_lookup_close_and_reuse() {
    model(|| {
        let (cell, alive) = (Arc::new(Cell::<Probe>::default()), Arc::new(AtomicU64::new(0)));
        assert!(cell.insert(Probe::new(1, &alive)).is_ok());
        let reader = {
            let cell = cell.clone();
            thread::spawn(move || {
                if let Some(p) = cell.pin() {
                    let name = p.touch();
                    assert!(name == 1 || name == 2);
                }
            })
        };
        let closer = {
            let (cell, alive) = (cell.clone(), alive.clone());
            thread::spawn(move || {
                let gone = cell.remove();
                assert!(gone.is_some_and(|p| p.touch() == 1));
                cell.insert(Probe::new(2, &alive)).is_ok()
            })
        };
        reader.join().unwrap();
        let reused = closer.join().unwrap();
        assert_eq!(alive.load(Ordering::SeqCst), u64::from(reused), "nothing leaks");
        assert_eq!(cell.remove().is_some(), reused);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    });
}

/// Two closes of one descriptor (close against dup2 onto it): exactly one gets the socket.
#[test]
fn loom_of_two_closers_one_wins() {
    model(|| {
        let (cell, alive) = (Arc::new(Cell::<Probe>::default()), Arc::new(AtomicU64::new(0)));
        assert!(cell.insert(Probe::new(1, &alive)).is_ok());
        let other = {
            let cell = cell.clone();
            thread::spawn(move || cell.remove().is_some())
        };
        let kept = cell.pin().map(|p| p.share());
        let mine = cell.remove().is_some();
        assert!(mine != other.join().unwrap());
        if let Some(kept) = kept {
            assert_eq!(kept.touch(), 1);
        }
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    });
}
