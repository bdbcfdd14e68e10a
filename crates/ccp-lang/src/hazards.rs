//! What can stop a run: operations that may overflow, go below zero, or divide by zero, found by the ranges of values and by what conditions
//! say of their order. It may name an operation that never fails; it names each that can, as long as values keep to the assumptions below.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ccp_vm::{Implicit, Instruction, Opcode, Primitive, Register, Scope};

use crate::compile::Compiled;
use crate::facts::{Facts, Key, key};

/// Counts, bytes of one run, round-trip times, and variables that only the agent sets stay below this.
const WORD: u64 = u32::MAX as u64;
/// Times, rates, windows, and variables that the program lets grow stay below this.
const WIDE: u64 = 1 << 44;
/// Passes after which a variable that still grows or falls is taken for one without bound.
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
    ranges: BTreeMap<Key, Range>,
    facts: Facts,
    found: BTreeSet<Hazard>,
    /// What variables begin with, and what the present pass has written to each.
    initial: BTreeMap<Key, Range>,
    writes: BTreeMap<Key, Range>,
    line: usize,
}

/// All operations of a program that can stop a run, in the order of their lines.
#[must_use]
pub fn hazards(compiled: &Compiled) -> Vec<Hazard> {
    let (definitions, steps): (Vec<&Instruction>, Vec<&Instruction>) =
        compiled.instructions().iter().partition(|step| step.op == Opcode::Def);
    let written: BTreeSet<Key> = steps.into_iter().map(|step| key(step.result)).collect();
    let mut analysis = Analysis {
        compiled,
        ranges: BTreeMap::new(),
        facts: Facts::default(),
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
    while analysis.widen() {}
    // What seems to grow may yet be bounded by what is written to it: the last pass of `widen` has shown that.
    analysis.narrow();
    analysis.found.clear();
    analysis.pass();
    analysis.found.into_iter().collect()
}

impl Analysis<'_> {
    /// One pass, after which variables that still grow or fall have no bounds. False if there were none: no value lies outside its range.
    fn widen(&mut self) -> bool {
        let before = self.ranges.clone();
        self.pass();
        let mut is_wider = false;
        for (register, range) in &mut self.ranges {
            range.most = range.most.min(WIDE);
            let old = before.get(register).copied().unwrap_or(Range::just(0));
            if register.0 == Scope::Temp as u8 || (old.most >= range.most && old.least <= range.least) {
                continue;
            }
            is_wider = true;
            range.most = if old.most < range.most { WIDE } else { range.most };
            range.least = if old.least > range.least { 0 } else { range.least };
        }
        is_wider
    }

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
            self.facts.begin_event();
            self.half(event.flag_start, event.flag_count);
            self.facts.begin_body();
            self.half(event.body_start, event.body_count);
        }
    }

    /// The condition or the body of an event.
    fn half(&mut self, start: u32, count: u32) {
        for step in &self.compiled.instructions()[start as usize..(start + count) as usize] {
            self.step(step);
        }
    }

    /// The range of `register`, an operand of `step`, as far as the facts there narrow it.
    fn operand(&self, register: Register, step: &Instruction) -> Range {
        let mut range = self.range(register);
        for fact in self.facts.at(step) {
            let more = u64::from(fact.is_strict);
            if key(fact.greater) == key(register) {
                range.least = range.least.max(self.range(fact.lesser).least.saturating_add(more));
            }
            if key(fact.lesser) == key(register) {
                range.most = range.most.min(self.range(fact.greater).most.saturating_sub(more));
            }
        }
        // No value is left where a condition is never true.
        Range { least: range.least, most: range.most.max(range.least) }
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
        let (left, right) = (self.operand(step.left, step), self.operand(step.right, step));
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
            Opcode::Equiv | Opcode::Gt | Opcode::Lt => Range::up_to(1),
            Opcode::Max => Range { least: left.least.max(right.least), most: left.most.max(right.most) },
            Opcode::Min => Range { least: left.least.min(right.least), most: left.most.min(right.most) },
            Opcode::MaxWrap => Range::up_to(WORD),
            // Of `if` the old value may stay; an average lies between old and new.
            Opcode::If | Opcode::NotIf | Opcode::Ewma => right.joined(self.range(step.result)),
        };
        let to = key(step.result);
        self.facts.step(step);
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
        if !self.facts.is_ordered(step.left, step.right) && left.least < right.most {
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
