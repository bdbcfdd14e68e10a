//! Calls that the tool makes past its interface, on descriptors that it has from us: `getsockopt` for `TCP_INFO`, `sendfile`,
//! and `close` when a script ends. A library loaded with `RTLD_DEEPBIND` and `RTLD_LOCAL` cannot come before the C library by
//! its symbols, so the slots through which the main program calls these three are pointed at us. Under `LD_PRELOAD` the
//! symbols of the first two do it alone.
//!
//! Everything else that these functions are asked goes to the kernel as it is.

use crate::abi;
use libc::{c_int, c_void, dl_phdr_info, off_t, size_t, socklen_t, ssize_t};
use std::ffi::CStr;
use std::sync::Arc;

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_PLTRELSZ: u64 = 2;

/// Relocations that put a function's address into a slot: GLOB_DAT and JUMP_SLOT.
#[cfg(target_arch = "x86_64")]
const SLOT_KINDS: [u32; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const SLOT_KINDS: [u32; 2] = [1025, 1026];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const SLOT_KINDS: [u32; 0] = [];

/// `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// `Elf64_Rela`
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// Points the main program's slots at us.
pub(crate) fn install() {
    // SAFETY: the callback has the right type and is told no pointer of ours.
    unsafe { libc::dl_iterate_phdr(Some(first), std::ptr::null_mut()) };
}

/// The first object is the main program; 1 ends the walk.
unsafe extern "C" fn first(info: *mut dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
    // SAFETY: the loader's own description of an object that is loaded for good: its headers are valid, its dynamic section
    // ends with a 0, and the tables that it names have the lengths that it says.
    unsafe {
        let base = (*info).dlpi_addr;
        let headers = std::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
        if let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) {
            patch(base, (base + dynamic.p_vaddr) as *const Dynamic);
        }
    }
    1
}

/// # Safety
/// `dynamic` is the dynamic section of an object loaded at `base`.
unsafe fn patch(base: u64, dynamic: *const Dynamic) {
    let entry = |tag: u64| {
        let mut at = dynamic;
        // SAFETY: the section ends with a 0, says the caller.
        unsafe {
            while (*at).tag != 0 {
                if (*at).tag == tag {
                    return (*at).value;
                }
                at = at.add(1);
            }
        }
        0
    };
    // The loader has made addresses of most offsets, but not in every object.
    let place = |tag: u64| match entry(tag) {
        0 => None,
        value if value < base => Some(base + value),
        value => Some(value),
    };
    let (Some(symbols), Some(names)) = (place(DT_SYMTAB), place(DT_STRTAB)) else { return };
    for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        let Some(table) = place(table) else { continue };
        let count = entry(size) as usize / size_of::<Relocation>();
        // SAFETY: the object's own tables, says the caller.
        unsafe {
            for relocation in std::slice::from_raw_parts(table as *const Relocation, count) {
                if !SLOT_KINDS.contains(&(relocation.info as u32)) {
                    continue;
                }
                let symbol = (symbols as *const libc::Elf64_Sym).add((relocation.info >> 32) as usize);
                let name = CStr::from_ptr((names + u64::from((*symbol).st_name)) as *const _);
                if let Some(ours) = replacement(name) {
                    point((base + relocation.offset) as *mut usize, ours);
                }
            }
        }
    }
}

fn replacement(name: &CStr) -> Option<usize> {
    match name.to_bytes() {
        b"getsockopt" => Some(getsockopt as *const () as usize),
        b"sendfile" => Some(sendfile as *const () as usize),
        b"close" => Some(close as *const () as usize),
        _ => None,
    }
}

/// Writes a slot, which the loader may have made read-only; it is so again afterwards.
///
/// # Safety
/// `slot` is a function's slot of the main program.
unsafe fn point(slot: *mut usize, target: usize) {
    // SAFETY: a question about the machine, without pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = (slot as usize & !(page - 1)) as *mut c_void;
    // SAFETY: the page is the main program's data. It stays writable when it was not read-only before: whether it was cannot
    // be seen from here, and code that the loader resolves late writes to it.
    unsafe {
        if libc::mprotect(start, page, libc::PROT_READ | libc::PROT_WRITE) == 0 {
            slot.write(target);
        }
    }
}

fn ours(fd: c_int) -> Option<Arc<crate::world::World>> {
    crate::world().filter(|world| world.has(fd))
}

/// `getsockopt`
///
/// # Safety
/// As C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if ours(fd).is_some() {
        // SAFETY: the caller answers for the arguments.
        return unsafe { abi::getsockopt(std::ptr::null_mut(), fd, level, name, value, len) };
    }
    // SAFETY: the same call, with the caller's arguments.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int }
}

/// `sendfile`
///
/// # Safety
/// As C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let Some(world) = ours(to) else {
        // SAFETY: the same call, with the caller's arguments.
        return unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t };
    };
    let mut buffer = vec![0; count.min(16 << 20)];
    // SAFETY: a buffer of our own; the caller answers for the descriptor and the offset.
    let read = unsafe {
        if offset.is_null() {
            libc::read(from, buffer.as_mut_ptr().cast(), buffer.len())
        } else {
            libc::pread(from, buffer.as_mut_ptr().cast(), buffer.len(), *offset)
        }
    };
    let Ok(read) = usize::try_from(read) else { return -1 };
    let sent = if read == 0 { Ok(0) } else { world.send(to, &buffer[..read], 0) };
    if let (Ok(n), false) = (sent, offset.is_null()) {
        // SAFETY: as above.
        unsafe { *offset += n as off_t };
    }
    abi::status(sent)
}

/// `close`, for the slots of the main program only: our own code closes real descriptors and must not come here.
unsafe extern "C" fn close(fd: c_int) -> c_int {
    match ours(fd) {
        Some(world) => abi::status(world.close(fd).map(|()| 0_isize)) as c_int,
        // SAFETY: the same call, with the caller's argument.
        None => unsafe { libc::syscall(libc::SYS_close, fd) as c_int },
    }
}
