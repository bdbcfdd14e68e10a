//! `towpath_cc.try_`: a trial over a simulated link, and its results. `towpath cc try FILE.py` comes here, too.

use crate::aggregate::PyAggregate;
use crate::algorithm::{PyAlgorithm, Spec, raise_interrupt};
use ccp_try::{Contestant, Options, Outcome};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The variable of a file that names its algorithm.
const CHOSEN: &str = "ALGORITHM";
/// The `__name__` of a file while it is tried: what a script does as `__main__` it does not do here.
const RUN_NAME: &str = "towpath_cc_trial";

/// A trial that is over.
#[pyclass(name = "Outcome", frozen)]
#[derive(Debug)]
pub struct PyOutcome(Outcome);

#[pymethods]
impl PyOutcome {
    /// The page with plots.
    fn html(&self) -> PyResult<String> {
        self.0.page().map_err(PyValueError::new_err)
    }

    /// All numbers, and what was seen of each flow, as JSON.
    fn json(&self) -> String {
        self.0.json().to_string()
    }

    /// Payload bits per second of each flow: a list for each run.
    #[getter]
    fn throughputs(&self) -> Vec<Vec<f64>> {
        self.0.races.iter().map(ccp_try::Race::throughputs).collect()
    }

    /// Part of the time in which the receiver's window, and no algorithm, held data back: one number for each run.
    #[getter]
    fn bounded(&self) -> Vec<f64> {
        self.0.races.iter().map(ccp_try::Race::bounded).collect()
    }

    /// Jain's index of fairness of each run.
    #[getter]
    fn jain(&self) -> Vec<f64> {
        self.0.races.iter().map(ccp_try::Race::jain).collect()
    }

    /// Each handler that failed, with its flow and traceback.
    #[getter]
    fn failures(&self) -> Vec<String> {
        self.0.races.iter().flat_map(ccp_try::Race::failures).collect()
    }

    fn __str__(&self) -> String {
        self.0.text()
    }
}

/// Runs a trial: see `towpath_cc.pyi`.
#[allow(clippy::too_many_arguments, reason = "Python names each of them")]
#[pyfunction]
#[pyo3(signature = (subject, *, against=None, link="48mbit,20ms,1bdp", flows=1, seconds=30.0, seed=1, staleness_us=20, buffer=None))]
pub fn try_(
    subject: &Bound<'_, PyAny>,
    against: Option<&Bound<'_, PyAny>>,
    link: &str,
    flows: u32,
    seconds: f64,
    seed: u64,
    staleness_us: u64,
    buffer: Option<String>,
) -> PyResult<PyOutcome> {
    let (link, trace, records) = (link.to_owned(), None, false);
    let options = Options { link, trace, flows, buffer, seconds, staleness_us, seed, records };
    run(subject, against, &options)
}

fn run(
    subject: &Bound<'_, PyAny>,
    against: Option<&Bound<'_, PyAny>>,
    options: &Options,
) -> PyResult<PyOutcome> {
    let trial = options.trial(contestant(subject)?, against.map(contestant).transpose()?);
    let outcome = trial.map_err(PyValueError::new_err)?.run();
    raise_interrupt()?;
    Ok(PyOutcome(outcome))
}

/// An algorithm of Python, a file, or a name.
pub fn contestant(subject: &Bound<'_, PyAny>) -> PyResult<Contestant> {
    let Ok(text) = subject.extract::<String>() else {
        let spec = Spec::of(subject)?;
        return Ok(Contestant::agent(&spec.name, spec.maker()));
    };
    let path = Path::new(&text);
    let wrong = |why: &dyn std::fmt::Display| PyValueError::new_err(why.to_string());
    if path.extension().is_some_and(|ext| ext == "py") {
        let spec = Spec::of(&algorithm_of_file(subject.py(), path)?)?;
        return Ok(Contestant::agent(&spec.name, spec.maker()));
    }
    if !path.is_file() && path.extension().is_none_or(|ext| ext != "ccp") {
        return Contestant::named(&text).map_err(|why| wrong(&why));
    }
    let program = std::fs::read_to_string(path)
        .map_err(|why| PyOSError::new_err(format!("cannot read {text}: {why}")))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Contestant::program(&name, &program).map_err(|why| wrong(&why))
}

/// Runs a file, and finds the algorithm in it: `ALGORITHM`, or the only class that is one.
fn algorithm_of_file<'py>(py: Python<'py>, path: &Path) -> PyResult<Bound<'py, PyAny>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    py.import("sys")?.getattr("path")?.call_method1("insert", (0, folder.to_string_lossy()))?;
    let arguments = PyDict::new(py);
    arguments.set_item("run_name", RUN_NAME)?;
    let ran = py.import("runpy")?.call_method("run_path", (path.to_string_lossy(),), Some(&arguments))?;
    let names = ran.cast::<PyDict>()?;
    if let Some(chosen) = names.get_item(CHOSEN)? {
        return Ok(chosen);
    }
    let mut found: Vec<Bound<'py, PyAny>> = Vec::new();
    for value in names.values() {
        let Ok(class) = value.cast::<PyType>() else { continue };
        let is_one = class.is_subclass_of::<PyAlgorithm>()? || class.is_subclass_of::<PyAggregate>()?;
        let is_own = class.getattr("__module__")?.extract::<String>().is_ok_and(|module| module == RUN_NAME);
        if is_one && is_own {
            found.push(value);
        }
    }
    match &found[..] {
        [only] => Ok(only.clone()),
        [] => Err(PyTypeError::new_err(format!(
            "{}: no class here derives from towpath_cc.Algorithm or towpath_cc.Aggregate",
            path.display()
        ))),
        more => Err(PyTypeError::new_err(format!(
            "{}: {} classes are algorithms: say which one, {CHOSEN} = ...",
            path.display(),
            more.len()
        ))),
    }
}

/// What `towpath cc try` and `towpath cc replay` want: the files `order` and `result` are JSON.
#[pyfunction(name = "_run_order")]
pub fn run_order(py: Python<'_>, order: PathBuf, result: PathBuf) -> PyResult<()> {
    let wrong = |why: serde_json::Error| PyValueError::new_err(why.to_string());
    let order: Value = serde_json::from_str(&std::fs::read_to_string(order)?).map_err(wrong)?;
    let subject = |name: &str| order[name].as_str().map(|text| text.into_pyobject(py)).transpose();
    let own = subject("subject")?.ok_or_else(|| PyValueError::new_err("no subject"))?;
    let shown = if let Some(text) = order["replay"].as_str() {
        let all = ccp_try::transcript::read(text).map_err(PyValueError::new_err)?;
        let replayed = ccp_try::replay(&all, order["agent"].as_str(), &contestant(own.as_any())?);
        raise_interrupt()?;
        replayed.map_err(PyValueError::new_err)?.json()
    } else {
        let options: Options = serde_json::from_value(order["options"].clone()).map_err(wrong)?;
        let outcome = run(own.as_any(), subject("rival")?.as_ref().map(|rival| rival.as_any()), &options)?.0;
        let page = outcome.page().map_err(PyValueError::new_err)?;
        let (text, json) = (outcome.text(), outcome.json());
        serde_json::json!({ "text": text, "page": page, "json": json, "transcript": outcome.transcript() })
    };
    std::fs::write(result, shown.to_string()).map_err(PyErr::from)
}

/// The names of all algorithms that need no file.
#[pyfunction]
pub fn names() -> Vec<String> {
    ccp_try::names()
}
