//! What can stop a run: operations that may overflow, go below zero, or divide by zero, found by the ranges of values. It may name an operation
//! that never fails; it names each that can, as long as values keep to the assumptions below.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ccp_vm::{Implicit, Instruction, Opcode, Primitive, Register, Scope};

use crate::compile::Compiled;

/// Counts, bytes of one run, round-trip times, and variables that only the agent sets stay below this.
const WORD: u64 = u32::MAX as u64;
/// Times, rates, windows, and variables that the program lets grow stay below this.
const WIDE: u64 = 1 << 44;
/// Passes after which a variable that still grows is taken for one that grows without bound.
const PASSES: usize = 4;

/// An operation that can stop a run. Window and rate stay then, and no report goes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Hazard {
    /// The line of the outer `when` that contains the operation.
    pub line: usize,
    /// The failure that can happen.
    pub kind: HazardKind,
    /// The operation as the language writes it, with names where the program has them and `..` for parts.
    pub operation: String,
}

/// How an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HazardKind {
    /// A sum or product of 2^64 or more.
    Overflow,
    /// A difference below 0.
    BelowZero,
    /// A quotient by 0.
    DivisionByZero,
}

impl fmt::Display for Hazard {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            HazardKind::Overflow => "can overflow",
            HazardKind::BelowZero => "can go below 0",
            HazardKind::DivisionByZero => "can divide by 0",
        };
        write!(to, "the `when` at line {}: {} {what}", self.line, self.operation)
    }
}

/// The least and the greatest value that a register may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    least: u64,
    most: u64,
}

impl Range {
    const fn up_to(most: u64) -> Self {
        Self { least: 0, most }
    }

    const fn just(value: u64) -> Self {
        Self { least: value, most: value }
    }

    fn joined(self, other: Self) -> Self {
        Self { least: self.least.min(other.least), most: self.most.max(other.most) }
    }
}

/// The state of one analysis.
struct Analysis<'p> {
    compiled: &'p Compiled,
    ranges: BTreeMap<(u8, u32), Range>,
    /// The result of a `min` or `max`, by its register: its operands cannot be below, or above it.
    least_of: BTreeMap<(u8, u32), [Register; 2]>,
    greatest_of: BTreeMap<(u8, u32), [Register; 2]>,
    /// Pairs of registers of which the present condition says that the first is the greater one.
    ordered: Vec<[Register; 2]>,
    found: BTreeSet<Hazard>,
    /// What variables begin with, and what the present pass has written to each.
    initial: BTreeMap<(u8, u32), Range>,
    writes: BTreeMap<(u8, u32), Range>,
    line: usize,
}

/// Variables of one name have one key, volatile or not.
fn key(register: Register) -> (u8, u32) {
    let scope = match register.scope {
        Scope::VolatileControl => Scope::Control,
        Scope::VolatileReport => Scope::Report,
        other => other,
    };
    (scope as u8, register.index)
}

/// All operations of a program that can stop a run, in the order of their lines.
#[must_use]
pub fn hazards(compiled: &Compiled) -> Vec<Hazard> {
    let (definitions, steps): (Vec<&Instruction>, Vec<&Instruction>) =
        compiled.instructions().iter().partition(|step| step.op == Opcode::Def);
    let written: BTreeSet<(u8, u32)> = steps.into_iter().map(|step| key(step.result)).collect();
    let mut analysis = Analysis {
        compiled,
        ranges: BTreeMap::new(),
        least_of: BTreeMap::new(),
        greatest_of: BTreeMap::new(),
        ordered: Vec::new(),
        found: BTreeSet::new(),
        initial: BTreeMap::new(),
        writes: BTreeMap::new(),
        line: 0,
    };
    for step in definitions {
        let initial = Range::just(u64::from(step.right.index));
        // What no event sets is the agent's to set.
        let range = if written.contains(&key(step.result)) { initial } else { Range::up_to(WORD) };
        analysis.ranges.insert(key(step.result), range);
    }
    analysis.initial = analysis.ranges.clone();
    for _ in 0..PASSES {
        analysis.pass();
    }
    let before = analysis.ranges.clone();
    analysis.pass();
    for (register, range) in &mut analysis.ranges {
        let is_growing = before.get(register).is_none_or(|old| old.most < range.most);
        range.most = if is_growing { WIDE } else { range.most.min(WIDE) };
    }
    // Of a variable that seems to grow, one more pass shows what bounds it.
    analysis.pass();
    analysis.narrow();
    analysis.found.clear();
    analysis.pass();
    analysis.found.into_iter().collect()
}

impl Analysis<'_> {
    /// Takes what was written in the last pass for all that variables hold, beside what they begin with.
    fn narrow(&mut self) {
        for (register, written) in &self.writes {
            let initial = self.initial.get(register).copied().unwrap_or(Range::just(0));
            let mut range = written.joined(initial);
            range.most = range.most.min(WIDE);
            self.ranges.insert(*register, range);
        }
    }

    fn pass(&mut self) {
        let compiled = self.compiled;
        self.writes.clear();
        for (event, line) in compiled.events().iter().zip(compiled.event_lines()) {
            self.line = *line;
            self.ordered.clear();
            for (start, count) in [(event.flag_start, event.flag_count), (event.body_start, event.body_count)]
            {
                let half = start as usize..(start + count) as usize;
                for step in &compiled.instructions()[half] {
                    self.step(step);
                }
            }
        }
    }

    fn range(&self, register: Register) -> Range {
        match register.scope {
            Scope::Immediate => Range::just(u64::from(register.index)),
            Scope::Primitive => signal(register.index),
            Scope::Implicit if register.index == Implicit::Cwnd as u32 => Range { least: 1, most: WIDE },
            Scope::Implicit if register.index >= Implicit::Micros as u32 => Range::up_to(WIDE),
            Scope::Implicit => Range::up_to(1),
            _ => self.ranges.get(&key(register)).copied().unwrap_or(Range::just(0)),
        }
    }

    fn step(&mut self, step: &Instruction) {
        let (left, right) = (self.range(step.left), self.range(step.right));
        let range = match step.op {
            Opcode::Bind | Opcode::Def => right,
            Opcode::Add => self.sum(step, left, right, u64::checked_add),
            Opcode::Mul => self.sum(step, left, right, u64::checked_mul),
            Opcode::Sub => self.difference(step, left, right),
            Opcode::Div => {
                if right.least == 0 {
                    self.note(step, HazardKind::DivisionByZero);
                }
                Range { least: left.least / right.most.max(1), most: left.most / right.least.max(1) }
            }
            Opcode::Equiv | Opcode::Gt | Opcode::Lt => {
                let ordered =
                    if step.op == Opcode::Lt { [step.right, step.left] } else { [step.left, step.right] };
                if step.op != Opcode::Equiv {
                    self.ordered.push(ordered);
                }
                Range::up_to(1)
            }
            Opcode::Max => Range { least: left.least.max(right.least), most: left.most.max(right.most) },
            Opcode::Min => Range { least: left.least.min(right.least), most: left.most.min(right.most) },
            Opcode::MaxWrap => Range::up_to(WORD),
            // Of `if` the old value may stay; an average lies between old and new.
            Opcode::If | Opcode::NotIf | Opcode::Ewma => right.joined(self.range(step.result)),
        };
        let to = key(step.result);
        self.least_of.remove(&to);
        self.greatest_of.remove(&to);
        match step.op {
            Opcode::Min => drop(self.least_of.insert(to, [step.left, step.right])),
            Opcode::Max => drop(self.greatest_of.insert(to, [step.left, step.right])),
            _ => {}
        }
        let before = self.writes.get(&to).copied().unwrap_or(range);
        self.writes.insert(to, before.joined(range));
        // A temporary has only this value; a variable may keep an old one, since the event may not run.
        let is_temp = step.result.scope == Scope::Temp;
        let kept = if is_temp { range } else { range.joined(self.range(step.result)) };
        self.ranges.insert(to, kept);
    }

    fn sum(
        &mut self,
        step: &Instruction,
        left: Range,
        right: Range,
        operation: fn(u64, u64) -> Option<u64>,
    ) -> Range {
        if operation(left.most, right.most).is_none() {
            self.note(step, HazardKind::Overflow);
        }
        let value = |one, other| operation(one, other).unwrap_or(u64::MAX);
        Range { least: value(left.least, right.least), most: value(left.most, right.most) }
    }

    fn difference(&mut self, step: &Instruction, left: Range, right: Range) -> Range {
        let is_operand =
            |of: Option<&[Register; 2]>, register| of.is_some_and(|pair| pair.contains(&register));
        let is_ordered = self.ordered.contains(&[step.left, step.right])
            || is_operand(self.least_of.get(&key(step.right)), step.left)
            || is_operand(self.greatest_of.get(&key(step.left)), step.right);
        if !is_ordered && left.least < right.most {
            self.note(step, HazardKind::BelowZero);
        }
        let least = left.least.saturating_sub(right.most);
        Range { least, most: left.most.saturating_sub(right.least) }
    }

    fn note(&mut self, step: &Instruction, kind: HazardKind) {
        let sign = match step.op {
            Opcode::Add => "+",
            Opcode::Sub => "-",
            Opcode::Mul => "*",
            _ => "/",
        };
        let operation = format!("`({sign} {} {})`", self.name(step.left), self.name(step.right));
        self.found.insert(Hazard { line: self.line, kind, operation });
    }

    fn name(&self, register: Register) -> String {
        match register.scope {
            Scope::Immediate => register.index.to_string(),
            Scope::Primitive => {
                Primitive::NAMES.get(register.index as usize).map_or("..", |(name, _)| *name).to_owned()
            }
            Scope::Implicit => {
                let names = ["..", "..", "..", "Micros", "Cwnd", "Rate"];
                names.get(register.index as usize).copied().unwrap_or("..").to_owned()
            }
            _ => self.compiled.name(register).unwrap_or("..").to_owned(),
        }
    }
}

fn signal(index: u32) -> Range {
    const WIDE_SIGNALS: [Primitive; 3] = [Primitive::Now, Primitive::RateIncoming, Primitive::RateOutgoing];
    if index == Primitive::WasTimeout as u32 {
        Range::up_to(1)
    } else if WIDE_SIGNALS.iter().any(|signal| *signal as u32 == index) {
        Range::up_to(WIDE)
    } else {
        Range::up_to(WORD)
    }
}
