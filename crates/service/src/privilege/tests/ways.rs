//! What a service must never do, and each way to do it: behind the filter and Landlock, with the capabilities of root where the test has them, each
//! is refused, whatever features the service has. What it does while it serves goes on.

use super::*;
use rustix::net::{SendFlags, SocketAddrUnix, sendto};
use std::ffi::CString;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Another process, which waits; what is to stay as it is lies around it.
struct Others {
    folder: tempfile::TempDir,
    process: Child,
    listener: TcpListener,
    /// Its name is abstract.
    abstracted: UnixDatagram,
}

impl Others {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("precious"), "precious").unwrap();
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let name = format!("towpath-ways-{name}-{}", std::process::id());
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let abstracted = UnixDatagram::bind_addr(&name).unwrap();
        abstracted.set_nonblocking(true).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self {
            folder,
            process: Command::new("cat").stdin(Stdio::piped()).spawn().unwrap(),
            listener,
            abstracted,
        }
    }

    fn known(&self) -> Known {
        let abstracted = self.abstracted.local_addr().unwrap().as_abstract_name().unwrap().to_vec();
        Known {
            pid: self.process.id() as usize,
            file: self.folder.path().join("precious"),
            folder: self.folder.path().join("empty"),
            port: self.listener.local_addr().unwrap().port(),
            abstracted,
            landlock: sys::landlock_version(),
        }
    }

    fn limits(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/limits", self.process.id())).unwrap()
    }

    /// All of it is as it was.
    fn check(&mut self, limits: &str) {
        assert_eq!(self.process.try_wait().unwrap(), None, "another process lives on");
        assert_eq!(self.limits(), limits);
        assert_eq!(std::fs::read(self.folder.path().join("precious")).unwrap(), b"precious");
        assert!(self.folder.path().join("empty").is_dir());
        assert_eq!(std::fs::read_dir(self.folder.path()).unwrap().count(), 2);
        let nothing = std::io::ErrorKind::WouldBlock;
        assert_eq!(self.listener.accept().unwrap_err().kind(), nothing, "nothing has connected");
        if sys::landlock_version() >= 6 {
            assert_eq!(self.abstracted.recv(&mut [0; 8]).unwrap_err().kind(), nothing, "nothing was sent");
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How the confined thread names it all.
struct Known {
    pid: usize,
    file: PathBuf,
    folder: PathBuf,
    port: u16,
    abstracted: Vec<u8>,
    /// Asked before the filter refuses the question.
    landlock: u32,
}

type Way = (&'static str, Result<i64, Errno>);

fn at(text: &CString) -> usize {
    text.as_ptr() as usize
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// A way by a call with these arguments.
macro_rules! way {
    ($call:ident $(, $argument:expr)*) => {
        (stringify!($call $(, $argument)*), sys::attempt(libc::$call, &[$($argument as usize),*]))
    };
}

const KILL: usize = libc::SIGKILL as usize;

fn ways_to_signal(known: &Known) -> Vec<Way> {
    let (pid, info) = (known.pid, [0u64; 16]);
    let info = info.as_ptr();
    let watched = rustix::process::pidfd_open(
        rustix::process::Pid::from_raw(pid as i32).unwrap(),
        rustix::process::PidfdFlags::empty(),
    );
    let watched = watched.unwrap();
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let (socket, watched) = (socket.as_raw_fd(), watched.as_raw_fd());
    // `struct f_owner_ex`: F_OWNER_PID, and the process.
    let (owner, number) = ([1i32, pid as i32], pid as i32);
    let (owner, number) = (owner.as_ptr(), &raw const number);
    vec![
        way!(SYS_kill, pid, KILL),
        way!(SYS_tkill, pid, KILL),
        way!(SYS_tgkill, pid, pid, KILL),
        way!(SYS_rt_sigqueueinfo, pid, KILL, info),
        way!(SYS_rt_tgsigqueueinfo, pid, pid, KILL, info),
        way!(SYS_pidfd_send_signal, watched, KILL, 0, 0),
        way!(SYS_fcntl, socket, libc::F_SETOWN, pid),
        way!(SYS_fcntl, socket, 15, owner),
        way!(SYS_fcntl, socket, 10, KILL),
        way!(SYS_fcntl, socket, libc::F_SETFL, libc::O_ASYNC),
        way!(SYS_fcntl, socket, libc::F_SETLEASE, libc::F_WRLCK),
        way!(SYS_fcntl, socket, libc::F_NOTIFY, libc::IN_MODIFY),
        // FIOSETOWN, SIOCSPGRP, FIOASYNC
        way!(SYS_ioctl, socket, 0x8901, number),
        way!(SYS_ioctl, socket, 0x8902, number),
        way!(SYS_ioctl, socket, libc::FIOASYNC, number),
        way!(SYS_ioctl, 0, libc::TIOCSTI, number),
        way!(SYS_timer_create, libc::CLOCK_MONOTONIC, info, info),
        way!(SYS_mq_notify, 0, info),
        way!(SYS_prctl, libc::PR_SET_PDEATHSIG, KILL),
        way!(SYS_reboot, 0, 0, 0, 0),
        way!(SYS_process_mrelease, watched, 0),
    ]
}

fn ways_to_limit(known: &Known) -> Vec<Way> {
    let (pid, limit, mask) = (known.pid, [1u64; 2], [1u64; 16]);
    let (limit, mask) = (limit.as_ptr(), mask.as_ptr());
    vec![
        way!(SYS_prlimit64, pid, libc::RLIMIT_NOFILE, limit, 0),
        way!(SYS_prlimit64, pid, libc::RLIMIT_CPU, 0, limit),
        way!(SYS_setpriority, libc::PRIO_PROCESS, pid, 19),
        way!(SYS_sched_setscheduler, pid, libc::SCHED_IDLE, limit),
        way!(SYS_sched_setparam, pid, limit),
        way!(SYS_sched_setattr, pid, mask, 0),
        way!(SYS_sched_setaffinity, pid, 128, mask),
        way!(SYS_ioprio_set, 1, pid, 0),
        way!(SYS_migrate_pages, pid, 1, mask, mask),
        way!(SYS_move_pages, pid, 0, 0, 0, 0, 0),
        way!(SYS_setpgid, pid, pid),
        way!(SYS_process_madvise, 0, mask, 1, 0, 0),
    ]
}

fn ways_to_remove(known: &Known) -> Vec<Way> {
    let (file, folder, new) = (path(&known.file), path(&known.folder), path(&known.folder.join("new")));
    let (file, folder, new, cwd) = (at(&file), at(&folder), at(&new), libc::AT_FDCWD as usize);
    let mut ways = vec![
        way!(SYS_unlinkat, cwd, file, 0),
        way!(SYS_unlinkat, cwd, folder, libc::AT_REMOVEDIR),
        way!(SYS_renameat2, cwd, file, cwd, new, 0),
        way!(SYS_linkat, cwd, file, cwd, new, 0),
        way!(SYS_symlinkat, file, cwd, new),
        way!(SYS_mkdirat, cwd, new, 0o700),
        way!(SYS_mknodat, cwd, new, libc::S_IFREG | 0o600, 0),
        way!(SYS_truncate, file, 0),
        way!(SYS_openat, cwd, file, libc::O_RDONLY | libc::O_TRUNC),
        way!(SYS_openat, cwd, file, libc::O_WRONLY),
        way!(SYS_openat, cwd, file, libc::O_RDWR),
        way!(SYS_openat, cwd, new, libc::O_RDONLY | libc::O_CREAT, 0o600),
        way!(SYS_openat, cwd, folder, libc::O_RDWR | libc::O_TMPFILE, 0o600),
        way!(SYS_fchmodat, cwd, file, 0),
        way!(SYS_fchownat, cwd, file, 0, 0, 0),
        way!(SYS_utimensat, cwd, file, 0, 0),
        way!(SYS_setxattr, file, file, file, 1, 0),
        way!(SYS_mount, file, folder, 0, libc::MS_BIND, 0),
        way!(SYS_umount2, folder, 0),
        way!(SYS_chroot, folder),
    ];
    #[cfg(target_arch = "x86_64")]
    ways.extend([
        way!(SYS_unlink, file),
        way!(SYS_rmdir, folder),
        way!(SYS_rename, file, new),
        way!(SYS_link, file, new),
        way!(SYS_symlink, file, new),
        way!(SYS_mkdir, new, 0o700),
        way!(SYS_creat, new, 0o600),
        way!(SYS_open, file, libc::O_RDONLY | libc::O_TRUNC),
        way!(SYS_chmod, file, 0),
    ]);
    ways
}

fn ways_to_read(known: &Known) -> Vec<Way> {
    let through = |root: &str| path(&Path::new(root).join(known.file.strip_prefix("/").unwrap()));
    let (file, folder) = (path(&known.file), path(&known.folder));
    let (own, other) = (through("/proc/self/root"), through(&format!("/proc/{}/root", known.pid)));
    let [shadow, memory, open] =
        ["/etc/shadow", &format!("/proc/{}/mem", known.pid), "/proc"].map(|text| CString::new(text).unwrap());
    let (cwd, how) = (libc::AT_FDCWD as usize, [0u64; 3]);
    let mut ways = vec![
        way!(SYS_openat, cwd, at(&file), libc::O_RDONLY),
        way!(SYS_openat, cwd, at(&shadow), libc::O_RDONLY),
        way!(SYS_openat, cwd, at(&folder), libc::O_RDONLY | libc::O_DIRECTORY),
        way!(SYS_openat, cwd, at(&own), libc::O_RDONLY),
        way!(SYS_openat, cwd, at(&other), libc::O_RDONLY),
        way!(SYS_openat, cwd, at(&memory), libc::O_RDONLY),
        way!(SYS_openat2, cwd, at(&file), how.as_ptr(), 24),
        way!(SYS_open_by_handle_at, cwd, how.as_ptr(), 0),
        way!(SYS_io_uring_setup, 1, how.as_ptr()),
        way!(SYS_name_to_handle_at, cwd, at(&file), how.as_ptr(), how.as_ptr(), 0),
        way!(SYS_open_tree, cwd, at(&open), 1),
    ];
    #[cfg(target_arch = "x86_64")]
    ways.push(way!(SYS_open, at(&file), libc::O_RDONLY));
    ways
}

/// `struct sockaddr_in` of a port of this host.
fn here(port: u16) -> [u8; 16] {
    let [high, low] = port.to_be_bytes();
    let [family, zero] = (libc::AF_INET as u16).to_ne_bytes();
    [family, zero, high, low, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
}

fn ways_to_connect(known: &Known) -> Vec<Way> {
    let to = here(known.port);
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let number = socket.as_raw_fd();
    let piece = [c"x".as_ptr() as usize, 1];
    // `struct msghdr`: the address and its length, one piece and their number, no control data, flags. Behind it the length of `struct mmsghdr`.
    let message = [to.as_ptr() as usize, to.len(), piece.as_ptr() as usize, 1, 0, 0, 0, 0];
    let message = message.as_ptr();
    let fast = libc::MSG_FASTOPEN;
    let stream = libc::SOCK_STREAM;
    let mut ways = vec![
        way!(SYS_connect, number, to.as_ptr(), to.len()),
        way!(SYS_sendto, number, piece[0], 1, fast, to.as_ptr(), to.len()),
        way!(SYS_sendto, number, piece[0], 1, fast | libc::MSG_DONTWAIT, to.as_ptr(), to.len()),
        way!(SYS_sendmsg, number, message, fast),
        way!(SYS_sendmmsg, number, message, 1, fast),
        way!(SYS_setsockopt, number, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, to.as_ptr(), 4),
        way!(SYS_setsockopt, number, libc::IPPROTO_TCP, libc::TCP_REPAIR, to.as_ptr(), 4),
        way!(SYS_setsockopt, number, libc::SOL_SOCKET, libc::SO_MARK, to.as_ptr(), 4),
        way!(SYS_setsockopt, number, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, to.as_ptr(), 4),
        way!(SYS_setsockopt, number, libc::IPPROTO_IP, libc::IP_TRANSPARENT, to.as_ptr(), 4),
        way!(SYS_socketpair, 30, stream, 0, to.as_ptr()),
    ];
    // UDP, ICMP, SCTP by two types, MPTCP, raw; and families that are other networks or reach the host of a virtual machine.
    for (kind, protocol) in [
        (libc::SOCK_DGRAM, 0),
        (libc::SOCK_DGRAM, 1),
        (libc::SOCK_SEQPACKET, 0),
        (stream, 132),
        (stream, 262),
        (libc::SOCK_RAW, 6),
        (6, 33),
    ] {
        for family in [libc::AF_INET, libc::AF_INET6] {
            ways.push(way!(SYS_socket, family, kind | libc::SOCK_CLOEXEC, protocol));
        }
    }
    for family in [
        libc::AF_PACKET,
        libc::AF_VSOCK,
        libc::AF_ALG,
        libc::AF_TIPC,
        libc::AF_KEY,
        libc::AF_BLUETOOTH,
        libc::AF_XDP,
    ] {
        ways.push(way!(SYS_socket, family, libc::SOCK_RAW, 0));
    }
    for protocol in
        [libc::NETLINK_ROUTE, libc::NETLINK_NETFILTER, libc::NETLINK_KOBJECT_UEVENT, libc::NETLINK_GENERIC]
    {
        ways.push(way!(SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, protocol));
    }
    if known.landlock >= 6 {
        let name = SocketAddrUnix::new_abstract_name(&known.abstracted).unwrap();
        let from = UnixDatagram::unbound().unwrap();
        ways.push((
            "a datagram to an abstract name",
            sendto(&from, b"x", SendFlags::DONTWAIT, &name).map(|n| n as i64),
        ));
    }
    ways
}

/// To be reached by others, or to reach them, at addresses that nothing of the service's has.
fn ways_to_be_reached(has_agents: bool) -> Vec<Way> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let unbound = UnixDatagram::unbound().unwrap();
    let (stream, datagram) = (socket.as_raw_fd(), unbound.as_raw_fd());
    let to = here(1);
    let mut ways = vec![way!(SYS_listen, stream, 1), way!(SYS_listen, datagram, 0)];
    if !has_agents {
        ways.push(way!(SYS_sendto, datagram, to.as_ptr(), 1, libc::MSG_DONTWAIT, to.as_ptr(), to.len()));
        // Its lower half is 0.
        ways.push(way!(SYS_sendto, datagram, to.as_ptr(), 1, libc::MSG_DONTWAIT, 1usize << 32, to.len()));
    }
    ways
}

fn ways_to_be_another() -> Vec<Way> {
    let (other, sets) = (65_534, [0u32; 8]);
    let sets = sets.as_ptr();
    let thread = libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
    let mut ways = vec![
        way!(SYS_setuid, other),
        way!(SYS_setgid, other),
        way!(SYS_setreuid, other, other),
        way!(SYS_setregid, other, other),
        way!(SYS_setresuid, other, other, other),
        way!(SYS_setresgid, other, other, other),
        way!(SYS_setfsuid, other),
        way!(SYS_setfsgid, other),
        way!(SYS_setgroups, 0, 0),
        way!(SYS_capset, sets, sets),
        way!(SYS_setns, 0, 0),
        way!(SYS_setsid),
        way!(SYS_personality, 0x40_0000),
        way!(SYS_keyctl, 0, 0, 0, 0, 0),
        way!(SYS_add_key, 0, 0, 0, 0, 0),
        way!(SYS_request_key, 0, 0, 0, 0),
        way!(SYS_prctl, libc::PR_SET_SECUREBITS, 0),
        way!(SYS_prctl, libc::PR_SET_KEEPCAPS, 1),
        way!(SYS_prctl, libc::PR_CAP_AMBIENT, 2, 1, 0, 0),
        way!(SYS_prctl, libc::PR_SET_DUMPABLE, 1),
    ];
    let (user, net) = (libc::CLONE_NEWUSER, libc::CLONE_NEWNET);
    for new in [
        user,
        net,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ] {
        ways.push(way!(SYS_unshare, new));
        ways.push(way!(SYS_clone, thread | new, 0, 0, 0, 0));
    }
    ways
}

fn ways_to_execute_and_trace(known: &Known) -> Vec<Way> {
    let (pid, program) = (known.pid, c"/bin/true".to_owned());
    let piece = [0usize; 2];
    let (program, piece) = (at(&program), piece.as_ptr());
    let (code, data) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let mut ways = vec![
        way!(SYS_execve, program, 0, 0),
        way!(SYS_execveat, libc::AT_FDCWD, program, 0, 0, 0),
        way!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0),
        way!(SYS_clone3, piece, 16),
        way!(SYS_ptrace, libc::PTRACE_SEIZE, pid, 0, 0),
        way!(SYS_process_vm_readv, pid, piece, 1, piece, 1, 0),
        way!(SYS_process_vm_writev, pid, piece, 1, piece, 1, 0),
        way!(SYS_kcmp, pid, pid, 0, 0, 0),
        way!(SYS_pidfd_getfd, 0, 0, 0),
        way!(SYS_perf_event_open, piece, pid, -1isize, -1isize, 0),
        way!(SYS_userfaultfd, 0),
        way!(SYS_mmap, 0, 4096, code, data, -1isize, 0),
        way!(SYS_mprotect, 0, 4096, code),
        way!(SYS_pkey_mprotect, 0, 4096, code, -1isize),
        way!(SYS_shmget, 0, 4096, 0o1600),
        way!(SYS_shmat, 0, 0, 0o100_000),
        way!(SYS_remap_file_pages, 0, 4096, code, 0, 0),
        way!(SYS_init_module, 0, 0, program),
        way!(SYS_finit_module, 0, program, 0),
        way!(SYS_kexec_load, 0, 0, 0, 0),
        way!(SYS_bpf, 0, piece, 16),
        way!(SYS_seccomp, 1, 0, 0),
        way!(SYS_io_uring_enter, 0, 0, 0, 0, 0, 0),
        way!(SYS_prctl, 35, 0, 0, 0, 0),
        way!(SYS_prctl, libc::PR_SET_SECCOMP, 1, 0, 0, 0),
        way!(SYS_landlock_create_ruleset, 0, 0, 1),
    ];
    #[cfg(target_arch = "x86_64")]
    ways.extend([
        way!(SYS_fork),
        way!(SYS_vfork),
        way!(SYS_modify_ldt, 0, 0, 0),
        way!(SYS_uselib, program),
        way!(SYS_iopl, 3),
        // The same calls with the numbers of x32.
        ("x32", sys::attempt(0x4000_0000 | libc::SYS_getpid, &[])),
    ]);
    ways
}

/// Services with each feature, by what their configuration has.
fn services(folder: &Path) -> Vec<(&'static str, Config)> {
    let control = folder.join("control.sock");
    let options = || Options { control: Some(control.clone()), ..Options::default() };
    let policy = folder.join("policy/policy.toml");
    std::fs::create_dir(folder.join("policy")).unwrap();
    std::fs::write(&policy, "").unwrap();
    let agents = Some(folder.join("agents/cc.sock"));
    std::fs::create_dir(folder.join("agents")).unwrap();
    let port = |kind: &str| Options {
        port: Some(kind.parse().unwrap()),
        address: Some(vec!["10.1.0.2/24".parse().unwrap()]),
        ..options()
    };
    let all = [
        ("none", options()),
        ("a policy", Options { policy: Some(policy), ..options() }),
        ("agents", Options { cc_socket: agents, ..port("tap") }),
        ("tap", port("tap")),
        ("packet", port("packet:v1")),
        ("netns", Options { netns: Some("other".to_owned()), ..port("tap") }),
    ];
    all.map(|(name, options)| (name, options.resolve().unwrap())).into()
}

/// Runs `test` confined as a service is, but with the capabilities of this test.
fn bounded<T: Send + 'static>(config: Config, test: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        thread::set_no_new_privs(true).unwrap();
        landlock::install(&table::places(&config)).unwrap();
        filter::install(&config).unwrap();
        test()
    });
    thread.join().expect("the test passes")
}

#[test]
fn each_way_to_what_a_service_must_never_do_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, config) in services(folder.path()) {
        let mut others = Others::new(name);
        let (known, limits) = (others.known(), others.limits());
        let has_agents = config.agents.is_some();
        let ways = bounded(config, move || {
            let mut ways = vec![
                ("be reached", ways_to_be_reached(has_agents)),
                ("signal another process", ways_to_signal(&known)),
                ("change another process", ways_to_limit(&known)),
                ("connect", ways_to_connect(&known)),
                ("become another user", ways_to_be_another()),
                ("execute, trace or load code", ways_to_execute_and_trace(&known)),
            ];
            if known.landlock > 0 {
                ways.push(("change files", ways_to_remove(&known)));
                ways.push(("open files", ways_to_read(&known)));
            }
            ways
        });
        for (thing, ways) in ways {
            for (way, result) in ways {
                // Any other error would be the call's own: it has been made.
                let is_refused = matches!(result, Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS));
                assert!(is_refused, "a service with {name} can {thing} by {way}: {result:?}");
            }
        }
        others.check(&limits);
    }
}

#[test]
fn what_a_service_opens_and_removes_while_it_serves_stays_open() {
    let folder = tempfile::tempdir().unwrap();
    for (name, config) in services(folder.path()) {
        let mut others = Others::new(&format!("open-{name}"));
        let (pid, later) = (others.process.id(), config.clone());
        let policy = config
            .policy_source
            .path()
            .filter(|policy| policy.starts_with(folder.path()))
            .map(Path::to_owned);
        let [control, beside] =
            [&config.control, &folder.path().join("new.toml")].map(|path| path.to_owned());
        let agents = config.agents.as_ref().map(|agents| agents.socket.clone());
        for made in agents.iter().chain([&control]) {
            std::fs::write(made, "").unwrap();
        }
        let (go_on, replaced) = std::sync::mpsc::channel();
        let test = std::thread::spawn(move || {
            bounded(later.clone(), move || {
                // The policy, the service's user and groups are looked at again; a file in the place of another is another inode.
                replaced.recv().unwrap();
                assert_eq!(later.policy_source.read(false), Ok(Vec::new()), "a policy is read again");
                for path in ["/dev/null", &format!("/proc/{pid}/cgroup"), "/proc/self/fdinfo/0"] {
                    File::open(path).unwrap();
                }
                for made in agents.iter().chain([&control]) {
                    std::fs::remove_file(made).unwrap();
                }
            });
        });
        if let Some(policy) = policy {
            std::fs::write(&beside, "# another file").unwrap();
            std::fs::rename(&beside, policy).unwrap();
        }
        go_on.send(()).unwrap();
        test.join().unwrap();
        assert_eq!(others.process.try_wait().unwrap(), None);
    }
}
