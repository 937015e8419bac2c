//! What batches are made of must be as random as in a plain shuffle, from the first epoch on, for the job that reads and for the one that follows.
//!
//! A dataset is listed class by class, so that ids that are near each other are of one class. Three things would show an order that makes learning harder:
//! batches with too much of a class, stretches of the epoch from one end of the list, and neighbours that belong together. Each has a statistic whose mean
//! and deviation over all permutations are known exactly, and over many runs the mean of a statistic is held to that.

use super::driver::{Driver, PERIOD};
use crate::{Permutation, SHARED_MIXING, SampleId, SampleRng};

const SAMPLES: u32 = 1_000;
const CLASSES: usize = 10;
const BATCH: usize = 20;
const EPOCH: u64 = SAMPLES as u64 * PERIOD;
const RUNS: u64 = 150;
/// So far from its mean, in deviations, something comes by chance once in a million.
const FAR: f64 = 5.0;

/// By how many deviations an order is off from the mean of all permutations, by statistic.
struct Deviations {
    classes_per_batch: f64,
    runs: f64,
    neighbours: f64,
}

fn deviations(order: &[SampleId]) -> Deviations {
    let count = order.len() as f64;
    // The counts of classes in batches are a table whose rows and columns add up to the same in every permutation.
    let expected = BATCH as f64 / CLASSES as f64;
    let mut chi2 = 0.0;
    for batch in order.chunks(BATCH) {
        let mut counts = [0u32; CLASSES];
        batch.iter().for_each(|sample| counts[sample.index() * CLASSES / order.len()] += 1);
        chi2 += counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum::<f64>();
    }
    let degrees = (count / BATCH as f64 - 1.0) * (CLASSES - 1) as f64;
    let classes_per_batch = (chi2 - degrees * count / (count - 1.0)) / (2.0 * degrees).sqrt();
    // How often the order goes from one half of the list to the other: half of the steps, give or take.
    let halves: Vec<bool> = order.iter().map(|sample| sample.index() < order.len() / 2).collect();
    let changes = halves.windows(2).filter(|pair| pair[0] != pair[1]).count() as f64;
    let runs = (changes - count / 2.0) / ((count / 2.0) * (count / 2.0 - 1.0) / (count - 1.0)).sqrt();
    // The correlation of each id with the next, as if the order were a ring.
    let mean = (count - 1.0) / 2.0;
    let centred = |sample: &SampleId| sample.index() as f64 - mean;
    let ring = order.iter().zip(order.iter().cycle().skip(1));
    let together: f64 = ring.map(|(one, next)| centred(one) * centred(next)).sum();
    let spread: f64 = order.iter().map(|sample| centred(sample).powi(2)).sum();
    let neighbours = (together / spread + 1.0 / (count - 1.0)) * count.sqrt();
    Deviations { classes_per_batch, runs, neighbours }
}

/// Asserts that the mean of each statistic over many orders is that of a shuffle.
fn assert_as_a_shuffle(orders: &[&[SampleId]], what: &str) {
    let root = (orders.len() as f64).sqrt();
    let all: Vec<Deviations> = orders.iter().map(|order| deviations(order)).collect();
    let mean = |of: fn(&Deviations) -> f64| all.iter().map(of).sum::<f64>() / root;
    for (name, off) in [
        ("classes per batch", mean(|each| each.classes_per_batch)),
        ("runs from one half of the list", mean(|each| each.runs)),
        ("neighbours", mean(|each| each.neighbours)),
    ] {
        eprintln!("{what}: {name} {off:+.2} deviations off over {} epochs", orders.len());
        assert!(off.abs() < FAR, "{what}: {name} are {off:+.2} deviations off from those of a shuffle");
    }
}

#[test]
fn the_statistics_know_a_shuffle_from_what_is_none() {
    let shuffled = |seed| {
        let permutation = Permutation::shuffled(SAMPLES, seed, 0);
        (0..SAMPLES).map(|position| permutation.sample_at(position)).collect::<Vec<_>>()
    };
    let orders: Vec<Vec<SampleId>> = (0..RUNS).map(shuffled).collect();
    assert_as_a_shuffle(&orders.iter().map(Vec::as_slice).collect::<Vec<_>>(), "a shuffle");
    // A twentieth of the epoch, all of one class, comes first.
    let slanted: Vec<Vec<SampleId>> = orders
        .iter()
        .map(|order| {
            let (mut first, rest): (Vec<SampleId>, Vec<SampleId>) =
                order.iter().partition(|sample| sample.0 < SAMPLES / 10 && sample.0 % 2 == 0);
            first.extend(rest);
            first
        })
        .collect();
    let mean = |of: fn(&Deviations) -> f64| {
        slanted.iter().map(|order| of(&deviations(order))).sum::<f64>() / (RUNS as f64).sqrt()
    };
    assert!(mean(|each| each.classes_per_batch) > FAR && mean(|each| each.runs) < -FAR);
    assert!(mean(|each| each.neighbours) > FAR);
}

/// As beside an agent: a job is somewhere in its epoch when another comes, a part of what is read stays in memory, and the window holds a fiftieth.
#[test]
fn batches_are_composed_as_in_a_shuffle_from_the_first_epoch_on() {
    for (keeps, mixing) in [(0, 0.0), (SAMPLES * 3 / 10, SHARED_MIXING)] {
        let runs: Vec<Driver> = (0..RUNS)
            .map(|seed| {
                let mut driver = Driver::new(SAMPLES, SAMPLES / 50, 0, mixing, seed);
                driver.keeps = keeps;
                driver.arrive(PERIOD);
                let gap = SampleRng::new(42, 0, SampleId(seed as u32)).unit() * EPOCH as f64;
                driver.run_until(gap as u64);
                driver.arrive(PERIOD);
                driver.run_until(driver.now + 3 * EPOCH);
                driver
            })
            .collect();
        for (trainer, name) in [(0, "the job that was there"), (1, "the job that came")] {
            for epoch in 0..2 {
                let orders: Vec<&[SampleId]> =
                    runs.iter().map(|driver| driver.trainers[trainer].orders[epoch].as_slice()).collect();
                assert_as_a_shuffle(&orders, &format!("{name}, epoch {epoch}, {keeps} kept"));
            }
        }
    }
}
