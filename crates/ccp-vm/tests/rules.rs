//! The verifier's rules, each broken once.

use ccp_vm::{
    Bounds, Decision, EVENTS_MAX, Event, Field, INSTRUCTIONS_MAX, Implicit, Instruction, Opcode, Program,
    Refusal, Register, Scope,
};

const FLAG: Register = Register::implicit(Implicit::EventFlag);

fn truth() -> Instruction {
    Instruction::bind(FLAG, Register::immediate(1))
}

fn control(index: u32) -> Register {
    Register::new(Scope::Control, index)
}

fn temp(index: u32) -> Register {
    Register::new(Scope::Temp, index)
}

fn report(index: u32) -> Register {
    Register::new(Scope::VolatileReport, index)
}

fn step(op: Opcode, result: Register, left: Register, right: Register) -> Instruction {
    Instruction { op, result, left, right }
}

/// A program of one event: the definitions, a true condition, and `body`.
fn verify(definitions: &[Instruction], body: &[Instruction]) -> Result<Program, Refusal> {
    let all: Vec<Instruction> =
        definitions.iter().copied().chain([truth()]).chain(body.iter().copied()).collect();
    let start = definitions.len() as u32;
    let event =
        Event { flag_start: start, flag_count: 1, body_start: start + 1, body_count: body.len() as u32 };
    Program::verify(&all, &[event])
}

#[test]
fn each_rule_is_kept() {
    let one = Register::immediate(1);
    let bind = Instruction::bind;
    let cases: Vec<(&str, Vec<Instruction>, Vec<Instruction>, Refusal)> = vec![
        (
            "signals",
            vec![],
            vec![bind(Register::new(Scope::Primitive, 0), one)],
            Refusal::ReadOnly { instruction: 1 },
        ),
        ("constants", vec![], vec![bind(Register::immediate(0), one)], Refusal::ReadOnly { instruction: 1 }),
        ("control", vec![], vec![bind(control(16), one)], Refusal::NoSuchRegister { instruction: 1 }),
        (
            "locals",
            vec![],
            vec![bind(Register::new(Scope::Local, 8), one)],
            Refusal::NoSuchRegister { instruction: 1 },
        ),
        (
            "implicit",
            vec![],
            vec![bind(Register::new(Scope::Implicit, 6), one)],
            Refusal::NoSuchRegister { instruction: 1 },
        ),
        (
            "read",
            vec![],
            vec![bind(control(0), Register::new(Scope::Primitive, 15))],
            Refusal::NoSuchRegister { instruction: 1 },
        ),
        ("huge", vec![], vec![bind(control(u32::MAX), one)], Refusal::NoSuchRegister { instruction: 1 }),
        ("temp", vec![], vec![bind(control(0), temp(3))], Refusal::UnwrittenTemp { instruction: 1, temp: 3 }),
        (
            "kept temp",
            vec![],
            vec![step(Opcode::If, temp(3), one, one)],
            Refusal::UnwrittenTemp { instruction: 1, temp: 3 },
        ),
        ("no report", vec![], vec![bind(report(0), one)], Refusal::UndefinedReport { index: 0 }),
        ("gap", vec![Instruction::define(report(1), 0)], vec![], Refusal::UndefinedReport { index: 0 }),
        (
            "twice",
            vec![Instruction::define(control(1), 0); 2],
            vec![],
            Refusal::BadDefinition { instruction: 1 },
        ),
        (
            "volatile and not",
            vec![Instruction::define(report(0), 0), Instruction::define(Register::new(Scope::Report, 0), 0)],
            vec![],
            Refusal::BadDefinition { instruction: 1 },
        ),
        ("other", vec![Instruction::define(temp(1), 0)], vec![], Refusal::BadDefinition { instruction: 0 }),
        ("out", vec![Instruction::define(report(16), 0)], vec![], Refusal::BadDefinition { instruction: 0 }),
        (
            "late",
            vec![],
            vec![Instruction::define(control(1), 0)],
            Refusal::DefinitionInEvent { instruction: 1 },
        ),
    ];
    for (name, definitions, body, refusal) in cases {
        assert_eq!(verify(&definitions, &body), Err(refusal), "{name}");
        assert!(!refusal.to_string().is_empty());
    }
}

#[test]
fn a_temporary_of_a_condition_is_written_for_all_later_and_one_of_a_body_is_not() {
    let add = step(Opcode::Add, temp(0), Register::immediate(1), Register::immediate(1));
    let flag = Instruction::bind(FLAG, Register::immediate(0));
    let set = Instruction::bind(control(0), temp(0));
    // 0: temp in the condition, 1: flag, 2: the temp is used
    let in_condition = Event { flag_start: 0, flag_count: 2, body_start: 0, body_count: 0 };
    let in_body = Event { flag_start: 1, flag_count: 1, body_start: 0, body_count: 1 };
    let user = Event { flag_start: 1, flag_count: 1, body_start: 2, body_count: 1 };
    let program = [add, flag, set];
    assert!(Program::verify(&program, &[in_condition, user]).is_ok());
    let refusal = Refusal::UnwrittenTemp { instruction: 2, temp: 0 };
    assert_eq!(Program::verify(&program, &[in_body, user]), Err(refusal), "the body may not have run");
}

#[test]
fn events_lie_in_the_program_and_write_their_flag() {
    let event = |flag_start, flag_count, body_start, body_count| {
        [Event { flag_start, flag_count, body_start, body_count }]
    };
    let program = [truth()];
    assert!(Program::verify(&program, &event(0, 1, 1, 0)).is_ok());
    for outside in
        [event(0, 1, 1, 1), event(1, 1, 0, 0), event(u32::MAX, u32::MAX, 0, 0), event(0, 1, u32::MAX, 1)]
    {
        assert_eq!(Program::verify(&program, &outside), Err(Refusal::EventOutOfBounds { event: 0 }));
    }
    assert_eq!(Program::verify(&program, &event(0, 0, 0, 1)), Err(Refusal::FlagNotWritten { event: 0 }));
    let other = [Instruction::bind(control(0), Register::immediate(1))];
    assert_eq!(Program::verify(&other, &event(0, 1, 0, 0)), Err(Refusal::FlagNotWritten { event: 0 }));
}

#[test]
fn a_run_is_bounded() {
    let many = vec![truth(); INSTRUCTIONS_MAX + 1];
    let event = |count| Event { flag_start: 0, flag_count: count, body_start: 0, body_count: 0 };
    assert_eq!(Program::verify(&many, &[]), Err(Refusal::TooManyInstructions));
    let all = &many[..INSTRUCTIONS_MAX];
    let program = Program::verify(all, &[event(256)]).expect("256 are allowed");
    assert_eq!(program.cost(), 256);
    assert_eq!(
        Program::verify(all, &[event(128), event(129)]),
        Err(Refusal::TooMuchWork),
        "shared instructions"
    );
    assert_eq!(Program::verify(all, &[event(1); EVENTS_MAX + 1]), Err(Refusal::TooManyEvents));
    assert!(Program::verify(all, &[event(1); EVENTS_MAX]).is_ok());
}

#[test]
fn constants_are_bounded() {
    let body = |count: u32| -> Vec<Instruction> {
        (1..count).map(|value| Instruction::bind(control(0), Register::immediate(value + 1))).collect()
    };
    assert!(verify(&[], &body(176)).is_ok());
    assert_eq!(verify(&[], &body(177)), Err(Refusal::TooManyConstants));
}

#[test]
fn the_encoding_is_read_as_written() {
    let instruction =
        step(Opcode::Sub, report(3), Register::new(Scope::Primitive, 14), Register::immediate(0x0102_0304));
    let bytes = [14, 5, 3, 0, 0, 0, 4, 14, 0, 0, 0, 1, 4, 3, 2, 1];
    assert_eq!(instruction.encode(), bytes);
    assert_eq!(Instruction::decode(&bytes), Some(instruction));
    for (at, bad) in [(0, 15), (1, 9), (6, 255), (11, 9)] {
        let mut broken = bytes;
        broken[at] = bad;
        assert_eq!(Instruction::decode(&broken), None, "byte {at}");
    }
    let event = Event { flag_start: 1, flag_count: 2, body_start: 3, body_count: 0x0102_0304 };
    assert_eq!(event.encode(), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 3, 2, 1]);
    assert_eq!(Event::decode(&event.encode()), event);
}

#[test]
fn decisions_are_moved_to_the_nearest_bound() {
    let bounds = Bounds::of(1448, 100_000, 1000);
    assert_eq!(
        (bounds.rate_min, bounds.rate_max),
        (1448, 1448),
        "a segment for each second is always allowed"
    );
    let bounds = Bounds::of(1448, 100_000, 1_000_000);
    let table = [
        ((0, 0), (0, 0)),
        ((1, 1), (1448, 1448)),
        ((1448, 1448), (1448, 1448)),
        ((50_000, 50_000), (50_000, 50_000)),
        ((u64::MAX, u64::MAX), (100_000, 1_000_000)),
    ];
    for ((cwnd, rate), (kept_cwnd, kept_rate)) in table {
        let kept = Decision { cwnd: kept_cwnd, rate: kept_rate };
        assert_eq!(bounds.apply(Decision { cwnd, rate }), kept, "{cwnd} bytes, {rate} bytes/s");
    }
}

#[test]
fn agents_may_set_control_variables_window_and_rate_only() {
    let field = |scope, index| Field::of(Register::new(scope, index));
    assert_eq!(field(Scope::Control, 15), Some(Field::Control(15)));
    assert_eq!(field(Scope::VolatileControl, 3), Some(Field::Control(3)));
    assert_eq!(field(Scope::Implicit, 4), Some(Field::Cwnd));
    assert_eq!(field(Scope::Implicit, 5), Some(Field::Rate));
    let refused = [
        (Scope::Control, 16),
        (Scope::Implicit, 3),
        (Scope::Report, 0),
        (Scope::VolatileReport, 0),
        (Scope::Temp, 0),
        (Scope::Local, 0),
        (Scope::Primitive, 0),
        (Scope::Immediate, 4),
    ];
    for (scope, index) in refused {
        assert_eq!(field(scope, index), None, "{scope:?} {index}");
    }
}
