//! What the memory owes: the bytes that were put in or none, all of the budget and no more, and no lock for readers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use sutler_core::{Form, SampleId, SampleRng};

use super::super::*;

const FORMS: &[Form] = &[Form::Encoded, Form::Decoded];

fn memory(budget_bytes: u64, samples: usize) -> Memory {
    Memory::new(&MemoryOptions { budget_bytes, samples, forms: FORMS, backing: Backing::Private }).unwrap()
}

/// Bytes that tell which sample and which version they are of.
fn content(sample: u32, version: u32, bytes: usize) -> Vec<u8> {
    let mut rng = SampleRng::new(u64::from(version), 0, SampleId(sample));
    let mut content: Vec<u8> = (0..bytes.div_ceil(4)).flat_map(|_| rng.next_u32().to_le_bytes()).collect();
    content.truncate(bytes);
    content
}

fn read(memory: &Memory, sample: u32, form: Form) -> Option<Vec<u8>> {
    let mut out = vec![7; 3];
    memory.get(SampleId(sample), form).map(|held| held.read_into(&mut out).map(|()| out).unwrap())
}

#[derive(Clone, Debug)]
enum Step {
    Put { sample: u32, decoded: bool, bytes: usize, cut: usize },
    Remove { sample: u32, decoded: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let put = (0..12u32, any::<bool>(), 0..30_000usize, 0..30_000usize);
    prop_oneof![
        3 => put.prop_map(|(sample, decoded, bytes, cut)| Step::Put { sample, decoded, bytes, cut }),
        1 => (0..12u32, any::<bool>()).prop_map(|(sample, decoded)| Step::Remove { sample, decoded }),
    ]
}

fn form(decoded: bool) -> Form {
    if decoded { Form::Decoded } else { Form::Encoded }
}

proptest! {
    #[test]
    fn gives_back_what_was_put_in_and_takes_all_that_fits(steps in prop::collection::vec(step(), 0..80)) {
        let memory = memory(200_000, 12);
        let mut model: HashMap<(u32, Form), Vec<u8>> = HashMap::new();
        for (version, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put { sample, decoded, bytes, cut } => {
                    let bytes = content(sample, version as u32, bytes);
                    let (head, tail) = bytes.split_at(cut.min(bytes.len()));
                    let free = memory.capacity_bytes() - memory.used_bytes();
                    let answer = memory.put(SampleId(sample), form(decoded), &[head, &[], tail]);
                    let expected = match model.entry((sample, form(decoded))) {
                        Entry::Occupied(_) => Err(Refused::Present),
                        Entry::Vacant(_) if Memory::footprint(bytes.len()) > free => Err(Refused::Full),
                        Entry::Vacant(vacant) => {
                            vacant.insert(bytes);
                            Ok(())
                        }
                    };
                    prop_assert_eq!(answer, expected);
                }
                Step::Remove { sample, decoded } => {
                    let removed = memory.remove(SampleId(sample), form(decoded));
                    prop_assert_eq!(removed, model.remove(&(sample, form(decoded))).is_some());
                }
            }
            let used: u64 = model.values().map(|bytes| Memory::footprint(bytes.len())).sum();
            prop_assert_eq!(memory.used_bytes(), used);
        }
        for form in [Form::Encoded, Form::Decoded] {
            for sample in 0..12 {
                prop_assert_eq!(read(&memory, sample, form), model.get(&(sample, form)).cloned());
            }
            let of_form = model.iter().filter(|((_, kept), _)| *kept == form);
            let bytes: usize = of_form.clone().map(|(_, bytes)| bytes.len()).sum();
            prop_assert_eq!(memory.kept(form), (of_form.count() as u64, bytes as u64));
        }
    }

    #[test]
    fn pieces_are_what_slices_would_be(
        bytes in 1..40_000usize,
        start in 0..20_000usize,
        piece in 1..9_000usize,
        gap in 0..9_000usize,
        count in 1..6usize,
    ) {
        let memory = memory(200_000, 1);
        let whole = content(0, 0, bytes);
        memory.put(SampleId(0), Form::Encoded, &[&whole]).unwrap();
        let held = memory.get(SampleId(0), Form::Encoded).unwrap();
        let stride = piece + gap;
        let mut out = vec![0; piece * count];
        let answer = held.read(Pieces { start, piece, stride, count }, &mut out);
        if start + (count - 1) * stride + piece > bytes {
            prop_assert_eq!(answer, Err(Corrupt));
        } else {
            prop_assert_eq!(answer, Ok(()));
            let expected: Vec<u8> =
                (0..count).flat_map(|k| whole[start + k * stride..][..piece].to_vec()).collect();
            prop_assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_changed_bit_is_noticed_and_never_handed_out(bytes in 1..30_000usize, at in 0..30_000usize) {
        let memory = memory(100_000, 2);
        memory.put(SampleId(1), Form::Decoded, &[&content(1, 0, bytes)]).unwrap();
        memory.damage(SampleId(1), Form::Decoded, at % bytes);
        let held = memory.get(SampleId(1), Form::Decoded).unwrap();
        prop_assert_eq!(held.read_into(&mut Vec::new()), Err(Corrupt));
    }
}

/// Mixed sizes come and go until the memory has been filled many times over; no put is refused while there is room for
/// it, and what cannot be used for content stays below a tenth.
#[test]
fn churn_does_not_wear_the_memory_out() {
    const BUDGET: u64 = 16 << 20;
    let memory = memory(BUDGET, 100_000);
    let mut rng = SampleRng::new(1, 0, SampleId(0));
    let mut kept: Vec<(u32, usize)> = Vec::new();
    let mut content_bytes = 0;
    let filler = vec![5; 300_000];
    let mut worst: f64 = 1.0;
    for sample in 0..6_000u32 {
        // From 2 kB to 300 kB, even in the logarithm: 60 kB on average.
        let bytes = (2_000.0 * 150f64.powf(rng.uniform(0.0, 1.0))) as usize;
        while memory.capacity_bytes() - memory.used_bytes() < Memory::footprint(bytes) {
            let used = content_bytes as f64 / (BUDGET as f64 - bytes as f64);
            worst = worst.min(used);
            let (victim, bytes) = kept.swap_remove(rng.below(kept.len() as u32) as usize);
            assert!(memory.remove(SampleId(victim), Form::Encoded));
            content_bytes -= bytes;
        }
        memory.put(SampleId(sample), Form::Encoded, &[&filler[..bytes]]).expect("there is room");
        kept.push((sample, bytes));
        content_bytes += bytes;
    }
    assert!(worst >= 0.9, "only {:.1} % of the budget held content", 100.0 * worst);
    assert!(memory.mapped_bytes() <= BUDGET);
}

#[test]
fn a_removed_entry_stays_for_those_who_read_it_and_is_free_after_them() {
    let memory = memory(100_000, 2);
    let bytes = content(0, 0, 10_000);
    memory.put(SampleId(0), Form::Encoded, &[&bytes]).unwrap();
    let held = memory.get(SampleId(0), Form::Encoded).unwrap();
    let used = memory.used_bytes();
    assert!(memory.remove(SampleId(0), Form::Encoded));
    assert!(memory.get(SampleId(0), Form::Encoded).is_none());
    assert_eq!(memory.used_bytes(), used, "it is still being read");
    memory.put(SampleId(1), Form::Encoded, &[&content(1, 0, 50_000)]).unwrap();
    let mut out = Vec::new();
    held.read_into(&mut out).unwrap();
    assert_eq!(out, bytes);
    drop(held);
    assert_eq!(memory.used_bytes(), Memory::footprint(50_000));
}

/// Readers and writers at the same few entries for a while: whatever is read is some version that was put in whole, and
/// in the end every block is accounted for.
#[test]
fn readers_never_see_half_an_entry() {
    const SAMPLES: u32 = 4;
    let rounds: u32 =
        std::env::var("SUTLER_CACHE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3_000);
    let memory = memory(120_000, SAMPLES as usize);
    let writing = AtomicBool::new(true);
    let hits = AtomicU64::new(0);
    // A version is told by its first bytes, and its length follows from it.
    let version_of = |sample: u32, version: u32| {
        let mut bytes = content(sample, version, 4 + (version as usize * 977) % 20_000);
        bytes[..4].copy_from_slice(&version.to_le_bytes());
        bytes
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3u32)
            .map(|reader| {
                let (memory, writing, hits) = (&memory, &writing, &hits);
                scope.spawn(move || {
                    let mut out = Vec::new();
                    let mut sample = reader;
                    while writing.load(Ordering::Relaxed) {
                        sample = (sample + 1) % SAMPLES;
                        let Some(held) = memory.get(SampleId(sample), Form::Encoded) else { continue };
                        held.read_into(&mut out).expect("nothing was damaged");
                        let version = u32::from_le_bytes(out[..4].try_into().unwrap());
                        assert_eq!(out, version_of(sample, version));
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..2u32)
            .map(|writer| {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let sample = (round + writer) % SAMPLES;
                        memory.remove(SampleId(sample), Form::Encoded);
                        let bytes = version_of(sample, round * 2 + writer);
                        // Another writer may have been faster, or readers may still hold on to removed entries.
                        let _ = memory.put(SampleId(sample), Form::Encoded, &[&bytes]);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        writing.store(false, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(hits.load(Ordering::Relaxed) > 0);
    for sample in 0..SAMPLES {
        memory.remove(SampleId(sample), Form::Encoded);
    }
    assert_eq!(memory.used_bytes(), 0, "blocks were lost");
}

#[test]
fn a_shared_memory_lives_in_a_file_of_its_size() {
    let options =
        MemoryOptions { budget_bytes: 1 << 20, samples: 10, forms: FORMS, backing: Backing::Shared };
    let memory = Memory::new(&options).unwrap();
    let bytes = content(3, 0, 70_000);
    memory.put(SampleId(3), Form::Encoded, &[&bytes]).unwrap();
    assert_eq!(read(&memory, 3, Form::Encoded), Some(bytes));
    let file = rustix::fs::fstat(memory.file().unwrap()).unwrap();
    assert_eq!(file.st_size as u64, memory.mapped_bytes());
    assert!(memory.mapped_bytes() <= 1 << 20);
}

#[test]
fn budgets_that_cannot_be_are_refused_in_words() {
    let refuse = |budget_bytes, samples| {
        let options = MemoryOptions { budget_bytes, samples, forms: FORMS, backing: Backing::Private };
        Memory::new(&options).err().expect("a refusal").to_string()
    };
    // The machine's memory, or its share where the tests run in a container.
    let limit = memory_limit().unwrap();
    let text = refuse(1 << 50, 10);
    assert!(text.starts_with("The cache asks for 1024.0 TiB, which is more than the "), "{text}");
    assert!(text.contains(limit.of) && text.contains("Ask for less"), "{text}");
    let text = refuse(4096, 1_000_000);
    assert!(
        text.contains("4.0 KiB") && text.contains("a dataset of 1,000,000 samples it takes 7.6 MiB"),
        "{text}"
    );
}

#[test]
fn the_least_that_is_asked_for_is_enough_for_a_sample() {
    for samples in [1, 100, 10_000] {
        let with = |budget_bytes| {
            Memory::new(&MemoryOptions { budget_bytes, samples, forms: FORMS, backing: Backing::Private })
        };
        let Err(MemoryError::TooSmall { least_bytes, .. }) = with(1) else { panic!("a byte is enough") };
        assert!(matches!(with(least_bytes - 1), Err(MemoryError::TooSmall { .. })));
        assert_eq!(with(least_bytes).unwrap().put(SampleId(0), Form::Encoded, &[b"a sample"]), Ok(()));
    }
}

#[test]
fn what_it_does_not_keep_is_refused() {
    let memory = memory(1 << 20, 10);
    assert_eq!(memory.put(SampleId(3), Form::Augmented, &[b"x"]), Err(Refused::Unfit));
    assert_eq!(memory.put(SampleId(10), Form::Encoded, &[b"x"]), Err(Refused::Unfit));
    assert!(memory.get(SampleId(10), Form::Encoded).is_none());
    assert!(!memory.remove(SampleId(10), Form::Encoded));
}

#[test]
fn another_process_reads_what_is_held_for_it_and_notices_damage() {
    let options =
        MemoryOptions { budget_bytes: 400_000, samples: 12, forms: FORMS, backing: Backing::Shared };
    let memory = Memory::new(&options).unwrap();
    let bytes = content(5, 1, 9_000);
    memory.put(SampleId(4), Form::Decoded, &[&content(4, 1, 5_000)]).unwrap();
    memory.put(SampleId(5), Form::Decoded, &[&bytes]).unwrap();
    let file = memory.file().unwrap().try_clone_to_owned().unwrap();
    let reader = Reader::open(file, memory.extent()).unwrap();
    let held = memory.get(SampleId(5), Form::Decoded).unwrap();
    let first = held.first_block();
    let mut out = vec![0; reader.len(first).unwrap()];
    reader.read(first, SampleId(5), Form::Decoded, &mut out).unwrap();
    assert_eq!(out, bytes);
    // Removed meanwhile, it stays until the owner lets go.
    memory.remove(SampleId(5), Form::Decoded);
    memory.put(SampleId(6), Form::Decoded, &[&content(6, 1, 9_000)]).unwrap();
    reader.read(first, SampleId(5), Form::Decoded, &mut out).unwrap();
    assert_eq!(out, bytes);
    // Another sample's entry, one that cannot be, and a flipped bit are all noticed.
    assert_eq!(reader.read(first, SampleId(4), Form::Decoded, &mut out), Err(Corrupt));
    assert_eq!(reader.len(u32::MAX), Err(Corrupt));
    memory.damage(SampleId(6), Form::Decoded, 8_000);
    let held = memory.get(SampleId(6), Form::Decoded).unwrap();
    assert_eq!(reader.read(held.first_block(), SampleId(6), Form::Decoded, &mut out), Err(Corrupt));
}

#[test]
fn a_file_that_is_too_short_is_refused() {
    let options =
        MemoryOptions { budget_bytes: 400_000, samples: 12, forms: FORMS, backing: Backing::Shared };
    let memory = Memory::new(&options).unwrap();
    let file = memory.file().unwrap().try_clone_to_owned().unwrap();
    let extent = Extent { blocks: memory.extent().blocks + 1, ..memory.extent() };
    let error = Reader::open(file, extent).err().unwrap().to_string();
    assert!(error.contains("bytes, not"), "{error}");
}
