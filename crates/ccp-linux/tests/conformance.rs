//! One suite for both machines: the random programs of `ccp-vm`'s tests run on its machine and on the kernel's, which the kernel runs for the
//! test (`BPF_PROG_TEST_RUN`). Registers, decisions, reports and faults must be the same. Skipped where programs cannot be loaded.

use crate::random;
use ccp_vm::{Event, Fault, Instruction, Invocation, Machine, Program, REPORTS_MAX, Signals};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

const OBJECT: &[u8] = include_bytes!("../bpf/conformance.bpf.o");
const ONLY: [u8; 4] = [0; 4];
/// Words of a machine, with its reports, and their places.
const CONTROL: usize = 32;
const TEMP: usize = 64;
const REPORT: usize = 256;
const FAULTS_AND_DUE: usize = 274;
const MACHINE_WORDS: usize = 275;

/// The kernel's machine, loaded for this test.
struct Kernel(Object);

/// What one run on it left.
struct Run {
    cwnd: u64,
    rate: u64,
    fault: u64,
    words: Vec<u64>,
}

impl Kernel {
    /// `None`, with a word, where this process may load no programs.
    fn load() -> Option<Self> {
        if let Err(why) = ccp_linux::support() {
            eprintln!("skipped: {why}");
            return None;
        }
        let mut builder = ObjectBuilder::default();
        let open = builder.open_memory(OBJECT).expect("the committed object is whole");
        Some(Self(open.load().expect("the kernel takes the object")))
    }

    fn write(&self, map: &str, value: &[u8]) {
        let map = self.0.maps().find(|known| known.name() == map).expect("a map of the object");
        map.update(&ONLY, value, MapFlags::ANY).expect("the value has the map's size");
    }

    fn read(&self, map: &str) -> Vec<u64> {
        let map = self.0.maps().find(|known| known.name() == map).expect("a map of the object");
        let value =
            map.lookup(&ONLY, MapFlags::ANY).expect("readable").expect("arrays have all their values");
        value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    fn run(&self, signals: &Signals, cwnd: u64, rate: u64, is_start: bool) -> Run {
        let words = signals.registers().into_iter().chain([cwnd, rate, u64::from(is_start)]);
        self.write("inputs", &words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>());
        let mut programs = self.0.progs_mut();
        let program = programs.find(|program| program.name() == "run_once").expect("the object has it");
        let output = program.test_run(ProgramInput::default()).expect("the kernel runs it");
        assert_eq!(output.return_value, 0);
        let [cwnd, rate, fault] = self.read("outputs")[..] else { panic!("three words") };
        Run { cwnd, rate, fault, words: self.read("machines") }
    }
}

fn number_of(fault: Fault) -> u64 {
    match fault {
        Fault::Overflow => 1,
        Fault::Underflow => 2,
        Fault::DivisionByZero => 3,
    }
}

/// Runs the same signals, in the order of their times, on both. Reports are taken after every second run, so that some are merged.
fn compare(
    kernel: &Kernel,
    instructions: &[Instruction],
    events: &[Event],
    mut inputs: Vec<Signals>,
) -> Result<bool, TestCaseError> {
    let Ok(program) = Program::verify(instructions, events) else { return Ok(false) };
    inputs.sort_by_key(|signals| signals.now_us);
    kernel.write("programs", &program.image());
    kernel.write("machines", &[0; 8 * MACHINE_WORDS]);
    let mut machine = Machine::new(&program, inputs[0].now_us);
    let (mut cwnd, mut rate) = (14_480, 0);
    for (turn, signals) in inputs.iter().enumerate() {
        let decision = machine.run(&program, &Invocation { signals, cwnd, rate });
        let run = kernel.run(signals, cwnd, rate, turn == 0);
        match decision {
            Ok(decision) => {
                prop_assert_eq!((run.fault, run.cwnd, run.rate), (0, decision.cwnd, decision.rate));
                (cwnd, rate) = (decision.cwnd, decision.rate);
            }
            Err(fault) => prop_assert_eq!((run.fault, run.cwnd, run.rate), (number_of(fault), cwnd, rate)),
        }
        prop_assert_eq!(&run.words[CONTROL..TEMP], machine.variables());
        let due = u64::from(machine.is_report_due()) << 32 | u64::from(machine.faults());
        prop_assert_eq!(run.words[FAULTS_AND_DUE], due, "faults, and whether a report is due");
        if turn % 2 == 1 && machine.is_report_due() {
            let mut values = [0; REPORTS_MAX];
            let len = machine.take_report(&program, &mut values).expect("a report is due");
            prop_assert_eq!(&run.words[REPORT..REPORT + len], &values[..len]);
            let mut words = run.words;
            words[FAULTS_AND_DUE] &= u64::from(u32::MAX);
            kernel.write("machines", &words.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<u8>>());
        }
    }
    Ok(true)
}

#[test]
fn random_programs_do_the_same_in_the_kernel() {
    let Some(kernel) = Kernel::load() else { return };
    assert_eq!(kernel.read("machines").len(), MACHINE_WORDS);
    let mut accepted = 0;
    let mut runner = TestRunner::new(Config { cases: 10_000, ..Config::default() });
    let inputs = (random::program(), prop::collection::vec(random::signals(), 1..8));
    let mut deterministic = TestRunner::deterministic();
    for _ in 0..1000 {
        let ((instructions, events), signals) =
            inputs.new_tree(&mut deterministic).expect("no filter refuses all").current();
        accepted += u32::from(
            compare(&kernel, &instructions, &events, signals).expect("the same") && !events.is_empty(),
        );
    }
    assert!(accepted > 60, "{accepted} of 1000 random programs are accepted: too few to compare");
    runner
        .run(&inputs, |((instructions, events), signals)| {
            compare(&kernel, &instructions, &events, signals).map(|_| ())
        })
        .expect("both machines do the same");
}

/// The committed programs of `ccp-lang`'s tests, over signals as flows have them.
#[test]
fn published_programs_do_the_same_in_the_kernel() {
    let Some(kernel) = Kernel::load() else { return };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../ccp-lang/tests/programs");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).expect("ccp-lang has programs") {
        let path = entry.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let Ok(compiled) = ccp_lang::compile(&text) else { continue };
        let signals = (0..200_u64).map(|n| Signals {
            bytes_acked: 1448 * (1 + n % 3),
            packets_acked: 1 + n % 3,
            lost_packets: u64::from(n % 50 == 49),
            now_us: 1000 * n,
            bytes_in_flight: 14_480 + n,
            packets_in_flight: 10,
            rate_incoming: 1_000_000 + n,
            rate_outgoing: 1_000_100 + n,
            rtt_us: 10_000 + 100 * (n % 20),
            was_timeout: n % 120 == 119,
            ..Signals::default()
        });
        let done = compare(&kernel, compiled.instructions(), compiled.events(), signals.collect());
        compared += u32::from(done.unwrap_or_else(|why| panic!("{}: {why}", path.display())));
    }
    assert!(compared > 3, "{compared} programs were compared");
}
