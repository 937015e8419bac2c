//! What a sample will cost, from what is known of it before it is prepared.
//!
//! A large file takes longer to decode than a small one, and a recording that was drawn to be played slowly has more to be
//! transformed. How much longer is learnt: one line through what was seen for each feature, the second through what the
//! first leaves unexplained, both with older samples counting less and less. A feature that explains nothing has a flat
//! line, so that the forecast falls back to the mean by itself.

/// How many features a sample may have.
pub const FEATURES: usize = 2;

/// How much an observation counts when the next one comes: after 500 it counts e⁻¹.
pub(super) const FORGETTING: f64 = 0.998;

/// How many samples must have been seen before a feature counts.
const KNOWN_MIN: f64 = 16.0;

/// A line that explains less than this share of what it is drawn through is an accident.
const EXPLAINED_MIN: f64 = 0.1;

/// What is known of a sample before it is prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hints {
    /// How large it is: encoded bytes, or a length in any unit.
    pub size: Option<f64>,
    /// What its random decisions add to the work, in any unit.
    pub drawn: Option<f64>,
}

impl Hints {
    fn features(&self) -> [Option<f64>; FEATURES] {
        [self.size, self.drawn].map(|feature| feature.filter(|value| value.is_finite()))
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn are_empty(&self) -> bool {
        self.features().iter().all(Option::is_none)
    }
}

/// A line through points, of which older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    weight: f64,
    mean_x: f64,
    mean_y: f64,
    /// Weighted sums of squared differences from the means, and of their products.
    spread_x: f64,
    spread_y: f64,
    together: f64,
}

impl Line {
    fn note(&mut self, x: f64, y: f64) {
        for sum in [&mut self.weight, &mut self.spread_x, &mut self.spread_y, &mut self.together] {
            *sum *= FORGETTING;
        }
        self.weight += 1.0;
        let (before_x, before_y) = (x - self.mean_x, y - self.mean_y);
        self.mean_x += before_x / self.weight;
        self.mean_y += before_y / self.weight;
        self.spread_x += before_x * (x - self.mean_x);
        self.spread_y += before_y * (y - self.mean_y);
        self.together += before_x * (y - self.mean_y);
    }

    fn explains(&self) -> bool {
        let explained = self.together * self.together / (self.spread_x * self.spread_y);
        // Not a number where nothing varies: then nothing is explained.
        self.weight >= KNOWN_MIN && explained.is_finite() && explained >= EXPLAINED_MIN
    }

    /// By how much `y` differs from its mean at this `x`, as far as `x` explains it.
    fn difference(&self, x: f64) -> f64 {
        if self.explains() { self.together / self.spread_x * (x - self.mean_x) } else { 0.0 }
    }
}

/// Learns what samples cost.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    weight: f64,
    mean: f64,
    lines: [Line; FEATURES],
}

impl Forecast {
    /// A sample of which this was known has cost so much.
    pub fn note(&mut self, hints: &Hints, microseconds: u64) {
        let cost = microseconds as f64;
        self.weight = self.weight * FORGETTING + 1.0;
        self.mean += (cost - self.mean) / self.weight;
        let mut unexplained = cost - self.mean;
        for (line, feature) in self.lines.iter_mut().zip(hints.features()) {
            if let Some(feature) = feature {
                line.note(feature, unexplained);
                unexplained -= line.difference(feature);
            }
        }
    }

    /// The mean of what samples cost, later ones counting more; `None` before the first.
    #[must_use]
    pub fn mean(&self) -> Option<u64> {
        (self.weight > 0.0).then_some(self.mean.max(0.0) as u64)
    }

    /// Whether any feature tells anything.
    #[must_use]
    pub fn explains_something(&self) -> bool {
        self.lines.iter().any(Line::explains)
    }

    /// What a sample of which this is known will cost; `None` before the first.
    #[must_use]
    pub fn expect(&self, hints: &Hints) -> Option<u64> {
        self.mean()?;
        let lines = self.lines.iter().zip(hints.features());
        let difference: f64 =
            lines.filter_map(|(line, feature)| feature.map(|feature| line.difference(feature))).sum();
        Some((self.mean + difference).max(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(size: f64) -> Hints {
        Hints { size: Some(size), drawn: None }
    }

    /// Numbers that look random and are the same every time.
    fn noise(index: u64) -> f64 {
        (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / (1 << 24) as f64
    }

    #[test]
    fn costs_that_grow_with_the_size_are_foreseen() {
        let mut forecast = Forecast::default();
        for index in 0..300 {
            let bytes = 10_000.0 + 1e6 * noise(index);
            forecast.note(&size(bytes), (500.0 + bytes * 0.02 + 300.0 * noise(index + 1000)) as u64);
        }
        let expected = forecast.expect(&size(5e6)).unwrap();
        assert!((95_000..106_000).contains(&expected), "{expected}");
    }

    #[test]
    fn random_decisions_count_beside_the_size() {
        let mut forecast = Forecast::default();
        for index in 0..400 {
            let (bytes, heavy) = (1e5 + 1e5 * noise(index), f64::from(index % 5 == 0));
            let hints = Hints { size: Some(bytes), drawn: Some(heavy) };
            forecast.note(&hints, (bytes * 0.01 + 50_000.0 * heavy) as u64);
        }
        let expect = |drawn| forecast.expect(&Hints { size: Some(1.5e5), drawn: Some(drawn) }).unwrap();
        assert!((45_000..58_000).contains(&expect(1.0)), "{}", expect(1.0));
        assert!(expect(0.0) < 6_000, "{}", expect(0.0));
    }

    #[test]
    fn what_explains_nothing_changes_nothing() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.expect(&size(1.0)), None);
        for index in 0..1000 {
            forecast.note(&size(noise(index) * 1e6), 1000 + (noise(index + 77_777) * 100.0) as u64);
        }
        let mean = forecast.mean().unwrap();
        assert_eq!(forecast.expect(&Hints::default()), Some(mean));
        assert!(forecast.expect(&size(9e5)).unwrap().abs_diff(mean) <= 30);
        // Nor does a feature that never varies, or is no number.
        let mut forecast = Forecast::default();
        (0..100).for_each(|_| forecast.note(&size(7.0), 50));
        assert_eq!(forecast.expect(&size(1e9)), Some(50));
        assert_eq!(forecast.expect(&size(f64::NAN)), Some(50));
    }

    #[test]
    fn other_times_other_costs() {
        let mut forecast = Forecast::default();
        (0..2000).for_each(|_| forecast.note(&Hints::default(), 10_000));
        (0..2000).for_each(|_| forecast.note(&Hints::default(), 100));
        assert!(forecast.mean().unwrap() < 400);
    }
}
