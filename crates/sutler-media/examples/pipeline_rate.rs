//! How many images a second one thread prepares, and where the time goes.
//!
//! ```text
//! cargo run --release -p sutler-media --example pipeline_rate -- FOLDER [ROUNDS] [exact]
//! ```
//! Reads every file under FOLDER into memory first, then runs each pipeline ROUNDS times over all of them and prints
//! the fastest round. `exact` switches the reduced decode off.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use sutler_core::{SampleId, SampleRng};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions, Plan, Worker, probe};

const NORMALIZE: &str = r#"{"op":"normalize","mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}"#;
const PIPELINES: [(&str, &str); 4] = [
    (
        "train: RandomResizedCrop(224), flip",
        r#"{"op":"random_resized_crop","size":[224,224],"scale":[0.08,1.0],"ratio":[0.75,1.3333333333333333],
            "interpolation":"bilinear","antialias":true},{"op":"random_horizontal_flip","p":0.5}"#,
    ),
    (
        "eval: Resize(256), CenterCrop(224)",
        r#"{"op":"resize","size":256,"max_size":null,"interpolation":"bilinear","antialias":true},
            {"op":"center_crop","size":[224,224]}"#,
    ),
    (
        "train, ColorJitter, blur",
        r#"{"op":"random_resized_crop","size":[224,224],"scale":[0.08,1.0],"ratio":[0.75,1.3333333333333333],
            "interpolation":"bilinear","antialias":true},{"op":"random_horizontal_flip","p":0.5},
            {"op":"color_jitter","brightness":[0.6,1.4],"contrast":[0.6,1.4],"saturation":[0.6,1.4],"hue":[-0.1,0.1]},
            {"op":"gaussian_blur","kernel_size":[23,23],"sigma":[0.1,2.0]}"#,
    ),
    (
        "train, RandAugment",
        r#"{"op":"random_resized_crop","size":[224,224],"scale":[0.08,1.0],"ratio":[0.75,1.3333333333333333],
            "interpolation":"bilinear","antialias":true},{"op":"random_horizontal_flip","p":0.5},
            {"op":"rand_augment","num_ops":2,"magnitude":9,"num_magnitude_bins":31,"interpolation":"nearest","fill":null}"#,
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().ok_or("usage: pipeline_rate FOLDER [ROUNDS] [exact]")?;
    let rounds: u32 = arguments.get(1).map_or(Ok(3), |text| text.parse())?;
    let options = PipelineOptions { dct_scaling: !arguments.iter().any(|argument| argument == "exact") };
    let mut files = Vec::new();
    read_all(Path::new(folder), &mut files)?;
    let bytes: usize = files.iter().map(Vec::len).sum();
    println!("{} files, {} KB on average", files.len(), bytes / 1000 / files.len().max(1));
    println!(
        "{:<38} {:>8} {:>8} {:>9} {:>6}",
        "one thread, float32 NCHW", "img/s", "decode", "augment", "rest"
    );
    for (name, ops) in PIPELINES {
        let pipeline = Pipeline::from_json(&format!("[{ops},{NORMALIZE}]"), options)?;
        let mut best = Times::default();
        for round in 0..rounds {
            let times = run(&pipeline, &files, round)?;
            if best.total.is_zero() || times.total < best.total {
                best = times;
            }
        }
        let share = |part: Duration| 100.0 * part.as_secs_f64() / best.total.as_secs_f64();
        let rest = best.total.saturating_sub(best.decode + best.augment);
        println!(
            "{name:<38} {:>8.1} {:>7.1}% {:>8.1}% {:>5.1}%",
            files.len() as f64 / best.total.as_secs_f64(),
            share(best.decode),
            share(best.augment),
            share(rest),
        );
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Times {
    total: Duration,
    decode: Duration,
    augment: Duration,
}

fn run(pipeline: &Pipeline, files: &[Vec<u8>], epoch: u32) -> Result<Times, Box<dyn Error>> {
    let limits = Limits::default();
    let mut worker = Worker::new(limits);
    let mut plan = Plan::default();
    let mut batch = vec![0_f32; 64 * 3 * 224 * 224]; // as a loader would: not the same few cache lines again and again
    let mut times = Times::default();
    let start = Instant::now();
    for (index, bytes) in files.iter().enumerate() {
        let id = SampleId(u32::try_from(index)?);
        let header = probe(bytes, &limits)?;
        pipeline.draw(&header, &mut SampleRng::new(0, epoch, id), &mut plan)?;
        let [height, width] = plan.output_size();
        let values = (height * width * 3) as usize;
        let sample = &mut batch[index % 64 * values..][..values];
        let before = Instant::now();
        worker.decode(pipeline, &plan, &header, bytes)?;
        let between = Instant::now();
        worker.augment(pipeline, &plan, Layout::Nchw, as_bytes(sample))?;
        times.augment += between.elapsed();
        times.decode += between - before;
    }
    times.total = start.elapsed();
    std::hint::black_box(&batch);
    Ok(times)
}

fn as_bytes(values: &mut [f32]) -> &mut [u8] {
    // SAFETY: floats have no padding and any bytes make a float.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), std::mem::size_of_val(values)) }
}

fn read_all(folder: &Path, files: &mut Vec<Vec<u8>>) -> Result<(), Box<dyn Error>> {
    let mut entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::path);
    for entry in entries {
        if entry.file_type()?.is_dir() {
            read_all(&entry.path(), files)?;
        } else {
            files.push(std::fs::read(entry.path())?);
        }
    }
    Ok(())
}
