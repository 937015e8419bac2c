//! One dataset on the shelf: its cache, its pool, the jobs on it and the plan for its memory.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sutler_core::plan::{Observed, Split};
use sutler_core::{Fingerprint, FingerprintBuilder, Permutation, Policy, SHARED_MIXING};
use sutler_engine::{Job, Pool, RowSpec};
use sutler_store::Files;
use sutler_store::cache::{Backing, Cache, CacheOptions, Memory};

use super::planner::Planner;
use super::{ShelfOptions, new_pool};
use crate::spec::JobError;

/// How many samples are asked for their size: enough for a mean to a few percent, in a few milliseconds.
const ASKED: u32 = 256;

/// What a sample is taken to have where none tells its size: a photograph of half a megapixel.
const TYPICAL_ENCODED: u64 = 100_000;

/// What a finished sample takes where sizes differ: a picture of 512 by 512.
const TYPICAL_ROW: u64 = 512 * 512 * 3;

/// A dataset that jobs are on, or were on a moment ago.
pub(super) struct Shelved {
    /// Where it is listed.
    place: String,
    /// What its files looked like when it was put here.
    sizes: Sizes,
    pub samples: u32,
    /// An average sample as stored.
    encoded_bytes: u64,
    /// What all of it takes as stored: how much memory it could use, compared with other datasets.
    pub usable_bytes: u64,
    /// Its part of the agent's budget.
    pub share_bytes: u64,
    pub cache: Option<Arc<Cache>>,
    pool: Option<Arc<Pool>>,
    /// The jobs, by their clients.
    pub members: BTreeMap<u64, Member>,
    /// Since when there have been none.
    pub idle_since: Option<Instant>,
    planning: Planning,
    looked: Instant,
}

/// How the memory is split.
enum Planning {
    /// As the user says.
    Fixed(Split),
    /// Nobody has measured yet.
    Due,
    /// Somebody measures. Until it is done nothing is kept, as what is measured takes the memory.
    Measuring,
    Planned(Box<Planner>),
}

/// A job on a dataset.
#[derive(Default)]
pub(super) struct Member {
    job: Weak<Job>,
    /// What it makes of samples.
    finished: String,
    row_bytes: u64,
    shares: bool,
    /// Its figures when they were last looked at.
    seen: Observed,
}

impl Member {
    pub fn new(job: &Arc<Job>) -> Self {
        let row_bytes = match job.row() {
            RowSpec::Fixed { bytes } => (bytes + job.block_shape().beside) as u64,
            RowSpec::Varies => TYPICAL_ROW,
        };
        let (finished, shares) = (job.likeness().finished, job.pool().is_some());
        Self { job: Arc::downgrade(job), finished, row_bytes, shares, seen: Observed::default() }
    }

    /// What has happened since it was last looked at.
    fn news(&mut self) -> Observed {
        let Some(job) = self.job.upgrade() else { return Observed::default() };
        let snapshot = job.metrics().snapshot();
        let seconds = |names: &[&str]| -> f64 {
            let stages = snapshot.stages.iter().filter(|(name, _)| names.contains(name));
            stages.map(|(_, stage)| stage.mean * stage.count as f64).sum()
        };
        let now = Observed {
            storage: snapshot.served.storage,
            encoded: snapshot.served.encoded,
            decoded: snapshot.served.decoded,
            fetch_s: seconds(&["fetch"]),
            prepare_s: seconds(&["decode", "augment"]),
        };
        let seen = std::mem::replace(&mut self.seen, now);
        Observed {
            storage: now.storage.saturating_sub(seen.storage),
            encoded: now.encoded.saturating_sub(seen.encoded),
            decoded: now.decoded.saturating_sub(seen.decoded),
            fetch_s: (now.fetch_s - seen.fetch_s).max(0.0),
            prepare_s: (now.prepare_s - seen.prepare_s).max(0.0),
        }
    }
}

impl Shelved {
    pub fn new(place: String, sizes: Sizes, options: &ShelfOptions) -> Result<Self, JobError> {
        let Sizes { samples, mean_bytes: encoded_bytes, .. } = sizes;
        let (split, planning) = match options.kept_split() {
            Some(split) => (split, Planning::Fixed(split)),
            None => (Split::new(100, 0, 0), Planning::Due),
        };
        let memory = options.kept_bytes();
        let cache_options = CacheOptions {
            // What it may take of this changes with the other datasets; what it does not take costs nothing.
            budget_bytes: memory,
            samples: samples as usize,
            split: [split.encoded, split.decoded],
            policy: Policy::Pinned,
            seed: 0,
            backing: Backing::Private,
        };
        let cache = match memory {
            0 => None,
            _ if matches!(planning, Planning::Due) => Some(Arc::new(Cache::for_any_split(&cache_options)?)),
            _ => Some(Arc::new(Cache::new(&cache_options)?)),
        };
        if let Some(cache) = &cache {
            cache.set_budget(0);
        }
        Ok(Self {
            place,
            sizes,
            samples,
            encoded_bytes,
            usable_bytes: u64::from(samples).saturating_mul(Memory::footprint(encoded_bytes as usize)),
            share_bytes: 0,
            cache,
            pool: None,
            members: BTreeMap::new(),
            idle_since: None,
            planning,
            looked: Instant::now(),
        })
    }

    /// Whether its files were replaced while nobody used it. As long as somebody does, what was read once stands.
    pub fn is_stale(&self, sizes: &Sizes) -> bool {
        self.members.is_empty() && self.sizes != *sizes
    }

    /// Whether the caller is to measure the dataset; from now on it does.
    pub fn begin_planning(&mut self) -> bool {
        let due = self.cache.is_some() && matches!(self.planning, Planning::Due);
        if due {
            self.planning = Planning::Measuring;
        }
        due
    }

    pub fn set_planner(&mut self, planner: Planner) {
        self.planning = Planning::Planned(Box::new(planner));
        self.apply();
    }

    /// Gives it another part of the budget.
    pub fn set_share(&mut self, bytes: u64) {
        let changed = self.share_bytes != bytes;
        self.share_bytes = bytes;
        self.apply();
        if changed {
            self.replan(Some("its part of the memory has changed"));
        }
    }

    /// Has the cache do what was decided.
    fn apply(&self) {
        let Some(cache) = &self.cache else { return };
        let (split, bytes) = match &self.planning {
            Planning::Due | Planning::Measuring => return cache.set_budget(0),
            Planning::Fixed(split) => (*split, self.share_bytes),
            Planning::Planned(planner) => (planner.split(), self.share_bytes),
        };
        // First the split: it says what goes where the memory shrinks.
        let accepted = cache.set_split([split.encoded, split.decoded]);
        debug_assert!(accepted.is_ok(), "a split that adds up: {split}");
        cache.set_budget(bytes);
    }

    /// Plans anew where there is a planner. Without a reason the plan is only looked at again.
    pub fn replan(&mut self, reason: Option<&str>) {
        let sharing = self.members.values().filter(|member| member.shares).count();
        let (jobs, bytes) = (self.members.len(), self.share_bytes);
        if let Planning::Planned(planner) = &mut self.planning
            && planner.choose(reason, jobs, sharing > 1, bytes)
        {
            self.apply();
        }
    }

    /// Plans anew for the jobs that are here now. How many they are may be what was planned for: the first is there when the dataset is measured.
    pub fn replan_for_jobs(&mut self) {
        let changed = match &self.planning {
            Planning::Planned(planner) => planner.jobs() != self.members.len(),
            Planning::Fixed(_) | Planning::Due | Planning::Measuring => false,
        };
        self.replan(changed.then_some("the number of jobs has changed"));
    }

    pub fn is_due(&self, every: Duration) -> bool {
        matches!(self.planning, Planning::Planned(_)) && self.looked.elapsed() >= every
    }

    /// Compares the plan with what has happened since it was last looked at, unless samples came into the cache meanwhile: keeping
    /// them costs extra.
    pub fn compare(&mut self) {
        self.looked = Instant::now();
        let mut news = Observed::default();
        for member in self.members.values_mut() {
            let Observed { storage, encoded, decoded, fetch_s, prepare_s } = member.news();
            news.storage += storage;
            news.encoded += encoded;
            news.decoded += decoded;
            news.fetch_s += fetch_s;
            news.prepare_s += prepare_s;
        }
        let kept = self.cache.as_ref().map(|cache| cache.figures()).unwrap_or_default();
        let kept = kept.encoded.entries + kept.decoded.entries;
        if let Planning::Planned(planner) = &mut self.planning
            && planner.observe(&news, kept)
        {
            self.replan(Some("samples take longer or shorter than was measured"));
        }
    }

    /// The pool; how large its window is depends on who shares.
    pub fn pool(&mut self) -> Arc<Pool> {
        let samples = self.samples;
        Arc::clone(self.pool.get_or_insert_with(|| new_pool(samples, 0, SHARED_MIXING)))
    }

    /// Whether jobs share what is prepared.
    pub fn shares(&self) -> bool {
        self.members.values().any(|member| member.shares)
    }

    /// What a sample takes in the window: a finished one, and beside it, where transforms differ, what they have in common.
    pub fn window_each(&self) -> u64 {
        let sharing = || self.members.values().filter(|member| member.shares);
        let row_bytes = sharing().map(|member| member.row_bytes).max().unwrap_or(TYPICAL_ROW);
        let mut kinds: Vec<&str> = sharing().map(|member| member.finished.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.len() > 1 { row_bytes + self.encoded_bytes } else { row_bytes }
    }

    pub fn window_bytes(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.window_bytes())
    }

    /// Gives the window room for so many bytes.
    pub fn set_window(&self, bytes: u64) {
        if let Some(pool) = &self.pool {
            // A decoded picture may take the place of two: fewer then stand in the window, but decoding them again would cost more.
            pool.set_window(bytes, 2 * self.window_each());
        }
    }

    pub fn cache_figures(&self) -> Option<Value> {
        self.cache.as_ref().map(|cache| json!(cache.figures()))
    }

    pub fn pool_figures(&self) -> Option<Value> {
        self.pool.as_ref().map(|pool| {
            json!({
                "window_bytes": pool.window_used_bytes(),
                "window_bytes_max": pool.window_bytes(),
                "served": pool.stats(),
            })
        })
    }

    pub fn figures(&self) -> Value {
        let plan = match &self.planning {
            Planning::Fixed(split) => json!({ "split": split.to_string(), "by": "user" }),
            Planning::Due | Planning::Measuring => Value::Null,
            Planning::Planned(planner) => planner.figures(),
        };
        json!({
            "place": self.place,
            "samples": self.samples,
            "jobs": self.members.len(),
            "idle_seconds": self.idle_since.map(|since| since.elapsed().as_secs_f64()),
            "budget_bytes": self.share_bytes,
            "cache": self.cache_figures(),
            "window": self.pool_figures(),
            "plan": plan,
        })
    }
}

/// How large some samples from all over a dataset are, and when they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    samples: u32,
    mean_bytes: u64,
    /// Sums up sizes and times: another one means other files.
    stamp: Fingerprint,
}

impl Sizes {
    pub fn of(files: &Files) -> Self {
        // An id is 32 bits, which a listing has checked.
        let samples = u32::try_from(files.listing().len()).unwrap_or(u32::MAX);
        let order = Permutation::shuffled(samples, 0, 0);
        let mut stamp = FingerprintBuilder::default();
        let (mut all_bytes, mut told) = (0, 0);
        for position in 0..samples.min(ASKED) {
            let path = files.listing().path(order.sample_at(position));
            // One that cannot be looked at is for whoever reads it to report.
            let Ok(file) = std::fs::metadata(path) else { continue };
            stamp.add(file.len().to_le_bytes());
            stamp.add(file.mtime().to_le_bytes()).add(file.mtime_nsec().to_le_bytes());
            all_bytes += file.len();
            told += 1;
        }
        let mean_bytes = u64::checked_div(all_bytes, told).unwrap_or(TYPICAL_ENCODED);
        Self { samples, mean_bytes, stamp: stamp.finish() }
    }
}
