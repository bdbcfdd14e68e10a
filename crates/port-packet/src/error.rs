//! The errors of opening an interface, with advice in their messages.

use std::fmt;
use std::io;

/// Why packet sockets could not use an interface. The message says what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum PacketError {
    /// This process has no permission for `what`.
    NoPermission {
        /// The action that failed.
        what: &'static str,
    },
    /// The interface does not exist.
    NoInterface {
        /// Name of the interface.
        name: String,
    },
    /// The interface is not up.
    Down {
        /// Name of the interface.
        name: String,
    },
    /// The interface does not carry Ethernet frames.
    NotEthernet {
        /// Name of the interface.
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
    /// The kernel refused an action.
    Refused {
        /// Name of the interface.
        name: String,
        /// The action that failed.
        what: &'static str,
        /// The error that the kernel returned.
        source: io::Error,
    },
}

impl PacketError {
    /// The error for the action `what` on the interface `name`.
    pub(crate) fn refused(name: &str, what: &'static str, source: io::Error) -> Self {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPermission { what },
            Some(libc::ENODEV) => Self::NoInterface { name },
            Some(libc::ENETDOWN) => Self::Down { name },
            _ => Self::Refused { name, what, source },
        }
    }
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPermission { what } => write!(
                f,
                "no permission to {what}: run as root, or give the program CAP_NET_RAW and CAP_NET_ADMIN \
                 (`setcap cap_net_raw,cap_net_admin+ep FILE`)"
            ),
            Self::NoInterface { name } => {
                write!(
                    f,
                    "there is no interface {name:?}: `ip link` lists them; in another network namespace, name that, too"
                )
            }
            Self::Down { name } => write!(f, "interface {name} is down: `ip link set {name} up`"),
            Self::NotEthernet { name } => {
                write!(
                    f,
                    "interface {name} does not carry Ethernet frames: use a veth, a TAP, a bridge or a card"
                )
            }
            Self::BadOption { what } => write!(f, "packet option out of range: {what}"),
            Self::NoNamespace { name, source } => write!(
                f,
                "network namespace {name} cannot be entered ({source}): create it with `ip netns add {name}`, and run \
                 as root"
            ),
            Self::Refused { name, what, source } => {
                write!(
                    f,
                    "the kernel refused to {what} of interface {name} ({source}): check the option's value"
                )
            }
        }
    }
}

impl std::error::Error for PacketError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoNamespace { source, .. } | Self::Refused { source, .. } => Some(source),
            _ => None,
        }
    }
}
