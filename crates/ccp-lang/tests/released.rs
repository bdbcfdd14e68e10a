//! Random programs that the released compiler of Portus and ours both accept: theirs and ours decide and report the same, run by run.

use ccp_lang::compile;
use ccp_vm::Program;
use portus::lang::compile_and_serialize;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::portus_samples::{installed, same_runs};

const PROGRAMS: u32 = 1_500;
const RUNS: u64 = 12;
const HEAD: &str = "(def (Report (rn 3) (volatile rv 0) (volatile rb false) (ri +infinity)) (n 7) (volatile v 2) (b true))\n";
/// Bytes of an event, and of an instruction (crate `ccp-vm`).
const ITEM: usize = 16;

/// An expression with a number as its value.
fn number() -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        (0..3_000_u32).prop_map(|value| value.to_string()),
        prop::sample::select(vec![
            "+infinity",
            "n",
            "v",
            "Report.rn",
            "Report.rv",
            "Report.ri",
            "Cwnd",
            "Rate",
            "Micros",
            "Ack.bytes_acked",
            "Ack.packets_acked",
            "Ack.lost_pkts_sample",
            "Ack.now",
            "Flow.rtt_sample_us",
            "Flow.rate_incoming",
        ])
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        let names = vec!["+", "add", "-", "sub", "*", "mul", "/", "div", "max", "min", "wrapped_max"];
        (prop::sample::select(names), inner.clone(), inner)
            .prop_map(|(name, left, right)| format!("({name} {left} {right})"))
    })
    .boxed()
}

/// An expression with a truth value.
fn truth() -> BoxedStrategy<String> {
    let names = prop::sample::select(vec![">", "gt", "<", "lt", "==", "eq"]);
    let leaf = prop_oneof![
        1 => prop::sample::select(vec!["true", "false"]).prop_map(str::to_owned),
        4 => (names, number(), number()).prop_map(|(name, left, right)| format!("({name} {left} {right})")),
    ];
    leaf.prop_recursive(2, 4, 2, |inner| {
        let operand = prop_oneof![
            3 => inner,
            1 => prop::sample::select(vec!["b", "Report.rb", "Flow.was_timeout"]).prop_map(str::to_owned),
        ];
        (prop::sample::select(vec!["&&", "and", "||", "or"]), operand.clone(), operand)
            .prop_map(|(name, left, right)| format!("({name} {left} {right})"))
    })
    .boxed()
}

fn statement() -> BoxedStrategy<String> {
    let place =
        || prop::sample::select(vec!["n", "v", "Report.rn", "Report.rv", "Cwnd", "Rate", "Micros", "local"]);
    let kept = || prop::sample::select(vec!["n", "v", "Report.rn", "Report.rv"]);
    prop_oneof![
        6 => (place(), number()).prop_map(|(place, value)| format!("(:= {place} {value})")),
        2 => prop::sample::select(vec!["b", "Report.rb"])
            .prop_flat_map(|place| truth().prop_map(move |value| format!("(bind {place} {value})"))),
        2 => (kept(), prop::sample::select(vec!["if", "!if"]), truth(), number())
            .prop_map(|(place, name, is_so, value)| format!("(:= {place} ({name} {is_so} {value}))")),
        1 => (kept(), 0..=10_u32, number()).prop_map(|(place, part, value)| format!("(:= {place} (ewma {part} {value}))")),
        2 => Just("(report)".to_owned()),
        2 => Just("(fallthrough)".to_owned()),
    ]
    .boxed()
}

fn program() -> impl Strategy<Value = String> {
    let event = (truth(), prop::collection::vec(statement(), 1..5))
        .prop_map(|(condition, body)| format!("(when {condition}\n  {})\n", body.join("\n  ")));
    prop::collection::vec(event, 1..5).prop_map(|events| format!("{HEAD}{}", events.concat()))
}

/// What Portus makes of a text, as the message that it sends; `None`: it refuses the text, or the message breaks a rule of the machine's.
fn of_portus(text: &str) -> Option<Program> {
    let (items, _) = compile_and_serialize(text.as_bytes(), &[]).ok()?;
    let events = text.matches("(when ").count();
    let head = [7, events, items.len() / ITEM - events].map(|word| (word as u32).to_le_bytes()).concat();
    let len = (8 + head.len() + items.len()) as u16;
    let bytes = [&2_u16.to_le_bytes()[..], &len.to_le_bytes(), &1_u32.to_le_bytes(), &head, &items].concat();
    Some(installed(&bytes)?.0)
}

#[test]
fn programs_that_both_compilers_accept_mean_the_same() {
    // The same programs each time.
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    let (mut accepted, mut reports) = (0, 0);
    for _ in 0..PROGRAMS {
        let text = program().new_tree(&mut runner).expect("no filter").current();
        let (Some(theirs), Ok(ours)) = (of_portus(&text), compile(&text)) else { continue };
        accepted += 1;
        reports += same_runs(&theirs, ours.program(), RUNS, &text);
    }
    assert!(accepted > PROGRAMS / 2, "both accept {accepted} of {PROGRAMS}");
    assert!(reports > PROGRAMS as usize / 5, "{reports} reports");
}
