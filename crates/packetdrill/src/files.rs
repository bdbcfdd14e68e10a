//! Descriptors that the tool has from us. Behind each number is a real descriptor, so that no other file gets it.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use script::Epoll;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

/// A socket of the machine under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) fd: sim::Fd,
    pub(crate) is_v6: bool,
    pub(crate) is_nonblocking: bool,
}

/// What a descriptor stands for.
#[derive(Debug)]
pub(crate) enum File {
    Socket(Socket),
    Epoll(Epoll),
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Keeps the number taken.
    _place: OwnedFd,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: BTreeMap<i32, Open>,
}

impl Files {
    /// A number for `file`.
    ///
    /// # Errors
    /// Why the kernel gives none.
    pub(crate) fn add(&mut self, file: File) -> Result<i32, Errno> {
        let place = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let fd = place.as_raw_fd();
        self.open.insert(fd, Open { file, _place: place });
        Ok(fd)
    }

    pub(crate) fn has(&self, fd: i32) -> bool {
        self.open.contains_key(&fd)
    }

    pub(crate) fn get(&self, fd: i32) -> Option<&File> {
        self.open.get(&fd).map(|open| &open.file)
    }

    /// EBADF when nothing is there, ENOTSOCK when it is no socket.
    pub(crate) fn socket(&self, fd: i32) -> Result<Socket, Errno> {
        match self.get(fd) {
            Some(File::Socket(socket)) => Ok(*socket),
            Some(File::Epoll(_)) => Err(Errno::NOTSOCK),
            None => Err(Errno::BADF),
        }
    }

    pub(crate) fn socket_mut(&mut self, fd: i32) -> Result<&mut Socket, Errno> {
        match self.open.get_mut(&fd).map(|open| &mut open.file) {
            Some(File::Socket(socket)) => Ok(socket),
            Some(File::Epoll(_)) => Err(Errno::NOTSOCK),
            None => Err(Errno::BADF),
        }
    }

    pub(crate) fn epoll_mut(&mut self, fd: i32) -> Result<&mut Epoll, Errno> {
        match self.open.get_mut(&fd).map(|open| &mut open.file) {
            Some(File::Epoll(epoll)) => Ok(epoll),
            Some(File::Socket(_)) => Err(Errno::INVAL),
            None => Err(Errno::BADF),
        }
    }

    /// The number is free again.
    pub(crate) fn remove(&mut self, fd: i32) -> Result<File, Errno> {
        let open = self.open.remove(&fd).ok_or(Errno::BADF)?;
        for other in self.open.values_mut() {
            if let File::Epoll(epoll) = &mut other.file {
                epoll.forget(fd);
            }
        }
        Ok(open.file)
    }
}
