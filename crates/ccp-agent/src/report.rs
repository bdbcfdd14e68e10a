//! One report of a flow: the values of its program's report variables, by name.

use std::sync::Arc;

use crate::error::Error;
use crate::program::Program;

/// A report. Its values are those of the program that the flow runs now; reports of an earlier one never get here.
#[derive(Clone, Debug)]
pub struct Report {
    pub(crate) program: Arc<Program>,
    pub(crate) values: Vec<u64>,
}

impl Report {
    /// The value of report variable `name`, with or without `Report.` in front. A truth value is 0 or 1.
    ///
    /// # Errors
    /// If the program has no report variable of this name.
    pub fn get(&self, name: &str) -> Result<u64, Error> {
        let wanted = name.strip_prefix("Report.").unwrap_or(name);
        let found = self.iter().find(|(field, _)| *field == wanted);
        found
            .map(|(_, value)| value)
            .ok_or_else(|| Error::NotReported { program: self.program.name.clone(), field: name.to_owned() })
    }

    /// The name of the program that has reported.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program.name
    }

    /// All names, without `Report.`, and values, in the order of the program's text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.program.reports().zip(self.values.iter().copied())
    }
}
