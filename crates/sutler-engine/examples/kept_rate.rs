//! How many images a second one thread prepares from storage, from encoded copies and from decoded ones.
//!
//! ```text
//! cargo run --release -p sutler-engine --example kept_rate -- FOLDER [MEBIBYTES] [ROUNDS]
//! ```
//! FOLDER holds one folder of images per class. Rounds take turns and the fastest of each counts, so that a noisy
//! machine is fair to all.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sutler_core::{Permutation, Policy};
use sutler_engine::{ImagePreparation, OwnSample, Preparation, SampleRecord, Target};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions};
use sutler_store::cache::{Backing, Cache, CacheOptions};
use sutler_store::{Files, FolderOptions, Io, Listing, Silent, Source};

const PIPELINES: [(&str, &str); 2] = [
    (
        "train: RandomResizedCrop(224), flip",
        r#"[{"op":"random_resized_crop","size":[224,224],"scale":[0.08,1.0],"ratio":[0.75,1.3333333333333333],
            "interpolation":"bilinear","antialias":true},{"op":"random_horizontal_flip","p":0.5},
            {"op":"normalize","mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}]"#,
    ),
    (
        "eval: Resize(256), CenterCrop(224)",
        r#"[{"op":"resize","size":256,"max_size":null,"interpolation":"bilinear","antialias":true},
            {"op":"center_crop","size":[224,224]},
            {"op":"normalize","mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}]"#,
    ),
];

/// The time of an epoch, in all and by stage.
#[derive(Clone, Copy, Default)]
struct Times {
    total: Duration,
    fetch: Duration,
    decode: Duration,
    augment: Duration,
}

fn run(preparation: &ImagePreparation, epoch: u32) -> Result<Times, Box<dyn Error>> {
    let samples = u32::try_from(preparation.source.len())?;
    let order = Permutation::shuffled(samples, 0, epoch);
    let mut preparer = preparation.preparer();
    let mut rows: Vec<OwnSample> = (0..64).map(|_| OwnSample::default()).collect();
    let mut times = Times::default();
    let start = Instant::now();
    for position in 0..samples {
        let mut record = SampleRecord::start();
        // As a loader would: not into the same few cache lines again and again.
        let row = &mut rows[position as usize % 64];
        preparer.prepare(order.sample_at(position), epoch, &mut Target::Own(row), &mut record)?;
        times.fetch += record.fetch;
        times.decode += record.decode;
        times.augment += record.augment;
    }
    times.total = start.elapsed();
    Ok(times)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().ok_or("usage: kept_rate FOLDER [MEBIBYTES] [ROUNDS]")?;
    let mebibytes: u64 = arguments.get(1).map_or(Ok(2048), |text| text.parse())?;
    let rounds: u32 = arguments.get(2).map_or(Ok(5), |text| text.parse())?;
    let listing = Listing::image_folder(Path::new(folder), &FolderOptions::default(), &Silent)?;
    let source: Arc<dyn Source> = Arc::new(Files::new(listing, Io::Buffered, 1 << 30));
    let samples = source.len();
    println!("{samples} files; one thread, float32 NCHW; microseconds per sample by stage");
    for (name, ops) in PIPELINES {
        let pipeline = Arc::new(Pipeline::from_json(ops, PipelineOptions::default())?);
        let cache = |split| {
            let (policy, backing) = (Policy::Pinned, Backing::Private);
            let options =
                CacheOptions { budget_bytes: mebibytes << 20, samples, split, policy, seed: 0, backing };
            Cache::new(&options).map(Arc::new)
        };
        let ways =
            [("storage", None), ("encoded", Some(cache([100, 0])?)), ("decoded", Some(cache([0, 100])?))];
        let preparations = ways.map(|(way, cache)| {
            let preparation = ImagePreparation {
                source: Arc::clone(&source),
                pipeline: Arc::clone(&pipeline),
                layout: Layout::Nchw,
                limits: Limits::default(),
                seed: 0,
                cache,
            };
            (way, preparation)
        });
        println!("{name}");
        let heads = ["from", "epoch 0", "img/s", "fetch", "decode", "augment", "ratio"];
        println!(
            "  {:<8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>8}  kept",
            heads[0], heads[1], heads[2], heads[3], heads[4], heads[5], heads[6]
        );
        let mut first = [Times::default(); 3];
        let mut best = [Times::default(); 3];
        for epoch in 0..=rounds {
            for (index, (_, preparation)) in preparations.iter().enumerate() {
                let times = run(preparation, epoch)?;
                let slot = if epoch == 0 { &mut first[index] } else { &mut best[index] };
                if slot.total.is_zero() || times.total < slot.total {
                    *slot = times;
                }
            }
        }
        for (index, (way, preparation)) in preparations.iter().enumerate() {
            let times = best[index];
            let rate = |times: Times| samples as f64 / times.total.as_secs_f64();
            let each = |part: Duration| part.as_secs_f64() * 1e6 / samples as f64;
            let kept = preparation.cache.as_ref().map_or(String::new(), |cache| {
                let figures = cache.figures();
                let form = if *way == "encoded" { figures.encoded } else { figures.decoded };
                format!("{} of {samples}, {} kB each", form.entries, form.bytes / form.entries.max(1) / 1000)
            });
            println!(
                "  {way:<8} {:>8.0} {:>8.0} {:>7.0} {:>7.0} {:>7.0} {:>7.2}x  {kept}",
                rate(first[index]),
                rate(times),
                each(times.fetch),
                each(times.decode),
                each(times.augment),
                rate(times) / rate(best[0]),
            );
        }
    }
    Ok(())
}
