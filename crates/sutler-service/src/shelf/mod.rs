//! What the jobs of an agent share: for each dataset one cache, and one pool of samples on their way to several jobs.
//!
//! Jobs share both when they have the same dataset, whatever they do to it; what of a sample serves which of them is a matter of
//! the forms. One budget is divided over the datasets that are in use ([`sutler_core::divide`]). A dataset whose last job has left stays for a while, since the next job of a
//! hyper-parameter search comes when the last one has gone, and then gives back what it had.

mod budget;
mod dataset;
mod planner;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sutler_core::plan::Split;
use sutler_core::{Fingerprint, Form, JobKey, SharedSettings, divide};
use sutler_engine::{Job, Pool};
use sutler_store::Files;
use sutler_store::cache::Cache;

use self::dataset::{Member, Shelved, Sizes};
use self::planner::Planner;
use crate::spec::{DatasetSpec, JobError, JobSpec, ListingSpec, MediaSpec};

/// How much an agent keeps, and in which forms.
#[derive(Clone, Copy, Debug)]
pub struct ShelfOptions {
    /// The bytes for the samples of all datasets together; 0 for none.
    pub memory: u64,
    /// How they are shared out: encoded, decoded, and augmented, which are the windows.
    pub split: SplitChoice,
    /// The window of prepared samples as a share of each dataset's samples, where the split has none for it.
    pub window: f64,
    /// How long a dataset is kept whose last job has left.
    pub linger: Duration,
    /// How often a plan is compared with what happens.
    pub look_every: Duration,
}

impl Default for ShelfOptions {
    fn default() -> Self {
        Self {
            memory: 0,
            split: SplitChoice::Fixed(Split::new(100, 0, 0)),
            window: 0.02,
            linger: Duration::from_secs(300),
            look_every: Duration::from_secs(10),
        }
    }
}

/// Who decides how memory is shared out over the forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitChoice {
    /// The user has.
    Fixed(Split),
    /// The planner does, for each dataset, from what it measures.
    Auto,
}

/// What makes the samples of two jobs come from the same files under the same limits. A fingerprint alone is not enough: it names files
/// by their paths inside the dataset, which two folders may have in common.
#[derive(Clone, PartialEq)]
struct Key {
    listing: ListingSpec,
    fingerprint: Fingerprint,
    media: MediaSpec,
    bytes_max: u64,
}

impl Key {
    fn of(spec: &JobSpec) -> Self {
        let DatasetSpec { listing, media, bytes_max, .. } = spec.dataset.clone();
        Self { listing, fingerprint: spec.fingerprint, media, bytes_max }
    }
}

/// Everything that is shared.
pub struct Shelf {
    options: ShelfOptions,
    /// How many threads prepare.
    threads: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Few, so that looking through them is quick.
    datasets: Vec<(Key, Shelved)>,
    /// Which dataset each client's job is on.
    clients: HashMap<u64, Key>,
}

impl Shelf {
    pub fn new(options: ShelfOptions, threads: usize) -> Self {
        Self { options, threads, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client opens a job on a dataset: from now on that has its share of the memory. Returns the cache for the job's samples.
    ///
    /// # Errors
    /// When there is no memory for a cache.
    pub fn board(
        &self,
        client: u64,
        spec: &JobSpec,
        files: &Arc<Files>,
    ) -> Result<Option<Arc<Cache>>, JobError> {
        let key = Key::of(spec);
        let sizes = Sizes::of(files);
        let mut state = self.state();
        if state.get(&key).is_some_and(|known| known.is_stale(&sizes)) {
            state.datasets.retain(|(known, _)| *known != key);
        }
        if state.get(&key).is_none() {
            let place = spec.dataset.place().display().to_string();
            let shelved = Shelved::new(place, sizes, &self.options)?;
            state.datasets.push((key.clone(), shelved));
        }
        state.clients.insert(client, key.clone());
        let Some(shelved) = state.get(&key) else { return Ok(None) };
        shelved.members.insert(client, Member::default());
        shelved.idle_since = None;
        let cache = shelved.cache.clone();
        let measures = self.options.split == SplitChoice::Auto && shelved.begin_planning();
        state.divide(self.options.kept_bytes());
        drop(state);
        if measures {
            self.plan(&key, spec, files);
        }
        Ok(cache)
    }

    /// Measures a dataset with what its first job does to it, and splits its memory for the first time.
    fn plan(&self, key: &Key, spec: &JobSpec, files: &Arc<Files>) {
        let (budget_bytes, jobs) = match self.state().get(key) {
            Some(shelved) => (shelved.share_bytes, shelved.members.len()),
            None => return,
        };
        // Others may come and go meanwhile, so this is done without the lock.
        let planner = Planner::measure(spec, files, self.threads, budget_bytes, jobs);
        let mut state = self.state();
        if let Some(shelved) = state.get(key) {
            shelved.set_planner(planner);
        }
        state.divide(self.options.kept_bytes());
    }

    /// A client's job is made: it takes part in what is planned, and gets its pool and its name there if it wants one.
    pub fn seat(&self, client: u64, spec: &JobSpec, job: Arc<Job>) -> Arc<Job> {
        let mut state = self.state();
        let Some(shelved) = state.get(&Key::of(spec)) else { return job };
        let job = if spec.shared {
            let pool = shelved.pool();
            let name = match &spec.name {
                Some(name) => JobKey(hash_of(name) >> 1),
                None => pool.new_job(),
            };
            job.sharing(pool, name)
        } else {
            job
        };
        shelved.members.insert(client, Member::new(&job));
        shelved.replan_for_jobs();
        state.resize_windows(&self.options);
        job
    }

    /// A client's job has ended, or was never begun.
    pub fn leave(&self, client: u64) {
        let mut state = self.state();
        let Some(key) = state.clients.remove(&client) else { return };
        if let Some(shelved) = state.get(&key) {
            shelved.members.remove(&client);
            if shelved.members.is_empty() {
                shelved.idle_since = Some(Instant::now());
            } else {
                shelved.replan_for_jobs();
            }
        }
        state.resize_windows(&self.options);
        drop(state);
        self.look();
    }

    /// Lets go of datasets that nobody has used for long, and compares plans with what has happened.
    pub fn look(&self) {
        let mut state = self.state();
        let before = state.datasets.len();
        let linger = self.options.linger;
        state.datasets.retain(|(_, shelved)| shelved.idle_since.is_none_or(|since| since.elapsed() < linger));
        for (_, shelved) in &mut state.datasets {
            if shelved.is_due(self.options.look_every) {
                shelved.compare();
            }
        }
        if state.datasets.len() != before {
            state.divide(self.options.kept_bytes());
            state.resize_windows(&self.options);
        }
    }

    /// What is shared, in figures.
    pub fn figures(&self) -> Value {
        let state = self.state();
        let datasets = state.datasets.iter().map(|(_, shelved)| shelved);
        json!({
            "memory": self.options.memory,
            "split": self.options.split.to_string(),
            "window_bytes_max": datasets.clone().map(Shelved::window_bytes).sum::<u64>(),
            "caches": datasets.clone().filter_map(Shelved::cache_figures).collect::<Vec<_>>(),
            "pools": datasets.clone().filter_map(Shelved::pool_figures).collect::<Vec<_>>(),
            "datasets": datasets.map(Shelved::figures).collect::<Vec<_>>(),
        })
    }
}

impl State {
    fn get(&mut self, key: &Key) -> Option<&mut Shelved> {
        self.datasets.iter_mut().find(|(known, _)| known == key).map(|(_, shelved)| shelved)
    }

    /// Gives each dataset its part of the budget.
    fn divide(&mut self, memory: u64) {
        let usable: Vec<u64> = self.datasets.iter().map(|(_, shelved)| shelved.usable_bytes).collect();
        let shares = divide(memory, &usable);
        // Those that shrink first, so that at no time all together have more than there is.
        let datasets = self.datasets.iter_mut().map(|(_, shelved)| shelved);
        let mut changes: Vec<(&mut Shelved, u64)> = datasets.zip(shares).collect();
        changes.sort_by_key(|(shelved, share)| *share > shelved.share_bytes);
        for (shelved, share) in changes {
            shelved.set_share(share);
        }
    }

    /// Gives each window the room it should have.
    fn resize_windows(&mut self, options: &ShelfOptions) {
        let datasets = || self.datasets.iter().map(|(_, shelved)| shelved);
        let Some(memory) = options.windows_bytes() else {
            for shelved in datasets() {
                // Where nobody shares, nothing waits for anybody.
                let samples = if shelved.shares() { options.window_samples(shelved.samples) } else { 0.0 };
                shelved.set_window((samples * shelved.window_each() as f64) as u64);
            }
            return;
        };
        // No window takes more than all samples of its dataset.
        let usable: Vec<u64> = datasets()
            .map(|shelved| {
                if shelved.shares() {
                    u64::from(shelved.samples).saturating_mul(shelved.window_each())
                } else {
                    0
                }
            })
            .collect();
        let mut changes: Vec<(&Shelved, u64)> = datasets().zip(divide(memory, &usable)).collect();
        changes.sort_by_key(|(shelved, bytes)| *bytes > shelved.window_bytes());
        for (shelved, bytes) in changes {
            shelved.set_window(bytes);
        }
    }
}

impl std::fmt::Display for SplitChoice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(split) => split.fmt(formatter),
            Self::Auto => formatter.write_str("auto"),
        }
    }
}

/// A pool for the jobs of one process.
#[must_use]
pub fn pool_here(samples: u32, window_bytes: u64) -> Arc<Pool> {
    new_pool(samples, window_bytes, 0.0)
}

fn new_pool(samples: u32, window_bytes: u64, mixing: f64) -> Arc<Pool> {
    Pool::new(SharedSettings {
        samples,
        // Another one in every life of the agent, so that no job gets a tensor again that it had from an earlier one.
        seed: RandomState::new().hash_one(std::process::id()), // seeded from the system's randomness
        window_bytes,
        window_form: Form::Augmented,
        mixing,
    })
}

fn hash_of(text: &str) -> u64 {
    // The same in every life of the agent, so that a job that comes back is known.
    std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default().hash_one(text)
}
