//! `sutler analyze`: where the time goes. Its arguments; what they ask for is done by whoever has the loaders.

use std::path::PathBuf;

use serde::Serialize;

use crate::dataset::{DatasetPath, JobArguments};
use crate::plan::{duration, seconds, size};

/// Say where a trainer's time goes, what would change it, and what to do about it
///
/// The accelerator is emulated: a step takes as long as you say. The same batches are served when they are simply there, from memory,
/// and from storage past the page cache, and the differences are what the trainer waits for. What-ifs say what more memory, more cores or other
/// storage would bring. To analyse a real training step, or PyTorch's DataLoader, use sutler.analyze from Python.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Analyze {
    #[command(flatten)]
    dataset: DatasetPath,
    #[command(flatten)]
    job: JobArguments,
    /// How long the accelerator takes for a batch, such as 30ms; by default it is no limit.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, conflicts_with = "accelerator")]
    step_time: Option<f64>,
    /// An accelerator whose step time was published, such as resnet50-h100; it brings its batch size and its pass line.
    #[arg(long, value_name = "NAME", conflicts_with = "batch_size")]
    accelerator: Option<String>,
    /// How much memory the loader keeps samples in, such as 1GiB.
    #[arg(long, value_parser = size)]
    cache: Option<u64>,
    /// How many batches to look at, at the most.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batches: Option<u32>,
    /// How long to measure, roughly.
    #[arg(long, default_value = "20s", value_parser = seconds, allow_hyphen_values = true)]
    time: f64,
    /// Run some of the predicted configurations, and say how far the predictions were off.
    #[arg(long)]
    verify: bool,
    /// Write the report as a page for the browser.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the batches of the measured run as a trace, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}
