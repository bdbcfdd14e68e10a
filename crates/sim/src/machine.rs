//! The interfaces of a machine to the network and of a stack to its application, so that our hosts, smoltcp and hostile peers are
//! interchangeable.

use crate::host::Host;
use crate::sockets::Fd;
use base::Instant;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A machine on the network: frames and the time go in, frames and the next deadline come out.
pub trait Machine {
    /// A frame arrives; the next `run` handles it.
    fn inject(&mut self, frame: &[u8]);
    /// As [`inject`](Self::inject), for a frame that nothing else needs.
    fn inject_owned(&mut self, frame: Vec<u8>) {
        self.inject(&frame);
    }
    /// Does all work that is due at `now`.
    fn run(&mut self, now: Instant);
    /// Takes the next frame to send, in order.
    fn next_frame(&mut self) -> Option<Vec<u8>>;
    /// When `run` is due even if no frame comes; a time in the past means now.
    fn next_deadline(&self) -> Instant;
    /// The machine's sockets; `None` if no application can run on it.
    fn stack(&mut self) -> Option<&mut dyn Stack>;
    /// Stops all wrong behaviour that the machine shows on purpose.
    fn calm(&mut self) {}
    /// The machine as one of our hosts, or `None`.
    fn host(&mut self) -> Option<&mut Host> {
        None
    }
}

/// Non-blocking sockets, with the calls that the application models need.
pub trait Stack {
    /// The sockets that are opened from now on are that application's, on a machine that has several.
    fn act_for(&mut self, _application: u16) {}
    /// Opens a listener on `port` of all addresses.
    ///
    /// # Errors
    /// The errors of `listen`.
    fn listen_on(&mut self, port: u16, backlog: usize) -> Result<Fd, Errno>;
    /// Begins to connect; returns before the handshake is complete.
    ///
    /// # Errors
    /// The errors of `connect`, except EINPROGRESS.
    fn open(&mut self, remote: SocketAddr) -> Result<Fd, Errno>;
    /// True when the handshake is complete.
    ///
    /// # Errors
    /// The error with which the handshake failed.
    fn is_connected(&mut self, fd: Fd) -> Result<bool, Errno>;
    /// Accepts the next connection of a listener.
    ///
    /// # Errors
    /// EAGAIN when no connection waits.
    fn take(&mut self, fd: Fd) -> Result<Fd, Errno>;
    /// Sends bytes, as `send` does.
    ///
    /// # Errors
    /// The errors of `send`.
    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno>;
    /// Receives bytes, as `recv` does.
    ///
    /// # Errors
    /// The errors of `recv`.
    fn read(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno>;
    /// Ends the sending direction, as `shutdown(SHUT_WR)` does.
    ///
    /// # Errors
    /// The errors of `shutdown`.
    fn finish(&mut self, fd: Fd) -> Result<(), Errno>;
    /// Closes the socket, as `close` does.
    fn drop_fd(&mut self, fd: Fd);
    /// Returns a socket with an event since the last call; each event is returned once.
    fn news(&mut self) -> Option<Fd>;
}

impl Machine for Host {
    fn inject(&mut self, frame: &[u8]) {
        Host::inject(self, frame);
    }

    fn inject_owned(&mut self, frame: Vec<u8>) {
        Host::inject_owned(self, frame);
    }

    fn run(&mut self, now: Instant) {
        Host::run(self, now);
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        Host::next_frame(self)
    }

    fn next_deadline(&self) -> Instant {
        Host::next_deadline(self)
    }

    fn stack(&mut self) -> Option<&mut dyn Stack> {
        Some(self)
    }

    fn host(&mut self) -> Option<&mut Host> {
        Some(self)
    }
}

impl Host {
    /// Turns keepalive on: the last segment of a peer that died may be lost, and only keepalive finds that out (RFC 9293 section 3.8.4).
    fn keep_alive(&mut self, fd: Fd) -> Result<Fd, Errno> {
        self.set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &60i32.to_ne_bytes())?;
        self.set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &15i32.to_ne_bytes())?;
        self.set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32.to_ne_bytes())?;
        Ok(fd)
    }
}

impl Stack for Host {
    fn act_for(&mut self, application: u16) {
        Self::act_for(self, application);
    }

    fn listen_on(&mut self, port: u16, backlog: usize) -> Result<Fd, Errno> {
        let fd = self.socket(true);
        let done = self
            .bind(fd, SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port))
            .and_then(|()| self.listen(fd, backlog));
        match done {
            Ok(()) => Ok(fd),
            Err(error) => {
                self.close(fd)?;
                Err(error)
            }
        }
    }

    fn open(&mut self, remote: SocketAddr) -> Result<Fd, Errno> {
        let fd = self.socket(remote.is_ipv6());
        match self.connect(fd, remote) {
            Ok(()) | Err(Errno::INPROGRESS) => self.keep_alive(fd),
            Err(error) => {
                self.close(fd)?;
                Err(error)
            }
        }
    }

    fn is_connected(&mut self, fd: Fd) -> Result<bool, Errno> {
        let Some(remote) = self.peer_addr(fd) else { return Err(Errno::NOTCONN) };
        match self.connect(fd, remote) {
            Ok(()) | Err(Errno::ISCONN) => Ok(true),
            Err(Errno::ALREADY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn take(&mut self, fd: Fd) -> Result<Fd, Errno> {
        let (fd, _) = self.accept(fd)?;
        self.keep_alive(fd)
    }

    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        if self.ring.is_some() { self.write_in_place(fd, bytes) } else { self.send(fd, bytes, 0) }
    }

    fn read(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        if self.ring.is_some() { self.read_in_place(fd, out) } else { self.receive(fd, out, 0) }
    }

    fn finish(&mut self, fd: Fd) -> Result<(), Errno> {
        self.flush();
        self.shutdown(fd, libc::SHUT_WR)
    }

    fn drop_fd(&mut self, fd: Fd) {
        self.flush();
        // It cannot fail: application models close each socket once.
        let _ = self.close(fd);
    }

    fn news(&mut self) -> Option<Fd> {
        self.flush();
        self.next_news()
    }
}
