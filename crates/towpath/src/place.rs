//! Where a service is found that neither a flag nor a variable names.

use crate::ask::is_up;
use control::{own_control_path, private_control_path};
use std::path::{Path, PathBuf};

/// The control socket of the machine's service.
const SYSTEM: &str = "/run/towpath/control.sock";

/// The first place at which a service answers: this user's own, that of this user's private service, the machine's. `None`: there is none.
pub fn found() -> Option<PathBuf> {
    [own_control_path(), private_control_path(), SYSTEM.into()].into_iter().find(|path| is_up(path))
}

/// The first of this user's places where a service has left its control socket, as one does that dies. `None`: there is none.
pub fn left() -> Option<PathBuf> {
    [own_control_path(), private_control_path()].into_iter().find(|path| path.symlink_metadata().is_ok())
}

/// True for the places that `towpath run` chooses by itself. An outer `towpath run` may have set a variable to one of them, and its service may
/// have ended since: such a variable demands nothing.
pub fn is_usual(path: &Path) -> bool {
    path == own_control_path() || path == private_control_path()
}
