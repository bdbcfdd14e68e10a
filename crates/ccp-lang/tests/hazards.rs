//! What can stop a run.

use ccp_lang::{HazardKind, compile, hazards};

fn found(text: &str) -> Vec<(usize, HazardKind, String)> {
    let compiled = compile(text).expect("no mistakes");
    hazards(&compiled).into_iter().map(|hazard| (hazard.line, hazard.kind, hazard.operation)).collect()
}

fn body(statements: &str) -> Vec<(usize, HazardKind, String)> {
    found(&format!("(def (a 0) (b 5))\n(when true {statements})"))
}

#[test]
fn what_can_fail_is_named_with_its_line() {
    let divided = [(2, HazardKind::DivisionByZero, "`(/ Cwnd b)`".to_owned())];
    assert_eq!(body("(:= Cwnd (/ Cwnd b))"), divided);
    let below = [(2, HazardKind::BelowZero, "`(- Cwnd Ack.bytes_acked)`".to_owned())];
    assert_eq!(body("(:= Cwnd (- Cwnd Ack.bytes_acked))"), below);
    let over = [(2, HazardKind::Overflow, "`(* Cwnd Rate)`".to_owned())];
    assert_eq!(body("(:= a (/ (* Cwnd Rate) 1000))"), over);
    let shown = hazards(&compile("(def)\n\n(when true (:= Cwnd (/ 1 Rate)))").expect("good"))[0].to_string();
    assert_eq!(shown, "the `when` at line 3: `(/ 1 Rate)` can divide by 0");
}

#[test]
fn what_cannot_fail_is_not() {
    for good in [
        "(:= Cwnd (/ Cwnd 2))",
        "(:= Cwnd (+ Cwnd Ack.bytes_acked))",
        "(:= a (/ (* Ack.bytes_acked b) Cwnd))",
        "(:= a (- Cwnd (min Cwnd b)))",
        "(:= a (- (max Cwnd b) b))",
        "(:= a (/ Rate (max b 1)))",
        "(:= a (- 10 (min 10 b)))",
    ] {
        assert_eq!(body(good), [], "{good}");
    }
}

/// The hazards of `statements` where `condition` holds.
fn under(condition: &str, statements: &str) -> usize {
    found(&format!("(def (a 0) (b 5) (c true))\n(when {condition} {statements})")).len()
}

#[test]
fn a_condition_says_which_of_two_is_greater() {
    let difference = "(:= a (- Cwnd b))";
    for holds in [
        "(> Cwnd b)",
        "(>= Cwnd b)",
        "(< b Cwnd)",
        "(<= b Cwnd)",
        "(== b Cwnd)",
        "(not (< Cwnd b))",
        "(not (not (> Cwnd b)))",
        "(&& c (>= Cwnd b))",
        "(&& (>= Cwnd b) (> a 3))",
        "(not (|| c (< Cwnd b)))",
    ] {
        assert_eq!(under(holds, difference), 0, "{holds}");
    }
    for does_not in [
        "(> b Cwnd)",
        "(<= Cwnd b)",
        "(!= b Cwnd)",
        "(not (> Cwnd b))",
        "(|| c (> Cwnd b))",
        "(not (&& c (< Cwnd b)))",
        "c",
    ] {
        assert_eq!(under(does_not, difference), 1, "{does_not}");
    }
}

#[test]
fn a_condition_bounds_a_divisor() {
    assert_eq!(under("(> Rate 0)", "(:= a (/ Cwnd Rate))"), 0);
    assert_eq!(under("(!= Rate 0)", "(:= a (/ Cwnd Rate))"), 0);
    assert_eq!(under("(>= Rate 0)", "(:= a (/ Cwnd Rate))"), 1);
    let taken = "(def (rtt 100))\n(when true (:= rtt (if (> Flow.rtt_sample_us 0) Flow.rtt_sample_us)) (:= Rate (/ Cwnd rtt)))";
    assert_eq!(found(taken), []);
    let other = taken.replace("(if (>", "(!if (>");
    assert_eq!(found(&other).len(), 1);
}

#[test]
fn what_a_condition_says_ends_with_the_next_write() {
    assert_eq!(under("(>= Cwnd b)", "(:= b (+ b 1)) (:= a (- Cwnd b))"), 1);
    assert_eq!(under("(>= Cwnd b)", "(:= Cwnd (/ Cwnd 2)) (:= a (- Cwnd b))"), 1);
    assert_eq!(under("(>= Cwnd b)", "(:= a (- Cwnd b)) (:= Cwnd (+ Cwnd 1))"), 0);
    assert_eq!(under("true", "(:= a (min Cwnd b)) (:= Cwnd 1) (:= b (- Cwnd a))"), 1);
    assert_eq!(under("true", "(:= a (min a b)) (:= b (- b a))"), 0);
    let later = "(def (a 0) (b 5))\n(when (> Cwnd b) (fallthrough))\n(when true (:= a (- Cwnd b)))";
    assert_eq!(found(later).len(), 1, "the first event may be false");
}

#[test]
fn a_when_inside_another_knows_both_conditions() {
    let difference = "(:= a (- Cwnd b))";
    assert_eq!(under("true", &format!("(when (>= Cwnd b) {difference})")), 0);
    assert_eq!(under("(>= Cwnd b)", &format!("(when c {difference}) (:= a (- Cwnd b))")), 0);
    assert_eq!(under("true", &format!("(when (>= Cwnd b) (:= c false)) {difference}")), 1);
    assert_eq!(under("(>= Cwnd b)", &format!("(when c (:= Cwnd 1)) {difference}")), 1);
}

#[test]
fn a_variable_that_falls_reaches_zero() {
    let text =
        "(def (a 1000000))\n(when (> a 0) (:= a (- a 1)) (fallthrough))\n(when true (:= Cwnd (/ Cwnd a)))";
    assert_eq!(found(text), [(3, HazardKind::DivisionByZero, "`(/ Cwnd a)`".to_owned())]);
}

#[test]
fn what_grows_by_another_that_grows_counts_as_wide() {
    let text = "(def (a 0) (b 0) (d 0))\n(when true (:= d (* b b)) (:= b a) (:= a (+ a Ack.bytes_acked)))";
    assert_eq!(found(text), [(2, HazardKind::Overflow, "`(* b b)`".to_owned())]);
}

#[test]
fn a_variable_that_grows_without_bound_counts_as_wide() {
    let text = "(def (a 0))\n(when true (:= a (+ a Ack.bytes_acked)) (:= Cwnd (* a a)))";
    assert_eq!(found(text), [(2, HazardKind::Overflow, "`(* a a)`".to_owned())]);
    let small = "(def (a 0))\n(when true (:= a (min 100 (+ a 1))) (:= Cwnd (+ 1 (* a a))))";
    assert_eq!(found(small), []);
}

#[test]
fn the_papers_figures_have_none() {
    for text in [
        include_str!("programs/figure2.ccp"),
        include_str!("programs/figure4.ccp"),
        include_str!("programs/figure6.ccp"),
    ] {
        assert_eq!(found(text), []);
    }
}
