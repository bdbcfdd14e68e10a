//! Random programs with `when` inside `when`, against an interpreter that walks the statements as they are written. What ran, and in which
//! order, shows in one number.

use ccp_lang::compile;
use proptest::prelude::*;

use crate::flow::Flow;

const CONDITIONS: usize = 4;
const RUNS: usize = 4;

#[derive(Clone, Debug)]
enum Statement {
    /// Leaves a trace of this number.
    Mark(u64),
    Fallthrough,
    /// Sets the condition of this number.
    Set(usize, bool),
    When(usize, Vec<Statement>),
}

fn statement() -> impl Strategy<Value = Statement> {
    let leaf = || {
        prop_oneof![
            3 => (1..7_u64).prop_map(Statement::Mark),
            1 => Just(Statement::Fallthrough),
            1 => (0..CONDITIONS, any::<bool>()).prop_map(|(which, value)| Statement::Set(which, value)),
        ]
    };
    leaf().prop_recursive(3, 12, 3, |inner| {
        (0..CONDITIONS, prop::collection::vec(inner, 1..4))
            .prop_map(|(which, body)| Statement::When(which, body))
    })
}

fn text_of(statement: &Statement) -> String {
    match statement {
        Statement::Mark(number) => format!("(:= trace (+ (* trace 7) {number}))"),
        Statement::Fallthrough => "(fallthrough)".to_owned(),
        Statement::Set(which, value) => format!("(:= c{which} {value})"),
        Statement::When(which, body) => {
            format!("(when c{which} {})", body.iter().map(text_of).collect::<Vec<_>>().join(" "))
        }
    }
}

/// The state of the interpreter in one run.
struct Walk<'a> {
    conditions: &'a mut [bool; CONDITIONS],
    trace: u64,
    is_falling: bool,
}

impl Walk<'_> {
    fn body(&mut self, body: &[Statement]) {
        for statement in body {
            match statement {
                Statement::Mark(number) => self.trace = self.trace * 7 + number,
                Statement::Fallthrough => self.is_falling = true,
                Statement::Set(which, value) => self.conditions[*which] = *value,
                Statement::When(which, body) if self.conditions[*which] => self.body(body),
                Statement::When(..) => {}
            }
        }
    }

    /// Outer events: the first true one ends the run, unless something has said fallthrough.
    fn run(&mut self, events: &[(usize, Vec<Statement>)]) {
        for (which, body) in events {
            if self.conditions[*which] {
                self.body(body);
                if !self.is_falling {
                    return;
                }
            }
        }
    }
}

fn events() -> impl Strategy<Value = Vec<(usize, Vec<Statement>)>> {
    prop::collection::vec((0..CONDITIONS, prop::collection::vec(statement(), 1..4)), 1..4)
}

fn program(events: &[(usize, Vec<Statement>)]) -> String {
    let events = events.iter().map(|(which, body)| text_of(&Statement::When(*which, body.clone())));
    let conditions: String = (0..CONDITIONS).map(|which| format!("(c{which} false) ")).collect();
    format!("(def (trace 0) {conditions})\n{}", events.collect::<Vec<_>>().join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nested_events_run_as_they_are_written(events in events(), inputs in prop::array::uniform4(any::<[bool; CONDITIONS]>())) {
        let text = program(&events);
        // Some need more locals or events than there are.
        if compile(&text).is_ok() {
            let mut flow = Flow::new(&text);
            for (run, mut conditions) in inputs.into_iter().enumerate().take(RUNS) {
                for (which, value) in conditions.iter().enumerate() {
                    flow.set(&format!("c{which}"), u64::from(*value));
                }
                flow.set("trace", 0);
                flow.run_at(run as u64);
                let mut walk = Walk { conditions: &mut conditions, trace: 0, is_falling: false };
                walk.run(&events);
                prop_assert_eq!(flow.variable("trace"), walk.trace, "run {} of {}", run, text);
                for (which, value) in conditions.iter().enumerate() {
                    prop_assert_eq!(flow.variable(&format!("c{which}")), u64::from(*value), "c{} in {}", which, text);
                }
            }
        }
    }
}

/// The comparison means something only if many programs with nested events are accepted.
#[test]
fn many_random_programs_are_accepted() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let texts = (0..300).map(|_| program(&events().new_tree(&mut runner).expect("no filter").current()));
    let nested = texts.filter(|text| text.matches("(when").count() > text.matches("\n(when").count());
    let accepted = nested.filter(|text| compile(text).is_ok()).count();
    assert!(accepted > 60, "{accepted} of 300");
}
