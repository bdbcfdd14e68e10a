//! What one invocation of a program costs in instructions, from the acknowledgement to the decision: fixed work for callgrind.
//! `cargo xtask instructions` runs it.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A measurement prints, and panics when it cannot be made.

use base::SeqNumber;
use ccp_vm::{Bounds, Builder, Changes, Primitive, Program};
use flow::{Echo, FlowProgram, Sending, Situation, Start};
use std::hint::black_box;
use std::sync::Arc;

const MSS: u32 = 1448;
const RUNS: u32 = 10_000;
const SRTT_US: u32 = 10_000;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("figure2") => figure_2(invocation),
        Some("figure2-run") => figure_2(told_before),
        _ => println!("one of: figure2, figure2-run; see the head of the source"),
    }
}

/// The program of the CCP paper's Figure 2: sums of what was acknowledged and lost, the window by a segment for each round trip, and a report
/// at losses.
fn program() -> Program {
    let mut program = Builder::new();
    let acked = program.volatile_report(0);
    let lost = program.volatile_report(0);
    program.always(|event| {
        let sum = event.add(acked, Primitive::BytesAcked);
        event.set(acked, sum);
        let sum = event.add(lost, Primitive::LostPackets);
        event.set(lost, sum);
        event.fallthrough();
    });
    program.when(|event| event.gt(lost, 0), |event| event.report());
    program.finish().unwrap().verify().unwrap()
}

fn sending(end: SeqNumber, now_us: u32, is_first: bool) -> Sending {
    Sending { end, now_us, is_first, in_flight: 100 * MSS, resolution_us: 0 }
}

/// One segment is acknowledged, the program decides, and one is sent.
#[inline(never)]
fn invocation(program: &mut FlowProgram, at: &Situation, snd_max: SeqNumber) -> Option<ccp_vm::Decision> {
    let is_answered = program.on_ack(at.una, at.acked, snd_max, Echo::None);
    let is_due = program.is_due(at.lost);
    let decision = if is_due && !is_answered { program.run(at) } else { None };
    if program.announces() {
        program.report_taken();
    }
    program.sent(sending(snd_max.plus(MSS), at.now_us as u32, false), SRTT_US);
    decision
}

/// As `invocation`, but only the way from the signals to the decision is counted.
fn told_before(program: &mut FlowProgram, at: &Situation, snd_max: SeqNumber) -> Option<ccp_vm::Decision> {
    program.on_ack(at.una, at.acked, snd_max, Echo::None);
    let decision = invocation_alone(program, at);
    if program.announces() {
        program.report_taken();
    }
    program.sent(sending(snd_max.plus(MSS), at.now_us as u32, false), SRTT_US);
    decision
}

#[inline(never)]
fn invocation_alone(program: &mut FlowProgram, at: &Situation) -> Option<ccp_vm::Decision> {
    program.run(at)
}

fn figure_2(invoke: impl Fn(&mut FlowProgram, &Situation, SeqNumber) -> Option<ccp_vm::Decision>) {
    let start = Start {
        program: Arc::new(program()),
        number: 1,
        bounds: Bounds::of(MSS, 1 << 30, u64::MAX),
        changes: Changes::default(),
    };
    let mut at = Situation {
        now_us: 1_000_000,
        acked: 0,
        delivered: 0,
        lost: 0,
        pipe: 100 * MSS,
        pending: 1 << 20,
        una: SeqNumber(0),
        mss: MSS as u16,
        cwnd: 100 * MSS,
    };
    let mut program = FlowProgram::new(&start, &at, at.una);
    // A hundred segments in flight, one for each 100 us.
    for i in 0..100 {
        program.sent(sending(SeqNumber(MSS * (i + 1)), 990_000 + 100 * i, i == 0), SRTT_US);
    }
    let mut decided = 0;
    for n in 0..RUNS {
        at.now_us += 100;
        at.acked += u64::from(MSS);
        at.delivered = at.acked;
        at.una = at.una.plus(MSS);
        // A loss each hundred segments.
        at.lost = n / 100 * MSS;
        decided += u32::from(invoke(&mut program, black_box(&at), at.una.plus(99 * MSS)).is_some());
    }
    assert_eq!(decided, RUNS);
    println!("{RUNS} invocations");
}
