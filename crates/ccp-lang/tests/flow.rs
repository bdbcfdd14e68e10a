//! A flow in these tests: a compiled program and its machine.

use ccp_lang::{Compiled, Mistake, compile};
use ccp_vm::{Decision, Fault, Field, Invocation, Machine, REPORTS_MAX, Signals};

pub struct Flow {
    compiled: Compiled,
    machine: Machine,
    pub cwnd: u64,
    pub rate: u64,
}

fn all(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|mistake| format!("{mistake}\n")).collect()
}

impl Flow {
    pub fn new(text: &str) -> Self {
        let compiled = compile(text).unwrap_or_else(|mistakes| panic!("{}{text}", all(&mistakes)));
        let machine = Machine::new(compiled.program(), 0);
        Self { compiled, machine, cwnd: 14_480, rate: 1_000_000 }
    }

    /// Runs the program once; the next run begins with the window and rate that this one decides.
    pub fn run(&mut self, signals: Signals) -> Result<Decision, Fault> {
        let input = Invocation { signals: &signals, cwnd: self.cwnd, rate: self.rate };
        let decision = self.machine.run(self.compiled.program(), &input)?;
        (self.cwnd, self.rate) = (decision.cwnd, decision.rate);
        Ok(decision)
    }

    pub fn run_at(&mut self, now_us: u64) {
        self.run(Signals { now_us, ..Signals::default() }).expect("no fault");
    }

    /// The value of a declared variable.
    pub fn variable(&self, name: &str) -> u64 {
        let register = self.compiled.register(name).unwrap_or_else(|| panic!("no variable {name}"));
        let row = if register.scope.is_report() { 16 } else { 0 };
        self.machine.variables()[row + register.index as usize]
    }

    pub fn set(&mut self, name: &str, value: u64) {
        let Some(Field::Control(index)) = self.compiled.field(name) else { panic!("no variable {name}") };
        assert!(self.machine.set_control(index, value));
    }

    pub fn report(&mut self) -> Option<Vec<u64>> {
        let mut values = [0; REPORTS_MAX];
        let len = self.machine.take_report(self.compiled.program(), &mut values)?;
        Some(values[..len].to_vec())
    }

    /// A named value of a report.
    pub fn reported(&mut self, name: &str) -> Option<u64> {
        let index = self.compiled.reports().position(|report| report == name).expect("a report variable");
        self.report().map(|values| values[index])
    }
}
