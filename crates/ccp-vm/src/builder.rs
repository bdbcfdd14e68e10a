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

/// A register that holds a value: in one event if an operation wrote it there, in every event otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Value {
    register: Register,
    event: Option<usize>,
}

impl Value {
    const fn of_every_event(register: Register) -> Self {
        Self { register, event: None }
    }
}

/// A number: a constant, a signal, a variable, or the result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Num(Value);

/// A truth value: the result of a comparison, or `Flow.was_timeout`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flag(Value);

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
        Self(Value::of_every_event(Register::immediate(value)))
    }
}

impl From<Variable> for Num {
    fn from(variable: Variable) -> Self {
        Self(Value::of_every_event(variable.0))
    }
}

impl From<Primitive> for Num {
    fn from(signal: Primitive) -> Self {
        Self(Value::of_every_event(Register::new(Scope::Primitive, signal as u32)))
    }
}

impl Flag {
    /// `Flow.was_timeout`: a retransmission timeout happened since the last run.
    pub const WAS_TIMEOUT: Self =
        Self(Value::of_every_event(Register::new(Scope::Primitive, Primitive::WasTimeout as u32)));
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
            $result(self.operate(Opcode::$op, left.into().0, right.into().0))
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
            builder.register_of(flag.0)
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
        Flag(self.operate(Opcode::Mul, left.0, right.0))
    }

    /// One is true, or both; neither is left out.
    pub fn or(&mut self, left: Flag, right: Flag) -> Flag {
        Flag(self.operate(Opcode::Add, left.0, right.0))
    }

    /// The flag is false.
    pub fn not(&mut self, flag: Flag) -> Flag {
        Flag(self.operate(Opcode::Equiv, flag.0, Num::from(0).0))
    }

    /// Writes `value` to `variable`.
    pub fn set(&mut self, variable: Variable, value: impl Into<Num>) {
        let value = self.register_of(value.into().0);
        self.emit(Instruction::bind(variable.0, value));
    }

    /// `variable = value`, if `condition` is true.
    pub fn set_if(&mut self, condition: Flag, variable: Variable, value: impl Into<Num>) {
        let left = self.register_of(condition.0);
        let right = self.register_of(value.into().0);
        self.emit(Instruction { op: Opcode::If, result: variable.0, left, right });
    }

    /// Moves `variable` towards `value`: it keeps `tenths` tenths of its own. From 0 it takes the whole value.
    pub fn average(&mut self, variable: Variable, tenths: u32, value: impl Into<Num>) {
        let left = Register::immediate(tenths);
        let right = self.register_of(value.into().0);
        self.emit(Instruction { op: Opcode::Ewma, result: variable.0, left, right });
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
    pub fn finish(self) -> Result<Source, Refusal> {
        if let Some(refusal) = self.failure {
            return Err(refusal);
        }
        let mut source = Source { instructions: self.definitions, events: self.source.events };
        for instruction in self.source.instructions() {
            source.instructions.push(*instruction, Refusal::TooManyInstructions)?;
        }
        for event in source.events.items.iter_mut().take(source.events.len) {
            event.flag_start += self.definitions.len as u32;
            event.body_start += self.definitions.len as u32;
        }
        Ok(source)
    }

    fn define(&mut self, register: Register, initial: u32) -> Variable {
        let definition = Instruction::define(register, initial);
        let outcome = self.definitions.push(definition, Refusal::TooManyInstructions);
        self.note(outcome);
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
        let outcome = self.source.events.push(event, Refusal::TooManyEvents);
        self.note(outcome);
    }

    /// Writes the result of an operation to a new temporary of this event.
    fn operate(&mut self, op: Opcode, left: Value, right: Value) -> Value {
        let (left, right) = (self.register_of(left), self.register_of(right));
        let result = Register::new(Scope::Temp, self.temps);
        self.temps += 1;
        self.emit(Instruction { op, result, left, right });
        Value { register: result, event: Some(self.source.events.len) }
    }

    fn emit(&mut self, instruction: Instruction) {
        let outcome = self.source.instructions.push(instruction, Refusal::TooManyInstructions);
        self.note(outcome);
    }

    /// The register of a value, which must hold in this event.
    fn register_of(&mut self, value: Value) -> Register {
        if value.event.is_some_and(|event| event != self.source.events.len) {
            self.note(Err(Refusal::StaleValue));
        }
        value.register
    }

    /// Keeps the first failure for [`Self::finish`].
    fn note(&mut self, outcome: Result<(), Refusal>) {
        self.failure = self.failure.or(outcome.err());
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
    /// Appends `item`; a list that is full stays as it is, with `refusal`.
    fn push(&mut self, item: T, refusal: Refusal) -> Result<(), Refusal> {
        *self.items.get_mut(self.len).ok_or(refusal)? = item;
        self.len += 1;
        Ok(())
    }
}
