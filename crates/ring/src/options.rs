//! Choices of the program, each with its default.

use std::path::PathBuf;

/// How to reach the service.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of the service's control socket; `None`: as `TOWPATH_CONTROL` says, or the system's. The first `open` of a process decides.
    pub control: Option<PathBuf>,
    /// Look at bytes of other applications of this user where they lie, without a copy. Such an application can change bytes after they
    /// were checked: set this only where the programs of this user are one system. Default: off.
    pub trusts_local_peers: bool,
    /// Most events that one `wait` tells; 0: 256.
    pub events_most: usize,
}

/// Options of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Connections that may wait to be accepted, as for `listen(2)`. Default: 4096, limited to `net.core.somaxconn`.
    pub backlog: u32,
    /// `SO_REUSEPORT`: several rings or processes listen at the same address. Default: off.
    pub reuse_port: bool,
    /// `SO_REUSEADDR` of the socket that holds the port. Default: on.
    pub reuse_address: bool,
    /// `TCP_NODELAY` of the accepted connections. Default: on, as a ring gathers bytes itself.
    pub no_delay: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 4096, reuse_port: false, reuse_address: true, no_delay: true }
    }
}

/// Options of a connection that this program makes.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// `TCP_NODELAY` from the beginning. Default: on.
    pub no_delay: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { no_delay: true }
    }
}
