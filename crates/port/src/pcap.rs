//! A port that writes every packet to a capture file (pcapng, with nanoseconds and direction).

use crate::staged::Staged;
use crate::{Batch, Capabilities, Direction, Lent, Look, PacketBuf, Port, Stats, Wait};
use base::Instant;
use base::limits::FRAME_MAX;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A port around a port that records each frame as the fast path sees it: super-frames are not cut, partial checksums not completed.
///
/// The times are those of [`Port::set_now`]. When the writer fails, recording ends and the port continues; `finish` returns the error.
pub struct Pcap<P, W: Write> {
    inner: P,
    file: Recorder<W>,
    staged: Staged,
}

struct Recorder<W: Write> {
    writer: PcapNgWriter<W>,
    now: Instant,
    failed: Option<io::Error>,
}

impl<P: Port, W: Write + Send> Pcap<P, W> {
    /// Records the packets of `inner` with `writer`.
    ///
    /// # Errors
    /// The error of writing the file's header.
    pub fn new(inner: P, writer: W) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(writer).map_err(into_io)?;
        let nanoseconds = InterfaceDescriptionOption::IfTsResol(9);
        let link = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: FRAME_MAX as u32,
            options: vec![nanoseconds],
        };
        writer.write_pcapng_block(link).map_err(into_io)?;
        let file = Recorder { writer, now: Instant::ZERO, failed: None };
        Ok(Self { inner, file, staged: Staged::default() })
    }

    /// Ends the recording. Returns the wrapped port, and the writer.
    ///
    /// # Errors
    /// The first error of the writer; the file is incomplete from there on.
    pub fn finish(self) -> (P, io::Result<W>) {
        let mut writer = self.file.writer.into_inner();
        let written = self.file.failed.map_or_else(|| writer.flush(), Err);
        (self.inner, written.map(|()| writer))
    }
}

impl<W: Write> Recorder<W> {
    fn record(&mut self, direction: Direction, packet: &PacketBuf) {
        if self.failed.is_some() {
            return;
        }
        let inbound_or_outbound = if direction == Direction::Received { 1 } else { 2 };
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(self.now.as_ns()),
            original_len: packet.len() as u32,
            data: Cow::Borrowed(packet.frame()),
            options: vec![EnhancedPacketOption::Flags(inbound_or_outbound)],
        };
        self.failed = self.writer.write_block(&block.into_block()).err().map(into_io);
    }
}

fn into_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

impl<P: Port, W: Write + Send> Port for Pcap<P, W> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, batch: &mut Batch) -> usize {
        let count = self.inner.receive(batch);
        batch.packets().iter().for_each(|packet| self.file.record(Direction::Received, packet));
        count
    }

    fn waiting_most(&self) -> usize {
        self.inner.waiting_most()
    }

    fn receive_ahead(&mut self, batch: &mut Batch, look: &mut dyn FnMut(&[u8]) -> Look) -> usize {
        let count = self.inner.receive_ahead(batch, look);
        batch.packets().iter().for_each(|packet| self.file.record(Direction::Received, packet));
        count
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.staged.reserve(&mut self.inner)
    }

    fn commit_with(&mut self, payload: Lent<'_>) {
        let file = &mut self.file;
        self.staged.commit(payload, &mut self.inner, |packet| file.record(Direction::Sent, packet));
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn arm(&mut self) -> Wait {
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn set_now(&mut self, now: Instant) {
        self.file.now = now;
        self.inner.set_now(now);
    }

    fn next_deadline(&self) -> Instant {
        self.inner.next_deadline()
    }

    fn failure(&self) -> Option<io::Error> {
        self.inner.failure()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Queues, tcp};
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn the_record_holds_every_frame_with_time_and_direction() {
        let inner = Queues { room: 1, ..Queues::default() };
        let mut port = Pcap::new(inner, Vec::new()).expect("a vector takes everything");
        port.set_now(Instant::from_ns(5_000_000_007));
        let (sent, received) = (tcp(true, 2, 1, 0, &[]), tcp(false, 0x10, 2, 0, &[1; 99]));
        assert!(port.reserve().expect("room").copy_from(&sent));
        port.commit();
        port.inner.incoming.push_back(tcp(false, 0x10, 2, 0, &[1; 99]));
        assert_eq!(port.receive(&mut Batch::new()), 1);
        let file = port.finish().1.expect("a vector takes everything");
        let mut reader = PcapNgReader::new(&file[..]).expect("a good file");
        for (frame, flags) in [(None, 0), (Some(sent.frame()), 2), (Some(received.frame()), 1)] {
            let block = reader.next_block().expect("another block").expect("a good block");
            match (block, frame) {
                (Block::InterfaceDescription(link), None) => assert_eq!(link.linktype, DataLink::ETHERNET),
                (Block::EnhancedPacket(packet), Some(frame)) => {
                    assert_eq!(packet.data, frame);
                    assert_eq!(packet.timestamp, Duration::new(5, 7));
                    assert_eq!(packet.options, [EnhancedPacketOption::Flags(flags)]);
                }
                other => panic!("unexpected block {other:?}"),
            }
        }
        assert!(reader.next_block().is_none());
    }

    #[test]
    fn a_full_disk_ends_the_record_and_not_the_port() {
        let inner = Queues { room: 2, ..Queues::default() };
        let mut port =
            Pcap::new(inner, io::Cursor::new(vec![0; 64].into_boxed_slice())).expect("room for the header");
        for _ in 0..2 {
            assert!(port.reserve().expect("room").copy_from(&tcp(true, 2, 1, 0, &[0; 500])));
            port.commit();
        }
        let (inner, file) = port.finish();
        assert_eq!(inner.outgoing.len(), 2);
        assert!(file.is_err());
    }
}
