//! A flow's handle, and what a datapath says of a new flow, as Python sees them.

use ccp_agent::{Datapath, Duration, Error, FlowInfo};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An error of the library as Python's.
pub fn wrong(why: Error) -> PyErr {
    PyValueError::new_err(why.to_string())
}

/// A number that a datapath can take: whole, and not below zero. What a float has behind the point is dropped.
fn whole(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(number) = value.extract::<u64>() {
        return Ok(number);
    }
    let says = || format!("`{name}` must be a number from 0 to 2^64 - 1, not {value:?}");
    let number: f64 = value.extract().map_err(|_| PyTypeError::new_err(says()))?;
    if (0.0..18_446_744_073_709_551_616.0).contains(&number) {
        Ok(number as u64)
    } else {
        Err(PyValueError::new_err(says()))
    }
}

/// Names and numbers of keyword arguments.
fn fields(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<(String, u64)>> {
    let all = arguments.into_iter().flat_map(|arguments| arguments.iter());
    all.map(|(name, value)| {
        let name: String = name.extract()?;
        let value = whole(&name, &value)?;
        Ok((name, value))
    })
    .collect()
}

fn borrowed(fields: &[(String, u64)]) -> Vec<(&str, u64)> {
    fields.iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

/// The handle of one flow.
#[pyclass(name = "Datapath", frozen)]
#[derive(Debug)]
pub struct PyDatapath(pub Datapath);

#[pymethods]
impl PyDatapath {
    /// Gives the flow a program of its algorithm; fields are set before its first run.
    #[pyo3(signature = (name, **fields))]
    fn set_program(&self, name: &str, fields: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let fields = self::fields(fields)?;
        self.0.set_program(name, &borrowed(&fields)).map_err(wrong)
    }

    /// Sets variables, `Cwnd` (bytes) and `Rate` (bytes per second), all between two runs of the program.
    #[pyo3(signature = (**fields))]
    fn update(&self, fields: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let fields = self::fields(fields)?;
        self.0.update(&borrowed(&fields)).map_err(wrong)
    }

    /// Calls the flow's `on_timer` once after so many microseconds.
    fn set_timer(&self, after_us: u64) -> PyResult<()> {
        self.0.set_timer(Duration::from_us(after_us)).map_err(wrong)
    }

    /// Takes the timer away.
    fn cancel_timer(&self) -> PyResult<()> {
        self.0.cancel_timer().map_err(wrong)
    }

    /// The agent's time in microseconds; only differences have a meaning.
    #[getter]
    fn now_us(&self) -> u64 {
        self.0.now().as_us()
    }

    /// The flow's name at this agent.
    #[getter]
    fn flow(&self) -> String {
        self.0.flow().to_string()
    }

    /// Writes a line with named values into the agent's log.
    #[pyo3(signature = (text, **values))]
    fn note(&self, text: &str, values: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let values = fields(values)?;
        self.0.note(text, &borrowed(&values));
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<Datapath of flow {}>", self.0.flow())
    }
}

/// What a datapath says of a new flow.
#[pyclass(name = "FlowInfo", frozen, get_all)]
#[derive(Debug)]
pub struct PyFlowInfo {
    flow: String,
    asked: String,
    cwnd: u64,
    mss: u64,
    source: (String, u16),
    destination: (String, u16),
}

impl From<&FlowInfo> for PyFlowInfo {
    fn from(info: &FlowInfo) -> Self {
        let end = |at: std::net::SocketAddrV4| (at.ip().to_string(), at.port());
        Self {
            flow: info.flow.to_string(),
            asked: info.asked.clone(),
            cwnd: info.cwnd,
            mss: info.mss,
            source: end(info.source),
            destination: end(info.destination),
        }
    }
}

#[pymethods]
impl PyFlowInfo {
    fn __repr__(&self) -> String {
        let Self { flow, source, destination, cwnd, mss, .. } = self;
        let [from, to] = [source, destination].map(|(host, port)| format!("{host}:{port}"));
        format!("<FlowInfo {flow}: {from} to {to}, cwnd {cwnd}, mss {mss}>")
    }
}
