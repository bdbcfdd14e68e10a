//! Which pages of a region are present. Of the data areas, and of the socket blocks that it searches,
//! the service touches no page that the application has not made present, and so paid for.
//! `mincore` tells it without a lock of the memfd; `SEEK_HOLE` would wait for a process that holds that lock.

use base::limits::PAGE;
use rustix::fd::BorrowedFd;
use shm::Region;
use std::ops::Range;

/// Bytes read at a time to bring swapped pages back.
const CHUNK: usize = 64 << 10;
/// Most pages that one `mincore` call asks about.
const PAGES: usize = 512;

/// A region and its memfd, to ask which pages are present.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// The service's mapping of the region.
    pub region: &'a Region,
    /// The memfd behind it.
    pub fd: BorrowedFd<'a>,
}

impl Pages<'_> {
    /// True when every page of `range` (bytes of the region) is present. Stops at the first that is not. Where the machine has swapped pages,
    /// reads the memfd to bring them back; that makes no new pages.
    pub fn is_present(&self, range: &Range<u64>) -> bool {
        let (mut at, end) = pages_of(range);
        let mut pages = [0; PAGES];
        while at < end {
            let pages = &mut pages[..(end - at).min(PAGES)];
            self.ask(at, pages);
            let Some(absent) = pages.iter().position(|page| !is_resident(*page)) else {
                at += pages.len();
                continue;
            };
            if !has_swapped() {
                return false;
            }
            let all = &mut pages[absent..];
            let count = all.iter().take(CHUNK / PAGE).take_while(|page| !is_resident(**page)).count();
            at += absent;
            self.read(&((at * PAGE) as u64..((at + count) * PAGE) as u64));
            self.ask(at, &mut all[..count]);
            if !all[..count].iter().all(|page| is_resident(*page)) {
                return false;
            }
            at += count;
        }
        true
    }

    /// The parts of `range` (bytes of the region) that are present, in order.
    pub fn present_parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        if has_swapped() {
            self.parts(range, false).iter().for_each(|part| self.read(part));
        }
        self.parts(range, true)
    }

    /// Asks the kernel about so many pages from page `at` on.
    fn ask(&self, at: usize, pages: &mut [u8]) {
        #[cfg(test)]
        tests::ASKED.set(tests::ASKED.get() + pages.len());
        if self.region.residency(at * PAGE, pages).is_err() {
            // The kernel does not tell: these pages count as absent.
            pages.fill(0);
        }
    }

    /// The parts of `range` that are in memory, or with `resident` false those that are not.
    fn parts(&self, range: &Range<u64>, resident: bool) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        let (mut at, end) = pages_of(range);
        let mut pages = [0; PAGES];
        while at < end {
            let pages = &mut pages[..(end - at).min(PAGES)];
            self.ask(at, pages);
            for (i, _) in pages.iter().enumerate().filter(|(_, page)| is_resident(**page) == resident) {
                let start = ((at + i) * PAGE) as u64;
                let part = start.max(range.start)..(start + PAGE as u64).min(range.end);
                match parts.last_mut().filter(|last| last.end == part.start) {
                    Some(last) => last.end = part.end,
                    None => parts.push(part),
                }
            }
            at += pages.len();
        }
        parts
    }

    fn read(&self, part: &Range<u64>) {
        let (mut at, mut bytes) = (part.start, [0; CHUNK]);
        while at < part.end {
            let room = ((part.end - at) as usize).min(CHUNK);
            #[cfg(test)]
            tests::READ.set(tests::READ.get() + room);
            match rustix::io::pread(self.fd, &mut bytes[..room], at) {
                Ok(n) if n > 0 => at += n as u64,
                _ => return,
            }
        }
    }
}

/// The pages of `range`: the first, and the end.
fn pages_of(range: &Range<u64>) -> (usize, usize) {
    (range.start as usize / PAGE, range.end.div_ceil(PAGE as u64) as usize)
}

/// True for a page that is in memory, as `mincore` says.
const fn is_resident(page: u8) -> bool {
    page & 1 != 0
}

/// True when the machine has swapped pages.
fn has_swapped() -> bool {
    let info = rustix::system::sysinfo();
    info.totalswap > info.freeswap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::memory::Memory;
    use flow::Limits;
    use queue::Ring;
    use rustix::fd::AsFd;
    use shm::{Kind, Params, Side};
    use std::cell::Cell;

    thread_local! {
        /// Pages that the kernel was asked about, and bytes read, by this thread.
        pub static ASKED: Cell<usize> = const { Cell::new(0) };
        pub static READ: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn a_look_ends_at_the_first_absent_page() {
        let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 256 << 20 };
        let (region, fd) = Region::create(params).unwrap();
        let (start, pages) = (region.layout().data[0] as u64, Pages { region: &region, fd: fd.as_fd() });
        region.populate(Side::Zero, 0, 1 << 20).unwrap();
        let before = (ASKED.get(), READ.get());
        assert!(!pages.is_present(&(start..start + (256 << 20))));
        let (asked, read) = (ASKED.get() - before.0, READ.get() - before.1);
        assert!(
            asked <= 2 * PAGES && read <= CHUNK,
            "{asked} pages asked about and {read} bytes read of a hole"
        );
    }

    #[test]
    fn of_an_applications_ring_only_the_part_that_is_read_is_asked_about() {
        let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 256 << 20 };
        let (region, fd) = Region::create(params).unwrap();
        let memory = Memory::new(1, 0, region, fd, Limits::none());
        memory.region().populate(Side::One, 0, 64 << 10).unwrap();
        let ring = Ring::new(0, 28);
        let before = ASKED.get();
        assert_eq!(memory.check_ring(ring, &[(0, 32 << 10), (48 << 10, 16 << 10)]), Ok(()));
        assert!(memory.check_ring(ring, &[(0, 32 << 10), (64 << 10, 1)]).is_err(), "that is absent");
        let asked = ASKED.get() - before;
        assert!(asked <= 32, "{asked} pages of a ring that the application says is long");
    }

    #[test]
    fn a_watermark_rises_from_where_it_is() {
        let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 4 << 20 };
        let (region, fd) = Region::create(params).unwrap();
        let memory = Memory::new(1, 0, region, fd, Limits::none());
        let populate = |side| memory.region().populate(side, 0, 2 << 20).unwrap();
        [Side::Zero, Side::One].into_iter().for_each(populate);
        assert!(memory.raise_watermark(1 << 20));
        let before = ASKED.get();
        assert!(memory.raise_watermark(1 << 20) && memory.raise_watermark(64 << 10));
        assert_eq!(ASKED.get() - before, 0, "what is below the watermark stays present");
        assert!(memory.raise_watermark(2 << 20));
        assert_eq!(ASKED.get() - before, 2 * (1 << 20) / PAGE);
        assert!(!memory.raise_watermark(3 << 20) && !memory.raise_watermark(8 << 20));
        assert_eq!(memory.area.lendable(), 2 << 20);
    }

    #[test]
    fn only_touched_pages_are_present() {
        let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 1 << 20 };
        let (region, fd) = Region::create(params).unwrap();
        let start = region.layout().data[0] as u64;
        let pages = Pages { region: &region, fd: fd.as_fd() };
        assert!(!pages.is_present(&(start..start + 4096)));
        region.populate(Side::Zero, 8192, 8192).unwrap();
        assert!(pages.is_present(&(start + 8192..start + 16_384)));
        assert!(pages.is_present(&(start + 8200..start + 16_000)));
        assert!(!pages.is_present(&(start + 8192..start + 16_385)));
        let parts = pages.present_parts(&(start..start + (1 << 20)));
        assert_eq!(parts, vec![start + 8192..start + 16_384; 1]);
        assert!(!pages.is_present(&(start..start + 8192)), "asking makes nothing present");
    }
}
