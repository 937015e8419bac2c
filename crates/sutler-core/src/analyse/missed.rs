//! What predictions that were tried were off by, and what that makes of those that were not.
//!
//! An interval tells what measurements leave open, and how far the model is off for what was measured. It cannot tell what the model has
//! never heard of: processors that slow down when all are at work, a disk with a memory of its own. A run of a predicted configuration
//! can. What it was off by is at least what its neighbours, which nobody ran, may be off by, so they say so.

use serde::{Deserialize, Serialize};

use super::{Change, Facts, FactsError, Outlook};

/// By which part predictions that were tried were off at the most; 0 where none was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Missed {
    /// The configuration as it is, run once more: what the machine itself has changed meanwhile, which concerns every answer.
    pub again: f64,
    /// Other caches.
    pub cache: f64,
    /// Other numbers of workers.
    pub cores: f64,
    /// Faster or slower storage.
    pub storage: f64,
}

impl Missed {
    /// What an answer about such a change may be off by: as much as the worst that was tried on any axis that it moves on.
    fn by(&self, change: &Change) -> f64 {
        let axes = [
            (self.cache, change.cache_bytes.is_some()),
            (self.cores, change.cores.is_some() || change.workers.is_some()),
            (self.storage, change.storage_bytes_per_s.is_some()),
        ];
        axes.into_iter().filter(|(_, moved)| *moved).fold(self.again, |most, (by, _)| most.max(by))
    }
}

impl Facts {
    /// What is [predicted](Facts::predict), known no better than predictions that were tried turned out to be.
    ///
    /// # Errors
    /// When the facts or the change are none.
    pub fn outlook(&self, change: &Change) -> Result<Outlook, FactsError> {
        let predicted = self.predict(change)?;
        let samples_per_s = predicted.samples_per_s.known_no_better_than(self.missed.by(change));
        Ok(Outlook { samples_per_s, ..predicted })
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::facts;
    use super::*;

    const MORE_CACHE: Change = Change {
        cache_bytes: Some(5e8),
        cores: None,
        workers: None,
        storage_bytes_per_s: None,
        prepare: None,
        remote: None,
        jobs: None,
    };

    fn error(missed: Missed, change: &Change) -> f64 {
        let facts = Facts { missed, ..facts() };
        let (before, after) = (facts.predict(change).unwrap(), facts.outlook(change).unwrap());
        assert_eq!(after.samples_per_s.value, before.samples_per_s.value);
        after.samples_per_s.error()
    }

    #[test]
    fn what_was_missed_on_an_axis_is_what_the_axis_is_known_to() {
        let missed = Missed { cache: 0.3, cores: 0.4, ..Missed::default() };
        assert!((error(missed, &MORE_CACHE) - 0.3).abs() < 1e-9);
        let both = Change { workers: Some(4), ..MORE_CACHE };
        assert!((error(missed, &both) - 0.4).abs() < 1e-9);
        let neither = Change { storage_bytes_per_s: Some(2e7), ..Change::default() };
        assert_eq!(error(missed, &neither), error(Missed::default(), &neither));
    }

    #[test]
    fn what_was_met_closely_makes_nothing_better_known() {
        let met = Missed { cache: 1e-4, ..Missed::default() };
        assert_eq!(error(met, &MORE_CACHE), error(Missed::default(), &MORE_CACHE));
    }

    #[test]
    fn a_machine_that_has_become_another_concerns_every_answer() {
        let slower = Missed { again: 0.25, ..Missed::default() };
        for change in [MORE_CACHE, Change { jobs: Some(2), ..Change::default() }, Change::default()] {
            assert!((error(slower, &change) - 0.25).abs() < 1e-9, "{change:?}");
        }
    }

    #[test]
    fn the_recommendation_says_it_too() {
        let facts = Facts { missed: Missed { cache: 0.33, ..Missed::default() }, ..facts() };
        let advice = facts.advise(super::super::Setting::Native).unwrap();
        assert!(advice.text.contains("± 33 %"), "{}", advice.text);
    }
}
