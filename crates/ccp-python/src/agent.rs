//! An agent in Python: algorithms that decide about live flows of a datapath.

use crate::algorithm::{Spec, raise_interrupt};
use ccp_agent::{Agent, Runner};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;

/// Several algorithms behind one socket.
#[pyclass(name = "Agent", unsendable)]
pub struct PyAgent {
    agent: Agent,
    is_stopping: bool,
}

#[pymethods]
impl PyAgent {
    #[new]
    #[pyo3(signature = (*algorithms))]
    fn new(algorithms: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let mut agent = Agent::new();
        algorithms.iter().try_for_each(|algorithm| Spec::of(algorithm)?.add_to(&mut agent))?;
        Ok(Self { agent, is_stopping: false })
    }

    /// Serves datapaths at a UNIX datagram socket until ^C. `log` gets each event of the agent as a line of text.
    #[pyo3(signature = (path=PathBuf::from(ccp_agent::PATH), log=None))]
    fn run(slf: Bound<'_, Self>, path: PathBuf, log: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let py = slf.py();
        let mut runner = Runner::bind(&path)?;
        slf.borrow_mut().is_stopping = false;
        while !slf.borrow().is_stopping {
            let deadline = slf.borrow().agent.next_deadline();
            let heard = py.detach(|| runner.wait(deadline))?;
            let mut lines = Vec::new();
            // While handlers run, the agent is theirs: `log` may ask for its flows, they may not.
            runner.serve(&mut slf.borrow_mut().agent, heard, &mut |event| lines.push(event.to_string()));
            raise_interrupt()?;
            py.check_signals()?;
            if let Some(log) = &log {
                lines.into_iter().try_for_each(|line| log.call1((line,)).map(drop))?;
            }
        }
        Ok(())
    }

    /// Ends [`Self::run`], from its `log` or from a signal's handler.
    fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// All live flows, each as a dictionary.
    fn flows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let view = |flow: ccp_agent::FlowView| {
            let values = PyDict::new(py);
            values.set_item("flow", flow.info.flow.to_string())?;
            values.set_item("source", flow.info.source.to_string())?;
            values.set_item("destination", flow.info.destination.to_string())?;
            values.set_item("mss", flow.info.mss)?;
            values.set_item("algorithm", flow.algorithm)?;
            values.set_item("program", flow.program)?;
            values.set_item("reports", flow.reports)?;
            values.set_item("cwnd", flow.cwnd)?;
            values.set_item("rate", flow.rate)?;
            values.set_item("has_failed", flow.has_failed)?;
            Ok(values)
        };
        self.agent.flows().into_iter().map(view).collect()
    }
}
