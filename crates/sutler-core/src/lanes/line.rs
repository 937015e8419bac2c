//! A line through what was seen, for one thing that depends on another.

use super::forecast::{EXPLAINED_MIN, FORGETTING, KNOWN_MIN};

/// A line through points, of which older ones count less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    weight: f64,
    mean_x: f64,
    mean_y: f64,
    /// Weighted sums of squared differences from the means, and of their products.
    spread_x: f64,
    spread_y: f64,
    together: f64,
}

impl Line {
    pub fn note(&mut self, x: f64, y: f64) {
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

    /// Whether there are enough points for it to say anything.
    pub fn is_known(&self) -> bool {
        self.weight >= KNOWN_MIN
    }

    fn explains(&self) -> bool {
        let explained = self.together * self.together / (self.spread_x * self.spread_y);
        // Not a number where nothing varies: then nothing is explained.
        self.is_known() && explained.is_finite() && explained >= EXPLAINED_MIN
    }

    /// By how much `y` differs from its mean at this `x`, as far as `x` explains it.
    fn difference(&self, x: f64) -> f64 {
        if self.explains() { self.together / self.spread_x * (x - self.mean_x) } else { 0.0 }
    }

    /// What `y` is at this `x`: its mean where `x` explains nothing.
    pub fn at(&self, x: f64) -> f64 {
        self.mean_y + self.difference(x)
    }
}
