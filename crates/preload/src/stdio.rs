//! The C library's streams (`FILE`) over accelerated sockets. The C library reads and writes by internal calls, past the symbols that this
//! library replaces. So such a stream gets functions (`fopencookie(3)`) that call this library's `read` and `write`.

use crate::{bytes, descriptors, next};
use libc::{FILE, c_char, c_int, c_void, off_t, size_t, ssize_t};
use socket::file;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `cookie_io_functions_t`: the functions of a stream.
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
    /// Makes a stream with functions of its own, see fopencookie(3).
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    /// Discards what a stream holds, see stdio_ext(3).
    fn __fpurge(stream: *mut FILE);
    /// Locks a stream if it is free, see flockfile(3).
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

/// A list, without locks, of the streams that this library made; a forked child has them, too. Places are reused and never freed.
struct Known {
    stream: AtomicPtr<FILE>,
    next: *const Known,
}

static KNOWN: AtomicPtr<Known> = AtomicPtr::new(ptr::null_mut());

fn known() -> impl Iterator<Item = &'static AtomicPtr<FILE>> {
    // SAFETY: places in the list live for ever.
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
    // The closure never refuses.
    let _ = KNOWN.fetch_update(Ordering::AcqRel, Ordering::Acquire, push);
}

fn number(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the buffer is the C library's, `len` bytes long.
    unsafe { bytes::read(number(cookie), buffer.cast(), len) }
}

/// Writes all bytes, as the C library expects; fewer mean an error.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, data: *const c_char, len: size_t) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: the buffer is the C library's, `len` bytes long.
        let n = unsafe { bytes::write(number(cookie), data.add(done).cast(), len - done) };
        if n < 0 {
            break;
        }
        done += n as usize;
    }
    done as ssize_t
}

unsafe extern "C-unwind" fn seek(cookie: *mut c_void, at: *mut off_t, whence: c_int) -> c_int {
    // SAFETY: numbers, and a pointer to the C library's offset.
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

/// A stream for the descriptor `fd`.
///
/// # Safety
/// `mode` is a string.
unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: functions of the types that C names; the code that made a stream may set its descriptor number.
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
    unsafe { if file::is_ours(fd) && !file::is_borrowed() { open(fd, mode) } else { next::fdopen(fd, mode) } }
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

/// Streams of this library that replace `stdin`, `stdout` and `stderr`.
static STANDARD: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];

/// Descriptor `fd` has just been replaced: if it is a standard one and now a socket, its standard stream is replaced, too.
pub fn follow(fd: c_int) {
    let Some(ours) = usize::try_from(fd).ok().and_then(|fd| STANDARD.get(fd)) else { return };
    if !file::is_ours(fd) || file::is_borrowed() {
        return;
    }
    // SAFETY: the C library's variables, which a program may assign to; a program that puts a socket in the place of a standard
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

/// Moves bytes that `old` has not written yet to `fresh`.
///
/// # Safety
/// Two streams that no other thread uses.
unsafe fn hand_on(old: *mut FILE, fresh: *mut FILE) {
    // SAFETY: the caller's promise; the bytes not yet written lie between these two pointers.
    unsafe {
        let stream = old.cast::<Stream>();
        let waiting = ((*stream).write_at as usize).saturating_sub((*stream).write_base as usize);
        if waiting > 0 {
            libc::fwrite((*stream).write_base.cast(), 1, waiting, fresh);
            __fpurge(old);
        }
    }
}

/// At the end of the process, before its connections are closed: writes what the streams hold back.
pub fn flush() {
    for stream in known().map(|place| place.load(Ordering::Acquire)).filter(|stream| !stream.is_null()) {
        // SAFETY: an open stream; one that another thread has locked is skipped.
        unsafe {
            if ftrylockfile(stream) == 0 {
                fflush_unlocked(stream);
                funlockfile(stream);
            }
        }
    }
}

/// Writes the text that `make` prints; returns its length.
///
/// # Safety
/// `make` stores a text that has to be freed, or returns a negative number.
unsafe fn print(fd: c_int, make: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = ptr::null_mut();
    let len = make(&raw mut text);
    if len < 0 {
        return len;
    }
    // SAFETY: `make` stored `len` bytes at `text`, which has to be freed.
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
        if !file::is_ours(fd) {
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
        if !file::is_ours(fd) {
            return next::__vdprintf_chk(fd, flag, format, list);
        }
        print(fd, |text| __vasprintf_chk(text, flag, format, list))
    }
}

/// Functions with variable arguments: the registers are stored as the `va_list` format demands (System V ABI for AMD64, section 3.5.7),
/// and the function that takes a `va_list` is called.
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
