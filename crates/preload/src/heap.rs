//! The library's own allocator. It cannot use the C library's `malloc`: a signal handler that makes a socket may have interrupted the
//! program in `malloc`, a child made past `fork` may find its lock taken by a thread that does not exist there, and the C library does
//! not know one thread of ours (`socket`'s `sys/thread.rs`). No call here waits for another:
//!
//! ```text
//!   free blocks   a list for each size; its word: first block / 16 (44 bits) | how often one was taken (20 bits)
//!   new blocks    cut from chunks of 256 KiB; word: the chunk / 4096 (36 bits) | bytes that are cut off (24 bits)
//!   more than 32 KiB   pages of their own, which go back
//! ```
//! Listed memory is never unmapped, so a block that another thread has just taken can still be read.

use libc::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use session::sys;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
const CHUNK: usize = 256 << 10;
/// Bytes cut off a chunk for a list that is empty. Less than a page: a short program uses few blocks of many sizes, and each page costs a
/// fault.
const CUT_AT_ONCE: usize = 512;
/// Largest size in bytes that has a list.
const LISTED_MAX: usize = 32 << 10;
/// Size classes: 16 to 128 bytes in steps of 16, then four for each doubling.
const SMALL: usize = 8;
const CLASSES: usize = SMALL + 4 * (LISTED_MAX.ilog2() - 7) as usize;

const INDEX: u64 = (1 << 44) - 1;
const TAKEN: u64 = INDEX + 1;
const CUT: u64 = (1 << 24) - 1;
const _: () = assert!(CHUNK as u64 <= CUT && LISTED_MAX <= CHUNK);

/// Number of allocations; counted only with debug assertions, for tests of calls that must not allocate.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // C's name.
pub static towpath_allocations: AtomicU64 = AtomicU64::new(0);

static LISTS: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];
static CHUNK_IN_USE: AtomicU64 = AtomicU64::new(0);

/// The allocator of this library.
pub struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// The list for a size, if the size has one.
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

/// The size in bytes of the blocks in a list.
const fn bytes(class: usize) -> usize {
    if class < SMALL {
        return (class + 1) * 16;
    }
    let (doubling, quarter) = ((class - SMALL) / 4, (class - SMALL) % 4);
    (128 << doubling) + (32 << doubling) * (quarter + 1)
}

/// The size that meets a layout's size and alignment: larger alignments get a power of two, as such blocks are aligned to their size.
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
/// `at` was returned by `map`, and the memory is not used any more.
unsafe fn unmap(at: usize, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { sys::raw(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
}

/// The word in a free block that holds the next block of the list.
///
/// # Safety
/// `block` is, or was, in a list.
unsafe fn next<'a>(block: usize) -> &'a AtomicU64 {
    // SAFETY: listed memory stays mapped, aligned to 16 bytes. A thread that has taken the block meanwhile may have written anything there;
    // then the list's word has changed, and the value read here is not used.
    unsafe { &*(block as *const AtomicU64) }
}

fn pop(list: &AtomicU64) -> Option<usize> {
    let mut word = list.load(Ordering::Acquire);
    loop {
        let block = ((word & INDEX) << 4) as usize;
        if block == 0 {
            return None;
        }
        // SAFETY: `block` is, or was, the first of this list.
        let after = unsafe { next(block) }.load(Ordering::Relaxed) & INDEX;
        let fresh = (word & !INDEX).wrapping_add(TAKEN) | after;
        // Acquire: the last owner's use of the block comes before (pairs with the Release in `push`).
        match list.compare_exchange_weak(word, fresh, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(block),
            Err(now) => word = now,
        }
    }
}

/// # Safety
/// `block` has the size of that list, and is not used any more.
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

/// Cuts `len` new bytes off a chunk.
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
        // SAFETY: `map` has no preconditions.
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

/// A new block for a list; what else [`CUT_AT_ONCE`] holds of such blocks goes into the list.
fn fill(class: usize) -> Option<usize> {
    let size = bytes(class);
    let count = (CUT_AT_ONCE / size).max(1);
    let first = cut(size * count, (size & size.wrapping_neg()).min(PAGE))?;
    for i in 1..count {
        // SAFETY: new memory of the size of this list.
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
            // SAFETY: `map` has no preconditions.
            None => unsafe { map(size) },
        };
        at.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let (at, size) = (at.expose_provenance(), size_of(layout));
        // SAFETY: the caller's promise: the block came from here, has that size, and is not used any more.
        unsafe {
            match class(size) {
                Some(class) => push(&LISTS[class], at),
                None => unmap(at, size),
            }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: the size is valid for a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let (before, after) = (class(size_of(layout)), class(size_of(wanted)));
        if before.is_some() && before == after {
            return at;
        }
        // SAFETY: the caller's promise; both blocks are at least as long as the copy.
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
                // SAFETY: the layout is not empty; the write stays inside it.
                unsafe {
                    let at = HEAP.alloc(layout);
                    assert_eq!(at.addr() % layout.align(), 0);
                    at.write_bytes(0xa5, size);
                    HEAP.dealloc(at, layout);
                }
            }
        }
    }

    /// Threads that take, fill, check and give back blocks of a few sizes.
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
