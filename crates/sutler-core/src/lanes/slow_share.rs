//! How many of each batch's samples were slow, over time: so that it shows if an order that serves what is ready skews
//! the batches.
//!
//! The series has a bound. When it is full, neighbours are put together: from then on each of its points stands for twice as
//! many batches as before.

use super::durations::Durations;
use super::experience::threshold;

/// The most points in the series.
const POINTS_MAX: usize = 256;

/// The share of slow samples in each batch of a job.
#[derive(Clone, Debug, Default)]
pub struct SlowShare {
    durations: Durations,
    /// Shares, each the mean of so many batches.
    points: Vec<f64>,
    batches_per_point: u32,
    /// The batches that make the next point: how many, and the sum of their shares.
    pending: (u32, f64),
    slow: u64,
    samples: u64,
    /// The first batches, until it is known what slow is: how long their samples took.
    early: Vec<Vec<u64>>,
}

impl SlowShare {
    /// A batch has left, whose samples took so long, in microseconds.
    pub fn note(&mut self, batch: impl Iterator<Item = u64>) {
        if let Some(slow_after) = self.slow_after() {
            let (mut samples, mut slow) = (0, 0);
            for microseconds in batch {
                samples += 1;
                slow += u32::from(microseconds > slow_after);
                self.durations.note(microseconds);
            }
            self.count(samples, slow);
            return;
        }
        let batch: Vec<u64> = batch.inspect(|&microseconds| self.durations.note(microseconds)).collect();
        self.early.push(batch);
        if let Some(slow_after) = self.slow_after() {
            for batch in std::mem::take(&mut self.early) {
                let slow = batch.iter().filter(|&&microseconds| microseconds > slow_after).count();
                self.count(batch.len() as u32, slow as u32);
            }
        }
    }

    /// So many samples of a batch were slow.
    fn count(&mut self, samples: u32, slow: u32) {
        if samples == 0 {
            return;
        }
        self.samples += u64::from(samples);
        self.slow += u64::from(slow);
        self.pending.0 += 1;
        self.pending.1 += f64::from(slow) / f64::from(samples);
        self.batches_per_point = self.batches_per_point.max(1);
        if self.pending.0 < self.batches_per_point {
            return;
        }
        self.points.push(self.pending.1 / f64::from(self.pending.0));
        self.pending = (0, 0.0);
        if self.points.len() == POINTS_MAX {
            self.points = self.points.chunks(2).map(|pair| pair.iter().sum::<f64>() / 2.0).collect();
            self.batches_per_point *= 2;
        }
    }

    /// How long what counts as slow takes, in microseconds; see [`Experience::slow_after`](super::Experience::slow_after).
    #[must_use]
    pub fn slow_after(&self) -> Option<u64> {
        threshold(&self.durations)
    }

    /// The share of all samples that were slow.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.slow as f64 / self.samples as f64 }
    }

    /// The shares over time, and how many batches each stands for.
    #[must_use]
    pub fn series(&self) -> (&[f64], u32) {
        (&self.points, self.batches_per_point.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_share_is_a_flat_line() {
        let mut share = SlowShare::default();
        for _ in 0..100 {
            share.note((0..10).map(|row| if row < 2 { 9_000 } else { 1_000 }));
        }
        let (points, batches) = share.series();
        // The first two batches say what slow is, and are judged by that, too.
        assert_eq!((points.len(), batches), (100, 1));
        assert!(points.iter().all(|&point| (point - 0.2).abs() < 1e-9));
        assert!((share.mean() - 0.2).abs() < 1e-9);
    }

    #[test]
    fn a_skew_shows_where_it_is() {
        let mut share = SlowShare::default();
        let batch = |slow: u64| (0..10).map(move |row| if row < slow { 50_000 } else { 1_000 });
        (0..50).for_each(|_| share.note(batch(1)));
        (0..10).for_each(|_| share.note(batch(5)));
        let (points, _) = share.series();
        assert!(points[..40].iter().all(|&point| point < 0.11));
        assert!(points[points.len() - 10..].iter().all(|&point| point > 0.49));
    }

    #[test]
    fn the_series_is_bounded_and_keeps_its_mean() {
        let mut share = SlowShare::default();
        for index in 0..10_000u64 {
            share.note((0..4).map(move |row| if row == 0 && index % 2 == 0 { 80_000 } else { 1_000 }));
        }
        let (points, batches) = share.series();
        assert!(points.len() < POINTS_MAX && points.len() * batches as usize > 9_900);
        let mean = points.iter().sum::<f64>() / points.len() as f64;
        assert!((mean - 0.125).abs() < 0.01 && (share.mean() - 0.125).abs() < 0.01);
    }

    #[test]
    fn one_batch_has_its_share() {
        let mut share = SlowShare::default();
        share.note((0..20).map(|row| if row < 2 { 9_000 } else { 1_000 }));
        assert_eq!(share.series(), (&[0.1][..], 1));
    }

    #[test]
    fn nothing_known_is_no_share() {
        let mut share = SlowShare::default();
        share.note(std::iter::empty());
        share.note([5u64].into_iter());
        assert_eq!((share.series(), share.mean(), share.slow_after()), ((&[][..], 1), 0.0, None));
    }
}
