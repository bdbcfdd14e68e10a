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
    let guarded = "(def (a 0) (b 5))\n(when (> Cwnd b) (:= a (- Cwnd b)))";
    assert_eq!(found(guarded), []);
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
