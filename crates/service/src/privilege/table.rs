//! The table of features and the privileges that each needs. `docs/privileges.md` shows it; the filter and the kept capabilities are made
//! from it; each row has a test (`crates/towpath/tests/privileges.rs`).

use crate::config::Config;
use crate::config::values::PortKind;
use rustix::thread::CapabilitySet;

/// A system call: the constant's name in `libc`, and this machine's number.
pub type Call = (&'static str, i64);

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
    /// System calls that it makes while the service serves. One filter allows the calls of all rows: a call that only other features make
    /// is harmless without their capabilities and descriptors.
    pub calls: &'static [&'static [Call]],
    /// Whether a service with this configuration has the feature.
    pub is_used: fn(&Config) -> bool,
}

/// A test of one argument of a system call: the argument's index, from 0, and numbers. Arguments are compared as 32 bits.
#[derive(Clone, Copy, Debug)]
pub enum Test {
    /// The argument equals the value.
    Is(u8, u64),
    /// The argument differs from the value.
    IsNot(u8, u64),
    /// The argument's bits under the mask, the second field, equal the third field.
    Bits(u8, u64, u64),
    /// The argument is not the number of this process.
    IsNotOwnProcess(u8),
}

/// A system call that the service makes, but never with arguments like these.
pub struct Refused {
    /// Name and number of the system call.
    pub call: Call,
    /// Meaning of the refused arguments, for docs/privileges.md.
    pub what: &'static str,
    /// The call is refused when all of these tests hold.
    pub when: &'static [Test],
}

macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
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
    SYS_listen SYS_accept4 SYS_recvmsg SYS_sendmsg SYS_getsockopt SYS_setsockopt SYS_getsockname SYS_getpeername
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
/// Watching processes of agents.
const WATCHING: &[Call] = calls![SYS_pidfd_open];
/// Older forms of calls, which newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD: &[Call] =
    calls![SYS_poll SYS_epoll_wait SYS_open SYS_dup2 SYS_readlink SYS_unlink SYS_stat SYS_lstat SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Call] = &[];
/// Calls that neither the service nor its libraries make: they start programs or processes, or change the machine's state.
const NEVER_ANYWHERE: &[Call] = calls![
    SYS_seccomp SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise
    SYS_kcmp SYS_pidfd_getfd SYS_mount SYS_umount2 SYS_move_mount SYS_open_tree SYS_fsopen SYS_fsmount
    SYS_pivot_root SYS_chroot SYS_setns SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load
    SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register
    SYS_keyctl SYS_add_key SYS_request_key SYS_open_by_handle_at SYS_reboot SYS_swapon SYS_swapoff
    SYS_sethostname SYS_setdomainname SYS_acct SYS_quotactl SYS_syslog SYS_personality SYS_setuid SYS_setgid
    SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setgroups SYS_setfsuid SYS_setfsgid SYS_capset
    SYS_kill SYS_tkill SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_pidfd_send_signal SYS_mknodat
    SYS_symlinkat SYS_linkat SYS_renameat2 SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_truncate
    SYS_memfd_secret
];
/// Further such calls of x86-64.
#[cfg(target_arch = "x86_64")]
const NEVER_HERE: &[Call] = calls![
    SYS_fork SYS_vfork SYS_modify_ldt SYS_iopl SYS_ioperm SYS_kexec_file_load SYS_mknod SYS_symlink SYS_link SYS_rename
    SYS_renameat SYS_chmod SYS_chown SYS_lchown SYS_creat
];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_HERE: &[Call] = &[];

/// Calls that are always refused. The list of allowed calls would refuse them, too; listed here they get EPERM and a telling log line.
pub const NEVER: [&[Call]; 2] = [NEVER_ANYWHERE, NEVER_HERE];

macro_rules! call {
    ($name:ident) => {
        (stringify!($name), libc::$name)
    };
}

const NETLINK_SOCK_DIAG: u64 = libc::NETLINK_SOCK_DIAG as u64;
const TYPE: u64 = 0xF;

/// `PR_GET_AUXV` (linux/prctl.h), by which rustix finds the vDSO; the `libc` crate lacks it for Linux.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// Argument `index` has all bits of `flags`.
const fn has(index: u8, flags: i32) -> Test {
    Test::Bits(index, flags as u64, flags as u64)
}

/// Argument `index`, the flags of an `open`, has this access mode.
const fn access(index: u8, access: i32) -> Test {
    Test::Bits(index, libc::O_ACCMODE as u64, access as u64)
}

/// Calls that the service makes, but never with these arguments.
pub const REFUSED: [&[Refused]; 2] = [REFUSED_ANYWHERE, REFUSED_HERE];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[Refused] = &[
    Refused { call: call!(SYS_open), what: "for writing", when: &[access(1, libc::O_WRONLY)] },
    Refused { call: call!(SYS_open), what: "for reading and writing", when: &[access(1, libc::O_RDWR)] },
    Refused { call: call!(SYS_open), what: "to make a file", when: &[has(1, libc::O_CREAT)] },
    Refused { call: call!(SYS_open), what: "to empty a file", when: &[has(1, libc::O_TRUNC)] },
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[Refused] = &[];

const REFUSED_ANYWHERE: &[Refused] = &[
    Refused {
        call: call!(SYS_clone),
        what: "another process",
        when: &[Test::Bits(0, libc::CLONE_THREAD as u64, 0)],
    },
    Refused {
        call: call!(SYS_unshare),
        what: "anything but the descriptor table",
        when: &[Test::IsNot(0, libc::CLONE_FILES as u64)],
    },
    Refused { call: call!(SYS_openat), what: "for writing", when: &[access(2, libc::O_WRONLY)] },
    Refused { call: call!(SYS_openat), what: "for reading and writing", when: &[access(2, libc::O_RDWR)] },
    Refused { call: call!(SYS_openat), what: "to make a file", when: &[has(2, libc::O_CREAT)] },
    Refused { call: call!(SYS_openat), what: "to empty a file", when: &[has(2, libc::O_TRUNC)] },
    Refused { call: call!(SYS_mmap), what: "code", when: &[has(2, libc::PROT_EXEC)] },
    Refused { call: call!(SYS_mprotect), what: "code", when: &[has(2, libc::PROT_EXEC)] },
    Refused { call: call!(SYS_tgkill), what: "another process", when: &[Test::IsNotOwnProcess(0)] },
    Refused {
        call: call!(SYS_prctl),
        what: "anything but names of threads and mappings, and the vDSO's place (`PR_GET_AUXV`)",
        when: &[
            Test::IsNot(0, libc::PR_SET_NAME as u64),
            Test::IsNot(0, libc::PR_GET_NAME as u64),
            Test::IsNot(0, libc::PR_SET_VMA as u64),
            Test::IsNot(0, PR_GET_AUXV),
        ],
    },
    Refused {
        call: call!(SYS_ioctl),
        what: "anything but bytes that wait (`FIONREAD`, `SIOCOUTQ`) and whether it is a terminal (`TCGETS`)",
        when: &[Test::IsNot(1, libc::FIONREAD), Test::IsNot(1, libc::TIOCOUTQ), Test::IsNot(1, libc::TCGETS)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "other families than UNIX, IPv4, IPv6 and netlink",
        when: &[
            Test::IsNot(0, libc::AF_UNIX as u64),
            Test::IsNot(0, libc::AF_INET as u64),
            Test::IsNot(0, libc::AF_INET6 as u64),
            Test::IsNot(0, libc::AF_NETLINK as u64),
        ],
    },
    Refused {
        call: call!(SYS_socket),
        what: "netlink for anything but `NETLINK_SOCK_DIAG`",
        when: &[Test::Is(0, libc::AF_NETLINK as u64), Test::IsNot(2, NETLINK_SOCK_DIAG)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv4 datagrams",
        when: &[Test::Is(0, libc::AF_INET as u64), Test::Bits(1, TYPE, libc::SOCK_DGRAM as u64)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv6 datagrams",
        when: &[Test::Is(0, libc::AF_INET6 as u64), Test::Bits(1, TYPE, libc::SOCK_DGRAM as u64)],
    },
];

const NONE: CapabilitySet = CapabilitySet::empty();

/// All features that a service may have.
pub const TABLE: &[Row] = &[
    Row {
        feature: "every service, `--port none` and private ones too",
        at_start: NONE,
        kept: NONE,
        files: "`--config`, the control socket, its lock and folder; while it serves, below `/proc`, to read",
        calls: &[MEMORY, THREADS, WAITING, LINES, REGIONS, FILES, OLD],
        is_used: |_| true,
    },
    Row {
        feature: "an empty bounding set",
        at_start: CapabilitySet::SETPCAP,
        kept: NONE,
        files: "none",
        calls: &[],
        is_used: |_| true,
    },
    Row {
        feature: "`--port tap`",
        at_start: CapabilitySet::NET_ADMIN,
        kept: NONE,
        files: "`/dev/net/tun`, `/proc/sys/net/ipv6/conf/NAME/accept_dad` to write",
        calls: &[],
        is_used: |config| config.port == PortKind::Tap,
    },
    Row {
        feature: "groups of flows brought to cores (`--port tap`, unless there is one processor or `--cores 1`); without it one core serves, or cores hand packets on",
        at_start: CapabilitySet::BPF,
        kept: NONE,
        files: "for `--cores auto`: `/proc/stat`, `/proc/pressure/cpu`, `cpu.max` of the service's cgroups",
        calls: &[],
        is_used: |config| config.port == PortKind::Tap && config.cores.most > 1,
    },
    Row {
        feature: "`--port packet:INTERFACE`",
        at_start: CapabilitySet::NET_RAW,
        kept: NONE,
        files: "none",
        calls: &[HOLDING],
        is_used: |config| config.port == PortKind::Packet,
    },
    Row {
        feature: "`--netns NAME`",
        at_start: CapabilitySet::SYS_ADMIN,
        kept: NONE,
        files: "`/run/netns/NAME`",
        calls: &[],
        is_used: |config| config.link.namespace.is_some(),
    },
    Row {
        feature: "`--user USER`",
        at_start: CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::CHOWN),
        kept: NONE,
        files: "`/etc/passwd`, `/etc/group` and what else the system's name service reads; the control socket's folder becomes the user's",
        calls: &[],
        is_used: |config| config.user.is_some(),
    },
    Row {
        feature: "ports held for connections inside this host (the kernel chooses them)",
        at_start: NONE,
        kept: NONE,
        files: "none",
        calls: &[ASKING, HOLDING],
        is_used: |_| true,
    },
    Row {
        feature: "a listening socket, asked of the kernel (`NETLINK_SOCK_DIAG`)",
        at_start: NONE,
        kept: NONE,
        files: "none",
        calls: &[ASKING],
        is_used: |_| true,
    },
    Row {
        feature: "helper threads that look into what programs show",
        at_start: NONE,
        kept: NONE,
        files: "none",
        calls: &[HELPERS, LINES],
        is_used: |_| true,
    },
    Row {
        feature: "agents of congestion control (`--cc-socket`)",
        at_start: NONE,
        kept: NONE,
        files: "the socket; while it serves, the sockets of agents, which the service's user must be able to write",
        calls: &[LINES, ASKING, WATCHING],
        is_used: |config| config.agents.is_some(),
    },
    Row {
        feature: "a policy, read again by SIGHUP and `towpath reload`",
        at_start: NONE,
        kept: NONE,
        files: "while it serves, the policy's file, which the service's user must be able to read",
        calls: &[FILES],
        is_used: |_| true,
    },
];

/// The calls of all rows; some occur several times.
pub fn calls() -> impl Iterator<Item = Call> {
    TABLE.iter().flat_map(|row| row.calls).flat_map(|group| group.iter().copied())
}

/// The capabilities that a service with this configuration keeps.
#[must_use]
pub fn kept(config: &Config) -> CapabilitySet {
    TABLE.iter().filter(|row| (row.is_used)(config)).fold(NONE, |all, row| all | row.kept)
}
