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
    /// Samples were where they really are.
    pub fetched: f64,
    /// What the loader took without the step, where both work at the same time; `None` where they take turns.
    pub alone: Option<LoaderAlone>,
}

/// Seconds that a sample took a loader whose batches nobody trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoaderAlone {
    /// Samples were in memory.
    pub prepared: f64,
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
    /// batch takes beyond the slower of the two. So what it takes while samples are in memory is no preparation; and where storage then keeps
    /// the trainer waiting, handing over happens meanwhile, and all of the wait is for bytes.
    ///
    /// Measurements scatter, so one that should have taken longer may have taken a little less. It then counts as having taken as long: a
    /// share is never negative, and they always add up.
    #[must_use]
    pub fn between(times: &EpochTimes) -> Stalls {
        let step = times.step.max(0.0);
        let prepared = times.prepared.max(step);
        let fetched = times.fetched.max(prepared);
        if fetched <= 0.0 {
            return Stalls { fetch: 0.0, prep: 0.0, transport: 0.0, trainer: 1.0 };
        }
        let (beyond_prepared, beyond_fetched) = times.alone.map_or((f64::INFINITY, f64::INFINITY), |alone| {
            ((prepared - alone.prepared.max(step)).max(0.0), (fetched - alone.fetched.max(step)).max(0.0))
        });
        let handed_over = (times.handed.clamp(step, prepared) - step).min(beyond_prepared);
        let transport = handed_over.min(beyond_fetched);
        let prep = prepared - step - handed_over;
        Stalls {
            fetch: (fetched - step - prep - transport).max(0.0) / fetched,
            prep: prep / fetched,
            transport: transport / fetched,
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
        let times = EpochTimes { step: 2.0, handed: 3.0, prepared: 6.0, fetched: 10.0, alone: None };
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
        let times = |prepared, fetched, alone: (f64, f64)| EpochTimes {
            step: 2.0,
            handed: 2.5,
            prepared,
            fetched,
            alone: Some(LoaderAlone { prepared: alone.0, fetched: alone.1 }),
        };
        assert_eq!(Stalls::between(&times(6.0, 6.0, (6.0, 6.0))).transport, 0.0);
        let quick_loader = Stalls::between(&times(2.5, 2.5, (0.5, 0.5)));
        assert!((quick_loader.transport - 0.2).abs() < 1e-12);
        // All that the trainer waits for is storage, and neither what is handed over meanwhile nor preparation.
        let slow_storage = Stalls::between(&times(2.5, 8.0, (0.5, 8.0)));
        assert_eq!((slow_storage.fetch, slow_storage.prep, slow_storage.transport), (0.75, 0.0, 0.0));
    }

    proptest! {
        #[test]
        fn shares_add_up_whatever_was_measured(times in prop::array::uniform4(0.0..10.0f64), alone in prop::option::of((0.0..10.0f64, 0.0..10.0f64))) {
            let [step, handed, prepared, fetched] = times;
            let alone = alone.map(|(prepared, fetched)| LoaderAlone { prepared, fetched });
            let stalls = Stalls::between(&EpochTimes { step, handed, prepared, fetched, alone });
            prop_assert!((stalls.waiting() + stalls.trainer - 1.0).abs() < 1e-9);
            prop_assert!([stalls.fetch, stalls.prep, stalls.transport, stalls.trainer].iter().all(|share| *share >= 0.0), "{stalls:?}");
        }
    }
}
