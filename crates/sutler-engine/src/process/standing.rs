//! Samples that a worker process lets stand between two transforms.
//!
//! They are the process's: it keeps what was made of them in a thread that waits, and the engine keeps a token. Whoever lets go of the
//! token, because the epoch was called off, has the worker told to let go of the sample.

use std::sync::{Arc, Mutex, PoisonError};

/// The tokens that nobody will come back for, each with the birth of the link to its worker.
#[derive(Default)]
pub struct Forgotten(Mutex<Vec<(u64, u64)>>);

impl Forgotten {
    fn add(&self, birth: u64, token: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((birth, token));
    }

    /// Takes out the tokens of a worker, by the birth of the link to it. Those of older links mean nothing to anybody.
    pub fn take(&self, birth: u64) -> Vec<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() {
            return Vec::new();
        }
        let (ours, others) = std::mem::take(&mut *all).into_iter().partition(|(other, _)| *other == birth);
        *all = others;
        let ours: Vec<(u64, u64)> = ours;
        ours.into_iter().map(|(_, token)| token).collect()
    }
}

/// A sample that a worker lets stand.
pub struct Standing {
    birth: u64,
    token: Option<u64>,
    forgotten: Arc<Forgotten>,
}

impl Standing {
    pub fn new(birth: u64, token: u64, forgotten: &Arc<Forgotten>) -> Self {
        Self { birth, token: Some(token), forgotten: Arc::clone(forgotten) }
    }

    /// Whether it stands with the worker at the end of this link.
    pub fn is_with(&self, birth: u64) -> bool {
        self.birth == birth
    }

    /// The token, for whoever has the worker go on.
    pub fn take(mut self) -> u64 {
        self.token.take().unwrap_or(u64::MAX)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.forgotten.add(self.birth, token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_go_of_is_told_to_its_worker_once() {
        let forgotten = Arc::new(Forgotten::default());
        drop(Standing::new(1, 10, &forgotten));
        drop(Standing::new(2, 20, &forgotten));
        assert_eq!(Standing::new(1, 11, &forgotten).take(), 11);
        assert_eq!(forgotten.take(1), [10]);
        assert_eq!(forgotten.take(1), [] as [u64; 0]);
        assert_eq!(forgotten.take(2), [20]);
    }
}
