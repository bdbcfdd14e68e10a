//! One end of the control socket: sends and receives messages with descriptors. Lengths are bounded; one message is one `recvmsg`.

use crate::Distrust;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::mem::MaybeUninit;

/// Length of the longest message, in bytes.
pub const MESSAGE_MAX: usize = 2048;
/// Largest number of descriptors in one message.
pub const FDS_MAX: usize = 16;

/// Why no message was sent or received.
#[derive(Debug)]
pub enum LineError {
    /// The other end is closed.
    Closed,
    /// No message is there now (non-blocking socket), or the socket's queue has no room to send.
    WouldBlock,
    /// The message is too long, cut off, or not of this protocol.
    Garbled,
    /// A control socket exists, but the service behind it is not trusted.
    Untrusted(Distrust),
    /// The service refuses this process, for this reason.
    Refused(Box<str>),
    /// The kernel returned this errno.
    Os(Errno),
}

impl std::fmt::Display for LineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the other end of the control socket is gone"),
            Self::WouldBlock => f.write_str("the control socket would block"),
            Self::Garbled => f.write_str("garbled message on the control socket"),
            Self::Untrusted(why) => write!(f, "the control socket is not trusted: {why}"),
            Self::Refused(why) => write!(f, "the service refuses this process: {why}"),
            Self::Os(e) => write!(f, "control socket: {e}"),
        }
    }
}

impl std::error::Error for LineError {}

impl From<Errno> for LineError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::AGAIN => Self::WouldBlock,
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            e => Self::Os(e),
        }
    }
}

/// A received message with its descriptors.
#[derive(Debug)]
pub struct Received<T> {
    /// The message, decoded from postcard.
    pub message: T,
    /// Descriptors that came with the message; all are close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// True when further descriptors were lost, because this process had no free descriptor numbers for them.
    pub is_short: bool,
}

/// A connected `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub struct Line {
    fd: OwnedFd,
}

impl Line {
    /// Takes a connected socket.
    #[must_use]
    pub const fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Sends a message. Blocks when the socket does and its queue is full, unless `wait` is false.
    ///
    /// # Errors
    /// See [`LineError`].
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
        wait: bool,
    ) -> Result<(), LineError> {
        let mut buffer = [0; MESSAGE_MAX];
        let bytes = postcard::to_slice(message, &mut buffer).map_err(|_| LineError::Garbled)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds))) {
            return Err(LineError::Garbled);
        }
        let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
        loop {
            match sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                other => return Ok(other.map(|_| ())?),
            }
        }
    }

    /// True when the next message carries descriptors. Takes nothing from the socket, so that no descriptor is closed here: closing a
    /// descriptor can block until the process that made it answers.
    ///
    /// # Errors
    /// See [`LineError`]: `WouldBlock` when there is no message.
    pub fn has_descriptors(&self) -> Result<bool, LineError> {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut is_reset = false;
        let got = loop {
            let mut none = RecvAncillaryBuffer::default();
            match recvmsg(&self.fd, &mut [IoSliceMut::new(&mut byte)], &mut none, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) if !is_reset => is_reset = true,
                other => break other?,
            }
        };
        // Without room for ancillary data, the kernel sets `MSG_CTRUNC` when there is some.
        let has = got.flags.contains(ReturnFlags::CTRUNC);
        if got.bytes == 0 && !has { Err(LineError::Closed) } else { Ok(has) }
    }

    /// Receives a message. Waits for one when `wait` is true and the socket blocks.
    ///
    /// # Errors
    /// See [`LineError`].
    pub fn receive<T: DeserializeOwned>(&self, wait: bool) -> Result<Received<T>, LineError> {
        self.receive_by(wait, |bytes| postcard::from_bytes(bytes).ok())
    }

    /// The same with the function that reads the message; `None` from that: it is garbled.
    ///
    /// # Errors
    /// See [`LineError`].
    pub fn receive_by<T>(
        &self,
        wait: bool,
        decode: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Received<T>, LineError> {
        let mut buffer = [0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut flags = RecvFlags::CMSG_CLOEXEC;
        if !wait {
            flags |= RecvFlags::DONTWAIT;
        }
        let mut is_reset = false;
        let got = loop {
            match recvmsg(&self.fd, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                // Reported once, when the other end closed before it had read everything. Messages that it sent earlier follow this error.
                Err(Errno::CONNRESET) if !is_reset => is_reset = true,
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        let is_short = got.flags.contains(ReturnFlags::CTRUNC);
        if got.bytes == 0 && fds.is_empty() && !is_short {
            return Err(LineError::Closed);
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(LineError::Garbled);
        }
        let message = decode(&buffer[..got.bytes]).ok_or(LineError::Garbled)?;
        Ok(Received { message, fds, is_short })
    }
}

impl From<Line> for OwnedFd {
    fn from(line: Line) -> Self {
        line.fd
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, ToService};
    use base::Seed;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Line, Line) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Line::new(a), Line::new(b))
    }

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (a, b) = pair();
        let sent = ToService {
            number: 3,
            request: Request::FellBack { reason: crate::KernelReason::IoUring, inode: 7 },
        };
        a.send(&sent, &[b.as_fd(), a.as_fd()], true).unwrap();
        let got: Received<ToService> = b.receive(true).unwrap();
        assert_eq!((got.message, got.fds.len()), (sent, 2));
        assert!(matches!(b.receive::<ToService>(false), Err(LineError::WouldBlock)));
        drop((a, got.fds));
        assert!(matches!(b.receive::<ToService>(true), Err(LineError::Closed)));
    }

    #[test]
    fn descriptors_are_seen_before_they_are_received() {
        let (a, b) = pair();
        let said = ToService { number: 1, request: Request::Refused };
        assert!(matches!(b.has_descriptors(), Err(LineError::WouldBlock)));
        a.send(&said, &[], true).unwrap();
        a.send(&said, &[a.as_fd()], true).unwrap();
        for has in [false, true] {
            assert_eq!([(); 2].map(|()| b.has_descriptors().unwrap()), [has; 2], "nothing is taken");
            assert_eq!(b.receive::<ToService>(false).unwrap().fds.len(), usize::from(has));
        }
        drop(a);
        assert!(matches!(b.has_descriptors(), Err(LineError::Closed)));
    }

    #[test]
    fn last_words_are_heard_of_who_did_not_listen() {
        let (a, b) = pair();
        let [asked, said] = [1, 2].map(|number| ToService { number, request: Request::Refused });
        a.send(&asked, &[], true).unwrap();
        b.send(&said, &[], true).unwrap();
        drop(b);
        assert_eq!(a.receive::<ToService>(false).unwrap().message, said);
        assert!(matches!(a.receive::<ToService>(false), Err(LineError::Closed)));
    }

    #[test]
    fn random_bytes_are_garbled_or_a_message_never_a_panic() {
        let (a, b) = pair();
        let mut rng = Seed::new(11);
        for _ in 0..20_000 {
            let len = 1 + rng.below(80) as usize;
            let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            rustix::net::send(&a, &bytes, SendFlags::empty()).unwrap();
            match b.receive::<ToService>(true) {
                Ok(_) | Err(LineError::Garbled) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[test]
    fn a_hello_of_another_version_says_which_whatever_follows() {
        // Number 1, request 0, protocol, layout, and what a later version may have put behind.
        let hello = |protocol: u8| [1, 0, protocol, 77, 3, 200, 200, 200];
        let got = ToService::decode(&hello(9)).unwrap();
        assert_eq!(got.number, 1);
        assert!(matches!(got.request, Request::Hello { protocol: 9, layout: 77, parent: None, .. }));
        assert_eq!(ToService::decode(&hello(crate::PROTOCOL as u8)), None, "garbled");
        assert_eq!(ToService::decode(&[1, 1, 9, 77]), None, "no hello");
    }
}
