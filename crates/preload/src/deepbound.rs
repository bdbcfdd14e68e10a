//! Objects that a program loads with `RTLD_DEEPBIND` (PHP does so with its extensions) find the C library's symbols before ours. The slots
//! through which they call are redirected to this library before the program's next call about a socket.

use crate::next;
use libc::{c_char, c_int, c_void};
use loader::Object;
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// True when an object has been, or is being, loaded with that flag.
static DEEP: AtomicBool = AtomicBool::new(false);
/// The address of the next library's `dlopen`, once known; else 0.
static NEXT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn find() -> usize {
    let found = next::address("dlopen\0");
    NEXT.store(found, Ordering::Relaxed);
    found
}

/// See dlopen(3). The loader searches the paths of the caller's object, and finds the caller by the return address. So this function
/// notes the flag and jumps to the next `dlopen`.
///
/// # Safety
/// As C's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "test esi, {deepbind}",
        "jz 2f",
        "mov byte ptr [rip + {deep}], 1",
        "2:",
        "mov rax, qword ptr [rip + {next}]",
        "test rax, rax",
        "jnz 3f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "3:",
        "jmp rax",
        deepbind = const libc::RTLD_DEEPBIND,
        deep = sym DEEP,
        next = sym NEXT,
        find = sym find,
    )
}

/// Before a call by which the program gets or closes a descriptor: redirects newly loaded objects.
pub fn look() {
    if DEEP.load(Ordering::Relaxed) {
        repoint();
    }
}

#[cold]
fn repoint() {
    static ONE: Mutex<()> = Mutex::new(());
    let Ok(_one) = ONE.try_lock() else { return };
    if !DEEP.swap(false, Ordering::AcqRel) {
        return;
    }
    // This lookup takes the loader's lock, so it waits for a thread that is still loading an object.
    next::address("dlopen\0");
    let [libc_lies_at, we_lie_at] =
        [libc::gnu_get_libc_version as *const () as usize, repoint as *const () as usize];
    let mut libc = 0..0;
    loader::each(|object| {
        if object.range().contains(&libc_lies_at) {
            libc = object.range().clone();
        }
        ControlFlow::Continue(())
    });
    loader::each(|ours| {
        if !ours.range().contains(&we_lie_at) {
            return ControlFlow::Continue(());
        }
        loader::each(|object| {
            if ![libc.start, ours.range().start].contains(&object.range().start) {
                point(object, &libc, ours);
            }
            ControlFlow::Continue(())
        });
        ControlFlow::Break(())
    });
}

/// Redirects those slots of an object to this library that lead to the C library, or to the loader, which would find the C library.
fn point(object: &Object, libc: &Range<usize>, ours: &Object) {
    for slot in object.slots().filter(|slot| libc.contains(&slot.target()) || slot.is_unresolved()) {
        if let Some(target) = slot.name().and_then(|name| ours.export(name)) {
            // SAFETY: this library exports the name with the C library's type, and is never unloaded.
            unsafe { slot.point(target) };
        }
    }
}
