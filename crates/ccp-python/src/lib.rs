//! The module `towpath_cc` of Python: algorithms of congestion control as classes, agents that serve live flows with them, and the simulator in
//! which they are tried. `towpath_cc.pyi` is its documentation. Every algorithm runs in the thread that runs its agent.
#![forbid(unsafe_code)]

mod agent;
mod aggregate;
mod algorithm;
mod datapath;
mod env;
mod report;
mod trial;

use pyo3::prelude::*;

/// Congestion control for Towpath, and for any datapath that speaks CCP: see `towpath_cc.pyi`.
#[pymodule]
fn towpath_cc(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<algorithm::PyAlgorithm>()?;
    module.add_class::<aggregate::PyAggregate>()?;
    module.add_class::<datapath::PyDatapath>()?;
    module.add_class::<datapath::PyFlowInfo>()?;
    module.add_class::<report::PyReport>()?;
    module.add_class::<agent::PyAgent>()?;
    module.add_class::<env::PyEnv>()?;
    module.add_class::<trial::PyOutcome>()?;
    module.add_function(wrap_pyfunction!(trial::try_, module)?)?;
    module.add_function(wrap_pyfunction!(trial::run_order, module)?)?;
    module.add_function(wrap_pyfunction!(trial::names, module)?)?;
    module.add("INFINITY", ccp_agent::INFINITY)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
