//! Copies of sound, volumes and text that are kept: what comes out is the same with and without, and as many reads are saved as fit.

mod support;

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use sutler_core::{Packing, Policy, SampleId, SampleRng};
use sutler_engine::{
    AudioPreparation, BlockFormat, ErrorPolicy, LinePreparation, PackedPreparation, Planes, Preparation,
    Served, VolumePreparation,
};
use sutler_media::text::{TextReader, Tokenizer};
use sutler_media::{audio, volume};
use sutler_store::cache::{Backing, Cache, CacheOptions, Memory};
use sutler_store::{Files, FolderOptions, Io, Lines, LinesOptions, Listing, Silent, Source};

use support::Loader;

/// How they are prepared, with a cache or without.
type Prepare = dyn Fn(Option<Arc<Cache>>) -> Arc<dyn Preparation>;

/// A kind of samples, of which each takes the same room in the cache.
struct Kind {
    source: Arc<dyn Source>,
    samples: u32,
    /// What a sample takes in each form.
    bytes: [usize; 2],
    prepare: Box<Prepare>,
    _folder: tempfile::TempDir,
}

impl Kind {
    fn cache(&self, budget_bytes: u64, split: [u32; 2], policy: Policy) -> Arc<Cache> {
        let samples = self.source.len();
        let backing = Backing::Private;
        let options = CacheOptions { budget_bytes, samples, split, policy, seed: 2, backing };
        Arc::new(Cache::new(&options).unwrap())
    }

    fn loader(&self, cache: Option<Arc<Cache>>, threads: usize, errors: ErrorPolicy) -> Loader {
        Loader::new((self.prepare)(cache), self.samples, threads, errors)
    }
}

fn numbers(seed: u32, count: usize) -> Vec<u8> {
    let mut rng = SampleRng::new(8, 0, SampleId(seed));
    (0..count).map(|_| rng.next_u32() as u8).collect()
}

const CLIP_VALUES: usize = 3000;

/// 16-bit clips at 8 kHz, resampled before anything random is done to them; those in `bad` are cut off.
fn sound(samples: u32, bad: &[u32]) -> Kind {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("all")).unwrap();
    for index in 0..samples {
        let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
        file.extend(8000u32.to_le_bytes());
        file.extend(16_000u32.to_le_bytes());
        file.extend(*b"\x02\0\x10\0data");
        file.extend((CLIP_VALUES as u32 * 2).to_le_bytes());
        file.extend(numbers(index, CLIP_VALUES * 2));
        if bad.contains(&index) {
            file.truncate(30);
        }
        std::fs::write(folder.path().join(format!("all/{index:04}.wav")), file).unwrap();
    }
    let listing = Listing::image_folder(folder.path(), &FolderOptions::audio(), &Silent).unwrap();
    let source: Arc<dyn Source> = Arc::new(Files::new(listing, Io::Buffered, 1 << 20));
    let ops = r#"[{"op":"resample","orig_freq":null,"new_freq":4000,"resampling_method":"sinc_interp_hann",
        "lowpass_filter_width":6,"rolloff":0.99,"beta":null},{"op":"pre_emphasis","coeff":0.97},
        {"op":"dither","amount":1e-3},{"op":"pre_emphasis","coeff":0.5}]"#;
    let pipeline = Arc::new(audio::Pipeline::from_json(ops).unwrap());
    let of = Arc::clone(&source);
    Kind {
        source,
        samples,
        bytes: [44 + CLIP_VALUES * 2, 32 + CLIP_VALUES / 2 * 4],
        prepare: Box::new(move |cache| {
            Arc::new(AudioPreparation {
                source: Arc::clone(&of),
                pipeline: Arc::clone(&pipeline),
                limits: audio::Limits { values_max: 1 << 20 },
                mono: true,
                seed: 4,
                padding: None,
                cache,
            })
        }),
        _folder: folder,
    }
}

const SIDES: [usize; 3] = [6, 7, 8];

fn write_array(path: &Path, kind: volume::Kind, values: &[u8]) {
    let mut bytes = volume::npy_start(1, SIDES, kind);
    bytes.extend_from_slice(values);
    std::fs::write(path, bytes).unwrap();
}

/// Volumes of whole numbers, of which a random block is cut out, over labels in half of the cases.
fn volumes(samples: u32, bad: &[u32], ops: &str) -> Kind {
    let folder = tempfile::tempdir().unwrap();
    let places = SIDES.iter().product::<usize>();
    for index in 0..samples {
        let image: Vec<u8> =
            numbers(index, places).iter().flat_map(|&value| f32::from(value).to_le_bytes()).collect();
        let labels: Vec<u8> = numbers(index + 1000, places).iter().map(|value| value % 3).collect();
        let path = |part: &str| folder.path().join(format!("case_{index:03}_{part}.npy"));
        write_array(&path("x"), volume::Kind::F32, &image);
        let there = if bad.contains(&index) { places - 1 } else { places };
        write_array(&path("y"), volume::Kind::U8, &labels[..there]);
    }
    let listing = Listing::volume_folder(folder.path(), &FolderOptions::volumes(), &Silent).unwrap();
    let source: Arc<dyn Source> = Arc::new(Files::new(listing, Io::Buffered, 1 << 30));
    let pipeline = Arc::new(volume::Pipeline::from_json(ops).unwrap());
    let of = Arc::clone(&source);
    Kind {
        source,
        samples,
        bytes: [8 + 2 * 128 + places * 5, 44 + places * 5],
        prepare: Box::new(move |cache| {
            let (source, pipeline) = (Arc::clone(&of), Arc::clone(&pipeline));
            let limits = volume::Limits::default();
            Arc::new(VolumePreparation::new(source, pipeline, limits, 1, 3).unwrap().keeping(cache))
        }),
        _folder: folder,
    }
}

const CROPPED: &str = r#"[{"op":"clip_normalize","min":10,"max":200,"mean":101,"std":76.9},
    {"op":"rand_balanced_crop","patch_size":[3,4,5],"oversampling":0.5},{"op":"rand_flip","axes":[0,1,2],"p":0.5}]"#;
/// The crop comes after something that moves values, so that all of a volume is read for it.
const FLIPPED: &str = r#"[{"op":"clip_normalize","min":10,"max":200,"mean":101,"std":76.9},
    {"op":"rand_flip","axes":[0,1,2],"p":0.5},{"op":"rand_balanced_crop","patch_size":[3,4,5],"oversampling":0.5}]"#;

fn words() -> Tokenizer {
    let words: Vec<String> = (0..256).map(|word| format!("\"{word}\": {word}")).collect();
    let json = format!(
        r#"{{"version": "1.0", "pre_tokenizer": {{"type": "WhitespaceSplit"}},
            "model": {{"type": "WordLevel", "vocab": {{{}}}, "unk_token": "0"}}}}"#,
        words.join(", ")
    );
    Tokenizer::new(&json, false, None).unwrap()
}

const LINE_TOKENS: usize = 40;

/// Lines of numbers, as text, as tokens, or packed to blocks of as many tokens as a line has.
fn text(lines: u32, tokens: bool, packed: bool) -> Kind {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.txt");
    let line = |index: u32| {
        let words = numbers(index, LINE_TOKENS).iter().map(u8::to_string).collect::<Vec<_>>();
        words.join(" ") + "\n"
    };
    std::fs::write(&path, (0..lines).map(line).collect::<String>()).unwrap();
    let unpacked = folder.path().to_owned();
    let options = LinesOptions { keep_blank: false, bytes_max: 1 << 20, tables: None, unpacked };
    let source: Arc<dyn Source> = Arc::new(Lines::open(&[path], &options, &Silent).unwrap());
    let reader = TextReader { field: None, tokenizer: tokens.then(|| Arc::new(words())) };
    let counts: Arc<[u32]> = vec![LINE_TOKENS as u32 + 1; lines as usize].into();
    let packing = Packing::new(counts, LINE_TOKENS as u32 + 1, true).unwrap();
    let samples = if packed { packing.blocks() } else { lines };
    let of = Arc::clone(&source);
    Kind {
        source,
        samples,
        bytes: [1, 1], // less than a block of memory either way
        prepare: Box::new(move |cache| {
            let (source, reader) = (Arc::clone(&of), reader.clone());
            if packed {
                let format = BlockFormat { planes: Planes::default(), end: 0, padding: -1 };
                let packing = packing.clone();
                Arc::new(PackedPreparation::new(source, reader, packing, format, Some(5), cache))
            } else {
                Arc::new(LinePreparation { source, reader, padding: None, cache })
            }
        }),
        _folder: folder,
    }
}

/// Every kind of samples that has its own way to a copy.
fn kind(name: &str, samples: u32) -> Kind {
    match name {
        "sound" => sound(samples, &[]),
        "volumes" => volumes(samples, &[], CROPPED),
        "whole volumes" => volumes(samples, &[], FLIPPED),
        "text" => text(samples, false, false),
        "tokens" => text(samples, true, false),
        _ => text(samples, true, true),
    }
}

const KINDS: [&str; 6] = ["sound", "volumes", "whole volumes", "text", "tokens", "blocks"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn the_cache_changes_no_byte(
        name in prop::sample::select(&KINDS[..]),
        encoded in 0..=10u32,
        kibibytes in 40..400u64,
        policy in prop::sample::select(&[Policy::Pinned, Policy::Lru, Policy::Random][..]),
        threads in 1..4usize,
    ) {
        let kind = kind(name, 30);
        let split = [encoded * 10, 100 - encoded * 10];
        let kept = kind.cache(kibibytes << 10, split, policy);
        let plain = kind.loader(None, threads, ErrorPolicy::Raise);
        let cached = kind.loader(Some(Arc::clone(&kept)), threads, ErrorPolicy::Raise);
        for epoch in 0..3 {
            prop_assert_eq!(plain.epoch(epoch), cached.epoch(epoch), "{}, epoch {}", name, epoch);
        }
        let Served { storage, encoded, decoded, augmented } = cached.figures().served;
        prop_assert_eq!(storage + encoded + decoded, 3 * u64::from(kind.samples));
        prop_assert_eq!(augmented, 0);
        prop_assert!((split[0] > 0 || encoded == 0) && (split[1] > 0 || decoded == 0));
        prop_assert!(cached.figures().storage_bytes <= plain.figures().storage_bytes + 30 * 20_000);
        let figures = kept.figures();
        prop_assert_eq!(figures.corrupt, 0);
        prop_assert!(figures.used_bytes <= figures.budget_bytes);
    }
}

#[test]
fn pinned_misses_what_it_does_not_hold() {
    for name in KINDS {
        for (form, split) in [(0, [100, 0]), (1, [0, 100])] {
            for share in [0.25, 0.75] {
                let kind = kind(name, 80);
                let lines = kind.source.len() as f64;
                let held = (lines * share).round() as u64;
                // What these samples take, their places in the table included, and the page that the blocks are aligned by.
                let budget = held * Memory::footprint(kind.bytes[form]) + kind.source.len() as u64 * 4 + 4096;
                let cache = kind.cache(budget, split, Policy::Pinned);
                let loader = kind.loader(Some(Arc::clone(&cache)), 2, ErrorPolicy::Raise);
                let mut before = Served::default();
                for epoch in 0..3 {
                    drop(loader.epoch(epoch));
                    let now = loader.figures().served;
                    let missed = now.storage - before.storage;
                    let hit = [now.encoded - before.encoded, now.decoded - before.decoded];
                    before = now;
                    let what =
                        format!("{name}, {share} of it in form {form}, epoch {epoch}: {missed} missed");
                    if epoch == 0 {
                        assert_eq!(missed, u64::from(kind.samples), "{what}");
                    } else if name == "blocks" {
                        // A block has parts of one line or two, so it misses where either is not kept.
                        assert!(missed + 1 >= (lines * (1.0 - share)) as u64, "{what}");
                        assert_eq!(missed + hit[form], u64::from(kind.samples), "{what}");
                    } else {
                        assert_eq!((missed, hit[form]), (u64::from(kind.samples) - held, held), "{what}");
                    }
                }
                let figures = cache.figures();
                assert_eq!([figures.encoded.entries, figures.decoded.entries][form], held, "{name}");
            }
        }
    }
}

#[test]
fn with_room_for_all_storage_is_read_once() {
    for name in KINDS {
        for split in [[100, 0], [0, 100]] {
            let kind = kind(name, 20);
            let loader = kind.loader(Some(kind.cache(8 << 20, split, Policy::Pinned)), 2, ErrorPolicy::Raise);
            drop(loader.epoch(0));
            let first = loader.figures();
            assert!(first.storage_bytes > 0 && first.storage_reads > 0, "{name} {split:?}");
            (1..3).for_each(|epoch| drop(loader.epoch(epoch)));
            let all = loader.figures();
            let counted = (all.storage_bytes, all.storage_reads, all.fetched);
            assert_eq!(
                counted,
                (first.storage_bytes, first.storage_reads, first.fetched),
                "{name} {split:?}"
            );
        }
    }
}

#[test]
fn a_bad_file_is_never_kept_and_always_reported() {
    for kind in [sound(10, &[3]), volumes(10, &[3], CROPPED)] {
        for split in [[100, 0], [0, 100]] {
            let cache = kind.cache(8 << 20, split, Policy::Pinned);
            let loader = kind.loader(Some(Arc::clone(&cache)), 1, ErrorPolicy::Skip);
            for epoch in 0..3 {
                assert_eq!(loader.epoch(epoch).iter().map(|(ids, _)| ids.len()).sum::<usize>(), 9);
                let failures = loader.job.failures();
                assert_eq!(failures.iter().map(|failure| failure.sample).collect::<Vec<_>>(), [SampleId(3)]);
            }
            let figures = cache.figures();
            assert_eq!(figures.encoded.entries + figures.decoded.entries, 9);
        }
    }
}

#[test]
fn what_was_kept_for_other_operations_is_not_used() {
    // Two pipelines over one cache, as with an agent: what the first has made of the volumes is not what the second begins with.
    let (one, other) =
        (volumes(12, &[], CROPPED), volumes(12, &[], r#"[{"op":"rand_flip","axes":[0],"p":0.5}]"#));
    let cache = one.cache(8 << 20, [50, 50], Policy::Pinned);
    let first = one.loader(Some(Arc::clone(&cache)), 1, ErrorPolicy::Raise);
    let second = other.loader(Some(Arc::clone(&cache)), 1, ErrorPolicy::Raise);
    let plain = other.loader(None, 1, ErrorPolicy::Raise);
    for epoch in 0..3 {
        drop(first.epoch(epoch));
        assert_eq!(second.epoch(epoch), plain.epoch(epoch));
    }
    assert_eq!(first.figures().served.decoded, 24);
    assert_eq!(second.figures().served.decoded, 0);
    assert_eq!(second.figures().served.encoded, 24, "it is kept as it was stored besides");
}
