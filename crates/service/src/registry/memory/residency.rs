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
const PAGES: usize = 4096;

/// A region and its memfd, to ask which pages are present.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// The service's mapping of the region.
    pub region: &'a Region,
    /// The memfd behind it.
    pub fd: BorrowedFd<'a>,
}

impl Pages<'_> {
    /// True when every page of `range` (bytes of the region) is present. Reads the memfd to bring swapped pages back; that makes no new
    /// pages.
    pub fn is_present(&self, range: &Range<u64>) -> bool {
        self.parts(range, false).into_iter().all(|part| {
            self.read(&part);
            self.parts(&part, false).is_empty()
        })
    }

    /// The parts of `range` (bytes of the region) that are present, in order.
    pub fn present_parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        if has_swapped() {
            self.parts(range, false).iter().for_each(|part| self.read(part));
        }
        self.parts(range, true)
    }

    /// The parts of `range` that are in memory, or with `resident` false those that are not.
    fn parts(&self, range: &Range<u64>, resident: bool) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        let (mut at, end) = (range.start as usize / PAGE, range.end.div_ceil(PAGE as u64) as usize);
        let mut pages = [0; PAGES];
        while at < end {
            let pages = &mut pages[..(end - at).min(PAGES)];
            if self.region.residency(at * PAGE, pages).is_err() {
                // The kernel does not tell: these pages count as absent.
                pages.fill(0);
            }
            for (i, _) in pages.iter().enumerate().filter(|(_, page)| (**page & 1 != 0) == resident) {
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
            match rustix::io::pread(self.fd, &mut bytes[..room], at) {
                Ok(n) if n > 0 => at += n as u64,
                _ => return,
            }
        }
    }
}

/// True when the machine has swapped pages.
fn has_swapped() -> bool {
    let info = rustix::system::sysinfo();
    info.totalswap > info.freeswap
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use shm::{Kind, Params, Side};

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
