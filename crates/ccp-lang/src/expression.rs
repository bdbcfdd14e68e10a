//! Expressions and assignments into instructions, the left operand first. Temporaries are a stack: a statement needs as many as its
//! expressions are deep.

use ccp_vm::{INFINITY, Implicit, Instruction, Opcode, Register, Scope, TEMPS_MAX};

use crate::lexer::shown;
use crate::mistake::{Mistake, Place};
use crate::names::{Kind, Known, Names};
use crate::tree::{Call, Node, What};

/// Digits behind the point of a decimal factor at most.
const DECIMALS_MAX: usize = 6;

/// Names and the instructions so far.
#[derive(Default)]
pub struct Code {
    pub names: Names,
    pub instructions: Vec<Instruction>,
    /// Temporaries that hold something now.
    temps: usize,
}

/// What an operation wants and gives.
enum Operation {
    /// One opcode: the kind of its operands, the kind of its result.
    Plain(Opcode, Kind, Kind),
    /// The opposite of a comparison.
    Inverted(Opcode),
}

fn operation(word: &str) -> Option<Operation> {
    use Kind::{Number, Truth};
    use Operation::{Inverted, Plain};
    Some(match word {
        "+" | "add" => Plain(Opcode::Add, Number, Number),
        "-" | "sub" => Plain(Opcode::Sub, Number, Number),
        "*" | "mul" => Plain(Opcode::Mul, Number, Number),
        "/" | "div" => Plain(Opcode::Div, Number, Number),
        "max" => Plain(Opcode::Max, Number, Number),
        "min" => Plain(Opcode::Min, Number, Number),
        "wrapped_max" => Plain(Opcode::MaxWrap, Number, Number),
        "==" | "eq" => Plain(Opcode::Equiv, Number, Truth),
        ">" | "gt" => Plain(Opcode::Gt, Number, Truth),
        "<" | "lt" => Plain(Opcode::Lt, Number, Truth),
        "&&" | "and" => Plain(Opcode::Mul, Truth, Truth),
        "||" | "or" => Plain(Opcode::Add, Truth, Truth),
        ">=" => Inverted(Opcode::Lt),
        "<=" => Inverted(Opcode::Gt),
        "!=" => Inverted(Opcode::Equiv),
        _ => return None,
    })
}

/// Operations that change what their target holds: they stand on the right of `:=` only.
fn stateful(word: &str) -> Option<Opcode> {
    Some(match word {
        "if" => Opcode::If,
        "!if" => Opcode::NotIf,
        "ewma" => Opcode::Ewma,
        _ => return None,
    })
}

impl Code {
    /// The value of an expression in a statement of its own.
    pub fn statement(&mut self, node: &Node<'_>) -> Result<Known, Mistake> {
        self.temps = 0;
        self.value(node)
    }

    /// Writes the value of `node`, which must be a truth value, to `register`.
    pub fn condition(&mut self, node: &Node<'_>, register: Register) -> Result<(), Mistake> {
        let value = self.statement(node)?;
        require(node, value.kind, Kind::Truth, "a condition")?;
        self.write(register, value.register);
        Ok(())
    }

    fn value(&mut self, node: &Node<'_>) -> Result<Known, Mistake> {
        match &node.what {
            What::Word(word) => self.atom(node.place, word),
            What::List(_) => match node.call() {
                Some(call) => self.call(&call),
                None => Err(Mistake::new(node.place, "an operation in front of this list", node.shown())),
            },
        }
    }

    fn atom(&self, place: Place, word: &str) -> Result<Known, Mistake> {
        let known = |value, kind| Known { register: Register::immediate(value), kind };
        match word {
            "true" => return Ok(known(1, Kind::Truth)),
            "false" => return Ok(known(0, Kind::Truth)),
            _ => {}
        }
        match number(place, word)? {
            Some(value) => Ok(known(value, Kind::Number)),
            None => self.names.look_up(word).ok_or_else(|| self.names.unknown(place, word)),
        }
    }

    fn call(&mut self, call: &Call<'_, '_>) -> Result<Known, Mistake> {
        match (call.word, &*call.items) {
            (":=" | "bind", [target, value]) => return self.assign(target, value),
            ("not", [operand]) => return self.not(operand),
            ("*" | "mul", [left, right]) => {
                if let Some(scaled) = self.scaled(left, right)? {
                    return Ok(scaled);
                }
            }
            _ => {}
        }
        let Some(operation) = operation(call.word) else { return Err(no_operation(call)) };
        let [left, right] = &*call.items else { return Err(wrong_count(call, 2)) };
        let (opcode, wanted, given) = match operation {
            Operation::Plain(opcode, wanted, given) => (opcode, wanted, given),
            Operation::Inverted(opcode) => (opcode, Kind::Number, Kind::Truth),
        };
        let base = self.temps;
        let values = [left, right].map(|operand| {
            let value = self.value(operand)?;
            require(operand, value.kind, wanted, &format!("an operand of {}", shown(call.word)))?;
            Ok(value.register)
        });
        let [left, right] = values;
        let register = self.operate(call.place, base, opcode, left?, right?)?;
        if matches!(operation, Operation::Inverted(_)) {
            self.operate(call.place, base, Opcode::Equiv, register, Register::immediate(0))?;
        }
        Ok(Known { register, kind: given })
    }

    fn not(&mut self, operand: &Node<'_>) -> Result<Known, Mistake> {
        let base = self.temps;
        let value = self.value(operand)?;
        require(operand, value.kind, Kind::Truth, "the operand of `not`")?;
        let register =
            self.operate(operand.place, base, Opcode::Equiv, value.register, Register::immediate(0))?;
        Ok(Known { register, kind: Kind::Truth })
    }

    /// `(* 1.25 x)` as `(/ (* x 5) 4)`; `None` if neither factor is a decimal number.
    fn scaled(&mut self, left: &Node<'_>, right: &Node<'_>) -> Result<Option<Known>, Mistake> {
        let (factor, operand) = match (decimal(left), decimal(right)) {
            (Some(factor), None) => (factor, right),
            (None, Some(factor)) => (factor, left),
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Mistake::new(right.place, "a number without a point", right.shown())
                    .hint("one factor may be a decimal number"));
            }
        };
        let [numerator, denominator] = factor?;
        let base = self.temps;
        let value = self.value(operand)?;
        require(operand, value.kind, Kind::Number, "an operand of `*`")?;
        let numerator = Register::immediate(numerator);
        let product = self.operate(operand.place, base, Opcode::Mul, value.register, numerator)?;
        let denominator = Register::immediate(denominator);
        let register = self.operate(operand.place, base, Opcode::Div, product, denominator)?;
        Ok(Some(Known { register, kind: Kind::Number }))
    }

    fn assign(&mut self, target: &Node<'_>, value: &Node<'_>) -> Result<Known, Mistake> {
        let What::Word(name) = target.what else {
            return Err(Mistake::new(target.place, "a variable to set", target.shown()));
        };
        if let Some(inner) = value.call()
            && let Some(opcode) = stateful(inner.word)
        {
            return self.assign_stateful(target.place, name, &inner, opcode);
        }
        let base = self.temps;
        let value = self.value(value)?;
        let variable = self.names.settable(target.place, name, value.kind)?;
        self.write(variable.register, value.register);
        self.temps = base;
        Ok(variable)
    }

    fn assign_stateful(
        &mut self,
        place: Place,
        name: &str,
        inner: &Call<'_, '_>,
        opcode: Opcode,
    ) -> Result<Known, Mistake> {
        let [first, second] = &*inner.items else { return Err(wrong_count(inner, 2)) };
        let base = self.temps;
        let left = self.value(first)?;
        let right = self.value(second)?;
        let is_heavy = left.register.scope == Scope::Immediate && left.register.index > 10;
        if opcode == Opcode::Ewma && is_heavy {
            return Err(Mistake::new(first.place, "a weight of 0 to 10", first.shown())
                .hint("the weight of the old value in tenths"));
        }
        let kind = if opcode == Opcode::Ewma { Kind::Number } else { right.kind };
        let variable = self.names.settable(place, name, kind)?;
        self.instructions.push(Instruction {
            op: opcode,
            result: variable.register,
            left: left.register,
            right: right.register,
        });
        self.temps = base;
        Ok(variable)
    }

    /// Appends an operation that writes temporary `base`, and frees all temporaries above it.
    fn operate(
        &mut self,
        place: Place,
        base: usize,
        op: Opcode,
        left: Register,
        right: Register,
    ) -> Result<Register, Mistake> {
        if base >= TEMPS_MAX {
            let expected = format!("at most {TEMPS_MAX} intermediate results at a time");
            return Err(
                Mistake::new(place, expected, "one more").hint("set a variable to a part of the expression")
            );
        }
        let result = Register::new(Scope::Temp, base as u32);
        self.instructions.push(Instruction { op, result, left, right });
        self.temps = base + 1;
        Ok(result)
    }

    /// Writes `value` to `register`: the operation that made a temporary writes there itself.
    pub fn write(&mut self, register: Register, value: Register) {
        match self.instructions.last_mut() {
            Some(last) if value.scope == Scope::Temp && last.result == value => last.result = register,
            _ => self.instructions.push(Instruction::bind(register, value)),
        }
    }

    /// Sets one of the flags that end a run or ask for a report.
    pub fn raise(&mut self, flag: Implicit) {
        self.write(Register::implicit(flag), Register::immediate(1));
    }
}

fn require(node: &Node<'_>, kind: Kind, wanted: Kind, what: &str) -> Result<(), Mistake> {
    if kind == wanted {
        return Ok(());
    }
    let (name, found, hint) = match wanted {
        Kind::Number => {
            ("a number", "truth value", "`(if condition number)` on the right of `:=` makes one of it")
        }
        Kind::Truth => ("a truth value", "number", "compare it, as in `(> x 0)`"),
    };
    Err(Mistake::new(node.place, format!("{name} as {what}"), format!("the {found} {}", node.shown()))
        .hint(hint))
}

fn wrong_count(call: &Call<'_, '_>, wanted: usize) -> Mistake {
    let found = format!("{} of them", call.items.len());
    Mistake::new(call.place, format!("{wanted} operands of {}", shown(call.word)), found)
}

fn no_operation(call: &Call<'_, '_>) -> Mistake {
    if stateful(call.word).is_some() {
        let expected = format!("{} on the right of `:=`", shown(call.word));
        return Mistake::new(call.place, expected, "it elsewhere")
            .hint("as in `(:= x (if condition value))`");
    }
    match call.word {
        "not" => wrong_count(call, 1),
        ":=" | "bind" => wrong_count(call, 2),
        "report" | "fallthrough" | "reset" | "when" => {
            let hint = "it is a statement, without operands, directly in a `when`";
            Mistake::new(call.place, "a value", format!("the statement {}", shown(call.word))).hint(hint)
        }
        "=" => Mistake::new(call.place, "an operation", "`=`").hint("`==` compares, `:=` sets"),
        "!" => Mistake::new(call.place, "an operation", "`!`").hint("write `(not x)`"),
        _ => Mistake::new(call.place, "an operation", shown(call.word))
            .hint("+ - * / max min wrapped_max == != < > <= >= && || not := if !if ewma"),
    }
}

/// The value of a word that is a number; `None` if it is none.
pub fn number(place: Place, word: &str) -> Result<Option<u32>, Mistake> {
    if word == "+infinity" {
        return Ok(Some(INFINITY as u32));
    }
    let unsigned = word.strip_prefix('-').unwrap_or(word);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    let mistake = |expected: &str, hint: &str| Err(Mistake::new(place, expected, shown(word)).hint(hint));
    if unsigned.contains('.') {
        return mistake("a whole number", "a decimal number may only be a factor of `*`");
    }
    if unsigned.len() < word.len() {
        return mistake("a number of 0 or more", "subtract with `(- a b)`; a result below 0 stops the run");
    }
    if !word.bytes().all(|byte| byte.is_ascii_digit()) {
        return mistake("a number or a name", "names do not begin with a digit");
    }
    match word.parse::<u32>() {
        Ok(value) if u64::from(value) != INFINITY => Ok(Some(value)),
        _ => mistake("a number below 4294967295", "`+infinity` is the largest; `*` makes larger ones"),
    }
}

/// The reduced fraction of a word such as `1.25`; `None` if it is no decimal number.
fn decimal(node: &Node<'_>) -> Option<Result<[u32; 2], Mistake>> {
    let What::Word(word) = node.what else { return None };
    let (whole, digits) = word.split_once('.')?;
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(digits) {
        return None;
    }
    let fraction = || {
        let mut denominator = 10_u32.checked_pow(u32::try_from(digits.len()).ok()?)?;
        let mut numerator = format!("{whole}{digits}").parse::<u32>().ok()?;
        let common = greatest_common_divisor(numerator, denominator);
        numerator /= common;
        denominator /= common;
        (digits.len() <= DECIMALS_MAX && numerator < INFINITY as u32).then_some([numerator, denominator])
    };
    let expected = format!("a factor of at most {DECIMALS_MAX} digits behind the point");
    Some(fraction().ok_or_else(|| Mistake::new(node.place, expected, shown(word))))
}

/// Both are not 0 at once: a denominator is a power of 10.
fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
