//! What pictures cost, foreseen from their size and from what was drawn for them.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sutler_core::{Draw, Experience, Hints, SampleId, SampleRng, StepTimes};
use sutler_engine::{ImagePreparation, OwnSample, Preparation, SampleRecord, Target};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions};
use sutler_store::{Files, FolderOptions, Io, Listing, Silent};

const EPOCHS: u32 = 6;
const LEARNT: u32 = 3;
/// Where the machine does something else for a moment, caches are cold and samples take longer for no reason that hints could know.
const TRIES: usize = 5;

/// Photographs from some 10 to 300 kilopixels, upright and oblong.
fn photos(count: u32) -> (Arc<Files>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("all")).unwrap();
    for index in 0..count {
        let mut rng = SampleRng::new(1, 0, SampleId(index));
        let mut side = || (100 + rng.below(22).pow(2)) as u16;
        let (width, height) = (side(), side());
        let texture = |place: usize| (place / 9 + rng.below(40) as usize) as u8;
        let pixels: Vec<u8> = (0..usize::from(width) * usize::from(height) * 3).map(texture).collect();
        let file = std::fs::File::create(folder.path().join(format!("all/{index:03}.jpg"))).unwrap();
        let encoder = jpeg_encoder::Encoder::new(file, 90);
        encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    }
    let listing = Listing::image_folder(folder.path(), &FolderOptions::default(), &Silent).unwrap();
    (Arc::new(Files::new(listing, Io::Buffered, 1 << 30)), folder)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// By how much forecasts are off in the later epochs, with all hints and with the size alone, in microseconds for each sample. The
/// work of a sample is the least that it took in a few tries, by the clock of the thread's processor: other programs are not in it.
fn errors(preparation: &ImagePreparation, samples: u32) -> [f64; 2] {
    let mut preparer = preparation.preparer();
    let mut own = OwnSample::default();
    let mut work = |sample, epoch| {
        let mut record = SampleRecord::start();
        let least = (0..3).map(|_| {
            let begun = processor_time();
            record = SampleRecord::start();
            preparer.prepare(sample, Draw::first(epoch), &mut Target::Own(&mut own), &mut record).unwrap();
            (processor_time() - begun).as_micros() as u64
        });
        (least.min().unwrap(), record)
    };
    let (mut all, mut by_size) = (Experience::default(), Experience::default());
    let mut errors = [0.0; 2];
    for epoch in 0..EPOCHS {
        for sample in (0..samples).map(SampleId) {
            let hints = preparation.hints(sample, Draw::first(epoch));
            let size = Hints { size: hints.size, ..Hints::default() };
            let (took, record) = work(sample, epoch);
            if epoch > 0 {
                assert_eq!(hints, record.hints, "once it was seen, what is foreseen is what comes");
            } else {
                assert!(hints.size.is_some() && hints.drawn.is_some() && hints.values.is_none());
            }
            if epoch >= LEARNT {
                let off = |expected: Option<u64>| expected.unwrap().abs_diff(took) as f64;
                errors[0] += off(all.expect(sample, &hints));
                errors[1] += off(by_size.expect(sample, &size));
            }
            // Nothing is remembered of single samples: what is compared is what hints tell.
            all.note(sample, &record.hints, &StepTimes::default(), took, 0);
            by_size.note(sample, &size, &StepTimes::default(), took, 0);
        }
    }
    errors.map(|error| error / f64::from((EPOCHS - LEARNT) * samples))
}

#[test]
fn what_was_drawn_for_a_picture_makes_the_forecast_better() {
    const SAMPLES: u32 = 30;
    let (source, _folder) = photos(SAMPLES);
    let ops = r#"[{"op":"random_resized_crop","size":[96,96],"scale":[0.08,1.0],"ratio":[0.75,1.33],
        "interpolation":"bilinear","antialias":true},{"op":"random_horizontal_flip","p":0.5},
        {"op":"to_dtype","dtype":"float32","scale":true}]"#;
    let preparation = || ImagePreparation {
        source: source.clone(),
        pipeline: Arc::new(Pipeline::from_json(ops, PipelineOptions::default()).unwrap()),
        layout: Layout::Nchw,
        limits: Limits::default(),
        seed: 3,
        cache: None,
        sizes: Arc::default(),
    };
    let measured: Vec<[f64; 2]> = (0..TRIES).map(|_| errors(&preparation(), SAMPLES)).collect();
    println!("forecasts are off by so many µs, and by the size alone: {measured:.0?}");
    assert!(measured.iter().any(|[all, by_size]| *all <= 0.7 * by_size), "{measured:.0?}");
}
