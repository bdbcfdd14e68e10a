//! Mistakes: where they are, what was expected, and what is hinted at.

use ccp_lang::{TEXT_MAX, compile};

/// Program, line, column, a part of the message.
const TABLE: &[(&str, usize, usize, &str)] = &[
    ("", 1, 1, "expected `(def ..)` at the beginning, found an empty text"),
    ("(when true (report))", 1, 1, "begins with `(def)`"),
    ("(def)", 1, 1, "at least one event"),
    ("(def)\n(whem true (report))", 2, 1, "`whem`"),
    ("(def)\n(when true)", 2, 1, "at least one statement"),
    ("(def)\n  (when true\n    (report)", 2, 3, "closing bracket"),
    ("(def)(when true (report)))", 1, 26, "one closing bracket too many"),
    ("(def (x))", 1, 6, "`(name initial)`"),
    ("(def (x y)) (when true (report))", 1, 9, "a number, `true`, `false`"),
    ("(def (x 0) (x 1)) (when true (report))", 1, 13, "has a meaning"),
    ("(def (Cwnd 1)) (when true (report))", 1, 7, "has a meaning"),
    ("(def (Ack.foo 1)) (when true (report))", 1, 7, "has a meaning"),
    ("(def (9a 1)) (when true (report))", 1, 7, "no digit and no `__` in front"),
    ("(def (__a 1)) (when true (report))", 1, 7, "`__`"),
    ("(def (a-b 1)) (when true (report))", 1, 7, "letters, digits"),
    ("(def (x -1)) (when true (report))", 1, 9, "0 or more"),
    ("(def (x 1.5)) (when true (report))", 1, 9, "whole number"),
    ("(def (x 0)) (when true (:= x 9a))", 1, 30, "do not begin with a digit"),
    ("(def (x 99999999999999999999)) (when true (report))", 1, 9, "below 4294967295"),
    ("(def (x 1073741823)) (when true (report))", 1, 9, "+infinity"),
    ("(def (Report (a 1)) (Report (b 1))) (when true (report))", 1, 21, "one `(Report ..)`"),
    ("(def (x 0))\n(when x (report))", 2, 7, "compare it, as in `(> x 0)`"),
    ("(def)\n(when (+ 1 2) (report))", 2, 7, "a truth value as a condition"),
    ("(def (x 0))\n(when true (:= x (+ 1 true)))", 2, 23, "a number as an operand of `+`"),
    ("(def (x 0))\n(when true (:= x (&& 1 true)))", 2, 22, "a truth value as an operand of `&&`"),
    ("(def (x 0))\n(when (== Flow.was_timeout true) (report))", 2, 11, "a number as an operand of `==`"),
    ("(def (x 0))\n(when true (:= x (+ 1)))", 2, 18, "2 operands of `+`, found 1"),
    ("(def (x 0))\n(when true (:= x (+ 1 2 3)))", 2, 18, "2 operands of `+`, found 3"),
    ("(def (x 0))\n(when true (:= x (not true false)))", 2, 18, "1 operands of `not`"),
    ("(def (minrtt 0))\n(when true (:= minrtt (min minrt 3)))", 2, 28, "did you mean `minrtt`?"),
    ("(def)\n(when true (:= x Flow.rtt_sample))", 2, 18, "declare it"),
    ("(def)\n(when true (:= x Flow.rtt_sampleus))", 2, 18, "did you mean `Flow.rtt_sample_us`?"),
    ("(def (Report (lost 0)))\n(when (> lost 0) (report))", 2, 10, "did you mean `Report.lost`?"),
    ("(def)\n(when true (:= Ack.now 3))", 2, 16, "read-only"),
    ("(def)\n(when true (:= Report.x 3))", 2, 16, "`Report.x`"),
    ("(def)\n(when true (:= (+ 1 2) 3))", 2, 16, "a variable to set"),
    ("(def (x 0))\n(when true (if true 3))", 2, 12, "on the right of `:=`"),
    ("(def (x 0))\n(when true (:= x (+ 1 (if true 3))))", 2, 23, "on the right of `:=`"),
    ("(def (x 0))\n(when true (:= x (ewma 11 3)))", 2, 24, "0 to 10"),
    ("(def (x 0))\n(when true (:= x (* 1.25 1.5)))", 2, 26, "one factor may be"),
    ("(def (x 0))\n(when true (:= x (/ 1.25 x)))", 2, 21, "only be a factor of `*`"),
    ("(def (x 0))\n(when true (:= x (* 1.2345678 x)))", 2, 21, "at most 6 digits"),
    ("(def (x 0))\n(when true (= x 1))", 2, 12, "`==` compares, `:=` sets"),
    ("(def (x 0))\n(when true (:= x (report)))", 2, 18, "the statement `report`"),
    ("(def (x 0))\n(when true ((+ 1 2)))", 2, 12, "an operation in front"),
    ("(def (x 0))\n(when true ())", 2, 12, "an empty list"),
    ("(def (ä 0)) (when true (report))", 1, 7, "letters, digits"),
];

#[test]
fn each_mistake_has_a_place_an_expectation_and_a_hint() {
    for (text, line, column, part) in TABLE {
        let mistakes = compile(text).err().unwrap_or_else(|| panic!("accepted: {text}"));
        let message = mistakes[0].to_string();
        assert_eq!((mistakes[0].line, mistakes[0].column), (*line, *column), "{text}\n{message}");
        assert!(message.contains(part), "{text}\n{message}\nhas no: {part}");
    }
}

#[test]
fn all_mistakes_are_told_in_order() {
    let text = "(def (x 0) (x 1))\n(when true (:= x nope) (:= x (+ 1 2)) (:= y (! 1)))\n(when 3 (report))";
    let places: Vec<_> = compile(text).expect_err("four").iter().map(|m| (m.line, m.column)).collect();
    assert_eq!(places, [(1, 13), (2, 18), (2, 45), (3, 7)]);
}

#[test]
fn bounds_are_mistakes() {
    let many = |count, item: fn(usize) -> String| (0..count).map(item).collect::<String>();
    let cases = [
        (
            format!("(def {}) (when true (report))", many(17, |n| format!("(v{n} 0)"))),
            "at most 16 variables outside",
        ),
        (
            format!("(def (Report {})) (when true (report))", many(17, |n| format!("(v{n} 0)"))),
            "at most 16 report",
        ),
        (format!("(def) (when true {})", many(9, |n| format!("(:= v{n} 0)"))), "at most 8 local"),
        (format!("(def) {}", many(17, |_| "(when true (report))".to_owned())), "at most 16 events"),
        (format!("(def) (when true {})", many(256, |_| "(report)".to_owned())), "at most 256 instructions"),
        (
            format!("(def (x 0)) (when true {})", many(180, |n| format!("(:= x {n})"))),
            "176 different constants",
        ),
        (format!("(def) (when true {})", many(7, |_| "(when true (report))".to_owned())), "hidden locals"),
        (format!("(def) {}1{}", "(".repeat(65), ")".repeat(65)), "at most 64 brackets"),
        ("x".repeat(TEXT_MAX + 1), "65536 bytes"),
    ];
    for (text, part) in cases {
        let mistakes = compile(&text).err().unwrap_or_else(|| panic!("accepted: {text}"));
        assert!(mistakes[0].to_string().contains(part), "{}\nhas no: {part}", mistakes[0]);
    }
}

/// Figures 4 and 6 as they are printed.
#[test]
fn the_papers_brackets_are_counted() {
    let figure4 = "(def (Report (volatile acked 0) (volatile loss 0)))
(when true
  (:= Report.acked (+ Report.acked Ack.bytes_acked))
  (when (> Micros Flow.rtt_sample_us) (report) (reset))";
    let figure6 = "(def (volatile Report.loss 0))
(when true (:= Cwnd (+ Cwnd Ack.bytes_acked)))
(when (> Ack.lost_pkts_sample 0) (report)))";
    let place =
        |text| compile(text).expect_err("as printed").iter().map(|m| (m.line, m.column)).collect::<Vec<_>>();
    assert_eq!((place(figure4), place(figure6)), (vec![(2, 1)], vec![(3, 43)]));
}
