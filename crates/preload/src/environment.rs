//! The environment of a program that gets a socket of ours: without the library it could not use it.

use libc::c_char;
use std::env;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::ptr::null;
use std::sync::OnceLock;

const PRELOAD: &CStr = c"LD_PRELOAD=";
/// A longer environment goes along as it is: what is added lies on the stack, which may be that of a `vfork` child.
const MOST: usize = 512;

/// What this program was started with that the library needs.
static OURS: OnceLock<Vec<CString>> = OnceLock::new();

unsafe extern "C" {
    /// See environ(7).
    pub static environ: *const *const c_char;
}

/// At the start of a program.
pub fn remember() {
    let is_ours = |name: &str| name == "LD_PRELOAD" || name.starts_with("TOWPATH_");
    let variables = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_ours));
    let lines = variables.map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='));
    let _ = OURS.set(lines.filter_map(|line| CString::new(line).ok()).collect());
}

/// Calls `start` with `environment`, to which what the library needs is added if the new program `gets_sockets` and nothing was said of
/// libraries to preload.
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
        // SAFETY: as above; each is a string.
        let line = unsafe { CStr::from_ptr(*environment.add(len)) };
        // One more for the null at the end.
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
