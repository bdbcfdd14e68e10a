//! Whether the memory that a program passes is there: the kernel is asked, so that a bad pointer is EFAULT and no crash.

use super::{answer, call, pid};
use crate::detached::may;
use crate::log::{Level, log};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages checked by one system call.
const PROBES: usize = 64;
/// The smallest page size; with larger pages some are checked twice.
const PAGE: usize = 4096;

/// True when all `len` bytes at `at` can be read: the kernel is asked to copy one byte of each page.
#[must_use]
pub fn is_readable(at: usize, len: usize) -> bool {
    probe(at, len, false)
}

/// True when all `len` bytes at `at` can be written: one byte of each page is written back unchanged. So this is only for memory that
/// the program has passed as a buffer to write to, which no other thread uses meanwhile.
#[must_use]
pub fn is_writable(at: usize, len: usize) -> bool {
    probe(at, len, true)
}

fn probe(at: usize, len: usize, write: bool) -> bool {
    let Some(end) = at.checked_add(len) else { return false };
    let mut next = at;
    while next < end {
        let mut pages = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 }; PROBES];
        let mut n = 0;
        while n < PROBES && next < end {
            pages[n].iov_base = next as *mut libc::c_void;
            n += 1;
            next = (next | (PAGE - 1)).saturating_add(1);
        }
        if !passes(&pages[..n], write) {
            return false;
        }
    }
    true
}

/// True when one byte of each of `pages` can be copied, and with `write` also written back.
fn passes(pages: &[libc::iovec], write: bool) -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let mut bytes = [0u8; PROBES];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: pages.len().min(PROBES) };
    let calls = &[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev][..1 + usize::from(write)];
    // If the kernel cannot be asked, a bad pointer faults later, as without any check.
    let Some(own) = pid().filter(|_| calls.iter().all(|number| may(*number))) else { return true };
    for number in calls {
        let local_at = std::ptr::from_ref(&local) as usize;
        // SAFETY: the kernel checks `pages`; it writes at most `bytes.len()` bytes into `bytes`, and into `pages` the bytes that it read
        // there, which the caller's contract allows.
        let r =
            unsafe { call(*number, [own as usize, local_at, 1, pages.as_ptr() as usize, pages.len(), 0]) };
        match answer(r) {
            Ok(n) if n == local.iov_len => {}
            Ok(_) | Err(Errno::FAULT) => return false,
            Err(e) => {
                if !SAID.swap(true, Ordering::Relaxed) {
                    log(Level::Error, format_args!("pointers cannot be checked here: process_vm_readv: {e}"));
                }
                return true;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    #[test]
    fn every_page_is_looked_at_and_stays_as_it_was() {
        const LEN: usize = 200 * PAGE;
        // SAFETY: fresh memory of this test, which no other code touches until it is unmapped.
        unsafe {
            let flags = MapFlags::PRIVATE;
            let at =
                mmap_anonymous(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, flags).unwrap();
            let start = at as usize;
            at.cast::<u8>().add(LEN - 1).write(7);
            assert!(is_readable(start, LEN) && is_writable(start, LEN) && is_writable(start + 5, LEN - 5));
            assert_eq!(at.cast::<u8>().add(LEN - 1).read(), 7);
            assert!(is_writable(0, 0) && !is_readable(0, 1) && !is_readable(usize::MAX, 2));
            assert!(!is_readable(usize::MAX - 1, 1), "the kernel's half of the addresses");
            let last = at.cast::<u8>().add(LEN - PAGE).cast();
            mprotect(last, PAGE, MprotectFlags::READ).unwrap();
            assert!(is_readable(start, LEN) && !is_writable(start, LEN) && is_writable(start, LEN - PAGE));
            mprotect(last, PAGE, MprotectFlags::empty()).unwrap();
            assert!(!is_readable(start, LEN) && !is_readable(start + LEN - PAGE, 1));
            munmap(at, LEN).unwrap();
            assert!(!is_readable(start, 1));
        }
    }
}
