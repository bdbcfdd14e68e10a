//! A mistake in a program's text: where it is, what was expected, and what may help.

use std::fmt;

/// A place in the text, both from 1 on; columns count characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// One mistake. Its text says what was expected, and what stands there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The line, from 1 on.
    pub line: usize,
    /// The column, from 1 on, in characters.
    pub column: usize,
    /// What the compiler expected there.
    pub expected: String,
    /// What it found instead.
    pub found: String,
    /// What may help, if the compiler has an idea.
    pub hint: Option<String>,
}

impl Mistake {
    pub(crate) fn new(place: Place, expected: impl Into<String>, found: impl Into<String>) -> Self {
        let Place { line, column } = place;
        Self { line, column, expected: expected.into(), found: found.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}: expected {}, found {}", self.line, self.column, self.expected, self.found)?;
        match &self.hint {
            Some(hint) => write!(to, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Mistake {}
