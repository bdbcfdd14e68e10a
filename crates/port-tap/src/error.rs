//! The errors of opening a TAP interface, with advice in their messages.

use std::fmt;
use std::io;

/// Why a TAP interface could not be opened. The message says what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum TapError {
    /// The file `/dev/net/tun` does not exist.
    NoDevice,
    /// This process has no permission for `what`.
    NoPermission {
        /// The action that failed.
        what: &'static str,
    },
    /// An interface of this name exists already, or another process uses this TAP.
    NameInUse {
        /// Name of the interface.
        name: String,
    },
    /// An interface of this name exists, but it is not a TAP, or has another number of queues.
    NotATap {
        /// Name of the interface.
        name: String,
    },
    /// The kernel does not accept the name.
    BadName {
        /// The name as it was given.
        name: String,
    },
    /// An option is out of its range.
    BadOption {
        /// The option and its range.
        what: &'static str,
    },
    /// The network namespace cannot be entered.
    NoNamespace {
        /// Name or path of the namespace.
        name: String,
        /// The error that the kernel returned.
        source: io::Error,
    },
    /// The kernel refused a setting of the interface.
    Refused {
        /// Name of the interface.
        name: String,
        /// The setting that failed.
        what: &'static str,
        /// The error that the kernel returned.
        source: io::Error,
    },
}

impl TapError {
    /// The error for the setting `what` of the interface `name`.
    pub(crate) fn refused(name: &str, what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPermission { what },
            _ => Self::Refused { name: name.to_owned(), what, source },
        }
    }
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str(
                "no /dev/net/tun: load the kernel's module with `modprobe tun`, or give the container the device \
                 (`--device /dev/net/tun`)",
            ),
            Self::NoPermission { what } => write!(
                f,
                "no permission to {what}: run as root, or give the program CAP_NET_ADMIN \
                 (`setcap cap_net_admin+ep FILE`)"
            ),
            Self::NameInUse { name } => write!(
                f,
                "interface {name} is in use: choose another name, stop the program that has it, or remove it with \
                 `ip link delete {name}`"
            ),
            Self::NotATap { name } => write!(
                f,
                "interface {name} exists and is not a TAP with this number of queues: choose another name, or remove it \
                 with `ip link delete {name}`"
            ),
            Self::BadName { name } => {
                write!(f, "{name:?} is no interface name: use 1 to 15 characters without spaces and slashes")
            }
            Self::BadOption { what } => write!(f, "TAP option out of range: {what}"),
            Self::NoNamespace { name, source } => write!(
                f,
                "network namespace {name} cannot be entered ({source}): create it with `ip netns add {name}`, and run \
                 as root"
            ),
            Self::Refused { name, what, source } => {
                write!(f, "the kernel refused to {what} of interface {name} ({source}): check the option's value")
            }
        }
    }
}

impl std::error::Error for TapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoNamespace { source, .. } | Self::Refused { source, .. } => Some(source),
            _ => None,
        }
    }
}
