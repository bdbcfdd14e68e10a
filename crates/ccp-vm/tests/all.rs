//! Tests of programs: the verifier's rules, the meaning of each instruction, and random programs against a plain interpreter.

mod builder;
mod meaning;
mod properties;
mod random;
mod reference;
mod rules;
mod signals;
