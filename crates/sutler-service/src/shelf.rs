//! What the jobs of an agent share: the cache of a dataset, and the pool of prepared samples.
//!
//! Two jobs share both when they have the same dataset and do the same to it; their seeds, batch sizes and ranks may
//! differ. Both are kept as long as the agent runs, since the next job of a hyper-parameter search comes when the last one
//! has left.

use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use sutler_core::{Fingerprint, Form, JobKey, Policy, SHARED_MIXING, SharedSettings};
use sutler_engine::{Job, Pool, RowSpec};
use sutler_store::cache::{Backing, Cache, CacheOptions};

use crate::budget::ShelfOptions;
use crate::spec::{JobError, JobSpec};

/// What makes the samples of two jobs the same.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Kind {
    fingerprint: Fingerprint,
    operations: String,
    dct_scaling: bool,
    channels_last: bool,
}

impl Kind {
    fn of(spec: &JobSpec) -> Self {
        Self {
            fingerprint: spec.fingerprint,
            operations: spec.operations.clone(),
            dct_scaling: spec.dct_scaling,
            channels_last: spec.channels_last,
        }
    }
}

/// Everything that is shared.
pub struct Shelf {
    options: ShelfOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What caches have taken of the budget.
    taken: u64,
    /// What windows have taken of the budget.
    window_taken: u64,
    caches: HashMap<Kind, Arc<Cache>>,
    pools: HashMap<Kind, Arc<Pool>>,
}

impl Shelf {
    pub fn new(options: ShelfOptions) -> Self {
        Self { options, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cache for a job's samples. The first dataset may take the whole budget, but no more than it can use; others get
    /// what is left.
    pub fn cache(&self, spec: &JobSpec, samples: u32) -> Result<Option<Arc<Cache>>, JobError> {
        let mut state = self.state();
        let kind = Kind::of(spec);
        if let Some(cache) = state.caches.get(&kind) {
            return Ok(Some(Arc::clone(cache)));
        }
        let (budget, split) = self.options.kept();
        let left = budget.saturating_sub(state.taken);
        if left < SMALLEST_CACHE {
            return Ok(None);
        }
        let cache = Arc::new(Cache::new(&CacheOptions {
            budget_bytes: left,
            samples: samples as usize,
            split,
            policy: Policy::Pinned,
            seed: 0,
            backing: Backing::Private,
        })?);
        state.taken += left;
        state.caches.insert(kind, Arc::clone(&cache));
        Ok(Some(cache))
    }

    /// The pool that a job shares in, and its name there.
    pub fn pool(&self, spec: &JobSpec, samples: u32, job: &Job) -> (Arc<Pool>, JobKey) {
        let mut state = self.state();
        let row_bytes = match job.row() {
            RowSpec::Fixed { bytes } => bytes as u64,
            RowSpec::Varies => TYPICAL_ROW,
        };
        let State { pools, window_taken, .. } = &mut *state;
        let pool = pools.entry(Kind::of(spec)).or_insert_with(|| {
            let window_bytes = self.options.window_bytes(samples, row_bytes, *window_taken);
            *window_taken += window_bytes;
            Pool::new(SharedSettings {
                samples,
                // Another one in every life of the agent, so that no job gets a tensor again that it had from an earlier one.
                seed: fresh_seed(),
                window_bytes,
                window_form: Form::Augmented,
                mixing: SHARED_MIXING,
            })
        });
        let name = match &spec.name {
            Some(name) => JobKey(hash_of(name) >> 1),
            None => pool.new_job(),
        };
        (Arc::clone(pool), name)
    }

    /// What is shared, in figures.
    pub fn figures(&self) -> Value {
        let state = self.state();
        let caches: Vec<Value> = state.caches.values().map(|cache| json!(cache.figures())).collect();
        let pools: Vec<Value> = state
            .pools
            .values()
            .map(|pool| json!({ "window_bytes": pool.window_used_bytes(), "served": pool.stats() }))
            .collect();
        let (memory, split) = (self.options.memory, self.options.split.to_string());
        json!({
            "memory": memory,
            "split": split,
            "window_bytes_max": state.window_taken,
            "caches": caches,
            "pools": pools,
        })
    }
}

/// A pool for the jobs of one process. A job that has no other to share with needs no window.
#[must_use]
pub fn pool_here(samples: u32, window_bytes: u64) -> Arc<Pool> {
    Pool::new(SharedSettings {
        samples,
        seed: fresh_seed(),
        window_bytes,
        window_form: Form::Augmented,
        mixing: 0.0,
    })
}

/// Less than this is not worth a cache: its tables alone take a part of it.
const SMALLEST_CACHE: u64 = 1 << 20;

/// What a sample takes where sizes differ: a picture of 512 by 512.
const TYPICAL_ROW: u64 = 512 * 512 * 3;

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn fresh_seed() -> u64 {
    // The standard library's hasher is seeded from the system's randomness.
    RandomState::new().hash_one(std::process::id())
}
