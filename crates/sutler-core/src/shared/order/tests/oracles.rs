//! Storage reads per served sample, against the least number there can be.

use super::driver::{Driver, PERIOD};
use crate::{SHARED_MIXING, SampleId, SampleRng};

const SAMPLES: u32 = 10_000;
const WINDOW: u32 = SAMPLES / 50;
const EPOCH: u64 = SAMPLES as u64 * PERIOD;

/// What was read and served since `before`, as reads per least number of reads of samples that are not pinned.
struct Account {
    reads: u64,
    bound: f64,
    serves: u64,
}

impl Account {
    fn open(driver: &Driver) -> Self {
        Self { reads: driver.reads(), bound: driver.bound, serves: driver.serves() }
    }

    fn check(&self, driver: &Driver, pinned: f64, what: &str) {
        self.check_within(1.05, driver, pinned, what);
    }

    fn check_within(&self, factor: f64, driver: &Driver, pinned: f64, what: &str) {
        let serves = (driver.serves() - self.serves) as f64;
        let reads = (driver.reads() - self.reads) as f64 / serves;
        let bound = (driver.bound - self.bound) / serves * (1.0 - pinned);
        eprintln!(
            "{what}: {reads:.4} reads per served sample, the least is {bound:.4} ({:+.1} %), {} classes",
            (reads / bound - 1.0) * 100.0,
            driver.classes_max
        );
        assert!(
            reads <= factor * bound,
            "{what}: {reads:.4} reads per served sample, the least is {bound:.4}"
        );
        // The bound is one: fewer reads would mean that somebody was served what nobody read.
        assert!(reads >= 0.97 * bound, "{what}: {reads:.4} reads per served sample, below {bound:.4}");
    }
}

#[test]
fn equal_jobs_at_any_phase_read_each_sample_once_for_all() {
    for jobs in [2, 3, 4] {
        for pinned in [0.0, 0.2, 0.5] {
            for mixing in [0.0, SHARED_MIXING] {
                let mut phases = SampleRng::new(42, jobs, SampleId(0));
                let pinned_count = (f64::from(SAMPLES) * pinned) as u32;
                let mut driver = Driver::new(SAMPLES, WINDOW, pinned_count, mixing, 7);
                for job in 0..jobs {
                    driver.arrive(PERIOD);
                    if job + 1 < jobs {
                        let gap = (phases.unit() * EPOCH as f64) as u64;
                        driver.run_until(driver.now + gap);
                    }
                }
                let account = Account::open(&driver);
                driver.run_until(driver.now + 2 * EPOCH);
                account.check(&driver, pinned, &format!("J = {jobs}, c = {pinned}, mixing {mixing}"));
            }
        }
    }
}

#[test]
fn a_job_of_twice_the_speed_reads_for_the_slow_ones() {
    for (slow, pinned) in [(1, 0.0), (1, 0.2), (2, 0.2)] {
        for mixing in [0.0, SHARED_MIXING] {
            let mut driver = Driver::new(SAMPLES, WINDOW, (f64::from(SAMPLES) * pinned) as u32, mixing, 3);
            for _ in 0..slow {
                driver.arrive(PERIOD);
                driver.run_until(driver.now + EPOCH / 3);
            }
            driver.arrive(PERIOD / 2);
            driver.run_until(driver.now + EPOCH);
            let account = Account::open(&driver);
            driver.run_until(driver.now + 2 * EPOCH);
            let what = format!("one of speed 2, {slow} of speed 1, c = {pinned}, mixing {mixing}");
            account.check(&driver, pinned, &what);
        }
    }
}

#[test]
fn the_fastest_of_many_jobs_reads_for_all() {
    // Eight jobs that all run at different speeds are soon so far apart that the window cannot bridge it: a tenth more is read.
    for (periods, factor) in [(&[5, 8, 13][..], 1.05), (&[8; 8], 1.05), (&[4, 5, 6, 7, 8, 9, 10, 11], 1.15)] {
        let mut driver = Driver::new(SAMPLES, WINDOW, 0, 0.0, 3);
        for (index, &period) in periods.iter().enumerate() {
            driver.arrive(period);
            driver.run_until(driver.now + EPOCH * (index as u64 * 37 % 11) / 40);
        }
        let account = Account::open(&driver);
        driver.run_until(driver.now + 2 * EPOCH);
        account.check_within(factor, &driver, 0.0, &format!("periods {periods:?}"));
    }
}

#[test]
fn a_job_that_joins_in_mid_epoch_shares_at_once() {
    let mut driver = Driver::new(SAMPLES, WINDOW, SAMPLES / 5, 0.0, 5);
    driver.arrive(PERIOD);
    driver.arrive(PERIOD);
    driver.run_until(EPOCH / 2);
    let account = Account::open(&driver);
    driver.arrive(PERIOD);
    driver.run_until(driver.now + 2 * EPOCH);
    account.check(&driver, 0.2, "a third joins in mid-epoch");
}

#[test]
fn a_job_that_leaves_costs_the_others_nothing() {
    let mut driver = Driver::new(SAMPLES, WINDOW, SAMPLES / 5, 0.0, 5);
    for _ in 0..3 {
        driver.arrive(PERIOD);
        driver.run_until(driver.now + EPOCH / 4);
    }
    let account = Account::open(&driver);
    driver.run_until(driver.now + EPOCH / 2);
    driver.depart(1);
    driver.run_until(driver.now + 2 * EPOCH);
    account.check(&driver, 0.2, "one of three leaves");
}

#[test]
fn a_job_alone_reads_what_is_not_pinned() {
    let mut driver = Driver::new(SAMPLES, WINDOW, SAMPLES / 5, 0.0, 5);
    driver.arrive(PERIOD);
    driver.run_until(2 * EPOCH);
    assert_eq!(driver.reads(), 2 * u64::from(SAMPLES - SAMPLES / 5));
}
