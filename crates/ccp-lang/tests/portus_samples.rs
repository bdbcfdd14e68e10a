//! Programs as Portus 0.9.0 compiles them: the messages decode, and mean what our compiler makes of the same text.

use ccp_lang::compile;
use ccp_vm::{Event, Instruction, Invocation, Machine, Program, REPORTS_MAX, Signals};
use ccp_wire::{Message, messages};

/// INSTALL of `programs/figure2.ccp`, without its comment.
const FIGURE_2: &str = "
     0200d4000000000007000000020000000a000000020000000100000003000000
     0500000008000000010000000900000001000000020500000000050000000001
     0000000002050100000005010000000100000000010200000000020000000001
     0100000000070000000005000000000400000000010500000000050000000007
     0000000000070000000005010000000404000000010501000000050100000007
     0000000001020100000002010000000101000000060200000000050100000001
     0000000001020200000002020000000101000000";

/// INSTALL of the program [`MIXED`].
const MIXED_INSTALL: &str = "
     020024020000000007000000030000001e000000050000000100000006000000
     0a000000100000000500000015000000050000001a000000010000001b000000
     03000000020600000000060000000001ffffffff020502000000050200000001
     0000000002050100000005010000000100000000020001000000000100000001
     0100000002000000000000000000000100000000010200000000020000000001
     010000000b07000000000600000000040d000000010600000000060000000007
     000000000a070000000005010000000405000000010501000000050100000007
     000000000500000000000107000000040b000000000700000000050200000004
     0e00000001050200000005020000000700000000060700000000040000000001
     6400000007000100000007000000000100000000010201000000020100000001
     01000000000700000000050200000001000000000c0701000000010200000002
     030000000e070200000000000000000105000000060703000000070100000007
     020000000c020000000007000000000703000000000700000000000000000001
     0300000003070100000007000000000104000000010205000000020500000007
     0100000001020300000002030000000100000000010202000000020200000001
     01000000080200000000020400000001204e0000000700000000020400000004
     00000000090701000000070000000001b80b0000010204000000020400000007
     01000000";

const MIXED: &str = "
(def (Report (rtt +infinity) (volatile top 0) (volatile timeout false)) (rate 0) (armed true))
(when true
    (:= Report.rtt (min Report.rtt Flow.rtt_sample_us))
    (:= Report.top (wrapped_max Report.top Ack.now))
    (:= rate (ewma 7 Flow.rate_incoming))
    (:= Report.timeout (|| Report.timeout Flow.was_timeout))
    (:= armed (if (> Ack.bytes_acked 100) false))
    (fallthrough))
(when (&& (|| Report.timeout false) (> (* 2 Micros) (- rate 5)))
    (:= Rate (/ (+ rate 3) 4))
    (:= Micros 0)
    (report))
(when (< Cwnd 20000)
    (:= Cwnd (max (+ Cwnd Ack.bytes_acked) 3000)))";

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

/// The program of an INSTALL, and the message again as bytes; `None`: a program that breaks a rule of the machine's.
pub fn installed(bytes: &[u8]) -> Option<(Program, Vec<u8>)> {
    let message = messages(bytes).next().expect("one").expect("well formed");
    let Message::Install { program: 7, events, instructions } = message else { panic!("{message:?}") };
    let events: Vec<Event> = events.iter().collect();
    let instructions: Vec<Instruction> = instructions.iter().collect();
    let mut again = Vec::new();
    message.encode(&mut again).expect("short");
    Some((Program::verify(&instructions, &events).ok()?, again))
}

/// Both programs decide and report the same, run by run. The number of their reports.
pub fn same_runs(theirs: &Program, ours: &Program, runs: u64, text: &str) -> usize {
    let mut machines = [theirs, ours].map(|program| Machine::new(program, 0));
    let mut reports = 0;
    for run in 0..runs {
        let signals = Signals {
            bytes_acked: run * 37 % 300,
            lost_packets: u64::from(run % 11 == 0),
            was_timeout: run % 23 == 5,
            rtt_us: run * 91 % 1700,
            rate_incoming: run * 7919 % 100_000,
            now_us: run * 50_000_000,
            ..Signals::default()
        };
        let input = Invocation { signals: &signals, cwnd: 10_000 + run * 100, rate: 5000 };
        let [theirs, ours] = [theirs, ours]
            .into_iter()
            .zip(&mut machines)
            .map(|(program, machine)| {
                let decision = machine.run(program, &input);
                let mut values = [0; REPORTS_MAX];
                let len = machine.take_report(program, &mut values);
                reports += usize::from(len.is_some());
                (decision, len, values)
            })
            .collect::<Vec<_>>()
            .try_into()
            .expect("two");
        assert_eq!(theirs, ours, "run {run} of\n{text}");
    }
    reports / 2
}

#[test]
fn portus_installs_decode_and_mean_the_same() {
    for (hex, text) in [(FIGURE_2, include_str!("programs/figure2.ccp")), (MIXED_INSTALL, MIXED)] {
        let bytes = bytes_of(hex);
        let (theirs, again) = installed(&bytes).expect("keeps the rules");
        assert_eq!(bytes, again);
        let reports = same_runs(&theirs, compile(text).expect("no mistake").program(), 200, text);
        assert!(reports > 5, "{reports} reports");
    }
}
