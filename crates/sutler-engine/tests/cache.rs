//! The cache in the engine: what comes out is the same with and without it, and it saves as many reads as theory allows.

mod support;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use sutler_core::{Fingerprint, Policy, SampleId, SampleRng};
use sutler_engine::{ErrorPolicy, ImagePreparation, Served};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions};
use sutler_store::cache::{Backing, Cache, CacheOptions};
use sutler_store::{Files, FolderOptions, Io, Listing, ReadBuffer, Silent, Source, StoreError};

use support::Loader;

/// Files that count how often they are read.
struct Samples {
    files: Files,
    bytes: u64,
    reads: AtomicU64,
    _folder: tempfile::TempDir,
}

impl Samples {
    fn new(contents: &[Vec<u8>]) -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("all")).unwrap();
        for (index, bytes) in contents.iter().enumerate() {
            std::fs::write(folder.path().join(format!("all/{index:06}.jpg")), bytes).unwrap();
        }
        let listing = Listing::image_folder(folder.path(), &FolderOptions::default(), &Silent).unwrap();
        let files = Files::new(listing, Io::Buffered, 1 << 30);
        let bytes = contents.iter().map(|bytes| bytes.len() as u64).sum();
        Arc::new(Self { files, bytes, reads: AtomicU64::new(0), _folder: folder })
    }
}

impl Source for Samples {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn label(&self, id: SampleId) -> i64 {
        self.files.label(id)
    }

    fn describe(&self, id: SampleId) -> String {
        self.files.describe(id)
    }

    fn read<'a>(&self, id: SampleId, buffer: &'a mut ReadBuffer) -> Result<&'a [u8], StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.files.read(id, buffer)
    }

    fn read_ranges<'a>(
        &self,
        id: SampleId,
        ranges: &mut dyn Iterator<Item = std::ops::Range<u64>>,
        buffer: &'a mut ReadBuffer,
    ) -> Result<&'a [u8], StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.files.read_ranges(id, ranges, buffer)
    }

    fn fingerprint(&self) -> Fingerprint {
        self.files.fingerprint()
    }
}

fn jpeg(index: u32, width: u16, height: u16) -> Vec<u8> {
    let mut rng = SampleRng::new(3, 0, SampleId(index));
    let pixels: Vec<u8> = (0..usize::from(width) * usize::from(height) * 3)
        .map(|place| (place / 7 + rng.below(30) as usize) as u8)
        .collect();
    let mut bytes = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, 85);
    encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    bytes
}

/// Photographs of several sizes; the larger ones may be shrunk while they are decoded.
fn photos(count: u32) -> Arc<Samples> {
    let side = |index: u32, step: u32| 40 + (index * step % 130) as u16;
    let photos: Vec<_> = (0..count).map(|index| jpeg(index, side(index, 37), side(index, 53))).collect();
    Samples::new(&photos)
}

/// The smallest pictures there are: two pixels each.
fn dots(count: u32) -> Arc<Samples> {
    let dot = |index: u32| [b"P6 2 1 255\n".as_slice(), &index.to_le_bytes(), &[1, 2]].concat();
    Samples::new(&(0..count).map(dot).collect::<Vec<_>>())
}

const CROP: &str = r#"[{"op":"random_resized_crop","size":[24,24],"scale":[0.08,1.0],"ratio":[0.75,1.3333],
    "interpolation":"bilinear","antialias":true},{"op":"random_horizontal_flip","p":0.5},
    {"op":"normalize","mean":[0.4,0.5,0.6],"std":[0.2,0.2,0.3]}]"#;
const RESIZE: &str = r#"[{"op":"resize","size":30,"max_size":null,"interpolation":"bilinear","antialias":true},
    {"op":"random_crop","size":[24,24],"padding":null,"pad_if_needed":false,"fill":[0,0,0],"padding_mode":"constant"}]"#;
const EVAL: &str = r#"[{"op":"resize","size":30,"max_size":null,"interpolation":"bilinear","antialias":true},
    {"op":"center_crop","size":[24,24]},{"op":"normalize","mean":[0.4,0.5,0.6],"std":[0.2,0.2,0.3]}]"#;
const NOTHING: &str = "[]";
const FLIP: &str = r#"[{"op":"random_vertical_flip","p":0.5}]"#;

fn preparation(source: &Arc<Samples>, ops: &str, cache: Option<Arc<Cache>>) -> ImagePreparation {
    ImagePreparation {
        source: source.clone(),
        pipeline: Arc::new(Pipeline::from_json(ops, PipelineOptions::default()).unwrap()),
        layout: Layout::Nchw,
        limits: Limits::default(),
        seed: 5,
        cache,
        sizes: Arc::default(),
    }
}

fn cache(source: &Samples, budget_bytes: u64, split: [u32; 2], policy: Policy) -> Arc<Cache> {
    let samples = source.len();
    let options = CacheOptions { budget_bytes, samples, split, policy, seed: 2, backing: Backing::Shared };
    Arc::new(Cache::new(&options).unwrap())
}

fn loader(preparation: ImagePreparation, threads: usize, errors: ErrorPolicy) -> Loader {
    let samples = preparation.source.len() as u32;
    Loader::new(Arc::new(preparation), samples, threads, errors)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn the_cache_changes_no_byte(
        ops in prop::sample::select(&[CROP, RESIZE, EVAL, NOTHING, FLIP][..]),
        encoded in 0..=10u32,
        kibibytes in 64..1500u64,
        policy in prop::sample::select(&[Policy::Pinned, Policy::Lru, Policy::Random][..]),
        threads in 1..4usize,
    ) {
        let source = photos(40);
        let split = [encoded * 10, 100 - encoded * 10];
        let plain = loader(preparation(&source, ops, None), threads, ErrorPolicy::Raise);
        let kept = cache(&source, kibibytes << 10, split, policy);
        let cached = loader(preparation(&source, ops, Some(kept.clone())), threads, ErrorPolicy::Raise);
        for epoch in 0..4 {
            prop_assert_eq!(plain.epoch(epoch), cached.epoch(epoch), "epoch {}", epoch);
        }
        let Served { storage, encoded, decoded, augmented } = cached.figures().served;
        prop_assert_eq!(storage + encoded + decoded, 4 * 40);
        prop_assert_eq!(augmented, 0);
        prop_assert_eq!(cached.figures().storage_reads, storage);
        prop_assert_eq!(source.reads.load(Ordering::Relaxed), 4 * 40 + storage);
        prop_assert!(split[0] > 0 || encoded == 0);
        prop_assert!(split[1] > 0 || decoded == 0);
        let figures = kept.figures();
        prop_assert_eq!(figures.corrupt, 0);
        prop_assert!(figures.used_bytes <= figures.budget_bytes);
    }
}

#[test]
fn with_room_for_all_storage_is_read_once() {
    let source = photos(30);
    for (split, ops) in [([100, 0], CROP), ([0, 100], CROP), ([0, 100], EVAL)] {
        let kept = cache(&source, 8 << 20, split, Policy::Pinned);
        let cached = loader(preparation(&source, ops, Some(kept)), 2, ErrorPolicy::Raise);
        (0..3).for_each(|epoch| drop(cached.epoch(epoch)));
        let figures = cached.figures();
        assert_eq!((figures.storage_reads, figures.storage_bytes), (30, source.bytes), "{split:?}");
        let expected = if split[0] > 0 {
            Served { storage: 30, encoded: 60, ..Served::default() }
        } else {
            Served { storage: 30, decoded: 60, ..Served::default() }
        };
        assert_eq!(figures.served, expected);
    }
}

/// The misses of each epoch for tiny samples of one size, of which a part `c` fits: what storage was read, by its own count.
fn misses(policy: Policy, c: f64, samples: u32, epochs: u32) -> Vec<f64> {
    let source = dots(samples);
    // What `kept` samples take, their place in the table included, and the page that the blocks are aligned by.
    let kept = (f64::from(samples) * c).round() as u64;
    let budget = kept * sutler_store::cache::Memory::footprint(1) + u64::from(samples) * 4 + 4096;
    let kept = cache(&source, budget, [100, 0], policy);
    // One thread, so that chance is the same every time.
    let cached = loader(preparation(&source, NOTHING, Some(kept)), 1, ErrorPolicy::Raise);
    let missed = (0..epochs)
        .map(|epoch| {
            let before = source.reads.load(Ordering::Relaxed);
            drop(cached.epoch(epoch));
            (source.reads.load(Ordering::Relaxed) - before) as f64 / f64::from(samples)
        })
        .collect();
    assert_eq!(cached.figures().storage_reads, source.reads.load(Ordering::Relaxed));
    missed
}

/// Compares what all epochs missed with a first one that finds nothing and others that miss `expected`.
fn assert_oracle(misses: &[f64], expected: f64) {
    assert_eq!(misses[0], 1.0, "the first epoch finds nothing");
    let in_all = 1.0 + expected * (misses.len() - 1) as f64;
    let found: f64 = misses.iter().sum();
    assert!((found / in_all - 1.0).abs() < 0.01, "{found} instead of {in_all}: {misses:?}");
}

#[test]
fn pinned_misses_what_it_does_not_hold() {
    for c in [0.2, 0.5, 0.8] {
        let misses = misses(Policy::Pinned, c, 2000, 3);
        assert_oracle(&misses, 1.0 - c);
        assert!(misses[1..].iter().all(|missed| (missed - (1.0 - c)).abs() < 0.001), "c={c}: {misses:?}");
    }
}

#[test]
fn lru_misses_as_theory_says() {
    for c in [0.35, 0.5, 0.65] {
        let a: f64 = 1.0 - c;
        assert_oracle(&misses(Policy::Lru, c, 3000, 10), a * (1.0 - a.ln()));
    }
}

/// What random replacement misses in an epoch of a new order, at its fixed point: the solution of
/// `m = 1 - ((1 - e^-k) / k)²`, `k = m / c`, to three places.
const RANDOM_MISSES: [(f64, f64); 3] = [(0.35, 0.862), (0.5, 0.719), (0.65, 0.536)];

#[test]
fn random_replacement_settles_at_its_fixed_point() {
    for (c, expected) in RANDOM_MISSES {
        let misses = misses(Policy::Random, c, 3000, 10);
        assert_oracle(&misses, expected);
    }
}

#[test]
fn a_damaged_copy_is_dropped_and_made_again() {
    let source = photos(20);
    for split in [[100, 0], [0, 100]] {
        let plain = loader(preparation(&source, CROP, None), 1, ErrorPolicy::Raise);
        let kept = cache(&source, 8 << 20, split, Policy::Pinned);
        let cached = loader(preparation(&source, CROP, Some(kept.clone())), 2, ErrorPolicy::Raise);
        assert_eq!(plain.epoch(0), cached.epoch(0));
        // Another process writes over the blocks, which are the end of the mapping.
        let memory = kept.memory();
        let blocks = memory.capacity_bytes() / sutler_store::cache::Memory::footprint(1);
        let file = std::fs::File::from(memory.file().unwrap().as_fd().try_clone_to_owned().unwrap());
        let noise = vec![0xA5; (blocks * 4096) as usize];
        std::os::unix::fs::FileExt::write_all_at(&file, &noise, memory.mapped_bytes() - noise.len() as u64)
            .unwrap();
        assert_eq!(plain.epoch(1), cached.epoch(1));
        assert_eq!(kept.figures().corrupt, 20, "{split:?}");
        assert_eq!(cached.figures().served.storage, 40);
        assert_eq!(plain.epoch(2), cached.epoch(2));
        assert_eq!(cached.figures().served.storage, 40);
    }
}

#[test]
fn a_bad_file_is_never_kept_and_always_reported() {
    let mut files: Vec<Vec<u8>> = (0..10).map(|index| jpeg(index, 90, 90)).collect();
    files[3].truncate(700);
    let source = Samples::new(&files);
    for split in [[100, 0], [0, 100]] {
        let kept = cache(&source, 8 << 20, split, Policy::Pinned);
        let cached = loader(preparation(&source, CROP, Some(kept.clone())), 1, ErrorPolicy::Skip);
        for epoch in 0..3 {
            assert_eq!(cached.epoch(epoch).iter().map(|(ids, _)| ids.len()).sum::<usize>(), 9);
            let failures = cached.job.failures();
            assert_eq!(failures.len(), 1);
            assert_eq!((failures[0].sample, failures[0].kind), (SampleId(3), "truncated"));
        }
        assert_eq!(cached.figures().storage_reads, 10 + 2, "the bad file is read in every epoch");
        let figures = kept.figures();
        assert_eq!(figures.encoded.entries + figures.decoded.entries, 9);
    }
}
