//! Texts of any kind: a program that a datapath takes, or mistakes that lie in the text. Nothing panics.

use ccp_lang::compile;
use ccp_vm::Program;
use proptest::prelude::*;

const WORDS: [&str; 48] = [
    "(",
    ")",
    "(",
    ")",
    "(def",
    "(when",
    "(Report",
    "volatile",
    "(:=",
    "(+",
    "(-",
    "(*",
    "(/",
    "(if",
    "(!if",
    "(ewma",
    "(not",
    "(>=",
    "(==",
    "(&&",
    "(||",
    "(report)",
    "(fallthrough)",
    "(reset)",
    "x",
    "y",
    "Report.x",
    "Cwnd",
    "Micros",
    "Ack.bytes_acked",
    "Flow.was_timeout",
    "true",
    "false",
    "+infinity",
    "0",
    "1",
    "4294967295",
    "99999999999",
    "1.5",
    "-1",
    "# c\n",
    "\n",
    "__x",
    "ä",
    "(x 0)",
    "(volatile y 1)",
    "(when true",
    "(:= x 1)",
];

const SAMPLES: [&str; 4] = [
    include_str!("programs/reno.ccp"),
    include_str!("programs/cubic.ccp"),
    include_str!("programs/dctcp.ccp"),
    include_str!("programs/bbr.ccp"),
];

fn check(text: &str) -> Result<(), TestCaseError> {
    match compile(text) {
        Ok(compiled) => {
            prop_assert!(
                Program::verify(compiled.instructions(), compiled.events()).as_ref()
                    == Ok(compiled.program())
            );
        }
        Err(mistakes) => {
            prop_assert!(!mistakes.is_empty());
            for mistake in mistakes {
                let line = text.split('\n').nth(mistake.line - 1);
                prop_assert!(
                    line.is_some_and(|line| mistake.column <= line.chars().count() + 1),
                    "{}",
                    mistake
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn words_in_any_order(words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..60), is_program in any::<bool>()) {
        let body = words.join(" ");
        check(&if is_program { format!("(def (x 0) (Report (x 1)))(when true {body})") } else { body })?;
    }

    #[test]
    fn samples_with_a_change(sample in prop::sample::select(&SAMPLES[..]), at in any::<prop::sample::Index>(), len in 0..6_usize, word in prop::sample::select(&WORDS[..])) {
        let places: Vec<usize> = sample.char_indices().map(|(place, _)| place).collect();
        let start = at.index(places.len());
        let end = places.get(start + len).copied().unwrap_or(sample.len());
        check(&format!("{}{word}{}", &sample[..places[start]], &sample[end..]))?;
    }

    #[test]
    fn any_text(text in "\\PC{0,80}") {
        check(&text)?;
    }
}
