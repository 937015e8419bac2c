//! The order a job is served in must be as good as a shuffle.

use std::collections::BTreeMap;

use super::driver::{Driver, PERIOD};
use crate::{SHARED_MIXING, SampleId};

/// Where each sample stood in an epoch.
fn positions(order: &[SampleId]) -> Vec<f64> {
    let mut positions = vec![0.0; order.len()];
    for (position, sample) in order.iter().enumerate() {
        positions[sample.index()] = position as f64;
    }
    positions
}

/// Pearson's correlation of the places of the samples in two epochs.
fn correlation(a: &[SampleId], b: &[SampleId]) -> f64 {
    let (a, b) = (positions(a), positions(b));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let covariance: f64 = a.iter().zip(&b).map(|(x, y)| (x - mean) * (y - mean)).sum();
    let variance: f64 = a.iter().map(|x| (x - mean).powi(2)).sum();
    covariance / variance
}

/// Asserts that every sample is equally likely everywhere: chi-square over samples and eighths of the epoch.
fn assert_uniform<'a>(orders: impl Iterator<Item = &'a Vec<SampleId>>, samples: usize, what: &str) {
    const BINS: usize = 8;
    let mut counts = vec![[0u32; BINS]; samples];
    let mut epochs = 0;
    for order in orders {
        epochs += 1;
        for (position, sample) in order.iter().enumerate() {
            counts[sample.index()][position * BINS / samples] += 1;
        }
    }
    let expected = f64::from(epochs) / BINS as f64;
    let cells = counts.iter().flatten();
    let chi2: f64 = cells.map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    // Rows and columns both add up. Five deviations of a chi-square are passed by chance less than once in a million.
    let degrees = ((samples - 1) * (BINS - 1)) as f64;
    let limit = degrees + 5.0 * (2.0 * degrees).sqrt();
    eprintln!("{what}: chi-square {chi2:.0} over {epochs} epochs, {degrees} degrees of freedom");
    assert!(chi2 < limit, "{what}: chi-square {chi2:.0} of {degrees} degrees of freedom");
    assert!(
        chi2 > degrees - 5.0 * (2.0 * degrees).sqrt(),
        "{what}: chi-square {chi2:.0}, too even to be random"
    );
}

/// Asserts that every sample is equally likely to be followed by every other: chi-square over pairs. Pinned samples are left out,
/// since spreading them evenly keeps them apart.
fn assert_pairs_uniform<'a>(orders: impl Iterator<Item = &'a Vec<SampleId>>, pinned: u32, what: &str) {
    let mut counts = BTreeMap::new();
    let mut pairs = 0;
    let mut samples = 0;
    for order in orders {
        samples = order.len() - pinned as usize;
        for pair in order.windows(2).filter(|pair| pair[0].0 >= pinned && pair[1].0 >= pinned) {
            *counts.entry((pair[0], pair[1])).or_insert(0u32) += 1;
            pairs += 1;
        }
    }
    let cells = (samples * (samples - 1)) as f64;
    let expected = f64::from(pairs) / cells;
    let seen: f64 = counts.values().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    let chi2 = seen + (cells - counts.len() as f64) * expected;
    eprintln!("{what}: chi-square {chi2:.0} over {pairs} pairs of {cells} kinds");
    let limit = 5.0 * (2.0 * cells).sqrt();
    assert!((chi2 - cells).abs() < limit, "{what}: chi-square {chi2:.0} over {cells} kinds of pairs");
}

const FEW: u32 = 64;

/// Jobs that start together or apart; their finished epochs.
fn run(samples: u32, pinned: u32, apart: f64, jobs: u32, epochs: u64, mixing: f64, seed: u64) -> Driver {
    let mut driver = Driver::new(samples, (samples / 10).max(8), pinned, mixing, seed);
    let epoch = u64::from(samples) * PERIOD;
    for job in 0..jobs {
        if job > 0 {
            driver.run_until(driver.now + (epoch as f64 * apart) as u64);
        }
        driver.arrive(PERIOD);
    }
    driver.run_until(driver.now + epochs * epoch);
    driver
}

#[test]
fn over_its_epochs_a_job_gets_each_sample_everywhere() {
    let driver = run(FEW, 0, 0.0, 1, 1_500, 0.0, 1);
    assert_uniform(driver.trainers[0].orders.iter(), FEW as usize, "a job alone");
    let driver = run(FEW, FEW / 4, 0.0, 1, 1_500, 0.0, 1);
    assert_uniform(driver.trainers[0].orders.iter(), FEW as usize, "a job alone, a quarter pinned");
}

/// Jobs at a constant distance, be it the duration of a preparation, go through the same parts together; but which part a sample
/// is in is up to chance.
#[test]
fn over_many_runs_jobs_together_and_apart_get_each_sample_everywhere() {
    // Pinned ones are spread as evenly as whole samples can be: where a dataset has 16 of them, their places show that.
    for (samples, pinned, apart, mixing, runs) in
        [(FEW, 0, 0.0, 0.0, 1_000), (FEW, 0, 0.4, 0.0, 1_000), (512, 128, 0.4, SHARED_MIXING, 200)]
    {
        let runs: Vec<Driver> =
            (0..runs).map(|seed| run(samples, pinned, apart, 3, 3, mixing, seed)).collect();
        for trainer in 0..3 {
            let orders = || runs.iter().map(|driver| &driver.trainers[trainer].orders[1]);
            let what = format!("job {trainer} of three, {apart} epochs apart, {pinned} of {samples} pinned");
            assert_uniform(orders(), samples as usize, &what);
            assert_pairs_uniform(orders(), pinned, &what);
        }
    }
}

#[test]
fn an_epoch_says_nothing_about_the_next() {
    // Enough that the few samples on the way at the turn of an epoch, which jobs in step are apart, do not show.
    const SAMPLES: u32 = 4_000;
    for (jobs, pinned) in [(1, 0), (1, SAMPLES / 5), (3, 0), (3, SAMPLES / 5)] {
        let driver = run(SAMPLES, pinned, 0.0, jobs, 20, 0.0, 6);
        for trainer in &driver.trainers {
            let pairs = trainer.orders.windows(2);
            let count = pairs.len() as f64;
            let mean = pairs.map(|pair| correlation(&pair[0], &pair[1])).sum::<f64>() / count;
            // The deviation of one correlation is 1/sqrt(N - 1).
            let limit = 5.0 / (count * f64::from(SAMPLES - 1)).sqrt();
            eprintln!("{jobs} jobs, {pinned} pinned: correlation {mean:.4} over {count} pairs of epochs");
            assert!(mean.abs() < limit, "correlation {mean:.4} over {count} epochs, {jobs} jobs");
            assert!(trainer.orders.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }
}

#[test]
fn jobs_get_different_orders_and_a_seed_repeats_them() {
    let orders = |seed| {
        let driver = run(500, 0, 0.3, 2, 4, 0.0, seed);
        driver.trainers.into_iter().map(|trainer| trainer.orders).collect::<Vec<_>>()
    };
    assert_eq!(orders(1), orders(1));
    assert_ne!(orders(1), orders(2));
    let jobs = orders(1);
    assert_ne!(jobs[0][1], jobs[1][1]);
}

/// Half an epoch apart, two halves stay what they are (a correlation of 3/4); mixing exchanges their samples, at a price that
/// grows with the number of jobs.
#[test]
fn mixing_breaks_up_what_jobs_go_through_together() {
    const SAMPLES: u32 = 4_000;
    let measure = |jobs, apart, mixing| {
        let driver = run(SAMPLES, 0, apart, jobs, 12, mixing, 9);
        let orders = &driver.trainers[0].orders;
        let (reads, kept) = (driver.reads() as f64 / driver.bound, correlation(&orders[1], &orders[11]));
        eprintln!("{jobs} jobs, mixing {mixing}: {reads:.4} of the least reads, correlation {kept:.2}");
        (reads, kept)
    };
    let (least, kept) = measure(2, 0.5, 0.0);
    assert!(least < 1.005 && (kept - 0.75).abs() < 0.05, "{least:.3}, {kept:.2}");
    let (more, mixed) = measure(2, 0.5, 0.1);
    assert!(more < 1.05 && mixed < 0.4, "{more:.3}, {mixed:.2}");
    for (jobs, price) in [(2, 1.01), (3, 1.02), (4, 1.03), (8, 1.05)] {
        let (least, kept) = measure(jobs, 0.37, 0.0);
        let (more, mixed) = measure(jobs, 0.37, SHARED_MIXING);
        assert!(least < 1.005 && more < price, "{jobs} jobs: {least:.3}, {more:.3}");
        assert!(mixed < kept - 0.1, "{jobs} jobs: correlation {mixed:.2} instead of {kept:.2}");
    }
}

/// Those who stood beside each other are no likelier to do so again than any two of their part.
#[test]
fn neighbours_part_in_the_next_epoch() {
    const SAMPLES: usize = 4_000;
    /// How far neighbours are from each other at most: a small batch.
    const NEAR: usize = 8;
    for (jobs, pinned, mixing) in [(1, 0, 0.0), (3, 0, 0.0), (3, 800, SHARED_MIXING)] {
        let driver = run(SAMPLES as u32, pinned, 0.3, jobs, 20, mixing, 2);
        for trainer in &driver.trainers {
            let (mut pairs, mut again) = (0u64, 0u64);
            for epochs in trainer.orders.windows(2) {
                let next = positions(&epochs[1]);
                for (place, sample) in epochs[0].iter().enumerate() {
                    for other in epochs[0][place + 1..].iter().take(NEAR) {
                        pairs += 1;
                        let distance = (next[sample.index()] - next[other.index()]).abs();
                        again += u64::from(distance <= NEAR as f64);
                    }
                }
            }
            // Two samples of a shuffle are that near with this chance.
            let chance = 2.0 * NEAR as f64 / SAMPLES as f64;
            let times = again as f64 / pairs as f64 / chance;
            eprintln!("{jobs} jobs, {pinned} pinned: {times:.2} times as often near as in a shuffle");
            // Three parts of 3/10, 3/10 and 4/10 of the dataset: 3 times, where parts are a third each.
            let expected = if jobs == 1 { 1.0 } else { 3.0 };
            assert!((0.8..expected * 1.15).contains(&times), "{jobs} jobs: {times:.2}");
        }
    }
}

#[test]
fn pinned_samples_are_spread_evenly() {
    const SAMPLES: u32 = 2_000;
    for (jobs, slack) in [(1, 1), (3, 5)] {
        let driver = run(SAMPLES, SAMPLES / 5, 0.3, jobs, 3, 0.0, 4);
        for trainer in &driver.trainers {
            for order in &trainer.orders[1..] {
                for stretch in order.chunks(50) {
                    let pinned = stretch.iter().filter(|sample| sample.0 < SAMPLES / 5).count();
                    assert!(
                        pinned.abs_diff(10) <= slack,
                        "{pinned} of 50 are pinned, one in five of all; {jobs} jobs"
                    );
                }
            }
        }
    }
}
