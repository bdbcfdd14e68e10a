//! From messages to bytes.

use crate::list::{Item, List};
use crate::message::{Message, TooLong};
use crate::{CREATE_LEN, HEADER_LEN};

impl Message<'_> {
    /// Bytes of the message with its header.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Create { .. } => CREATE_LEN,
            Self::Measure { values, .. } => HEADER_LEN + 8 + size(values),
            Self::Install { events, instructions, .. } => HEADER_LEN + 12 + size(events) + size(instructions),
            Self::Update { fields, .. } => HEADER_LEN + 4 + size(fields),
            Self::Change { fields, .. } => HEADER_LEN + 8 + size(fields),
            Self::Ready { .. } => HEADER_LEN + 4,
        }
    }

    /// Appends the message to `to`.
    ///
    /// # Errors
    /// If it is longer than a header can say; `to` is as it was.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<(), TooLong> {
        let len = u16::try_from(self.encoded_len()).map_err(|_| TooLong)?;
        to.extend_from_slice(&(self.kind() as u16).to_le_bytes());
        to.extend_from_slice(&len.to_le_bytes());
        number(to, self.flow());
        match self {
            Self::Create { create, .. } => create.encode(to),
            Self::Measure { program, values, .. } => {
                number(to, *program);
                counted(to, values);
            }
            Self::Install { program, events, instructions } => {
                number(to, *program);
                number(to, events.len() as u32);
                number(to, instructions.len() as u32);
                events.encode(to);
                instructions.encode(to);
            }
            Self::Update { fields, .. } => counted(to, fields),
            Self::Change { program, fields, .. } => {
                number(to, *program);
                counted(to, fields);
            }
            Self::Ready { datapath } => number(to, *datapath),
        }
        Ok(())
    }
}

fn size<T: Item + Copy>(list: &List<'_, T>) -> usize {
    list.len() * T::LEN
}

fn number(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn counted<T: Item + Copy>(to: &mut Vec<u8>, list: &List<'_, T>) {
    number(to, list.len() as u32);
    list.encode(to);
}
