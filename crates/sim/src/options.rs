//! `setsockopt`, `getsockopt` and `ioctl`: what the crate `endpoint` says about options, on a host without a kernel.

use crate::host::Host;
use crate::sockets::{Fd, Role, Sock};
use congestion::Algorithm;
use control::{CongestionName, TcpInfo};
use endpoint::Endpoint as Stream;
use endpoint::option_values::{int, put, put_congestion};
use endpoint::options::{By, Name};
use libc::{
    IPPROTO_TCP, SO_ACCEPTCONN, SO_ERROR, SO_LINGER, SO_SNDBUF, SO_TYPE, SOL_SOCKET, TCP_CONGESTION,
    TCP_INFO, TCP_MAXSEG, TCP_QUICKACK,
};
use rustix::io::Errno;
use slowpath::FlowOptions;
use std::sync::atomic::Ordering;

/// From `asm-generic/sockios.h`; `libc` does not define it.
pub const SIOCATMARK: u64 = 0x8905;

/// The only option that an accepted socket does not inherit.
const QUICK_ACK: Name = Name::new(IPPROTO_TCP, TCP_QUICKACK);

/// Payload bytes of a full segment without a connection, unless `TCP_MAXSEG` is set (RFC 9293 section 3.7.1).
const SEGMENT_DEFAULT: u16 = 536;

/// Puts the host's `tcp_notsent_lowat` in the place of the process's, which all simulated hosts share.
fn limit_unsent(link: &Stream, most: u32) {
    if link.lowat.load(Ordering::Relaxed) == 0 {
        link.set_lowat(most);
    }
}

/// The algorithm that a value of `TCP_CONGESTION` names.
fn algorithm_of(value: &[u8]) -> Option<Algorithm> {
    CongestionName::of_option(value)?.as_str().parse().ok()
}

impl Host {
    /// `setsockopt` for a socket of this host.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown option, EINVAL for a value out of range, ENOENT for a congestion control that there is not.
    pub fn set_option(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let option = Name::new(level, name);
        let sock = self.sockets.get_mut(fd)?;
        let kept = if option == QUICK_ACK {
            sock.is_quick = int(value).ok_or(Errno::INVAL)? != 0;
            None
        } else {
            let kept = sock.options.accept(option, value)?;
            if option == Name::new(IPPROTO_TCP, TCP_CONGESTION) {
                algorithm_of(value).ok_or(Errno::NOENT)?;
            }
            kept.map(i32::to_ne_bytes)
        };
        let value = kept.as_ref().map_or(value, |kept| kept);
        sock.options.note(option, value);
        if let (Some(link), Some(number)) = (sock.stream(), int(value)) {
            link.obey(option, number);
            limit_unsent(link, self.not_sent_low);
        }
        if option.obeyed_by() == Some(By::Service) {
            self.tell(fd);
        }
        self.touch();
        Ok(())
    }

    /// Applies the options of a socket to its new connection.
    pub(crate) fn apply_options(&self, sock: &Sock) {
        if let Some(link) = sock.stream() {
            sock.options.apply_to(link);
            limit_unsent(link, self.not_sent_low);
        }
    }

    /// Tells TCP the options of a listener or a connection, as the service does.
    pub(crate) fn tell(&mut self, fd: Fd) {
        let Ok(sock) = self.sockets.get(fd) else { return };
        let options = FlowOptions::from(&sock.options.told());
        match &sock.role {
            Role::Fresh => {}
            Role::Listener(_) => self.slow.set_listener_options(u64::from(fd.0), &options),
            Role::Stream(link) => {
                self.slow.set_slot_options(self.now, sock.application, link.slot(), &options);
            }
        }
    }

    /// `ioctl` for requests that return a number, 0 without a connection; `None` for others.
    #[must_use]
    pub fn told(&self, fd: Fd, request: u64) -> Option<usize> {
        let number = match request {
            SIOCATMARK => |link: &Stream| usize::from(link.is_at_mark()),
            libc::FIONREAD => Stream::unread_to_mark,
            libc::TIOCOUTQ => Stream::unsent,
            _ => return None,
        };
        Some(self.sockets.stream(fd).map_or(0, number))
    }

    /// `getsockopt`; returns the number of bytes written to `out`.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown option.
    pub fn option(&mut self, fd: Fd, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        let sock = self.sockets.get(fd)?;
        let option = Name::new(level, name);
        let value = match (level, name) {
            (IPPROTO_TCP, TCP_INFO) => return Ok(put(out, &self.tcp_info(sock).encode())),
            (IPPROTO_TCP, TCP_CONGESTION) => {
                return Ok(put_congestion(out, &self.congestion(fd, sock).to_string()));
            }
            (SOL_SOCKET, SO_LINGER) => {
                let linger = sock.options.linger();
                let (on, seconds) = (i32::from(linger.is_some()), linger.unwrap_or(0));
                return Ok(put(out, &[on.to_ne_bytes(), seconds.to_ne_bytes()].concat()));
            }
            (SOL_SOCKET, SO_ERROR) => {
                sock.stream().and_then(Stream::pending_error).map_or(0, Errno::raw_os_error)
            }
            (SOL_SOCKET, SO_ACCEPTCONN) => i32::from(matches!(sock.role, Role::Listener(_))),
            (SOL_SOCKET, SO_TYPE) => libc::SOCK_STREAM,
            (SOL_SOCKET, SO_SNDBUF) => {
                let grown = sock.stream().and_then(Stream::grown_buffer);
                grown.map_or_else(|| sock.options.answer(option), |bytes| Ok(bytes as i32))?
            }
            (IPPROTO_TCP, TCP_MAXSEG) => self.segment_size(fd, sock),
            _ if option == QUICK_ACK => i32::from(sock.is_quick),
            _ => sock.options.answer(option)?,
        };
        Ok(put(out, &value.to_ne_bytes()))
    }

    /// The congestion control that the connection uses, or will use.
    fn congestion(&self, fd: Fd, sock: &Sock) -> Algorithm {
        let wanted = FlowOptions::from(&sock.options.told()).algorithm;
        let used = self.flow(fd).and_then(|flow| {
            let mut guard = self.slow.flows().lock_briefly(flow)?;
            Some(guard.parts().cold.window.algorithm())
        });
        used.or(wanted).unwrap_or(self.algorithm)
    }

    fn tcp_info(&self, sock: &Sock) -> TcpInfo {
        match &sock.role {
            Role::Fresh => TcpInfo::unconnected(),
            Role::Listener(listener) => listener.info(),
            Role::Stream(link) => {
                let info = self.slow.slot_info(self.now, sock.application, link.slot());
                info.unwrap_or_else(TcpInfo::unconnected)
            }
        }
    }

    /// Payload bytes of a full segment; without a connection the requested size, or 536 (RFC 9293 section 3.7.1).
    fn segment_size(&self, fd: Fd, sock: &Sock) -> i32 {
        let mss = self.flow(fd).and_then(|flow| {
            let mut guard = self.slow.flows().lock_briefly(flow)?;
            Some(guard.parts().tx.mss)
        });
        let asked = sock.options.told().max_segment;
        i32::from(mss.unwrap_or(if asked == 0 { SEGMENT_DEFAULT } else { asked }))
    }
}
