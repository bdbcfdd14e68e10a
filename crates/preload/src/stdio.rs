//! The C library's streams (`FILE`) over our sockets. It reads and writes inside itself, past the symbols that we replace; so such a
//! stream gets functions (`fopencookie(3)`) that read and write by descriptor as everybody does, whatever stands behind it.

use crate::{bytes, descriptors, next};
use libc::{FILE, c_char, c_int, c_void, off_t, size_t, ssize_t};
use socket::fds;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

/// The first members of `FILE`, which are part of the C library's interface (`bits/types/struct_FILE.h`).
#[repr(C)]
struct Stream {
    flags: c_int,
    read: [*mut c_char; 3],
    write_base: *mut c_char,
    write_at: *mut c_char,
    write_end: *mut c_char,
    buffer: [*mut c_char; 2],
    saved: [*mut c_char; 3],
    markers: *mut c_void,
    chain: *mut FILE,
    number: c_int,
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    /// See fopencookie(3).
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    /// See stdio_ext(3).
    fn __fpurge(stream: *mut FILE);
    /// See flockfile(3).
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
    /// See vasprintf(3). A list of arguments is passed as a pointer on the machines we know.
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
    fn __vasprintf_chk(
        text: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        list: *mut c_void,
    ) -> c_int;
}

/// The streams that are ours, without a lock: a forked child has them, too. Places are used again and never freed.
struct Known {
    stream: AtomicPtr<FILE>,
    next: *const Known,
}

static KNOWN: AtomicPtr<Known> = AtomicPtr::new(ptr::null_mut());

fn known() -> impl Iterator<Item = &'static AtomicPtr<FILE>> {
    // SAFETY: what was put into the list lives for ever.
    let read = |at: *const Known| unsafe { at.as_ref() };
    std::iter::successors(read(KNOWN.load(Ordering::Acquire)), move |known| read(known.next))
        .map(|known| &known.stream)
}

fn exchange(place: &AtomicPtr<FILE>, old: *mut FILE, new: *mut FILE) -> bool {
    place.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

fn remember(stream: *mut FILE) {
    if known().any(|place| exchange(place, ptr::null_mut(), stream)) {
        return;
    }
    let fresh = Box::leak(Box::new(Known { stream: AtomicPtr::new(stream), next: ptr::null() }));
    let push = |first: *mut Known| {
        fresh.next = first;
        Some(ptr::from_mut(fresh))
    };
    // It always says yes.
    let _ = KNOWN.fetch_update(Ordering::AcqRel, Ordering::Acquire, push);
}

fn number(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { bytes::read(number(cookie), buffer.cast(), len) }
}

/// As the C library wants it: all of it, or there was an error.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, data: *const c_char, len: size_t) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: the C library's buffer.
        let n = unsafe { bytes::write(number(cookie), data.add(done).cast(), len - done) };
        if n < 0 {
            break;
        }
        done += n as usize;
    }
    done as ssize_t
}

unsafe extern "C-unwind" fn seek(cookie: *mut c_void, at: *mut off_t, whence: c_int) -> c_int {
    // SAFETY: numbers, and the C library's place for one.
    unsafe {
        let found = next::lseek(number(cookie), *at, whence);
        if found < 0 {
            return -1;
        }
        *at = found;
    }
    0
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: a number.
    unsafe { descriptors::close(number(cookie)) }
}

/// A stream over a descriptor.
///
/// # Safety
/// `mode` is a string.
unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: functions of the types that C names; the number of a new stream is its owner's to set.
    unsafe {
        let stream = fopencookie(fd as usize as *mut c_void, mode, Functions { read, write, seek, close });
        if !stream.is_null() {
            (*stream.cast::<Stream>()).number = fd;
            remember(stream);
        }
        stream
    }
}

/// See fdopen(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: C's contract.
    unsafe { if fds::is_ours(fd) && !fds::is_borrowed() { open(fd, mode) } else { next::fdopen(fd, mode) } }
}

/// See fclose(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    if !stream.is_null() {
        let _ = known().any(|place| exchange(place, stream, ptr::null_mut()));
    }
    // SAFETY: C's contract.
    unsafe { next::fclose(stream) }
}

/// What stands in the place of `stdin`, `stdout` and `stderr`.
static STANDARD: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];

/// Descriptor `fd` has just become another: where it is a standard one and a socket, the standard stream goes there, too.
pub fn follow(fd: c_int) {
    let Some(ours) = usize::try_from(fd).ok().and_then(|fd| STANDARD.get(fd)) else { return };
    if !fds::is_ours(fd) || fds::is_borrowed() {
        return;
    }
    // SAFETY: the C library's variables, which a program may assign to; whoever puts a socket in the place of a standard
    // descriptor does not use the stream in another thread at the same time.
    unsafe {
        let (place, mode) = match fd {
            0 => (&raw mut stdin, c"r"),
            1 => (&raw mut stdout, c"w"),
            _ => (&raw mut stderr, c"w"),
        };
        let old = *place;
        if old.is_null() || old == ours.load(Ordering::Acquire) || (*old.cast::<Stream>()).number != fd {
            return;
        }
        let fresh = open(fd, mode.as_ptr());
        if fresh.is_null() {
            return;
        }
        if fd == libc::STDERR_FILENO {
            libc::setvbuf(fresh, ptr::null_mut(), libc::_IONBF, 0);
        }
        hand_on(old, fresh);
        ours.store(fresh, Ordering::Release);
        *place = fresh;
    }
}

/// What `old` has yet to write `fresh` writes.
///
/// # Safety
/// Two streams that nobody else uses.
unsafe fn hand_on(old: *mut FILE, fresh: *mut FILE) {
    // SAFETY: the caller's promise; between these two places lie the bytes that are not yet written.
    unsafe {
        let stream = old.cast::<Stream>();
        let waiting = ((*stream).write_at as usize).saturating_sub((*stream).write_base as usize);
        if waiting > 0 {
            libc::fwrite((*stream).write_base.cast(), 1, waiting, fresh);
            __fpurge(old);
        }
    }
}

/// At the end of the process, while its connections are still its: what streams hold back is written.
pub fn flush() {
    for stream in known().map(|place| place.load(Ordering::Acquire)).filter(|stream| !stream.is_null()) {
        // SAFETY: a stream that is open; one that another thread is in the middle of is left to it.
        unsafe {
            if ftrylockfile(stream) == 0 {
                fflush_unlocked(stream);
                funlockfile(stream);
            }
        }
    }
}

/// Writes what `make` prints; how long that is.
///
/// # Safety
/// `make` leaves a text that is to be freed, or returns a number below 0.
unsafe fn print(fd: c_int, make: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = ptr::null_mut();
    let len = make(&raw mut text);
    if len < 0 {
        return len;
    }
    // SAFETY: `len` bytes stand at `text`, which is to be freed.
    unsafe {
        let written = write(fd as usize as *mut c_void, text, len as usize);
        libc::free(text.cast());
        if written == len as ssize_t { len } else { -1 }
    }
}

/// See dprintf(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    // SAFETY: C's contract.
    unsafe {
        if !fds::is_ours(fd) {
            return next::vdprintf(fd, format, list);
        }
        print(fd, |text| vasprintf(text, format, list))
    }
}

/// See dprintf(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: C's contract.
    unsafe {
        if !fds::is_ours(fd) {
            return next::__vdprintf_chk(fd, flag, format, list);
        }
        print(fd, |text| __vasprintf_chk(text, flag, format, list))
    }
}

/// Functions with arguments after the named ones: what the registers hold is put where a list of arguments has it (System V ABI for
/// AMD64, section 3.5.7), and the function that takes a list goes on.
#[cfg(target_arch = "x86_64")]
mod variadic {
    use libc::{c_char, c_int};
    use std::arch::naked_asm;

    macro_rules! variadic {
        ($name:ident($($a:ident: $t:ty),*), $named:literal, $list:literal, $then:path) => {
            /// See dprintf(3).
            ///
            /// # Safety
            /// As C's.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C-unwind" fn $name($($a: $t),*) -> c_int {
                naked_asm!(
                    ".cfi_startproc",
                    "sub rsp, 216",
                    ".cfi_adjust_cfa_offset 216",
                    "mov [rsp + 32], rdi",
                    "mov [rsp + 40], rsi",
                    "mov [rsp + 48], rdx",
                    "mov [rsp + 56], rcx",
                    "mov [rsp + 64], r8",
                    "mov [rsp + 72], r9",
                    "test al, al",
                    "je 2f",
                    "movaps [rsp + 80], xmm0",
                    "movaps [rsp + 96], xmm1",
                    "movaps [rsp + 112], xmm2",
                    "movaps [rsp + 128], xmm3",
                    "movaps [rsp + 144], xmm4",
                    "movaps [rsp + 160], xmm5",
                    "movaps [rsp + 176], xmm6",
                    "movaps [rsp + 192], xmm7",
                    "2:",
                    concat!("mov dword ptr [rsp], ", $named),
                    "mov dword ptr [rsp + 4], 48",
                    "lea rax, [rsp + 224]",
                    "mov [rsp + 8], rax",
                    "lea rax, [rsp + 32]",
                    "mov [rsp + 16], rax",
                    concat!("mov ", $list, ", rsp"),
                    "call {then}",
                    "add rsp, 216",
                    ".cfi_adjust_cfa_offset -216",
                    "ret",
                    ".cfi_endproc",
                    then = sym $then,
                )
            }
        };
    }

    variadic!(dprintf(fd: c_int, format: *const c_char), "16", "rdx", super::vdprintf);
    variadic!(__dprintf_chk(fd: c_int, flag: c_int, format: *const c_char), "24", "rcx", super::__vdprintf_chk);
}
