//! Volumes in the engine: images and labels in two blocks on any number of threads, bad files among them, and how little is read.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sutler_core::{Draw, SampleId};
use sutler_engine::{
    Boundary, Engine, ErrorPolicy, Job, JobOptions, Next, OwnSample, Preparation, Progress, SampleRecord,
    ServingOrder, Target, VolumePreparation,
};
use sutler_media::volume::{Kind, Limits, Pipeline, npy_start};
use sutler_store::{Files, FolderOptions, Io, Listing, Silent, Source};

use support::{PATIENCE, options, whole};

const SAMPLES: u32 = 23;
const SHAPE: [usize; 3] = [9, 10, 11];

/// Values that tell where they are from, and whose remainder is the label.
fn value(sample: u32, place: usize) -> f32 {
    (sample * 1000) as f32 + place as f32
}

fn write(path: &Path, shape: [usize; 3], kind: Kind, values: &[u8]) {
    let mut bytes = npy_start(1, shape, kind);
    bytes.extend_from_slice(values);
    std::fs::write(path, bytes).unwrap();
}

/// Volumes, of which those in `bad` have labels that are cut off.
fn volumes(bad: &[u32]) -> (Arc<dyn Source>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let places = SHAPE.iter().product::<usize>();
    for sample in 0..SAMPLES {
        let image: Vec<u8> = (0..places).flat_map(|place| value(sample, place).to_le_bytes()).collect();
        let labels: Vec<u8> = (0..places).map(|place| (place % 3) as u8).collect();
        let path = |part: &str| folder.path().join(format!("case_{sample:03}_{part}.npy"));
        write(&path("x"), SHAPE, Kind::F32, &image);
        let there = if bad.contains(&sample) { places - 1 } else { places };
        write(&path("y"), SHAPE, Kind::U8, &labels[..there]);
    }
    (source(folder.path()), folder)
}

fn source(folder: &Path) -> Arc<dyn Source> {
    let listing = Listing::volume_folder(folder, &FolderOptions::volumes(), &Silent).unwrap();
    Arc::new(Files::new(listing, Io::Buffered, 1 << 30))
}

fn preparation(source: &Arc<dyn Source>, operations: &str) -> VolumePreparation {
    let pipeline = Arc::new(Pipeline::from_json(operations).unwrap());
    VolumePreparation::new(Arc::clone(source), pipeline, Limits::default(), 1, 0).unwrap()
}

fn crop(sides: [usize; 3], oversampling: f64) -> String {
    format!(r#"[{{"op":"rand_balanced_crop","patch_size":{sides:?},"oversampling":{oversampling}}}]"#)
}

/// The sample that its finished image and labels belong to, which are found to belong together.
fn check(image: &[u8], labels: &[u8]) -> u32 {
    let values: Vec<f32> = image.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
    assert_eq!(values.len(), labels.len());
    let sample = values[0] as u32 / 1000;
    for (&value, &label) in values.iter().zip(labels) {
        assert_eq!(u32::from(label), (value as u32 - sample * 1000) % 3);
        assert_eq!(value as u32 / 1000, sample);
    }
    sample
}

#[test]
fn every_volume_comes_once_with_its_labels_on_any_number_of_threads() {
    let bad = [4, 5, 22];
    let (source, _folder) = volumes(&bad);
    // In rows of a block, in buffers of their own.
    for operations in [crop([3, 4, 5], 0.4), "[]".to_owned()] {
        for threads in [0, 1, 4] {
            for order in [ServingOrder::Strict, ServingOrder::Ready { lateness: 2 }] {
                let options = JobOptions { order, errors: ErrorPolicy::Skip, ..options(4, 3) };
                let job = Job::new(Arc::new(preparation(&source, &operations)), options).unwrap();
                let engine = Engine::new(threads).unwrap();
                for epoch in 0..2 {
                    let mut run = engine.start(&job, whole(SAMPLES, 4, epoch), epoch);
                    let mut served: Vec<u32> = Vec::new();
                    loop {
                        let batch = match run.next(PATIENCE).unwrap() {
                            Next::Batch(batch) => batch,
                            Next::End => break,
                            Next::TimedOut | Next::Passed => panic!("no batch came"),
                        };
                        let ids: Vec<u32> = batch.ids().iter().map(|id| id.0).collect();
                        let found: Vec<u32> = match (batch.block(), batch.block_beside()) {
                            (Some(images), Some(labels)) => {
                                let labels = labels.chunks_exact(3 * 4 * 5);
                                images
                                    .chunks_exact(3 * 4 * 5 * 4)
                                    .zip(labels)
                                    .map(|(a, b)| check(a, b))
                                    .collect()
                            }
                            (None, None) => {
                                let sample = |OwnSample { shape, data }: OwnSample| {
                                    assert_eq!(shape, SHAPE.map(|side| side as u32));
                                    let (image, labels) = data.split_at(data.len() / 5 * 4);
                                    check(image, labels)
                                };
                                batch.take_owned().into_iter().map(sample).collect()
                            }
                            _ => panic!("images and labels are both in blocks or both not"),
                        };
                        assert_eq!(found, ids);
                        served.extend(ids);
                    }
                    served.sort_unstable();
                    let good: Vec<u32> = (0..SAMPLES).filter(|index| !bad.contains(index)).collect();
                    assert_eq!(served, good, "{threads} threads, {order:?}");
                    let failures = job.failures();
                    assert_eq!(failures.len(), 3);
                    assert!(failures.iter().all(|failure| failure.kind == "truncated"));
                    assert!(failures[0].reason.contains("_y.npy"), "{}", failures[0].reason);
                }
            }
        }
    }
}

fn prepare(preparation: &VolumePreparation, epoch: u32) -> (OwnSample, SampleRecord) {
    let mut sample = OwnSample::default();
    let mut record = SampleRecord::start();
    let mut preparer = preparation.preparer();
    preparer.prepare(SampleId(0), Draw::first(epoch), &mut Target::Own(&mut sample), &mut record).unwrap();
    (sample, record)
}

#[test]
fn a_crop_reads_its_slabs_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [64, 48, 40];
    let places = shape.iter().product::<usize>();
    let image: Vec<u8> = (0..places).flat_map(|place| (place as f32).to_le_bytes()).collect();
    write(&folder.path().join("a_x.npy"), shape, Kind::F32, &image);
    write(&folder.path().join("a_y.npy"), shape, Kind::U8, &vec![1; places]);
    let source = source(folder.path());
    let whole_bytes = (places * 5) as u64;

    let everything = prepare(&preparation(&source, "[]"), 0).1;
    assert!(everything.storage_bytes >= whole_bytes);

    // Per plane the first row to the last of the crop, of image and labels; and the two headers.
    let slab = |bytes: u64| 16 * (15 * 40 + 16) * bytes;
    let headers = 2 * 4096;
    let anywhere = preparation(&source, &crop([16; 3], 0.0));
    for epoch in 0..20 {
        assert_eq!(prepare(&anywhere, epoch).1.storage_bytes, slab(4) + slab(1) + headers);
    }

    // Where the labelled parts are takes all labels once, and from then on as little as before.
    let over_parts = preparation(&source, &crop([16; 3], 1.0));
    let first = prepare(&over_parts, 0).1.storage_bytes;
    assert_eq!(first, slab(4) + slab(1) + headers + places as u64);
    for epoch in 1..20 {
        assert_eq!(prepare(&over_parts, epoch).1.storage_bytes, slab(4) + slab(1) + headers);
    }

    // What is cut after a flip must be read before it.
    let flip = r#"[{"op":"rand_flip","axes":[0],"p":0.5},"#;
    let late = preparation(&source, &crop([16; 3], 0.0).replacen('[', flip, 1));
    assert!(prepare(&late, 0).1.storage_bytes >= whole_bytes);
}

/// Everybody makes room, each time they are asked.
struct Always;

impl Boundary for Always {
    fn parks(&mut self, _done: usize) -> bool {
        true
    }

    fn asks_after(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

#[test]
fn a_volume_that_is_put_aside_at_every_step_comes_out_the_same() {
    let (source, _folder) = volumes(&[]);
    let operations = format!(
        r#"[{{"op":"clip_normalize","min":0,"max":20000,"mean":1,"std":3}},{},{{"op":"rand_flip","axes":[0,1,2],"p":0.5}},
            {{"op":"gaussian_noise","mean":0,"std":1,"p":0.5}}]"#,
        crop([3, 4, 5], 0.4).trim_matches(['[', ']'])
    );
    let preparation = preparation(&source, &operations);
    for epoch in 0..10 {
        let (expected, _) = prepare(&preparation, epoch);
        let mut workers = [preparation.preparer(), preparation.preparer()];
        let (mut found, mut record) = (OwnSample::default(), SampleRecord::start());
        let mut place = Target::Own(&mut found);
        let mut steps = 0;
        let mut progress = workers[0]
            .prepare_in_steps(SampleId(0), Draw::first(epoch), &mut place, &mut record, &mut Always)
            .unwrap();
        while let Progress::Parked(unfinished) = progress {
            steps += 1;
            // Another worker goes on, and has prepared another volume in between.
            let worker = &mut workers[steps % 2];
            let mut other = OwnSample::default();
            let mut other_record = SampleRecord::start();
            worker
                .prepare(SampleId(1), Draw::first(epoch), &mut Target::Own(&mut other), &mut other_record)
                .unwrap();
            progress = worker.go_on(unfinished, SampleId(0), &mut place, &mut record, &mut Always).unwrap();
        }
        assert_eq!(steps, 3, "before each operation but the crop, which is done at reading");
        assert_eq!(found, expected);
    }
    let mut worker = preparation.preparer();
    let (mut found, mut record) = (OwnSample::default(), SampleRecord::start());
    let mut place = Target::Own(&mut found);
    let strange = worker.go_on(Box::new(3u8), SampleId(0), &mut place, &mut record, &mut Always);
    assert_eq!(strange.err().map(|failure| failure.kind), Some("internal"));
}
