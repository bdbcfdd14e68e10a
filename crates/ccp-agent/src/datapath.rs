//! A flow's way to its datapath, which the algorithm keeps. Each call is one message, in the order of the calls.

use std::fmt;
use std::sync::Arc;

use base::{Duration, Instant};

use crate::algorithm::FlowKey;
use crate::desk::Shared;
use crate::error::Error;
use crate::event::What;
use crate::program::Program;

/// The handle of one flow. Copies of it are the same flow.
#[derive(Clone)]
pub struct Datapath {
    desk: Shared,
    flow: FlowKey,
}

impl fmt::Debug for Datapath {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Datapath({})", self.flow)
    }
}

impl Datapath {
    pub(crate) const fn new(desk: Shared, flow: FlowKey) -> Self {
        Self { desk, flow }
    }

    /// The flow behind this handle.
    #[must_use]
    pub const fn flow(&self) -> FlowKey {
        self.flow
    }

    /// The time of the input that is being handled. Only differences have a meaning.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.desk.lock().now
    }

    /// Gives the flow the program `name` of its algorithm, in place of the one before. `fields` (variables, `Cwnd` in bytes, `Rate` in bytes
    /// per second) are set before the first run.
    ///
    /// # Errors
    /// If there is no such program or field, or the flow is over.
    pub fn set_program(&self, name: &str, fields: &[(&str, u64)]) -> Result<(), Error> {
        self.change(name, fields).map(|_| ())
    }

    /// As [`Self::set_program`]; the program that the flow runs now.
    pub(crate) fn change(&self, name: &str, fields: &[(&str, u64)]) -> Result<Arc<Program>, Error> {
        let mut desk = self.desk.lock();
        let program = desk.program(self.flow, name)?;
        desk.change(self.flow, &program, fields)?;
        Ok(program)
    }

    /// Sets variables of the flow's program, its window (`Cwnd`, bytes) and its rate (`Rate`, bytes per second), all between two runs. 0
    /// leaves window and rate as they are.
    ///
    /// # Errors
    /// If there is no such field, the flow has no program, or it is over.
    pub fn update(&self, fields: &[(&str, u64)]) -> Result<(), Error> {
        self.desk.lock().update(self.flow, fields)
    }

    /// Calls [`Flow::on_timer`](crate::Flow::on_timer) once after this time, at least [`TIMER_MIN`](crate::TIMER_MIN). A flow has one timer:
    /// setting it again moves it.
    ///
    /// # Errors
    /// If the flow is over.
    pub fn set_timer(&self, after: Duration) -> Result<(), Error> {
        self.desk.lock().set_timer(self.flow, Some(after))
    }

    /// Takes the timer away.
    ///
    /// # Errors
    /// If the flow is over.
    pub fn cancel_timer(&self) -> Result<(), Error> {
        self.desk.lock().set_timer(self.flow, None)
    }

    /// Writes a line with named values into the agent's log.
    pub fn note(&self, text: &str, values: &[(&str, u64)]) {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.desk.lock().tell(Some(self.flow), What::Note { text: text.to_owned(), values });
    }
}
