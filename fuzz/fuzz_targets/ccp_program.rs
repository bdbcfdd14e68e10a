//! Any program in Portus' encoding: refused with a reason, or run within its bound whatever the signals are, with the same outcome each time.
#![no_main]

use ccp_vm::{ENCODED_LEN, Event, INSTRUCTIONS_MAX, Instruction, Invocation, Machine, Program, REPORTS_MAX, Signals};
use libfuzzer_sys::fuzz_target;

/// Signals of the run with this number: small, none at all, as large as can be.
fn signals(run: u64) -> Signals {
    let some = [1448, 0, u64::MAX][run as usize % 3];
    Signals {
        bytes_acked: some,
        packets_acked: some.min(3),
        ecn_bytes: some / 2,
        lost_packets: run % 2,
        now_us: run * 1000,
        was_timeout: run == 3,
        rtt_us: some / 7,
        rate_outgoing: some,
        rate_incoming: some / 3,
        bytes_in_flight: some,
        ..Signals::default()
    }
}

fn runs(program: &Program) -> Machine {
    let mut machine = Machine::new(program, 0);
    let (mut cwnd, mut rate) = (14_480, 0);
    for run in 0..6 {
        let signals = signals(run);
        if let Ok(decision) = machine.run(program, &Invocation { signals: &signals, cwnd, rate }) {
            assert_ne!(decision.cwnd, 0, "no run sets the window to 0");
            (cwnd, rate) = (decision.cwnd, decision.rate);
        }
        if run % 2 == 1 {
            let mut values = [0; REPORTS_MAX];
            let len = machine.take_report(program, &mut values);
            assert!(len.is_none_or(|len| len == program.report_len() && len > 0));
        }
    }
    machine
}

fuzz_target!(|data: &[u8]| {
    let Some((count, rest)) = data.split_first() else { return };
    let (blocks, _) = rest.as_chunks::<ENCODED_LEN>();
    let (events, instructions) = blocks.split_at(blocks.len().min(usize::from(*count)));
    let events: Vec<Event> = events.iter().map(Event::decode).collect();
    let instructions: Vec<Instruction> = instructions.iter().filter_map(Instruction::decode).collect();
    let program = match Program::verify(&instructions, &events) {
        Ok(program) => program,
        Err(refusal) => return assert!(!refusal.to_string().is_empty()),
    };
    assert!(program.cost() <= INSTRUCTIONS_MAX && program.report_len() <= REPORTS_MAX);
    assert_eq!(runs(&program), runs(&program));
});
