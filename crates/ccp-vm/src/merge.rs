//! How two reports of a flow become one, when the first could not be sent before the second came. Each report variable has a rule, which
//! the verifier finds in how the program computes the variable: the crate's documentation has the table. It never changes how a program runs.
//!
//! These are the rules by which signals of one batch are merged. Variables that are not volatile have the newest value: they hold all that
//! came before. A variable that is set in several ways has the first rule of the table that one of them gives.

use crate::instruction::{Instruction, Opcode};
use crate::register::{REPORTS_MAX, Register, Scope, TEMPS_MAX};
use crate::signals::Primitive;

/// The rule of one report variable; the lesser one wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Merge {
    Sum,
    Least,
    Greatest,
    Newest,
}

impl Merge {
    /// The value of two reports together. Both of them began with `initial`.
    pub fn apply(self, earlier: u64, later: u64, initial: u64) -> u64 {
        match self {
            Self::Sum => earlier.saturating_add(later.saturating_sub(initial)),
            Self::Least => earlier.min(later),
            Self::Greatest => earlier.max(later),
            Self::Newest => later,
        }
    }
}

/// What is known of a value: the rule if it is written to any variable, and the rule for variables that it was computed from.
#[derive(Clone, Copy)]
struct Origin {
    anywhere: Merge,
    /// One bit for each report variable that the value was computed from by the way of `how`; [`Merge::Newest`]: it is the variable.
    variables: u32,
    how: Merge,
}

const UNKNOWN: Origin = Origin { anywhere: Merge::Newest, variables: 0, how: Merge::Newest };

impl Origin {
    fn anywhere(anywhere: Merge) -> Self {
        Self { anywhere, ..UNKNOWN }
    }

    /// The bits of the variables that the value was computed from as `how` says.
    fn by(self, how: Merge) -> u32 {
        if self.how == how { self.variables } else { 0 }
    }

    /// An operation by which a variable goes on as `how` says. A sum stays one when it is bounded.
    fn joined(self, other: Self, how: Merge) -> Self {
        let sums = self.by(Merge::Sum) | other.by(Merge::Sum);
        if how != Merge::Sum && sums != 0 {
            return Self { variables: sums, how: Merge::Sum, ..UNKNOWN };
        }
        let of = |origin: Self| origin.by(how) | origin.by(Merge::Newest);
        Self { variables: of(self) | of(other), how, ..UNKNOWN }
    }
}

/// Reads the instructions of events in their order and finds the rules of the report variables.
pub struct Rules {
    temps: [Origin; TEMPS_MAX],
    rules: [Merge; REPORTS_MAX],
}

impl Rules {
    pub fn new() -> Self {
        Self { temps: [UNKNOWN; TEMPS_MAX], rules: [Merge::Newest; REPORTS_MAX] }
    }

    /// The rules so far, by the index of the variable.
    pub fn rules(&self) -> [Merge; REPORTS_MAX] {
        self.rules
    }

    /// Takes one verified instruction into account.
    pub fn read(&mut self, instruction: &Instruction) {
        let origin = self.origin_of(instruction);
        let Register { scope, index } = instruction.result;
        if scope == Scope::Temp {
            self.temps[index as usize % TEMPS_MAX] = origin;
        } else if scope.is_report() {
            let rule = &mut self.rules[index as usize % REPORTS_MAX];
            let is_own = origin.variables & bit(index) != 0;
            *rule = (*rule).min(if is_own { origin.how } else { origin.anywhere });
        }
    }

    fn origin_of(&self, instruction: &Instruction) -> Origin {
        let (left, right) = (self.origin(instruction.left), self.origin(instruction.right));
        let both_are = |merge| left.anywhere == merge && right.anywhere == merge;
        match instruction.op {
            Opcode::Bind | Opcode::If | Opcode::NotIf => right,
            // `||`, and `&&`, of truth values
            Opcode::Add | Opcode::Mul if both_are(Merge::Greatest) => right,
            Opcode::Add if both_are(Merge::Sum) => right,
            Opcode::Add => left.joined(right, Merge::Sum),
            Opcode::Min => left.joined(right, Merge::Least),
            Opcode::Max | Opcode::MaxWrap => left.joined(right, Merge::Greatest),
            Opcode::Equiv | Opcode::Gt | Opcode::Lt => Origin::anywhere(Merge::Greatest),
            Opcode::Mul | Opcode::Div | Opcode::Sub | Opcode::Ewma | Opcode::Def => UNKNOWN,
        }
    }

    fn origin(&self, register: Register) -> Origin {
        match register.scope {
            Scope::Temp => self.temps[register.index as usize % TEMPS_MAX],
            Scope::Report | Scope::VolatileReport => Origin { variables: bit(register.index), ..UNKNOWN },
            Scope::Primitive => Origin::anywhere(rule_of_signal(register.index)),
            Scope::Immediate if register.index <= 1 => Origin::anywhere(Merge::Greatest),
            _ => UNKNOWN,
        }
    }
}

/// The bit of a report variable; none for an index that the verifier refuses.
fn bit(index: u32) -> u32 {
    1_u32.checked_shl(index).unwrap_or(0)
}

fn rule_of_signal(index: u32) -> Merge {
    const SUMS: [Primitive; 7] = [
        Primitive::BytesAcked,
        Primitive::BytesMisordered,
        Primitive::EcnBytes,
        Primitive::EcnPackets,
        Primitive::LostPackets,
        Primitive::PacketsAcked,
        Primitive::PacketsMisordered,
    ];
    match index {
        index if SUMS.iter().any(|signal| *signal as u32 == index) => Merge::Sum,
        index if index == Primitive::RttSample as u32 => Merge::Least,
        index if index == Primitive::WasTimeout as u32 => Merge::Greatest,
        _ => Merge::Newest,
    }
}
