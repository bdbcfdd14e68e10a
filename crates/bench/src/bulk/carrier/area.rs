//! Shared memory between the two threads of a carrier: a ring of bytes. The program's thread copies between the ring and its own buffer.

use port::Lent;
use rustix::thread::sched_yield;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::thread::Thread;

/// Size of the ring in bytes: small enough to stay in the processor's caches.
const SIZE: usize = 4 << 20;
/// Bytes that a program reads or writes in one call, the same as in `sink` and `source`.
const READ: usize = 256 * 1024;
const WRITE: usize = 64 * 1024;

/// A ring of bytes with one writing thread and one reading thread.
pub struct Area {
    bytes: Box<[AtomicU8]>,
    /// Bytes put into the ring and taken out of it since the start.
    head: AtomicU64,
    tail: AtomicU64,
    program: OnceLock<Thread>,
    is_asleep: AtomicBool,
}

impl Area {
    pub fn new() -> Self {
        Self {
            bytes: (0..SIZE).map(|_| AtomicU8::new(0)).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            program: OnceLock::new(),
            is_asleep: AtomicBool::new(false),
        }
    }

    /// Bytes in the ring that have not been taken.
    pub fn len(&self) -> usize {
        (self.head.load(Acquire) - self.tail.load(Acquire)) as usize
    }

    fn at(&self, position: u64, len: usize) -> Lent<'_> {
        let at = position as usize % SIZE;
        let first = len.min(SIZE - at);
        Lent([&self.bytes[at..at + first], &self.bytes[..len - first]])
    }

    /// The oldest `len` bytes.
    pub fn filled(&self, len: usize) -> Lent<'_> {
        self.at(self.tail.load(Relaxed), len)
    }

    /// Removes the oldest `len` bytes.
    pub fn consume(&self, len: usize) {
        self.tail.fetch_add(len as u64, Release);
    }

    /// Waits until `len` bytes are free and calls `place` to write them. Returns what `place` returns: false puts nothing into the ring.
    pub fn put(&self, len: usize, place: impl FnOnce(Lent<'_>) -> bool) -> bool {
        while SIZE - self.len() < len {
            self.wake();
            sched_yield();
        }
        let is_there = place(self.at(self.head.load(Relaxed), len));
        if is_there {
            self.head.fetch_add(len as u64, Release);
        }
        is_there
    }

    /// Wakes the program's thread if it sleeps.
    pub fn wake(&self) {
        if self.is_asleep.load(SeqCst)
            && let Some(program) = self.program.get()
        {
            program.unpark();
        }
    }

    /// Parks the program's thread as long as `has_nothing` is true.
    fn sleep(&self, has_nothing: impl Fn() -> bool) {
        self.program.get_or_init(std::thread::current);
        self.is_asleep.store(true, SeqCst);
        while has_nothing() {
            std::thread::park();
        }
        self.is_asleep.store(false, SeqCst);
    }

    /// The program of a sink: reads without end.
    pub fn drain(&self) -> ! {
        let mut buffer = vec![0; READ];
        loop {
            self.sleep(|| self.len() == 0);
            let len = self.len().min(READ);
            self.filled(len).copy_to(&mut buffer);
            self.consume(len);
        }
    }

    /// The program of a source: writes whenever [`WRITE`] bytes are free.
    pub fn fill(&self) -> ! {
        let chunk = vec![0x5A; WRITE];
        loop {
            self.sleep(|| SIZE - self.len() < WRITE);
            self.put(WRITE, |into| {
                into.fill(&chunk);
                true
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_their_order_around_the_end() {
        let area = Area::new();
        let mut out = vec![0; 3 << 20];
        for turn in 0..5_u8 {
            let bytes: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 5) as u8 ^ turn).collect();
            assert!(area.put(bytes.len(), |into| {
                into.fill(&bytes);
                true
            }));
            assert!(!area.put(10, |_| false), "nothing was put");
            assert_eq!(area.len(), bytes.len());
            area.filled(bytes.len()).copy_to(&mut out);
            area.consume(bytes.len());
            assert!(out == bytes && area.len() == 0);
        }
    }
}
