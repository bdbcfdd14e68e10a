//! Evaluates Python expressions and runs statements.

use super::{Expr, Statement, What};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;

/// The value of an expression.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Value>),
}

/// The reason why code ended early.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Stop {
    /// An assertion failed: its line (from 0) and the values found.
    Assertion(u32, String),
    /// A name without a value: the line and the name.
    Unknown(u32, String),
    /// A case in which Python would raise an exception: the line and a description.
    Error(u32, String),
}

/// The values of names, and the lines that `print` wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    names: HashMap<String, Value>,
    pub(crate) printed: Vec<String>,
    line: u32,
}

type Evaluated = Result<Value, Stop>;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(b) => f.write_str(if *b { "True" } else { "False" }),
            Self::Integer(n) => n.fmt(f),
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Text(text) => f.write_str(text),
            Self::List(items) => {
                let items: Vec<_> = items.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
        }
    }
}

impl Value {
    fn is_true(&self) -> bool {
        match self {
            Self::None => false,
            Self::Bool(b) => *b,
            Self::Integer(n) => *n != 0,
            Self::Float(x) => *x != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
        }
    }

    /// The value as an integer; a truth value counts as 0 or 1.
    fn integer(&self) -> Option<i128> {
        match self {
            Self::Bool(b) => Some(i128::from(*b)),
            Self::Integer(n) => Some(*n),
            _ => None,
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Self::Float(x) => Some(*x),
            other => other.integer().map(|n| n as f64),
        }
    }

    fn equals(&self, other: &Self) -> bool {
        match (self.integer(), other.integer()) {
            (Some(a), Some(b)) => a == b,
            _ => match (self.float(), other.float()) {
                (Some(a), Some(b)) => a == b,
                _ => self == other,
            },
        }
    }

    fn order(&self, other: &Self) -> Option<Ordering> {
        if let (Self::Text(a), Self::Text(b)) = (self, other) {
            return Some(a.cmp(b));
        }
        match (self.integer(), other.integer()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => self.float()?.partial_cmp(&other.float()?),
        }
    }
}

impl Environment {
    pub(crate) fn set(&mut self, name: &str, value: i128) {
        self.names.insert(name.to_owned(), Value::Integer(value));
    }

    pub(super) fn run(&mut self, statements: &[Statement]) -> Result<(), Stop> {
        for statement in statements {
            self.line = statement.line;
            self.statement(&statement.what)?;
        }
        Ok(())
    }

    fn statement(&mut self, what: &What) -> Result<(), Stop> {
        match what {
            What::Pass => {}
            What::Expr(expr) => drop(self.eval(expr)?),
            What::Assign(name, None, expr) => {
                let value = self.eval(expr)?;
                self.names.insert(name.clone(), value);
            }
            What::Assign(name, Some(operator), expr) => {
                let (old, right) = (self.eval(&Expr::Name(name.clone()))?, self.eval(expr)?);
                let value = self.binary(operator, &old, &right)?;
                self.names.insert(name.clone(), value);
            }
            What::Print(items) => {
                let words: Vec<_> = items
                    .iter()
                    .map(|item| self.eval(item).map(|v| v.to_string()))
                    .collect::<Result<_, _>>()?;
                self.printed.push(words.join(" "));
            }
            What::Assert(condition, message) => self.assertion(condition, message.as_ref())?,
            What::If(branches) => {
                for (condition, body) in branches {
                    let is_taken = match condition {
                        Some(condition) => self.eval(condition)?.is_true(),
                        None => true,
                    };
                    if is_taken {
                        return self.run(body);
                    }
                }
            }
        }
        Ok(())
    }

    fn assertion(&mut self, condition: &Expr, message: Option<&Expr>) -> Result<(), Stop> {
        if self.eval(condition)?.is_true() {
            return Ok(());
        }
        let mut what = format!("assertion failed: {}", show(condition));
        for name in names(condition) {
            if let Some(value) = self.names.get(name) {
                what.push_str(&format!("; {name} is {value}"));
            }
        }
        if let Some(message) = message
            && !matches!(message, Expr::Name(_))
        {
            what.push_str(&format!("; {}", self.eval(message)?));
        }
        Err(Stop::Assertion(self.line, what))
    }

    fn error(&self, what: impl Into<String>) -> Stop {
        Stop::Error(self.line, what.into())
    }

    fn eval(&self, expr: &Expr) -> Evaluated {
        Ok(match expr {
            Expr::Value(value) => value.clone(),
            Expr::Name(name) => {
                self.names.get(name).cloned().ok_or_else(|| Stop::Unknown(self.line, name.clone()))?
            }
            Expr::List(items) => Value::List(items.iter().map(|i| self.eval(i)).collect::<Result<_, _>>()?),
            Expr::And(a, b) => {
                let a = self.eval(a)?;
                if a.is_true() { self.eval(b)? } else { a }
            }
            Expr::Or(a, b) => {
                let a = self.eval(a)?;
                if a.is_true() { a } else { self.eval(b)? }
            }
            Expr::Choice(c, a, b) => self.eval(if self.eval(c)?.is_true() { a } else { b })?,
            Expr::Unary(operator, a) => self.unary(operator, &self.eval(a)?)?,
            Expr::Binary(operator, a, b) => self.binary(operator, &self.eval(a)?, &self.eval(b)?)?,
            Expr::Compare(first, rest) => Value::Bool(self.compare(first, rest)?),
            Expr::Call(name, args) => {
                let args = args.iter().map(|a| self.eval(a)).collect::<Result<Vec<_>, _>>()?;
                self.call(name, &args)?
            }
            Expr::Index(list, at) => {
                let (list, at) = (self.eval(list)?, self.eval(at)?);
                let (Value::List(items), Some(at)) = (list, at.integer()) else {
                    return Err(self.error("only lists have items"));
                };
                let at = if at < 0 { at + items.len() as i128 } else { at };
                let item = usize::try_from(at).ok().and_then(|at| items.get(at).cloned());
                item.ok_or_else(|| self.error("an index out of the list"))?
            }
        })
    }

    fn compare(&self, first: &Expr, rest: &[(&str, Expr)]) -> Result<bool, Stop> {
        let mut left = self.eval(first)?;
        for (operator, right) in rest {
            let right = self.eval(right)?;
            let holds = match *operator {
                "==" => left.equals(&right),
                "!=" => !left.equals(&right),
                "in" | "not in" => {
                    let Value::List(items) = &right else { return Err(self.error("`in` needs a list")) };
                    items.iter().any(|item| item.equals(&left)) == (*operator == "in")
                }
                _ => {
                    let order = left.order(&right).ok_or_else(|| self.error("these have no order"))?;
                    match *operator {
                        "<" => order.is_lt(),
                        "<=" => order.is_le(),
                        ">" => order.is_gt(),
                        _ => order.is_ge(),
                    }
                }
            };
            if !holds {
                return Ok(false);
            }
            left = right;
        }
        Ok(true)
    }

    fn unary(&self, operator: &str, a: &Value) -> Evaluated {
        if operator == "not" {
            return Ok(Value::Bool(!a.is_true()));
        }
        let value = match (operator, a.integer(), a.float()) {
            ("-", Some(n), _) => n.checked_neg().map(Value::Integer),
            ("-", None, Some(x)) => Some(Value::Float(-x)),
            ("+", Some(n), _) => Some(Value::Integer(n)),
            ("+", None, Some(x)) => Some(Value::Float(x)),
            ("~", Some(n), _) => Some(Value::Integer(!n)),
            _ => None,
        };
        value.ok_or_else(|| self.error(format!("`{operator}` of something that is no number")))
    }

    fn binary(&self, operator: &str, a: &Value, b: &Value) -> Evaluated {
        match (operator, a, b) {
            ("%", Value::Text(format), b) => return self.format(format, b),
            ("+", Value::Text(a), Value::Text(b)) => return Ok(Value::Text(format!("{a}{b}"))),
            _ => {}
        }
        let value = match (a.integer(), b.integer()) {
            (Some(x), Some(y)) if operator != "/" => integers(operator, x, y).map(Value::Integer),
            _ => a.float().zip(b.float()).and_then(|(x, y)| floats(operator, x, y)).map(Value::Float),
        };
        value.ok_or_else(|| self.error(format!("{a} {operator} {b} has no value")))
    }

    /// Formats as in `'cwnd=%d' % n`.
    fn format(&self, format: &str, values: &Value) -> Evaluated {
        let single = [values.clone()];
        let mut values = match values {
            Value::List(items) => items.iter(),
            _ => single.iter(),
        };
        let mut text = String::new();
        let mut rest = format.chars().peekable();
        while let Some(c) = rest.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            while rest.next_if(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+')).is_some() {}
            match rest.next() {
                Some('%') => text.push('%'),
                Some(kind @ ('d' | 'i' | 'u' | 's' | 'r' | 'f' | 'g' | 'x')) => {
                    let value = values.next().ok_or_else(|| self.error("too few values for the format"))?;
                    match (kind, value.integer(), value.float()) {
                        ('x', Some(n), _) => text.push_str(&format!("{n:x}")),
                        ('f', _, Some(x)) => text.push_str(&format!("{x:.6}")),
                        _ => text.push_str(&value.to_string()),
                    }
                }
                _ => return Err(self.error("a format that is not known")),
            }
        }
        Ok(Value::Text(text))
    }

    fn call(&self, name: &str, args: &[Value]) -> Evaluated {
        let best = |wanted: Ordering| {
            let mut items = match args {
                [Value::List(items)] => items.iter(),
                _ => args.iter(),
            };
            let first = items.next()?;
            items.try_fold(first, |best, item| Some(if item.order(best)? == wanted { item } else { best }))
        };
        let value = match (name, args) {
            ("min", _) => best(Ordering::Less).cloned(),
            ("max", _) => best(Ordering::Greater).cloned(),
            ("abs", [a]) => match (a.integer(), a.float()) {
                (Some(n), _) => n.checked_abs().map(Value::Integer),
                (None, Some(x)) => Some(Value::Float(x.abs())),
                _ => None,
            },
            ("int", [Value::Float(x)]) => Some(Value::Integer(x.trunc() as i128)),
            ("int", [a]) => a.integer().map(Value::Integer),
            ("round", [a]) => a.float().map(|x| Value::Integer(x.round_ties_even() as i128)),
            ("float", [a]) => a.float().map(Value::Float),
            ("str", [a]) => Some(Value::Text(a.to_string())),
            ("bool", [a]) => Some(Value::Bool(a.is_true())),
            ("len", [Value::List(items)]) => Some(Value::Integer(items.len() as i128)),
            ("len", [Value::Text(text)]) => Some(Value::Integer(text.chars().count() as i128)),
            ("range", [a, b]) => match (a.integer(), b.integer()) {
                (Some(a), Some(b)) if b - a <= 4096 => {
                    Some(Value::List((a..b).map(Value::Integer).collect()))
                }
                _ => None,
            },
            _ => return Err(Stop::Unknown(self.line, format!("{name}()"))),
        };
        value.ok_or_else(|| self.error(format!("{name}() of these has no value")))
    }
}

/// Integer arithmetic; Python's division rounds towards minus infinity.
fn integers(operator: &str, x: i128, y: i128) -> Option<i128> {
    match operator {
        "+" => x.checked_add(y),
        "-" => x.checked_sub(y),
        "*" => x.checked_mul(y),
        "//" => x.checked_div(y).map(|q| if x % y != 0 && (x < 0) != (y < 0) { q - 1 } else { q }),
        "%" => x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r }),
        "**" => x.checked_pow(u32::try_from(y).ok()?),
        "&" => Some(x & y),
        "|" => Some(x | y),
        "^" => Some(x ^ y),
        "<<" => x.checked_mul(1_i128.checked_shl(u32::try_from(y).ok()?)?),
        ">>" => x.checked_shr(u32::try_from(y).ok()?),
        _ => None,
    }
}

fn floats(operator: &str, x: f64, y: f64) -> Option<f64> {
    match operator {
        "+" => Some(x + y),
        "-" => Some(x - y),
        "*" => Some(x * y),
        "/" => (y != 0.0).then(|| x / y),
        "//" => (y != 0.0).then(|| (x / y).floor()),
        "%" => (y != 0.0).then(|| x - y * (x / y).floor()),
        "**" => Some(x.powf(y)),
        _ => None,
    }
}

/// The names in `expr`, in order, each once.
fn names(expr: &Expr) -> Vec<&str> {
    fn walk<'a>(expr: &'a Expr, found: &mut Vec<&'a str>) {
        match expr {
            Expr::Value(_) => {}
            Expr::Name(name) => {
                if !found.contains(&name.as_str()) {
                    found.push(name);
                }
            }
            Expr::List(items) | Expr::Call(_, items) => items.iter().for_each(|i| walk(i, found)),
            Expr::Unary(_, a) => walk(a, found),
            Expr::Binary(_, a, b) | Expr::And(a, b) | Expr::Or(a, b) | Expr::Index(a, b) => {
                walk(a, found);
                walk(b, found);
            }
            Expr::Compare(first, rest) => {
                walk(first, found);
                rest.iter().for_each(|(_, e)| walk(e, found));
            }
            Expr::Choice(c, a, b) => [c, a, b].into_iter().for_each(|e| walk(e, found)),
        }
    }
    let mut found = Vec::new();
    walk(expr, &mut found);
    found
}

/// The expression in Python's notation.
fn show(expr: &Expr) -> String {
    let list = |items: &[Expr]| items.iter().map(show).collect::<Vec<_>>().join(", ");
    match expr {
        Expr::Value(Value::Text(text)) => format!("'{text}'"),
        Expr::Value(value) => value.to_string(),
        Expr::Name(name) => name.clone(),
        Expr::List(items) => format!("[{}]", list(items)),
        Expr::Unary("not", a) => format!("not {}", show(a)),
        Expr::Unary(operator, a) => format!("{operator}{}", show(a)),
        Expr::Binary(operator, a, b) => format!("({} {operator} {})", show(a), show(b)),
        Expr::And(a, b) => format!("{} and {}", show(a), show(b)),
        Expr::Or(a, b) => format!("({} or {})", show(a), show(b)),
        Expr::Compare(first, rest) => {
            rest.iter().fold(show(first), |text, (operator, e)| format!("{text} {operator} {}", show(e)))
        }
        Expr::Choice(c, a, b) => format!("({} if {} else {})", show(a), show(c), show(b)),
        Expr::Call(name, args) => format!("{name}({})", list(args)),
        Expr::Index(a, b) => format!("{}[{}]", show(a), show(b)),
    }
}
