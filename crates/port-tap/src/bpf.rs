//! What a TAP's steering needs of the kernel's BPF: one array that is also mapped here, and one program. Knows nothing of what the program does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Commands of `bpf()` and their values (linux/bpf.h).
const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const F_MMAPABLE: u32 = 1 << 10;
/// One value, and so one mapping: a page holds it.
pub(crate) const BYTES: usize = 256;

/// The beginning of `union bpf_attr` for [`MAP_CREATE`].
#[repr(C)]
struct MapAttributes {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// The beginning of `union bpf_attr` for [`PROG_LOAD`].
#[repr(C)]
struct ProgramAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// # Safety
/// `attributes` must be the beginning of a `union bpf_attr` as `command` reads it; pointers in it must be valid for the call.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads so many bytes of the attributes, and takes those behind them as zeros; the caller guarantees the rest.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both commands return a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// An array of [`BYTES`] bytes that programs of the kernel read and this process writes.
#[derive(Debug)]
pub(crate) struct Array {
    fd: OwnedFd,
    bytes: NonNull<AtomicU8>,
}

// SAFETY: the mapping belongs to the value, and its bytes are atomics.
unsafe impl Send for Array {}

impl Array {
    /// An array of zeros (Linux 5.5 or later).
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF` (before Linux 5.8: `CAP_SYS_ADMIN`); whatever else the kernel says.
    pub(crate) fn new() -> io::Result<Self> {
        let attributes = MapAttributes {
            map_type: MAP_TYPE_ARRAY,
            key_size: 4,
            value_size: BYTES as u32,
            max_entries: 1,
            map_flags: F_MMAPABLE,
        };
        // SAFETY: these are the attributes of the command, without pointers.
        let fd = unsafe { bpf(MAP_CREATE, &attributes)? };
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses; existing memory is not touched.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, flags, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let bytes = NonNull::new(at.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { fd, bytes })
    }

    /// Descriptor of the array, for programs.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Writes one byte. Programs that run meanwhile see the old one or the new one.
    pub(crate) fn set(&self, index: u8, value: u8) {
        // SAFETY: the mapping is that long, lives as long as `self`, and is only read and written as atomics here.
        let byte = unsafe { self.bytes.add(usize::from(index)).as_ref() };
        // Release: pairs with nothing here; the kernel reads each byte by itself.
        byte.store(value, Ordering::Release);
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: `new` mapped so many bytes there, and nothing uses them any more.
        unsafe { libc::munmap(self.bytes.as_ptr().cast(), BYTES) };
    }
}

/// Loads a program that looks at frames and returns a number.
///
/// # Errors
/// As for [`Array::new`]; `EINVAL` or `EACCES` when the kernel finds a fault in the program.
pub(crate) fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let attributes = ProgramAttributes {
        prog_type: PROG_TYPE_SOCKET_FILTER,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: these are the attributes of the command; both pointers are valid for the call, in which the kernel copies what they point to.
    unsafe { bpf(PROG_LOAD, &attributes) }
}
