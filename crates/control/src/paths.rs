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

/// The place of the private service that `towpath run` starts: `/run/towpath-private/control.sock` for root. It is no folder of a service that
/// `towpath up` or a service manager starts: that one finds its place free, and may remove its folder at its end.
#[must_use]
pub fn private_control_path() -> PathBuf {
    let own = own_control_path();
    let mut folder = own.parent().map_or_else(Default::default, |folder| folder.as_os_str().to_owned());
    folder.push("-private");
    PathBuf::from(folder).join("control.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_service_has_no_place_in_the_folder_of_another() {
        let (own, private) = (own_control_path(), private_control_path());
        assert_ne!(own.parent(), private.parent());
        assert!(!private.starts_with(own.parent().unwrap()), "{}", private.display());
        assert_eq!(own.file_name(), private.file_name());
        assert_eq!(own.parent().unwrap().parent(), private.parent().unwrap().parent());
    }
}
