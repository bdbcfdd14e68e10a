//! What is known of the order of registers at one place of a program: from the conditions that led there, and from `min` and `max`. A fact is
//! forgotten when one of its registers is written.

use std::collections::{BTreeMap, BTreeSet};

use ccp_vm::{Implicit, Instruction, Opcode, Register, Scope};

/// A register, volatile or not: both are one variable.
pub type Key = (u8, u32);

pub fn key(register: Register) -> Key {
    let scope = match register.scope {
        Scope::VolatileControl => Scope::Control,
        Scope::VolatileReport => Scope::Report,
        other => other,
    };
    (scope as u8, register.index)
}

/// `greater` is at least `lesser`, or more if `is_strict`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fact {
    pub greater: Register,
    pub lesser: Register,
    pub is_strict: bool,
}

impl Fact {
    const fn at_least(greater: Register, lesser: Register) -> Self {
        Self { greater, lesser, is_strict: false }
    }

    const fn more(greater: Register, lesser: Register) -> Self {
        Self { greater, lesser, is_strict: true }
    }

    fn names(&self, register: Key) -> bool {
        key(self.greater) == register || key(self.lesser) == register
    }
}

/// What follows when a truth value is not 0, and when it is 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Meaning {
    yes: Vec<Fact>,
    no: Vec<Fact>,
}

impl Meaning {
    fn swapped(self) -> Self {
        Self { yes: self.no, no: self.yes }
    }

    fn facts(&mut self) -> [&mut Vec<Fact>; 2] {
        [&mut self.yes, &mut self.no]
    }
}

/// The facts at the present instruction of a pass.
#[derive(Debug, Default)]
pub struct Facts {
    known: Vec<Fact>,
    /// Of registers with a truth value that a comparison of this event has written.
    meanings: BTreeMap<Key, Meaning>,
    /// Locals that a condition has set to 0, as those of a `when` with others inside. If one is not 0 later in the run, the body that set it
    /// has run, so its meaning outlives the event.
    guards: BTreeSet<Key>,
    is_body: bool,
}

impl Facts {
    /// An event begins: whether the ones before it ran is not known.
    pub fn begin_event(&mut self) {
        self.is_body = false;
        self.known.clear();
        self.meanings.retain(|register, _| self.guards.contains(register));
    }

    /// The event's body begins: its condition holds.
    pub fn begin_body(&mut self) {
        self.is_body = true;
        let flag = key(Register::implicit(Implicit::EventFlag));
        self.known.extend(self.meanings.remove(&flag).unwrap_or_default().yes);
    }

    /// All facts at this instruction; of `step`'s right operand also those that let `if` take it.
    pub fn at(&self, step: &Instruction) -> impl Iterator<Item = &Fact> {
        let meaning = self.meanings.get(&key(step.left));
        let taken = match step.op {
            Opcode::If => meaning.map(|meaning| &meaning.yes),
            Opcode::NotIf => meaning.map(|meaning| &meaning.no),
            _ => None,
        };
        self.known.iter().chain(taken.into_iter().flatten())
    }

    /// True if `left` cannot be less than `right`.
    pub fn is_ordered(&self, left: Register, right: Register) -> bool {
        let is_so = |fact: &Fact| key(fact.greater) == key(left) && key(fact.lesser) == key(right);
        self.known.iter().any(is_so)
    }

    /// Carries out one instruction.
    pub fn step(&mut self, step: &Instruction) {
        let Instruction { op, result, left, right } = *step;
        let mut meaning = self.meaning(step);
        let mut learnt = match op {
            Opcode::Min => vec![Fact::at_least(left, result), Fact::at_least(right, result)],
            Opcode::Max => vec![Fact::at_least(result, left), Fact::at_least(result, right)],
            _ => Vec::new(),
        };
        let written = key(result);
        // What an operand held before it was written is not known any more.
        learnt.retain(|fact| match op {
            Opcode::Min => key(fact.greater) != written,
            _ => key(fact.lesser) != written,
        });
        self.known.retain(|fact| !fact.names(written));
        let all = self.meanings.values_mut().chain(&mut meaning).flat_map(Meaning::facts);
        all.for_each(|facts| facts.retain(|fact| !fact.names(written)));
        self.known.extend(learnt);
        let meaning = self.guarded(step, meaning);
        match meaning {
            Some(meaning) => drop(self.meanings.insert(written, meaning)),
            None => drop(self.meanings.remove(&written)),
        }
    }

    /// Of a guard that a body sets: all that is known there belongs to its meaning. Of one that is set a second time, nothing is known.
    fn guarded(&mut self, step: &Instruction, meaning: Option<Meaning>) -> Option<Meaning> {
        let written = key(step.result);
        if !self.is_body {
            let is_guard = *step == Instruction::bind(step.result, Register::immediate(0));
            if is_guard && step.result.scope == Scope::Local {
                self.guards.insert(written);
            } else {
                self.guards.remove(&written);
            }
            return meaning;
        }
        if !self.guards.contains(&written) {
            return meaning;
        }
        if self.meanings.contains_key(&written) {
            self.guards.remove(&written);
            return None;
        }
        let mut meaning = meaning.unwrap_or_default();
        meaning.yes.extend(&self.known);
        meaning.no.clear();
        Some(meaning)
    }

    /// What the result of `step` says as a truth value.
    fn meaning(&self, step: &Instruction) -> Option<Meaning> {
        let Instruction { op, left, right, .. } = *step;
        let of = |register| self.meanings.get(&key(register)).cloned();
        let compared = |yes, no| Some(Meaning { yes, no });
        match op {
            Opcode::Bind => of(right),
            Opcode::Gt => compared(vec![Fact::more(left, right)], vec![Fact::at_least(right, left)]),
            Opcode::Lt => compared(vec![Fact::more(right, left)], vec![Fact::at_least(left, right)]),
            Opcode::Equiv if right == Register::immediate(0) => match of(left) {
                Some(meaning) => Some(meaning.swapped()),
                None => compared(vec![Fact::at_least(right, left)], vec![Fact::more(left, right)]),
            },
            Opcode::Equiv => {
                compared(vec![Fact::at_least(left, right), Fact::at_least(right, left)], Vec::new())
            }
            // `&&`: a product is not 0 if no factor is.
            Opcode::Mul => {
                let parts = [of(left), of(right)].into_iter().flatten();
                compared(parts.flat_map(|meaning| meaning.yes).collect(), Vec::new())
            }
            // `||`: a sum is 0 if both parts are.
            Opcode::Add => {
                let parts = [of(left), of(right)].into_iter().flatten();
                compared(Vec::new(), parts.flat_map(|meaning| meaning.no).collect())
            }
            _ => None,
        }
    }
}
