//! Which positions of an epoch are done, where they are not served in order.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sutler_core::{EpochPlan, JobCursor, Ledger, SavedLedger, done_by_ranks, places_of};

use crate::permutation;

/// Some positions of an epoch.
#[pyclass(frozen)]
pub struct Positions(pub Vec<u32>);

#[pymethods]
impl Positions {
    #[new]
    fn new(positions: Vec<u32>) -> Self {
        Self(positions)
    }
}

/// The positions of an epoch that are in the trainer's hands.
#[pyclass(frozen)]
pub struct Served {
    ledger: Mutex<Ledger>,
}

impl Served {
    /// The book itself, as it is now.
    pub fn copy(&self) -> Ledger {
        self.ledger().clone()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Served {
    /// None of them, or those of a saved state.
    #[new]
    #[pyo3(signature = (saved=None))]
    fn new(saved: Option<&str>) -> PyResult<Self> {
        let damaged = |reason: String| {
            PyValueError::new_err(format!("the state is damaged: its served positions {reason}"))
        };
        let ledger = match saved {
            None => Ledger::new(0),
            Some(text) => {
                let saved: SavedLedger = serde_json::from_str(text)
                    .map_err(|error| damaged(format!("are not what was saved ({error})")))?;
                Ledger::load(&saved).map_err(|error| damaged(format!("make no sense ({error})")))?
            }
        };
        Ok(Self { ledger: Mutex::new(ledger) })
    }

    /// The places of an epoch's sequence that a whole job has done: those `before`, when the rest was last dealt out, and
    /// those of its ranks since. Their books are by position, or `by_sample`.
    #[staticmethod]
    #[pyo3(signature = (ranks, *, samples, shuffle, seed, epoch, consumed, by_sample, before=None))]
    #[allow(clippy::too_many_arguments)] // one call per resumed job, by keyword
    fn by_ranks(
        ranks: Vec<PyRef<'_, Served>>,
        samples: u32,
        shuffle: bool,
        seed: u64,
        epoch: u32,
        consumed: u64,
        by_sample: bool,
        before: Option<&Served>,
    ) -> PyResult<Self> {
        let order = permutation(samples, shuffle, seed, epoch);
        let before = before.map(Served::copy);
        let ranks: Vec<Ledger> = ranks.iter().map(|rank| rank.copy()).collect();
        let whole = if by_sample {
            let books: Vec<SavedLedger> = before
                .into_iter()
                .chain(ranks.iter().map(|samples| places_of(&order, samples)))
                .map(|book| book.save())
                .collect();
            Ledger::union(&books)
        } else {
            done_by_ranks(&order, JobCursor { epoch, consumed }, before.as_ref(), &ranks)
        };
        let ledger = whole.map_err(|error| {
            PyValueError::new_err(format!(
                "the states are damaged: their served positions make no sense ({error})"
            ))
        })?;
        Ok(Self { ledger: Mutex::new(ledger) })
    }

    /// The state, as JSON.
    fn save(&self) -> PyResult<String> {
        let saved = self.ledger().save();
        serde_json::to_string(&saved).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// These are done, too.
    fn mark(&self, positions: &Positions) -> PyResult<()> {
        let mut ledger = self.ledger();
        for &position in &positions.0 {
            if position >= ledger.len() {
                ledger.extend(position + 1);
            }
            let marked = ledger.lease(position).and_then(|()| ledger.serve(position));
            marked.map_err(|error| PyValueError::new_err(format!("{error}; please report this")))?;
        }
        Ok(())
    }

    /// Whether a position is done.
    fn is_done(&self, position: u32) -> bool {
        self.ledger().is_done(position)
    }

    /// How many are done.
    fn __len__(&self) -> usize {
        self.ledger().served() as usize
    }
}

/// The plan without what is done, if anything is.
pub fn without(plan: EpochPlan, done: Option<&Served>) -> EpochPlan {
    match done {
        Some(done) if done.ledger().served() > 0 => plan.without(done.ledger().clone()),
        _ => plan,
    }
}
