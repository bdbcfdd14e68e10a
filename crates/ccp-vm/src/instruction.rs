//! Instructions and events in Portus' encoding, 16 bytes each, little-endian. Nothing here is verified.
//!
//! ```text
//! instruction   0: op | 1: result's scope | 2..6: its index | 6: left's scope | 7..11: its index | 11: right's scope | 12..16: its index
//! event         0..4: first flag instruction | 4..8: their number | 8..12: first body instruction | 12..16: their number
//! ```

use crate::register::Register;

/// Bytes of one encoded instruction or event.
pub const ENCODED_LEN: usize = 16;

/// What an instruction does; the numbers are those of the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// result = left + right.
    Add = 0,
    /// result = right; left is not read.
    Bind = 1,
    /// A definition: register `left` begins with the immediate `right`.
    Def = 2,
    /// result = left / right, rounded down.
    Div = 3,
    /// result = 1 if left == right, else 0.
    Equiv = 4,
    /// result = right if result is 0, else (left * result + (10 - left) * right) / 10.
    Ewma = 5,
    /// result = 1 if left > right, else 0.
    Gt = 6,
    /// result = right, if left is not 0.
    If = 7,
    /// result = 1 if left < right, else 0.
    Lt = 8,
    /// result = the greater one.
    Max = 9,
    /// result = the later one of two serial numbers of 32 bits; of 0 and another, the other.
    MaxWrap = 10,
    /// result = the lesser one.
    Min = 11,
    /// result = left * right.
    Mul = 12,
    /// result = right, if left is 0.
    NotIf = 13,
    /// result = left - right.
    Sub = 14,
}

impl Opcode {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::Add,
        Self::Bind,
        Self::Def,
        Self::Div,
        Self::Equiv,
        Self::Ewma,
        Self::Gt,
        Self::If,
        Self::Lt,
        Self::Max,
        Self::MaxWrap,
        Self::Min,
        Self::Mul,
        Self::NotIf,
        Self::Sub,
    ];

    fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// True if the operation uses what its result held before.
    #[must_use]
    pub const fn is_reading_result(self) -> bool {
        matches!(self, Self::Ewma | Self::If | Self::NotIf)
    }
}

/// One instruction as installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// The operation, of which [`Opcode`] says what it computes.
    pub op: Opcode,
    /// The register that it writes.
    pub result: Register,
    /// The first operand of the operation.
    pub left: Register,
    /// The second operand of the operation.
    pub right: Register,
}

impl Instruction {
    /// The assignment `result = right`.
    #[must_use]
    pub const fn bind(result: Register, right: Register) -> Self {
        Self { op: Opcode::Bind, result, left: result, right }
    }

    /// The definition of `variable`, which begins with `initial`.
    #[must_use]
    pub const fn define(variable: Register, initial: u32) -> Self {
        Self { op: Opcode::Def, result: variable, left: variable, right: Register::immediate(initial) }
    }

    /// The instruction in 16 bytes; `None` if the operation or a scope has no meaning.
    #[must_use]
    pub fn decode(bytes: &[u8; ENCODED_LEN]) -> Option<Self> {
        let (op, registers) = bytes.split_first()?;
        let ([result, left, right], _) = registers.as_chunks() else { return None };
        Some(Self {
            op: Opcode::from_wire(*op)?,
            result: Register::decode(result)?,
            left: Register::decode(left)?,
            right: Register::decode(right)?,
        })
    }

    /// The 16 bytes of this instruction.
    #[must_use]
    pub fn encode(&self) -> [u8; ENCODED_LEN] {
        let mut bytes = [0; ENCODED_LEN];
        bytes[0] = self.op as u8;
        let registers = [self.result, self.left, self.right];
        for (place, register) in bytes[1..].chunks_exact_mut(Register::LEN).zip(registers) {
            place.copy_from_slice(&register.encode());
        }
        bytes
    }
}

/// One event as installed: where the instructions of its condition and of its body lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The first instruction of the condition, the last of which writes `EventFlag`.
    pub flag_start: u32,
    /// The number of instructions of the condition.
    pub flag_count: u32,
    /// The first instruction of the body.
    pub body_start: u32,
    /// The number of instructions of the body.
    pub body_count: u32,
}

impl Event {
    /// The event in 16 bytes; every value has a meaning until it is verified.
    #[must_use]
    pub fn decode(bytes: &[u8; ENCODED_LEN]) -> Self {
        Self {
            flag_start: word(bytes, 0),
            flag_count: word(bytes, 4),
            body_start: word(bytes, 8),
            body_count: word(bytes, 12),
        }
    }

    /// The 16 bytes of this event.
    #[must_use]
    pub fn encode(&self) -> [u8; ENCODED_LEN] {
        let mut bytes = [0; ENCODED_LEN];
        let words = [self.flag_start, self.flag_count, self.body_start, self.body_count];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

fn word(bytes: &[u8; ENCODED_LEN], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
