//! Aggregates in Python (CCP paper, section 6.3): flows that are decided about together.

use crate::algorithm::{failure, of_flow};
use crate::datapath::PyFlowInfo;
use crate::report::PyReport;
use ccp_agent::{Aggregate, Datapath, FlowInfo, FlowKey, Group, Outcome, Report};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::cmp::Ordering;
use std::sync::Arc;

/// The base class of aggregates.
#[pyclass(name = "Aggregate", subclass)]
#[derive(Debug)]
pub struct PyAggregate;

#[pymethods]
impl PyAggregate {
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        Self
    }

    /// The flow's weight in its group.
    fn weight(&self, info: &Bound<'_, PyAny>) -> u32 {
        // The argument's name is Python's to see.
        let _ = info;
        1
    }
}

/// What the flows of a group have in common. Keys with the same `repr` are the same.
#[derive(Clone, Debug)]
pub struct Key {
    /// The `repr` of the key; of a flow without one: what the exception says.
    text: String,
    /// The key itself; `None`: an exception in `aggregate_by`.
    object: Option<Arc<Py<PyAny>>>,
}

impl Key {
    fn rank(&self) -> (bool, &str) {
        (self.object.is_some(), &self.text)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// An aggregate's object in Python.
pub struct GroupsOf {
    pub name: String,
    pub programs: Vec<(String, String)>,
    pub object: Py<PyAny>,
}

impl Aggregate for GroupsOf {
    type Key = Key;
    type Group = PyGroup;

    fn name(&self) -> &str {
        &self.name
    }

    fn programs(&self) -> Vec<(String, String)> {
        self.programs.clone()
    }

    fn aggregate_by(&self, info: &FlowInfo) -> Key {
        Python::attach(|py| {
            let key = self.object.bind(py).call_method1("aggregate_by", (PyFlowInfo::from(info),));
            match key.and_then(|key| Ok((key.repr()?.to_string(), key))) {
                Ok((text, key)) => Key { text, object: Some(Arc::new(key.unbind())) },
                Err(why) => Key { text: failure(py, why).to_string(), object: None },
            }
        })
    }

    fn create(&mut self, key: &Key) -> PyGroup {
        Python::attach(|py| {
            let Some(object) = &key.object else { return PyGroup(Err(key.text.clone())) };
            let group = self.object.bind(py).call_method1("create", (object.bind(py),));
            PyGroup(group.map(Bound::unbind).map_err(|why| failure(py, why).to_string()))
        })
    }

    fn weight(&self, info: &FlowInfo) -> u32 {
        Python::attach(|py| {
            let weight = self.object.bind(py).call_method1("weight", (PyFlowInfo::from(info),));
            // A weight that is none is 1, and the exception is shown: no flow could be blamed.
            weight.and_then(|weight| weight.extract()).unwrap_or_else(|why| {
                why.write_unraisable(py, Some(self.object.bind(py)));
                1
            })
        })
    }
}

/// A group's object in Python; or why there is none, which its flows fail with.
pub struct PyGroup(Result<Py<PyAny>, String>);

impl PyGroup {
    fn call(
        &self,
        name: &str,
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>>,
    ) -> Outcome {
        let object = self.0.as_ref().map_err(|why| why.as_str())?;
        Python::attach(|py| {
            let called = arguments(py).and_then(|arguments| object.bind(py).call_method1(name, arguments));
            called.map(drop).map_err(|why| failure(py, why))
        })
    }
}

impl Group for PyGroup {
    fn create_subflow(&mut self, datapath: Datapath, info: &FlowInfo, weight: u32) -> Outcome {
        let (datapath, info) = of_flow(datapath, info);
        self.call("create_subflow", |py| (datapath, info, weight).into_pyobject(py))
    }

    fn on_report(&mut self, flow: FlowKey, report: &Report) -> Outcome {
        let report = PyReport(report.clone());
        self.call("on_report", |py| (flow.to_string(), report).into_pyobject(py))
    }

    fn on_timer(&mut self, flow: FlowKey) -> Outcome {
        self.call("on_timer", |py| (flow.to_string(),).into_pyobject(py))
    }

    fn close_subflow(&mut self, flow: FlowKey) {
        let Ok(object) = &self.0 else { return };
        Python::attach(|py| {
            if let Err(why) = object.bind(py).call_method1("close_subflow", (flow.to_string(),)) {
                why.write_unraisable(py, Some(object.bind(py)));
            }
        });
    }
}
