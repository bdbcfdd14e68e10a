//! What the language's constructs mean when they run.

use ccp_vm::{Fault, Signals};

use crate::flow::Flow;

/// The value of `x` after one run of a program.
fn x_after(text: &str) -> u64 {
    let mut flow = Flow::new(text);
    flow.run_at(0);
    flow.variable("x")
}

/// The value of `x`, which begins with 0, after one run of an event with a = 12, b = 5, yes = true, no = false.
fn x_after_event(event: &str) -> u64 {
    x_after(&format!("(def (x 0) (a 12) (b 5) (yes true) (no false)) {event}"))
}

#[test]
fn operations_have_their_usual_meaning() {
    let table = [
        ("(+ a b)", 17),
        ("(add a b)", 17),
        ("(- a b)", 7),
        ("(sub a b)", 7),
        ("(* a b)", 60),
        ("(mul a b)", 60),
        ("(/ a b)", 2),
        ("(div a b)", 2),
        ("(max a b)", 12),
        ("(min a b)", 5),
        ("(wrapped_max a b)", 12),
        ("(+1 a)", 13),
        ("(+a b)", 17),
        ("(* 1.25 a)", 15),
        ("(* a 0.75)", 9),
        ("(* 0.5 (+ a b))", 8),
        ("(+ (* a b) (- (/ a 2) (min a b)))", 61),
        ("+infinity", 0xffff_ffff),
        ("2147483648", 2_147_483_648),
        ("(:= b 3)", 3),
    ];
    for (expression, value) in table {
        assert_eq!(x_after_event(&format!("(when true (:= x {expression}))")), value, "{expression}");
    }
}

#[test]
fn conditions_have_their_usual_meaning() {
    let table = [
        ("(== a 12)", true),
        ("(eq a b)", false),
        ("(!= a b)", true),
        ("(!= a 12)", false),
        ("(> a b)", true),
        ("(gt a 12)", false),
        ("(< a b)", false),
        ("(lt b a)", true),
        ("(>= a 12)", true),
        ("(>= b a)", false),
        ("(<= a 12)", true),
        ("(<= a b)", false),
        ("(&& yes no)", false),
        ("(and yes yes)", true),
        ("(|| yes no)", true),
        ("(or no no)", false),
        ("(|| yes yes)", true),
        ("(not (|| yes yes))", false),
        ("(not no)", true),
        ("(&& (|| yes yes) (> a b))", true),
        ("yes", true),
        ("no", false),
        ("true", true),
        ("false", false),
        ("Flow.was_timeout", false),
    ];
    for (condition, expected) in table {
        assert_eq!(x_after_event(&format!("(when {condition} (:= x 1))")) == 1, expected, "{condition}");
    }
}

#[test]
fn stateful_operations_read_their_target() {
    let mut flow = Flow::new(
        "(def (x 0) (y 9) (z 9) (yes true))
         (when true (:= x (ewma 7 Ack.bytes_acked)) (:= y (if yes 3)) (:= z (!if yes 3)) (:= Cwnd (if yes 5000)))",
    );
    let acked = |bytes_acked| Signals { bytes_acked, ..Signals::default() };
    flow.run(acked(100)).expect("no fault");
    assert_eq!(["x", "y", "z"].map(|name| flow.variable(name)), [100, 3, 9]);
    flow.run(acked(50)).expect("no fault");
    assert_eq!((flow.variable("x"), flow.cwnd), (85, 5000));
}

#[test]
fn locals_keep_their_value_and_begin_with_0() {
    let text = "(def (x 9)) (when (< Micros 5) (:= count 7)) (when true (:= x count))";
    let mut flow = Flow::new(text);
    flow.run_at(6);
    assert_eq!(flow.variable("x"), 0, "nothing has set it yet");
    let mut flow = Flow::new(text);
    flow.run_at(1);
    flow.run_at(9);
    assert_eq!(flow.variable("x"), 7);
}

#[test]
fn report_variables_come_in_the_order_of_the_text_and_volatile_ones_begin_anew() {
    let mut flow = Flow::new(
        "(def (b 1) (Report (zeta 1) (volatile alpha 2)) (volatile Report.mid 3) (volatile a 4))
         (when true (:= Report.zeta 10) (:= Report.alpha 20) (:= Report.mid 30) (:= a 40) (report))",
    );
    flow.run_at(0);
    assert_eq!(flow.report(), Some(vec![10, 20, 30]));
    let values = ["Report.zeta", "Report.alpha", "Report.mid", "a", "b"].map(|name| flow.variable(name));
    assert_eq!(values, [10, 2, 3, 4, 1]);
}

/// What two reports of `x` have together if the first could not be sent: the first run had 3 bytes acknowledged, 1 loss, an RTT of 200 us,
/// 7 bytes in flight and a timeout; the second 5 bytes, no loss, 300 us, 6 bytes in flight and no timeout.
fn merged(declaration: &str, value: &str) -> u64 {
    let text = format!(
        "(def (n 0) (Report ({declaration}))) (when true (:= n (+ n 1)) (:= Report.x {value}) (report))"
    );
    let mut flow = Flow::new(&text);
    let first = Signals {
        bytes_acked: 3,
        lost_packets: 1,
        rtt_us: 200,
        bytes_in_flight: 7,
        was_timeout: true,
        ..Signals::default()
    };
    flow.run(first).expect("no fault");
    let second = Signals { bytes_acked: 5, rtt_us: 300, bytes_in_flight: 6, ..Signals::default() };
    flow.run(second).expect("no fault");
    let values = flow.report().expect("a report is due");
    assert_eq!(flow.report(), None);
    values[0]
}

#[test]
fn reports_that_wait_are_merged_by_how_their_variables_are_computed() {
    let table = [
        ("volatile x 0", "(+ Report.x Ack.bytes_acked)", 8),
        ("volatile x 10", "(+ Report.x Ack.bytes_acked)", 18),
        ("volatile x 0", "(+ (+ Ack.bytes_acked Report.x) 1)", 10),
        ("volatile x 0", "(min (+ Report.x Ack.bytes_acked) 100)", 8),
        ("volatile x 0", "Ack.lost_pkts_sample", 1),
        ("volatile x 0", "(+ Ack.lost_pkts_sample Ack.bytes_acked)", 9),
        ("volatile x false", "Flow.was_timeout", 1),
        ("volatile x false", "(> Ack.lost_pkts_sample 0)", 1),
        ("volatile x false", "(|| Flow.was_timeout (> Ack.lost_pkts_sample 9))", 1),
        ("volatile x 0", "Flow.rtt_sample_us", 200),
        ("volatile x +infinity", "(min Report.x Flow.rtt_sample_us)", 200),
        ("volatile x 0", "(max Report.x Flow.bytes_in_flight)", 7),
        ("volatile x 0", "Flow.bytes_in_flight", 6),
        ("volatile x 0", "(/ Ack.bytes_acked 2)", 2),
        ("volatile x 0", "(ewma 5 Flow.bytes_in_flight)", 6),
        ("volatile x 0", "n", 2),
        ("x 0", "(+ Report.x Ack.bytes_acked)", 8),
        ("x 0", "Ack.lost_pkts_sample", 0),
    ];
    for (declaration, value, expected) in table {
        assert_eq!(merged(declaration, value), expected, "({declaration}), {value}");
    }
}

#[test]
fn reset_restarts_the_timer() {
    let mut flow =
        Flow::new("(def (Report (at 0))) (when (> Micros 99) (:= Report.at Micros) (reset) (report))");
    flow.run_at(100);
    assert_eq!(flow.report(), Some(vec![100]));
    flow.run_at(199);
    assert_eq!(flow.report(), None);
    flow.run_at(205);
    assert_eq!(flow.report(), Some(vec![105]));
}

#[test]
fn comments_stand_anywhere() {
    let x = x_after(
        "# one\n# two\n(def # three\n (x 0) # four\n)# five\n#\n(when # six (\n true # seven )\n (:= # eight\n x # nine\n 3)# ten\n)\n# end",
    );
    assert_eq!(x, 3);
}

#[test]
fn names_are_whole_words() {
    let x = x_after(
        "(def (minrtt 3) (truest 4) (volatilex 5) (x 0)) (when true (:= x (+ minrtt (+ truest volatilex))))",
    );
    assert_eq!(x, 12);
}

/// Which of the statements of a program with nested events ran, for each of 2^4 conditions; `d` follows the whole.
fn nested(outer: bool, one: bool, two: bool, inner: bool, fallthrough: &str) -> Vec<&'static str> {
    let mut flow = Flow::new(&format!(
        "(def (A false) (B false) (C false) (D false) (s1 0) (s2 0) (s3 0) (s4 0) (s5 0) (s6 0))
         (when A
             (:= s1 1)
             (when B (:= s2 1) (when D (:= s3 1) {fallthrough}) )
             (:= s4 1)
             (when C (:= s5 1)))
         (when true (:= s6 1))"
    ));
    // The guards of an earlier run must not count.
    for name in ["A", "B", "C", "D"] {
        flow.set(name, 1);
    }
    flow.run_at(0);
    for (name, value) in [("A", outer), ("B", one), ("C", two), ("D", inner)] {
        flow.set(name, u64::from(value));
    }
    let names = ["s1", "s2", "s3", "s4", "s5", "s6"];
    names.iter().for_each(|name| flow.set(name, 0));
    flow.run_at(1);
    names.into_iter().filter(|name| flow.variable(name) == 1).collect()
}

#[test]
fn a_when_inside_another_runs_only_if_both_are_true() {
    for mask in 0..16 {
        let [a, b, c, d] = [1, 2, 4, 8].map(|bit| mask & bit != 0);
        for is_falling in [false, true] {
            let ran = nested(a, b, c, d, if is_falling { "(fallthrough)" } else { "" });
            let expected = [
                ("s1", a),
                ("s2", a && b),
                ("s3", a && b && d),
                ("s4", a),
                ("s5", a && c),
                ("s6", !a || (is_falling && b && d)),
            ];
            let expected: Vec<&str> =
                expected.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect();
            assert_eq!(ran, expected, "{a} {b} {c} {d}, fallthrough {is_falling}");
        }
    }
}

#[test]
fn a_nested_event_whose_condition_is_false_cannot_stop_the_run() {
    let text =
        "(def (x 0) (q 0)) (when true (when (> x 0) (:= q (/ 100 x)) (when (> (/ 100 x) 5) (:= q 1))))";
    let mut flow = Flow::new(text);
    flow.run_at(0);
    flow.set("x", 4);
    flow.run_at(1);
    assert_eq!(flow.variable("q"), 1);
    flow.set("x", 0);
    flow.run_at(2);
}

#[test]
fn fallthrough_before_and_between_nested_events_is_kept() {
    for (text, falls) in [
        ("(when true (fallthrough) (when false (:= x 1)))", true),
        ("(when true (when false (:= x 1)) (fallthrough))", true),
        ("(when true (when false (fallthrough)))", false),
        ("(when true (when true (:= x 1)))", false),
    ] {
        let mut flow = Flow::new(&format!("(def (x 0) (y 0)) {text} (when true (:= y 1))"));
        flow.run_at(0);
        assert_eq!(flow.variable("y") == 1, falls, "{text}");
    }
}

#[test]
fn statements_without_effect_may_fault() {
    let mut flow = Flow::new("(def (x 0)) (when true x 3 (/ 1 x))");
    assert_eq!(flow.run(Signals::default()), Err(Fault::DivisionByZero));
}
