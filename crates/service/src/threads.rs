//! Threads of the service. A thread that panics ends the process: the control thread could go on answering while the flows of a dead core
//! hang, and what the thread had locked stays locked. A service manager starts the service anew.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Ends the process if the thread that holds it panics. The reason is in the log: the panic itself has written where and why.
#[derive(Debug)]
pub struct EndsProcess(
    /// What the thread does, for the log.
    pub &'static str,
);

impl Drop for EndsProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                "the service ends by a bug of its own: {} has panicked. Its applications' accelerated connections are reset",
                self.0
            );
            std::process::abort();
        }
    }
}

/// Starts the thread `name`, which runs `work`. Its panic is the end of the process.
///
/// # Errors
/// The kernel has no thread left.
pub fn start<T: Send + 'static>(
    name: impl Into<String>,
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(move || {
        let _guard = EndsProcess(what);
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Set in the process that is to end.
    const ENDS: &str = "TOWPATH_TEST_A_THREAD_PANICS";

    #[test]
    fn the_end_of_a_thread_is_the_end_of_the_service() {
        if std::env::var_os(ENDS).is_some() {
            tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
            let waits = std::thread::spawn(|| {
                crate::privilege::confine(&crate::Options::default().resolve().unwrap()).unwrap();
                let core = start("towpath-core0", "core 0", || panic!("a bug in a core")).unwrap();
                // A join that returned would let this thread end, and the test pass.
                core.join().is_err()
            });
            assert!(!waits.join().unwrap(), "the process has outlived its thread");
            return;
        }
        let test = "threads::tests::the_end_of_a_thread_is_the_end_of_the_service";
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", test, "--nocapture"]).env(ENDS, "1").env_remove("RUST_LOG");
        let ended = again.output().unwrap();
        let log = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{log}");
        assert!(log.contains("a bug in a core") && log.contains("core 0 has panicked"), "{log}");
    }

    #[test]
    fn a_thread_that_returns_ends_nothing() {
        assert_eq!(start("towpath-helper", "a helper thread", || 7).unwrap().join().unwrap(), 7);
    }
}
