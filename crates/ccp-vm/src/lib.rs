//! Programs of congestion control that agents install into the datapath (CCP paper, sections 4.1 and 5.2). A program is verified once
//! and then runs at each batch of acknowledgements of a flow, in bounded time.
//!
//! Contains no messages, flows or clocks, and never allocates: `now` is a part of [`Invocation`].
//!
//! ```text
//! Instruction, Event (as on the wire) --Program::verify--> Program          one for all flows that run it
//! Builder (without text or wire)      --finish--> Source --verify--> Program
//!
//! acknowledgements, losses, timeouts --Signals::merge--> Signals            sums of one batch
//! Machine::start(program)      the program of a flow begins or changes
//! Machine::run(program, input) --> Decision { cwnd, rate } or Fault        once for each flow and batch
//! Machine::take_report(program, out)    once there is room for a report
//! ```
//! # Use by a datapath
//! The slow path verifies an INSTALL and shares the [`Program`] (2.8 KB). Each flow with a program has one [`Machine`] (2.2 KB). The core
//! merges the signals of a batch, calls [`Machine::run`], enforces the decision, and clears the signals. If [`Machine::is_report_due`], it
//! takes the report as soon as it can be handed on. Until then further reports of the flow are merged with it, each variable by its own rule,
//! so a report that finds no room is never lost and never sent twice, and a program runs the same however slow its agent is.
//!
//! | a volatile report variable that the program sets to | merged as |
//! |---|---|
//! | `(+ itself ..)`, bytes or counts of the batch, sums of these | the sum |
//! | `(min itself ..)`, the round-trip time | the least |
//! | `(max itself ..)`, a truth value | the greatest |
//! | anything else; and variables that are not volatile | the newest |
//!
//! # Meaning of programs
//! As in libccp, Portus' datapath: events in order; the first true event ends the run, unless an event of this run has said
//! `fallthrough` (from then on each true event runs). `report` asks for one report after the run, when window and rate are set.
//! Arithmetic is of 64 bits and checked. A run that overflows, underflows or divides by zero stops there: it changes neither window nor
//! rate and asks for no report. What the program's registers hold at that point they keep.
#![no_std]
#![forbid(unsafe_code)]

mod bounds;
mod builder;
mod changes;
mod fuse;
mod image;
mod instruction;
mod machine;
mod merge;
mod program;
mod refusal;
mod register;
mod signals;
mod slots;
mod verify;

pub use bounds::Bounds;
pub use builder::{Builder, Flag, Num, Source, Variable};
pub use changes::Changes;
pub use image::IMAGE_LEN;
pub use instruction::{ENCODED_LEN, Event, Instruction, Opcode};
pub use machine::{Decision, Fault, Invocation, Machine};
pub use program::Program;
pub use refusal::Refusal;
pub use register::{
    CONTROLS_MAX, Field, INFINITY, Implicit, LEGACY_INFINITY, LOCALS_MAX, PRIMITIVES, REPORTS_MAX, Register,
    Scope, TEMPS_MAX,
};
pub use signals::{Primitive, Reads, Signals};

/// Most instructions of a program, and most that one run executes (CCP-compatible datapaths: 256).
pub const INSTRUCTIONS_MAX: usize = 256;
/// Most events of a program.
pub const EVENTS_MAX: usize = 16;
