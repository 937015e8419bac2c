//! The plan for the memory of one dataset: measured once, looked at again when jobs come or go, memory changes, or rates do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sutler_core::plan::{Observed, Prediction, Profile, Resource, Split};
use sutler_engine::{ProfileRequest, measure_profile};
use sutler_store::{Files, Io};

use crate::spec::JobSpec;

/// How long the measurement may take, roughly; the first job of a dataset waits for it.
const MEASURE: Duration = Duration::from_secs(1);

/// How many events are remembered.
const EVENTS: usize = 32;

/// Finds the split for the cache of one dataset.
pub(super) struct Planner {
    /// What was measured, as observation has corrected it; or why it was not.
    profile: Result<Profile, String>,
    chosen: Option<Prediction>,
    /// How many jobs it was chosen for.
    jobs: usize,
    events: VecDeque<Value>,
    changes: u64,
    /// How many samples were kept when it was last looked at.
    kept: Option<u64>,
}

impl Planner {
    /// Measures what this machine can do with a dataset and what its first job does to it.
    pub fn measure(
        spec: &JobSpec,
        files: &Arc<Files>,
        threads: usize,
        budget_bytes: u64,
        jobs: usize,
    ) -> Self {
        let listing = Arc::clone(files.listing());
        let direct = Files::new(listing, Io::Direct, spec.dataset.bytes_max);
        let profile = spec
            .preparation(Arc::clone(files) as _, None)
            .map_err(|error| error.to_string())
            .and_then(|preparation| {
                let request = ProfileRequest {
                    preparation: &preparation,
                    storage: &direct,
                    copies_bytes_max: budget_bytes,
                    threads,
                    jobs: u32::try_from(jobs).unwrap_or(u32::MAX),
                    device_samples_per_s: None,
                    time: MEASURE,
                };
                measure_profile(&request).map(|measured| measured.profile).map_err(|error| error.to_string())
            });
        let mut planner =
            Self { profile, chosen: None, jobs, events: VecDeque::new(), changes: 0, kept: None };
        planner.choose(Some("the dataset was measured"), jobs, false, budget_bytes);
        planner
    }

    /// The split in force: until something is known, all of it is for encoded samples, which saves the most reads.
    pub fn split(&self) -> Split {
        self.chosen.map_or(Split::new(100, 0, 0), |chosen| chosen.split)
    }

    /// How many jobs it plans for.
    pub fn jobs(&self) -> usize {
        self.jobs
    }

    /// Plans for so many jobs and so much memory, and writes down why. True when the split has changed.
    pub fn choose(&mut self, reason: Option<&str>, jobs: usize, window: bool, budget_bytes: u64) -> bool {
        self.jobs = jobs;
        let Ok(profile) = &mut self.profile else { return false };
        profile.jobs = u32::try_from(jobs.max(1)).unwrap_or(u32::MAX);
        profile.window = window;
        let in_force = self.chosen.map(|chosen| chosen.split);
        let chosen = match profile.choose(budget_bytes as f64, in_force) {
            Ok(chosen) => chosen,
            Err(error) => {
                self.profile = Err(error.to_string());
                return false;
            }
        };
        self.chosen = Some(chosen);
        let changed = in_force.is_some_and(|before| before != chosen.split);
        self.changes += u64::from(changed);
        if let Some(reason) = reason {
            if self.events.len() == EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(json!({
                "at": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
                "reason": reason,
                "jobs": jobs,
                "budget_bytes": budget_bytes,
                "from": in_force.map(|split| split.to_string()),
                "to": chosen.split.to_string(),
            }));
        }
        changed || in_force.is_none()
    }

    /// Compares what was observed with what was measured, where as many samples are `kept` as when it was last looked at. True when the two
    /// differ: it is time to plan anew.
    pub fn observe(&mut self, observed: &Observed, kept: u64) -> bool {
        let settled = self.kept.replace(kept) == Some(kept);
        let Ok(profile) = &mut self.profile else { return false };
        let corrected = if settled { profile.corrected(observed) } else { None };
        if let Some(corrected) = corrected {
            *profile = corrected;
        }
        corrected.is_some()
    }

    pub fn figures(&self) -> Value {
        json!({
            "split": self.split().to_string(),
            "by": "planner",
            "predicted": self.chosen.map(|chosen| chosen.samples_per_s),
            "bound_by": self.chosen.and_then(|chosen| chosen.binds).map(Resource::name),
            "problem": self.profile.as_ref().err(),
            "changes": self.changes,
            "events": self.events,
        })
    }
}
