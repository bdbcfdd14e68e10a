//! A report that is made in pieces, so that whatever it lists the control thread is soon free for others. Each piece looks at a bounded
//! number of entries of the service's tables and copies what the report shows of them; a helper thread sorts that, and writes the text.
//! Connections that come or go between two pieces are in the report or not; each that stays is in it once.

use crate::registry::Registry;
use crate::registry::report::UNWRITTEN;
use rustix::io::Errno;
use std::fmt::Debug;

/// Why there is no report.
#[derive(Debug)]
pub struct Refused(pub Errno, pub &'static str);

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self(errno, UNWRITTEN)
    }
}

impl From<serde_json::Error> for Refused {
    fn from(_: serde_json::Error) -> Self {
        Self(Errno::INVAL, UNWRITTEN)
    }
}

/// What makes one kind of report.
pub trait Making: Debug + Send {
    /// Looks at `most` entries more, or somewhat more than that. True: the report is complete.
    fn go_on(&mut self, registry: &Registry, most: usize) -> bool;

    /// The text. Needs the registry no more, and may wait for what cores were asked.
    ///
    /// # Errors
    /// Why there is none.
    fn write(self: Box<Self>) -> Result<Vec<u8>, Refused>;
}

/// A report that is being made.
#[derive(Debug)]
pub struct Job(Box<dyn Making>);

impl Job {
    /// A report of which nothing is made yet.
    pub fn new(making: impl Making + 'static) -> Self {
        Self(Box::new(making))
    }

    /// Goes on for `most` entries. True: the report is complete.
    pub fn go_on(&mut self, registry: &Registry, most: usize) -> bool {
        self.0.go_on(registry, most)
    }

    /// The complete report's text.
    ///
    /// # Errors
    /// Why there is none.
    pub fn write(self) -> Result<Vec<u8>, Refused> {
        self.0.write()
    }
}
