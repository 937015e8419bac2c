//! Jobs that an agent does, and what goes wrong with it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{
    PyConnectionError, PyFileNotFoundError, PyMemoryError, PyOSError, PyPermissionError, PyValueError,
};
use pyo3::prelude::*;
use sutler_service::spec::JobSpec;
use sutler_service::{ClientError, Refusal, RemoteJob, RemoteJobOptions};

use crate::dataset::Dataset;
use crate::errors::run_error;
use crate::run::SIGNAL_CHECK;

/// The exception a user expects.
pub fn client_error(py: Python<'_>, error: &ClientError) -> PyErr {
    let text = error.to_string();
    match error {
        ClientError::NoAgent { .. } | ClientError::Lost { .. } => PyConnectionError::new_err(text),
        ClientError::Run(error) => run_error(py, error),
        ClientError::Refused { kind, .. } => match kind {
            Refusal::Denied => PyPermissionError::new_err(text),
            Refusal::Value => PyValueError::new_err(text),
            Refusal::Missing => PyFileNotFoundError::new_err(text),
            Refusal::System => PyOSError::new_err(text),
            Refusal::Memory => PyMemoryError::new_err(text),
        },
    }
}

/// Where an agent listens unless told otherwise.
#[pyfunction]
pub fn agent_socket() -> PathBuf {
    sutler_service::default_socket()
}

/// What the agent at a socket is doing, as JSON. Raises `ConnectionError` where there is none.
#[pyfunction]
pub fn agent_status(py: Python<'_>, socket: PathBuf) -> PyResult<String> {
    let status = py.detach(|| sutler_service::status(&socket));
    status.map(|status| status.to_string()).map_err(|error| client_error(py, &error))
}

/// The agent that does a job, as a loader names it.
#[derive(FromPyObject)]
pub struct AgentChoice {
    /// Where it listens.
    socket: PathBuf,
    /// How many seconds one that is gone is waited for.
    patience: f64,
    /// With how many threads to go on alone if it stays away; without, that is an error.
    threads: Option<usize>,
}

impl AgentChoice {
    /// Has the agent do a job. It may have to list the dataset first, which Ctrl-C can end.
    pub fn open(self, py: Python<'_>, mut spec: JobSpec, dataset: &Dataset) -> PyResult<Arc<RemoteJob>> {
        spec.dataset = spec.dataset.absolute()?;
        let options = RemoteJobOptions {
            socket: self.socket,
            patience: Duration::try_from_secs_f64(self.patience).unwrap_or(Duration::MAX),
            alone: self.threads.map(|threads| (Arc::clone(dataset.files()), threads)),
        };
        let job = py.detach(|| RemoteJob::open(spec, options)).map_err(|error| client_error(py, &error))?;
        while !py.detach(|| job.is_open(SIGNAL_CHECK)).map_err(|error| client_error(py, &error))? {
            py.check_signals()?;
        }
        Ok(job)
    }
}
