//! What a sample will cost, from what is known of it before it is prepared.
//!
//! A large file takes longer to decode than a small one, a recording that was drawn to be played slowly has more to be
//! transformed, and of a photograph of which a corner was drawn most need not be decoded at all. How much each of these
//! matters is learnt: the plane that fits best through what was seen, older samples counting less and less. All features are
//! weighed together, since they go together: a large file has many pixels, and what a crop leaves of it is a share of
//! either. What explains nothing is flat, so that the forecast falls back to the mean by itself.

/// How many features a sample may have.
const FEATURES: usize = 3;

/// How much an observation counts when the next one comes: after 500 it counts e⁻¹.
pub(super) const FORGETTING: f64 = 0.998;

/// How many samples must have been seen before a feature counts.
pub(super) const KNOWN_MIN: f64 = 16.0;

/// What explains less than this share of what it is drawn through is an accident.
pub(super) const EXPLAINED_MIN: f64 = 0.1;

/// Added to every feature's share in itself, so that of two that always go together, as where nothing is cropped, each gets
/// half of what they explain instead of any two numbers with that sum. It makes the answer a thousandth too flat.
const STEADYING: f64 = 1e-3;

/// What is known of a sample before it is prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hints {
    /// How large it is: encoded bytes, or a length in any unit.
    pub size: Option<f64>,
    /// What its random decisions make of that, in any unit.
    pub drawn: Option<f64>,
    /// How many values are worked on by these decisions.
    pub values: Option<f64>,
}

impl Hints {
    fn features(&self) -> [Option<f64>; FEATURES] {
        [self.size, self.drawn, self.values].map(|feature| feature.filter(|value| value.is_finite()))
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn are_empty(&self) -> bool {
        self.features().iter().all(Option::is_none)
    }
}

/// Learns what samples cost.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    /// Of all samples.
    weight: f64,
    mean: f64,
    /// Of those that something is known of.
    known: Known,
}

/// Moments of features and costs, as weighted sums of products of differences from the means.
#[derive(Clone, Debug, Default)]
struct Known {
    weight: f64,
    cost: f64,
    cost_spread: f64,
    means: [f64; FEATURES],
    spread: [[f64; FEATURES]; FEATURES],
    together: [f64; FEATURES],
    /// How often each feature was known, with older samples counting less.
    weights: [f64; FEATURES],
}

impl Known {
    fn note(&mut self, features: [Option<f64>; FEATURES], cost: f64) {
        for sum in [&mut self.weight, &mut self.cost_spread]
            .into_iter()
            .chain(&mut self.together)
            .chain(self.spread.as_flattened_mut())
            .chain(&mut self.weights)
        {
            *sum *= FORGETTING;
        }
        self.weight += 1.0;
        let cost_before = cost - self.cost;
        self.cost += cost_before / self.weight;
        self.cost_spread += cost_before * (cost - self.cost);
        let mut before = [0.0; FEATURES];
        for (index, feature) in features.into_iter().enumerate() {
            // One that is not known is taken for the usual.
            let Some(feature) = feature else { continue };
            self.weights[index] += 1.0;
            before[index] = feature - self.means[index];
            self.means[index] += before[index] / self.weights[index];
            self.together[index] += before[index] * (cost - self.cost);
        }
        for (row, one) in before.into_iter().enumerate() {
            for (column, other) in features.into_iter().enumerate() {
                self.spread[row][column] += one * other.map_or(0.0, |other| other - self.means[column]);
            }
        }
    }

    /// By how much each of the features that are known moves the cost; `None` where they explain nothing.
    fn slopes(&self, known: [bool; FEATURES]) -> Option<[f64; FEATURES]> {
        if self.weight < KNOWN_MIN {
            return None;
        }
        let used = |index: usize| {
            known[index] && self.weights[index] >= KNOWN_MIN && self.spread[index][index] > 0.0
        };
        let deviation = |index: usize| self.spread[index][index].sqrt();
        let cost_deviation = self.cost_spread.sqrt();
        // In units of their deviations, so that bytes and pixels can stand side by side.
        let mut rows = [[0.0; FEATURES + 1]; FEATURES];
        let mut shares = [0.0; FEATURES];
        for row in 0..FEATURES {
            rows[row][row] = 1.0 + STEADYING;
            if !used(row) {
                continue;
            }
            for column in (0..FEATURES).filter(|&column| column != row && used(column)) {
                rows[row][column] = self.spread[row][column] / (deviation(row) * deviation(column));
            }
            shares[row] = self.together[row] / (deviation(row) * cost_deviation);
            rows[row][FEATURES] = shares[row];
        }
        let slopes = solve(rows)?;
        let explained: f64 = slopes.iter().zip(shares).map(|(slope, share)| slope * share).sum();
        // Not a number where costs do not vary: then nothing is explained.
        if !explained.is_finite() || explained < EXPLAINED_MIN {
            return None;
        }
        let scaled =
            |index: usize| if used(index) { slopes[index] * cost_deviation / deviation(index) } else { 0.0 };
        Some(std::array::from_fn(scaled))
    }
}

/// Solves as many equations as there are features; the last number of a row is its right side. `None` where they say too little.
fn solve(mut rows: [[f64; FEATURES + 1]; FEATURES]) -> Option<[f64; FEATURES]> {
    for pivot in 0..FEATURES {
        let best = (pivot..FEATURES)
            .max_by(|&one, &other| rows[one][pivot].abs().total_cmp(&rows[other][pivot].abs()))?;
        rows.swap(pivot, best);
        let lead = rows[pivot][pivot];
        if !lead.is_finite() || lead.abs() < 1e-9 {
            return None;
        }
        let row = rows[pivot].map(|value| value / lead);
        rows[pivot] = row;
        for (index, other) in rows.iter_mut().enumerate() {
            let factor = other[pivot];
            if index != pivot {
                other.iter_mut().zip(row).for_each(|(value, lead)| *value -= factor * lead);
            }
        }
    }
    Some(rows.map(|row| row[FEATURES]))
}

impl Forecast {
    /// A sample of which this was known has cost so much.
    pub fn note(&mut self, hints: &Hints, microseconds: u64) {
        let cost = microseconds as f64;
        self.weight = self.weight * FORGETTING + 1.0;
        self.mean += (cost - self.mean) / self.weight;
        if !hints.are_empty() {
            self.known.note(hints.features(), cost);
        }
    }

    /// The mean of what samples cost, later ones counting more; `None` before the first.
    #[must_use]
    pub fn mean(&self) -> Option<u64> {
        (self.weight > 0.0).then_some(self.mean.max(0.0) as u64)
    }

    /// Whether features tell anything.
    #[must_use]
    pub fn explains_something(&self) -> bool {
        self.known.slopes([true; FEATURES]).is_some()
    }

    /// What a sample of which this is known will cost; `None` before the first.
    #[must_use]
    pub fn expect(&self, hints: &Hints) -> Option<u64> {
        let mean = self.mean()?;
        let features = hints.features();
        let Some(slopes) = self.known.slopes(features.map(|feature| feature.is_some())) else {
            return Some(mean);
        };
        let differences = features.iter().zip(self.known.means).zip(slopes);
        let difference: f64 = differences
            .map(|((feature, mean), slope)| feature.map_or(0.0, |feature| slope * (feature - mean)))
            .sum();
        Some((self.known.cost + difference).max(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(size: f64) -> Hints {
        Hints { size: Some(size), ..Hints::default() }
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
            let hints = Hints { size: Some(bytes), drawn: Some(heavy), values: None };
            forecast.note(&hints, (bytes * 0.01 + 50_000.0 * heavy) as u64);
        }
        let expect =
            |drawn| forecast.expect(&Hints { size: Some(1.5e5), drawn: Some(drawn), values: None }).unwrap();
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

    /// Photographs of which a part is drawn: they cost what has to be decoded of them, and what comes of it.
    fn photo(index: u64) -> (Hints, f64) {
        let bytes = 2e4 + 2e6 * noise(index).powi(3);
        let share = 0.1 + 0.9 * noise(index + 50_000);
        let pixels = 4.0 * bytes * share * (0.3 + 0.7 * noise(index + 90_000));
        let hints = Hints { size: Some(bytes), drawn: Some(bytes * share), values: Some(pixels) };
        (hints, 300.0 + 0.02 * bytes * share + 0.004 * pixels)
    }

    #[test]
    fn features_that_go_together_are_weighed_together() {
        let mut forecast = Forecast::default();
        for index in 0..1000 {
            let (hints, cost) = photo(index);
            forecast.note(&hints, cost as u64);
        }
        for index in 1000..1100 {
            let (hints, cost) = photo(index);
            let expected = forecast.expect(&hints).unwrap() as f64;
            assert!((expected - cost).abs() < 0.02 * cost + 300.0, "{expected} for {cost}");
        }
        // What is not known of a sample is made good for by what is.
        let (hints, _) = photo(1001);
        let part = forecast.expect(&Hints { values: None, ..hints }).unwrap() as f64;
        let whole = forecast.expect(&hints).unwrap() as f64;
        assert!((part / whole - 1.0).abs() < 0.5, "{part} and {whole}");
    }

    #[test]
    fn what_always_goes_together_counts_once() {
        let mut forecast = Forecast::default();
        let hints = |bytes: f64| Hints { size: Some(bytes), drawn: Some(bytes), values: Some(2.0 * bytes) };
        (0..300).for_each(|index| {
            let bytes = 1e4 + 1e5 * noise(index);
            forecast.note(&hints(bytes), (bytes * 0.1) as u64);
        });
        let expected = forecast.expect(&hints(1e6)).unwrap();
        assert!((99_000..=101_000).contains(&expected), "{expected}");
    }

    #[test]
    fn samples_of_which_nothing_is_known_leave_the_others_alone() {
        let mut forecast = Forecast::default();
        for index in 0..600 {
            let bytes = 1e4 + 1e5 * noise(index);
            forecast.note(&size(bytes), (bytes * 0.1) as u64);
            forecast.note(&Hints::default(), 10);
        }
        let expected = forecast.expect(&size(5e4)).unwrap();
        assert!((4_800..5_200).contains(&expected), "{expected}");
    }
}
