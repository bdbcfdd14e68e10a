//! Why a TAP interface cannot be had, and what to do about it.

use std::fmt;
use std::io;

/// Why a TAP interface could not be opened. The message says what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum TapError {
    /// There is no `/dev/net/tun`.
    NoDevice,
    /// We may not do `what`.
    NoPermission {
        /// What was tried.
        what: &'static str,
    },
    /// Somebody has an interface of this name, or holds this TAP.
    NameInUse {
        /// The interface.
        name: String,
    },
    /// There is an interface of this name, but it is no TAP, or one with another number of queues.
    NotATap {
        /// The interface.
        name: String,
    },
    /// The kernel does not take such a name.
    BadName {
        /// The name.
        name: String,
    },
    /// An option is out of its range.
    BadOption {
        /// Which, and its range.
        what: &'static str,
    },
    /// The network namespace cannot be entered.
    NoNamespace {
        /// Its name or path.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused a setting of the interface.
    Refused {
        /// The interface.
        name: String,
        /// The setting.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl TapError {
    /// The error for a refused setting `what` of `name`.
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
