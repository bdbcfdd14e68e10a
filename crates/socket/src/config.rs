//! What the environment says.

use std::sync::OnceLock;
use std::time::Duration;

/// Set to 1: every call goes to the kernel.
pub const DISABLE_ENV: &str = "TOWPATH_DISABLE";
/// Spin at most that many microseconds before sleeping, whatever the service says.
pub const SPIN_ENV: &str = "TOWPATH_SPIN_US";

/// True when the user wants no acceleration, or nobody should: a set-user-id program.
pub fn is_disabled() -> bool {
    static DISABLED: OnceLock<bool> = OnceLock::new();
    *DISABLED.get_or_init(|| std::env::var_os(DISABLE_ENV).is_some_and(|v| !v.is_empty() && v != "0"))
}

/// The user's limit for spinning.
pub fn spin() -> Option<Duration> {
    static SPIN: OnceLock<Option<Duration>> = OnceLock::new();
    *SPIN.get_or_init(|| {
        let us: u64 = std::env::var(SPIN_ENV).ok()?.trim().parse().ok()?;
        Some(Duration::from_micros(us.min(1_000_000)))
    })
}
