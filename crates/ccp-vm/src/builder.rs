//! Builds programs in Rust, without text. A builder only writes instructions down; [`Program::verify`] judges them.
//!
//! ```
//! use ccp_vm::{Builder, Primitive};
//!
//! // The program of the CCP paper's Figure 2.
//! let mut program = Builder::new();
//! let acked = program.volatile_report(0);
//! let lost = program.volatile_report(0);
//! program.always(|event| {
//!     let sum = event.add(acked, Primitive::BytesAcked);
//!     event.set(acked, sum);
//!     let sum = event.add(lost, Primitive::LostPackets);
//!     event.set(lost, sum);
//!     event.fallthrough();
//! });
//! program.when(|event| event.gt(lost, 0), |event| event.report());
//! assert_eq!(program.finish()?.verify()?.report_len(), 2);
//! # Ok::<(), ccp_vm::Refusal>(())
//! ```

use crate::instruction::{Event, Instruction, Opcode};
use crate::program::Program;
use crate::refusal::Refusal;
use crate::register::{Field, Implicit, Register, Scope};
use crate::signals::Primitive;
use crate::{EVENTS_MAX, INSTRUCTIONS_MAX};

/// Values of expressions know their event; all other values belong to every event.
const EVERY_EVENT: usize = usize::MAX;

/// A number: a constant, a signal, a variable, or the result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Num {
    register: Register,
    event: usize,
}

/// A truth value: the result of a comparison, or `Flow.was_timeout`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flag {
    register: Register,
    event: usize,
}

/// A variable that the program may set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variable(Register);

impl Variable {
    /// The congestion window, bytes.
    pub const CWND: Self = Self(Register::implicit(Implicit::Cwnd));
    /// The pacing rate, bytes per second.
    pub const RATE: Self = Self(Register::implicit(Implicit::Rate));
    /// The timer: microseconds since the program began, or since it set the timer.
    pub const MICROS: Self = Self(Register::implicit(Implicit::Micros));

    /// What an agent names to set this variable; `None` if it may not.
    #[must_use]
    pub const fn field(self) -> Option<Field> {
        Field::of(self.0)
    }

    /// The register of this variable.
    #[must_use]
    pub const fn register(self) -> Register {
        self.0
    }
}

impl From<u32> for Num {
    fn from(value: u32) -> Self {
        Self { register: Register::immediate(value), event: EVERY_EVENT }
    }
}

impl From<Variable> for Num {
    fn from(variable: Variable) -> Self {
        Self { register: variable.0, event: EVERY_EVENT }
    }
}

impl From<Primitive> for Num {
    fn from(signal: Primitive) -> Self {
        Self { register: Register::new(Scope::Primitive, signal as u32), event: EVERY_EVENT }
    }
}

impl Flag {
    /// `Flow.was_timeout`: a retransmission timeout happened since the last run.
    pub const WAS_TIMEOUT: Self =
        Self { register: Register::new(Scope::Primitive, Primitive::WasTimeout as u32), event: EVERY_EVENT };
}

/// A program that is being written.
#[derive(Clone, Debug)]
pub struct Builder {
    source: Source,
    definitions: Row<Instruction, INSTRUCTIONS_MAX>,
    reports: u32,
    controls: u32,
    locals: u32,
    temps: u32,
    failure: Option<Refusal>,
}

/// A finished program as an INSTALL carries it.
#[derive(Clone, Debug)]
pub struct Source {
    instructions: Row<Instruction, INSTRUCTIONS_MAX>,
    events: Row<Event, EVENTS_MAX>,
}

impl Source {
    /// Definitions first, then the events' instructions.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions.items[..self.instructions.len]
    }

    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events.items[..self.events.len]
    }

    /// The program, ready to run.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn verify(&self) -> Result<Program, Refusal> {
        Program::verify(self.instructions(), self.events())
    }
}

/// Operations of two numbers, each with its documentation.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident: $op:ident -> $result:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, left: impl Into<Num>, right: impl Into<Num>) -> $result {
            let (left, right) = (left.into(), right.into());
            self.require_this_event(left.event);
            self.require_this_event(right.event);
            let register = self.temp(Opcode::$op, left.register, right.register);
            $result { register, event: self.source.events.len }
        }
    )*};
}

impl Builder {
    /// A program without variables and events.
    #[must_use]
    pub const fn new() -> Self {
        let instruction = Instruction::bind(Register::immediate(0), Register::immediate(0));
        let event = Event { flag_start: 0, flag_count: 0, body_start: 0, body_count: 0 };
        let instructions = Row { items: [instruction; INSTRUCTIONS_MAX], len: 0 };
        Self {
            definitions: Row { items: [instruction; INSTRUCTIONS_MAX], len: 0 },
            source: Source { instructions, events: Row { items: [event; EVENTS_MAX], len: 0 } },
            reports: 0,
            controls: 0,
            locals: 0,
            temps: 0,
            failure: None,
        }
    }

    /// A report variable that keeps its value over reports.
    pub fn report_variable(&mut self, initial: u32) -> Variable {
        self.reports += 1;
        self.define(Register::new(Scope::Report, self.reports - 1), initial)
    }

    /// A report variable that begins anew after each report.
    pub fn volatile_report(&mut self, initial: u32) -> Variable {
        self.reports += 1;
        self.define(Register::new(Scope::VolatileReport, self.reports - 1), initial)
    }

    /// A variable that is not reported, and that the agent may set.
    pub fn control(&mut self, initial: u32) -> Variable {
        self.controls += 1;
        self.define(Register::new(Scope::Control, self.controls - 1), initial)
    }

    /// A variable that is not reported, and that the agent may not set; it begins with 0.
    pub fn local(&mut self) -> Variable {
        self.locals += 1;
        Variable(Register::new(Scope::Local, self.locals - 1))
    }

    /// An event that is true in each run.
    pub fn always(&mut self, body: impl FnOnce(&mut Self)) {
        self.event(|_| Register::immediate(1), body);
    }

    /// An event: its body runs when its condition is true, and then ends the run unless it (or an earlier event) says `fallthrough`.
    pub fn when(&mut self, condition: impl FnOnce(&mut Self) -> Flag, body: impl FnOnce(&mut Self)) {
        let register = |builder: &mut Self| {
            let flag = condition(builder);
            builder.require_this_event(flag.event);
            flag.register
        };
        self.event(register, body);
    }

    operations! {
        /// `left + right`; above 2^64 - 1 it stops the run.
        add: Add -> Num;
        /// `left - right`; below 0 it stops the run.
        sub: Sub -> Num;
        /// `left * right`; above 2^64 - 1 it stops the run.
        mul: Mul -> Num;
        /// `left / right`, rounded down; 0 below the line stops the run.
        div: Div -> Num;
        /// The greater one of two numbers.
        max: Max -> Num;
        /// The lesser one of two numbers.
        min: Min -> Num;
        /// The later one of two serial numbers of 32 bits.
        wrapped_max: MaxWrap -> Num;
        /// `left == right`, as a flag.
        eq: Equiv -> Flag;
        /// `left > right`, as a flag.
        gt: Gt -> Flag;
        /// `left < right`, as a flag.
        lt: Lt -> Flag;
    }

    /// Both are true; neither is left out.
    pub fn and(&mut self, left: Flag, right: Flag) -> Flag {
        self.flags(Opcode::Mul, left, right)
    }

    /// One is true, or both; neither is left out.
    pub fn or(&mut self, left: Flag, right: Flag) -> Flag {
        self.flags(Opcode::Add, left, right)
    }

    /// The flag is false.
    pub fn not(&mut self, flag: Flag) -> Flag {
        self.require_this_event(flag.event);
        let register = self.temp(Opcode::Equiv, flag.register, Register::immediate(0));
        Flag { register, event: self.source.events.len }
    }

    /// Writes `value` to `variable`.
    pub fn set(&mut self, variable: Variable, value: impl Into<Num>) {
        let value = value.into();
        self.require_this_event(value.event);
        self.emit(Instruction::bind(variable.0, value.register));
    }

    /// `variable = value`, if `condition` is true.
    pub fn set_if(&mut self, condition: Flag, variable: Variable, value: impl Into<Num>) {
        let value = value.into();
        self.require_this_event(condition.event);
        self.require_this_event(value.event);
        let result = variable.0;
        self.emit(Instruction { op: Opcode::If, result, left: condition.register, right: value.register });
    }

    /// Moves `variable` towards `value`: it keeps `tenths` tenths of its own. From 0 it takes the whole value.
    pub fn average(&mut self, variable: Variable, tenths: u32, value: impl Into<Num>) {
        let value = value.into();
        self.require_this_event(value.event);
        let left = Register::immediate(tenths);
        self.emit(Instruction { op: Opcode::Ewma, result: variable.0, left, right: value.register });
    }

    /// One report follows this run.
    pub fn report(&mut self) {
        self.emit(Instruction::bind(Register::implicit(Implicit::Report), Register::immediate(1)));
    }

    /// From here on true events do not end this run.
    pub fn fallthrough(&mut self) {
        self.emit(Instruction::bind(Register::implicit(Implicit::Fallthrough), Register::immediate(1)));
    }

    /// The finished program; not verified yet.
    ///
    /// # Errors
    /// If there were too many instructions or events, or a value of another event.
    pub fn finish(mut self) -> Result<Source, Refusal> {
        let mut source = Source {
            instructions: self.definitions,
            events: Row { items: self.source.events.items, len: self.source.events.len },
        };
        for instruction in self.source.instructions() {
            if !source.instructions.push(*instruction) {
                self.failure.get_or_insert(Refusal::TooManyInstructions);
            }
        }
        for event in source.events.items.iter_mut().take(source.events.len) {
            event.flag_start += self.definitions.len as u32;
            event.body_start += self.definitions.len as u32;
        }
        self.failure.map_or(Ok(source), Err)
    }

    fn define(&mut self, register: Register, initial: u32) -> Variable {
        if !self.definitions.push(Instruction::define(register, initial)) {
            self.failure.get_or_insert(Refusal::TooManyInstructions);
        }
        Variable(register)
    }

    fn event(&mut self, condition: impl FnOnce(&mut Self) -> Register, body: impl FnOnce(&mut Self)) {
        self.temps = 0;
        let flag_start = self.source.instructions.len;
        let flag = condition(self);
        self.emit(Instruction::bind(Register::implicit(Implicit::EventFlag), flag));
        let body_start = self.source.instructions.len;
        body(self);
        let end = self.source.instructions.len;
        let event = Event {
            flag_start: flag_start as u32,
            flag_count: (body_start - flag_start) as u32,
            body_start: body_start as u32,
            body_count: (end - body_start) as u32,
        };
        if !self.source.events.push(event) {
            self.failure.get_or_insert(Refusal::TooManyEvents);
        }
    }

    fn flags(&mut self, op: Opcode, left: Flag, right: Flag) -> Flag {
        self.require_this_event(left.event);
        self.require_this_event(right.event);
        let register = self.temp(op, left.register, right.register);
        Flag { register, event: self.source.events.len }
    }

    fn temp(&mut self, op: Opcode, left: Register, right: Register) -> Register {
        let result = Register::new(Scope::Temp, self.temps);
        self.temps += 1;
        self.emit(Instruction { op, result, left, right });
        result
    }

    fn emit(&mut self, instruction: Instruction) {
        if !self.source.instructions.push(instruction) {
            self.failure.get_or_insert(Refusal::TooManyInstructions);
        }
    }

    fn require_this_event(&mut self, event: usize) {
        if event != EVERY_EVENT && event != self.source.events.len {
            self.failure.get_or_insert(Refusal::StaleValue);
        }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

/// A list of bounded length.
#[derive(Clone, Copy, Debug)]
struct Row<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T, const N: usize> Row<T, N> {
    /// False if the list is full.
    fn push(&mut self, item: T) -> bool {
        let place = self.items.get_mut(self.len);
        let is_room = place.is_some();
        if let Some(place) = place {
            *place = item;
            self.len += 1;
        }
        is_room
    }
}
