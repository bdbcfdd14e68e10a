//! A capture of a run: each frame where it is sent and where it arrives, with one interface per machine.

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
use std::time::Duration;

/// The direction of a frame, as pcapng numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// Writes frames to a writer. The first error ends the capture; [`finish`](Self::finish) returns it.
pub struct Capture {
    writer: PcapNgWriter<Box<dyn Write>>,
    failed: Option<io::Error>,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Capture {
    /// A capture with one interface per name in `names`.
    ///
    /// # Errors
    /// The error of writing the head of the file.
    pub fn new(writer: Box<dyn Write>, names: &[String]) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(writer).map_err(into_io)?;
        for name in names {
            let options = vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfTsResol(9),
            ];
            let link = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: FRAME_MAX as u32,
                options,
            };
            writer.write_pcapng_block(link).map_err(into_io)?;
        }
        Ok(Self { writer, failed: None })
    }

    pub(crate) fn record(&mut self, now: Instant, interface: usize, direction: Direction, frame: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        let block = EnhancedPacketBlock {
            interface_id: interface as u32,
            timestamp: Duration::from_nanos(now.as_ns()),
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options: vec![EnhancedPacketOption::Flags(direction as u32)],
        };
        self.failed = self.writer.write_block(&block.into_block()).err().map(into_io);
    }

    /// Ends the capture and flushes the writer.
    ///
    /// # Errors
    /// The first error of the writer.
    pub fn finish(self) -> io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.writer.into_inner().flush(),
        }
    }
}

fn into_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
