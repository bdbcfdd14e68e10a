//! Settings from the environment, or from the profile that it names.

use crate::log::{self, Level, log};
use control::ChannelWish;
use control::known::unknown_variables;
use control::profile::{
    self, CHANNEL_ENV, CHECK_POINTERS_ENV, IO_URING_ENV, PROFILE_ENV, QUICK_ACK_ENV, REQUIRE_ENV,
    RING_MIN_ENV, Rings, SPIN_ENV,
};
pub use control::variables::is_secure;
use control::variables::{self, variable};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Set, neither empty nor 0: every call goes to the kernel.
pub const DISABLE_ENV: &str = "TOWPATH_DISABLE";

/// Reads all settings at the start of a program, which may clean its environment before it makes its first socket.
pub fn remember() {
    log::limit();
    log::check_level();
    if !is_disabled() {
        name_unknown_variables();
        control_path();
        spin();
        is_required();
        rings();
        quick_ack();
        checks_pointers();
        ring_min();
        channel();
    }
}

/// True when the user wants no acceleration: [`DISABLE_ENV`] is set, neither empty nor 0.
pub fn is_disabled() -> bool {
    static DISABLED: OnceLock<bool> = OnceLock::new();
    *DISABLED.get_or_init(|| {
        let disabled = variable(DISABLE_ENV).is_some_and(|v| !v.is_empty() && v != "0");
        if !disabled {
            match_launcher();
            know_profile();
        }
        disabled
    })
}

/// Logs a warning for each variable that looks like one of Towpath's and is none.
fn name_unknown_variables() {
    if log::limit() >= Level::Warn as u8 {
        unknown_variables().iter().for_each(|told| log(Level::Warn, format_args!("{told}")));
    }
}

/// The value of a variable that is a number. An error is logged for one that is none, and it counts as not set.
fn number(name: &str) -> Option<u64> {
    let text = profile::setting(name)?;
    let number = text.trim().parse().ok();
    if number.is_none() {
        log(Level::Error, format_args!("{name}={text}: this is no number; the variable counts as not set"));
    }
    number
}

/// Ends the process when `towpath run` is of another version than this library: nothing they would share fits.
fn match_launcher() {
    let Some(launcher) = variables::text(control::VERSIONS_ENV) else { return };
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

/// Logs an error when the environment names an unknown profile; such a profile changes nothing.
fn know_profile() {
    let Some(name) = variables::text(PROFILE_ENV) else { return };
    if !name.is_empty() && profile::profile(&name).is_none() {
        log(Level::Error, format_args!("{PROFILE_ENV}={name}: there is no such profile"));
    }
}

static CONTROL: OnceLock<PathBuf> = OnceLock::new();

/// Path of the socket on which the service listens.
pub fn control_path() -> &'static Path {
    CONTROL.get_or_init(control::default_control_path)
}

/// Sets [`control_path`], unless it was asked for or set before.
pub fn use_control_path(path: &Path) {
    // An earlier value stays: this process has perhaps registered there.
    let _ = CONTROL.set(path.to_owned());
}

/// The user's limit for spinning; `None`: not set.
pub fn spin() -> Option<Duration> {
    static SPIN: OnceLock<Option<Duration>> = OnceLock::new();
    *SPIN.get_or_init(|| number(SPIN_ENV).map(|us| Duration::from_micros(us.min(1_000_000))))
}

/// True when a socket call fails where it would fall back to the kernel.
#[inline]
pub fn is_required() -> bool {
    static REQUIRED: OnceLock<bool> = OnceLock::new();
    *REQUIRED.get_or_init(|| profile::is_on(REQUIRE_ENV))
}

/// What the library does with `io_uring_setup`.
pub fn rings() -> Rings {
    static RINGS: OnceLock<Rings> = OnceLock::new();
    *RINGS.get_or_init(|| {
        let Some(name) = profile::setting(IO_URING_ENV) else { return Rings::Kernel };
        Rings::named(&name).unwrap_or_else(|| {
            log(Level::Error, format_args!("{IO_URING_ENV}={name}: neither kernel nor deny; kernel it is"));
            Rings::Kernel
        })
    })
}

/// True when connections over a port acknowledge at once.
pub fn quick_ack() -> bool {
    static QUICK_ACK: OnceLock<bool> = OnceLock::new();
    *QUICK_ACK.get_or_init(|| profile::is_on(QUICK_ACK_ENV))
}

/// True when calls with bad pointers fail with EFAULT.
#[inline]
pub fn checks_pointers() -> bool {
    static CHECKS: OnceLock<bool> = OnceLock::new();
    *CHECKS.get_or_init(|| profile::is_on(CHECK_POINTERS_ENV))
}

/// The shortest ring that a sender lends itself, bytes; 0: no limit.
pub fn ring_min() -> usize {
    static RING_MIN: OnceLock<usize> = OnceLock::new();
    *RING_MIN.get_or_init(|| number(RING_MIN_ENV).and_then(|bytes| bytes.try_into().ok()).unwrap_or(0))
}

/// Whether connections of this program go over channels to another service.
pub fn channel() -> ChannelWish {
    static CHANNEL: OnceLock<ChannelWish> = OnceLock::new();
    *CHANNEL.get_or_init(|| {
        let Some(name) = profile::setting(CHANNEL_ENV) else { return ChannelWish::Unset };
        ChannelWish::named(&name).unwrap_or_else(|| {
            let text = "neither never, prefer nor require; the service's rules decide";
            log(Level::Error, format_args!("{CHANNEL_ENV}={name}: {text}"));
            ChannelWish::Unset
        })
    })
}
