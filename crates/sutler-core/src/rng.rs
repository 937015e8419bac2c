//! Random numbers that belong to a sample, not to a thread.
//!
//! A sample's random decisions must not depend on which worker prepares it, nor on what was prepared before it.
//! So there is no state to hand around: the generator is a function from (seed, stream, draw, sample, counter) to
//! bits, Philox 4x32-10 (Salmon et al., SC'11), and a [`SampleRng`] is only a cursor over its output.

use crate::SampleId;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// What the numbers are for. Streams of one seed never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// The random decisions of a sample's transforms.
    Transform = 0,
    /// The shuffle of an epoch.
    Shuffle = 1,
    /// Seeds handed to user code that runs its own generators.
    User = 2,
    /// Which of equally good candidates leaves a cache.
    Keep = 3,
    /// Which of equally good samples several jobs get next.
    Shared = 4,
    /// In which order documents are put end to end.
    Pack = 5,
}

/// Which time it is that a sample is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// In which epoch.
    pub epoch: u32,
    /// How often the sample came before in that epoch; more than 0 only where a sampler draws with replacement, or a part of
    /// a dataset names a sample more than once.
    pub repeat: u32,
}

impl Draw {
    /// The first of an epoch, and mostly the only one.
    #[must_use]
    pub fn first(epoch: u32) -> Self {
        Self { epoch, repeat: 0 }
    }
}

/// The random numbers of one draw of a sample.
#[derive(Clone, Debug)]
pub struct SampleRng {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl SampleRng {
    /// The numbers for the transforms of sample `id` in `epoch`, when it is first drawn.
    #[must_use]
    pub fn new(seed: u64, epoch: u32, id: SampleId) -> Self {
        Self::of_draw(seed, Stream::Transform, Draw::first(epoch), id.0)
    }

    /// The numbers for the transforms of sample `id` at any draw.
    #[must_use]
    pub fn for_draw(seed: u64, draw: Draw, id: SampleId) -> Self {
        Self::of_draw(seed, Stream::Transform, draw, id.0)
    }

    /// The numbers of any stream; `index` is the sample for per-sample streams and 0 otherwise.
    #[must_use]
    pub fn with_stream(seed: u64, stream: Stream, epoch: u32, index: u32) -> Self {
        Self::of_draw(seed, stream, Draw::first(epoch), index)
    }

    /// The numbers of any per-sample stream at any draw.
    #[must_use]
    pub fn of_draw(seed: u64, stream: Stream, draw: Draw, index: u32) -> Self {
        // The streams take one byte; draws of one sample would have to go beyond 16 million in an epoch to meet again.
        let stream = stream as u32 | draw.repeat << 8;
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            counter: [0, index, draw.epoch, stream],
            block: [0; 4],
            used: 4,
        }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox(self.counter, self.key);
            self.counter[0] = self.counter[0].wrapping_add(1);
            self.used = 0;
        }
        let word = self.block[self.used];
        self.used += 1;
        word
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32
    }

    /// Uniform in `[0, 1)`, with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`; `low` when the range is empty.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Uniform in `0..bound`, without modulo bias (Lemire's method).
    ///
    /// # Panics
    /// When `bound` is 0: there is nothing to choose from.
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "cannot choose from an empty range");
        let mut product = u64::from(self.next_u32()) * u64::from(bound);
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// Normally distributed with mean 0 and deviation 1 (Box–Muller; one value per pair, so that the number of
    /// words drawn never depends on history).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Puts `items` into uniformly random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = u32::try_from(last + 1).expect("shuffled slices are indexed by SampleId");
            items.swap(last, self.below(bound) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors published with Random123.
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn samples_epochs_seeds_and_streams_differ() {
        let first = |mut rng: SampleRng| rng.next_u64();
        let base = first(SampleRng::new(1, 2, SampleId(3)));
        assert_eq!(base, first(SampleRng::new(1, 2, SampleId(3))));
        assert_ne!(base, first(SampleRng::new(0, 2, SampleId(3))));
        assert_ne!(base, first(SampleRng::new(1, 1, SampleId(3))));
        assert_ne!(base, first(SampleRng::new(1, 2, SampleId(4))));
        assert_ne!(base, first(SampleRng::with_stream(1, Stream::Shuffle, 2, 3)));
        let drawn = |repeat| first(SampleRng::for_draw(1, Draw { epoch: 2, repeat }, SampleId(3)));
        assert_eq!(base, drawn(0));
        assert!(base != drawn(1) && drawn(1) != drawn(2));
    }

    #[test]
    fn choices_below_a_bound_are_even() {
        let mut rng = SampleRng::new(7, 0, SampleId(0));
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[rng.below(6) as usize] += 1;
        }
        // Chi-square with 5 degrees of freedom: 20.5 is passed once in a thousand seeds.
        let chi2: f64 = counts.iter().map(|&n| (f64::from(n) - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi2 < 20.5, "counts {counts:?}, chi-square {chi2}");
    }

    #[test]
    fn normals_have_the_right_moments() {
        let mut rng = SampleRng::new(3, 0, SampleId(9));
        let draws: Vec<f64> = (0..100_000).map(|_| rng.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.015 && (variance - 1.0).abs() < 0.02, "mean {mean}, variance {variance}");
    }
}
