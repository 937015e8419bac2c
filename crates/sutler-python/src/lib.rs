//! The native module `sutler._sutler`: thin, private, and free of decisions. `python/sutler` is what users see.

mod array;
mod dataset;
mod dlpack;
mod engine;
mod errors;
mod pipeline;

use pyo3::prelude::*;

/// The native half of Sutler.
#[pymodule(gil_used = false)]
mod _sutler {
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::dataset::Dataset;
    #[pymodule_export]
    use crate::engine::{Batch, Engine, Job, Run};
    #[pymodule_export]
    use crate::pipeline::Pipeline;

    use super::*;

    /// Runs the command line with these arguments (without the program's name) and returns its exit code.
    #[pyfunction]
    fn command_line(py: Python<'_>, arguments: Vec<String>, python: String) -> u8 {
        py.detach(|| sutler_cli::run(&arguments, Some(&python)))
    }

    /// How many cores this process may use.
    #[pyfunction]
    fn usable_cores() -> usize {
        sutler_engine::usable_cores()
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
