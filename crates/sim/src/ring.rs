//! A program that uses a ring instead of sockets for its bytes: it reads and writes them where they lie, and publishes what it has done to
//! all its connections behind one barrier, when it waits (crate `ring`). Everything but the bytes is as with sockets.

use crate::host::Host;
use crate::sockets::Fd;
use endpoint::in_place::owed;
use queue::stream::barrier;
use rustix::io::Errno;
use shm::half_flags::FIN;
use std::collections::BTreeMap;

/// What the program owes to its connections' peers at the next flush, in bits of [`owed`].
#[derive(Debug, Default)]
pub(crate) struct Unpublished(BTreeMap<Fd, u8>);

impl Unpublished {
    fn owe(&mut self, fd: Fd, bits: u8) {
        if bits != 0 {
            *self.0.entry(fd).or_default() |= bits;
        }
    }
}

impl Host {
    /// From now on the host's program reads and writes in place.
    pub fn use_ring(&mut self) {
        self.ring = Some(Unpublished::default());
    }

    /// Copies bytes to where they are sent from, and commits them; returns how many.
    pub(crate) fn write_in_place(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        let link = self.sockets.get(fd)?.stream().ok_or(Errno::PIPE)?;
        let room = link.reserve(1, bytes.len())?;
        let n = room.map_or(0, |room| {
            let mut rest = bytes;
            for (at, len) in room.pieces {
                let (piece, after) = rest.split_at(len.min(rest.len()));
                if !piece.is_empty() {
                    link.mapped.region.write(link.mapped.side, at, piece);
                }
                rest = after;
            }
            link.commit(room.total);
            room.total
        });
        if let Some(unpublished) = &mut self.ring
            && n > 0
        {
            unpublished.owe(fd, owed::BYTES);
        }
        if n < bytes.len() {
            // A peer that sees no bytes makes no room.
            self.flush();
        }
        self.touch();
        if n == 0 { Err(Errno::AGAIN) } else { Ok(n) }
    }

    /// Copies unread bytes from where they lie, and consumes them; returns how many. `Ok(0)` is the end of the stream.
    pub(crate) fn read_in_place(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        let link = self.sockets.get(fd)?.stream().ok_or(Errno::NOTCONN)?;
        let seen = link.peer_flags();
        let unread = link.unread_pieces()?;
        if unread.total == 0 {
            let is_finished = seen & FIN != 0 && link.arrived() == link.read_position();
            return match link.take_error() {
                Some(error) => Err(error),
                None if is_finished => Ok(0),
                None => Err(Errno::AGAIN),
            };
        }
        let n = unread.total.min(out.len());
        let mut rest = &mut out[..n];
        for (at, len) in unread.pieces {
            let (piece, after) = rest.split_at_mut(len.min(rest.len()));
            if !piece.is_empty() {
                link.mapped.region.read(link.mapped.side.other(), at, piece);
            }
            rest = after;
        }
        let bits = link.consume_in_place(&unread, n);
        if let Some(unpublished) = &mut self.ring {
            unpublished.owe(fd, bits);
        }
        self.touch();
        Ok(n)
    }

    /// Publishes what was committed and consumed since the last time.
    pub(crate) fn flush(&mut self) {
        let Some(Unpublished(owes)) = self.ring.as_mut().map(std::mem::take) else { return };
        let due = || owes.iter().filter_map(|(fd, bits)| Some((self.sockets.stream(*fd)?, *bits)));
        for (link, _) in due().filter(|(_, bits)| bits & owed::BYTES != 0) {
            link.publish();
        }
        barrier();
        let moment = self.now.as_ns() as u32;
        for (link, bits) in due() {
            if let Some(bell) = link.settle_progress(bits, moment) {
                link.ring(bell);
            }
        }
    }
}
