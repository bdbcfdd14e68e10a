//! A receive that may have to wait: when it is over, and what it returns. The caller does the waiting, by the means that it has.

use crate::Endpoint;
use crate::blocked::Blocked;
use crate::low_water::SoFar;
use crate::stream::{How, Progress};
use rustix::io::Errno;

/// How many bytes a call receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amount {
    /// It receives no more.
    pub total: usize,
    /// It waits for no more.
    pub enough: usize,
}

/// How far a receive came without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// The call is over and returns this many bytes.
    Done(usize),
    /// Too few bytes have come: the call must wait.
    Wait(Receiving),
}

/// The rest of a receive that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receiving {
    how: How,
    /// Bytes received so far.
    pub done: usize,
    /// Bytes that end the waiting.
    pub target: usize,
}

impl Endpoint {
    /// Receives what is there. `flags` are those of `recv`.
    ///
    /// # Errors
    /// EAGAIN when the call would have to wait and may not; otherwise as [`Endpoint::pull`].
    #[inline]
    pub fn receive(
        &self,
        buffers: &mut [&mut [u8]],
        Amount { total, enough }: Amount,
        flags: i32,
        is_nonblocking: impl Fn() -> bool,
    ) -> Result<Received, Errno> {
        if flags & libc::MSG_OOB != 0 {
            return self.pull_urgent(buffers, flags & libc::MSG_PEEK != 0).map(Received::Done);
        }
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(Errno::AGAIN);
        }
        let how = How {
            peek: flags & libc::MSG_PEEK != 0,
            discard: if flags & libc::MSG_TRUNC != 0 { total } else { 0 },
        };
        let target = || self.target(total, flags & libc::MSG_WAITALL != 0).min(enough);
        let patient = flags & libc::MSG_DONTWAIT == 0;
        match self.pull(buffers, 0, how)? {
            Progress::Done(n) if n == total || n == 0 || !patient || n >= target() => Ok(Received::Done(n)),
            Progress::Wait if !patient || is_nonblocking() => Err(Errno::AGAIN),
            Progress::Done(n) if is_nonblocking() => Ok(Received::Done(n)),
            Progress::Done(done) => Ok(Received::Wait(Receiving { how, done, target: target() })),
            Progress::Wait => Ok(Received::Wait(Receiving { how, done: 0, target: target() })),
        }
    }
}

impl Receiving {
    /// True when the call returns what it has: with bytes in hand it neither reads past urgent data nor takes an error.
    #[must_use]
    pub fn is_cut(&self, link: &Endpoint) -> bool {
        self.done > 0 && (link.ends_read() || link.is_over() && link.unread() == 0)
    }

    /// What the call waits for.
    #[must_use]
    pub fn blocked(&self) -> Blocked {
        Blocked::Receive(self.so_far())
    }

    /// What [`Endpoint::has_more`] has to know.
    #[must_use]
    pub fn so_far(&self) -> SoFar {
        SoFar { done: self.done, peeked: if self.how.peek { self.done } else { 0 } }
    }

    /// Receives what has come meanwhile. True when the call is over and returns `done`. After an error it returns what came before; the next
    /// call reports the error.
    ///
    /// # Errors
    /// The errors of [`Endpoint::pull`].
    pub fn go_on(&mut self, link: &Endpoint, buffers: &mut [&mut [u8]]) -> Result<bool, Errno> {
        if self.is_cut(link) {
            return Ok(true);
        }
        let so_far = self.so_far();
        // Peeked bytes are still there; without any beyond them there is nothing new.
        if so_far.peeked > 0 && !link.has_more(so_far) {
            return Ok(false);
        }
        let skip = so_far.done - so_far.peeked;
        let left = How { discard: self.how.discard.saturating_sub(skip), ..self.how };
        match link.pull(buffers, skip, left) {
            Ok(Progress::Wait) => Ok(false),
            // The end of the stream, or no more bytes to peek at.
            Ok(Progress::Done(n)) if n == 0 || skip + n == self.done => Ok(true),
            Ok(Progress::Done(n)) => {
                self.done = skip + n;
                Ok(self.done >= self.target)
            }
            Err(_) if self.done > 0 => Ok(true),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Said;
    use crate::stream::tests::{ends, send};
    use shm::half_flags::RESET;

    fn begin(link: &Endpoint, out: &mut [u8], flags: i32) -> Result<Received, Errno> {
        let amount = Amount { total: out.len(), enough: usize::MAX };
        link.receive(&mut [out], amount, flags, || false)
    }

    fn waiting(link: &Endpoint, out: &mut [u8], flags: i32) -> Receiving {
        match begin(link, out, flags) {
            Ok(Received::Wait(rest)) => rest,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_receive_waits_for_all_or_for_the_mark_and_never_with_dontwait() {
        let (a, b) = ends(5);
        let mut out = [0; 4];
        assert_eq!(begin(&b, &mut out, libc::MSG_DONTWAIT), Err(Errno::AGAIN));
        let mut any = waiting(&b, &mut out, 0);
        assert!(!b.has_more(any.so_far()));
        send(&a, b"ab").unwrap();
        assert_eq!((any.go_on(&b, &mut [&mut out]), any.done), (Ok(true), 2));
        send(&a, b"c").unwrap();
        let mut all = waiting(&b, &mut out, libc::MSG_WAITALL);
        assert_eq!((all.go_on(&b, &mut [&mut out]), all.done), (Ok(false), 1));
        send(&a, b"def").unwrap();
        assert_eq!((all.go_on(&b, &mut [&mut out]), all.done, out), (Ok(true), 4, *b"cdef"));
        send(&a, b"g").unwrap();
        b.set_low_water(3);
        assert_eq!(waiting(&b, &mut out, 0).target, 3);
    }

    #[test]
    fn a_peek_that_waits_sees_its_bytes_once() {
        let (a, b) = ends(5);
        let mut out = [0; 3];
        send(&a, b"ab").unwrap();
        let mut peek = waiting(&b, &mut out, libc::MSG_PEEK | libc::MSG_WAITALL);
        assert_eq!((peek.done, peek.go_on(&b, &mut [&mut out])), (2, Ok(false)));
        send(&a, b"c").unwrap();
        assert_eq!((peek.go_on(&b, &mut [&mut out]), peek.done, b.unread()), (Ok(true), 3, 3));
    }

    #[test]
    fn bytes_in_hand_are_returned_before_an_error_and_before_urgent_data() {
        for is_reset in [true, false] {
            let (a, b) = ends(5);
            let mut out = [0; 3];
            send(&a, b"a").unwrap();
            let mut rest = waiting(&b, &mut out, libc::MSG_WAITALL);
            if is_reset {
                a.raise(RESET);
                let _ = b.peer_flags();
            } else {
                a.push(&[b"u"], 0, Said::URGENT).unwrap();
                let _ = b.stream_readiness();
            }
            assert!(rest.is_cut(&b), "{is_reset}");
            assert_eq!((rest.go_on(&b, &mut [&mut out]), rest.done), (Ok(true), 1));
        }
    }
}
