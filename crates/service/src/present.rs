//! Which pages of a memfd exist, asked of the kernel by seeking for holes: the service never touches a page that the
//! application has not made present (and paid for) itself.

use rustix::fd::BorrowedFd;
use rustix::fs::{SeekFrom, seek};
use std::ops::Range;

/// True when every page of `range` of the memfd is present.
pub fn is_present(fd: BorrowedFd<'_>, range: &Range<u64>) -> bool {
    range.is_empty() || seek(fd, SeekFrom::Hole(range.start)).is_ok_and(|hole| hole >= range.end)
}

/// The parts of `range` that are present, in order.
pub fn present_parts(fd: BorrowedFd<'_>, range: Range<u64>) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let Ok(start) = seek(fd, SeekFrom::Data(at)) else { break };
        if start >= range.end {
            break;
        }
        let Ok(end) = seek(fd, SeekFrom::Hole(start)) else { break };
        parts.push(start..end.min(range.end));
        at = end.max(start + 1);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use shm::{Kind, Params, Region, Side};

    #[test]
    fn only_touched_pages_are_present() {
        let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 1 << 20 };
        let (region, fd) = Region::create(params).unwrap();
        let start = region.layout().data[0] as u64;
        assert!(!is_present(fd.as_fd(), &(start..start + 4096)));
        region.populate(Side::Zero, 8192, 8192).unwrap();
        assert!(is_present(fd.as_fd(), &(start + 8192..start + 16_384)));
        assert!(!is_present(fd.as_fd(), &(start + 8192..start + 16_385)));
        let parts = present_parts(fd.as_fd(), start..start + (1 << 20));
        assert_eq!(parts, vec![start + 8192..start + 16_384; 1]);
    }
}
