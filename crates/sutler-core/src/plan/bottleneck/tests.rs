use proptest::prelude::*;

use super::*;
use crate::plan::Comparison;

/// A machine on which nothing is scarce: a million of everything.
fn plenty() -> Profile {
    Profile {
        samples: 1_000,
        encoded_bytes: 100.0,
        encoded_kept_bytes: 100.0,
        decoded_bytes: 500.0,
        augmented_bytes: 600.0,
        storage_bytes_per_s: 1e12,
        cache_bytes_per_s: 1e12,
        network: None,
        read_s: 0.0,
        read_work_s: 0.0,
        recall_s: 0.0,
        decode_s: 1e-6,
        augment_s: 1e-6,
        copy_s: 0.0,
        threads: 1e6,
        cores: 1e6,
        share: 1.0,
        bus_bytes_per_s: None,
        device_samples_per_s: 1e6,
        jobs: 1,
        window: false,
    }
}

fn close(measured: f64, expected: f64) {
    assert!((measured / expected - 1.0).abs() < 1e-9, "{measured} is not {expected}");
}

/// Half of the samples take 1/100 s of the one processor (decode), half 1/10,000 s (augment only).
#[test]
fn half_at_10000_and_half_at_100_run_at_198() {
    let profile = Profile {
        encoded_bytes: 100.0,
        decoded_bytes: 100.0,
        decode_s: 1.0 / 100.0 - 1.0 / 10_000.0,
        augment_s: 1.0 / 10_000.0,
        cores: 1.0,
        ..plenty()
    };
    let prediction = profile.predict(100_000.0, Split::new(50, 50, 0));
    assert_eq!((prediction.fractions.encoded, prediction.fractions.decoded), (0.5, 0.5));
    close(prediction.samples_per_s, 2.0 / (1.0 / 100.0 + 1.0 / 10_000.0));
    assert_eq!(prediction.samples_per_s.round(), 198.0);
    assert_eq!(prediction.binds, Some(Resource::Processors));
}

/// Where the two halves exhaust different resources, neither slows the other.
#[test]
fn forms_that_share_nothing_do_not_slow_each_other() {
    // Storage alone serves 200 samples per second; half of them come from memory.
    let profile = Profile { storage_bytes_per_s: 20_000.0, ..plenty() };
    close(profile.predict(0.0, Split::new(100, 0, 0)).samples_per_s, 200.0);
    let half = profile.predict(50_000.0, Split::new(100, 0, 0));
    close(half.samples_per_s, 400.0);
    assert_eq!(half.binds, Some(Resource::Storage));
    let all = profile.predict(100_000.0, Split::new(100, 0, 0));
    assert_eq!((all.samples_per_s, all.binds), (1e6, Some(Resource::Device)));
}

#[test]
fn each_resource_can_bind() {
    let starved = [
        (Profile { storage_bytes_per_s: 1.0, ..plenty() }, Resource::Storage, 1.0 / 50.0),
        (Profile { cache_bytes_per_s: 1.0, ..plenty() }, Resource::Cache, 1.0 / 50.0),
        (
            Profile { network: Some(Network { bytes_per_s: 1.0, carries_cache: true }), ..plenty() },
            Resource::Network,
            1.0 / 100.0,
        ),
        (
            Profile { network: Some(Network { bytes_per_s: 1.0, carries_cache: false }), ..plenty() },
            Resource::Network,
            1.0 / 50.0,
        ),
        (Profile { cores: 1e-3, ..plenty() }, Resource::Processors, 1e-3 / 2e-6),
        (Profile { bus_bytes_per_s: Some(1.0), ..plenty() }, Resource::Bus, 1.0 / 600.0),
        (Profile { device_samples_per_s: 7.0, ..plenty() }, Resource::Device, 7.0),
    ];
    for (profile, resource, expected) in starved {
        let prediction = profile.predict(50_000.0, Split::new(100, 0, 0));
        assert_eq!(prediction.binds, Some(resource));
        close(prediction.samples_per_s, expected);
    }
}

/// Pinned fraction c, J jobs and a window: storage sees (1 - c) / J of what is served.
#[test]
fn jobs_that_share_a_window_divide_the_work() {
    let profile = Profile { storage_bytes_per_s: 100.0, jobs: 3, window: true, ..plenty() };
    let prediction = profile.predict(20_000.0, Split::new(100, 0, 0));
    close(prediction.samples_per_s, 3.0 / 0.8);
    let alone = Profile { window: false, ..profile };
    close(alone.predict(20_000.0, Split::new(100, 0, 0)).samples_per_s, 1.0 / 0.8);
    // Without a window the augmented share does it: 600 bytes for a sample, made anew after three serves.
    close(alone.predict(600_000.0, Split::new(0, 0, 100)).samples_per_s, 3.0);
}

/// Beside the window, and for a single job, augmented samples take memory and gain nothing.
#[test]
fn augmented_shares_pay_only_for_jobs_without_a_window() {
    let profile = Profile {
        storage_bytes_per_s: 10_000.0,
        decode_s: 1e-3,
        augment_s: 1e-2,
        cores: 2.0,
        jobs: 4,
        ..plenty()
    };
    let best = |profile: Profile| profile.plan(60_000.0).unwrap().best;
    assert_eq!(best(Profile { window: true, ..profile }).split.augmented, 0);
    assert_eq!(best(Profile { jobs: 1, ..profile }).split.augmented, 0);
    assert!(best(profile).split.augmented > 0);
}

/// By hand: storage is plentiful and one processor decodes 100/s or augments 1,000/s, so every decoded sample that fits pays.
#[test]
fn scarce_processors_call_for_decoded_samples_and_scarce_storage_for_encoded_ones() {
    let scarce_cpu = Profile { decode_s: 9e-3, augment_s: 1e-3, cores: 1.0, ..plenty() };
    let plan = scarce_cpu.plan(250_000.0).unwrap();
    assert_eq!(plan.best.split, Split::new(0, 100, 0));
    // Half of the samples are decoded: 1 / (0.5 · 10 ms + 0.5 · 1 ms).
    close(plan.best.samples_per_s, 1.0 / 0.0055);
    let scarce_storage = Profile { storage_bytes_per_s: 1_000.0, ..plenty() };
    let plan = scarce_storage.plan(50_000.0).unwrap();
    assert_eq!((plan.best.split, plan.best.binds), (Split::new(100, 0, 0), Some(Resource::Storage)));
    close(plan.best.samples_per_s, 20.0);
}

#[test]
fn what_is_needed_for_a_target_is_what_reaches_it() {
    let profile = Profile { decode_s: 9e-3, augment_s: 1e-3, cores: 1.0, ..plenty() };
    let split = Split::new(0, 100, 0);
    let needed = profile.needed(250_000.0, split, 1_000.0);
    close(needed.processors, 5.5);
    let larger = Profile { cores: needed.processors, ..profile };
    close(larger.predict(250_000.0, split).samples_per_s, 1_000.0);
}

#[test]
fn profiles_without_sense_are_refused() {
    let refusal = Profile { cores: 0.0, ..plenty() }.plan(1.0).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the profile has cores = 0, but it must be a positive number; measure it again"
    );
    let refusal = Profile { copy_s: f64::NAN, ..plenty() }.plan(1.0).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the profile has copy_s = NaN, but it must be zero or a positive number; measure it again"
    );
    assert!(plenty().plan(-1.0).is_err() && plenty().plan(f64::INFINITY).is_err());
    assert!(Profile { jobs: 0, ..plenty() }.check().is_err());
}

#[test]
fn plans_survive_json() {
    let profile = Profile { network: Some(Network { bytes_per_s: 1e9, carries_cache: true }), ..plenty() };
    let plan = profile.plan(70_000.0).unwrap();
    assert_eq!(plan.predictions.len(), 5_151);
    let text = serde_json::to_string(&plan).unwrap();
    let read: Plan = serde_json::from_str(&text).unwrap();
    for (read, written) in read.predictions.iter().zip(&plan.predictions) {
        assert_eq!((read.split, read.binds), (written.split, written.binds));
        close(read.samples_per_s, written.samples_per_s);
    }
    let best = serde_json::to_value(plan.best).unwrap();
    assert_eq!((&best["split"]["encoded"], &best["binds"]), (&100.into(), &"device".into()));
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
}

fn profiles() -> impl Strategy<Value = Profile> {
    let sizes = [1.0..1e4f64, 1.0..1e5, 1.0..1e5];
    let rates = [1e3..1e9f64, 1e3..1e9, 1e3..1e9, 1e3..1e9];
    let costs = [0.0..1e-2f64, 0.0..1e-2, 0.0..1e-3, 0.0..1e-2];
    (sizes, rates, costs, 1.0..64f64, 1.0..1e5f64, 1u32..9, any::<[bool; 4]>()).prop_map(
        |(sizes, rates, costs, cores, device, jobs, [network, carries_cache, bus, window])| Profile {
            samples: 10_000,
            encoded_bytes: sizes[0],
            encoded_kept_bytes: sizes[0] * 1.1,
            decoded_bytes: sizes[1],
            augmented_bytes: sizes[2],
            storage_bytes_per_s: rates[0],
            cache_bytes_per_s: rates[1],
            network: network.then_some(Network { bytes_per_s: rates[2], carries_cache }),
            read_s: sizes[0] / rates[0] + costs[3],
            read_work_s: costs[3] / 2.0,
            recall_s: costs[2] / 2.0,
            decode_s: costs[0],
            augment_s: costs[1],
            copy_s: costs[2],
            threads: cores,
            cores,
            share: 0.9,
            bus_bytes_per_s: bus.then_some(rates[3]),
            device_samples_per_s: device,
            jobs,
            window,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn more_of_anything_never_hurts(profile in profiles(), budget in 0.0..1e9f64, index in 0usize..5_151, factor in 1.0..10f64) {
        let split = Split::all().nth(index).unwrap();
        let before = profile.predict(budget, split).samples_per_s;
        prop_assert!(before > 0.0 && before <= profile.device_samples_per_s);
        let mut richer = vec![
            Profile { storage_bytes_per_s: profile.storage_bytes_per_s * factor, ..profile },
            Profile { cache_bytes_per_s: profile.cache_bytes_per_s * factor, ..profile },
            Profile { cores: profile.cores * factor, ..profile },
            Profile { threads: profile.threads * factor, ..profile },
            Profile { device_samples_per_s: profile.device_samples_per_s * factor, ..profile },
            Profile { bus_bytes_per_s: profile.bus_bytes_per_s.map(|rate| rate * factor), ..profile },
        ];
        if let Some(network) = profile.network {
            let network = Some(Network { bytes_per_s: network.bytes_per_s * factor, ..network });
            richer.push(Profile { network, ..profile });
        }
        for richer in richer {
            let after = richer.predict(budget, split).samples_per_s;
            prop_assert!(after >= before * (1.0 - 1e-9), "{after} instead of {before}");
        }
        // Only more of what binds helps.
        let prediction = profile.predict(budget, split);
        if prediction.binds == Some(Resource::Storage) {
            let richer = Profile { storage_bytes_per_s: profile.storage_bytes_per_s * 1.01, ..profile };
            let after = richer.predict(budget, split);
            prop_assert!(after.samples_per_s > before || after.binds != Some(Resource::Storage));
        }
    }

    #[test]
    fn the_best_is_the_best_and_nothing_is_used_beyond_what_there_is(profile in profiles(), budget in 0.0..1e9f64) {
        let plan = profile.plan(budget).unwrap();
        for prediction in &plan.predictions {
            prop_assert!(prediction.samples_per_s <= plan.best.samples_per_s * (1.0 + 1e-9));
        }
        let needed = profile.needed(budget, plan.best.split, plan.best.samples_per_s);
        for resource in Resource::ALL {
            prop_assert!(needed.of(resource) <= profile.capacity(resource) * (1.0 + 1e-9));
        }
        let binding = plan.best.binds.unwrap();
        // Threads that queue for storage leave some of both unused, and never half of it.
        let used = match binding {
            Resource::Storage | Resource::Processors => 0.5,
            _ => 1.0 - 1e-9,
        };
        prop_assert!(needed.of(binding) >= profile.capacity(binding) * used, "{} binds", binding.name());
    }
}

/// One thread reads and works in turn, so the two times add up; with many threads the slower of the two hides the other.
#[test]
fn a_thread_that_reads_prepares_nothing() {
    let balanced = |threads: f64| Profile {
        storage_bytes_per_s: 100.0 * threads,
        read_s: 1.0 / threads,
        decode_s: 1.0,
        augment_s: 0.0,
        threads,
        cores: threads,
        ..plenty()
    };
    let rate = |threads: f64| balanced(threads).predict(0.0, Split::new(100, 0, 0)).samples_per_s;
    close(rate(1.0), 0.5);
    // Two threads, a read of half a second and work of one: alone 2/1.5 a second, and they are in each other's way now and then.
    let two = rate(2.0);
    assert!(1.15 < two && two < 2.0 / 1.5, "{two}");
    let many = rate(200.0) / 200.0;
    assert!(0.9 < many && many < 1.0, "{many}");
}

/// A latency that all threads wait out at once is no queue.
#[test]
fn latency_without_a_queue_costs_each_thread_its_own_time() {
    let far = Profile { read_s: 0.1, decode_s: 0.1, augment_s: 0.0, threads: 8.0, cores: 8.0, ..plenty() };
    let rate = far.predict(0.0, Split::new(100, 0, 0)).samples_per_s;
    assert!((rate / 40.0 - 1.0).abs() < 1e-3, "{rate}");
}

/// What threads reach that queue for storage, played through sample by sample: reads and work vary as the sizes of photographs do, and
/// every so often a sample comes from memory.
fn simulated_rate(threads: usize, misses: f64, read_s: f64, work_s: f64) -> f64 {
    const SAMPLES: u32 = 20_000;
    let mut rng = crate::SampleRng::new(0, 0, crate::SampleId(0));
    let mut uniform = || f64::from(rng.next_u32()) / f64::from(u32::MAX);
    let (mut free_at, mut storage_free_at) = (vec![0.0; threads], 0.0f64);
    for _ in 0..SAMPLES {
        let next = (0..threads).min_by(|&a, &b| f64::total_cmp(&free_at[a], &free_at[b])).unwrap();
        // From a quarter of the mean to seven quarters.
        let size = 0.25 + 1.5 * uniform();
        let mut now: f64 = free_at[next];
        if uniform() < misses {
            storage_free_at = now.max(storage_free_at) + read_s * size;
            now = storage_free_at;
        }
        free_at[next] = now + work_s * size;
    }
    f64::from(SAMPLES) / free_at.into_iter().fold(0.0, f64::max)
}

#[test]
fn threads_that_queue_for_storage_reach_what_a_simulation_says() {
    for threads in [1, 2, 4, 16] {
        for misses in [0.1, 0.5, 1.0] {
            for balance in [0.25, 0.5, 1.0, 2.0, 4.0] {
                // All threads work for a second on so many samples, and storage is busy with them for `balance` seconds.
                let read_s = balance / threads as f64 / misses;
                let simulated = simulated_rate(threads, misses, read_s, 1.0);
                let profile = Profile {
                    storage_bytes_per_s: 100.0 / read_s,
                    read_s,
                    decode_s: 1.0,
                    augment_s: 0.0,
                    threads: threads as f64,
                    cores: threads as f64,
                    ..plenty()
                };
                let predicted = profile.predict((1.0 - misses) * 100_000.0, Split::new(100, 0, 0));
                let error = predicted.samples_per_s / simulated - 1.0;
                assert!(
                    error.abs() < 0.06,
                    "{threads} threads, {misses} missed, balance {balance}: {simulated} is simulated, {} predicted",
                    predicted.samples_per_s
                );
            }
        }
    }
}

/// Eight threads on two processors: what they wait for is hidden, what they work is not.
#[test]
fn more_threads_than_processors_hide_waiting_and_nothing_else() {
    let crowded = Profile { decode_s: 0.1, augment_s: 0.0, threads: 8.0, cores: 2.0, ..plenty() };
    let rate = |profile: Profile| profile.predict(0.0, Split::new(100, 0, 0)).samples_per_s;
    close(rate(crowded), 20.0);
    // A latency as long as the work: two threads would be at half of it, eight never notice.
    let far = Profile { read_s: 0.1, ..crowded };
    close(rate(far), 20.0);
    let few = rate(Profile { threads: 2.0, ..far });
    assert!((few / 10.0 - 1.0).abs() < 1e-3, "{few}");
    // A processor that is busy with the read is not waiting.
    close(rate(Profile { read_work_s: 0.1, ..far }), 10.0);
    // Where others have half of each processor, work takes twice as long and a latency as long as ever.
    let disturbed = rate(Profile { threads: 2.0, share: 0.5, ..far });
    assert!((disturbed / (2.0 / 0.3) - 1.0).abs() < 1e-3, "{disturbed}");
}

/// By hand, two jobs: a sample is prepared once (10 ms), written to the row of one, to the window, and from there to the other's row (1 ms each).
#[test]
fn what_is_shared_is_copied_to_the_window_and_from_it() {
    let alone =
        Profile { decode_s: 8e-3, augment_s: 2e-3, copy_s: 1e-3, threads: 1.0, cores: 1.0, ..plenty() };
    let pair = Profile { jobs: 2, window: true, ..alone };
    let rate = |profile: Profile| profile.predict(0.0, Split::new(100, 0, 0)).samples_per_s;
    close(rate(alone), 1.0 / 11e-3);
    close(rate(pair), 2.0 / 13e-3);
    // A pool with nobody else in it shares nothing, so nothing is written for others.
    close(rate(Profile { jobs: 1, ..pair }), 1.0 / 11e-3);
}

#[test]
fn a_split_in_force_stays_until_another_is_clearly_better() {
    // Decoding costs nine times what augmenting does, and half of the decoded samples fit.
    let profile = Profile { decode_s: 9e-3, augment_s: 1e-3, cores: 1.0, ..plenty() };
    let choose = |in_force| profile.choose(250_000.0, in_force).unwrap().split;
    assert_eq!(choose(None), Split::new(0, 100, 0));
    assert_eq!(choose(Some(Split::new(1, 99, 0))), Split::new(1, 99, 0));
    assert_eq!(choose(Some(Split::new(100, 0, 0))), Split::new(0, 100, 0));
    // Where augmented samples would be best, somebody who may not have them gets the best of the others.
    let shared = Profile { augment_s: 1e-2, jobs: 4, ..profile };
    assert!(shared.plan(60_000.0).unwrap().best.split.augmented > 0);
    assert_eq!(shared.choose(60_000.0, None).unwrap().split.augmented, 0);
}

/// Slow storage, and room for all samples if some of them stay encoded. The best plan fills the last byte; a choice does not depend on it.
#[test]
fn a_choice_holds_where_samples_are_a_little_larger_than_they_seemed() {
    let profile = Profile {
        storage_bytes_per_s: 500.0,
        read_s: 0.2,
        decode_s: 9e-3,
        augment_s: 1e-3,
        threads: 2.0,
        cores: 2.0,
        ..plenty()
    };
    let larger = Profile { encoded_kept_bytes: 101.5, decoded_bytes: 507.5, ..profile };
    let rate = |profile: &Profile, split| profile.predict(300_000.0, split).samples_per_s;
    let best = profile.plan(300_000.0).unwrap().best.split;
    let chosen = profile.choose(300_000.0, None).unwrap().split;
    assert!(rate(&larger, best) < 0.95 * rate(&profile, best));
    assert!(rate(&larger, chosen) > 0.97 * rate(&profile, chosen));
    assert!(rate(&profile, chosen) > 0.97 * rate(&profile, best));
}

#[test]
fn both_models_answer_for_a_profile() {
    let comparison = Comparison::new(&plenty(), 70_000).unwrap();
    let facts = serde_json::to_value(&comparison).unwrap();
    for answers in [&facts, &facts["published"]] {
        assert_eq!(answers["splits"].as_array().unwrap().len(), 5_151);
        assert!(answers["best"]["predicted"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(facts["best"]["bound_by"], "device");
    assert_eq!(facts["profile"]["samples"], 1_000);
    assert_eq!(comparison.ours.of("100-0-0").unwrap(), &comparison.ours.splits[0]);
    assert!(Comparison::new(&Profile { samples: 0, ..plenty() }, 1).is_err());
}
