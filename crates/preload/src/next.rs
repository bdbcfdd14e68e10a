//! The next library's functions (usually the C library's), which this library's symbols hide.

use libc::{
    FILE, c_char, c_int, c_uint, c_ulong, c_void, epoll_event, fd_set, gid_t, iovec, loff_t, mmsghdr, mode_t,
    msghdr, nfds_t, off_t, pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t, pthread_t, rlimit,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};
use session::sys::cycle_account;
use session::sys::cycle_account::Section;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The address of the symbol `name` (with its final 0) in the next library; looked up once.
fn find(place: &AtomicUsize, name: &'static str) -> usize {
    let known = place.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: `name` ends in 0.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) } as usize;
    place.store(found, Ordering::Relaxed);
    found
}

/// The address of the next library's symbol `name` (with its final 0).
pub fn address(name: &'static str) -> usize {
    find(&AtomicUsize::new(0), name)
}

macro_rules! next {
    ($($name:ident($($a:ident: $t:ty),*) -> $r:ty;)*) => { $(
        #[doc = concat!("The next `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As C's function.
        #[allow(non_snake_case)] // C's name.
        pub unsafe fn $name($($a: $t),*) -> $r {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let at = find(&NEXT, concat!(stringify!($name), "\0"));
            if at == 0 {
                return crate::fail(socket::Errno::NOSYS) as $r;
            }
            // SAFETY: the symbol has this type; the caller answers for the arguments. It may end its thread, which unwinds this frame.
            unsafe {
                let f = std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($t),*) -> $r>(at);
                let before = cycle_account::turn(Section::Kernel);
                let answer = f($($a),*);
                cycle_account::leave(before);
                answer
            }
        }
    )* };
}

next! {
    _Fork() -> libc::pid_t;
    chroot(path: *const c_char) -> c_int;
    getrlimit(resource: c_uint, limits: *mut rlimit) -> c_int;
    prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, name: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockname(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    sockatmark(fd: c_int) -> c_int;
    fstat(fd: c_int, out: *mut c_void) -> c_int;
    fstat64(fd: c_int, out: *mut c_void) -> c_int;
    __fxstat(version: c_int, fd: c_int, out: *mut c_void) -> c_int;
    __fxstat64(version: c_int, fd: c_int, out: *mut c_void) -> c_int;
    fstatat(folder: c_int, path: *const c_char, out: *mut c_void, flags: c_int) -> c_int;
    fstatat64(folder: c_int, path: *const c_char, out: *mut c_void, flags: c_int) -> c_int;
    __fxstatat(version: c_int, folder: c_int, path: *const c_char, out: *mut c_void, flags: c_int) -> c_int;
    __fxstatat64(version: c_int, folder: c_int, path: *const c_char, out: *mut c_void, flags: c_int) -> c_int;
    fchmod(fd: c_int, mode: mode_t) -> c_int;
    fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int;
    fchownat(folder: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int;
    futimens(fd: c_int, times: *const timespec) -> c_int;
    fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int;
    flock(fd: c_int, operation: c_int) -> c_int;
    statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut c_void) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    preadv2(fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, name: *mut sockaddr, name_len: *mut socklen_t) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, name: *const sockaddr, name_len: socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, len: size_t, flags: c_uint) -> ssize_t;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(most: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(most: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epfd: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epfd: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epfd: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execveat(folder: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, how: *const c_char) -> usize;
    posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, old: c_int, new: c_int) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fclose(stream: *mut FILE) -> c_int;
    vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    pthread_cancel(thread: pthread_t) -> c_int;
    pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}
