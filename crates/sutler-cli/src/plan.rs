//! `sutler plan`: what to keep in memory, and in which form.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sutler_core::plan::{Plan as Splits, Prediction, Profile, Split, published};
use sutler_engine::{ProfileRequest, measure_profile};
use sutler_media::Limits;
use sutler_store::cache::parse_size;
use sutler_store::{Files, Io};

use crate::dataset::{DatasetPath, JobArguments, open};
use crate::{Failed, report};

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
    #[arg(long, value_parser = duration)]
    step_time: Option<f64>,
    /// How long to measure, roughly.
    #[arg(long, default_value = "4s", value_parser = duration)]
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
    let wrong = || format!("{text:?} is no duration; write it like 30ms or 1.5s");
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').ok_or_else(wrong)?, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value * unit),
        _ => Err(wrong()),
    }
}

impl Plan {
    pub fn run(&self) -> Result<(), Failed> {
        let files = open(&self.dataset.path, false)?;
        let preparation = self.job.preparation(&files)?;
        let direct = Files::new(Arc::clone(files.listing()), Io::Direct, Limits::default().bytes_max);
        let per_step = f64::from(self.job.batch_size) * f64::from(self.jobs);
        let bar = report::progress(1, "measuring");
        let profile = measure_profile(&ProfileRequest {
            preparation: &preparation,
            storage: &direct,
            threads: self.job.thread_count(),
            jobs: self.jobs,
            device_samples_per_s: self.step_time.map(|seconds| per_step / seconds),
            time: Duration::from_secs_f64(self.time),
        });
        bar.finish_and_clear();
        let profile = profile?;
        let ours = profile.plan(self.memory as f64)?;
        let theirs = published_plan(&profile, self.memory as f64);
        if self.json {
            report::print(&format!("{:#}\n", facts(&profile, &ours, &theirs)));
        } else {
            report::print(&self.story(&profile, &ours, &theirs));
        }
        Ok(())
    }

    fn story(&self, profile: &Profile, ours: &Splits, theirs: &Splits) -> String {
        let per_s = |bytes: f64| format!("{}/s", report::bytes(bytes as u64));
        let mut text = format!(
            "{} samples, {} threads, {}, {} of memory\n\n",
            report::count(u64::from(profile.samples)),
            profile.cores,
            if profile.jobs == 1 { "1 job".to_owned() } else { format!("{} jobs that share", profile.jobs) },
            report::bytes(self.memory),
        );
        let rows = [
            ("a sample as stored", report::bytes(profile.encoded_bytes as u64)),
            ("… decoded", report::bytes(profile.decoded_bytes as u64)),
            ("… augmented", report::bytes(profile.augmented_bytes as u64)),
            ("storage delivers", per_s(profile.storage_bytes_per_s)),
            ("memory delivers", per_s(profile.cache_bytes_per_s)),
            ("decoding takes", report::seconds(profile.decode_s)),
            ("augmenting takes", report::seconds(profile.augment_s)),
            ("copying takes", report::seconds(profile.copy_s)),
        ];
        let rows: Vec<Vec<String>> = rows.map(|(name, value)| vec![name.to_owned(), value]).into();
        text += &report::table(&["measured", ""], &rows);
        text += "\n";
        let line = |name: &str, split: Split, theirs: &Splits| -> Vec<String> {
            let predicted = |plan: &Splits| {
                plan.prediction(split).map_or(String::new(), |p| format!("{:.0}", p.samples_per_s))
            };
            let binds = ours.prediction(split).and_then(|p| p.binds).map_or("", |resource| resource.name());
            vec![format!("{split}{name}"), predicted(ours), binds.to_owned(), predicted(theirs)]
        };
        let corners = [(100, 0, 0), (0, 100, 0), (0, 0, 100), (50, 50, 0), (50, 0, 50), (0, 50, 50)];
        let mut rows = vec![line(" (best)", ours.best.split, theirs)];
        rows.extend(corners.map(|(e, d, a)| line("", Split::new(e, d, a), theirs)));
        text += &report::table(&["split E-D-A", "samples/s", "bound by", "published model"], &rows);
        text += &format!(
            "\nUse cache=sutler.Cache(\"{}\", split=\"{}\"): {:.0} samples/s predicted, bound by {}.\n",
            report::bytes(self.memory).replace(' ', ""),
            ours.best.split,
            ours.best.samples_per_s,
            ours.best.binds.map_or("nothing", |resource| resource.name()),
        );
        text
    }
}

/// The published model with the same measurements.
fn published_plan(profile: &Profile, memory: f64) -> Splits {
    const UNLIMITED: f64 = 1e15;
    let platform = published::Platform {
        nodes: 1.0,
        gpu_samples_per_s: profile.device_samples_per_s,
        decode_augment_samples_per_s: profile.cores / (profile.decode_s + profile.augment_s).max(1e-12),
        augment_samples_per_s: profile.cores / profile.augment_s.max(1e-12),
        network_bytes_per_s: UNLIMITED,
        bus_bytes_per_s: profile.bus_bytes_per_s.unwrap_or(UNLIMITED),
        cache_bytes_per_s: profile.cache_bytes_per_s,
        storage_bytes_per_s: profile.storage_bytes_per_s,
        network_gradient_bytes: 0.0,
        bus_gradient_bytes: 0.0,
    };
    let dataset = published::Dataset {
        samples: f64::from(profile.samples),
        encoded_bytes: profile.encoded_bytes,
        inflation: profile.decoded_bytes / profile.encoded_bytes,
    };
    published::plan(&platform, &dataset, memory)
}

fn facts(profile: &Profile, ours: &Splits, theirs: &Splits) -> Value {
    let entry = |prediction: &Prediction| {
        json!({
            "split": prediction.split.to_string(),
            "predicted": prediction.samples_per_s,
            "bound_by": prediction.binds.map(|resource| resource.name()),
        })
    };
    json!({
        "profile": profile,
        "splits": ours.predictions.iter().map(entry).collect::<Vec<_>>(),
        "best": entry(&ours.best),
        "published": {
            "best": entry(&theirs.best),
            "splits": theirs.predictions.iter().map(entry).collect::<Vec<_>>(),
        },
    })
}
