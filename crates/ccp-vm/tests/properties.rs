//! Random programs: what is accepted runs as the plain interpreter runs it, and nothing panics.

use ccp_vm::{
    Event, Implicit, Instruction, Invocation, Machine, Opcode, Program, REPORTS_MAX, Register, Scope, Signals,
};
use proptest::prelude::*;

use crate::reference::{Interpreter, Run};

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![0..12_u32, Just(u32::MAX), Just(0x3fff_ffff), any::<u32>()]
}

fn readable() -> impl Strategy<Value = Register> {
    let register = |scope, end| (0..end).prop_map(move |index| Register::new(scope, index));
    prop_oneof![
        value().prop_map(Register::immediate),
        register(Scope::Control, 3_u32),
        register(Scope::Report, 2),
        register(Scope::Local, 2),
        register(Scope::Primitive, 15),
        register(Scope::Implicit, 6),
        register(Scope::Temp, 3),
    ]
}

fn writable() -> impl Strategy<Value = Register> {
    readable().prop_filter("writable", |register| register.is_writable())
}

fn instruction() -> impl Strategy<Value = Instruction> {
    let op = prop::sample::select(Opcode::ALL.to_vec()).prop_filter("a step", |op| *op != Opcode::Def);
    (op, writable(), readable(), readable()).prop_map(|(op, result, left, right)| Instruction {
        op,
        result,
        left,
        right,
    })
}

/// One event: instructions of its condition without the last, which is added, and of its body.
fn event() -> impl Strategy<Value = (Vec<Instruction>, Register, Vec<Instruction>)> {
    let block = |end| prop::collection::vec(instruction(), 0..end);
    (block(3), readable(), block(6))
}

fn program() -> impl Strategy<Value = (Vec<Instruction>, Vec<Event>)> {
    let initial = prop::collection::vec((value(), any::<bool>()), 5);
    (initial, prop::collection::vec(event(), 0..5)).prop_map(|(initial, events)| {
        let variable = |place: usize, is_volatile: bool| match (place, is_volatile) {
            (0..2, true) => Register::new(Scope::VolatileReport, place as u32),
            (0..2, false) => Register::new(Scope::Report, place as u32),
            (_, true) => Register::new(Scope::VolatileControl, place as u32 - 2),
            (_, false) => Register::new(Scope::Control, place as u32 - 2),
        };
        let definitions = initial.iter().enumerate();
        let mut all: Vec<Instruction> = definitions
            .map(|(place, (value, volatile))| Instruction::define(variable(place, *volatile), *value))
            .collect();
        let mut spans = Vec::new();
        for (flag, condition, body) in events {
            let flag_start = all.len() as u32;
            let (flag_count, body_count) = (flag.len() as u32 + 1, body.len() as u32);
            all.extend(flag);
            all.push(Instruction::bind(Register::implicit(Implicit::EventFlag), condition));
            all.extend(body);
            spans.push(Event { flag_start, flag_count, body_start: flag_start + flag_count, body_count });
        }
        (all, spans)
    })
}

fn signals() -> impl Strategy<Value = Signals> {
    let number = || prop_oneof![0..5000_u64, Just(u64::MAX), any::<u64>()];
    (prop::collection::vec(number(), 13), any::<bool>(), 0..100_000_u64).prop_map(
        |(n, was_timeout, now_us)| Signals {
            bytes_acked: n[0],
            packets_acked: n[1],
            bytes_misordered: n[2],
            packets_misordered: n[3],
            ecn_bytes: n[4],
            ecn_packets: n[5],
            lost_packets: n[6],
            now_us,
            was_timeout,
            rtt_us: n[7],
            rate_outgoing: n[8],
            rate_incoming: n[9],
            bytes_in_flight: n[10],
            packets_in_flight: n[11],
            bytes_pending: n[12],
        },
    )
}

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
