//! What the environment says.

use crate::log::{Level, log};
use std::sync::OnceLock;
use std::time::Duration;

/// Set to 1: every call goes to the kernel.
pub const DISABLE_ENV: &str = "TOWPATH_DISABLE";
/// Spin at most that many microseconds before sleeping, whatever the service says.
pub const SPIN_ENV: &str = "TOWPATH_SPIN_US";

/// True when the user wants no acceleration, or nobody should: a set-user-id program.
pub fn is_disabled() -> bool {
    static DISABLED: OnceLock<bool> = OnceLock::new();
    *DISABLED.get_or_init(|| {
        let disabled = std::env::var_os(DISABLE_ENV).is_some_and(|v| !v.is_empty() && v != "0");
        if !disabled {
            match_launcher();
        }
        disabled
    })
}

/// Ends the process when `towpath run` is of another version than this library: nothing they would share fits.
fn match_launcher() {
    let Ok(launcher) = std::env::var(control::VERSIONS_ENV) else { return };
    let own = control::versions();
    if launcher != own {
        log(
            Level::Error,
            format_args!(
                "`towpath run` speaks version {launcher}, this preload library {own}: use both from one build, or set \
                 TOWPATH_PRELOAD to the right library"
            ),
        );
        std::process::exit(1);
    }
}

/// The user's limit for spinning.
pub fn spin() -> Option<Duration> {
    static SPIN: OnceLock<Option<Duration>> = OnceLock::new();
    *SPIN.get_or_init(|| {
        let us: u64 = std::env::var(SPIN_ENV).ok()?.trim().parse().ok()?;
        Some(Duration::from_micros(us.min(1_000_000)))
    })
}
