//! What the network knows of a machine, and what an application knows of a stack: so that ours, smoltcp and hostile peers are
//! interchangeable.

use crate::host::Host;
use crate::sockets::{Fd, Shutdown};
use base::Instant;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A machine on the network: frames and the time go in, frames and the next deadline come out.
pub trait Machine {
    /// A frame arrives; it is looked at by the next `run`.
    fn inject(&mut self, frame: &[u8]);
    /// Does everything that is to be done at `now`.
    fn run(&mut self, now: Instant);
    /// The next frame to send, in order.
    fn next_frame(&mut self) -> Option<Vec<u8>>;
    /// When `run` is due even if no frame comes; in the past: now.
    fn next_deadline(&self) -> Instant;
    /// Its sockets, if applications can run on it.
    fn stack(&mut self) -> Option<&mut dyn Stack>;
    /// Whatever it did wrong on purpose, it stops now.
    fn calm(&mut self) {}
    /// The machine as one of ours.
    fn host(&mut self) -> Option<&mut Host> {
        None
    }
}

/// Sockets that never block, as far as the application models need them.
pub trait Stack {
    /// A listener on `port` of all addresses.
    ///
    /// # Errors
    /// As `listen`.
    fn listen_on(&mut self, port: u16, backlog: usize) -> Result<Fd, Errno>;
    /// Begins to connect.
    ///
    /// # Errors
    /// As `connect`, except EINPROGRESS.
    fn open(&mut self, remote: SocketAddr) -> Result<Fd, Errno>;
    /// Whether the handshake is over.
    ///
    /// # Errors
    /// Why it failed.
    fn is_connected(&mut self, fd: Fd) -> Result<bool, Errno>;
    /// The next accepted connection.
    ///
    /// # Errors
    /// EAGAIN when none waits.
    fn take(&mut self, fd: Fd) -> Result<Fd, Errno>;
    /// As `send`.
    ///
    /// # Errors
    /// As `send`.
    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno>;
    /// As `recv`.
    ///
    /// # Errors
    /// As `recv`.
    fn read(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno>;
    /// As `shutdown(SHUT_WR)`.
    ///
    /// # Errors
    /// As `shutdown`.
    fn finish(&mut self, fd: Fd) -> Result<(), Errno>;
    /// As `close`.
    fn drop_fd(&mut self, fd: Fd);
    /// A socket with news, each news once.
    fn news(&mut self) -> Option<Fd>;
}

impl Machine for Host {
    fn inject(&mut self, frame: &[u8]) {
        Host::inject(self, frame);
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
    /// A peer that dies may take its last word with it: models find out as RFC 9293 section 3.8.4 says.
    fn keep_alive(&mut self, fd: Fd) -> Result<Fd, Errno> {
        self.set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &60i32.to_ne_bytes())?;
        self.set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &15i32.to_ne_bytes())?;
        self.set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32.to_ne_bytes())?;
        Ok(fd)
    }
}

impl Stack for Host {
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
        self.send(fd, bytes, 0)
    }

    fn read(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        self.receive(fd, out, 0)
    }

    fn finish(&mut self, fd: Fd) -> Result<(), Errno> {
        self.shutdown(fd, Shutdown::Write)
    }

    fn drop_fd(&mut self, fd: Fd) {
        // Application models close what they have, once.
        let _ = self.close(fd);
    }

    fn news(&mut self) -> Option<Fd> {
        self.next_news()
    }
}
