//! Programs as an agent keeps them: compiled once, numbered once, installed at each datapath.

use std::sync::Arc;

use ccp_lang::{Compiled, compile};
use ccp_vm::{Field, Implicit, Register, Scope};
use ccp_wire::{List, Message, Update};

use crate::error::Error;

/// The name of the program that a flow gets when its algorithm fails.
pub const FALLBACK: &str = "fallback";

/// One program with the number that the agent gave it.
#[derive(Debug)]
pub struct Program {
    pub number: u32,
    pub name: String,
    compiled: Compiled,
}

impl Program {
    pub fn new(number: u32, name: &str, text: &str) -> Result<Arc<Self>, Error> {
        let wrong = |mistakes| Error::Program { name: name.to_owned(), mistakes };
        Ok(Arc::new(Self { number, name: name.to_owned(), compiled: compile(text).map_err(wrong)? }))
    }

    /// Reno in the datapath, which needs no agent.
    pub fn fallback(number: u32) -> Arc<Self> {
        Self::new(number, FALLBACK, include_str!("fallback.ccp")).expect("a test compiles it")
    }

    /// The INSTALL of this program, as a datagram.
    pub fn install(&self) -> Vec<u8> {
        let (events, instructions) =
            (List::of(self.compiled.events()), List::of(self.compiled.instructions()));
        encoded(&Message::Install { program: self.number, events, instructions })
    }

    /// The fields as a message carries them; the first one without a meaning is an error.
    pub fn updates(&self, fields: &[(&str, u64)]) -> Result<Vec<Update>, Error> {
        let update = |(name, value): &(&str, u64)| {
            let register = match self.compiled.field(name) {
                Some(Field::Cwnd) => Register::implicit(Implicit::Cwnd),
                Some(Field::Rate) => Register::implicit(Implicit::Rate),
                Some(Field::Control(index)) => Register::new(Scope::Control, u32::from(index)),
                None => {
                    return Err(Error::NoSuchField { program: self.name.clone(), field: (*name).to_owned() });
                }
            };
            Ok(Update { register, value: *value })
        };
        fields.iter().map(update).collect()
    }

    /// The names of the report variables, without `Report.`, in the order of a report's values.
    pub fn reports(&self) -> impl Iterator<Item = &str> {
        self.compiled.reports()
    }
}

/// A message as a datagram.
pub fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(message.encoded_len());
    message.encode(&mut datagram).expect("at most 256 instructions, 16 events or a few fields");
    datagram
}
