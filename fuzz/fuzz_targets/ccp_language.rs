//! Any text as a program: one that a datapath takes, or mistakes that lie in the text.
#![no_main]

use ccp_lang::compile;
use ccp_vm::Program;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match compile(text) {
        Ok(compiled) => {
            let again = Program::verify(compiled.instructions(), compiled.events());
            assert_eq!(again.as_ref(), Ok(compiled.program()));
        }
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            for mistake in mistakes {
                let line = text.split('\n').nth(mistake.line - 1);
                assert!(line.is_some_and(|line| mistake.column <= line.chars().count() + 1), "{mistake}");
            }
        }
    }
});
