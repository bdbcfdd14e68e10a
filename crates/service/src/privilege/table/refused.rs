//! What the filter refuses whatever a feature's row allows: calls that the service never makes, and arguments that it never passes. The rule
//! for a call of the list is: nothing that it does may reach another process, another user's files or another host.

/// A system call: the constant's name in `libc`, and this machine's number.
pub type Call = (&'static str, i64);

/// Names and numbers of calls.
macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}
pub(super) use calls;

/// A test of one argument of a system call: the argument's index, from 0, and numbers. Arguments are compared as 32 bits, but
/// for addresses.
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
    /// The argument is an address: all 64 bits are compared with 0.
    IsAddress(u8),
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
    SYS_memfd_secret SYS_listen
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
/// Value of the option in `linux/in.h`.
const IP_LOCAL_PORT_RANGE: u64 = 51;

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

/// Refused without agents of congestion control (`--cc-socket`), the only ones that datagrams are sent to.
pub const UNADDRESSED: &[Refused] = &[Refused {
    call: call!(SYS_sendto),
    what: "to an address, without `--cc-socket`",
    when: &[Test::IsAddress(4)],
}];

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
    Refused { call: call!(SYS_clone), what: "a new namespace", when: &[has(0, libc::CLONE_NEWNS)] },
    Refused { call: call!(SYS_clone), what: "a new namespace", when: &[has(0, libc::CLONE_NEWCGROUP)] },
    Refused { call: call!(SYS_clone), what: "a new namespace", when: &[has(0, libc::CLONE_NEWUTS)] },
    Refused { call: call!(SYS_clone), what: "a new namespace", when: &[has(0, libc::CLONE_NEWIPC)] },
    Refused { call: call!(SYS_clone), what: "a new namespace", when: &[has(0, libc::CLONE_NEWUSER)] },
    Refused { call: call!(SYS_clone), what: "a new namespace", when: &[has(0, libc::CLONE_NEWPID)] },
    Refused { call: call!(SYS_clone), what: "a new namespace", when: &[has(0, libc::CLONE_NEWNET)] },
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
    // The number of a stream's type is 1; those of all other types have one of these three bits.
    Refused {
        call: call!(SYS_socket),
        what: "IPv4 for anything but TCP",
        when: &[Test::Is(0, libc::AF_INET as u64), Test::Bits(1, 2, 2)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv4 for anything but TCP",
        when: &[Test::Is(0, libc::AF_INET as u64), Test::Bits(1, 4, 4)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv4 for anything but TCP",
        when: &[Test::Is(0, libc::AF_INET as u64), Test::Bits(1, 8, 8)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv4 for anything but TCP",
        when: &[
            Test::Is(0, libc::AF_INET as u64),
            Test::IsNot(2, 0),
            Test::IsNot(2, libc::IPPROTO_TCP as u64),
        ],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv6 for anything but TCP",
        when: &[Test::Is(0, libc::AF_INET6 as u64), Test::Bits(1, 2, 2)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv6 for anything but TCP",
        when: &[Test::Is(0, libc::AF_INET6 as u64), Test::Bits(1, 4, 4)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv6 for anything but TCP",
        when: &[Test::Is(0, libc::AF_INET6 as u64), Test::Bits(1, 8, 8)],
    },
    Refused {
        call: call!(SYS_socket),
        what: "IPv6 for anything but TCP",
        when: &[
            Test::Is(0, libc::AF_INET6 as u64),
            Test::IsNot(2, 0),
            Test::IsNot(2, libc::IPPROTO_TCP as u64),
        ],
    },
    Refused {
        call: call!(SYS_socketpair),
        what: "other families than UNIX",
        when: &[Test::IsNot(0, libc::AF_UNIX as u64)],
    },
    Refused {
        call: call!(SYS_fcntl),
        what: "anything but copies and flags of descriptors, and seals: no owners, signals, leases, notices, locks",
        when: &[
            Test::IsNot(1, libc::F_DUPFD as u64),
            Test::IsNot(1, libc::F_DUPFD_CLOEXEC as u64),
            Test::IsNot(1, libc::F_GETFD as u64),
            Test::IsNot(1, libc::F_SETFD as u64),
            Test::IsNot(1, libc::F_GETFL as u64),
            Test::IsNot(1, libc::F_ADD_SEALS as u64),
            Test::IsNot(1, libc::F_GET_SEALS as u64),
        ],
    },
    Refused { call: call!(SYS_prlimit64), what: "another process", when: &[Test::IsNot(0, 0)] },
    // Such a message connects.
    Refused { call: call!(SYS_sendto), what: "with `MSG_FASTOPEN`", when: &[has(3, libc::MSG_FASTOPEN)] },
    Refused { call: call!(SYS_sendmsg), what: "with `MSG_FASTOPEN`", when: &[has(2, libc::MSG_FASTOPEN)] },
    Refused { call: call!(SYS_unlinkat), what: "folders", when: &[Test::IsNot(2, 0)] },
    Refused {
        call: call!(SYS_setsockopt),
        what: "other levels than those of sockets, IPv4, IPv6 and packet sockets",
        when: &[
            Test::IsNot(1, libc::SOL_SOCKET as u64),
            Test::IsNot(1, libc::IPPROTO_IP as u64),
            Test::IsNot(1, libc::IPPROTO_IPV6 as u64),
            Test::IsNot(1, libc::SOL_PACKET as u64),
        ],
    },
    Refused {
        call: call!(SYS_setsockopt),
        what: "of a socket anything but `SO_REUSEADDR`, `SO_ATTACH_FILTER`, `SO_SNDBUF`",
        when: &[
            Test::Is(1, libc::SOL_SOCKET as u64),
            Test::IsNot(2, libc::SO_REUSEADDR as u64),
            Test::IsNot(2, libc::SO_ATTACH_FILTER as u64),
            Test::IsNot(2, libc::SO_SNDBUF as u64),
        ],
    },
    Refused {
        call: call!(SYS_setsockopt),
        what: "of IPv4 anything but `IP_LOCAL_PORT_RANGE`",
        when: &[Test::Is(1, libc::IPPROTO_IP as u64), Test::IsNot(2, IP_LOCAL_PORT_RANGE)],
    },
    Refused {
        call: call!(SYS_setsockopt),
        what: "of IPv6 anything but `IPV6_V6ONLY`",
        when: &[Test::Is(1, libc::IPPROTO_IPV6 as u64), Test::IsNot(2, libc::IPV6_V6ONLY as u64)],
    },
    Refused {
        call: call!(SYS_setsockopt),
        what: "of a packet socket anything but its ring and its group",
        when: &[
            Test::Is(1, libc::SOL_PACKET as u64),
            Test::IsNot(2, libc::PACKET_VERSION as u64),
            Test::IsNot(2, libc::PACKET_COPY_THRESH as u64),
            Test::IsNot(2, libc::PACKET_RX_RING as u64),
            Test::IsNot(2, libc::PACKET_FANOUT as u64),
            Test::IsNot(2, libc::PACKET_FANOUT_DATA as u64),
        ],
    },
];
