use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::Permutation;

fn encoded_only(bytes: u64, policy: Policy, seed: u64) -> Keeper {
    let partition = Partition { encoded_bytes: bytes, ..Partition::default() };
    Keeper::new(partition, [policy; 3], seed)
}

/// The miss rate of shuffled epochs after the cache has filled and settled.
fn misses_of_shuffled_epochs(
    policy: Policy,
    samples: u32,
    fraction: f64,
    size_of: impl Fn(u32) -> u64,
) -> f64 {
    let all_bytes: u64 = (0..samples).map(&size_of).sum();
    let mut keeper = encoded_only((all_bytes as f64 * fraction) as u64, policy, 11);
    let mut evicted = Vec::new();
    let (settling, measured) = (12, 6);
    let mut misses_before = 0;
    for epoch in 0..settling + measured {
        if epoch == settling {
            misses_before = keeper.stats().encoded.misses;
        }
        let order = Permutation::shuffled(samples, 5, epoch);
        for position in 0..samples {
            let sample = order.sample_at(position);
            if !keeper.get(sample, Form::Encoded) {
                evicted.clear();
                keeper.offer(sample, Form::Encoded, size_of(sample.0), &mut evicted);
            }
        }
    }
    let misses = keeper.stats().encoded.misses - misses_before;
    misses as f64 / (f64::from(samples) * f64::from(measured))
}

/// Solves m = 1 - ((1 - e^-k) / k)², k = m / c by iteration; the map is a contraction for 0 < c < 1.
fn random_fixed_point(c: f64) -> f64 {
    let mut m: f64 = 1.0 - c;
    for _ in 0..500 {
        let k = m / c;
        m = 1.0 - ((1.0 - (-k).exp()) / k).powi(2);
    }
    m
}

fn close(measured: f64, expected: f64) {
    assert!((measured / expected - 1.0).abs() < 0.01, "measured {measured:.4}, expected {expected:.4}");
}

#[test]
fn pinned_misses_what_it_does_not_hold() {
    for c in [0.35, 0.5, 0.65] {
        close(misses_of_shuffled_epochs(Policy::Pinned, 20_000, c, |_| 1), 1.0 - c);
    }
}

#[test]
fn lru_misses_a_times_one_minus_log_a() {
    for (c, published) in [(0.35, 0.930), (0.5, 0.847), (0.65, 0.717)] {
        let a: f64 = 1.0 - c;
        let expected = a * (1.0 - a.ln());
        assert!((expected - published).abs() < 0.001, "the closed form gives {expected}");
        close(misses_of_shuffled_epochs(Policy::Lru, 20_000, c, |_| 1), expected);
    }
}

#[test]
fn random_misses_its_fixed_point() {
    for (c, published) in [(0.35, 0.862), (0.5, 0.719), (0.65, 0.536)] {
        let expected = random_fixed_point(c);
        assert!((expected - published).abs() < 0.001, "the fixed point is {expected}");
        close(misses_of_shuffled_epochs(Policy::Random, 20_000, c, |_| 1), expected);
    }
}

/// Sizes as uneven as those of photographs (a factor of 64) change what fits, not which policy wins.
#[test]
fn uneven_sizes_keep_the_ranking() {
    let size_of = |sample: u32| 4_000 << (sample.wrapping_mul(2_654_435_761) >> 29);
    let [pinned, random, lru] = [Policy::Pinned, Policy::Random, Policy::Lru]
        .map(|policy| misses_of_shuffled_epochs(policy, 6_000, 0.5, size_of));
    assert!(pinned < random && random < lru, "pinned {pinned}, random {random}, lru {lru}");
}

#[test]
fn an_offer_that_cannot_fit_evicts_nobody() {
    let mut keeper = encoded_only(10, Policy::Lru, 0);
    let mut evicted = Vec::new();
    for id in 0..2 {
        assert_eq!(keeper.offer(SampleId(id), Form::Encoded, 5, &mut evicted), Admission::Kept);
    }
    assert!(keeper.hold(SampleId(0), Form::Encoded));
    assert_eq!(keeper.offer(SampleId(2), Form::Encoded, 6, &mut evicted), Admission::NoRoom);
    assert_eq!(keeper.offer(SampleId(2), Form::Encoded, 11, &mut evicted), Admission::TooLarge);
    assert_eq!(keeper.offer(SampleId(2), Form::Storage, 1, &mut evicted), Admission::TooLarge);
    assert!(evicted.is_empty());
    assert_eq!(keeper.offer(SampleId(2), Form::Encoded, 4, &mut evicted), Admission::Kept);
    assert_eq!(evicted, [(SampleId(1), Form::Encoded)]);
}

#[test]
fn a_shrunk_share_waits_for_its_readers_and_the_others_wait_for_it() {
    let split =
        |encoded_bytes, decoded_bytes| Partition { encoded_bytes, decoded_bytes, ..Partition::default() };
    let mut keeper = Keeper::new(split(10, 0), [Policy::Pinned; 3], 0);
    let mut evicted = Vec::new();
    for id in 0..10 {
        keeper.offer(SampleId(id), Form::Encoded, 1, &mut evicted);
        keeper.hold(SampleId(id), Form::Encoded);
    }
    keeper.release(SampleId(3), Form::Encoded, &mut evicted);
    keeper.set_partition(split(2, 8), &mut evicted);
    assert!(keeper.is_over_share(Form::Encoded));
    assert_eq!(keeper.offer(SampleId(20), Form::Decoded, 2, &mut evicted), Admission::NoRoom);
    assert_eq!(evicted, [], "nobody leaves where it would not be enough");
    keeper.release(SampleId(4), Form::Encoded, &mut evicted);
    assert_eq!(keeper.offer(SampleId(20), Form::Decoded, 2, &mut evicted), Admission::Kept);
    assert_eq!(evicted, [(SampleId(4), Form::Encoded), (SampleId(3), Form::Encoded)]);
    assert_eq!(keeper.nearest(SampleId(20)), Form::Decoded);
    assert_eq!(keeper.nearest(SampleId(5)), Form::Encoded);
    assert_eq!(keeper.nearest(SampleId(4)), Form::Storage);
}

/// "Changing the split never drops what is still needed."
#[test]
fn a_new_split_is_moved_to_as_samples_come() {
    let split =
        |encoded_bytes, decoded_bytes| Partition { encoded_bytes, decoded_bytes, ..Partition::default() };
    let mut keeper = Keeper::new(split(12, 0), [Policy::Pinned; 3], 0);
    let mut evicted = Vec::new();
    for id in 0..12 {
        keeper.offer(SampleId(id), Form::Encoded, 1, &mut evicted);
    }
    keeper.set_partition(split(0, 12), &mut evicted);
    assert_eq!((keeper.kept(Form::Encoded), evicted.len()), (12, 0));
    for decoded in 1..=3 {
        assert_eq!(keeper.offer(SampleId(decoded), Form::Decoded, 4, &mut evicted), Admission::Kept);
        assert_eq!(keeper.kept(Form::Encoded), 12 - 4 * decoded as usize);
        assert_eq!(keeper.used_bytes(), 12);
    }
    assert_eq!(keeper.offer(SampleId(4), Form::Decoded, 4, &mut evicted), Admission::NoRoom);
    assert_eq!(keeper.offer(SampleId(0), Form::Encoded, 1, &mut evicted), Admission::TooLarge);
    // A smaller budget cannot wait.
    keeper.set_partition(split(0, 5), &mut evicted);
    assert_eq!((keeper.kept(Form::Decoded), keeper.used_bytes()), (1, 4));
}

#[test]
fn the_window_and_the_forms_share_one_budget() {
    let split =
        |encoded_bytes, window_bytes| Partition { encoded_bytes, window_bytes, ..Partition::default() };
    let mut keeper = Keeper::new(split(4, 6), [Policy::Pinned; 3], 0);
    let mut evicted = Vec::new();
    assert_eq!(keeper.window_bytes_max(), 6);
    keeper.set_window_used(6);
    keeper.set_partition(split(8, 2), &mut evicted);
    assert_eq!(keeper.offer(SampleId(0), Form::Encoded, 5, &mut evicted), Admission::NoRoom);
    keeper.set_window_used(2);
    assert_eq!(keeper.offer(SampleId(0), Form::Encoded, 5, &mut evicted), Admission::Kept);
    keeper.hold(SampleId(0), Form::Encoded);
    keeper.set_partition(split(0, 10), &mut evicted);
    assert_eq!(keeper.window_bytes_max(), 5);
    keeper.release(SampleId(0), Form::Encoded, &mut evicted);
    assert_eq!(keeper.window_bytes_max(), 10);
}

#[derive(Clone, Debug)]
enum Event {
    Get(u32, Form),
    Offer(u32, Form, u64),
    Hold(u32, Form),
    Release(u32, Form),
    Remove(u32, Form),
    Split([u64; 4]),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let form = || prop::sample::select(Form::ALL.to_vec());
    let event = prop_oneof![
        3 => (0u32..24, form()).prop_map(|(id, form)| Event::Get(id, form)),
        6 => (0u32..24, form(), 0u64..12).prop_map(|(id, form, bytes)| Event::Offer(id, form, bytes)),
        3 => (0u32..24, form()).prop_map(|(id, form)| Event::Hold(id, form)),
        3 => (0u32..24, form()).prop_map(|(id, form)| Event::Release(id, form)),
        1 => (0u32..24, form()).prop_map(|(id, form)| Event::Remove(id, form)),
        1 => [0u64..40, 0u64..40, 0u64..40, 0u64..20].prop_map(Event::Split),
    ];
    prop::collection::vec(event, 0..300)
}

proptest! {
    /// Invariant 5, bounded: against a model that keeps its own count of who is here, how large and held how often.
    #[test]
    fn the_books_balance_and_nothing_in_use_leaves(
        events in events(),
        policies in prop::array::uniform3(prop::sample::select(vec![Policy::Pinned, Policy::Lru, Policy::Random])),
        seed: u64,
    ) {
        let partition = Partition { encoded_bytes: 30, decoded_bytes: 20, augmented_bytes: 10, window_bytes: 0 };
        let mut keeper = Keeper::new(partition, policies, seed);
        let mut model: HashMap<(u32, Form), (u64, u32)> = HashMap::new();
        let mut evicted = Vec::new();
        for event in events {
            evicted.clear();
            let used_before = keeper.used_bytes();
            let mut grew = false;
            match event {
                Event::Get(id, form) => {
                    prop_assert_eq!(keeper.get(SampleId(id), form), model.contains_key(&(id, form)));
                }
                Event::Offer(id, form, bytes) => {
                    let admission = keeper.offer(SampleId(id), form, bytes, &mut evicted);
                    prop_assert_eq!(admission == Admission::AlreadyKept, model.contains_key(&(id, form)));
                    if admission == Admission::Kept {
                        model.insert((id, form), (bytes, 0));
                        grew = bytes > 0;
                        let index = KEPT.iter().position(|&kept| kept == form).unwrap();
                        let own = evicted.iter().filter(|(_, left)| *left == form).count();
                        prop_assert!(policies[index] != Policy::Pinned || own == 0);
                        // A sample of no bytes is welcome even where a share is still emptying.
                        prop_assert!(bytes == 0 || keeper.used_bytes_of(form) <= keeper.partition().bytes_of(form));
                    } else {
                        prop_assert!(evicted.is_empty());
                    }
                }
                Event::Hold(id, form) => {
                    let held = keeper.hold(SampleId(id), form);
                    prop_assert_eq!(held, model.contains_key(&(id, form)));
                    if let Some(entry) = model.get_mut(&(id, form)) {
                        entry.1 += 1;
                    }
                }
                Event::Release(id, form) => {
                    let expected = model.get(&(id, form)).is_some_and(|entry| entry.1 > 0);
                    if let Some(entry) = model.get_mut(&(id, form)).filter(|entry| entry.1 > 0) {
                        entry.1 -= 1;
                    }
                    prop_assert_eq!(keeper.release(SampleId(id), form, &mut evicted), expected);
                }
                Event::Remove(id, form) => {
                    let expected = model.get(&(id, form)).is_some_and(|entry| entry.1 == 0);
                    prop_assert_eq!(keeper.remove(SampleId(id), form), expected);
                    if expected {
                        model.remove(&(id, form));
                    }
                }
                Event::Split([encoded_bytes, decoded_bytes, augmented_bytes, window_bytes]) => {
                    let partition = Partition { encoded_bytes, decoded_bytes, augmented_bytes, window_bytes };
                    keeper.set_partition(partition, &mut evicted);
                }
            }
            for &(sample, form) in &evicted {
                let gone = model.remove(&(sample.0, form));
                prop_assert!(gone.is_some_and(|(_, holds)| holds == 0), "{:?} left while it was held", sample);
            }
            for form in KEPT {
                let entries = || model.iter().filter(|((_, kept), _)| *kept == form).map(|(_, entry)| entry);
                prop_assert_eq!(keeper.used_bytes_of(form), entries().map(|entry| entry.0).sum::<u64>());
                prop_assert_eq!(keeper.kept(form), entries().count());
            }
            let held: u64 = model.values().filter(|entry| entry.1 > 0).map(|entry| entry.0).sum();
            let for_forms = keeper.partition().total_bytes() - keeper.partition().window_bytes;
            let shares: u64 = KEPT.iter().map(|&form| keeper.partition().bytes_of(form).min(keeper.used_bytes_of(form))).sum();
            prop_assert!(keeper.used_bytes() <= for_forms.max(held + shares), "more than the budget, and not for its readers");
            if grew {
                prop_assert!(
                    keeper.used_bytes() <= used_before || keeper.used_bytes() <= keeper.partition().total_bytes()
                );
            }
        }
    }
}
