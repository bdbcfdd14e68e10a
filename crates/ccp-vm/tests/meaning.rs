//! What instructions, events, reports and timers mean.

use ccp_vm::{
    Builder, Decision, Event, Fault, Implicit, Instruction, Invocation, Machine, Opcode, Primitive, Program,
    REPORTS_MAX, Register, Scope, Signals, Variable,
};

const CWND: u64 = 14_480;
const RATE: u64 = 1_000_000;

struct Flow {
    program: Program,
    machine: Machine,
}

impl Flow {
    fn of(program: Builder) -> Self {
        let program = program.finish().expect("small").verify().expect("keeps the rules");
        let machine = Machine::new(&program, 0);
        Self { program, machine }
    }

    fn run(&mut self, signals: Signals) -> Result<Decision, Fault> {
        self.machine.run(&self.program, &Invocation { signals: &signals, cwnd: CWND, rate: RATE })
    }

    fn run_at(&mut self, now_us: u64) -> Result<Decision, Fault> {
        self.run(Signals { now_us, ..Signals::default() })
    }

    fn report(&mut self) -> Option<Vec<u64>> {
        let mut values = [0; REPORTS_MAX];
        let len = self.machine.take_report(&self.program, &mut values)?;
        Some(values[..len].to_vec())
    }
}

/// What one operation writes over a result that held `old`.
fn compute(op: Opcode, old: u64, left: u64, right: u64) -> Result<u64, Fault> {
    let control = |index| Register::new(Scope::Control, index);
    let flag = Instruction::bind(Register::implicit(Implicit::EventFlag), Register::immediate(1));
    let step = Instruction { op, result: control(0), left: control(1), right: control(2) };
    let event = Event { flag_start: 0, flag_count: 1, body_start: 1, body_count: 1 };
    let program = Program::verify(&[flag, step], &[event]).expect("keeps the rules");
    let mut machine = Machine::new(&program, 0);
    for (index, value) in [(0, old), (1, left), (2, right)] {
        assert!(machine.set_control(index, value));
    }
    let signals = Signals::default();
    machine.run(&program, &Invocation { signals: &signals, cwnd: 1, rate: 1 })?;
    Ok(machine.variables()[0])
}

#[test]
fn each_operation_computes_as_documented() {
    const MAX: u64 = u64::MAX;
    let table = [
        (Opcode::Add, 0, 2, 3, Ok(5)),
        (Opcode::Add, 0, MAX, 1, Err(Fault::Overflow)),
        (Opcode::Bind, 9, 2, 3, Ok(3)),
        (Opcode::Div, 0, 7, 2, Ok(3)),
        (Opcode::Div, 0, 7, 0, Err(Fault::DivisionByZero)),
        (Opcode::Equiv, 9, 2, 2, Ok(1)),
        (Opcode::Equiv, 9, 2, 3, Ok(0)),
        (Opcode::Ewma, 0, 7, 50, Ok(50)),
        (Opcode::Ewma, 100, 7, 50, Ok(85)),
        (Opcode::Ewma, 100, 11, 50, Err(Fault::Underflow)),
        (Opcode::Ewma, MAX, 7, 50, Err(Fault::Overflow)),
        (Opcode::Gt, 9, 3, 2, Ok(1)),
        (Opcode::Gt, 9, 2, 2, Ok(0)),
        (Opcode::If, 9, 2, 3, Ok(3)),
        (Opcode::If, 9, 0, 3, Ok(9)),
        (Opcode::Lt, 9, 2, 3, Ok(1)),
        (Opcode::Lt, 9, 3, 3, Ok(0)),
        (Opcode::Max, 0, 2, 3, Ok(3)),
        (Opcode::MaxWrap, 0, 5, 0xffff_fff0, Ok(5)),
        (Opcode::MaxWrap, 0, 0xffff_fff0, 5, Ok(5)),
        (Opcode::MaxWrap, 0, 0, 5, Ok(5)),
        (Opcode::MaxWrap, 0, 5, 0, Ok(5)),
        (Opcode::MaxWrap, 0, 7, 5, Ok(7)),
        (Opcode::MaxWrap, 0, 1, 0x8000_0001, Ok(1)),
        (Opcode::MaxWrap, 0, 0x8000_0001, 1, Ok(1)),
        (Opcode::Min, 0, 2, 3, Ok(2)),
        (Opcode::Mul, 0, 6, 7, Ok(42)),
        (Opcode::Mul, 0, 1 << 32, 1 << 32, Err(Fault::Overflow)),
        (Opcode::NotIf, 9, 2, 3, Ok(9)),
        (Opcode::NotIf, 9, 0, 3, Ok(3)),
        (Opcode::Sub, 0, 3, 2, Ok(1)),
        (Opcode::Sub, 0, 2, 3, Err(Fault::Underflow)),
    ];
    for (op, old, left, right, expected) in table {
        assert_eq!(compute(op, old, left, right), expected, "{op:?} of {old}, {left}, {right}");
    }
}

#[test]
fn the_first_true_event_ends_the_run() {
    let mut program = Builder::new();
    let (a, b) = (program.control(0), program.control(0));
    program.when(|e| e.gt(Primitive::BytesAcked, 10), |e| e.set(a, 1));
    program.when(|e| e.gt(Primitive::BytesAcked, 0), |e| e.set(b, 1));
    let mut flow = Flow::of(program);
    flow.run(Signals { bytes_acked: 5, ..Signals::default() }).expect("no fault");
    assert_eq!(flow.machine.variables()[..2], [0, 1]);
    flow.run(Signals { bytes_acked: 11, ..Signals::default() }).expect("no fault");
    assert_eq!(flow.machine.variables()[..2], [1, 1]);
}

/// libccp: one fallthrough holds for the rest of the run, and for no later run.
#[test]
fn fallthrough_is_sticky_within_a_run() {
    let mut program = Builder::new();
    let (a, b, c) = (program.control(0), program.control(0), program.control(0));
    program.when(
        |e| e.gt(Primitive::BytesAcked, 0),
        |e| {
            e.set(a, 1);
            e.fallthrough();
        },
    );
    program.always(|e| e.set(b, 1));
    program.always(|e| e.set(c, 1));
    let mut flow = Flow::of(program);
    flow.run_at(0).expect("no fault");
    assert_eq!(flow.machine.variables()[..3], [0, 1, 0], "nothing has said fallthrough");
    flow.run(Signals { bytes_acked: 1, ..Signals::default() }).expect("no fault");
    assert_eq!(flow.machine.variables()[..3], [1, 1, 1]);
}

#[test]
fn a_report_shows_the_end_of_the_run_and_resets_volatile_variables() {
    let mut program = Builder::new();
    let acked = program.volatile_report(7);
    let total = program.report_variable(0);
    program.always(|e| {
        e.report();
        let sum = e.add(acked, Primitive::BytesAcked);
        e.set(acked, sum);
        let sum = e.add(total, Primitive::BytesAcked);
        e.set(total, sum);
    });
    let mut flow = Flow::of(program);
    let acked = |bytes_acked| Signals { bytes_acked, ..Signals::default() };
    flow.run(acked(100)).expect("no fault");
    assert_eq!(flow.report(), Some(vec![107, 100]), "the statements behind `report` count");
    assert_eq!(flow.report(), None, "a report is taken once");
    flow.run(acked(50)).expect("no fault");
    assert_eq!(flow.report(), Some(vec![57, 150]));
}

#[test]
fn a_report_that_is_not_taken_is_merged_with_the_next() {
    let mut program = Builder::new();
    let acked = program.volatile_report(0);
    program.always(|e| {
        let sum = e.add(acked, Primitive::BytesAcked);
        e.set(acked, sum);
        e.report();
    });
    let mut flow = Flow::of(program);
    for bytes_acked in [1, 10, 100] {
        flow.run(Signals { bytes_acked, ..Signals::default() }).expect("no fault");
    }
    assert_eq!(flow.report(), Some(vec![111]));
}

#[test]
fn a_program_without_report_variables_never_reports() {
    let mut program = Builder::new();
    program.always(|e| e.report());
    let mut flow = Flow::of(program);
    flow.run_at(0).expect("no fault");
    assert!(!flow.machine.is_report_due(), "a report of no values means that the flow is closed");
}

#[test]
fn a_fault_applies_nothing_and_is_counted() {
    let mut program = Builder::new();
    let seen = program.report_variable(0);
    program.always(|e| {
        e.set(seen, 1);
        e.set(Variable::CWND, 99);
        e.report();
        let quotient = e.div(10, Primitive::BytesAcked);
        e.set(seen, quotient);
    });
    let mut flow = Flow::of(program);
    assert_eq!(flow.run_at(0), Err(Fault::DivisionByZero));
    assert_eq!((flow.machine.faults(), flow.machine.is_report_due()), (1, false));
    assert_eq!(flow.machine.variables()[16], 1, "registers keep what was written before");
    let decision = flow.run(Signals { bytes_acked: 5, ..Signals::default() });
    assert_eq!(decision, Ok(Decision { cwnd: 99, rate: RATE }));
    assert_eq!(flow.report(), Some(vec![2]));
    assert_eq!(flow.machine.faults(), 1);
}

#[test]
fn window_and_rate_begin_as_the_flows_own_and_0_changes_nothing() {
    let mut program = Builder::new();
    program.always(|e| {
        let sum = e.add(Variable::CWND, Primitive::BytesAcked);
        e.set(Variable::CWND, sum);
        e.set(Variable::RATE, 0);
    });
    let mut flow = Flow::of(program);
    for _ in 0..2 {
        let decision = flow.run(Signals { bytes_acked: 5, ..Signals::default() });
        assert_eq!(decision, Ok(Decision { cwnd: CWND + 5, rate: RATE }), "not a sum over runs");
    }
}

#[test]
fn the_timer_runs_from_where_it_was_set() {
    let mut program = Builder::new();
    let (seen, at) = (program.report_variable(0), program.control(0));
    program.when(
        |e| e.gt(Variable::MICROS, 100),
        |e| {
            e.set(Variable::MICROS, at);
            e.set(seen, Variable::MICROS);
            e.report();
        },
    );
    let mut flow = Flow::of(program);
    flow.run_at(100).expect("no fault");
    assert!(!flow.machine.is_report_due());
    flow.run_at(150).expect("no fault");
    assert_eq!(flow.report(), Some(vec![0]), "what a run sets it reads");
    assert!(flow.machine.set_control(0, 40));
    flow.run_at(250).expect("no fault");
    assert!(!flow.machine.is_report_due(), "100 us after the reset");
    flow.run_at(251).expect("no fault");
    assert_eq!(flow.report(), Some(vec![40]));
    flow.run_at(311).expect("no fault");
    assert!(!flow.machine.is_report_due(), "40 + 60 us");
    flow.run_at(312).expect("no fault");
    assert!(flow.machine.is_report_due());
}

#[test]
fn another_program_begins_from_its_own_definitions() {
    let counting = |initial| {
        let mut program = Builder::new();
        let count = program.report_variable(initial);
        program.always(|e| {
            let next = e.add(count, 1);
            e.set(count, next);
            e.report();
        });
        program
    };
    let mut flow = Flow::of(counting(10));
    flow.run_at(5).expect("no fault");
    flow.program = counting(20).finish().expect("small").verify().expect("keeps the rules");
    flow.machine.start(&flow.program, 5);
    assert_eq!(flow.report(), None, "the report of the old program is gone");
    flow.run_at(5).expect("no fault");
    assert_eq!(flow.report(), Some(vec![21]));
}

#[test]
fn infinity_is_what_agents_expect() {
    for raw in [u32::MAX, 0x3fff_ffff] {
        let mut program = Builder::new();
        let least = program.report_variable(raw);
        program.always(|e| {
            let rtt = e.min(least, Primitive::RttSample);
            e.set(least, rtt);
            e.report();
        });
        let mut flow = Flow::of(program);
        flow.run_at(0).expect("no fault");
        assert_eq!(flow.report(), Some(vec![0xffff_ffff]), "no sample yet");
        flow.run(Signals { rtt_us: 300, ..Signals::default() }).expect("no fault");
        assert_eq!(flow.report(), Some(vec![300]));
    }
}
