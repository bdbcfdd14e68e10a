//! The path of the control socket when none is given.

use crate::variables::{is_secure, variable};
use std::path::PathBuf;

/// Environment variable: the path of the control socket, for service, library and command line.
pub const CONTROL_ENV: &str = "TOWPATH_CONTROL";

/// Environment variable that `towpath run` sets: the versions that it and its library must share, as [`versions`] writes them.
pub const VERSIONS_ENV: &str = "TOWPATH_VERSIONS";

/// Versions of the messages and of the shared memory layout of this build, such as `15.3`.
#[must_use]
pub fn versions() -> String {
    format!("{}.{}", crate::PROTOCOL, shm::VERSION)
}

/// The path in `$TOWPATH_CONTROL`, if it is set, else [`own_control_path`].
#[must_use]
pub fn default_control_path() -> PathBuf {
    variable(CONTROL_ENV).filter(|p| !p.is_empty()).map_or_else(own_control_path, PathBuf::from)
}

/// `/run/towpath/control.sock` for root, else `$XDG_RUNTIME_DIR/towpath/control.sock`, else `/tmp/towpath-UID/control.sock`. A program with more
/// rights than its caller has root's, too: the caller may be the user that it has become since its start.
#[must_use]
pub fn own_control_path() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() || is_secure() {
        return PathBuf::from("/run/towpath/control.sock");
    }
    match variable("XDG_RUNTIME_DIR").filter(|p| !p.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("towpath/control.sock"),
        None => PathBuf::from(format!("/tmp/towpath-{}/control.sock", uid.as_raw())),
    }
}
