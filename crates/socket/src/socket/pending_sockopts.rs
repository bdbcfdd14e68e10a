//! Options that the placeholder of a connection has not been given yet. A socket that never sends a byte has no use for its listener's
//! options, nor for the TCP switches that programs set with every request (nginx corks and uncorks each answer). They are noted here, and
//! set on the placeholder when it may be asked for them: by another process with its descriptor, or by a call for another option.

use crate::socket::untold::switch;
use crate::socket::{Sock, placeholder};
use endpoint::Endpoint;
use endpoint::option_values::int;
use endpoint::options::Name;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::detached;
use session::sys;
use shm::TRUST;
use std::sync::atomic::Ordering;

/// True when no other process has the socket, so none can ask the placeholder.
fn is_alone(link: &Endpoint) -> bool {
    let holders = link.block().holders.load(Ordering::SeqCst);
    holders.is_power_of_two() && holders != TRUST
}

/// `setsockopt` of a switch: notes it. False: the kernel has to be called. `is_good`: the memory of `value` can be read.
pub fn set(
    sock: &Sock,
    fd: RawFd,
    Name { level, name }: Name,
    value: &[u8],
    is_good: impl FnOnce() -> bool,
) -> bool {
    let Some(switch) = switch(level, name) else { return false };
    let Some(link) = sock.stream() else { return false };
    // The kernel takes the length as an int, and refuses a negative one.
    let length = size_of::<i32>()..=i32::MAX as usize;
    if detached::is_locked() || link.is_unconnected() || !is_alone(link) || !length.contains(&value.len()) {
        return false;
    }
    let Some(number) = is_good().then(|| int(value)).flatten() else { return false };
    let is_on = number != 0;
    sock.untold.note(switch, is_on);
    link.obey(Name { level, name }, number);
    if !is_alone(link) {
        // Another thread has just forked.
        tell_switches(sock, fd);
    }
    true
}

/// `getsockopt` of a switch that the placeholder has not been given; `None`: the kernel knows the answer.
pub fn get(sock: &Sock, level: i32, name: i32) -> Option<i32> {
    sock.untold.value(switch(level, name)?).map(i32::from)
}

/// After a switch was set on the placeholder directly: forgets the value noted here.
pub fn forget(sock: &Sock, level: i32, name: i32) {
    if let Some(switch) = switch(level, name) {
        sock.untold.forget(switch);
    }
}

/// Notes that the placeholder of an accepted socket has not been given its listener's options.
pub fn begin(sock: &Sock) {
    sock.untold.note_listeners();
}

/// Sets the noted switches on the placeholder. Takes no lock, so a process that is about to fork can use it.
pub fn tell_switches(sock: &Sock, fd: RawFd) {
    // A common socket, which many connections share, gets no options.
    if !sock.untold.has_switches() || placeholder::own(sock, fd).is_err() {
        return;
    }
    for (name, value) in sock.untold.take_switches() {
        let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, name, &value);
    }
}

/// Sets everything noted on the placeholder, after giving the socket one of its own: from here on it may be asked.
///
/// # Errors
/// As [`placeholder::own`]'s.
pub fn tell(sock: &Sock, fd: RawFd) -> Result<(), Errno> {
    placeholder::own(sock, fd)?;
    if sock.untold.is_nothing() {
        return Ok(());
    }
    if sock.untold.take_listeners() {
        let settings = sock.settings();
        for (option, value) in settings.iter().flat_map(|settings| settings.options.passed_on()) {
            // The kernel accepted each of these values on the listener.
            let _ = sys::setsockopt(fd, option.level, option.name, value);
        }
    }
    tell_switches(sock, fd);
    Ok(())
}

/// Copies the noted switches into the settings, for another object or placeholder that is to stand for the socket.
pub fn keep(sock: &Sock) {
    for (name, value) in sock.untold.switches() {
        sock.set(|settings| settings.note(Name::new(libc::IPPROTO_TCP, name), &value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::options;
    use endpoint::Endpoint;
    use endpoint::region::Mapped;
    use rustix::fd::AsRawFd;
    use rustix::net::{AddressFamily, SocketType, socket};
    use session::host::HOST;
    use shm::{Kind, Params, Region, Side};
    use std::sync::Arc;

    const ON: [u8; 4] = 1i32.to_ne_bytes();
    const OFF: [u8; 4] = 0i32.to_ne_bytes();

    fn connection() -> Endpoint {
        let [home, pair] = [(Kind::Application, 1), (Kind::Pair, 2)].map(|(kind, id)| {
            let (region, _) = Region::create(Params { kind, id, slots: 64, data_len: 1 << 20 }).unwrap();
            Arc::new(Mapped::new(&HOST, Side::One, Arc::new(region), 16))
        });
        let link = Endpoint::new(pair, 5, home, 5);
        link.begin(true, true);
        link
    }

    /// The value of a switch on the placeholder, and the value that the program gets.
    fn of(sock: &Sock, fd: RawFd, name: i32) -> (i32, i32) {
        let mut value = [0; 4];
        sys::getsockopt(fd, libc::IPPROTO_TCP, name, &mut value).unwrap();
        let kernels = i32::from_ne_bytes(value);
        let told = options::get(sock, libc::IPPROTO_TCP, name, &mut value);
        (kernels, told.map_or(kernels, |n| n.map(|_| i32::from_ne_bytes(value)).unwrap()))
    }

    fn set(sock: &Sock, fd: RawFd, name: i32, value: &[u8]) {
        if !super::set(sock, fd, Name { level: libc::IPPROTO_TCP, name }, value, || true) {
            options::set(sock, fd, libc::IPPROTO_TCP, name, value).unwrap();
        }
    }

    #[test]
    fn a_placeholder_hears_of_switches_once_somebody_else_may_ask_it() {
        let placeholder = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let (fd, link) = (placeholder.as_raw_fd(), connection());
        link.block().holders.store(1, Ordering::Relaxed);
        let sock = Sock::accepted(libc::AF_INET, link);
        let (cork, delay) = (libc::TCP_CORK, libc::TCP_NODELAY);
        set(&sock, fd, cork, &ON);
        set(&sock, fd, delay, &7i32.to_ne_bytes());
        assert_eq!([cork, delay].map(|name| of(&sock, fd, name)), [(0, 1), (0, 1)]);
        set(&sock, fd, cork, &OFF);
        assert_eq!((of(&sock, fd, cork), sock.settings().is_none()), ((0, 0), true));
        // As before a fork: the child will ask the kernel.
        sock.link().unwrap().block().holders.store(3, Ordering::Relaxed);
        tell_switches(&sock, fd);
        assert_eq!([cork, delay].map(|name| of(&sock, fd, name)), [(0, 0), (1, 1)]);
        set(&sock, fd, delay, &OFF);
        assert_eq!(of(&sock, fd, delay), (0, 0));
        // One holder again: what the kernel was given meanwhile is not set again.
        sock.link().unwrap().block().holders.store(1, Ordering::Relaxed);
        set(&sock, fd, cork, &ON);
        assert_eq!([cork, delay].map(|name| of(&sock, fd, name)), [(0, 1), (0, 0)]);
        assert!(options::set(&sock, fd, libc::IPPROTO_TCP, cork, &[1]).is_err(), "an int is longer");
        assert!(
            !super::set(&sock, fd, Name { level: libc::IPPROTO_TCP, name: cork }, &OFF, || false),
            "nobody reads there"
        );
        keep(&sock);
        let kept = sock.settings().unwrap();
        assert_eq!(kept.options.find(libc::IPPROTO_TCP, cork), Some(&ON[..]));
    }

    #[test]
    fn what_was_set_on_a_listener_is_told_before_the_placeholder_is_asked() {
        let placeholder = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let (fd, link) = (placeholder.as_raw_fd(), connection());
        link.block().holders.store(1, Ordering::Relaxed);
        let (listener, sock) = (Sock::new(libc::AF_INET, false), Sock::accepted(libc::AF_INET, link));
        for name in [libc::SO_KEEPALIVE, libc::SO_PRIORITY] {
            listener.set(|settings| settings.note(Name::new(libc::SOL_SOCKET, name), &ON));
        }
        options::inherit(&listener, &sock);
        let ask = |name| {
            let mut value = [0; 4];
            sys::getsockopt(fd, libc::SOL_SOCKET, name, &mut value).map(|_| i32::from_ne_bytes(value))
        };
        assert_eq!(ask(libc::SO_KEEPALIVE), Ok(0));
        tell(&sock, fd).unwrap();
        assert_eq!((ask(libc::SO_KEEPALIVE), ask(libc::SO_PRIORITY)), (Ok(1), Ok(0)));
        options::set(&sock, fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &OFF).unwrap();
        tell(&sock, fd).unwrap();
        assert_eq!(ask(libc::SO_KEEPALIVE), Ok(0), "it is told once");
    }
}
