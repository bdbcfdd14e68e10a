//! Finds frames in the bytes of a channel, which come in pieces of any size. Keeps at most one header and one control frame's body; the bytes
//! of DATA pass through where they lie. Never looks at what a frame means.

use crate::bytes::Input;
use crate::frame::{HEADER_LEN, Header, Kind};
use crate::limits::CONTROL_MAX;
use crate::violation::Violation;

/// What the de-framer finds.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A whole frame that is not DATA.
    Control {
        /// The header of the frame.
        header: Header,
        /// The body of the frame, `header.length` bytes.
        body: &'a [u8],
    },
    /// Some bytes of a DATA frame, in order.
    Data {
        /// The header of the frame.
        header: Header,
        /// How many bytes of the frame's body came before these.
        before: u32,
        /// The bytes, at least one.
        bytes: Input<'a>,
    },
}

/// The state between two pieces.
#[derive(Clone)]
pub struct Deframer {
    /// The header and, of a control frame, the body, as far as they have come.
    kept: [u8; HEADER_LEN + CONTROL_MAX],
    kept_len: usize,
    /// The header in `kept`, once it is whole.
    header: Option<Header>,
    /// Bytes of the body of a DATA frame that have passed.
    passed: u32,
}

impl Default for Deframer {
    fn default() -> Self {
        Self { kept: [0; HEADER_LEN + CONTROL_MAX], kept_len: 0, header: None, passed: 0 }
    }
}

impl core::fmt::Debug for Deframer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Deframer({} bytes of {:?}, {} passed)", self.kept_len, self.header, self.passed)
    }
}

impl Deframer {
    /// Takes the next frame, or piece of a DATA frame, from the beginning of `input`. `None`: all of `input` is taken, and no frame is
    /// whole.
    ///
    /// # Errors
    /// [`Violation::Type`] and [`Violation::Length`]. The stream cannot be read any further then.
    pub fn next<'a, 'i: 'a>(&'a mut self, input: &mut Input<'i>) -> Result<Option<Item<'a>>, Violation> {
        let header = match self.header {
            Some(header) => header,
            None => {
                if !self.keep(input, HEADER_LEN) {
                    return Ok(None);
                }
                let header = Header::parse(&crate::frame::field(&self.kept, 0))?;
                (self.header, self.passed) = (Some(header), 0);
                header
            }
        };
        if header.kind == Kind::Data {
            return Ok(self.pass(header, input));
        }
        let whole = HEADER_LEN + header.length as usize;
        if !self.keep(input, whole) {
            return Ok(None);
        }
        (self.header, self.kept_len) = (None, 0);
        Ok(Some(Item::Control { header, body: &self.kept[HEADER_LEN..whole] }))
    }

    /// True when every byte so far belongs to a whole frame.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.header.is_none() && self.kept_len == 0
    }

    /// Fills `kept` up to `whole` bytes. False: `input` ends before.
    fn keep(&mut self, input: &mut Input<'_>, whole: usize) -> bool {
        let n = input.len().min(whole - self.kept_len);
        input.take(n).copy_to(&mut self.kept[self.kept_len..self.kept_len + n]);
        self.kept_len += n;
        self.kept_len == whole
    }

    fn pass<'i>(&mut self, header: Header, input: &mut Input<'i>) -> Option<Item<'i>> {
        let before = self.passed;
        let n = input.len().min((header.length - before) as usize);
        if n == 0 {
            return None;
        }
        let bytes = input.take(n);
        self.passed += n as u32;
        if self.passed == header.length {
            (self.header, self.kept_len) = (None, 0);
        }
        Some(Item::Data { header, before, bytes })
    }
}
