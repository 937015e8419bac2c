use super::*;

/// Storage of 100 samples a second, processors of 200 with two workers, a trainer that takes 400.
pub fn facts() -> Facts {
    Facts {
        samples: 10_000,
        sample_bytes: 1e5,
        kept_bytes: 1e5,
        cache_bytes: 0.0,
        workers: 8,
        cores: 8,
        in_turns: false,
        ready: false,
        stay: true,
        ahead: None,
        ingest: Known { value: 400.0, low: 396.0, high: 404.0 },
        step_busy: 0.0,
        in_trainer_s: 0.0,
        prepare: Known { value: 200.0, low: 196.0, high: 204.0 },
        prepare_alone: Some(Known::exactly(25.0)),
        work_s: None,
        recall: Some(Known::exactly(1e5)),
        storage: Some(Known { value: 100.0, low: 98.0, high: 102.0 }),
        read_s: None,
        hand_over: None,
        measured: Known::exactly(100.0),
        stalls: Stalls { fetch: 0.5, prep: 0.25, transport: 0.0, trainer: 0.25 },
        memory_bytes: 1e10,
        missed: Missed::default(),
    }
}

fn predicted(facts: &Facts, change: Change) -> (f64, &'static str) {
    let outlook = facts.predict(&change).unwrap();
    let known = outlook.samples_per_s;
    assert!(known.low <= known.value && known.value <= known.high, "{known:?}");
    (known.value, outlook.bound_by)
}

fn is(found: (f64, &str), rate: f64, bound_by: &str) {
    assert!((found.0 / rate - 1.0).abs() < 0.03 && found.1 == bound_by, "{found:?} is not {rate} {bound_by}");
}

#[test]
fn what_binds_moves_on_when_it_is_relieved() {
    let facts = facts();
    is(predicted(&facts, Change::default()), 100.0, "storage");
    is(predicted(&facts, Change { cores: Some(16), ..Change::default() }), 100.0, "storage");
    let half = Change { storage_bytes_per_s: Some(5e6), ..Change::default() };
    is(predicted(&facts, half), 50.0, "storage");
    let fast = Change { storage_bytes_per_s: Some(1e9), ..Change::default() };
    is(predicted(&facts, fast), 200.0, "processors");
    let all = Change { cache_bytes: Some(1e9), ..Change::default() };
    is(predicted(&facts, all), 200.0, "processors");
    let both = Change { cores: Some(40), ..all };
    is(predicted(&facts, both), 400.0, "device");
    let more = Change { remote: Some(3), ..all };
    is(predicted(&facts, more), 400.0, "device");
}

/// The oracle of the published analysis: half of the samples cached makes storage look twice as fast.
#[test]
fn a_cache_is_worth_what_it_spares() {
    let quick = Facts {
        prepare: Known::exactly(2000.0),
        prepare_alone: None,
        ingest: Known::exactly(2000.0),
        ..facts()
    };
    for cached in [0.1, 0.25, 0.5, 0.8] {
        let change = Change { cache_bytes: Some(cached * 1e9), ..Change::default() };
        is(predicted(&quick, change), 100.0 / (1.0 - cached), "storage");
    }
    // With processors that are hardly faster than what is fetched, workers wait for storage now and then, and less comes out.
    let change = Change { cache_bytes: Some(4e8), ..Change::default() };
    let found = predicted(&facts(), change).0;
    assert!((0.85 * 166.7..166.7).contains(&found), "{found}");
    assert!((facts().fetch_rate(5e8).value - 1.0 / (0.5 / 1e5 + 0.5 / 100.0)).abs() < 1e-9);
}

/// Of eight samples in the making none is missing a tenth of the time when three quarters are kept.
#[test]
fn storage_that_is_seldom_asked_delivers_less() {
    let quick = Facts {
        prepare: Known::exactly(4000.0),
        prepare_alone: None,
        ingest: Known::exactly(4000.0),
        ahead: Some(8.0),
        ..facts()
    };
    for (cached, part) in [(0.0, 1.0), (0.5, 0.996), (0.75, 0.9)] {
        let change = Change { cache_bytes: Some(cached * 1e9), ..Change::default() };
        is(predicted(&quick, change), part * 100.0 / (1.0 - cached), "storage");
    }
    let all = Change { cache_bytes: Some(1e9), ..Change::default() };
    assert!(predicted(&quick, all).0 > 3000.0);
    // Where the few that are missing happen to be decides how often: perhaps always, perhaps a fifth less.
    let most = Change { cache_bytes: Some(0.75e9), ..Change::default() };
    let known = quick.predict(&most).unwrap().samples_per_s;
    assert!(known.high >= 400.0 && known.low <= 0.81 * 400.0, "{known:?}");
}

#[test]
fn jobs_that_share_read_once() {
    let facts = Facts { ingest: Known::exactly(90.0), measured: Known::exactly(90.0), ..facts() };
    is(predicted(&facts, Change { jobs: Some(4), ..Change::default() }), 90.0, "device");
}

#[test]
fn a_trainer_that_does_all_itself_takes_the_sum() {
    let serial = Facts { workers: 0, measured: Known::exactly(1.0 / 0.0175), ..facts() };
    is(predicted(&serial, Change::default()), 1.0 / 0.0175, "storage");
    let cached = Change { cache_bytes: Some(1e9), ..Change::default() };
    is(predicted(&serial, cached), 1.0 / 0.0075, "processors");
    let jobs = Change { jobs: Some(100), ..Change::default() };
    is(predicted(&serial, jobs), 1.0 / 0.0175, "storage");
    let elsewhere = Change { remote: Some(4), ..Change::default() };
    is(predicted(&serial, elsewhere), 1.0 / 0.0175, "storage");
}

#[test]
fn workers_that_wait_need_no_processor_and_others_do() {
    let measured = Known::exactly(Facts { storage: None, ..facts() }.modelled());
    let waits = Facts { cores: 2, work_s: Some(1e-4), storage: None, measured, ..facts() };
    is(predicted(&waits, Change { workers: Some(12), ..Change::default() }), 300.0, "processors");
    let busy = Facts { cores: 8, work_s: Some(0.04), ..waits };
    is(predicted(&busy, Change { workers: Some(12), ..Change::default() }), 200.0, "processors");
    // Eight workers lose a fifth to each other; four lose three sevenths of that.
    let crowded = Facts { prepare: Known::exactly(160.0), measured: Known::exactly(160.0), ..busy };
    is(predicted(&crowded, Change { cores: Some(4), ..Change::default() }), 91.4, "processors");
}

#[test]
fn a_model_that_is_off_is_calibrated_and_one_that_is_far_off_doubts_itself() {
    let change = Change { storage_bytes_per_s: Some(5e6), ..Change::default() };
    let a_little = Facts { measured: Known::exactly(95.0), ..facts() };
    is(predicted(&a_little, change), 47.5, "storage");
    let far = Facts { measured: Known::exactly(70.0), ..facts() };
    let outlook = far.predict(&change).unwrap().samples_per_s;
    assert!((outlook.value / 35.0 - 1.0).abs() < 0.03 && outlook.error() > 0.25, "{outlook:?}");
}

/// As photographs showed whose trainer kept a core of sixteen busy: with a quarter of the workers nothing was missing.
#[test]
fn fewer_workers_miss_less_of_what_all_of_them_miss() {
    let crowded = Facts { storage: None, measured: Known::exactly(150.0), ..facts() };
    let with = |workers| predicted(&crowded, Change { cores: Some(workers), ..Change::default() }).0;
    is((with(1), "processors"), 25.0, "processors");
    is((with(2), "processors"), 48.0, "processors");
    let rates: Vec<f64> = (1..=8).map(with).collect();
    assert!(rates.is_sorted() && rates[7] <= 150.0 + 1e-9, "{rates:?}");
    let worse = Facts { measured: Known::exactly(40.0), ..crowded };
    let rates: Vec<f64> = (1..=8)
        .map(|workers| predicted(&worse, Change { cores: Some(workers), ..Change::default() }).0)
        .collect();
    assert!(rates.is_sorted() && rates[7] <= 40.0 + 1e-9, "{rates:?}");
}

/// A trainer that takes 266 samples a second of a loader that delivers 275 may get all of them. With storage half as fast it gets half of
/// what the loader delivers, whatever loader and trainer lose to each other where they are equally fast.
#[test]
fn loader_and_trainer_that_overlap_well_do_not_make_storage_faster() {
    let even = Facts {
        ingest: Known::exactly(266.0),
        prepare: Known::exactly(2_000.0),
        storage: Some(Known::exactly(275.0)),
        measured: Known::exactly(265.0),
        ..facts()
    };
    let half = Change { storage_bytes_per_s: Some(137.5 * even.sample_bytes), ..Change::default() };
    is(predicted(&even, half), 137.5, "storage");
    let same = Change { storage_bytes_per_s: Some(275.0 * even.sample_bytes), ..Change::default() };
    is(predicted(&even, same), 265.0, predicted(&even, same).1);
    // Where storage is half as fast as the trainer, that a little more came out says nothing of how they go together.
    let uneven = Facts { storage: Some(Known::exactly(133.0)), measured: Known::exactly(133.5), ..even };
    let twice = Change { storage_bytes_per_s: Some(266.0 * even.sample_bytes), ..Change::default() };
    assert!(predicted(&uneven, twice).0 < 245.0, "{:?}", predicted(&uneven, twice));
}

/// One worker prepared 978 photographs a second on sixteen processors, and all of them 811 each; four and eight were already as slow.
#[test]
fn how_soon_workers_get_into_each_others_way_is_not_known() {
    let of = |value| Known { value, low: 0.97 * value, high: 1.03 * value };
    let sixteen = Facts {
        workers: 16,
        cores: 16,
        ingest: of(13_221.0),
        prepare: of(12_983.0),
        prepare_alone: Some(of(978.0)),
        work_s: None,
        storage: Some(of(24_278.0)),
        read_s: Some(8.9e-5),
        measured: of(10_778.0),
        ..facts()
    };
    for (workers, reached) in [(4, 2_921.0), (8, 5_695.0)] {
        let change = Change { workers: Some(workers), ..Change::default() };
        let said = sixteen.predict(&change).unwrap().samples_per_s;
        assert!(said.low < reached && reached < said.high, "{workers} workers: {said:?}");
    }
    let all = Change { workers: Some(16), ..Change::default() };
    assert!(sixteen.predict(&all).unwrap().samples_per_s.error() < 0.2);
}

/// A little more of anything brings a little, however far the model is off, and less of it costs something.
#[test]
fn predictions_begin_where_the_run_was() {
    for measured in [30.0, 60.0, 100.0, 140.0] {
        let facts = Facts { measured: Known::exactly(measured), ..facts() };
        let with = |bytes_per_s| {
            let change = Change { storage_bytes_per_s: Some(bytes_per_s), ..Change::default() };
            predicted(&facts, change).0 / measured
        };
        assert!((1.0..1.05).contains(&with(10.2e6)), "{measured}: {}", with(10.2e6));
        assert!((0.95..1.0).contains(&with(9.8e6)), "{measured}: {}", with(9.8e6));
        assert!(with(5e6) < 0.6, "{measured}: {}", with(5e6));
    }
}

#[test]
fn what_is_said_of_now_is_what_was_measured_and_nothing_else_is_known_better() {
    let noisy = Facts { measured: Known { value: 100.0, low: 70.0, high: 130.0 }, ..facts() };
    assert_eq!(noisy.predict(&Change::default()).unwrap().samples_per_s, noisy.measured);
    let change = Change { storage_bytes_per_s: Some(5e6), ..Change::default() };
    assert!(noisy.predict(&change).unwrap().samples_per_s.error() >= 0.3 - 1e-9);
}

#[test]
fn what_is_waited_for_binds_whatever_the_model_says() {
    let stalls = Stalls { fetch: 0.0, prep: 0.8, transport: 0.1, trainer: 0.1 };
    let slow_to_arrive = Facts {
        storage: None,
        hand_over: Some(Known::exactly(150.0)),
        measured: Known::exactly(140.0),
        ..facts()
    };
    assert_eq!(predicted(&Facts { stalls, ..slow_to_arrive }, Change::default()).1, "processors");
    let stalls = Stalls { fetch: 0.0, prep: 0.3, transport: 0.5, trainer: 0.2 };
    assert_eq!(predicted(&Facts { stalls, ..slow_to_arrive }, Change::default()).1, "transport");
}

#[test]
fn preparation_that_is_fast_enough_is_not_what_binds() {
    // The worker reads for nearly as long as it prepares.
    let quick = Facts {
        workers: 1,
        ingest: Known::exactly(180.0),
        measured: Known::exactly(100.0),
        stalls: Stalls { fetch: 0.4, prep: 0.01, transport: 0.0, trainer: 0.59 },
        storage: Some(Known::exactly(250.0)),
        ..facts()
    };
    assert_eq!(quick.reach(&Change::default(), |known| known.value, Luck::USUAL).1, Resource::Processors);
    assert_eq!(predicted(&quick, Change::default()).1, "storage");
    let stalls = Stalls { fetch: 0.35, prep: 0.4, transport: 0.0, trainer: 0.25 };
    let slow = Facts { ingest: Known::exactly(400.0), stalls, ..quick };
    assert_eq!(predicted(&slow, Change::default()).1, "processors");
}

#[test]
fn reads_that_keep_workers_longer_than_preparing_does_are_storage() {
    // Two workers that each wait 20 ms for a read and prepare for 2 ms; storage would deliver to sixty times as many.
    let far = Facts {
        workers: 2,
        ingest: Known::exactly(2000.0),
        prepare: Known::exactly(1000.0),
        prepare_alone: Some(Known::exactly(500.0)),
        work_s: Some(0.0005),
        storage: Some(Known::exactly(5000.0)),
        read_s: Some(0.02),
        measured: Known::exactly(90.0),
        stalls: Stalls { fetch: 0.9, prep: 0.05, transport: 0.0, trainer: 0.05 },
        ..facts()
    };
    assert_eq!(far.reach(&Change::default(), |known| known.value, Luck::USUAL).1, Resource::Processors);
    for ingest in [500.0, 900.0, 1100.0, 2000.0] {
        let facts = Facts { ingest: Known::exactly(ingest), ..far };
        assert_eq!(predicted(&facts, Change::default()).1, "storage", "{ingest}");
    }
}

#[test]
fn threads_that_take_turns_gain_nothing_by_cores() {
    let python = Facts {
        workers: 2,
        cores: 2,
        in_turns: true,
        prepare: Known::exactly(24.0),
        measured: Known::exactly(24.0),
        storage: None,
        ..facts()
    };
    is(predicted(&python, Change { cores: Some(8), ..Change::default() }), 24.0, "processors");
    let waiting = Facts { work_s: Some(0.004), prepare: Known::exactly(50.0), ..python };
    let waiting = Facts { measured: Known::exactly(50.0), ..waiting };
    is(predicted(&waiting, Change { workers: Some(8), ..Change::default() }), 200.0, "processors");
}

/// Whatever the run was like: predictions for more of something are never lower, and none beats the trainer.
#[test]
fn more_is_never_less() {
    for measured in [20.0, 60.0, 95.0, 120.0] {
        for ahead in [None, Some(16.0)] {
            let facts = Facts { measured: Known::exactly(measured), ahead, ..facts() };
            let with = |part: u32| {
                let change = Change { cache_bytes: Some(1e9 * f64::from(part) / 20.0), ..Change::default() };
                predicted(&facts, change).0
            };
            let rates: Vec<f64> = (0..=20).map(with).collect();
            assert!((rates[0] / measured - 1.0).abs() < 1e-9, "{measured}: {rates:?}");
            assert!(rates.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + 1e-9)), "{measured}: {rates:?}");
            assert!(rates.iter().all(|rate| *rate <= 400.0), "{measured}: {rates:?}");
        }
    }
}

/// Also where something else would bind.
#[test]
fn nothing_that_is_worse_is_said_to_beat_what_was_measured() {
    for measured in [60.0, 100.0, 110.0, 150.0] {
        let facts = Facts {
            storage: Some(Known::exactly(210.0)),
            measured: Known::exactly(measured),
            prepare: Known::exactly(130.0),
            ..facts()
        };
        let with = |bytes_per_s| {
            let change = Change { storage_bytes_per_s: Some(bytes_per_s), ..Change::default() };
            predicted(&facts, change).0
        };
        assert!((predicted(&facts, Change::default()).0 - measured).abs() < 1e-9);
        for bytes_per_s in [2e6, 8e6, 12e6, 13e6, 15e6, 20e6] {
            assert!(with(bytes_per_s) <= measured, "{measured}, {bytes_per_s}: {}", with(bytes_per_s));
        }
        for bytes_per_s in [22e6, 40e6, 1e9] {
            assert!(
                with(bytes_per_s) >= measured * (1.0 - 1e-9),
                "{measured}, {bytes_per_s}: {}",
                with(bytes_per_s)
            );
        }
    }
}

#[test]
fn where_loader_and_trainer_are_as_fast_less_is_known_than_elsewhere() {
    assert_eq!(slower(300.0, 300.0, f64::INFINITY), 300.0);
    assert_eq!(slower(300.0, 200.0, f64::INFINITY), 200.0);
    let error = |bytes_per_s| {
        let change = Change { storage_bytes_per_s: Some(bytes_per_s), ..Change::default() };
        let quick = Facts { prepare: Known::exactly(4000.0), prepare_alone: None, ..facts() };
        let known = quick.predict(&change).unwrap().samples_per_s;
        assert!(known.low <= known.value && known.value <= known.high, "{known:?}");
        known.error()
    };
    // Storage of 400 samples a second and a trainer of as many; of 50.
    assert!(error(40e6) > 0.08, "{}", error(40e6));
    assert!(error(5e6) < 0.025, "{}", error(5e6));
}

#[test]
fn storage_can_be_told_from_what_the_loader_reaches() {
    for (workers, storage) in [(0, 100.0), (1, 100.0), (8, 100.0), (8, 190.0), (4, 30.0)] {
        let facts = Facts { workers, storage: Some(Known::exactly(storage)), ..facts() };
        let free = Facts { ingest: Known::exactly(UNLIMITED), ..facts };
        let reached = free.reach(&Change::default(), |known| known.value, Luck::USUAL).0;
        let found = Facts { storage: None, ..facts }.storage_behind(reached).unwrap();
        assert!((found / storage - 1.0).abs() < 1e-6, "{workers} workers: {found}, not {storage}");
    }
    assert_eq!(facts().storage_behind(199.0), None);
}

#[test]
fn nonsense_is_named() {
    let error = Facts { storage: Some(Known::exactly(0.0)), ..facts() }.check().unwrap_err();
    assert!(error.to_string().contains("storage = 0"), "{error}");
    let error = facts().predict(&Change { cores: Some(0), ..Change::default() }).unwrap_err();
    assert!(error.to_string().contains("cores = 0"), "{error}");
    let nothing = facts().predict(&Change { cache_bytes: Some(0.0), ..Change::default() });
    assert!(nothing.is_ok());
}

/// Sixteen threads on sixteen cores whose reads wait for a processor, too: from memory they are a quarter faster, as was measured.
#[test]
fn reads_that_keep_workers_waiting_are_spared_by_a_cache() {
    let crowded = Facts {
        workers: 16,
        cores: 16,
        ingest: Known::exactly(13_200.0),
        prepare: Known::exactly(9_800.0),
        prepare_alone: Some(Known::exactly(780.0)),
        work_s: Some(0.00163),
        recall: Some(Known::exactly(6e5)),
        storage: Some(Known::exactly(18_900.0)),
        read_s: Some(0.00013),
        measured: Known::exactly(7_600.0),
        stalls: Stalls { fetch: 0.2, prep: 0.22, transport: 0.0, trainer: 0.58 },
        ..facts()
    };
    let kept = |part: f64| Change { cache_bytes: Some(part * 1e9), ..Change::default() };
    is(predicted(&crowded, kept(1.0)), 9_500.0, "processors");
    is(predicted(&crowded, kept(0.5)), 8_450.0, "processors");
    is(predicted(&crowded, kept(0.001)), 7_600.0, "processors");
    // Where memory brings nothing, it is preparing that workers are slower at together.
    let preparing = Facts { stalls: Stalls { fetch: 0.0, prep: 0.42, ..crowded.stalls }, ..crowded };
    let found = predicted(&preparing, kept(1.0)).0;
    assert!((7_600.0..7_900.0).contains(&found), "{found}");
}
