//! An algorithm in Python as an agent of crate `ccp-agent` needs it: its methods are the handlers. An exception in one costs its flow, and the
//! log has the traceback.

use crate::aggregate::{GroupsOf, PyAggregate};
use crate::datapath::{PyDatapath, PyFlowInfo, wrong};
use crate::report::PyReport;
use ccp_agent::{Agent, Aggregated, Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use sim::AgentMaker;
use std::cell::RefCell;
use std::sync::Arc;

/// The base class of algorithms.
#[pyclass(name = "Algorithm", subclass)]
#[derive(Debug)]
pub struct PyAlgorithm;

#[pymethods]
impl PyAlgorithm {
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        Self
    }
}

/// An algorithm in Python with all that must be known before its first flow.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    programs: Vec<(String, String)>,
    /// Its class, of which each agent makes an object; or an object that all agents share.
    subject: Arc<Py<PyAny>>,
    is_aggregate: bool,
}

impl Spec {
    /// Looks at a class or an object, and compiles its programs.
    ///
    /// # Errors
    /// If it is no algorithm, or a program has mistakes.
    pub fn of(subject: &Bound<'_, PyAny>) -> PyResult<Self> {
        let class = match subject.cast::<PyType>() {
            Ok(class) => class.clone(),
            Err(_) => subject.get_type(),
        };
        let is_aggregate = class.is_subclass_of::<PyAggregate>()?;
        if !is_aggregate && !class.is_subclass_of::<PyAlgorithm>()? {
            let says = format!("{subject:?} is no towpath_cc.Algorithm and no towpath_cc.Aggregate");
            return Err(PyTypeError::new_err(says));
        }
        let name = match subject.getattr_opt("name")? {
            Some(name) => name.extract()?,
            None => class.name()?.to_string().to_lowercase(),
        };
        let programs = subject.getattr("programs").map_err(|_| {
            PyTypeError::new_err(format!("{name} has no `programs`: a dictionary from names to texts"))
        })?;
        let programs = programs.cast::<PyDict>().map_err(|_| {
            PyTypeError::new_err(format!("`programs` of {name} must be a dictionary from names to texts"))
        })?;
        let programs = programs.iter().map(|(name, text)| Ok((name.extract()?, text.extract()?)));
        let programs = programs.collect::<PyResult<Vec<(String, String)>>>()?;
        let spec = Self { name, programs, subject: Arc::new(subject.clone().unbind()), is_aggregate };
        spec.add_to(&mut Agent::new())?;
        Ok(spec)
    }

    /// Adds the algorithm to an agent, with an object of its own if it is a class.
    ///
    /// # Errors
    /// If the class makes no object, a program has mistakes, or a name is taken.
    pub fn add_to(&self, agent: &mut Agent) -> PyResult<()> {
        let object = Python::attach(|py| {
            let subject = self.subject.bind(py);
            let is_class = subject.is_instance_of::<PyType>();
            if is_class { subject.call0().map(Bound::unbind) } else { Ok(subject.clone().unbind()) }
        })?;
        let (name, programs) = (self.name.clone(), self.programs.clone());
        let added = if self.is_aggregate {
            agent.add(Aggregated::new(GroupsOf { name, programs, object }))
        } else {
            agent.add(Bridge { name, programs, object })
        };
        added.map_err(wrong)
    }

    /// Agents with this algorithm alone.
    pub fn maker(&self) -> AgentMaker {
        let spec = self.clone();
        AgentMaker::new(move || {
            let mut agent = Agent::new();
            if let Err(why) = spec.add_to(&mut agent) {
                // It could be added before, so its class fails at times: its flows stay on the default, and the exception is raised at the end.
                note_interrupt(why);
            }
            agent
        })
    }
}

thread_local! {
    /// An exception that is no mistake of one flow: ^C, or `sys.exit()`.
    static INTERRUPT: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

fn note_interrupt(why: PyErr) {
    INTERRUPT.with(|slot| {
        slot.borrow_mut().get_or_insert(why);
    });
}

/// Raises what must not end with a single flow.
///
/// # Errors
/// The first such exception since the last call.
pub fn raise_interrupt() -> PyResult<()> {
    INTERRUPT.with(|slot| slot.borrow_mut().take()).map_or(Ok(()), Err)
}

/// An exception as the failure of a flow, with its traceback.
pub fn failure(py: Python<'_>, why: PyErr) -> Failure {
    let lines = py.import("traceback").and_then(|module| {
        let parts = (why.get_type(py), why.value(py), why.traceback(py));
        module.call_method1("format_exception", parts)?.extract::<Vec<String>>()
    });
    let text = lines.map_or_else(|_| why.to_string(), |lines| lines.concat());
    if !why.is_instance_of::<PyException>(py) {
        note_interrupt(why);
    }
    text.into()
}

/// The handle of a flow and what is known of it, as Python's handlers get them.
pub fn of_flow(datapath: Datapath, info: &FlowInfo) -> (PyDatapath, PyFlowInfo) {
    (PyDatapath(datapath), PyFlowInfo::from(info))
}

struct Bridge {
    name: String,
    programs: Vec<(String, String)>,
    object: Py<PyAny>,
}

impl Algorithm for Bridge {
    fn name(&self) -> &str {
        &self.name
    }

    fn programs(&self) -> Vec<(String, String)> {
        self.programs.clone()
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        Python::attach(|py| {
            let made = self.object.bind(py).call_method1("new_flow", of_flow(datapath, info));
            let object = made.map_err(|why| failure(py, why))?;
            if object.is_none() {
                return Err("new_flow returned None: it must return the flow's object".into());
            }
            let has = |name: &str| object.hasattr(name).map_err(|why| failure(py, why));
            let (has_timer, has_close) = (has("on_timer")?, has("close")?);
            Ok(Box::new(PyFlow { object: object.unbind(), has_timer, has_close }) as Box<dyn Flow>)
        })
    }
}

/// A flow's object in Python.
struct PyFlow {
    object: Py<PyAny>,
    has_timer: bool,
    has_close: bool,
}

impl Flow for PyFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        Python::attach(|py| {
            let told = self.object.bind(py).call_method1("on_report", (PyReport(report.clone()),));
            told.map(drop).map_err(|why| failure(py, why))
        })
    }

    fn on_timer(&mut self) -> Outcome {
        if !self.has_timer {
            return Err("the timer that was set is due, and the flow has no on_timer".into());
        }
        Python::attach(|py| {
            self.object.bind(py).call_method0("on_timer").map(drop).map_err(|why| failure(py, why))
        })
    }

    fn close(&mut self) {
        if self.has_close {
            Python::attach(|py| {
                if let Err(why) = self.object.bind(py).call_method0("close") {
                    // Nothing of the flow is left that it could cost.
                    why.write_unraisable(py, Some(self.object.bind(py)));
                }
            });
        }
    }
}
