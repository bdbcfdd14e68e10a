//! Errors that keep the service from starting, or end it. Each text says what to do.

use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;

/// An error that keeps the service from starting, or ends it.
#[derive(Debug)]
pub enum ServiceError {
    /// Another service answers at that path.
    AlreadyUp {
        /// The control socket at which it answers.
        control: PathBuf,
        /// Its process number, if the kernel tells it.
        pid: Option<i32>,
    },
    /// The control socket could not be made.
    Control {
        /// Path of the control socket.
        control: PathBuf,
        /// What failed, as a verb for "cannot ...".
        doing: &'static str,
        /// The error that the kernel gave.
        error: std::io::Error,
    },
    /// The path of the control socket exists and is not a socket.
    NoSocket(PathBuf),
    /// The folder of the control socket belongs to another user, or other users may write to it.
    ForeignFolder(PathBuf),
    /// The configuration file cannot be read.
    ConfigRead {
        /// Path of the file.
        path: PathBuf,
        /// The error of reading it.
        error: std::io::Error,
    },
    /// The configuration file is not valid.
    ConfigText {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong, and where.
        error: String,
    },
    /// The policy file cannot be used; the text says where the error is.
    Policy(String),
    /// The choice of congestion control cannot be made; the text names the flag and says what to do.
    Congestion(String),
    /// A value is out of range.
    Value {
        /// The key, as in the file; the names of flag and variable are made from it.
        key: &'static str,
        /// What the value must do, as a verb phrase.
        must: &'static str,
    },
    /// The user of `--user` could not remove the control socket from this folder.
    FolderOfOthers(PathBuf),
    /// The kernel has no filters for system calls, or does not allow this process to install one.
    Filter {
        /// The error that the kernel gave.
        error: Errno,
    },
    /// The port could not be opened, or does not work; the text names the flag and says what to do.
    Port(String),
    /// The kernel refused something that the service needs.
    Os {
        /// What failed, as a verb for "cannot ...".
        doing: &'static str,
        /// The error that the kernel gave.
        error: Errno,
    },
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyUp { control, pid } => {
                write!(f, "already up at {}", control.display())?;
                match pid {
                    Some(0) => f.write_str(" (in another PID namespace)")?,
                    Some(pid) => write!(f, " (pid {pid})")?,
                    None => f.write_str(", or about to be")?,
                }
                f.write_str("; `towpath down` first, or use another --control")
            }
            Self::Control { control, doing, error } => write!(
                f,
                "cannot {doing} {}: {error}; use --control with a path you may write, shorter than 108 bytes",
                control.display()
            ),
            Self::NoSocket(path) => write!(
                f,
                "{} exists and is no socket; it is left as it is: use another --control",
                path.display()
            ),
            Self::ForeignFolder(path) => write!(
                f,
                "{} belongs to another user or may be written by others; remove it or use another --control",
                path.display()
            ),
            Self::ConfigRead { path, error } => {
                write!(f, "cannot read {}: {error}; check the path given by --config", path.display())
            }
            Self::ConfigText { path, error } => write!(f, "in {}: {error}", path.display()),
            Self::Value { key, must } => write!(
                f,
                "--{} must {must} (as a flag, as TOWPATH_{}, or as {key} in the file of --config)",
                key.replace('_', "-"),
                key.to_uppercase()
            ),
            Self::FolderOfOthers(path) => write!(
                f,
                "{} does not belong to the user that --user names, who could not remove the control socket from it; give it to \
                 that user, or use --control with a path in a folder that does not exist yet",
                path.display()
            ),
            Self::Filter { error } => write!(
                f,
                "cannot filter system calls: {error}; with --syscall-filter false the service goes without"
            ),
            Self::Port(text) | Self::Policy(text) | Self::Congestion(text) => f.write_str(text),
            Self::Os { doing, error } => write!(f, "cannot {doing}: {error}"),
        }
    }
}

impl std::error::Error for ServiceError {}
