//! Why an interface cannot be used, and what to do about it.

use std::fmt;
use std::io;

/// Why an interface could not be used by packet sockets. The message says what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum PacketError {
    /// We may not do `what`.
    NoPermission {
        /// What was tried.
        what: &'static str,
    },
    /// There is no such interface.
    NoInterface {
        /// The name.
        name: String,
    },
    /// The interface is not up.
    Down {
        /// The interface.
        name: String,
    },
    /// The interface does not carry Ethernet frames.
    NotEthernet {
        /// The interface.
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
    /// The kernel refused something.
    Refused {
        /// The interface.
        name: String,
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl PacketError {
    /// The error for a refused `what` of `name`.
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
