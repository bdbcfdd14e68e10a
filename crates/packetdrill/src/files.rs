//! Descriptors that the tool got from this library. Each number is that of a real descriptor, so that no other file gets it.

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

/// The object behind a descriptor.
#[derive(Debug)]
pub(crate) enum File {
    Socket(Socket),
    Epoll(Epoll),
}

#[derive(Debug)]
struct Open {
    file: File,
    /// The real descriptor, which reserves the number.
    _place: OwnedFd,
}

/// All descriptors of the tool, by number.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: BTreeMap<i32, Open>,
}

impl Files {
    /// Adds `file` and returns its number.
    ///
    /// # Errors
    /// When the kernel gives no descriptor.
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

    /// The socket of a descriptor. EBADF if the descriptor is not open, ENOTSOCK if it is not a socket.
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

    /// Removes a descriptor, which frees its number, also from all epoll sets.
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
