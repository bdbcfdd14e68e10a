use super::{Environment, Program, Stop, Value};
use proptest::prelude::*;

fn run(code: &str) -> Result<Vec<String>, Stop> {
    let mut environment = Environment::default();
    environment.set("tcpi_snd_cwnd", 10);
    environment.set("tcpi_state", 1);
    Program::parse(code).unwrap().run(&mut environment)?;
    Ok(environment.printed)
}

#[test]
fn assertion_that_holds_passes_and_one_that_does_not_tells_the_values() {
    assert_eq!(run("assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd"), Ok(vec![]));
    let Err(Stop::Assertion(line, what)) = run("\nassert tcpi_snd_cwnd == 7, 'cwnd=%d' % tcpi_snd_cwnd")
    else {
        panic!("10 is not 7");
    };
    assert_eq!(line, 1);
    assert_eq!(what, "assertion failed: tcpi_snd_cwnd == 7; tcpi_snd_cwnd is 10; cwnd=10");
}

#[test]
fn comparisons_chain_and_logic_is_pythons() {
    run("assert 9 <= tcpi_snd_cwnd < 11 and not 11 <= tcpi_snd_cwnd < 12").unwrap();
    run("assert (tcpi_state & 2) == 0 or False").unwrap();
    run("assert tcpi_state in (1, 2) and tcpi_state not in [3]").unwrap();
    run("assert (5 if tcpi_state == 2 else 6) == 6").unwrap();
    run("assert 1 | 2 == 3").unwrap();
}

#[test]
fn division_rounds_as_python_does() {
    assert_eq!(run("print(-7 // 2, -7 % 2, 7 / 2, 2 ** 10, 1 << 4)").unwrap(), ["-4 1 3.5 1024 16"]);
    assert_eq!(
        run("print(min(3, 1, 2), max([1, 4]), abs(-3), int(2.9), round(2.5))").unwrap(),
        ["1 4 3 2 2"]
    );
}

#[test]
fn statements_follow_on_lines_and_behind_semicolons() {
    assert_eq!(run("x = 1; x += 2\nprint(x); print(x * 2)").unwrap(), ["3", "6"]);
    assert_eq!(run("assert 1 == 1, 'a'; \\\n   assert 2 == 2").unwrap(), Vec::<String>::new());
    assert_eq!(run("assert max(1,\n  2) == 2 # two\n# three").unwrap(), Vec::<String>::new());
}

#[test]
fn blocks_are_told_by_their_indent() {
    let code = "x = 5\nif x > 5:\n  print('more')\nelif x == 5:\n  print('five')\n  print('yes')\nelse: print('less')\nprint('end')";
    assert_eq!(run(code).unwrap(), ["five", "yes", "end"]);
    // The lines below a first line behind `%{` may all be indented.
    assert_eq!(run("print(1)\n   print(2)\n   print(3)").unwrap(), ["1", "2", "3"]);
}

#[test]
fn name_without_value_is_told_apart_from_a_failure() {
    assert_eq!(run("assert tcpi_nothing == 1"), Err(Stop::Unknown(0, "tcpi_nothing".into())));
    assert!(matches!(run("x = 1 // 0"), Err(Stop::Error(0, _))));
    assert!(Program::parse("import os").is_err());
    assert!(Program::parse("for i in range(3): print(i)").is_err());
    assert!(Program::parse(&"(".repeat(10_000)).is_err());
    assert!(Program::parse(&format!("{}1", "-".repeat(10_000))).is_err());
    assert!(Program::parse(&format!("{}1", "not ".repeat(10_000))).is_err());
}

#[test]
fn formats_take_their_values_in_order() {
    assert_eq!(run("print('%d of %s, %x%%' % (1, 'two', 255))").unwrap(), ["1 of two, ff%"]);
    assert_eq!(Value::Bool(true).to_string(), "True");
}

proptest! {
    #[test]
    fn any_code_ends(code in "[-a-z0-9 ()\\[\\]+*/%<>=:;,.'\"\\n\\\\#|&~]{0,80}") {
        if let Ok(program) = Program::parse(&code) {
            let _ = program.run(&mut Environment::default());
        }
    }
}
