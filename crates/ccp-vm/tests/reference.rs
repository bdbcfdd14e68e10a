//! A plain interpreter of installed programs: registers by name, numbers of 128 bits, no resolution of operands. It shares no code with the
//! machine beyond the types of the encoding.

use std::collections::HashMap;

use ccp_vm::{Event, Fault, Instruction, Opcode, Register, Scope, Signals};

/// What one run came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    pub cwnd: u64,
    pub rate: u64,
    pub reported: Option<Vec<u64>>,
}

/// Scope, and index in it; volatile and other variables of one kind share a row.
type Name = (char, u32);

pub struct Interpreter {
    instructions: Vec<Instruction>,
    events: Vec<Event>,
    registers: HashMap<Name, u64>,
    timer_zero: i128,
}

fn name(register: Register) -> Name {
    let scope = match register.scope {
        Scope::Control | Scope::VolatileControl => 'c',
        Scope::Report | Scope::VolatileReport => 'r',
        Scope::Implicit => 'i',
        Scope::Local => 'l',
        Scope::Primitive => 'p',
        Scope::Temp => 't',
        Scope::Immediate => 'n',
    };
    (scope, register.index)
}

impl Interpreter {
    pub fn new(instructions: &[Instruction], events: &[Event], now_us: u64) -> Self {
        let mut interpreter = Self {
            instructions: instructions.to_vec(),
            events: events.to_vec(),
            registers: HashMap::new(),
            timer_zero: i128::from(now_us),
        };
        interpreter.define(|_| true);
        interpreter
    }

    fn definitions(&self) -> Vec<(Register, u64)> {
        let definitions = self.instructions.iter().take_while(|instruction| instruction.op == Opcode::Def);
        let value = |raw: u32| if raw == 0x3fff_ffff { 0xffff_ffff } else { u64::from(raw) };
        definitions.map(|instruction| (instruction.left, value(instruction.right.index))).collect()
    }

    fn define(&mut self, is_wanted: impl Fn(Scope) -> bool) {
        for (register, value) in self.definitions() {
            if is_wanted(register.scope) {
                self.registers.insert(name(register), value);
            }
        }
    }

    pub fn report_len(&self) -> usize {
        self.definitions().iter().filter(|(register, _)| register.scope.is_report()).count()
    }

    fn read(&self, register: Register) -> u64 {
        match register.scope {
            Scope::Immediate => u64::from(register.index),
            _ => self.registers.get(&name(register)).copied().unwrap_or(0),
        }
    }

    fn write(&mut self, register: Register, value: u64, now_us: u64) {
        self.registers.insert(name(register), value);
        if name(register) == ('i', 3) {
            self.timer_zero = i128::from(now_us) - i128::from(value);
        }
    }

    fn execute(&mut self, instruction: Instruction, now_us: u64) -> Result<(), Fault> {
        let old = self.read(instruction.result);
        let (left, right) = (self.read(instruction.left), self.read(instruction.right));
        let (a, b) = (i128::from(left), i128::from(right));
        let number = |wide: i128| {
            if wide < 0 {
                return Err(Fault::Underflow);
            }
            u64::try_from(wide).map_err(|_| Fault::Overflow)
        };
        let value = match instruction.op {
            Opcode::Add => number(a + b)?,
            Opcode::Sub => number(a - b)?,
            Opcode::Mul => number(a.checked_mul(b).unwrap_or(i128::MAX))?,
            Opcode::Div if b == 0 => return Err(Fault::DivisionByZero),
            Opcode::Div => number(a / b)?,
            Opcode::Bind => right,
            Opcode::Equiv => u64::from(a == b),
            Opcode::Gt => u64::from(a > b),
            Opcode::Lt => u64::from(a < b),
            Opcode::Max => number(a.max(b))?,
            Opcode::Min => number(a.min(b))?,
            Opcode::MaxWrap if left == 0 => right,
            Opcode::MaxWrap if right == 0 => left,
            Opcode::MaxWrap => u64::from(later(left as u32, right as u32)),
            Opcode::Ewma if old == 0 => right,
            Opcode::Ewma if left > 10 => return Err(Fault::Underflow),
            Opcode::Ewma => {
                let parts = [number(a * i128::from(old))?, number((10 - a) * b)?];
                number(parts.map(i128::from).iter().sum())? / 10
            }
            Opcode::If if left == 0 => return Ok(()),
            Opcode::NotIf if left != 0 => return Ok(()),
            Opcode::If | Opcode::NotIf => right,
            Opcode::Def => panic!("no event of a verified program has a definition"),
        };
        self.write(instruction.result, value, now_us);
        Ok(())
    }

    fn range(&self, start: u32, count: u32) -> Vec<Instruction> {
        self.instructions[start as usize..(start + count) as usize].to_vec()
    }

    pub fn run(&mut self, signals: &Signals, cwnd: u64, rate: u64) -> Result<Run, Fault> {
        let now_us = signals.now_us;
        for (index, value) in signals.registers().into_iter().enumerate() {
            self.registers.insert(('p', index as u32), value);
        }
        let micros = u64::try_from(i128::from(now_us) - self.timer_zero).unwrap_or(u64::MAX);
        for (index, value) in [0, 0, 0, micros, cwnd, rate].into_iter().enumerate() {
            self.registers.insert(('i', index as u32), value);
        }
        for event in self.events.clone() {
            for instruction in self.range(event.flag_start, event.flag_count) {
                self.execute(instruction, now_us)?;
            }
            if self.registers[&('i', 0)] != 0 {
                for instruction in self.range(event.body_start, event.body_count) {
                    self.execute(instruction, now_us)?;
                }
            }
            if self.registers[&('i', 0)] != 0 && self.registers[&('i', 1)] == 0 {
                break;
            }
        }
        let or = |value: u64, before: u64| if value == 0 { before } else { value };
        let is_reported = self.registers[&('i', 2)] != 0 && self.report_len() > 0;
        let values = |of: &Self| {
            (0..of.report_len()).map(|index| of.read(Register::new(Scope::Report, index as u32))).collect()
        };
        let reported = is_reported.then(|| values(self));
        if is_reported {
            self.define(Scope::is_volatile);
        }
        Ok(Run {
            cwnd: or(self.registers[&('i', 4)], cwnd),
            rate: or(self.registers[&('i', 5)], rate),
            reported,
        })
    }
}

/// The later of two serial numbers, by walking from each to the other around the circle.
fn later(a: u32, b: u32) -> u32 {
    let forward = (i64::from(b) - i64::from(a)).rem_euclid(1 << 32);
    match forward.cmp(&(1 << 31)) {
        std::cmp::Ordering::Less => b,
        std::cmp::Ordering::Equal => a.min(b),
        std::cmp::Ordering::Greater => a,
    }
}
