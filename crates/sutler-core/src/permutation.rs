//! The order of an epoch.
//!
//! A shuffled epoch is a table from position to sample. Serving a sample early means swapping it with the one whose
//! turn it was, so that whatever is served the table stays a permutation and every sample keeps exactly one position.

use crate::{SampleId, SampleRng, Stream};

/// A bijection between positions `0..len` and samples `0..len`.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u32,
    /// Position to sample; `None` while it is the identity.
    samples: Option<Vec<SampleId>>,
    /// Sample to position; built when first asked for.
    positions: Option<Vec<u32>>,
}

impl Permutation {
    /// Every sample at its own index.
    #[must_use]
    pub fn identity(len: u32) -> Self {
        Self { len, samples: None, positions: None }
    }

    /// The uniformly random order that belongs to this seed and epoch (Fisher–Yates).
    #[must_use]
    pub fn shuffled(len: u32, seed: u64, epoch: u32) -> Self {
        Self::drawn(len, SampleRng::with_stream(seed, Stream::Shuffle, epoch, 0))
    }

    /// A uniformly random order, drawn from these numbers.
    #[must_use]
    pub fn drawn(len: u32, mut rng: SampleRng) -> Self {
        let mut samples: Vec<SampleId> = (0..len).map(SampleId).collect();
        rng.shuffle(&mut samples);
        Self { len, samples: Some(samples), positions: None }
    }

    /// How many samples there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sample at a position.
    ///
    /// # Panics
    /// When the position is not below [`Permutation::len`].
    #[must_use]
    pub fn sample_at(&self, position: u32) -> SampleId {
        assert!(position < self.len, "position {position} of {}", self.len);
        self.samples.as_ref().map_or(SampleId(position), |samples| samples[position as usize])
    }

    /// The position of a sample. The first call builds the inverse table; later ones are O(1).
    ///
    /// # Panics
    /// When the sample is not below [`Permutation::len`].
    pub fn position_of(&mut self, sample: SampleId) -> u32 {
        assert!(sample.0 < self.len, "sample {} of {}", sample.0, self.len);
        let Some(samples) = &self.samples else { return sample.0 };
        let positions = self.positions.get_or_insert_with(|| {
            let mut positions = vec![0; samples.len()];
            for (position, sample) in (0..).zip(samples) {
                positions[sample.index()] = position;
            }
            positions
        });
        positions[sample.index()]
    }

    /// Exchanges the samples at two positions in O(1).
    ///
    /// # Panics
    /// When a position is not below [`Permutation::len`].
    pub fn swap(&mut self, a: u32, b: u32) {
        assert!(a < self.len && b < self.len, "positions {a} and {b} of {}", self.len);
        let samples = self.samples.get_or_insert_with(|| (0..self.len).map(SampleId).collect());
        samples.swap(a as usize, b as usize);
        if let Some(positions) = &mut self.positions {
            positions[samples[a as usize].index()] = a;
            positions[samples[b as usize].index()] = b;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stays_a_permutation_under_swaps(
            len in 1u32..200,
            seed: u64,
            shuffled: bool,
            swaps in prop::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 0..60),
        ) {
            let mut permutation =
                if shuffled { Permutation::shuffled(len, seed, 3) } else { Permutation::identity(len) };
            for (a, b, look) in swaps {
                if look {
                    let sample = SampleId(a % len);
                    let position = permutation.position_of(sample);
                    prop_assert_eq!(permutation.sample_at(position), sample);
                }
                permutation.swap(a % len, b % len);
            }
            let mut seen: Vec<u32> = (0..len).map(|position| permutation.sample_at(position).0).collect();
            for position in 0..len {
                prop_assert_eq!(permutation.position_of(permutation.sample_at(position)), position);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_order_is_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        for seed in 0..24_000 {
            let permutation = Permutation::shuffled(4, seed, 0);
            let order: Vec<u32> = (0..4).map(|position| permutation.sample_at(position).0).collect();
            *counts.entry(order).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Chi-square with 23 degrees of freedom: 49.7 is passed once in a thousand families of seeds.
        let chi2: f64 = counts.values().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi2 < 49.7, "chi-square {chi2}");
    }

    #[test]
    fn epochs_differ_and_repeat() {
        let order = |seed, epoch| {
            let permutation = Permutation::shuffled(50, seed, epoch);
            (0..50).map(|position| permutation.sample_at(position)).collect::<Vec<_>>()
        };
        assert_eq!(order(1, 2), order(1, 2));
        assert_ne!(order(1, 2), order(1, 3));
        assert_ne!(order(1, 2), order(2, 2));
    }
}
