//! Slow samples that make room between their transforms: still exactly once, never too late, the same bytes, and no more
//! memory than was agreed.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use sutler_core::{Draw, JobCursor, SampleId, SampleRng};
use sutler_engine::{
    AudioPreparation, Boundary, Engine, ErrorPolicy, ImagePreparation, JobOptions, NoBoundary, OwnSample,
    Place, Preparation, Progress, SampleRecord, ServingOrder, Target,
};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions, audio};
use sutler_store::{Files, FolderOptions, Io, Listing, Silent};

use support::{Fake, check_batch, drawn, job, next, options};

const FAST_MICROS: u64 = 200;
const SLOW: Duration = Duration::from_millis(8);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_sample_once_in_time_and_whole(
        samples in 40u32..120, batch_size in 1u32..9, threads in 1usize..5, ahead in 1usize..6,
        lateness in prop::option::of(0u32..6), every in 2u32..9, bad in 0u32..40, row_bytes in prop_oneof![Just(0usize), Just(40)],
    ) {
        // The first ones are quick, so that it is known what slow is.
        let slow = (24..samples).filter(|sample| sample % every == 0).collect();
        let fake = Fake { slow: (slow, SLOW), bad: [bad].into(), steps: 4, ..Fake::fixed(row_bytes) };
        let fake = Arc::new(fake.sleeping(FAST_MICROS));
        let order = lateness.map_or(ServingOrder::Strict, |lateness| ServingOrder::Ready { lateness });
        let options = options(batch_size as usize, ahead);
        let job = job(&fake, JobOptions { order, errors: ErrorPolicy::Skip, ..options });
        let engine = Engine::new(threads).unwrap();
        let indices: Vec<u64> = (0..u64::from(samples)).collect();
        for epoch in 0..2 {
            let plan = drawn(&indices, samples, batch_size, JobCursor::start_of(epoch));
            let mut run = engine.start(&job, plan, epoch);
            let (mut ids, mut positions) = (Vec::new(), Vec::new());
            while let Some(batch) = next(&mut run).unwrap() {
                for id in check_batch(&batch, &fake, epoch).ids {
                    prop_assert!(batch.index <= u64::from(id / batch_size + lateness.unwrap_or(0)));
                    ids.push(id);
                }
                positions.extend_from_slice(batch.positions());
            }
            if lateness.is_none() {
                prop_assert!(ids.is_sorted());
            }
            ids.sort_unstable();
            prop_assert_eq!(ids, (0..samples).filter(|&id| id != bad).collect::<Vec<_>>());
            // A batch of nothing but the bad sample may be the last, and then nobody is told of it.
            positions.sort_unstable();
            positions.dedup();
            prop_assert!(positions.len() as u32 + 1 >= samples);
        }
        prop_assert!(fake.standing_max.load(Ordering::SeqCst) <= 4 * threads);
        prop_assert_eq!(fake.standing.load(Ordering::SeqCst), 0);
        prop_assert_eq!(fake.prepared.load(Ordering::SeqCst) as u32, 2 * samples, "nothing is begun twice");
    }
}

/// An epoch that is all but sure to have samples make room: one worker, quick samples to do, and a trainer that is in no hurry.
fn crowded() -> Arc<Fake> {
    let slow = (32..160).filter(|sample| sample % 8 == 0).collect();
    Arc::new(Fake { slow: (slow, SLOW), steps: 8, ..Fake::fixed(16) }.sleeping(FAST_MICROS))
}

#[test]
fn a_slow_sample_makes_room_for_quick_ones() {
    let fake = crowded();
    let engine = Engine::new(1).unwrap();
    let job = job(&fake, JobOptions { order: ServingOrder::Ready { lateness: 8 }, ..options(4, 8) });
    let indices: Vec<u64> = (0..160).collect();
    let mut run = engine.start(&job, drawn(&indices, 160, 4, JobCursor::start_of(0)), 0);
    let mut served = 0;
    while let Some(batch) = next(&mut run).unwrap() {
        served += check_batch(&batch, &fake, 0).ids.len();
    }
    assert_eq!(served, 160);
    assert!(fake.parked.load(Ordering::SeqCst) > 0);
    let snapshot = job.snapshot();
    assert_eq!(snapshot.steps.len(), 8);
    for (index, (name, step)) in snapshot.steps.iter().enumerate() {
        assert_eq!((name, step.count), (&format!("step {}", index + 1), 160));
        // One sample in ten takes a millisecond for each step, and the others a fortieth of that.
        assert!(step.p50 < 30e-6 && step.p99 > 0.9e-3 && step.mean > step.p50, "{step:?}");
    }
    let share = snapshot.slow_share;
    assert!(share.threshold > 0.0 && share.mean > 0.02 && share.mean < 0.4, "{share:?}");
    assert_eq!(share.series.len() as u32 * share.batches_per_point, 40);
}

#[test]
fn an_epoch_that_is_called_off_leaves_nothing_standing() {
    let fake = crowded();
    let engine = Engine::new(2).unwrap();
    let job = job(&fake, JobOptions { order: ServingOrder::Ready { lateness: 8 }, ..options(4, 8) });
    let indices: Vec<u64> = (0..160).collect();
    for epoch in 0..6 {
        let mut run = engine.start(&job, drawn(&indices, 160, 4, JobCursor::start_of(epoch)), epoch);
        for _ in 0..10 + 4 * epoch {
            next(&mut run).unwrap().unwrap();
        }
    }
    engine.close();
    assert_eq!(fake.standing.load(Ordering::SeqCst), 0);
}

/// Puts a sample aside at every boundary.
struct Always;

impl Boundary for Always {
    fn parks(&mut self, _done: usize) -> bool {
        true
    }

    fn asks_after(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

/// What comes out of a preparation, never put aside, or at every boundary and taken up by somebody else each time.
fn prepared(preparation: &dyn Preparation, sample: u32, apart: bool) -> (OwnSample, usize) {
    let sample = SampleId(sample);
    let mut own = OwnSample::default();
    let mut record = SampleRecord::start();
    let mut boundary: Box<dyn Boundary> = if apart { Box::new(Always) } else { Box::new(NoBoundary) };
    let mut handed_over = 0;
    let mut place = Target::Own(&mut own);
    let place: &mut dyn Place = &mut place;
    let first =
        preparation.preparer().prepare_in_steps(sample, Draw::first(3), place, &mut record, &mut *boundary);
    let mut progress = first.unwrap();
    let mut others = [preparation.preparer(), preparation.preparer()];
    while let Progress::Parked(unfinished) = progress {
        handed_over += 1;
        let other = &mut others[handed_over % 2];
        progress = other.go_on(unfinished, sample, place, &mut record, &mut *boundary).unwrap();
    }
    (own, handed_over)
}

fn files(contents: &[Vec<u8>], ending: &str, options: &FolderOptions) -> (Arc<Files>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("all")).unwrap();
    for (index, bytes) in contents.iter().enumerate() {
        std::fs::write(folder.path().join(format!("all/{index}.{ending}")), bytes).unwrap();
    }
    let listing = Listing::image_folder(folder.path(), options, &Silent).unwrap();
    (Arc::new(Files::new(listing, Io::Buffered, 1 << 20)), folder)
}

fn noise(seed: u32, bytes: usize) -> Vec<u8> {
    let mut rng = SampleRng::new(5, 0, SampleId(seed));
    (0..bytes).map(|place| (place / 5 + rng.below(60) as usize) as u8).collect()
}

#[test]
fn sound_is_the_same_however_often_it_was_put_aside() {
    let clips: Vec<Vec<u8>> = [6_000usize, 9_000, 2_500]
        .iter()
        .enumerate()
        .map(|(index, values)| {
            let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
            file.extend(8000u32.to_le_bytes());
            file.extend(16_000u32.to_le_bytes());
            file.extend(*b"\x02\0\x10\0data");
            file.extend((*values as u32 * 2).to_le_bytes());
            file.extend(noise(index as u32, values * 2));
            file
        })
        .collect();
    let (source, _folder) = files(&clips, "wav", &FolderOptions::audio());
    let ops = r#"[{"op":"speed_perturb","min_rate":0.85,"max_rate":1.15,"factors":null,"p":1.0},
        {"op":"trim_silence","top_db":60,"frame_length":512,"hop_length":128},{"op":"dither","amount":1e-5},
        {"op":"pre_emphasis","coeff":0.97},{"op":"mel_spectrogram","sample_rate":null,"n_fft":256,"win_length":160,
        "hop_length":80,"f_min":0,"f_max":null,"n_mels":20,"power":2,"normalized":false,"center":true,"pad_mode":"reflect",
        "norm":"slaney","mel_scale":"slaney","periodic":false},{"op":"log_mel","offset":1e-20,"normalize":"per_feature","epsilon":1e-5},
        {"op":"spec_augment","freq_masks":2,"min_freq":0,"max_freq":4,"time_masks":3,"min_time":0,"max_time":0.1,"value":0},
        {"op":"frame_stack","stack":3,"subsample":3}]"#;
    let preparation = AudioPreparation {
        source,
        pipeline: Arc::new(audio::Pipeline::from_json(ops).unwrap()),
        limits: audio::Limits { values_max: 1 << 20 },
        mono: true,
        seed: 11,
        padding: None,
        cache: None,
    };
    for sample in 0..clips.len() as u32 {
        let (whole, none) = prepared(&preparation, sample, false);
        let (apart, times) = prepared(&preparation, sample, true);
        assert_eq!((none, times), (0, 8), "before each transform");
        assert_eq!(whole, apart);
        assert!(!whole.data.is_empty());
    }
}

#[test]
fn pictures_are_the_same_when_they_were_put_aside() {
    let photos: Vec<Vec<u8>> = [(90u16, 70u16), (300, 200)]
        .iter()
        .enumerate()
        .map(|(index, &(width, height))| {
            let pixels = noise(index as u32, usize::from(width) * usize::from(height) * 3);
            let mut bytes = Vec::new();
            let encoder = jpeg_encoder::Encoder::new(&mut bytes, 85);
            encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
            bytes
        })
        .collect();
    let (source, _folder) = files(&photos, "jpg", &FolderOptions::default());
    let ops = r#"[{"op":"random_resized_crop","size":[32,32],"scale":[0.3,1.0],"ratio":[0.75,1.33],"interpolation":"bilinear","antialias":true},
        {"op":"random_horizontal_flip","p":0.5},{"op":"to_dtype","dtype":"float32","scale":true}]"#;
    let preparation = ImagePreparation {
        source,
        pipeline: Arc::new(Pipeline::from_json(ops, PipelineOptions::default()).unwrap()),
        layout: Layout::Nchw,
        limits: Limits::default(),
        seed: 4,
        cache: None,
        sizes: Arc::default(),
    };
    for sample in 0..photos.len() as u32 {
        let (whole, none) = prepared(&preparation, sample, false);
        let (apart, times) = prepared(&preparation, sample, true);
        assert_eq!((none, times), (0, 1), "between decoding and the rest");
        assert_eq!(whole, apart);
        assert_eq!(whole.shape, [32, 32, 3]);
    }
}
