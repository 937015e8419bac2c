//! `sutler plan`: what to keep in memory, and in which form.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sutler_core::plan::{Answers, Comparison};
use sutler_engine::{ProfileRequest, measure_profile};
use sutler_media::Limits;
use sutler_store::cache::{MemoryLimit, memory_limit, parse_size};
use sutler_store::{Files, Io};

use crate::dataset::{DatasetPath, JobArguments, open};
use crate::{Failed, report};

/// What copies of samples may take while they are measured, both forms together: that of 3,000 photographs.
pub const COPIES_BYTES_MAX: u64 = 4 << 30;

/// Measure a pipeline and say how to split a memory budget over encoded, decoded and augmented samples
///
/// Storage is measured past the page cache, preparation as Sutler does it, from each form. Two models then predict the throughput
/// of every split in steps of one percent: Sutler's, in which whatever runs out first sets the pace, and the published one of Seneca.
#[derive(clap::Args)]
pub struct Plan {
    #[command(flatten)]
    dataset: DatasetPath,
    #[command(flatten)]
    job: JobArguments,
    /// The budget, such as 8GiB or 500MB.
    #[arg(long, value_parser = size)]
    memory: u64,
    /// How many jobs train on the dataset at the same time, sharing what is prepared.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// How long an accelerator takes for a batch, such as 30ms; without it accelerators are no limit.
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    step_time: Option<f64>,
    /// How long to measure, roughly.
    #[arg(long, default_value = "4s", value_parser = seconds, allow_hyphen_values = true)]
    time: f64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Seconds, from text such as `30ms` or `1.5s`.
pub(crate) fn duration(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is no duration; write it with its unit, like 30ms or 1.5s");
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').ok_or_else(wrong)?, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value * unit),
        Ok(_) => Err(format!("{text:?} should be longer than nothing, and no longer than anybody waits")),
        Err(_) => Err(wrong()),
    }
}

/// How long to measure; a number alone is seconds, as nobody would take it for anything else.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    duration(&if text.parse::<f64>().is_ok() { format!("{text}s") } else { text.to_owned() })
}

impl Plan {
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let files = open(&self.dataset.path, false)?;
        let preparation = self.job.preparation(&files)?;
        let direct = Files::new(Arc::clone(files.listing()), Io::Direct, Limits::default().bytes_max);
        let per_step = f64::from(self.job.batch_size) * f64::from(self.jobs);
        let bar = report::progress(1, "measuring");
        let measured = measure_profile(&ProfileRequest {
            preparation: &preparation,
            storage: &*self.job.storage(Arc::new(direct))?,
            copies_bytes_max: COPIES_BYTES_MAX,
            threads: self.job.thread_count(),
            jobs: self.jobs,
            device_samples_per_s: self.step_time.map(|seconds| per_step / seconds),
            time: Duration::from_secs_f64(self.time),
        });
        bar.finish_and_clear();
        let measured = measured?;
        let comparison = Comparison::new(&measured.profile, self.memory)?;
        if self.json {
            let mut facts = serde_json::to_value(&comparison)?;
            facts["broken"] = measured
                .failures
                .iter()
                .map(|failure| json!({ "path": failure.path, "reason": failure.reason }))
                .collect();
            report::print(&format!("{facts:#}\n"));
        } else {
            report::print(&story(&comparison, memory_limit().as_ref()));
            if let Some(complaint) = measured.complaint() {
                report::print(&format!("{complaint}.\n"));
            }
        }
        Ok(())
    }
}

/// What both models say, for a person whose machine has so much memory.
#[must_use]
pub fn story(comparison: &Comparison, limit: Option<&MemoryLimit>) -> String {
    let Comparison { memory_bytes, profile, ours, published } = comparison;
    let per_s = |bytes: f64| format!("{}/s", report::bytes(bytes as u64));
    let mut text = format!(
        "{}, {}, {}, {} of memory\n\n",
        report::counted(u64::from(profile.samples), "sample"),
        report::counted(profile.threads as u64, "thread"),
        if profile.jobs == 1 { "1 job".to_owned() } else { format!("{} jobs that share", profile.jobs) },
        report::bytes(*memory_bytes),
    );
    let rows = [
        ("a sample as stored", report::bytes(profile.encoded_bytes as u64)),
        ("… decoded", report::bytes(profile.decoded_bytes as u64)),
        ("… augmented", report::bytes(profile.augmented_bytes as u64)),
        ("storage delivers", per_s(profile.storage_bytes_per_s)),
        ("memory delivers", per_s(profile.cache_bytes_per_s)),
        ("processors the threads get", format!("{:.1}", profile.cores * profile.share)),
        ("reading takes", report::seconds(profile.read_s)),
        ("decoding takes", report::seconds(profile.decode_s)),
        ("augmenting takes", report::seconds(profile.augment_s)),
        ("copying takes", report::seconds(profile.copy_s)),
    ];
    let rows: Vec<Vec<String>> = rows.map(|(name, value)| vec![name.to_owned(), value]).into();
    text += &report::table(&["measured", ""], &rows);
    text += "\n";
    let line = |name: &str, split: &str| -> Vec<String> {
        let predicted = |answers: &Answers| {
            answers.of(split).map_or(String::new(), |entry| format!("{:.0}", entry.predicted))
        };
        let binds = ours.of(split).and_then(|entry| entry.bound_by).unwrap_or_default();
        vec![format!("{split}{name}"), predicted(ours), binds.to_owned(), predicted(published)]
    };
    let corners = ["100-0-0", "0-100-0", "0-0-100", "50-50-0", "50-0-50", "0-50-50"];
    let mut rows = vec![line(" (best)", &ours.best.split)];
    rows.extend(corners.into_iter().filter(|split| *split != ours.best.split).map(|split| line("", split)));
    text += &report::table(&["split E-D-A", "samples/s", "bound by", "published model"], &rows);
    // What several jobs share is an agent's to keep.
    let remedy = if profile.jobs > 1 {
        format!(
            "sutler serve --memory {memory_bytes} --split {}, and agent=\"auto\", order=\"shared\" in each job",
            ours.best.split
        )
    } else {
        format!("cache=sutler.Cache({memory_bytes}, split=\"{}\")", ours.best.split)
    };
    let expected = format!(
        "{:.0} samples/s predicted, bound by {}",
        ours.best.predicted,
        ours.best.bound_by.unwrap_or("nothing")
    );
    text += &match limit.filter(|limit| limit.bytes < *memory_bytes) {
        // Worth asking before memory is bought, and no cache to be had.
        Some(limit) => format!(
            "\nThe best split would be {}: {expected}. But {} is more than the {} that {}, so a cache of that size is \
             refused here.\n",
            ours.best.split,
            report::bytes(*memory_bytes),
            report::bytes(limit.bytes),
            limit.of,
        ),
        None => format!("\nUse {remedy}: {expected}.\n"),
    };
    text
}
