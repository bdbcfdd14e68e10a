//! What a program is compiled to.

use ccp_lang::compile;
use ccp_vm::{Event, Field, Implicit, Instruction, Opcode, Register, Scope};

#[test]
fn definitions_come_first_by_name_then_the_events() {
    let text =
        "(def (b 1) (Report (z 2) (volatile a 3))) (when (> (+ b 1) 5) (:= Report.z (* b b)) (report))";
    let compiled = compile(text).expect("no mistake");
    let register = Register::new;
    let (z, a, b) =
        (register(Scope::Report, 0), register(Scope::VolatileReport, 1), register(Scope::Control, 0));
    let temp = register(Scope::Temp, 0);
    let step = |op, result, left, right| Instruction { op, result, left, right };
    let expected = [
        Instruction::define(a, 3),
        Instruction::define(z, 2),
        Instruction::define(b, 1),
        step(Opcode::Add, temp, b, Register::immediate(1)),
        step(Opcode::Gt, Register::implicit(Implicit::EventFlag), temp, Register::immediate(5)),
        step(Opcode::Mul, z, b, b),
        Instruction::bind(Register::implicit(Implicit::Report), Register::immediate(1)),
    ];
    assert_eq!(compiled.instructions(), expected);
    assert_eq!(compiled.events(), [Event { flag_start: 3, flag_count: 2, body_start: 5, body_count: 2 }]);
    assert_eq!(compiled.reports().collect::<Vec<_>>(), ["z", "a"]);
    assert_eq!((compiled.field("b"), compiled.field("Cwnd")), (Some(Field::Control(0)), Some(Field::Cwnd)));
    assert_eq!(
        (compiled.field("Report.z"), compiled.field("none"), compiled.field("Micros")),
        (None, None, None)
    );
    assert_eq!(compiled.program().report_len(), 2);
}

#[test]
fn temporaries_are_used_again() {
    let sum = (0..60).fold("1".to_owned(), |sum, _| format!("(+ {sum} 1)"));
    assert!(compile(&format!("(def (x 0)) (when true (:= x {sum}))")).is_ok(), "deep on the left");
    let deep = |depth| (0..depth).fold("1".to_owned(), |sum, _| format!("(+ (+ 1 1) {sum})"));
    assert!(compile(&format!("(def (x 0)) (when true (:= x {}))", deep(15))).is_ok());
    let mistakes =
        compile(&format!("(def (x 0)) (when true (:= x {}))", deep(17))).expect_err("17 at a time");
    assert!(mistakes[0].expected.contains("16 intermediate"), "{}", mistakes[0]);
}
