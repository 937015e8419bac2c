//! Band-limited resampling by a windowed sinc, as torchaudio defines it.
//!
//! The value at a time between two samples is the sum of its neighbours, each weighted by the filter at its distance. Times
//! repeat where both rates are whole numbers: between 16 and 8 kHz there are two. So the weights are worked out once for each *phase*, as
//! the distance to the sample before is called, and what remains is one dot product for each value.
//!
//! A speed drawn at random repeats nothing. Then the weights are worked out for evenly spaced phases, and those between are interpolated.

use super::Clip;
use super::op::Kernel;

/// From this many phases on they are interpolated: 1,024 of them are off by no more than (pi / 1024)^2 / 8, about 1.2e-6
/// of full scale, and 160 to 147 (from 48 to 44.1 kHz) still has its own.
const PHASES_MAX: usize = 1024;

/// torchaudio's shape of Kaiser's window.
const BETA: f64 = 14.769_656_459_379_492;

/// What the filter looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Filter {
    pub kernel: Kernel,
    /// Zero crossings on each side.
    pub width: u32,
    /// The share of the usable band that it lets through.
    pub rolloff: f64,
    pub beta: Option<f64>,
}

impl Default for Filter {
    fn default() -> Self {
        Self { kernel: Kernel::SincInterpHann, width: 6, rolloff: 0.99, beta: None }
    }
}

impl Filter {
    /// The weight at a distance, counted in zero crossings.
    fn at(&self, distance: f64) -> f64 {
        let width = f64::from(self.width);
        if distance.abs() >= width {
            return 0.0;
        }
        let window = match self.kernel {
            Kernel::SincInterpHann => (distance * std::f64::consts::FRAC_PI_2 / width).cos().powi(2),
            Kernel::SincInterpKaiser => {
                let beta = self.beta.unwrap_or(BETA);
                bessel(beta * (1.0 - (distance / width).powi(2)).sqrt()) / bessel(beta)
            }
        };
        let angle = distance * std::f64::consts::PI;
        let sinc = if angle == 0.0 { 1.0 } else { angle.sin() / angle };
        sinc * window
    }

    /// Adds the weights at distances that begin with `first` and are `cutoff` apart, under a raised cosine: those of
    /// [`Filter::at`], without working out two sines for each.
    fn add_row(&self, first: f64, cutoff: f64, taps: usize, out: &mut Vec<f32>) {
        let (pi, width) = (std::f64::consts::PI, f64::from(self.width));
        let mut wave = Rotation::new(first * pi, cutoff * pi);
        let mut window = Rotation::new(first * pi / 2.0 / width, cutoff * pi / 2.0 / width);
        for tap in 0..taps {
            let distance = first + tap as f64 * cutoff;
            let angle = distance * pi;
            // Next to the middle the quotient loses its digits, and the sinc is 1 there.
            let sinc = if angle.abs() < 1e-6 { 1.0 } else { wave.sine / angle };
            let inside = distance.abs() < width;
            out.push(if inside { (sinc * window.cosine * window.cosine * cutoff) as f32 } else { 0.0 });
            wave.advance();
            window.advance();
        }
    }
}

/// An angle that grows by equal steps: its sine and cosine without working either out.
struct Rotation {
    sine: f64,
    cosine: f64,
    step: (f64, f64),
}

impl Rotation {
    fn new(angle: f64, step: f64) -> Self {
        let (sine, cosine) = angle.sin_cos();
        Self { sine, cosine, step: step.sin_cos() }
    }

    fn advance(&mut self) {
        let (sine, cosine) = self.step;
        (self.sine, self.cosine) =
            (self.sine * cosine + self.cosine * sine, self.cosine * cosine - self.sine * sine);
    }
}

/// The modified Bessel function of order 0, by its power series.
fn bessel(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut sum, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= quarter / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

/// By how much the rate changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ratio {
    /// From one rate to another.
    Rates(u32, u32),
    /// So many samples become one.
    Speed(f64),
}

/// Weights for one filter and ratio.
pub(super) struct Resampler {
    ratio: Ratio,
    filter: Filter,
    /// How many samples go into one value.
    taps: usize,
    /// The weights of each phase, one after the other; one phase more where they are interpolated.
    weights: Vec<f32>,
    step: Step,
}

/// How time goes on from one value to the next.
#[derive(Clone, Copy)]
enum Step {
    /// By `from / to` samples, both without a common divisor.
    Exact { from: u64, to: u64 },
    /// By so many.
    Real(f64),
}

impl Resampler {
    pub fn new(ratio: Ratio, filter: Filter) -> Self {
        let step = match ratio {
            Ratio::Rates(from, to) => {
                let common = u64::from(gcd(from, to));
                let (from, to) = (u64::from(from) / common, u64::from(to) / common);
                if to as usize <= PHASES_MAX {
                    Step::Exact { from, to }
                } else {
                    Step::Real(from as f64 / to as f64)
                }
            }
            Ratio::Speed(speed) => Step::Real(speed),
        };
        let (per_value, phases) = match step {
            Step::Exact { from, to } => (from as f64 / to as f64, to as usize),
            Step::Real(speed) => (speed, PHASES_MAX),
        };
        // Going down, the band ends where that of the new rate does.
        let cutoff = (1.0 / per_value).min(1.0) * filter.rolloff;
        let reach = (f64::from(filter.width) / cutoff).ceil() as usize;
        let taps = 2 * reach;
        let rows = if matches!(step, Step::Real(_)) { phases + 1 } else { phases };
        let mut weights = Vec::with_capacity(rows * taps);
        for row in 0..rows {
            let phase = row as f64 / phases as f64;
            let first = (1.0 - reach as f64 - phase) * cutoff;
            let distances = (0..taps).map(|tap| first + tap as f64 * cutoff);
            match (step, filter.kernel) {
                // Made anew for every clip, so it should not cost as much as the clip.
                (Step::Real(_), Kernel::SincInterpHann) => filter.add_row(first, cutoff, taps, &mut weights),
                _ => weights.extend(distances.map(|distance| (filter.at(distance) * cutoff) as f32)),
            }
        }
        Self { ratio, filter, taps, weights, step }
    }

    /// Whether these are the weights for it.
    pub fn is_for(&self, ratio: Ratio, filter: Filter) -> bool {
        self.ratio == ratio && self.filter == filter
    }

    /// How many values so many samples become.
    pub fn length(&self, frames: usize) -> usize {
        match self.step {
            Step::Exact { from, to } => (frames as u128 * u128::from(to)).div_ceil(u128::from(from)) as usize,
            Step::Real(speed) => match self.ratio {
                // As torchaudio rounds it, in whole numbers.
                Ratio::Rates(from, to) => {
                    (frames as u128 * u128::from(to)).div_ceil(u128::from(from)) as usize
                }
                Ratio::Speed(_) => (frames as f64 / speed).ceil() as usize,
            },
        }
    }

    /// Resamples every channel of `clip`; `out` is scratch memory.
    pub fn run(&self, clip: &mut Clip, out: &mut Vec<f32>) {
        out.clear();
        let length = self.length(clip.frames());
        for plane in clip.planes() {
            match self.step {
                Step::Exact { from, to } => {
                    // Counted up instead of multiplied out: a division for each value would cost as much as the sum.
                    let (mut whole, mut phase) = (0u64, 0u64);
                    for _ in 0..length {
                        let row = &self.weights[phase as usize * self.taps..][..self.taps];
                        out.push(self.weigh(plane, whole as usize, |samples| dot(samples, row)));
                        phase += from;
                        whole += phase / to;
                        phase %= to;
                    }
                }
                Step::Real(speed) => {
                    for index in 0..length {
                        let at = index as f64 * speed;
                        let phase = at.fract() * PHASES_MAX as f64;
                        let row = phase as usize * self.taps;
                        let [below, above] =
                            [row, row + self.taps].map(|row| &self.weights[row..][..self.taps]);
                        let share = phase.fract() as f32;
                        out.push(self.weigh(plane, at as usize, |samples| {
                            let low = dot(samples, below);
                            low + (dot(samples, above) - low) * share
                        }));
                    }
                }
            }
        }
        std::mem::swap(&mut clip.values, out);
    }

    /// The sum over the samples around `at`; there is silence beyond the ends.
    fn weigh(&self, plane: &[f32], at: usize, sum: impl Fn(&[f32]) -> f32) -> f32 {
        let before = self.taps / 2 - 1;
        if let Some(samples) = at.checked_sub(before).and_then(|start| plane.get(start..start + self.taps)) {
            return sum(samples);
        }
        let around: Vec<f32> = (0..self.taps)
            .map(|tap| {
                (at + tap).checked_sub(before).and_then(|place| plane.get(place)).copied().unwrap_or(0.0)
            })
            .collect();
        sum(&around)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// In eight sums, which the compiler turns into one vector.
pub(super) fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (mut lefts, mut rights) = (left.chunks_exact(8), right.chunks_exact(8));
    for (left, right) in (&mut lefts).zip(&mut rights) {
        for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += left * right;
        }
    }
    let rest: f32 = lefts.remainder().iter().zip(rights.remainder()).map(|(left, right)| left * right).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resampled(values: &[f32], ratio: Ratio) -> Vec<f32> {
        let mut clip = Clip { rate: 1, channels: 1, values: values.to_vec() };
        Resampler::new(ratio, Filter::default()).run(&mut clip, &mut Vec::new());
        clip.values
    }

    fn noise(count: usize) -> Vec<f32> {
        let mut rng = sutler_core::SampleRng::new(1, 2, sutler_core::SampleId(3));
        (0..count).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
    }

    #[test]
    fn interpolated_phases_are_those_of_the_exact_way() {
        let signal = noise(500);
        for (from, to) in [(3, 2), (160, 147), (1, 3), (85, 100), (115, 100)] {
            let exact = resampled(&signal, Ratio::Rates(from, to));
            let real = resampled(&signal, Ratio::Speed(f64::from(from) / f64::from(to)));
            for (index, (exact, real)) in exact.iter().zip(&real).enumerate() {
                assert!((exact - real).abs() < 1e-5, "{from}/{to} at {index}: {exact} and {real}");
            }
        }
    }

    #[test]
    fn rotations_give_the_weights_of_the_formula() {
        let filter = Filter::default();
        for (first, cutoff, taps) in
            [(-5.94, 0.99, 12), (-6.3, 0.861, 14), (-0.5, 0.01, 1200), (-2.0, 0.5, 12)]
        {
            let mut row = Vec::new();
            filter.add_row(first, cutoff, taps, &mut row);
            for (tap, weight) in row.iter().enumerate() {
                let expected = (filter.at(first + tap as f64 * cutoff) * cutoff) as f32;
                assert!(
                    (weight - expected).abs() < 1e-7,
                    "{first} {cutoff} at {tap}: {weight} and {expected}"
                );
            }
        }
    }

    #[test]
    fn a_tone_keeps_its_frequency() {
        let tone =
            |rate: f64, index: usize| (index as f64 * 440.0 / rate * std::f64::consts::TAU).sin() as f32;
        let signal: Vec<f32> = (0..8000).map(|index| tone(8000.0, index)).collect();
        let up = resampled(&signal, Ratio::Rates(8000, 16000));
        assert_eq!(up.len(), 16000);
        for (index, value) in up.iter().enumerate().take(15_900).skip(100) {
            assert!((value - tone(16000.0, index)).abs() < 3e-3, "at {index}");
        }
    }

    #[test]
    fn lengths_are_rounded_up() {
        for (frames, from, to) in
            [(1, 2, 1), (1001, 16000, 8000), (7, 44100, 16000), (0, 2, 3), (100, 16000, 15999)]
        {
            let out = resampled(&noise(frames), Ratio::Rates(from, to));
            assert_eq!(
                out.len(),
                (frames * to as usize).div_ceil(from as usize),
                "{frames} from {from} to {to}"
            );
        }
    }

    #[test]
    fn a_dot_product_is_one_for_every_length() {
        for count in 0..30 {
            let values: Vec<f32> = (0..count).map(|value| value as f32).collect();
            let expected: f32 = values.iter().map(|value| value * value).sum();
            assert_eq!(dot(&values, &values), expected);
        }
    }
}
