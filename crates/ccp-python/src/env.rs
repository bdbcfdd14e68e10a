//! An environment for learners, as Python sees it.

use crate::algorithm::raise_interrupt;
use crate::trial::contestant;
use ccp_agent::Duration;
use ccp_try::{Entry, Env, EnvSetting, Observation, Options};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A flow over a simulated bottleneck that the caller steers: see `towpath_cc.pyi`.
#[pyclass(name = "Env", unsendable)]
pub struct PyEnv {
    setting: EnvSetting,
    env: Option<Env>,
}

#[pymethods]
impl PyEnv {
    #[allow(clippy::too_many_arguments, reason = "Python names each of them")]
    #[new]
    #[pyo3(signature = (*, link="48mbit,20ms,1bdp", against=None, flows=1, interval_us=10_000, seconds=30.0, seed=1, staleness_us=20, buffer=None))]
    fn new(
        link: &str,
        against: Option<&Bound<'_, PyAny>>,
        flows: u32,
        interval_us: u64,
        seconds: f64,
        seed: u64,
        staleness_us: u64,
        buffer: Option<String>,
    ) -> PyResult<Self> {
        let (link, trace, records) = (link.to_owned(), None, false);
        let options = Options { link, trace, flows, buffer, seconds, staleness_us, seed, records };
        let (time, staleness) = options.times().map_err(PyValueError::new_err)?;
        let rival = against.map(contestant).transpose()?;
        let rival = rival.map(|contestant| Entry { contestant, flows });
        let path = options.path().map_err(PyValueError::new_err)?;
        let buffer = options.buffer().map_err(PyValueError::new_err)?;
        let interval = Duration::from_us(interval_us);
        let setting = EnvSetting { path, rival, interval, buffer, time, staleness, seed };
        Ok(Self { setting, env: None })
    }

    /// Begins an episode; its first observation.
    #[pyo3(signature = (seed=None))]
    fn reset<'py>(&mut self, py: Python<'py>, seed: Option<u64>) -> PyResult<Bound<'py, PyDict>> {
        self.setting.seed = seed.unwrap_or(self.setting.seed);
        let (env, first) = Env::new(self.setting.clone());
        self.env = Some(env);
        raise_interrupt()?;
        shown(py, &first)
    }

    /// Sets window (bytes) and rate (bytes per second; 0 leaves either), and runs until the next report.
    #[pyo3(signature = (cwnd=0, rate=0))]
    fn step<'py>(&mut self, py: Python<'py>, cwnd: u64, rate: u64) -> PyResult<Bound<'py, PyDict>> {
        let env = self.env.as_mut().ok_or_else(|| PyRuntimeError::new_err("call reset() first"))?;
        let seen = env.step(cwnd, rate);
        raise_interrupt()?;
        shown(py, &seen)
    }
}

fn shown<'py>(py: Python<'py>, seen: &Observation) -> PyResult<Bound<'py, PyDict>> {
    let values = PyDict::new(py);
    let numbers = [
        ("now_us", seen.now_us),
        ("acked", seen.acked),
        ("lost", seen.lost),
        ("marked", seen.marked),
        ("rtt_us", seen.rtt_us),
        ("rate_in", seen.rate_in),
        ("rate_out", seen.rate_out),
        ("in_flight", seen.in_flight),
        ("cwnd", seen.cwnd),
        ("rate", seen.rate),
        ("bounded_us", seen.bounded_us),
        ("queue", seen.queue),
    ];
    numbers.into_iter().try_for_each(|(name, value)| values.set_item(name, value))?;
    values.set_item("timeout", seen.timeout)?;
    values.set_item("is_over", seen.is_over)?;
    Ok(values)
}
