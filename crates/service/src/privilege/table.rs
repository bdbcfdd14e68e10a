//! The table of features and the privileges that each needs. `docs/privileges.md` shows it; the filter, the paths that are open and the kept
//! capabilities are made from it; each row has a test (`crates/towpath/tests/privileges.rs`).

mod refused;

use refused::calls;
pub use refused::{Call, NEVER, REFUSED, Refused, Test, UNADDRESSED};

use super::landlock::{Place, Use};
use crate::config::Config;
use crate::config::values::PortKind;
use rustix::thread::CapabilitySet;
use std::path::Path;

/// One feature and the privileges that it needs.
pub struct Row {
    /// The feature, in the words of the command line.
    pub feature: &'static str,
    /// Capabilities that it needs at start only; they are dropped afterwards.
    pub at_start: CapabilitySet,
    /// Capabilities that it needs while the service serves.
    pub kept: CapabilitySet,
    /// Files and folders that it opens, at start unless the text says otherwise.
    pub files: &'static str,
    /// Those of them that it opens, or removes files from, while the service serves.
    pub places: fn(&Config) -> Vec<Place>,
    /// System calls that it makes while the service serves. One filter allows the calls of all rows: a call that only other features make
    /// is harmless without their capabilities and descriptors.
    pub calls: &'static [&'static [Call]],
    /// Whether a service with this configuration has the feature.
    pub is_used: fn(&Config) -> bool,
}

/// The allocator, regions and their present pages, stacks of threads.
const MEMORY: &[Call] = calls![
    SYS_brk SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_mincore SYS_sysinfo
];
/// Starting, waiting, ending; `abort` ends a process by `tgkill`. Clocks, on machines where the vDSO has none.
const THREADS: &[Call] = calls![
    SYS_clone SYS_set_robust_list SYS_rseq SYS_futex SYS_sched_yield SYS_sched_getaffinity SYS_sigaltstack
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_restart_syscall SYS_gettid SYS_getpid
    SYS_tgkill SYS_exit SYS_exit_group SYS_prctl SYS_prlimit64 SYS_clock_gettime SYS_clock_getres
    SYS_gettimeofday SYS_clock_nanosleep SYS_nanosleep SYS_getrandom SYS_getcpu SYS_getuid SYS_geteuid
    SYS_getgid SYS_getegid
];
/// Waiting for wakers, control lines and the port.
const WAITING: &[Call] = calls![
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_ppoll SYS_eventfd2
];
/// Control lines, and questions about sockets that programs show.
const LINES: &[Call] = calls![
    SYS_accept4 SYS_recvmsg SYS_sendmsg SYS_getsockopt SYS_setsockopt SYS_getsockname SYS_getpeername
    SYS_shutdown SYS_socketpair SYS_fcntl SYS_dup SYS_close
];
/// Shared memory and reports; eventfds; the log.
const REGIONS: &[Call] = calls![
    SYS_memfd_create SYS_ftruncate SYS_fallocate SYS_lseek SYS_fstat SYS_read SYS_write SYS_pread64
    SYS_pwrite64 SYS_readv SYS_writev SYS_ioctl
];
/// Reading below `/proc`; removing the control socket; leaving the start folder (`up --detach`); `getcwd` for the text of a panic.
const FILES: &[Call] = calls![
    SYS_openat SYS_newfstatat SYS_statx SYS_getdents64 SYS_readlinkat SYS_unlinkat SYS_getcwd
    SYS_chdir
];
/// Helper threads with their own descriptor tables.
const HELPERS: &[Call] = calls![
    SYS_unshare SYS_close_range SYS_dup3
];
/// Asking the kernel which socket listens (`sock_diag`).
const ASKING: &[Call] = calls![
    SYS_socket SYS_sendto SYS_recvfrom
];
/// Holding ports in the kernel for connections inside this host, and testing whether an address is the host's; packet sockets of further cores.
const HOLDING: &[Call] = calls![SYS_bind];
/// Watching processes of agents; the process at the other end of a control line.
const WATCHING: &[Call] = calls![SYS_pidfd_open];
/// Older forms of calls, which newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD: &[Call] =
    calls![SYS_poll SYS_epoll_wait SYS_open SYS_dup2 SYS_readlink SYS_unlink SYS_stat SYS_lstat SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Call] = &[];
const NONE: CapabilitySet = CapabilitySet::empty();

/// The places of a feature that opens and removes no files while the service serves.
fn nowhere(_: &Config) -> Vec<Place> {
    Vec::new()
}

/// The folder of a file.
fn folder(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// All features that a service may have.
pub const TABLE: &[Row] = &[
    Row {
        feature: "every service, `--port none` and private ones too",
        at_start: NONE,
        kept: NONE,
        files: "`--config`, the control socket, its lock and folder; while it serves, files below `/proc`, to read, and in the socket's folder, to remove",
        places: |config| {
            vec![Place::new(Use::Read, "/proc"), Place::new(Use::Remove, folder(&config.control))]
        },
        calls: &[MEMORY, THREADS, WAITING, LINES, REGIONS, FILES, OLD],
        is_used: |_| true,
    },
    Row {
        feature: "an empty bounding set",
        at_start: CapabilitySet::SETPCAP,
        kept: NONE,
        files: "none",
        places: nowhere,
        calls: &[],
        is_used: |_| true,
    },
    Row {
        feature: "`--port tap`",
        at_start: CapabilitySet::NET_ADMIN,
        kept: NONE,
        files: "`/dev/net/tun`, `/proc/sys/net/ipv6/conf/NAME/accept_dad` to write",
        places: nowhere,
        calls: &[],
        is_used: |config| config.port == PortKind::Tap,
    },
    Row {
        feature: "groups of flows brought to cores (`--port tap`, unless there is one processor or `--cores 1`); without it one core serves, or cores hand packets on",
        at_start: CapabilitySet::BPF,
        kept: NONE,
        files: "for `--cores auto`: `/proc/stat`, `/proc/pressure/cpu`, `cpu.max` of the service's cgroups, or `cpu.cfs_quota_us` and `cpu.cfs_period_us`",
        places: nowhere,
        calls: &[],
        is_used: |config| config.port == PortKind::Tap && config.cores.most > 1,
    },
    Row {
        feature: "`--port packet:INTERFACE`",
        at_start: CapabilitySet::NET_RAW,
        kept: NONE,
        files: "none",
        places: nowhere,
        calls: &[HOLDING],
        is_used: |config| config.port == PortKind::Packet,
    },
    Row {
        feature: "`--netns NAME`",
        at_start: CapabilitySet::SYS_ADMIN,
        kept: NONE,
        files: "`/run/netns/NAME`",
        places: nowhere,
        calls: &[],
        is_used: |config| config.link.namespace.is_some(),
    },
    Row {
        feature: "`--user USER`",
        at_start: CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::CHOWN),
        kept: NONE,
        files: "`/etc/passwd`, `/etc/group` and what else the system's name service reads; the control socket's folder becomes root's, and the user's group may make and remove files of its own there",
        places: nowhere,
        calls: &[],
        is_used: |config| config.user.is_some(),
    },
    Row {
        feature: "ports held for connections inside this host (the kernel chooses them)",
        at_start: NONE,
        kept: NONE,
        files: "none",
        places: nowhere,
        calls: &[ASKING, HOLDING],
        is_used: |_| true,
    },
    Row {
        feature: "a listening socket, asked of the kernel (`NETLINK_SOCK_DIAG`)",
        at_start: NONE,
        kept: NONE,
        files: "none",
        places: nowhere,
        calls: &[ASKING],
        is_used: |_| true,
    },
    Row {
        feature: "helper threads that look into what programs show",
        at_start: NONE,
        kept: NONE,
        files: "while it serves, `/dev/null`, to read",
        places: |_| vec![Place::new(Use::Read, "/dev/null")],
        calls: &[HELPERS, LINES],
        is_used: |_| true,
    },
    Row {
        feature: "agents of congestion control (`--cc-socket`)",
        at_start: NONE,
        kept: NONE,
        files: "the socket; while it serves, the sockets of agents, which the service's user must be able to write, and files in the socket's folder, to remove",
        places: |config| {
            let sockets = config.agents.iter().map(|agents| agents.socket.as_path());
            sockets.map(|socket| Place::new(Use::Remove, folder(socket))).collect()
        },
        calls: &[LINES, ASKING, WATCHING],
        is_used: |config| config.agents.is_some(),
    },
    Row {
        feature: "who may end and change the service (`towpath down`, `reload`, `cores --set`, ...)",
        at_start: NONE,
        kept: NONE,
        files: "while it serves, `/proc/PID/uid_map`, to read",
        places: nowhere,
        calls: &[WATCHING],
        is_used: |_| true,
    },
    Row {
        feature: "a policy, read again by SIGHUP and `towpath reload`",
        at_start: NONE,
        kept: NONE,
        files: "while it serves, files in the policy's folder, `/etc/passwd` and `/etc/group`, to read, as far as the service's user may",
        places: |config| {
            let of_policy = config.policy_source.path().map(folder);
            let names = ["/etc/passwd", "/etc/group"].map(Path::new);
            of_policy.into_iter().chain(names).map(|path| Place::new(Use::Read, path)).collect()
        },
        calls: &[FILES],
        is_used: |_| true,
    },
];

/// The calls of all rows; some occur several times.
pub fn allowed() -> impl Iterator<Item = Call> {
    TABLE.iter().flat_map(|row| row.calls).flat_map(|group| group.iter().copied())
}

/// What is refused of the calls that a service with this configuration makes.
pub fn refused(config: &Config) -> impl Iterator<Item = &'static Refused> {
    let unaddressed = if config.agents.is_some() { &[] } else { UNADDRESSED };
    REFUSED.into_iter().flatten().chain(unaddressed)
}

/// The capabilities that a service with this configuration keeps.
#[must_use]
pub fn kept(config: &Config) -> CapabilitySet {
    TABLE.iter().filter(|row| (row.is_used)(config)).fold(NONE, |all, row| all | row.kept)
}

/// The places that are open to a service with this configuration.
pub fn places(config: &Config) -> Vec<Place> {
    TABLE.iter().filter(|row| (row.is_used)(config)).flat_map(|row| (row.places)(config)).collect()
}
