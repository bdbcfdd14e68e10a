//! The variables of the environment that the library obeys. All of them are read here, because a program with more rights than its caller must
//! obey none: the kernel says so (`AT_SECURE`, getauxval(3)) of a program that is set-user-ID or set-group-ID, or has capabilities of its file.
//! The caller has written the environment, and could name a service of its own, to which the program would show its sockets and its bytes.
//! Nor does such a program pass them on: a helper that it runs after `setuid(0)` has the same rights, and the kernel does not say so of it.

use std::ffi::OsString;

/// True when the program has rights that its caller has not.
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: the call reads a table that the kernel has written when the program began, and takes a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable; `None`: it is not set, or the program must not obey its caller.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    if is_secure() { None } else { std::env::var_os(name) }
}

/// As [`variable`], of one that is text. One that is not counts as unset.
#[must_use]
pub fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// The names of all variables that are text; none where the program must not obey its caller.
#[must_use]
pub fn names() -> Vec<String> {
    if is_secure() {
        return Vec::new();
    }
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
}

/// Takes the library's variables out of the environment of a program that must not obey them, as the loader does with its own (ld.so(8)).
extern "C" fn forget() {
    if !is_secure() {
        return;
    }
    let ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"TOWPATH_");
    for name in std::env::vars_os().map(|(name, _)| name).filter(ours) {
        // SAFETY: this runs before `main`. Where it runs later, as the library is loaded by `dlopen`, another thread may read the environment: the
        // C library moves its pointers to the left one by one, and frees neither them nor what they point to.
        unsafe { std::env::remove_var(name) };
    }
}

/// Runs at the start of every program that has this crate, by whichever library: before the program can start another.
#[used]
#[unsafe(link_section = ".init_array")]
static FORGET: extern "C" fn() = forget;
