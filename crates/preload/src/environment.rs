//! Adds this library's variables to the environment of a program that inherits accelerated sockets, which it could not use without it.

use libc::c_char;
use session::config::is_secure;
use std::env;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::ptr::null;
use std::sync::OnceLock;

const PRELOAD: &CStr = c"LD_PRELOAD=";
/// An environment with this many entries or more is left unchanged: the new one lies on the stack, which may be that of a `vfork` child.
const MOST: usize = 512;

/// The variables of this program's own environment that the library needs.
static OURS: OnceLock<Vec<CString>> = OnceLock::new();

unsafe extern "C" {
    /// The program's environment, see environ(7).
    pub static environ: *const *const c_char;
}

/// At the start of a program: saves those variables. A program that does not obey its caller's passes none of them on.
pub fn remember() {
    if is_secure() {
        return;
    }
    let is_ours = |name: &str| name == "LD_PRELOAD" || name.starts_with("TOWPATH_");
    let variables = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_ours));
    let lines = variables.map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='));
    let _ = OURS.set(lines.filter_map(|line| CString::new(line).ok()).collect());
}

/// Calls `start` with `environment`; if the new program `gets_sockets` and no libraries to preload are set, the saved variables
/// are added.
///
/// # Safety
/// `environment` is null or ends in null, as do its strings in 0.
pub unsafe fn with_ours<R>(
    gets_sockets: bool,
    environment: *const *const c_char,
    start: impl FnOnce(*const *const c_char) -> R,
) -> R {
    let ours = OURS.get().map_or(&[][..], Vec::as_slice);
    if !gets_sockets || !ours.iter().any(|line| line.as_bytes().starts_with(PRELOAD.to_bytes())) {
        return start(environment);
    }
    let mut all = [null(); MOST];
    let mut len = 0;
    // SAFETY: the caller's promise.
    while !environment.is_null() && !unsafe { *environment.add(len) }.is_null() {
        // SAFETY: as above; each entry is a string.
        let line = unsafe { CStr::from_ptr(*environment.add(len)) };
        // One place more is needed for the null at the end.
        if len + ours.len() + 1 >= MOST || line.to_bytes().starts_with(PRELOAD.to_bytes()) {
            return start(environment);
        }
        all[len] = line.as_ptr();
        len += 1;
    }
    for line in ours {
        all[len] = line.as_ptr();
        len += 1;
    }
    start(all.as_ptr())
}
