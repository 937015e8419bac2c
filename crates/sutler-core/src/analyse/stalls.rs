//! Where the trainer's time goes, from what the same batches took under different circumstances.

use serde::{Deserialize, Serialize};

/// Seconds that a sample took, as the trainer saw it, when ever more of the way to it was real.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochTimes {
    /// The batch was there: the training step alone.
    pub step: f64,
    /// Samples were ready and had to be put into batches and handed over.
    pub handed: f64,
    /// Samples were in memory and had to be prepared as well.
    pub prepared: f64,
    /// The same without the step, where loader and trainer work at the same time; `None` where they take turns.
    pub loaded: Option<f64>,
    /// Samples were where they really are.
    pub fetched: f64,
}

/// Fractions of the trainer's time; together 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stalls {
    /// Waiting for bytes.
    pub fetch: f64,
    /// Waiting for decoding and transforms.
    pub prep: f64,
    /// Waiting for finished batches to arrive.
    pub transport: f64,
    /// Its own work.
    pub trainer: f64,
}

impl Stalls {
    /// What each step towards the real way has added.
    ///
    /// Where loader and trainer work at the same time, handing over is waited for only as far as neither of them is waited for anyway: what a
    /// batch takes beyond the slower of the two.
    ///
    /// Measurements scatter, so one that should have taken longer may have taken a little less. It then counts as having taken as long: a
    /// share is never negative, and they always add up.
    #[must_use]
    pub fn between(times: &EpochTimes) -> Stalls {
        let step = times.step.max(0.0);
        let prepared = times.prepared.max(step);
        let beyond = times.loaded.map_or(f64::INFINITY, |loaded| (prepared - loaded.max(step)).max(0.0));
        let handed = times.handed.clamp(step, prepared).min(step + beyond);
        let fetched = times.fetched.max(prepared);
        if fetched <= 0.0 {
            return Stalls { fetch: 0.0, prep: 0.0, transport: 0.0, trainer: 1.0 };
        }
        Stalls {
            fetch: (fetched - prepared) / fetched,
            prep: (prepared - handed) / fetched,
            transport: (handed - step) / fetched,
            trainer: step / fetched,
        }
    }

    /// What is not the trainer's own work.
    #[must_use]
    pub fn waiting(&self) -> f64 {
        self.fetch + self.prep + self.transport
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_step_is_charged_with_what_it_adds() {
        let times = EpochTimes { step: 2.0, handed: 3.0, prepared: 6.0, loaded: None, fetched: 10.0 };
        let stalls = Stalls::between(&times);
        for (found, truth) in
            [(stalls.fetch, 0.4), (stalls.prep, 0.3), (stalls.transport, 0.1), (stalls.trainer, 0.2)]
        {
            assert!((found - truth).abs() < 1e-12, "{stalls:?}");
        }
        assert!((stalls.waiting() - 0.8).abs() < 1e-12);
    }

    #[test]
    fn handing_over_counts_only_where_nothing_else_is_waited_for() {
        let busy_loader =
            EpochTimes { step: 2.0, handed: 2.5, prepared: 6.0, loaded: Some(6.0), fetched: 6.0 };
        assert_eq!(Stalls::between(&busy_loader).transport, 0.0);
        let quick_loader =
            EpochTimes { step: 2.0, handed: 2.5, prepared: 2.5, loaded: Some(0.5), fetched: 2.5 };
        assert!((Stalls::between(&quick_loader).transport - 0.2).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn shares_add_up_whatever_was_measured(times in prop::array::uniform5(0.0..10.0f64), turns: bool) {
            let [step, handed, prepared, fetched, loaded] = times;
            let loaded = (!turns).then_some(loaded);
            let stalls = Stalls::between(&EpochTimes { step, handed, prepared, loaded, fetched });
            prop_assert!((stalls.waiting() + stalls.trainer - 1.0).abs() < 1e-9);
            prop_assert!([stalls.fetch, stalls.prep, stalls.transport, stalls.trainer].iter().all(|share| *share >= 0.0));
        }
    }
}
