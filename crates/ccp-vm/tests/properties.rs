//! Random programs: what is accepted runs as the plain interpreter runs it, and nothing panics.

use ccp_vm::{Event, Instruction, Invocation, Machine, Program, REPORTS_MAX, Signals};
use proptest::prelude::*;

use crate::random::{program, signals};
use crate::reference::{Interpreter, Run};

/// Runs the same signals, in the order of their times, through both.
fn compare(
    instructions: &[Instruction],
    events: &[Event],
    mut inputs: Vec<Signals>,
) -> Result<usize, TestCaseError> {
    let Ok(program) = Program::verify(instructions, events) else { return Ok(0) };
    inputs.sort_by_key(|signals| signals.now_us);
    let mut machine = Machine::new(&program, 0);
    let mut reference = Interpreter::new(instructions, events, 0);
    let (mut cwnd, mut rate) = (14_480, 0);
    for signals in &inputs {
        let decision = machine.run(&program, &Invocation { signals, cwnd, rate });
        let mut values = [0; REPORTS_MAX];
        let reported = machine.take_report(&program, &mut values).map(|len| values[..len].to_vec());
        let run = decision.map(|decision| Run { cwnd: decision.cwnd, rate: decision.rate, reported });
        prop_assert_eq!(&run, &reference.run(signals, cwnd, rate));
        if let Ok(run) = run {
            (cwnd, rate) = (run.cwnd, run.rate);
        }
    }
    Ok(1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_accepted_runs_as_the_plain_interpreter((instructions, events) in program(), inputs in prop::collection::vec(signals(), 1..8)) {
        compare(&instructions, &events, inputs)?;
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<[u8; 16]>(), 0..40), events in 0..5_usize, inputs in prop::collection::vec(signals(), 1..3)) {
        let events = events.min(bytes.len());
        let spans: Vec<Event> = bytes[..events].iter().map(Event::decode).collect();
        let instructions: Vec<Instruction> = bytes[events..].iter().filter_map(Instruction::decode).collect();
        compare(&instructions, &spans, inputs)?;
    }
}

/// The comparison means something only if many random programs are accepted.
#[test]
fn many_random_programs_are_accepted() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let accepted = (0..400).filter(|_| {
        let (instructions, events) =
            program().new_tree(&mut runner).expect("no filter refuses all").current();
        !events.is_empty() && Program::verify(&instructions, &events).is_ok()
    });
    assert!(accepted.count() > 40);
}
