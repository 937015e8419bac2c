//! How many images a second one thread prepares from storage, from encoded copies and from decoded ones, and how many it
//! takes from the window that jobs share.
//!
//! ```text
//! cargo run --release -p sutler-engine --example kept_rate -- FOLDER [MEBIBYTES] [ROUNDS]
//! ```
//! FOLDER holds one folder of images per class. Rates are per second of processor time, rounds take turns and the
//! fastest of each counts, so that a busy machine is fair to all; the stages are on the clock. For the window two jobs take
//! turns, the first prepares and the second, which is the one that counts, finds its samples ready and copies them.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sutler_core::{
    Draw, EpochPlan, Form, JobCursor, JobSpec, Ledger, Permutation, Policy, Shard, SharedSettings,
};
use sutler_engine::{
    Engine, ErrorPolicy, ImagePreparation, Job, JobOptions, Next, OwnSample, Pool, Preparation, Run,
    SampleRecord, ServingOrder, Target,
};
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

/// Storage, encoded copies, decoded copies, the window.
const WAYS: usize = 4;

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
    let start = processor_time()?;
    for position in 0..samples {
        let mut record = SampleRecord::start();
        // As a loader would: not into the same few cache lines again and again.
        let row = &mut rows[position as usize % 64];
        preparer.prepare(
            order.sample_at(position),
            Draw::first(epoch),
            &mut Target::Own(row),
            &mut record,
        )?;
        times.fetch += record.fetch;
        times.decode += record.decode;
        times.augment += record.augment;
    }
    times.total = processor_time()? - start;
    Ok(times)
}

/// Samples per batch of jobs that share, and how many batches each takes at a turn.
const BATCH: usize = 64;
const TURN: usize = 2;

/// An epoch of a job that takes what another one has prepared.
fn run_shared(preparation: &ImagePreparation, epoch: u32) -> Result<Times, Box<dyn Error>> {
    let samples = u32::try_from(preparation.source.len())?;
    let window_form = Form::Augmented;
    let pool =
        Pool::new(SharedSettings { samples, seed: 0, window_bytes: 1 << 40, window_form, mixing: 0.0 });
    let job = || -> Result<(Engine, Arc<Job>, Run), Box<dyn Error>> {
        let options = JobOptions {
            batch_size: BATCH,
            batches_ahead: 1,
            batches_held: 1,
            errors: ErrorPolicy::Raise,
            in_step: false,
            go_on: false,
            order: ServingOrder::Shared { lateness: 8 },
        };
        let name = pool.new_job();
        let job = Job::new(Arc::new(preparation.clone()), options)?.sharing(Arc::clone(&pool), name);
        let spec = JobSpec { batch_size: BATCH as u32, drop_last: false, shard: Shard::WHOLE };
        let plan = EpochPlan::new(Permutation::identity(samples), &spec, JobCursor::start_of(epoch))?;
        // Without threads of its own an engine works in its consumer's, whose time can be taken.
        let engine = Engine::new(0)?;
        let run = engine.start_shared(&job, &plan, epoch, &Ledger::new(0))?;
        Ok((engine, job, run))
    };
    let ((_first_engine, _, mut ahead), (_second_engine, second, mut behind)) = (job()?, job()?);
    let mut times = Times::default();
    loop {
        for _ in 0..TURN {
            ahead.next(PATIENCE)?;
        }
        let start = processor_time()?;
        for _ in 0..TURN {
            if let Next::End = behind.next(PATIENCE)? {
                times.total += processor_time()? - start;
                let figures = second.metrics().snapshot();
                if figures.served.augmented != u64::from(samples) {
                    return Err(
                        format!("not all samples were found in the window: {:?}", figures.served).into()
                    );
                }
                times.augment = Duration::from_secs_f64(figures.stages[2].1.mean * f64::from(samples));
                return Ok(times);
            }
        }
        times.total += processor_time()? - start;
    }
}

/// Longer than any batch takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What this thread has had of a processor so far.
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split_whitespace().next().ok_or("the kernel keeps no schedule statistics")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
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
                sizes: Arc::default(),
            };
            (way, preparation)
        });
        println!("{name}");
        let heads = ["from", "epoch 0", "img/s", "fetch", "decode", "augment", "ratio"];
        println!(
            "  {:<8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>8}  kept",
            heads[0], heads[1], heads[2], heads[3], heads[4], heads[5], heads[6]
        );
        let mut first = [Times::default(); WAYS];
        let mut best = [Times::default(); WAYS];
        for epoch in 0..=rounds {
            for index in 0..WAYS {
                let times = match preparations.get(index) {
                    Some((_, preparation)) => run(preparation, epoch)?,
                    None => run_shared(&preparations[0].1, epoch)?,
                };
                let slot = if epoch == 0 { &mut first[index] } else { &mut best[index] };
                if slot.total.is_zero() || times.total < slot.total {
                    *slot = times;
                }
            }
        }
        let ways = preparations.iter().map(|(way, preparation)| (*way, preparation.cache.as_ref()));
        for (index, (way, cache)) in ways.chain([("window", None)]).enumerate() {
            let times = best[index];
            let rate = |times: Times| samples as f64 / times.total.as_secs_f64();
            let each = |part: Duration| part.as_secs_f64() * 1e6 / samples as f64;
            let kept = cache.map_or(String::new(), |cache| {
                let figures = cache.figures();
                let form = if way == "encoded" { figures.encoded } else { figures.decoded };
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
