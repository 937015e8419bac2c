//! Epochs, seen from the consumer: their batches one by one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use sutler_engine::{BatchEntry, Canceller, Handling, Next, RunError};
use sutler_media::{Layout, OutputSpec};
use sutler_service::{ClientError, RemoteRun};

use crate::agent::client_error;
use crate::batch::Batch;
use crate::errors::run_error;
use crate::job::Job;
use crate::pipeline::VolumeOutput;

pyo3::create_exception!(
    _sutler,
    NotInTime,
    PyException,
    "No batch was ready in the time that was given. No dataset raises it, as it may raise `TimeoutError`."
);

pyo3::create_exception!(
    _sutler,
    PassedOver,
    PyException,
    "A batch had no good sample, and the sampler has to draw another one for it before the next one is waited for."
);

/// How long a waiting consumer may keep Ctrl-C waiting.
pub const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// An epoch, and who runs it.
pub enum OpenRun {
    Here(Box<sutler_engine::Run>),
    Agent(Box<RemoteRun>),
}

impl OpenRun {
    fn next(&mut self, timeout: Duration) -> Result<Next, ClientError> {
        match self {
            Self::Here(run) => run.next(timeout).map_err(ClientError::from),
            Self::Agent(run) => run.next(timeout),
        }
    }

    fn take_passed(&mut self) -> u64 {
        match self {
            Self::Here(run) => run.take_passed(),
            Self::Agent(run) => run.take_passed(),
        }
    }

    fn handed_over(&mut self, handling: Handling) {
        match self {
            Self::Here(run) => run.handed_over(handling),
            Self::Agent(run) => run.handed_over(handling),
        }
    }

    fn last_delivery(&self) -> Option<BatchEntry> {
        match self {
            Self::Here(run) => run.last_delivery(),
            Self::Agent(run) => run.last_delivery(),
        }
    }
}

/// One epoch, seen from the consumer.
#[pyclass(frozen)]
pub struct Run {
    /// One consumer at a time, who holds it while waiting. Taken by `close`.
    inner: Mutex<Option<OpenRun>>,
    /// A batch that has come together with a signal whose handler raised: for whoever asks again.
    held: Mutex<Option<Batch>>,
    /// For `close`, which cannot wait until the consumer lets go. An agent's consumer lets go soon enough.
    canceller: Option<Canceller>,
    /// The size of the dataset, for what a sampler draws.
    samples: u32,
    output: OutputSpec,
    volumes: Option<VolumeOutput>,
    layout: Layout,
}

#[pymethods]
impl Run {
    /// How many batches the run delivers in all; `None` while a sampler may draw more, and after `close`.
    #[getter]
    fn batches(&self) -> Option<u64> {
        let run = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match run.as_ref()? {
            OpenRun::Here(run) => run.batches(),
            OpenRun::Agent(run) => run.batches(),
        }
    }

    /// The sampler has drawn these; the upper half of each says how often it has drawn that sample before.
    fn extend(&self, py: Python<'_>, indices: Vec<u64>) -> PyResult<()> {
        self.change(py, |run| match run {
            OpenRun::Here(run) => {
                run.extend(|plan| plan.extend(&indices, self.samples)).map_err(ClientError::from)
            }
            OpenRun::Agent(run) => run.extend(indices, self.samples),
        })
    }

    /// The batch sampler has drawn these, as for `extend`.
    fn extend_batches(&self, py: Python<'_>, batches: Vec<Vec<u64>>) -> PyResult<()> {
        self.change(py, |run| match run {
            OpenRun::Here(run) => {
                run.extend(|plan| plan.extend_batches(&batches, self.samples)).map_err(ClientError::from)
            }
            OpenRun::Agent(run) => run.extend_batches(batches, self.samples),
        })
    }

    /// The sampler is at its end.
    fn end_drawing(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, |run| match run {
            OpenRun::Here(run) => run.extend(|plan| {
                plan.end();
                Ok(())
            }),
            OpenRun::Agent(run) => run.end_drawing(),
        })
    }

    /// How much of the epoch's sequence all ranks have consumed, where batches are served in order.
    #[getter]
    fn consumed(&self) -> u64 {
        let run = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match run.as_ref() {
            None => 0,
            Some(OpenRun::Here(run)) => run.cursor().consumed,
            Some(OpenRun::Agent(run)) => run.consumed(),
        }
    }

    /// The next batch; `None` at the end of the epoch. Raises `NotInTime` after `timeout` seconds, if given, and
    /// `PassedOver` when a batch had no good sample and the sampler has to draw another one for it.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        // A time that cannot be counted is as good as for ever.
        let deadline = timeout
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(batch) = self.held().take() {
            return Ok(Some(batch));
        }
        loop {
            let wait = deadline
                .map_or(SIGNAL_CHECK, |at| at.saturating_duration_since(Instant::now()).min(SIGNAL_CHECK));
            let answer = py.detach(|| {
                let mut run = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                run.as_mut().map(|run| run.next(wait))
            });
            match answer {
                None => return Err(run_error(py, &RunError::Closed)),
                Some(Ok(Next::End)) => return Ok(None),
                Some(Err(error)) => return Err(client_error(py, &error)),
                Some(Ok(Next::Batch(batch))) => {
                    let batch = Batch {
                        inner: Arc::new(batch),
                        output: self.output,
                        volumes: self.volumes,
                        layout: self.layout,
                    };
                    // Python looks for signals as soon as we return, and what a handler raises would lose the batch.
                    if let Err(raised) = py.check_signals() {
                        *self.held() = Some(batch);
                        return Err(raised);
                    }
                    return Ok(Some(batch));
                }
                Some(Ok(Next::Passed)) => {
                    return Err(PassedOver::new_err("no sample of a batch was any good"));
                }
                Some(Ok(Next::TimedOut)) => {
                    py.check_signals()?;
                    if deadline.is_some_and(|at| at <= Instant::now()) {
                        return Err(NotInTime::new_err("no batch was ready in time"));
                    }
                }
            }
        }
    }

    /// Whether a batch has come that a signal's handler kept from being delivered, which the next request gets.
    #[getter]
    fn holds_batch(&self) -> bool {
        self.held().is_some()
    }

    /// How many batches were passed over since this was last asked.
    fn take_passed(&self) -> u64 {
        let mut run = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        run.as_mut().map_or(0, OpenRun::take_passed)
    }

    /// The trainer has the latest batch in its hands only now: until then it was transformed or collated (`prepared`), or
    /// put where the trainer wants it.
    fn handed_over(&self, prepared: bool) {
        let handling = if prepared { Handling::Prep } else { Handling::Transport };
        let mut run = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = run.as_mut() {
            run.handed_over(handling);
        }
    }

    /// The seconds of fetch, prep and transport in the wait for the latest batch, and how many samples that has.
    fn last_delivery(&self) -> (f64, f64, f64, usize) {
        let run = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let last = run.as_ref().and_then(OpenRun::last_delivery).unwrap_or_default();
        (last.fetch, last.prep, last.transport, last.samples)
    }

    /// Calls the rest of the epoch off, also while another thread waits for a batch.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            if let Some(canceller) = &self.canceller {
                canceller.cancel();
            }
            drop(self.held().take());
            drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take());
        });
    }
}

impl Run {
    /// An epoch of this job that has begun.
    pub fn new(inner: OpenRun, job: &Job) -> Self {
        Self {
            samples: job.samples,
            canceller: match &inner {
                OpenRun::Here(run) => Some(run.canceller()),
                OpenRun::Agent(_) => None,
            },
            inner: Mutex::new(Some(inner)),
            held: Mutex::default(),
            output: job.output,
            volumes: job.volumes,
            layout: job.layout,
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Batch>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut OpenRun) -> Result<(), ClientError> + Send,
    ) -> PyResult<()> {
        let changed = py.detach(|| {
            let mut run = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            run.as_mut().map_or(Ok(()), change)
        });
        changed.map_err(|error| client_error(py, &error))
    }
}
