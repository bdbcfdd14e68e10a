//! Where a machine keeps each register: one row of 80 words, and behind it the program's constants. Operands of verified instructions are
//! bytes: below 80 a word of the row, from 80 on a constant.
//!
//! ```text
//! 0..15 signals | 16..22 implicit | 24..32 locals | 32..48 control | 48..64 report | 64..80 temporaries || 80..256 constants
//! ```

use crate::register::{
    CONTROLS_MAX, IMPLICITS, Implicit, LOCALS_MAX, PRIMITIVES, REPORTS_MAX, Scope, TEMPS_MAX,
};

pub const IMPLICIT: usize = 16;
pub const LOCAL: usize = 24;
pub const CONTROL: usize = 32;
pub const REPORT: usize = CONTROL + CONTROLS_MAX;
pub const TEMP: usize = REPORT + REPORTS_MAX;
/// The number of words in the row.
pub const WORDS: usize = TEMP + TEMPS_MAX;
/// All that a byte can name: the row, and the constants.
pub const ROW: usize = 256;
/// Constants of one program at most: what a byte can name above the row.
pub const CONSTANTS_MAX: usize = ROW - WORDS;
/// Variables that definitions give a beginning: control and report variables, side by side.
pub const VARIABLES: usize = TEMP - CONTROL;

const _: () =
    assert!(PRIMITIVES <= IMPLICIT && IMPLICIT + IMPLICITS <= LOCAL && LOCAL + LOCALS_MAX <= CONTROL);
const _: () = assert!(WORDS == 80 && VARIABLES == 32);

/// The word of an implicit register.
pub const fn implicit(which: Implicit) -> usize {
    IMPLICIT + which as usize
}

/// The first word of a scope; 0 for immediates, which have none.
pub const fn base(scope: Scope) -> usize {
    match scope {
        Scope::Primitive | Scope::Immediate => 0,
        Scope::Implicit => IMPLICIT,
        Scope::Local => LOCAL,
        Scope::Control | Scope::VolatileControl => CONTROL,
        Scope::Report | Scope::VolatileReport => REPORT,
        Scope::Temp => TEMP,
    }
}
