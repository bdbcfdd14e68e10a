//! The memory of one listening socket's accept queue: two files, drawn, asserted and mapped. The protocol over them is `queue::accept`.
//!
//! ```text
//!   file            written by                                       what
//!   QueueWords      the service, the socket's holders, processes     which grants wait to be accepted, and which threads sleep
//!                   that connect directly
//!   GrantTable      the service alone; the file is sealed so that    what each grant is: region, slot and addresses
//!                   the kernel refuses any other writable mapping
//! ```
//! A *grant* is a connection, or a slot in which one process may make connections to this socket without asking the service. Its number
//! is its index in both files. So a hostile holder of the socket can take connections, as by `accept`, but cannot say where they come from.

use crate::atomic::{AtomicU32, AtomicU64};
use crate::layout::WORDS_MAX;

/// Most grants of one accept queue.
pub const GRANTS: usize = WORDS_MAX * 64;
/// Most threads and epoll sets that sleep at one accept queue.
#[cfg(not(loom))]
pub const SLEEPERS: usize = 256;
/// For loom models: few sleepers, so that all interleavings can be checked.
#[cfg(loom)]
pub const SLEEPERS: usize = 64;
/// Number of words of `waiting` covered by one bit of `top`.
pub const WORDS_PER_GROUP: usize = WORDS_MAX.div_ceil(64);
/// Words of a grant's record.
pub const RECORD_WORDS: usize = 6;

/// Bits of [`QueueWords::flags`].
pub mod queue_flags {
    /// Some process waits for the listening socket, has waited, or is sure to, by a call that the library sees.
    pub const AWAITED: u32 = 1;
    /// Connections wait for room in the queue: the process that accepts one tells the service.
    pub const WANT_ROOM: u32 = 1 << 1;
}

/// Bits of a word of [`QueueWords::states`]; 0: the grant does not wait to be accepted.
pub mod grant_state {
    /// The grant waits to be accepted; the other bits are its ticket, by which the oldest is accepted first.
    pub const QUEUED: u32 = 1 << 31;
    /// A process is accepting the grant; the other bits are its application id.
    pub const CLAIMED: u32 = 1 << 30;
    /// Mask of a ticket, or of an application id.
    pub const VALUE: u32 = CLAIMED - 1;
}

/// Bits of a word of [`QueueWords::sleepers`]; 0: free.
pub mod sleeper {
    /// The word is in use.
    pub const TAKEN: u64 = 1 << 63;
    /// The sleeper wants to be woken only if no other sleeper like it is (a blocked `accept`, `EPOLLEXCLUSIVE`).
    pub const EXCLUSIVE: u64 = 1 << 62;
    /// Lowest bit of the sleeper's application id; below it is the number of its context.
    pub const APPLICATION_SHIFT: u32 = 8;
}

/// What waits to be accepted, and what sleeps. Any process that has the file may write anything here.
///
/// ```text
///   0    next u32 | turn u32 | flags u32 | arrivals u32 | since u32 | seen u32
///   64   asleep u64 x 4 | woken u64 x 4      a bit each for each word of `sleepers`
///   128  top u64                    bit g: group g of `waiting` has a set bit
///   192  waiting u64 x 1024         a bit for each grant that is QUEUED
///        sleepers u64 x 256
///        states u32 x 65536
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
pub struct QueueWords {
    /// Ticket of the next connection.
    pub next: AtomicU32,
    /// Index of the sleeper that is woken next, so that they take turns.
    pub turn: AtomicU32,
    /// Bits of [`queue_flags`].
    pub flags: AtomicU32,
    /// Number of connections that were put in so far; counted after `waiting` has the bit.
    pub arrivals: AtomicU32,
    /// When the first connection after the last look of an epoll set came, as `cycles::moment` says; events of sockets are put in order by it.
    pub since: AtomicU32,
    /// Value of `arrivals` at the last look of an epoll set.
    pub seen: AtomicU32,
    pad: [AtomicU32; 10],
    /// A bit for each sleeper that is to be woken.
    pub asleep: [AtomicU64; SLEEPERS / 64],
    /// A bit for each exclusive sleeper that was woken for a connection and has not looked yet.
    pub woken: [AtomicU64; SLEEPERS / 64],
    pad2: [AtomicU64; 8 - 2 * (SLEEPERS / 64)],
    /// Bit `g`: group `g` of `waiting` has a set bit.
    pub top: AtomicU64,
    pad3: [AtomicU64; 7],
    /// A bit for each grant that waits to be accepted.
    pub waiting: [AtomicU64; WORDS_MAX],
    /// The sleepers: words of [`sleeper`].
    pub sleepers: [AtomicU64; SLEEPERS],
    /// The states of the grants: words of [`grant_state`].
    pub states: [AtomicU32; GRANTS],
}

/// One grant as the service describes it.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, expect(dead_code))]
pub struct GrantRecord {
    /// Changes with each new record; odd while it is being written.
    serial: AtomicU64,
    words: [AtomicU64; RECORD_WORDS],
    pad: AtomicU64,
}

/// The grants of one accept queue, written by the service only.
///
/// ```text
///   0    epoch u32    0: the socket no longer listens; changes when direct connectors must ask the service again
///   4    backlog u32 | 8 nonblocking u32
///   64   GrantRecord x 65536
/// ```
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, expect(dead_code))]
pub struct GrantTable {
    /// 0: the socket no longer listens. Changes when direct connectors must ask the service again.
    pub epoch: AtomicU32,
    /// The backlog, as given to `listen`.
    pub backlog: AtomicU32,
    /// 1: the program has set `O_NONBLOCK` on the listening socket.
    pub nonblocking: AtomicU32,
    pad: [AtomicU32; 13],
    grants: [GrantRecord; GRANTS],
}

#[cfg(loom)]
impl Default for QueueWords {
    fn default() -> Self {
        Self {
            next: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            arrivals: AtomicU32::new(0),
            since: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            pad: std::array::from_fn(|_| AtomicU32::new(0)),
            asleep: std::array::from_fn(|_| AtomicU64::new(0)),
            woken: std::array::from_fn(|_| AtomicU64::new(0)),
            pad2: std::array::from_fn(|_| AtomicU64::new(0)),
            top: AtomicU64::new(0),
            pad3: std::array::from_fn(|_| AtomicU64::new(0)),
            waiting: std::array::from_fn(|_| AtomicU64::new(0)),
            sleepers: std::array::from_fn(|_| AtomicU64::new(0)),
            states: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(core::mem::offset_of!(QueueWords, asleep) == 64 && core::mem::offset_of!(QueueWords, top) == 128);
    assert!(core::mem::offset_of!(QueueWords, waiting) == 192);
    assert!(size_of::<QueueWords>() == 192 + WORDS_MAX * 8 + SLEEPERS * 8 + GRANTS * 4);
    assert!(size_of::<GrantRecord>() == 64 && size_of::<GrantTable>() == 64 + GRANTS * 64);
};

#[cfg(not(loom))]
pub use mapped::AcceptQueue;

#[cfg(not(loom))]
mod mapped {
    use super::{GRANTS, GrantTable, QueueWords, RECORD_WORDS};
    use crate::RegionError;
    use crate::map::Mapping;
    use core::sync::atomic::{Ordering, fence};
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
    use rustix::fs::{
        MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
    };
    use std::ffi::CStr;

    /// The memory of one accept queue, mapped: both files, the second one for reading unless this is the service.
    #[derive(Debug)]
    pub struct AcceptQueue {
        words: Mapping,
        table: Mapping,
        is_writer: bool,
    }

    const RESIZING: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

    fn memfd(name: &CStr, size: usize) -> rustix::io::Result<OwnedFd> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, size as u64)?;
        Ok(fd)
    }

    fn has_size(fd: BorrowedFd<'_>, size: usize) -> Result<(), RegionError> {
        let seals = fcntl_get_seals(fd).map_err(|_| RegionError::NotSealed)?;
        if seals.contains(RESIZING) && fstat(fd)?.st_size == size as i64 {
            Ok(())
        } else {
            Err(RegionError::NotSealed)
        }
    }

    impl AcceptQueue {
        /// Makes the two files of an empty queue, which has epoch 0. The caller is the only process that can ever write the grants.
        ///
        /// # Errors
        /// The kernel has no memory or descriptors left.
        pub fn create() -> Result<(Self, [OwnedFd; 2]), RegionError> {
            let words_fd = memfd(c"towpath-queue", size_of::<QueueWords>())?;
            let table_fd = memfd(c"towpath-grants", size_of::<GrantTable>())?;
            let words = Mapping::new(words_fd.as_fd(), size_of::<QueueWords>())?;
            let table = Mapping::new(table_fd.as_fd(), size_of::<GrantTable>())?;
            // SEAL: a process that has the file could otherwise seal it against the holders that come later.
            fcntl_add_seals(&words_fd, RESIZING | SealFlags::SEAL)?;
            fcntl_add_seals(&table_fd, RESIZING | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
            Ok((Self { words, table, is_writer: true }, [words_fd, table_fd]))
        }

        /// Maps the two files of a queue that the service has made.
        ///
        /// # Errors
        /// A file may change its size or has another one, or the kernel has no place for it.
        pub fn open([words, table]: [BorrowedFd<'_>; 2]) -> Result<Self, RegionError> {
            has_size(words, size_of::<QueueWords>())?;
            has_size(table, size_of::<GrantTable>())?;
            let words = Mapping::new(words, size_of::<QueueWords>())?;
            let table = Mapping::read_only(table, size_of::<GrantTable>())?;
            Ok(Self { words, table, is_writer: false })
        }

        /// Bytes of address space that a mapped queue takes.
        #[must_use]
        pub const fn mapped_bytes() -> usize {
            size_of::<QueueWords>() + size_of::<GrantTable>()
        }

        /// The words that all may write.
        #[must_use]
        #[inline]
        pub fn words(&self) -> &QueueWords {
            // SAFETY: the mapping has the size of the type and starts at a page; the type consists of atomics.
            unsafe { &*self.words.at(0).cast::<QueueWords>() }
        }

        /// The grants, for reading.
        #[inline]
        fn table(&self) -> &GrantTable {
            // SAFETY: as above; where the mapping is read-only this module only loads.
            unsafe { &*self.table.at(0).cast::<GrantTable>() }
        }

        /// 0: the socket no longer listens. Changes when direct connectors must ask the service again.
        #[must_use]
        #[inline]
        pub fn epoch(&self) -> u32 {
            self.table().epoch.load(Ordering::SeqCst)
        }

        /// The backlog, as given to `listen`.
        #[must_use]
        #[inline]
        pub fn backlog(&self) -> u32 {
            self.table().backlog.load(Ordering::Relaxed)
        }

        /// True when the program has set `O_NONBLOCK` on the listening socket. All its holders share the setting, as on Linux.
        #[must_use]
        #[inline]
        pub fn is_nonblocking(&self) -> bool {
            self.table().nonblocking.load(Ordering::Relaxed) != 0
        }

        /// Sets what [`is_nonblocking`](Self::is_nonblocking) says; only the service may.
        pub fn set_nonblocking(&self, on: bool) {
            assert!(self.is_writer, "the service writes the grants");
            self.table().nonblocking.store(u32::from(on), Ordering::Relaxed);
        }

        /// Sets what [`epoch`](Self::epoch) and [`backlog`](Self::backlog) say; only the service may.
        pub fn set(&self, epoch: u32, backlog: u32) {
            assert!(self.is_writer, "the service writes the grants");
            self.table().backlog.store(backlog, Ordering::Relaxed);
            self.table().epoch.store(epoch, Ordering::SeqCst);
        }

        /// Describes grant `grant`; only the service may. Ignores a number past the table.
        pub fn write(&self, grant: u32, record: [u64; RECORD_WORDS]) {
            assert!(self.is_writer, "the service writes the grants");
            let Some(place) = self.table().grants.get(grant as usize) else { return };
            let serial = place.serial.load(Ordering::Relaxed);
            place.serial.store(serial.wrapping_add(1) | 1, Ordering::Relaxed);
            fence(Ordering::Release);
            for (word, value) in place.words.iter().zip(record) {
                word.store(value, Ordering::Relaxed);
            }
            place.serial.store((serial | 1).wrapping_add(1), Ordering::Release);
        }

        /// The description of grant `grant`. `None`: there is none, or the service is writing it.
        #[must_use]
        pub fn read(&self, grant: u32) -> Option<[u64; RECORD_WORDS]> {
            let place = self.table().grants.get(grant as usize)?;
            let serial = place.serial.load(Ordering::Acquire);
            let record = place.words.each_ref().map(|word| word.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            let is_whole = serial.is_multiple_of(2) && place.serial.load(Ordering::Relaxed) == serial;
            is_whole.then_some(record)
        }
    }

    const _: () = assert!(GRANTS <= 1 << 16);

    #[cfg(test)]
    mod tests {
        use super::*;
        use rustix::mm::{MapFlags, ProtFlags, mmap};

        #[test]
        fn only_the_maker_of_a_queue_can_describe_its_grants() {
            let (queue, [words, table]) = AcceptQueue::create().unwrap();
            let other = AcceptQueue::open([words.as_fd(), table.as_fd()]).unwrap();
            queue.write(7, [1, 2, 3, 4, 5, 6]);
            queue.set(3, 128);
            assert_eq!(other.read(7), Some([1, 2, 3, 4, 5, 6]));
            assert_eq!((other.epoch(), other.backlog()), (3, 128));
            assert_eq!(other.read(GRANTS as u32), None);
            other.words().next.store(9, Ordering::Relaxed);
            assert_eq!(queue.words().next.load(Ordering::Relaxed), 9);
            // SAFETY: the kernel refuses the mapping.
            let mapped =
                unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::WRITE, MapFlags::SHARED, &table, 0) };
            assert!(mapped.is_err(), "the grants are read-only for others");
            assert!(rustix::io::pwrite(&table, &[1], 0).is_err());
            assert!(fcntl_add_seals(&words, SealFlags::FUTURE_WRITE).is_err());
        }

        #[test]
        fn a_file_of_another_size_is_no_queue() {
            let (_, [words, table]) = AcceptQueue::create().unwrap();
            assert!(AcceptQueue::open([table.as_fd(), words.as_fd()]).is_err());
            let unsealed = memfd(c"x", size_of::<QueueWords>()).unwrap();
            assert!(AcceptQueue::open([unsealed.as_fd(), table.as_fd()]).is_err());
        }
    }
}
