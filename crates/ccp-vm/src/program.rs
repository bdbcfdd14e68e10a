//! A verified program: instructions with resolved operands in the order of their execution, constants, and how its variables begin.
//! Plain data that no one changes after [`Program::verify`].

use crate::instruction::{Event, Instruction, Opcode};
use crate::merge::Merge;
use crate::refusal::Refusal;
use crate::register::{Implicit, REPORTS_MAX};
use crate::signals::{Primitive, Reads};
use crate::slots::{CONSTANTS_MAX, REPORT, VARIABLES, WORDS, implicit};
use crate::verify::verify;
use crate::{EVENTS_MAX, INSTRUCTIONS_MAX};

/// One instruction with resolved operands (`slots`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub op: Opcode,
    pub result: u8,
    pub left: u8,
    pub right: u8,
}

const _: () = assert!(size_of::<Step>() == 4);

/// The steps of one event: its condition is `start..body`, its body `body..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub start: u16,
    pub body: u16,
    pub end: u16,
}

/// A program that keeps every rule of [`Refusal`]. About 3 KiB, shared by all flows that run it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    pub(crate) steps: [Step; INSTRUCTIONS_MAX],
    pub(crate) spans: [Span; EVENTS_MAX],
    pub(crate) constants: [u64; CONSTANTS_MAX],
    /// What control and report variables begin with.
    pub(crate) initial: [u64; VARIABLES],
    /// One bit for each of these that begins anew after a report.
    pub(crate) volatile: u32,
    /// How each report variable of two reports becomes one.
    pub(crate) merges: [Merge; REPORTS_MAX],
    pub(crate) step_count: u16,
    pub(crate) constant_count: u8,
    pub(crate) event_count: u8,
    pub(crate) report_count: u8,
}

impl Program {
    /// Verifies a program as it is installed: definitions first, then the instructions of the events.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn verify(instructions: &[Instruction], events: &[Event]) -> Result<Self, Refusal> {
        verify(instructions, events)
    }

    /// The number of values in a report; a program with 0 never reports.
    #[must_use]
    pub const fn report_len(&self) -> usize {
        self.report_count as usize
    }

    /// The number of instructions that one run executes at most.
    #[must_use]
    pub const fn cost(&self) -> usize {
        self.step_count as usize
    }

    /// True if an instruction reads the signal. Of a signal that is not read a datapath need not know the value.
    #[must_use]
    pub fn is_reading(&self, signal: Primitive) -> bool {
        self.active_steps().iter().any(|step| step.left == signal as u8 || step.right == signal as u8)
    }

    /// The signals that instructions read.
    #[must_use]
    pub fn reads(&self) -> Reads {
        let operands = self.active_steps().iter().flat_map(|step| [step.left, step.right]);
        let signals = operands.filter_map(|operand| Primitive::NAMES.get(usize::from(operand)));
        signals.fold(Reads::default(), |all, (_, signal)| all.with(*signal))
    }

    /// True if an instruction writes the register, or may.
    #[must_use]
    pub fn is_writing(&self, register: Implicit) -> bool {
        self.active_steps().iter().any(|step| usize::from(step.result) == implicit(register))
    }

    fn active_steps(&self) -> &[Step] {
        self.steps.get(..usize::from(self.step_count)).unwrap_or_default()
    }

    pub(crate) const fn empty() -> Self {
        Self {
            steps: [Step { op: Opcode::Bind, result: REPORT as u8, left: REPORT as u8, right: REPORT as u8 };
                INSTRUCTIONS_MAX],
            spans: [Span { start: 0, body: 0, end: 0 }; EVENTS_MAX],
            constants: [0; CONSTANTS_MAX],
            initial: [0; VARIABLES],
            volatile: 0,
            merges: [Merge::Newest; REPORTS_MAX],
            step_count: 0,
            constant_count: 0,
            event_count: 0,
            report_count: 0,
        }
    }

    /// The operand byte of a constant, which is added if the program does not have it yet; `None` if there is no room.
    pub(crate) fn constant(&mut self, value: u64) -> Option<u8> {
        let count = usize::from(self.constant_count);
        let known = self.constants[..count].iter().position(|constant| *constant == value);
        let place = known.unwrap_or(count);
        *self.constants.get_mut(place)? = value;
        self.constant_count = self.constant_count.max(place as u8 + 1);
        Some((WORDS + place) as u8)
    }
}
