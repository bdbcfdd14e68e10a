//! The library's own memory. The C library's `malloc` is not for it: a signal handler that makes a socket may have interrupted the program
//! in the middle of `malloc`, a child made past `fork` may have another thread's lock in it, and one thread of ours the C library does not
//! know (`socket`'s `sys/thread.rs`). Here nothing waits for anything:
//!
//! ```text
//!   free blocks   a list for each size; its word: first block / 16 (44 bits) | how often one was taken (20 bits)
//!   new blocks    cut from chunks of 256 KiB; word: the chunk / 4096 (36 bits) | bytes that are cut off (24 bits)
//!   more than 32 KiB   pages of their own, which go back
//! ```
//! Memory in lists stays with the process, so a block that another thread has just taken can still be read.

use libc::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use socket::sys;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
const CHUNK: usize = 256 << 10;
/// Up to here a size has a list.
const LISTED_MAX: usize = 32 << 10;
/// Sizes of 16 to 128 bytes in steps of 16, then four for each doubling.
const SMALL: usize = 8;
const CLASSES: usize = SMALL + 4 * (LISTED_MAX.ilog2() - 7) as usize;

const INDEX: u64 = (1 << 44) - 1;
const TAKEN: u64 = INDEX + 1;
const CUT: u64 = (1 << 24) - 1;
const _: () = assert!(CHUNK as u64 <= CUT && LISTED_MAX <= CHUNK);

/// How often the library has asked for memory, where it is built with debug assertions: for tests of calls that are not to.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // C's name.
pub static towpath_allocations: AtomicU64 = AtomicU64::new(0);

static LISTS: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];
static CHUNK_IN_USE: AtomicU64 = AtomicU64::new(0);

/// The allocator of this library: see the module's comment.
pub struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// The list of a size, if it has one.
const fn class(size: usize) -> Option<usize> {
    if size <= 128 {
        return Some(size.saturating_sub(1) / 16);
    }
    if size > LISTED_MAX {
        return None;
    }
    let last = size - 1;
    let doubling = last.ilog2() as usize;
    Some(SMALL + (doubling - 7) * 4 + (last >> (doubling - 2) & 3))
}

/// The bytes of a block of that list.
const fn bytes(class: usize) -> usize {
    if class < SMALL {
        return (class + 1) * 16;
    }
    let (doubling, quarter) = ((class - SMALL) / 4, (class - SMALL) % 4);
    (128 << doubling) + (32 << doubling) * (quarter + 1)
}

/// What is asked for, as a size alone: blocks of a power of two lie at multiples of it.
fn size_of(layout: Layout) -> usize {
    if layout.align() <= 16 { layout.size() } else { layout.size().max(layout.align()).next_power_of_two() }
}

/// # Safety
/// None needed: new memory.
unsafe fn map(len: usize) -> Option<usize> {
    let (access, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    // SAFETY: numbers.
    unsafe { sys::raw(libc::SYS_mmap, [0, len, access as usize, flags as usize, usize::MAX, 0]) }.ok()
}

/// # Safety
/// `at` is `map`'s, and nothing lies there any more.
unsafe fn unmap(at: usize, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { sys::raw(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
}

/// The word in a free block that says which is the next.
///
/// # Safety
/// `block` is one of a list, or was.
unsafe fn next<'a>(block: usize) -> &'a AtomicU64 {
    // SAFETY: memory of lists stays, aligned to 16 bytes. A thread that has got the block by now may have written anything there: then the list's word has
    // changed, and what was read here is not used.
    unsafe { &*(block as *const AtomicU64) }
}

fn pop(list: &AtomicU64) -> Option<usize> {
    let mut word = list.load(Ordering::Acquire);
    loop {
        let block = ((word & INDEX) << 4) as usize;
        if block == 0 {
            return None;
        }
        // SAFETY: it is, or was, the first of this list.
        let after = unsafe { next(block) }.load(Ordering::Relaxed) & INDEX;
        let fresh = (word & !INDEX).wrapping_add(TAKEN) | after;
        // Acquire: what the block's last owner did comes before (pairs with the Release in `push`).
        match list.compare_exchange_weak(word, fresh, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(block),
            Err(now) => word = now,
        }
    }
}

/// # Safety
/// `block` is of that list's size, and nothing lies there any more.
unsafe fn push(list: &AtomicU64, block: usize) {
    let mut word = list.load(Ordering::Relaxed);
    loop {
        // SAFETY: the caller's promise.
        unsafe { next(block) }.store(word & INDEX, Ordering::Relaxed);
        let fresh = word & !INDEX | (block >> 4) as u64;
        match list.compare_exchange_weak(word, fresh, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => word = now,
        }
    }
}

/// New memory of a chunk.
fn cut(len: usize, align: usize) -> Option<usize> {
    let mut word = CHUNK_IN_USE.load(Ordering::Relaxed);
    loop {
        let (chunk, used) = ((word >> 24 << 12) as usize, (word & CUT) as usize);
        let from = used.next_multiple_of(align);
        if chunk != 0 && from + len <= CHUNK {
            let fresh = word & !CUT | (from + len) as u64;
            match CHUNK_IN_USE.compare_exchange_weak(word, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(chunk + from),
                Err(now) => word = now,
            }
            continue;
        }
        // SAFETY: nothing is asked.
        let made = unsafe { map(CHUNK) }?;
        let fresh = ((made >> 12) as u64) << 24 | len as u64;
        match CHUNK_IN_USE.compare_exchange(word, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(made),
            Err(now) => {
                // SAFETY: no other thread has the address of this block yet.
                unsafe { unmap(made, CHUNK) };
                word = now;
            }
        }
    }
}

/// A block of that list's size, and as many more for the list as a page has.
fn fill(class: usize) -> Option<usize> {
    let size = bytes(class);
    let count = (PAGE / size).max(1);
    let first = cut(size * count, (size & size.wrapping_neg()).min(PAGE))?;
    for i in 1..count {
        // SAFETY: new memory of that size.
        unsafe { push(&LISTS[class], first + i * size) };
    }
    Some(first)
}

// SAFETY: blocks are disjoint: each is cut off once, and is in one list or in the hands of one owner, by the exchange of the list's word.
// They are as long and as aligned as asked for: see `size_of`, `bytes`, and the alignment in `fill`.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if cfg!(debug_assertions) {
            towpath_allocations.fetch_add(1, Ordering::Relaxed);
        }
        if layout.align() > PAGE {
            return ptr::null_mut();
        }
        let size = size_of(layout);
        let at = match class(size) {
            Some(class) => pop(&LISTS[class]).or_else(|| fill(class)),
            // SAFETY: nothing is asked.
            None => unsafe { map(size) },
        };
        at.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let (at, size) = (at.expose_provenance(), size_of(layout));
        // SAFETY: the caller's promise: it is ours, of that size, and free.
        unsafe {
            match class(size) {
                Some(class) => push(&LISTS[class], at),
                None => unmap(at, size),
            }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: the size is one that a layout may have.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let (before, after) = (class(size_of(layout)), class(size_of(wanted)));
        if before.is_some() && before == after {
            return at;
        }
        // SAFETY: the caller's promise; both are as long as what is copied.
        unsafe {
            let fresh = self.alloc(wanted);
            if !fresh.is_null() {
                ptr::copy_nonoverlapping(at, fresh, layout.size().min(size));
                self.dealloc(at, layout);
            }
            fresh
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn each_size_has_the_list_of_the_least_blocks_that_hold_it() {
        for size in 1..=LISTED_MAX {
            let list = class(size).unwrap();
            assert!(bytes(list) >= size && (list == 0 || bytes(list - 1) < size), "{size}");
        }
        assert_eq!((class(0), class(LISTED_MAX + 1)), (Some(0), None));
        assert_eq!((bytes(CLASSES - 1), class(LISTED_MAX)), (LISTED_MAX, Some(CLASSES - 1)));
    }

    #[test]
    fn blocks_are_aligned_as_asked_for() {
        for shift in 0..=12 {
            for size in [1, 100, 5_000, 40_000, 300_000] {
                let layout = Layout::from_size_align(size, 1 << shift).unwrap();
                // SAFETY: the layout is not empty; what is written lies in it.
                unsafe {
                    let at = HEAP.alloc(layout);
                    assert_eq!(at.addr() % layout.align(), 0);
                    at.write_bytes(0xa5, size);
                    HEAP.dealloc(at, layout);
                }
            }
        }
    }

    /// Threads that take, fill, look at and give back blocks of few sizes.
    #[test]
    fn no_block_has_two_owners() {
        const THREADS: u64 = 4;
        let start = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for me in 0..THREADS {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let mut held: Vec<Vec<u64>> = Vec::new();
                    for round in 0..20_000u64 {
                        let len = 2 + (round * 7 + me) % 14;
                        held.push(vec![me << 32 | round; len as usize]);
                        if held.len() > 20 {
                            let given = held.swap_remove((round % 20) as usize);
                            assert!(given.iter().all(|word| *word == given[0] && word >> 32 == me));
                        }
                    }
                });
            }
        });
    }
}
