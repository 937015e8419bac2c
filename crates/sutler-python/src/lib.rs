//! The native module `sutler._sutler`: thin, private, and free of decisions. `python/sutler` is what users see.

mod agent;
mod analyse;
mod array;
mod batch;
mod cache;
mod dataset;
mod detection;
mod dlpack;
mod engine;
mod errors;
mod handover;
mod job;
mod pipeline;
mod plan;
mod prepare;
mod run;
mod served;
mod text;
mod workers;

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use sutler_cli::photos::PhotoSet;
use sutler_core::{
    BucketSpec, Draw, EpochPlan, GroupSpec, JobCursor, JobSpec, Permutation, SampleId, SampleRng, Shard,
    Stream,
};
use sutler_engine::bare_rate;

use crate::errors::sample_error;
use crate::served::without;

/// The order of an epoch over `samples` samples.
pub(crate) fn permutation(samples: u32, shuffle: bool, seed: u64, epoch: u32) -> Permutation {
    if shuffle { Permutation::shuffled(samples, seed, epoch) } else { Permutation::identity(samples) }
}

/// The native half of Sutler.
#[pymodule(gil_used = false)]
mod _sutler {
    #[pymodule_export]
    use crate::agent::{agent_socket, agent_status};
    #[pymodule_export]
    use crate::analyse::{
        advise, attribute_stalls, book_cost, confidence, fetch_rate, predict_rate, read_samples,
        recall_samples, storage_behind,
    };
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::cache::{Cache, CacheReader, parse_size};
    #[pymodule_export]
    use crate::dataset::Dataset;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::handover::Handover;
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::pipeline::{Pipeline, draw};
    #[pymodule_export]
    use crate::plan::{choose_split, compare_plans, correct_profile, measure_profile};
    #[pymodule_export]
    use crate::prepare::prepare_volumes;
    #[pymodule_export]
    use crate::run::Run;
    #[pymodule_export]
    use crate::served::{Positions, Served};
    #[pymodule_export]
    use crate::text::{Text, Tokenizer, is_json_lines, text_files_in};

    use super::*;

    /// Runs the command line with these arguments (without the program's name) and returns its exit code.
    #[pyfunction]
    fn command_line(py: Python<'_>, arguments: Vec<String>, python: String) -> u8 {
        let analyse = |request: &sutler_cli::Analyze| {
            let request = serde_json::to_string(request)?;
            Python::attach(|py| {
                let command = py.import("sutler.analysis.command")?;
                command.call_method1("run", (request,))?.extract::<Option<String>>()
            })
            .map_err(|error| error.to_string())?
            .map_or(Ok(()), |reason| Err(reason.into()))
        };
        py.detach(|| sutler_cli::run(&arguments, Some(&python), &analyse))
    }

    /// How many cores this process may use.
    #[pyfunction]
    fn usable_cores() -> usize {
        sutler_engine::usable_cores()
    }

    /// Ends this process, which is a worker, when its trainer ends; then also deletes what that leaves behind.
    #[pyfunction]
    fn end_with(trainer: i32, traces: Vec<PathBuf>) -> PyResult<()> {
        sutler_engine::end_with(trainer, traces).map_err(|error| {
            PyOSError::new_err(format!(
                "this worker cannot watch its trainer (process {trainer}): {error}; lower num_workers, or raise the limit on threads"
            ))
        })
    }

    /// Lets this thread never take a core from the trainer by waking up.
    #[pyfunction]
    fn give_way() {
        sutler_engine::give_way();
    }

    /// Lets this process keep the memory that one sample took for the next.
    #[pyfunction]
    fn keep_memory() {
        sutler_engine::keep_memory();
    }

    /// The seed for user code that prepares this sample with generators of its own.
    #[pyfunction]
    #[pyo3(signature = (seed, epoch, sample, repeat = 0))]
    fn user_seed(seed: u64, epoch: u32, sample: u32, repeat: u32) -> u64 {
        // 63 bits, as every generator of Python, NumPy and PyTorch takes them.
        SampleRng::of_draw(seed, Stream::User, Draw { epoch, repeat }, sample).next_u64() >> 1
    }

    /// How many seconds the bare loop takes for an epoch: the same operations on as many threads, and no loader.
    #[pyfunction]
    #[pyo3(signature = (dataset, pipeline, *, shuffle, seed, epoch, threads))]
    fn bare_seconds(
        py: Python<'_>,
        dataset: &Dataset,
        pipeline: &Pipeline,
        shuffle: bool,
        seed: u64,
        epoch: u32,
        threads: usize,
    ) -> PyResult<f64> {
        let samples = dataset.samples();
        let permutation = permutation(samples, shuffle, seed, epoch);
        let order: Vec<SampleId> = (0..samples).map(|position| permutation.sample_at(position)).collect();
        let preparation = dataset.preparation(pipeline, seed)?;
        py.detach(|| bare_rate(&*preparation, &order, epoch, threads))
            .map(|took| took.as_secs_f64())
            .map_err(|failure| sample_error(py, &failure))
    }

    /// The samples of one rank's epoch, in order.
    #[pyfunction]
    #[pyo3(signature = (samples, *, shuffle, seed, epoch, drop_last, rank, world_size))]
    fn epoch_order(
        samples: u32,
        shuffle: bool,
        seed: u64,
        epoch: u32,
        drop_last: bool,
        rank: u32,
        world_size: u32,
    ) -> PyResult<Vec<u32>> {
        let shard = Shard::new(rank, world_size).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let permutation = permutation(samples, shuffle, seed, epoch);
        let spec = JobSpec { batch_size: 1, drop_last, shard };
        let plan = EpochPlan::new(permutation, &spec, JobCursor::start_of(epoch))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((0..plan.batches()).flat_map(|index| plan.batch(index).samples).map(|sample| sample.0).collect())
    }

    /// The batches of a rank's epoch over samples of these lengths, each of samples of similar length.
    #[pyfunction]
    #[pyo3(signature = (lengths, *, batch_size, buckets, shuffle, drop_last, seed, epoch, rank, world_size))]
    #[allow(clippy::too_many_arguments)] // one call per epoch, by keyword
    fn bucket_batches(
        py: Python<'_>,
        lengths: Vec<u64>,
        batch_size: u32,
        buckets: u32,
        shuffle: bool,
        drop_last: bool,
        seed: u64,
        epoch: u32,
        rank: u32,
        world_size: u32,
    ) -> PyResult<Vec<Vec<u32>>> {
        let shard = Shard::new(rank, world_size).map_err(|error| PyValueError::new_err(error.to_string()))?;
        SampleId::check_count(lengths.len()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let spec = BucketSpec { batch_size, buckets, shuffle, drop_last, seed, epoch, shard };
        let batches = py.detach(|| sutler_core::bucket_batches(&lengths, &spec));
        Ok(batches.into_iter().map(|batch| batch.into_iter().map(|sample| sample.0).collect()).collect())
    }

    /// The batches of a rank's epoch over samples of these groups, each of samples of one group.
    #[pyfunction]
    #[pyo3(signature = (groups, *, batch_size, shuffle, drop_last, seed, epoch, rank, world_size))]
    #[allow(clippy::too_many_arguments)] // one call per epoch, by keyword
    fn group_batches(
        py: Python<'_>,
        groups: Vec<u32>,
        batch_size: u32,
        shuffle: bool,
        drop_last: bool,
        seed: u64,
        epoch: u32,
        rank: u32,
        world_size: u32,
    ) -> PyResult<Vec<Vec<u32>>> {
        let shard = Shard::new(rank, world_size).map_err(|error| PyValueError::new_err(error.to_string()))?;
        SampleId::check_count(groups.len()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let spec = GroupSpec { batch_size, shuffle, drop_last, seed, epoch, shard };
        let batches = py.detach(|| sutler_core::group_batches(&groups, &spec));
        Ok(batches.into_iter().map(|batch| batch.into_iter().map(|sample| sample.0).collect()).collect())
    }

    /// The batches of a rank's epoch from a cursor on, without what was done before the rest was dealt out and what the rank
    /// has done since; with each, how much of the epoch is consumed after it and the positions it takes.
    #[pyfunction]
    #[pyo3(signature = (samples, *, shuffle, seed, epoch, consumed, batch_size, drop_last, rank, world_size, before=None, done=None))]
    #[allow(clippy::too_many_arguments)] // one call per epoch, by keyword
    fn plan_batches(
        samples: u32,
        shuffle: bool,
        seed: u64,
        epoch: u32,
        consumed: u64,
        batch_size: u32,
        drop_last: bool,
        rank: u32,
        world_size: u32,
        before: Option<&Served>,
        done: Option<&Served>,
    ) -> PyResult<Vec<(Vec<u32>, u64, Positions)>> {
        let shard = Shard::new(rank, world_size).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let spec = JobSpec { batch_size, drop_last, shard };
        let order = permutation(samples, shuffle, seed, epoch);
        let cursor = JobCursor { epoch, consumed };
        let plan = match before {
            Some(before) => EpochPlan::dealt_anew(order, &before.copy(), &spec, cursor),
            None => EpochPlan::new(order, &spec, cursor),
        };
        let plan = without(plan.map_err(|error| PyValueError::new_err(error.to_string()))?, done);
        let batch = |index| {
            let batch = plan.batch(index);
            let samples = batch.samples.iter().map(|id| id.0).collect();
            (samples, plan.cursor_after(index + 1).consumed, Positions(batch.positions))
        };
        Ok((0..plan.batches()).map(batch).collect())
    }

    /// Writes photo-like JPEGs, one folder per class.
    #[pyfunction]
    #[pyo3(signature = (root, *, count, classes, seed, longer_side))]
    fn make_photos(
        py: Python<'_>,
        root: PathBuf,
        count: u32,
        classes: u32,
        seed: u64,
        longer_side: u32,
    ) -> PyResult<()> {
        let set = PhotoSet { count, classes, seed, longer_side };
        py.detach(|| set.write(&root, &|| ())).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("FIRST_KEYED", sutler_engine::FIRST_KEYED)?;
        module.add("NotInTime", module.py().get_type::<crate::run::NotInTime>())?;
        module.add("PassedOver", module.py().get_type::<crate::run::PassedOver>())?;
        module.add("GAIN_MIN", sutler_core::analyse::GAIN_MIN)?;
        module.add("MOSTLY_WAITING", sutler_core::analyse::MOSTLY_WAITING)?;
        module.add("STEP_BUSY", sutler_core::analyse::STEP_BUSY)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
