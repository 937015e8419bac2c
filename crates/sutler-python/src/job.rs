//! Jobs: what is prepared, by whom, and into which memory.

use std::sync::Arc;

use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use sutler_core::Rota;
use sutler_engine::{Fill, JobOptions, Key, Padding, Pool, ProcessOptions, ProcessPreparation, ServingOrder};
use sutler_media::{DType, Layout, OutputSpec};
use sutler_service::spec::{JobError, JobSpec, Memory, PolicySpec};
use sutler_service::{RemoteJob, pool_here};

use crate::agent::AgentChoice;
use crate::cache::Cache;
use crate::dataset::Dataset;
use crate::errors::value_error;
use crate::pipeline::{Pipeline, VolumeOutput};
use crate::text::Text;
use crate::workers::{PythonRevive, Way, connect};

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

/// Who does a job.
pub enum Work {
    /// The engine of this process.
    Here(Arc<sutler_engine::Job>),
    /// An agent.
    Agent(Arc<RemoteJob>),
}

/// What is prepared, and into which memory.
#[pyclass(frozen)]
pub struct Job {
    pub(crate) work: Work,
    pub(crate) samples: u32,
    pub(crate) output: OutputSpec,
    /// What comes out, where it is volumes.
    pub(crate) volumes: Option<VolumeOutput>,
    pub(crate) layout: Layout,
    processes: Option<ProcessPreparation>,
}

impl Job {
    /// What its workers prepare, where it has some.
    fn workers(&self) -> PyResult<&ProcessPreparation> {
        self.processes.as_ref().ok_or_else(|| PyRuntimeError::new_err("this job has no worker processes"))
    }
}

#[pymethods]
impl Job {
    /// A job whose samples are prepared by worker processes or threads. `revive` is called with a worker's number to
    /// start it anew and returns the way to it, `is_alive` to tell whether it runs, `post_mortem` how it ended. Where
    /// they are `elastic`, workers come and go with the engine's threads.
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

    /// A job whose samples are lines of text, or blocks of them, in another order in every epoch if there is a seed to
    /// `shuffle` by. Lines are padded with the token `pad` to a multiple of `pad_multiple`, where it is given.
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

    /// Talks to these workers from now on, and to so many that are to come; the job takes the sockets over.
    fn use_workers(&self, ways: Vec<Way>, to_come: usize) -> PyResult<()> {
        let connections = ways.into_iter().map(connect).collect();
        self.workers()?
            .use_workers(connections, to_come)
            .map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// Talks to another worker, too, of those that were to come.
    fn add_worker(&self, way: Way) -> PyResult<()> {
        self.workers()?.add_worker(connect(way)).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// Has so many workers take whole batches in turn in runs that begin from now on, beginning with this one.
    fn take_turns(&self, workers: usize, first: usize) -> PyResult<()> {
        self.workers()?.take_turns(Rota::new(workers, first));
        Ok(())
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

    /// A job that native threads do, or an agent. Those of one process that are `shared` can share what they prepare:
    /// the first has a window of its own, and the others name it in `shares_with`.
    #[allow(clippy::too_many_arguments)] // one call per loader, by keyword
    #[new]
    #[pyo3(signature = (dataset, pipeline, *, seed, channels_last, batch_size, batches_ahead, ahead_grows, batches_held, in_step, errors, errors_max=None, errors_rate=None, lateness=None, lateness_given=true, shared=false, pad=None, frame=None, cache=None, agent=None, name=None, window_bytes=0, shares_with=None))]
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
        lateness_given: bool,
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
            lateness_given,
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

    /// The latest batches and samples one by one, and how the times of stages are spread, as JSON. Times are seconds
    /// since a moment that is `age` seconds ago. An agent's job has its batches alone.
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
