//! The builder writes what the compiler of the language would.

use ccp_vm::{
    Builder, Field, Flag, Implicit, Instruction, Opcode, Primitive, Refusal, Register, Scope, Variable,
};

#[test]
fn an_event_is_its_condition_and_its_body() {
    let mut program = Builder::new();
    let count = program.volatile_report(3);
    program.when(|e| e.gt(count, 5), |e| e.report());
    let source = program.finish().expect("small");
    let count = Register::new(Scope::VolatileReport, 0);
    let temp = Register::new(Scope::Temp, 0);
    let implicit = Register::implicit;
    let expected = [
        Instruction::define(count, 3),
        Instruction { op: Opcode::Gt, result: temp, left: count, right: Register::immediate(5) },
        Instruction::bind(implicit(Implicit::EventFlag), temp),
        Instruction::bind(implicit(Implicit::Report), Register::immediate(1)),
    ];
    assert_eq!(source.instructions(), expected);
    let [event] = source.events() else { panic!("one event") };
    assert_eq!((event.flag_start, event.flag_count, event.body_start, event.body_count), (1, 2, 3, 1));
    assert!(source.verify().is_ok());
}

#[test]
fn a_value_belongs_to_its_event() {
    let mut program = Builder::new();
    let variable = program.local();
    let mut kept = None;
    program.always(|e| kept = Some(e.add(1, 2)));
    program.always(|e| e.set(variable, kept.expect("the first event ran")));
    assert_eq!(program.finish().map(drop), Err(Refusal::StaleValue));
}

#[test]
fn too_much_is_refused() {
    let mut program = Builder::new();
    for _ in 0..17 {
        program.always(|_| {});
    }
    assert_eq!(program.finish().map(drop), Err(Refusal::TooManyEvents));
    let mut program = Builder::new();
    program.always(|e| (0..256).for_each(|_| e.report()));
    assert_eq!(program.finish().map(drop), Err(Refusal::TooManyInstructions));
    let mut program = Builder::new();
    program.always(|e| {
        (0..17).for_each(|_| {
            e.add(1, 1);
        });
    });
    let refusal = program.finish().expect("short").verify().map(drop);
    assert_eq!(refusal, Err(Refusal::NoSuchRegister { instruction: 17 }), "17 temporaries");
}

#[test]
fn flags_are_conditions() {
    let mut program = Builder::new();
    program.when(
        |e| {
            let lost = e.gt(Primitive::LostPackets, 0);
            let calm = e.not(Flag::WAS_TIMEOUT);
            let both = e.and(lost, calm);
            e.or(both, Flag::WAS_TIMEOUT)
        },
        |e| {
            e.set_if(Flag::WAS_TIMEOUT, Variable::CWND, 1448);
            e.average(Variable::RATE, 7, Primitive::RateIncoming);
        },
    );
    assert!(program.finish().expect("small").verify().is_ok());
    assert_eq!((Variable::CWND.field(), Variable::RATE.field()), (Some(Field::Cwnd), Some(Field::Rate)));
    assert_eq!(Variable::MICROS.field(), None);
}
