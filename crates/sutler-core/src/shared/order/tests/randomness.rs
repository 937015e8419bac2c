//! The order a job is served in must be as good as a shuffle.

use super::driver::{Driver, PERIOD};
use crate::SampleId;

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
    for apart in [0.0, 0.4] {
        let runs: Vec<Driver> = (0..1_000).map(|seed| run(FEW, 0, apart, 3, 3, 0.0, seed)).collect();
        for trainer in 0..3 {
            let orders = runs.iter().map(|driver| &driver.trainers[trainer].orders[1]);
            assert_uniform(orders, FEW as usize, &format!("job {trainer} of three, {apart} epochs apart"));
        }
    }
}

#[test]
fn an_epoch_says_nothing_about_the_next() {
    const SAMPLES: u32 = 1_000;
    for (jobs, pinned) in [(1, 0), (1, SAMPLES / 5), (3, 0), (3, SAMPLES / 5)] {
        let driver = run(SAMPLES, pinned, 0.0, jobs, 20, 0.0, 6);
        for trainer in &driver.trainers {
            let pairs = trainer.orders.windows(2);
            let count = pairs.len() as f64;
            let mean = pairs.map(|pair| correlation(&pair[0], &pair[1])).sum::<f64>() / count;
            // The deviation of one correlation is 1/sqrt(N - 1).
            let limit = 5.0 / (count * f64::from(SAMPLES - 1)).sqrt();
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

/// Half an epoch apart, two halves stay what they are (a correlation of 3/4); mixing exchanges their samples, at a price.
#[test]
fn mixing_breaks_up_what_jobs_go_through_together() {
    const SAMPLES: u32 = 4_000;
    let measure = |mixing| {
        let driver = run(SAMPLES, 0, 0.5, 2, 12, mixing, 9);
        let orders = &driver.trainers[0].orders;
        let (first, last) = (&orders[1], &orders[orders.len() - 1]);
        (driver.reads() as f64 / driver.bound, correlation(first, last))
    };
    let (least, kept) = measure(0.0);
    let (more, mixed) = measure(0.1);
    eprintln!("mixing 0: {least:.3} of the least reads, correlation {kept:.2}; 0.1: {more:.3}, {mixed:.2}");
    assert!(least < 1.005 && (kept - 0.75).abs() < 0.05, "{least:.3}, {kept:.2}");
    assert!(more < 1.05 && mixed < 0.4, "{more:.3}, {mixed:.2}");
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
