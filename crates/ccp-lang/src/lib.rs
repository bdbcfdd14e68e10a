//! The compiler of CCP's language (CCP paper, section 4.1): from text to the instructions that an INSTALL carries. It runs nothing and reads
//! no files. Agents and `towpath cc` need it; a datapath never parses text.
//!
//! ```text
//! text --lexer--> words and brackets --tree--> lists --compile--> Instruction, Event --ccp_vm--> Program
//! ```
//! # The language
//! ```text
//! program    := ( def declaration* ) event+                      # a comment, anywhere, to the end of the line
//! declaration:= ( [volatile] name initial ) | ( Report ( [volatile] name initial )+ )
//! event      := ( when condition statement+ )
//! statement  := ( := name value ) | ( report ) | ( fallthrough ) | ( reset ) | ( when condition statement+ ) | value
//! value      := number | +infinity | true | false | name | ( operation value value ) | ( not value )
//! operation  := + - * / max min wrapped_max   == != < > <= >=   && ||     (or: add sub mul div  eq lt gt  and or)
//! := also takes ( if condition value ), ( !if condition value ), ( ewma tenths value )
//! ```
//! Names: signals (`Ack.bytes_acked`, `Flow.rtt_sample_us`, ..), `Report.x`, declared variables, `Cwnd`, `Rate`, `Micros`. A name that is
//! first set in an event is a local variable, 0 at the beginning.
//!
//! That is what Portus 0.6 to 0.9 accepts, and what the CCP paper shows beyond it: `>=`, `<=`, `!=`, `not`, `(reset)`, nested `when`, a bare
//! truth value as a condition, `Timer.Micros`, and decimal factors such as `(* 1.25 x)`. Programs that both accept mean the same. Not
//! accepted, though Portus does not complain: reading a name that nothing has set, a variable that begins with a name, two variables of one
//! name.
//!
//! # Bounds
//! Text of at most [`TEXT_MAX`] bytes, brackets [`DEPTH_MAX`] deep, and the bounds of `ccp_vm`: 256 instructions, 16 events, 16 report
//! and 16 control variables, 8 locals, 16 temporaries in one statement. A `when` inside another takes two events and a local; a `when` that has
//! others inside takes two locals.
#![forbid(unsafe_code)]

mod compile;
mod events;
mod expression;
mod facts;
mod hazards;
mod lexer;
mod mistake;
mod names;
mod tree;

pub use compile::{Compiled, compile};
pub use hazards::{Hazard, HazardKind, hazards};
pub use mistake::Mistake;

/// Bytes of a program's text at most.
pub const TEXT_MAX: usize = 64 * 1024;
/// Brackets inside brackets at most.
pub const DEPTH_MAX: usize = 64;
