//! Threads, jobs, epochs and batches.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use sutler_core::{CrewLimits, SampleId};
use sutler_engine::{
    BatchEntry, Canceller, Connection, Fill, Handling, JobOptions, Key, Next, Padding, Pool, ProcessOptions,
    ProcessPreparation, Revive, RunError, ServingOrder,
};
use sutler_media::{DType, Layout, OutputSpec};
use sutler_service::spec::{EpochSpec, JobError, JobSpec, Memory, PolicySpec, SequenceSpec};
use sutler_service::{ClientError, RemoteJob, RemoteRun, pool_here};

use crate::agent::{AgentChoice, client_error};
use crate::batch::Batch;
use crate::cache::Cache;
use crate::dataset::Dataset;
use crate::errors::run_error;
use crate::handover::Handover;
use crate::pipeline::{Pipeline, VolumeOutput};
use crate::served::Served;
use crate::text::Text;

/// How long a waiting consumer may keep Ctrl-C waiting.
pub const SIGNAL_CHECK: Duration = Duration::from_millis(50);

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

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
        Ok(Run {
            samples: job.samples,
            canceller: match &inner {
                OpenRun::Here(run) => Some(run.canceller()),
                OpenRun::Agent(_) => None,
            },
            inner: Mutex::new(Some(inner)),
            output: job.output,
            volumes: job.volumes,
            layout: job.layout,
        })
    }
}

fn parse_policy(errors: &str, count_max: Option<u64>, rate_max: Option<f64>) -> PyResult<PolicySpec> {
    match errors {
        "raise" => Ok(PolicySpec::Raise),
        "skip" => Ok(PolicySpec::Skip),
        "budget" => Ok(PolicySpec::Budget { count_max, rate_max }),
        other => Err(PyValueError::new_err(format!("errors={other:?} is not a policy"))),
    }
}

/// The order in which samples are served, by how late one may be where they are served as they get ready.
fn serving_order(lateness: Option<u32>) -> ServingOrder {
    lateness.map_or(ServingOrder::Strict, |lateness| ServingOrder::Ready { lateness })
}

/// The way to a worker as Python tells it: a socket that it has detached from its own object, for a thread the counter, and for
/// a process its number.
type Way = (i32, Option<Py<Handover>>, Option<i32>);

fn connect((descriptor, handover, process): Way) -> Connection {
    Connection {
        process,
        socket: UnixStream::from(crate::dlpack::take_descriptor(descriptor)),
        handover: handover.map(|handover| handover.get().engine_side()),
    }
}

/// Starts workers by calling back into Python.
struct PythonRevive {
    revive: Py<PyAny>,
    is_alive: Py<PyAny>,
    post_mortem: Py<PyAny>,
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

    fn revive(&self, worker: usize) -> std::io::Result<Connection> {
        Python::attach(|py| {
            let way = self.revive.call1(py, (worker,)).and_then(|way| way.extract::<Way>(py));
            way.map(connect).map_err(|error| std::io::Error::other(error.to_string()))
        })
    }
}

/// Who does a job.
enum Work {
    /// The engine of this process.
    Here(Arc<sutler_engine::Job>),
    /// An agent.
    Agent(Arc<RemoteJob>),
}

/// What is prepared, and into which memory.
#[pyclass(frozen)]
pub struct Job {
    work: Work,
    samples: u32,
    output: OutputSpec,
    /// What comes out, where it is volumes.
    volumes: Option<VolumeOutput>,
    layout: Layout,
    processes: Option<ProcessPreparation>,
}

#[pymethods]
impl Job {
    /// A job whose samples are prepared by worker processes or threads. `revive` is called with a worker's number to start
    /// it anew and returns the way to it, `is_alive` to tell whether it runs, `post_mortem` how it ended. Where they are `elastic`, workers come and
    /// go with the engine's threads.
    #[staticmethod]
    #[pyo3(signature = (*, batch_size, batches_ahead, ahead_grows, batches_held, in_step, whole_batches, revive, is_alive, post_mortem, errors, errors_max=None, errors_rate=None, lateness=None, elastic=false, cache=None, hand_over=false))]
    #[allow(clippy::too_many_arguments)] // one call per loader, by keyword
    fn with_processes(
        batch_size: usize,
        batches_ahead: usize,
        ahead_grows: bool,
        batches_held: usize,
        in_step: bool,
        whole_batches: bool,
        revive: Py<PyAny>,
        is_alive: Py<PyAny>,
        post_mortem: Py<PyAny>,
        errors: &str,
        errors_max: Option<u64>,
        errors_rate: Option<f64>,
        lateness: Option<u32>,
        elastic: bool,
        cache: Option<&Cache>,
        hand_over: bool,
    ) -> PyResult<Self> {
        let policy = parse_policy(errors, errors_max, errors_rate)?;
        let options = JobOptions {
            batch_size,
            batches_ahead,
            ahead_grows,
            batches_held,
            errors: policy.into(),
            go_on: true,
            in_step,
            order: serving_order(lateness),
        };
        let processes = ProcessPreparation::new(ProcessOptions {
            revive: Arc::new(PythonRevive { revive, is_alive, post_mortem }),
            retry: policy != PolicySpec::Raise,
            ahead: options.depth(),
            held: batches_held,
            whole_batches,
            elastic,
            cache: cache.map(|cache| Arc::clone(&cache.inner)),
            hand_over,
        });
        let inner = sutler_engine::Job::new(Arc::new(processes.clone()), options)
            .map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        let output = OutputSpec { dtype: DType::U8, size: None };
        // It is for the dataset to say which indices it does not have.
        let samples = u32::MAX;
        let work = Work::Here(inner);
        let layout = Layout::Nchw;
        Ok(Self { work, samples, output, volumes: None, layout, processes: Some(processes) })
    }

    /// A job whose samples are lines of text, or blocks of them, in another order in every epoch if there is a seed to `shuffle` by. Lines are
    /// padded with the token `pad` to a multiple of `pad_multiple`, where it is given.
    #[staticmethod]
    #[pyo3(signature = (text, *, batch_size, batches_ahead, ahead_grows, batches_held, in_step, errors, errors_max=None, errors_rate=None, lateness=None, shuffle=None, pad=None, pad_multiple=1, cache=None))]
    #[allow(clippy::too_many_arguments)] // one call per loader, by keyword
    fn with_text(
        text: &Text,
        batch_size: usize,
        batches_ahead: usize,
        ahead_grows: bool,
        batches_held: usize,
        in_step: bool,
        errors: &str,
        errors_max: Option<u64>,
        errors_rate: Option<f64>,
        lateness: Option<u32>,
        shuffle: Option<u64>,
        pad: Option<i64>,
        pad_multiple: usize,
        cache: Option<&Cache>,
    ) -> PyResult<Self> {
        let padding = pad.map(|value| Padding { fill: Fill::Integer(value), multiple: pad_multiple });
        let cache = cache.map(|cache| Arc::clone(&cache.inner));
        let options = JobOptions {
            batch_size,
            batches_ahead,
            ahead_grows,
            batches_held,
            errors: parse_policy(errors, errors_max, errors_rate)?.into(),
            go_on: false,
            in_step,
            order: serving_order(lateness),
        };
        let inner = sutler_engine::Job::new(text.preparation(shuffle, padding, cache), options)
            .map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        let output = OutputSpec { dtype: DType::U8, size: None };
        let (work, samples, layout) = (Work::Here(inner), text.samples(), Layout::Nchw);
        Ok(Self { work, samples, output, volumes: None, layout, processes: None })
    }

    /// Talks to these workers from now on; the job takes the sockets over.
    fn use_workers(&self, ways: Vec<Way>) -> PyResult<()> {
        let connections = ways.into_iter().map(connect).collect();
        match &self.processes {
            Some(processes) => {
                processes.use_workers(connections).map_err(|error| PyOSError::new_err(error.to_string()))
            }
            None => Err(PyRuntimeError::new_err("this job has no worker processes")),
        }
    }

    /// Which sample each worker process or thread is at, by the worker's number and in words.
    fn under_way(&self) -> Vec<(usize, String)> {
        self.processes.as_ref().map_or_else(Vec::new, ProcessPreparation::under_way)
    }

    /// Names further samples, by their pickled keys and in words; they are numbered on from `FIRST_KEYED`.
    fn add_keys(&self, keys: Vec<(Vec<u8>, String)>) {
        if let Some(processes) = &self.processes {
            processes.add_keys(keys.into_iter().map(|(bytes, text)| Key { bytes, text }).collect());
        }
    }

    /// The layout of batches in shared memory, as a worker described it.
    #[getter]
    fn schema(&self) -> Option<Vec<u8>> {
        self.processes.as_ref().and_then(|processes| processes.schema().map(<[u8]>::to_vec))
    }

    /// Hangs up on the worker processes or the agent, so that nobody waits for them any longer.
    fn hang_up(&self, py: Python<'_>) {
        if let Work::Agent(job) = &self.work {
            py.detach(|| job.close());
        }
        if let Some(processes) = &self.processes {
            processes.hang_up();
        }
    }

    /// A job that native threads do, or an agent. Those of one process that are `shared` can share what they prepare: the first
    /// has a window of its own, and the others name it in `shares_with`.
    #[allow(clippy::too_many_arguments)] // one call per loader, by keyword
    #[new]
    #[pyo3(signature = (dataset, pipeline, *, seed, channels_last, batch_size, batches_ahead, ahead_grows, batches_held, in_step, errors, errors_max=None, errors_rate=None, lateness=None, shared=false, pad=None, frame=None, cache=None, agent=None, name=None, window_bytes=0, shares_with=None))]
    fn new(
        py: Python<'_>,
        dataset: &Dataset,
        pipeline: &Pipeline,
        seed: u64,
        channels_last: bool,
        batch_size: usize,
        batches_ahead: usize,
        ahead_grows: bool,
        batches_held: usize,
        in_step: bool,
        errors: &str,
        errors_max: Option<u64>,
        errors_rate: Option<f64>,
        lateness: Option<u32>,
        shared: bool,
        pad: Option<f32>,
        frame: Option<u32>,
        cache: Option<&Cache>,
        agent: Option<AgentChoice>,
        name: Option<String>,
        window_bytes: u64,
        shares_with: Option<&Job>,
    ) -> PyResult<Self> {
        let spec = JobSpec {
            name,
            dataset: dataset.spec().clone(),
            fingerprint: dataset.listed(),
            operations: pipeline.operations.clone(),
            dct_scaling: pipeline.dct_scaling,
            channels_last,
            seed,
            batch_size,
            batches_ahead,
            ahead_grows,
            batches_held,
            in_step,
            errors: parse_policy(errors, errors_max, errors_rate)?,
            pad,
            frame,
            lateness,
            shared,
        };
        let layout = spec.layout();
        let work = match agent {
            Some(agent) => Work::Agent(agent.open(py, spec, dataset)?),
            None => {
                let cache = cache.map(|cache| Arc::clone(&cache.inner));
                let job = spec.open(dataset.samples_source(), Memory::Own, cache).map_err(|error| {
                    let text = error.to_string();
                    match error {
                        JobError::Pipeline(_) => PyValueError::new_err(text),
                        JobError::Memory(_) | JobError::Cache(_) => PyMemoryError::new_err(text),
                    }
                })?;
                let other = shares_with.and_then(|other| match &other.work {
                    Work::Here(job) => job.pool().map(Arc::clone),
                    Work::Agent(_) => None,
                });
                let pool = shared.then(|| {
                    let samples = dataset.samples();
                    other.unwrap_or_else(|| match window_bytes {
                        0 => Pool::alone(samples, seed),
                        _ => pool_here(samples, window_bytes),
                    })
                });
                Work::Here(match pool {
                    Some(pool) => {
                        let name = pool.new_job();
                        job.sharing(pool, name)
                    }
                    None => job,
                })
            }
        };
        let output = pipeline.output();
        let volumes = dataset.volumes_of(pipeline);
        Ok(Self { work, samples: dataset.samples(), output, volumes, layout, processes: None })
    }

    /// Address and size of the batch memory, where samples have one size.
    #[getter]
    fn arena(&self) -> Option<(usize, usize)> {
        match &self.work {
            Work::Here(job) => job.arena().map(|arena| arena.range()),
            Work::Agent(job) => job.arena().map(|arena| arena.range()),
        }
    }

    /// How many batches are prepared ahead, as things are.
    #[getter]
    fn batches_ahead(&self) -> usize {
        match &self.work {
            Work::Here(job) => job.batches_ahead(),
            Work::Agent(job) => job.spec().batches_ahead,
        }
    }

    /// How much memory its batches have, where samples have one size.
    #[getter]
    fn memory_bytes(&self) -> usize {
        match &self.work {
            Work::Here(job) => job.memory_bytes(),
            Work::Agent(job) => job.arena().map_or(0, |arena| arena.range().1),
        }
    }

    /// The failures of the latest epoch: id, path, kind, reason.
    fn failures(&self) -> Vec<(u32, String, &'static str, String)> {
        let failures = match &self.work {
            Work::Here(job) => job.failures(),
            Work::Agent(job) => job.failures(),
        };
        failures.into_iter().map(|f| (f.sample.0, f.path, f.kind, f.reason)).collect()
    }

    /// All figures so far, as JSON.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        match &self.work {
            Work::Here(job) => serde_json::to_string(&job.snapshot()).map_err(value_error),
            Work::Agent(job) => Ok(py.detach(|| job.metrics()).to_string()),
        }
    }

    /// The latest batches and samples one by one, and how the times of stages are spread, as JSON. Times are seconds since
    /// a moment that is `age` seconds ago. An agent's job has its batches alone.
    fn timeline(&self) -> PyResult<String> {
        let (timeline, quantiles) = match &self.work {
            Work::Here(job) => (job.metrics().timeline(), job.metrics().quantiles()),
            Work::Agent(job) => (job.timeline(), Vec::new()),
        };
        let age = timeline.origin.elapsed().as_secs_f64();
        let told = serde_json::json!({ "age": age, "timeline": timeline, "quantiles": quantiles });
        serde_json::to_string(&told).map_err(value_error)
    }
}

/// An epoch, and who runs it.
enum OpenRun {
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

    /// The next batch; `None` at the end of the epoch. Raises `TimeoutError` after `timeout` seconds, if given.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        // A time that cannot be counted is as good as for ever.
        let deadline = timeout
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .and_then(|timeout| Instant::now().checked_add(timeout));
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
                    return Ok(Some(Batch {
                        inner: Arc::new(batch),
                        output: self.output,
                        volumes: self.volumes,
                        layout: self.layout,
                    }));
                }
                Some(Ok(Next::TimedOut)) => {
                    py.check_signals()?;
                    if deadline.is_some_and(|at| at <= Instant::now()) {
                        return Err(PyTimeoutError::new_err("no batch was ready in time"));
                    }
                }
            }
        }
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
            drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take());
        });
    }
}

impl Run {
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
