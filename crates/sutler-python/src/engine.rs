//! Threads, and the epochs that they begin.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use sutler_core::{CrewLimits, SampleId};
use sutler_service::spec::{EpochSpec, SequenceSpec};

use crate::agent::client_error;
use crate::errors::value_error;
use crate::job::{Job, Work};
use crate::run::{OpenRun, Run};
use crate::served::Served;

/// A set of worker threads.
#[pyclass(frozen)]
pub struct Engine {
    /// Taken by `close`.
    inner: Mutex<Option<sutler_engine::Engine>>,
}

#[pymethods]
impl Engine {
    /// `threads` workers; with `threads_max` that many at first, and as many as the demand takes from then on.
    #[new]
    #[pyo3(signature = (threads, threads_max=None))]
    fn new(threads: usize, threads_max: Option<usize>) -> PyResult<Self> {
        let started = match threads_max {
            None => sutler_engine::Engine::new(threads),
            Some(workers_max) => {
                let limits = CrewLimits { workers_min: 1, workers_max, cores: threads };
                sutler_engine::Engine::elastic(limits, sutler_engine::LOOK_EVERY)
            }
        };
        let inner = started.map_err(|error| {
            PyOSError::new_err(format!(
                "{threads} worker threads could not be started: {error}; lower num_workers"
            ))
        })?;
        Ok(Self { inner: Mutex::new(Some(inner)) })
    }

    /// How many workers are on duty now.
    #[getter]
    fn threads(&self) -> usize {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.as_ref().map_or(0, sutler_engine::Engine::threads)
    }

    /// How the number of workers came about, where it follows the demand: seconds, workers and the reason.
    fn crew_changes(&self) -> Vec<(f64, usize, &'static str)> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = inner.as_ref().map_or_else(Vec::new, sutler_engine::Engine::crew_changes);
        changes.into_iter().map(|change| (change.seconds, change.workers, change.reason.name())).collect()
    }

    /// Whether the threads live in this process; false in a forked child.
    #[getter]
    fn is_here(&self) -> bool {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .is_some_and(sutler_engine::Engine::is_here)
    }

    /// Begins an epoch over all samples, from a cursor on, or over a `part` of them, whose order is its own. How many there
    /// are may be told anew for each epoch.
    #[allow(clippy::too_many_arguments)] // one call per epoch, by keyword
    #[pyo3(signature = (job, *, epoch, consumed, shuffle, seed, batch_size, drop_last, rank, world_size, samples=None, before=None, done=None, part=None))]
    fn start(
        &self,
        py: Python<'_>,
        job: &Job,
        epoch: u32,
        consumed: u64,
        shuffle: bool,
        seed: u64,
        batch_size: u32,
        drop_last: bool,
        rank: u32,
        world_size: u32,
        samples: Option<u32>,
        before: Option<&Served>,
        done: Option<&Served>,
        part: Option<Vec<u32>>,
    ) -> PyResult<Run> {
        let samples = samples.unwrap_or(job.samples);
        let part = part.map(|part| part.into_iter().map(SampleId).collect());
        let sequence = SequenceSpec::Own { samples, shuffle, seed, batch_size, drop_last, rank, world_size };
        let (before, done) = (before.map(Served::copy), done.map(Served::copy));
        self.begin(py, job, EpochSpec { epoch, consumed, before, done, sequence, part })
    }

    /// Begins an epoch that a sampler draws; see `Run.extend`.
    #[pyo3(signature = (job, *, epoch, consumed, batch_size, drop_last, done=None))]
    #[allow(clippy::too_many_arguments)] // one call per epoch, by keyword
    fn start_drawn(
        &self,
        py: Python<'_>,
        job: &Job,
        epoch: u32,
        consumed: u64,
        batch_size: u32,
        drop_last: bool,
        done: Option<&Served>,
    ) -> PyResult<Run> {
        let sequence = SequenceSpec::Drawn { batch_size, drop_last };
        self.begin(
            py,
            job,
            EpochSpec { epoch, consumed, before: None, done: done.map(Served::copy), sequence, part: None },
        )
    }

    /// Begins an epoch that a batch sampler draws; see `Run.extend_batches`.
    #[pyo3(signature = (job, *, epoch, consumed, done=None))]
    fn start_batches(
        &self,
        py: Python<'_>,
        job: &Job,
        epoch: u32,
        consumed: u64,
        done: Option<&Served>,
    ) -> PyResult<Run> {
        let sequence = SequenceSpec::Batches;
        self.begin(
            py,
            job,
            EpochSpec { epoch, consumed, before: None, done: done.map(Served::copy), sequence, part: None },
        )
    }

    /// Ends the threads and waits for them.
    fn close(&self, py: Python<'_>) {
        let engine = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            if let Some(engine) = engine {
                engine.close();
            }
        });
    }
}

impl Engine {
    /// Begins an epoch where its job is done: with these threads, or with the agent's.
    fn begin(&self, py: Python<'_>, job: &Job, epoch: EpochSpec) -> PyResult<Run> {
        epoch.check_part(job.samples).map_err(value_error)?;
        let inner = match &job.work {
            Work::Here(inner) => {
                // The interpreter is let go of first: another thread may hold the lock and wait for the interpreter.
                let run = py.detach(|| {
                    let engine = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                    engine.as_ref().map(|engine| epoch.start(engine, inner))
                });
                let run = run.ok_or_else(|| PyRuntimeError::new_err("the loader is closed"))?;
                OpenRun::Here(Box::new(run.map_err(value_error)?))
            }
            Work::Agent(remote) => {
                let started = py.detach(|| remote.start(epoch));
                OpenRun::Agent(Box::new(started.map_err(|error| client_error(py, &error))?))
            }
        };
        Ok(Run::new(inner, job))
    }
}
