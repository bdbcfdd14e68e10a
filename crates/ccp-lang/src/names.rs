//! Names of a program and the registers behind them. A name is known from its declaration, or from where it is first set.

use ccp_vm::{CONTROLS_MAX, Implicit, Instruction, LOCALS_MAX, Primitive, REPORTS_MAX, Register, Scope};

use crate::lexer::shown;
use crate::mistake::{Mistake, Place};

/// What a register holds, as far as the text says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Number,
    Truth,
}

/// A register and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub register: Register,
    pub kind: Kind,
}

/// One declaration, with its place in the text.
pub struct Declaration<'a> {
    pub place: Place,
    /// The full name, with `Report.` in front if it stands in `Report`.
    pub name: String,
    pub word: &'a str,
    pub is_volatile: bool,
    pub initial: u32,
    pub kind: Kind,
}

/// All names of one program.
#[derive(Default)]
pub struct Names {
    declared: Vec<(String, Known, u32)>,
    locals: Vec<(String, Known)>,
    /// Locals that nested events use and no name reaches.
    hidden: usize,
}

/// Names that begin so are signals or declared in `Report`; no other variable is called so.
const RESERVED_SCOPES: [&str; 4] = ["Report.", "Ack.", "Flow.", "Timer."];
/// Names that differ from a wrong one by so few letters are proposed.
const NEAR: usize = 2;

impl Names {
    /// The meaning of `name`, if it has one here.
    pub fn look_up(&self, name: &str) -> Option<Known> {
        let declared = self.declared.iter().map(|(name, known, _)| (name, known));
        let own = declared.chain(self.locals.iter().map(|(name, known)| (name, known)));
        let found = own.into_iter().find(|(own, _)| *own == name).map(|(_, known)| *known);
        found.or_else(|| given(name))
    }

    /// Declares a variable, in the order of the text.
    pub fn declare(&mut self, declaration: Declaration<'_>) -> Result<(), Mistake> {
        let Declaration { place, name, word, is_volatile, initial, kind } = declaration;
        check_name(place, word)?;
        if self.look_up(&name).is_some() || RESERVED_SCOPES[1..].iter().any(|scope| name.starts_with(scope)) {
            return Err(Mistake::new(place, "a new name", format!("{}, which has a meaning", shown(&name))));
        }
        let is_report = name.starts_with("Report.");
        let (scope, most) = match (is_report, is_volatile) {
            (true, true) => (Scope::VolatileReport, REPORTS_MAX),
            (true, false) => (Scope::Report, REPORTS_MAX),
            (false, true) => (Scope::VolatileControl, CONTROLS_MAX),
            (false, false) => (Scope::Control, CONTROLS_MAX),
        };
        let alike =
            self.declared.iter().filter(|(_, known, _)| known.register.scope.is_report() == is_report);
        let index = alike.count();
        if index == most {
            let what = if is_report { "report variables" } else { "variables outside Report" };
            return Err(Mistake::new(place, format!("at most {most} {what}"), "one more"));
        }
        self.declared.push((name, Known { register: Register::new(scope, index as u32), kind }, initial));
        Ok(())
    }

    /// The variable that an assignment sets; a new name becomes a local variable that holds what `kind` says.
    pub fn settable(&mut self, place: Place, name: &str, kind: Kind) -> Result<Known, Mistake> {
        if let Some(known) = self.look_up(name) {
            if known.register.is_writable() {
                return Ok(known);
            }
            return Err(Mistake::new(
                place,
                "a variable",
                format!("the signal {}, which is read-only", shown(name)),
            ));
        }
        check_name(place, name)?;
        if RESERVED_SCOPES.iter().any(|scope| name.starts_with(scope)) {
            return Err(self.unknown(place, name));
        }
        let register = self.local().ok_or_else(|| {
            Mistake::new(place, format!("at most {LOCALS_MAX} local variables"), "one more")
                .hint("a `when` with others inside takes two, and each of those one; variables in `def` are not local")
        })?;
        let known = Known { register, kind };
        self.locals.push((name.to_owned(), known));
        Ok(known)
    }

    /// A local variable without a name, if there is room.
    pub fn hidden(&mut self) -> Option<Register> {
        let register = self.local()?;
        self.hidden += 1;
        Some(register)
    }

    /// The mistake of a name without a meaning.
    pub fn unknown(&self, place: Place, name: &str) -> Mistake {
        let mistake = Mistake::new(place, "a name that is known here", shown(name));
        let own = self.declared.iter().map(|(name, ..)| name.as_str());
        let signals = Primitive::NAMES.into_iter().map(|(name, _)| name);
        let all = own.chain(self.locals.iter().map(|(name, _)| name.as_str())).chain(signals).chain(GIVEN);
        let compared = |name: &str| name.trim_start_matches("Report.").to_lowercase();
        let wanted = compared(name);
        let nearest = all.map(|other| (distance(&wanted, &compared(other)), other)).min_by_key(|near| near.0);
        match nearest {
            Some((..=NEAR, near)) => mistake.hint(format!("did you mean `{near}`?")),
            _ => mistake.hint("declare it in `def`, or set it first"),
        }
    }

    /// Definitions as instructions, in the order of the names, as Portus writes them.
    pub fn definitions(&self) -> Vec<Instruction> {
        let mut sorted: Vec<_> = self.declared.iter().collect();
        sorted.sort_by(|one, other| one.0.cmp(&other.0));
        sorted.into_iter().map(|(_, known, initial)| Instruction::define(known.register, *initial)).collect()
    }

    /// The declared names with their registers, in the order of the text.
    pub fn into_declared(self) -> Vec<(String, Register)> {
        self.declared.into_iter().map(|(name, known, _)| (name, known.register)).collect()
    }

    /// The local variables with their registers.
    pub fn locals(&self) -> Vec<(String, Register)> {
        self.locals.iter().map(|(name, known)| (name.clone(), known.register)).collect()
    }

    fn local(&self) -> Option<Register> {
        let index = self.locals.len() + self.hidden;
        (index < LOCALS_MAX).then(|| Register::new(Scope::Local, index as u32))
    }
}

/// Names that each program has, beside the signals.
const GIVEN: [&str; 4] = ["Cwnd", "Rate", "Micros", "Timer.Micros"];

fn given(name: &str) -> Option<Known> {
    let implicit = |which| Some(Known { register: Register::implicit(which), kind: Kind::Number });
    let signal = match name {
        "Cwnd" => return implicit(Implicit::Cwnd),
        "Rate" => return implicit(Implicit::Rate),
        "Micros" | "Timer.Micros" | "Timer.micros" => return implicit(Implicit::Micros),
        // The CCP paper's section 4.3 spells it so.
        "Ack.rtt_sample_us" => Primitive::RttSample,
        _ => Primitive::NAMES.iter().find(|(signal, _)| *signal == name)?.1,
    };
    let kind = if signal == Primitive::WasTimeout { Kind::Truth } else { Kind::Number };
    Some(Known { register: Register::new(Scope::Primitive, signal as u32), kind })
}

/// Names have letters, digits, dots and underscores, begin with no digit, and not with two underscores.
fn check_name(place: Place, name: &str) -> Result<(), Mistake> {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let is_good = name.chars().all(is_name_char)
        && !name.starts_with("__")
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !matches!(name, "" | "true" | "false" | "volatile" | "Report" | "def" | "when");
    if is_good {
        return Ok(());
    }
    Err(Mistake::new(place, "a name", shown(name)).hint(
        "letters, digits, `.` and `_`; no digit and no `__` in front, and none of the language's own words",
    ))
}

/// The number of letters to change, add or drop between two words; words of very different length are far apart.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > NEAR {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}
