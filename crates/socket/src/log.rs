//! What a user may want to know, to standard error, when asked for: `TOWPATH_LOG=off|error|warn|info|debug`.

use std::io::Write;
use std::sync::OnceLock;

/// How much.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Something is broken.
    Error = 1,
    /// Something will not be accelerated although it could.
    Warn = 2,
    /// Each decision.
    Info = 3,
    /// Everything.
    Debug = 4,
}

pub(crate) fn limit() -> u8 {
    static LIMIT: OnceLock<u8> = OnceLock::new();
    *LIMIT.get_or_init(|| match std::env::var("TOWPATH_LOG").as_deref() {
        Ok("off") => 0,
        Ok("warn") => 2,
        Ok("info") => 3,
        Ok("debug") => 4,
        _ => 1,
    })
}

/// Writes one line, in one system call.
pub fn log(level: Level, text: std::fmt::Arguments<'_>) {
    // What stands for a connection refuses to be written to, and with a signal.
    if level as u8 > limit() || crate::fds::SOCKS.is_taken(2) {
        return;
    }
    let mut line = [0u8; 512];
    let mut rest = &mut line[..511];
    // A line that is too long is cut.
    let _ = write!(rest, "towpath[{}]: {text}", crate::sys::pid().unwrap_or(0));
    let left = rest.len();
    let used = 511 - left;
    line[used] = b'\n';
    let _ = rustix::io::write(crate::sys::borrow(2), &line[..=used]);
}
