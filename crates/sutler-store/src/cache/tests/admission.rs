//! What memory and policy owe together: no more than the budget, and one opinion on who is in.

use sutler_core::{Form, Policy, SampleId, SampleRng};

use super::super::*;

const KIB: usize = 1 << 10;

fn cache(budget_bytes: u64, samples: usize, split: [u32; 2], policy: Policy) -> Cache {
    let options = CacheOptions { budget_bytes, samples, split, policy, seed: 1, backing: Backing::Private };
    Cache::new(&options).unwrap()
}

fn sized(encoded_bytes: Option<usize>, decoded_bytes: Option<usize>) -> Offer {
    Offer { encoded_bytes, decoded_bytes, decoded_is_foreign: false }
}

fn offer(cache: &Cache, sample: u32, encoded: usize, decoded: usize) -> Option<Form> {
    let reservation = cache.reserve(SampleId(sample), &sized(Some(encoded), Some(decoded)))?;
    let form = reservation.form();
    let bytes = vec![sample as u8; if form == Form::Encoded { encoded } else { decoded }];
    reservation.commit(&[&bytes]);
    Some(form)
}

#[test]
fn decoded_is_filled_first_and_encoded_after_it() {
    let cache = cache(1 << 20, 100, [50, 50], Policy::Pinned);
    let forms: Vec<_> = (0..100).map(|sample| offer(&cache, sample, 20 * KIB, 100 * KIB)).collect();
    assert_eq!(forms[..5], [Some(Form::Decoded); 5]);
    assert!(forms[5..30].iter().all(|form| *form == Some(Form::Encoded)), "{forms:?}");
    assert!(forms[30..].iter().all(Option::is_none), "{forms:?}");
    let figures = cache.figures();
    assert_eq!(figures.decoded, FormFigures { entries: 5, bytes: 5 * 100 * KIB as u64 });
    assert_eq!(figures.encoded.entries, 25);
    assert_eq!(figures.evicted, 0);
    assert!(figures.used_bytes <= figures.budget_bytes);
}

#[test]
fn a_seat_that_is_not_taken_is_free_again() {
    let cache = cache(64 * KIB as u64, 10, [100, 0], Policy::Pinned);
    for sample in 0..10 {
        assert!(cache.reserve(SampleId(sample), &sized(Some(50 * KIB), None)).is_some(), "sample {sample}");
    }
    assert_eq!(offer(&cache, 3, 50 * KIB, 0), Some(Form::Encoded));
    assert_eq!(offer(&cache, 4, 50 * KIB, 0), None);
}

#[test]
fn with_both_shares_full_each_form_gets_its_part() {
    let cache = cache(4 << 20, 1000, [50, 50], Policy::Lru);
    let forms: Vec<_> = (0..1000).filter_map(|sample| offer(&cache, sample, 20 * KIB, 80 * KIB)).collect();
    assert_eq!(forms.len(), 1000, "LRU lets everybody in");
    let figures = cache.figures();
    assert!(figures.encoded.entries >= 95 && figures.decoded.entries >= 24, "{figures:?}");
    // A fifth of the seats are decoded, and so a fifth of those who came later asked for one.
    let decoded = forms[200..].iter().filter(|form| **form == Form::Decoded).count();
    assert!((140..180).contains(&decoded), "{decoded} of 800");
}

#[test]
fn a_bad_copy_is_dropped_and_may_come_again() {
    let cache = cache(1 << 20, 10, [100, 0], Policy::Pinned);
    offer(&cache, 2, 9_000, 0).unwrap();
    cache.memory().damage(SampleId(2), Form::Encoded, 5_000);
    let held = cache.get(SampleId(2), Form::Encoded).unwrap();
    assert_eq!(held.read_into(&mut Vec::new()), Err(Corrupt));
    drop(held);
    cache.discard(SampleId(2), Form::Encoded);
    cache.discard(SampleId(2), Form::Encoded);
    assert_eq!(cache.figures().corrupt, 1);
    assert!(cache.get(SampleId(2), Form::Encoded).is_none());
    assert_eq!(offer(&cache, 2, 9_000, 0), Some(Form::Encoded));
    let mut out = Vec::new();
    cache.get(SampleId(2), Form::Encoded).unwrap().read_into(&mut out).unwrap();
    assert_eq!(out, vec![2; 9_000]);
}

/// Many threads, few seats, every policy: whoever is found has his own bytes, and in the end the memory holds exactly
/// those whom the policy has let in.
#[test]
fn threads_and_evictions_leave_memory_and_policy_of_one_opinion() {
    for policy in [Policy::Pinned, Policy::Lru, Policy::Random] {
        let cache = cache(512 * KIB as u64, 64, [60, 40], policy);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut rng = SampleRng::new(9, 0, SampleId(thread));
                    let mut out = Vec::new();
                    for _ in 0..2_000 {
                        let sample = rng.below(64);
                        for form in [Form::Decoded, Form::Encoded] {
                            if let Some(held) = cache.get(SampleId(sample), form) {
                                held.read_into(&mut out).unwrap();
                                assert!(out.iter().all(|&byte| byte == sample as u8));
                            }
                        }
                        let size = (sample as usize + 1) * 500;
                        match rng.below(10) {
                            0 => cache.discard(SampleId(sample), Form::Encoded),
                            1 => drop(cache.reserve(SampleId(sample), &sized(Some(size), Some(4 * size)))),
                            _ => {
                                offer(cache, sample, size, 4 * size);
                            }
                        }
                    }
                });
            }
        });
        for form in [Form::Encoded, Form::Decoded] {
            for sample in (0..64).map(SampleId) {
                let (kept, found) = (cache.policy_keeps(sample, form), cache.get(sample, form).is_some());
                assert_eq!(kept, found, "{policy:?}: sample {} {form:?}", sample.0);
            }
        }
        let figures = cache.figures();
        assert!(figures.used_bytes <= figures.budget_bytes);
        assert!(figures.encoded.entries + figures.decoded.entries > 5, "{figures:?}");
    }
}

#[test]
fn a_split_of_more_than_everything_is_refused() {
    let split = [60, 41];
    let options = CacheOptions {
        budget_bytes: 1 << 20,
        samples: 1,
        split,
        policy: Policy::Pinned,
        seed: 0,
        backing: Backing::Private,
    };
    let text = Cache::new(&options).err().expect("a refusal").to_string();
    assert!(text.contains("101 percent"), "{text}");
}

#[test]
fn a_new_split_keeps_what_fits_both_and_lets_samples_change_seats() {
    let options = CacheOptions {
        budget_bytes: 1 << 20,
        samples: 100,
        split: [100, 0],
        policy: Policy::Pinned,
        seed: 1,
        backing: Backing::Private,
    };
    let cache = Cache::for_any_split(&options).unwrap();
    for sample in 0..100 {
        assert!(matches!(offer(&cache, sample, 20 * KIB, 100 * KIB), None | Some(Form::Encoded)));
    }
    let before = cache.figures();
    assert!(before.encoded.entries > 45 && before.decoded.entries == 0, "{before:?}");

    cache.set_split([50, 50]).unwrap();
    assert_eq!(cache.figures(), before, "nobody leaves before the room is needed");
    // A sample with an encoded copy moves while there is room for decoded ones, and nobody leaves for it.
    let move_up = |sample| {
        let reservation = cache.reserve(SampleId(sample), &sized(None, Some(100 * KIB)))?;
        let form = reservation.form();
        reservation.commit(&[&vec![sample as u8; 100 * KIB]]);
        Some(form)
    };
    // A reader keeps what it reads, although its seat is gone.
    let newest = SampleId(before.encoded.entries as u32 - 1);
    let held = cache.get(newest, Form::Encoded).unwrap();
    assert_eq!(move_up(9), Some(Form::Decoded));
    assert!(cache.get(newest, Form::Encoded).is_none());
    assert!(cache.get(SampleId(9), Form::Decoded).is_none(), "there was no room while it was read");
    let mut bytes = Vec::new();
    held.read_into(&mut bytes).unwrap();
    assert_eq!(bytes, vec![newest.0 as u8; 20 * KIB]);
    drop(held);
    let moved: Vec<_> = (0..8).map(move_up).collect();
    assert_eq!(moved[..5], [Some(Form::Decoded); 5]);
    assert!(moved[5..].iter().all(Option::is_none), "{moved:?}");
    for sample in 0..5 {
        assert!(cache.get(SampleId(sample), Form::Encoded).is_none(), "sample {sample} has two seats");
        assert!(cache.policy_keeps(SampleId(sample), Form::Decoded));
    }
    let full = cache.figures();
    assert_eq!(full.decoded.entries, 5);
    let moved_on = before.encoded.entries - full.encoded.entries;
    assert!(
        (25..=31).contains(&moved_on),
        "five decoded took the room of 25, five of them their own: {full:?}"
    );
    assert!(cache.get(SampleId(10), Form::Encoded).is_some(), "the first to come are the last to go");
    assert!(full.used_bytes <= full.budget_bytes);
    assert!(cache.set_split([60, 50]).unwrap_err().to_string().contains("110 percent"));
}

#[test]
fn a_sample_decoded_for_others_may_be_kept_encoded_besides() {
    let cache = cache(1 << 20, 100, [50, 50], Policy::Pinned);
    assert_eq!(offer(&cache, 7, 20 * KIB, 100 * KIB), Some(Form::Decoded));
    let asked = sized(Some(20 * KIB), Some(100 * KIB));
    assert!(cache.reserve(SampleId(7), &asked).is_none(), "one copy will do where it can be used");
    let foreign = Offer { decoded_is_foreign: true, ..asked };
    let seat = cache.reserve(SampleId(7), &foreign).unwrap();
    assert_eq!(seat.form(), Form::Encoded);
    seat.commit(&[&[7; 20 * KIB]]);
    assert!(cache.reserve(SampleId(7), &foreign).is_none(), "it has all it can have");
    let figures = cache.figures();
    assert_eq!((figures.encoded.entries, figures.decoded.entries), (1, 1));

    // Nobody leaves for a second copy.
    for sample in 8..100 {
        offer(&cache, sample, 20 * KIB, 100 * KIB);
    }
    let full = cache.figures();
    assert!(cache.reserve(SampleId(9), &foreign).is_none());
    assert_eq!(cache.figures(), full);
}

#[test]
fn a_smaller_budget_keeps_the_first_and_a_larger_one_is_filled_again() {
    let cache = cache(2 << 20, 100, [50, 50], Policy::Pinned);
    for sample in 0..100 {
        offer(&cache, sample, 20 * KIB, 100 * KIB);
    }
    let full = cache.figures();
    let held = cache.get(SampleId(full.decoded.entries as u32 - 1), Form::Decoded).unwrap();
    cache.set_budget(1 << 20);
    assert!(cache.figures().used_bytes > 1 << 20, "what is being read stays");
    drop(held);
    let half = cache.figures();
    assert_eq!(half.budget_bytes, 1 << 20);
    assert!(half.used_bytes <= 1 << 20, "{half:?}");
    assert!(half.decoded.entries >= full.decoded.entries / 2 - 1, "{full:?} {half:?}");
    let mut bytes = Vec::new();
    cache.get(SampleId(0), Form::Decoded).unwrap().read_into(&mut bytes).unwrap();
    assert_eq!(bytes, vec![0; 100 * KIB]);

    cache.set_budget(2 << 20);
    for sample in 0..100 {
        offer(&cache, sample, 20 * KIB, 100 * KIB);
    }
    let again = cache.figures();
    assert_eq!((again.decoded.entries, again.encoded.entries), (full.decoded.entries, full.encoded.entries));
    cache.set_budget(0);
    assert_eq!(cache.figures().used_bytes, 0);
    assert!(cache.reserve(SampleId(1), &sized(Some(KIB), None)).is_none());
}

#[test]
fn a_sample_that_the_dataset_does_not_have_gets_no_seat() {
    let options = CacheOptions {
        budget_bytes: 100_000,
        samples: 10,
        split: [0, 100],
        policy: Policy::Pinned,
        seed: 0,
        backing: Backing::Private,
    };
    let cache = Cache::new(&options).unwrap();
    assert!(cache.reserve(SampleId(1 << 31), &sized(None, Some(1))).is_none());
    assert!(cache.reserve(SampleId(9), &sized(None, Some(1))).is_some());
}
