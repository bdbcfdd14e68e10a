//! A report as Python sees it: its values as attributes, by index, and as a dictionary.

use ccp_agent::Report;
use pyo3::exceptions::{PyAttributeError, PyKeyError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The values that a flow's program has reported.
#[pyclass(name = "Report", frozen)]
#[derive(Debug)]
pub struct PyReport(pub Report);

#[pymethods]
impl PyReport {
    fn __getattr__(&self, name: &str) -> PyResult<u64> {
        self.0.get(name).map_err(|why| PyAttributeError::new_err(why.to_string()))
    }

    fn __getitem__(&self, name: &str) -> PyResult<u64> {
        self.0.get(name).map_err(|why| PyKeyError::new_err(why.to_string()))
    }

    /// The name of the program that has reported.
    #[getter]
    fn program(&self) -> &str {
        self.0.program()
    }

    /// All values by name, in the order of the program's text.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let values = PyDict::new(py);
        self.0.iter().try_for_each(|(name, value)| values.set_item(name, value))?;
        Ok(values)
    }

    fn __repr__(&self) -> String {
        let values: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("<Report of {}: {}>", self.0.program(), values.join(" "))
    }
}
