//! Makes one step of two where a program computes into a temporary and then only assigns it: compilers write every statement so. It changes
//! no meaning: what a temporary holds that no step reads is not seen.

use crate::instruction::Opcode;
use crate::program::{Program, Span, Step};
use crate::slots;

/// Fuses what can be fused, in a program that was verified.
pub fn fuse(program: &mut Program) {
    let before = program.steps;
    let count = usize::from(program.step_count);
    let mut to = 0;
    for event in 0..usize::from(program.event_count) {
        let Span { start, body, end } = program.spans[event];
        let halves = [(start, body, count), (body, end, usize::from(end))];
        let mut bounds = [to as u16; 3];
        for (half, (from, end, readers)) in halves.into_iter().enumerate() {
            let (mut at, end) = (usize::from(from), usize::from(end));
            while at < end {
                let fused = fused(&before, at, end, readers);
                program.steps[to] = fused.unwrap_or(before[at]);
                at += if fused.is_some() { 2 } else { 1 };
                to += 1;
            }
            bounds[half + 1] = to as u16;
        }
        program.spans[event] = Span { start: bounds[0], body: bounds[1], end: bounds[2] };
    }
    program.step_count = to as u16;
}

/// The steps at `at` and behind it as one step, if the second one only assigns the first one's temporary, and no step reads that again:
/// none in this half, which ends at `end`, and none of those behind it up to `readers`, which may see it.
fn fused(steps: &[Step], at: usize, end: usize, readers: usize) -> Option<Step> {
    let (first, second) = (steps[at], steps.get(at + 1).filter(|_| at + 1 < end)?);
    let temp = first.result;
    let is_pair = second.op == Opcode::Bind
        && second.right == temp
        && usize::from(temp) >= slots::TEMP
        && !is_conditional(first);
    let is_read = |step: &Step| {
        step.left == temp || step.right == temp || step.op.is_reading_result() && step.result == temp
    };
    let later = &steps[at + 2..readers];
    let in_half = end - (at + 2);
    let rewritten = later[..in_half].iter().position(|step| step.result == temp && !is_conditional(*step));
    let seen = rewritten.map_or(later, |position| &later[..=position]);
    (is_pair && !seen.iter().any(is_read)).then_some(Step { result: second.result, ..first })
}

/// True for steps that leave their result as it is, or compute it from itself.
const fn is_conditional(step: Step) -> bool {
    step.op.is_reading_result() || matches!(step.op, Opcode::If | Opcode::NotIf)
}
