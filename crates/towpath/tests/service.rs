//! A service of a test's own, in a folder of its own, for the tests that ask it by the command line.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For whatever a busy machine delays.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service without a port. It is told to leave when the test is over.
pub struct Service {
    folder: tempfile::TempDir,
    running: Child,
}

impl Service {
    /// Starts it with these further arguments of `towpath up`, and waits until it answers.
    pub fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut up = Command::new(env!("CARGO_BIN_EXE_towpath"));
        up.args(["up", "--port", "none"]).args(arguments);
        // The service makes the folder of its socket itself.
        up.arg("--control").arg(folder.path().join("service/control.sock"));
        let mut service = Self { running: up.stderr(Stdio::null()).spawn().unwrap(), folder };
        let end = Instant::now() + PATIENCE;
        while !service.command("stat").output().unwrap().status.success() {
            assert!(service.running.try_wait().unwrap().is_none(), "the service has ended");
            assert!(Instant::now() < end, "the service does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        service
    }

    /// The folder, which goes with the service.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The place of its control socket.
    pub fn control(&self) -> PathBuf {
        self.folder.path().join("service/control.sock")
    }

    /// A command of that name for this service.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command.arg(name).arg("--control").arg(self.control());
        command
    }

    /// Sends it the signal of that name.
    pub fn signal(&self, name: &str) {
        let pid = self.running.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.signal("CONT");
        let _ = self.command("down").output();
        let _ = self.running.wait();
    }
}
