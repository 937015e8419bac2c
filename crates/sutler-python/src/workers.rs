//! Workers that run Python: the way to each, and how Python is asked to start one anew.

use std::os::unix::net::UnixStream;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sutler_engine::{Connection, Revive};

use crate::handover::Handover;

/// The way to a worker as Python tells it: a socket that it has detached from its own object, for a thread the counter,
/// and for a process its number.
pub type Way = (i32, Option<Py<Handover>>, Option<i32>);

/// The engine's end of it.
pub fn connect((descriptor, handover, process): Way) -> Connection {
    Connection {
        process,
        socket: UnixStream::from(crate::dlpack::take_descriptor(descriptor)),
        handover: handover.map(|handover| handover.get().engine_side()),
    }
}

/// Starts workers by calling back into Python.
pub struct PythonRevive {
    pub revive: Py<PyAny>,
    pub is_alive: Py<PyAny>,
    pub post_mortem: Py<PyAny>,
}

impl Revive for PythonRevive {
    fn is_alive(&self, worker: usize) -> bool {
        // Whoever cannot tell leaves us waiting, as for a worker that is slow.
        Python::attach(|py| {
            self.is_alive.call1(py, (worker,)).and_then(|alive| alive.extract(py)).unwrap_or(true)
        })
    }

    fn post_mortem(&self, worker: usize) -> String {
        Python::attach(|py| {
            let told = self.post_mortem.call1(py, (worker,)).and_then(|text| text.extract::<String>(py));
            told.unwrap_or_else(|error| format!("is gone ({error})"))
        })
    }

    fn revive(&self, worker: usize, dataset_state: Option<&[u8]>) -> std::io::Result<Connection> {
        Python::attach(|py| {
            let state = dataset_state.map(|state| PyBytes::new(py, state));
            let way = self.revive.call1(py, (worker, state)).and_then(|way| way.extract::<Way>(py));
            way.map(connect).map_err(|error| std::io::Error::other(error.to_string()))
        })
    }
}
