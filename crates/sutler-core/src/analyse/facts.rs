//! What was measured of a loader and a trainer, and what follows for other circumstances.

use serde::{Deserialize, Serialize};

use super::confidence::FACTOR_MAX;
use super::{Known, Missed, Stalls};
use crate::plan::{Prediction, Profile, Resource, Split};

/// How batches happen to fall, which decides what waits for what. A prediction is known between the best and the worst of it.
#[derive(Clone, Copy)]
struct Luck {
    /// How abruptly the slower of loader and trainer takes over. Between them are a few batches, and those take different times to make:
    /// where both are about as fast, each waits for the other now and then.
    take_over: f64,
    /// How many times as long as samples at random places would have it storage idles, since none of those in the making is missing in
    /// the cache.
    idle: f64,
    /// How soon workers miss what all of them miss together, as the power of their part: in proportion, already a few of them, or only all.
    crowd: f64,
}

impl Luck {
    /// Of two equal ones a ninth is lost (2^(1/6) = 1.12), as photographs through two batches showed; of two that differ by a factor of two, a
    /// quarter of a percent.
    const USUAL: Self = Self { take_over: 6.0, idle: 1.0, crowd: 1.0 };

    /// Very uneven batches, as those of which a cache has most and a few large samples are missing: of two equal ones a fifth is lost, and
    /// missing samples come close together. A few workers get into each other's way as all of them do.
    const BAD: Self = Self { take_over: 3.0, idle: 2.0, crowd: 0.0 };

    /// Batches that are all alike: nothing is lost, the slower one sets the pace, and each has a missing sample for storage.
    const GOOD: Self = Self { take_over: f64::INFINITY, idle: 0.0, crowd: f64::INFINITY };
}

/// A loader that reaches this part of what it prepares from memory is not held up by storage, as far as can be told.
const NO_LIMIT: f64 = 0.97;

/// Storage that is asked for something now and then is not idle for more than this part of the time.
const IDLE_MAX: f64 = 0.9;

/// Below this part of the time, waiting is not worth anybody's while: MLPerf Storage lets accelerators idle twice as long.
const WAITING_MIN: f64 = 0.05;

/// Below this part, the trainer binds if the model has it so, whatever it waits for: MLPerf Storage lets most accelerators idle so long.
const WAITING_SOME: f64 = 0.1;

/// How much less than foreseen twice as many workers may prepare: what they need of one another was not measured.
const DOUBLING: f64 = 0.05;

/// What luck must make a difference of for it to be known by what came out.
const LUCK_MIN: f64 = 0.02;

/// How many times as fast as the trainer a loader must be for waits to be nobody's fault.
const FAR_AHEAD: f64 = 2.0;

/// Of what the trainer takes, what it gets when a loader is as fast; from there on it cannot be told how much faster the loader is.
const DEVICE_FELT: f64 = 0.89;

/// How many times as slow as it was by itself something may turn out to be.
const FIT_MAX: f64 = 16.0;

/// More than any of them reaches, where something is no limit.
const UNLIMITED: f64 = 1e12;

/// Rates of one loader and one trainer, in samples per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// How many samples the dataset has.
    pub samples: u32,
    /// Of an average sample as stored.
    pub sample_bytes: f64,
    /// What it takes in the cache.
    pub kept_bytes: f64,
    /// The cache's budget; 0 without one.
    pub cache_bytes: f64,
    /// Threads or processes that prepare; 0 where the trainer does it itself, so that nothing overlaps.
    pub workers: u32,
    /// Processors there are for them.
    pub cores: u32,
    /// Whether workers are threads of one interpreter, which run Python in turn: more processors are of no use to them.
    #[serde(default)]
    pub in_turns: bool,
    /// Whether batches are made of what is ready.
    #[serde(default)]
    pub ready: bool,
    /// Whether workers stay from epoch to epoch, so that starting them is no matter.
    #[serde(default)]
    pub stay: bool,
    /// Samples that are in the making at a time, of the batches that are prepared ahead; `None` where each worker goes its own way.
    #[serde(default)]
    pub ahead: Option<f64>,
    /// G: the training step alone.
    pub ingest: Known,
    /// The part of its time that the step keeps a processor of this machine busy.
    #[serde(default)]
    pub step_busy: f64,
    /// Seconds per sample that functions of the user's take in the trainer's process while it asks for a batch, whatever the workers do.
    #[serde(default)]
    pub in_trainer_s: f64,
    /// P: prepared by all workers, with every sample in memory.
    pub prepare: Known,
    /// The same by one worker.
    pub prepare_alone: Option<Known>,
    /// Seconds of a processor that preparing a sample takes, where that is known; what a worker takes longer it waits for something else.
    pub work_s: Option<f64>,
    /// C: what the cache delivers.
    pub recall: Option<Known>,
    /// S: what storage delivers to all workers together; `None` where it could not be told apart and is no limit.
    pub storage: Option<Known>,
    /// Seconds that a read keeps a worker when no other reads.
    pub read_s: Option<f64>,
    /// Finished batches that change hands, where that was measured.
    pub hand_over: Option<Known>,
    /// What the trainer really got.
    pub measured: Known,
    /// Where its time went.
    pub stalls: Stalls,
    /// Memory that a cache could have.
    pub memory_bytes: f64,
    /// What predictions that were tried were off by.
    #[serde(default)]
    pub missed: Missed,
}

/// Other circumstances; what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    /// Another budget for the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<f64>,
    /// So many processors, with a worker on each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// So many workers on the processors there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Storage of so many bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_bytes_per_s: Option<f64>,
    /// Another P, as when a transform is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Known>,
    /// So many further machines like this one that prepare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<u32>,
    /// So many jobs that share what is prepared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
}

/// What would happen then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outlook {
    /// Samples per second for each job.
    pub samples_per_s: Known,
    /// What would bind.
    pub bound_by: &'static str,
}

/// Facts that agree with what the trainer got.
pub(super) struct Fitted {
    facts: Facts,
    /// What the correction could not do, since something else is as slow: so many times as much comes out.
    left: f64,
    /// What was corrected, and how many times as fast it is.
    binds: Resource,
    factor: f64,
    /// Seconds that a read keeps a worker beyond what it takes when no other reads; less than none, where it waits for nothing.
    late_s: f64,
    /// How batches fall, where more came out than they would usually let through.
    usual: Luck,
}

impl Fitted {
    /// What the trainer would get of the facts that were fitted, and what would bind.
    ///
    /// Fewer workers get into each other's way less, and leave a core to the trainer. So of what the present ones miss together, fewer
    /// miss as much less as there are fewer of them; and never so much less that they would be better than all.
    fn reach(
        &self,
        measured: &Facts,
        change: &Change,
        pick: impl Fn(Known) -> f64,
        luck: Luck,
    ) -> (f64, Resource) {
        let present = measured.workers;
        match change.cores.or(change.workers) {
            Some(workers @ 1..) if workers < present && self.binds == Resource::Processors => {
                let part = (f64::from(workers - 1) / f64::from(present - 1)).powf(luck.crowd);
                let facts = measured
                    .with(self.binds, 1.0 + (self.factor - 1.0) * part)
                    .with_reads_later(self.late_s * part);
                let all = Change { cores: None, workers: None, ..*change };
                let (reached, binds) = facts.reach(change, &pick, luck);
                (reached.min(self.facts.reach(&all, &pick, luck).0), binds)
            }
            _ => self.facts.reach(change, pick, luck),
        }
    }

    /// The facts, but with reads that take as long as they do when no other reads: what they wait for in company, more workers do not
    /// make use of.
    pub(super) fn with_reads_alone(&self) -> Facts {
        self.facts.with_reads_later(-self.late_s)
    }

    /// A change with what was measured of it corrected likewise.
    fn fit(&self, change: &Change) -> Change {
        let of = |resource| if self.binds == resource { self.factor } else { 1.0 };
        Change {
            prepare: change.prepare.map(|rate| rate.times(of(Resource::Processors))),
            storage_bytes_per_s: change.storage_bytes_per_s.map(|rate| rate * of(Resource::Storage)),
            ..*change
        }
    }
}

/// Facts that nobody can have measured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FactsError {
    /// Something that must be positive.
    #[error("{field} = {value} was given to the analysis, but it must be a positive number")]
    NotPositive {
        /// Which one.
        field: &'static str,
        /// What it says.
        value: f64,
    },
}

impl Facts {
    /// Checks that something can be said about them.
    ///
    /// # Errors
    /// When a rate, a size or a count is not positive.
    pub fn check(&self) -> Result<(), FactsError> {
        let numbers = [
            ("samples", f64::from(self.samples)),
            ("sample_bytes", self.sample_bytes),
            ("kept_bytes", self.kept_bytes),
            ("cores", f64::from(self.cores)),
            ("work_s", self.work_s.unwrap_or(1.0)),
            ("read_s", self.read_s.unwrap_or(1.0)),
        ];
        for (field, value) in numbers {
            if !(value > 0.0 && value.is_finite()) {
                return Err(FactsError::NotPositive { field, value });
            }
        }
        let rates = [
            ("ingest", Some(self.ingest)),
            ("prepare", Some(self.prepare)),
            ("prepare_alone", self.prepare_alone),
            ("recall", self.recall),
            ("storage", self.storage),
            ("hand_over", self.hand_over),
            ("measured", Some(self.measured)),
        ];
        for (field, rate) in rates {
            if let Some(rate) = rate
                && !rate.is_positive()
            {
                return Err(FactsError::NotPositive { field, value: rate.value.min(rate.low) });
            }
        }
        Ok(())
    }

    /// What storage delivers, whether or not it was a limit.
    #[must_use]
    pub fn storage_rate(&self) -> Known {
        self.storage.unwrap_or(Known::exactly(UNLIMITED))
    }

    /// What the cache delivers: as fast as can be where there was nothing to measure.
    #[must_use]
    pub fn recall_rate(&self) -> Known {
        self.recall.unwrap_or(Known::exactly(UNLIMITED))
    }

    /// What all samples take in the cache.
    pub(super) fn dataset_bytes(&self) -> f64 {
        self.kept_bytes * f64::from(self.samples)
    }

    /// The fraction of the samples that a budget keeps.
    #[must_use]
    pub fn cached(&self, cache_bytes: f64) -> f64 {
        (cache_bytes / self.dataset_bytes()).clamp(0.0, 1.0)
    }

    /// F: what is fetched, from the cache and from storage in the proportion that a budget makes.
    #[must_use]
    pub fn fetch_rate(&self, cache_bytes: f64) -> Known {
        let cached = self.cached(cache_bytes);
        let mixed = |recall: f64, storage: f64| 1.0 / (cached / recall + (1.0 - cached) / storage);
        let (recall, storage) = (self.recall_rate(), self.storage_rate());
        Known {
            value: mixed(recall.value, storage.value),
            low: mixed(recall.low, storage.low),
            high: mixed(recall.high, storage.high),
        }
    }

    /// What one worker prepares.
    #[must_use]
    pub fn alone(&self) -> Known {
        let busy = self.workers.clamp(1, self.cores.max(1));
        self.prepare_alone.unwrap_or_else(|| self.prepare.times(1.0 / f64::from(busy)))
    }

    /// What so many workers on so many processors prepare.
    ///
    /// Workers scale until processors run out. They also get into each other's way (caches, memory, clock rates), which shows in what the
    /// present number of them reaches: fewer lose proportionally less of it, and more are expected to lose no more.
    pub(super) fn prepare_with(&self, workers: u32, cores: u32) -> Known {
        let alone = self.alone();
        // Where nothing is known about the work, it is taken to keep a processor busy all the time.
        let work_s = self.work_s.unwrap_or(1.0 / alone.value).min(1.0 / alone.value);
        let ideal = |workers: u32, cores: u32| {
            (f64::from(workers.max(1)) * alone.value).min(f64::from(cores) / work_s)
        };
        let present = self.workers.max(1);
        let processors = if self.in_turns { 1 } else { self.cores };
        let kept = (self.prepare.value / ideal(present, processors)).clamp(0.2, 1.1);
        let part =
            if present > 1 { (f64::from(workers.max(1) - 1) / f64::from(present - 1)).min(1.0) } else { 0.0 };
        let expected = ideal(workers, cores) * (1.0 + (kept - 1.0) * part);
        let known = self.prepare.times(expected / self.prepare.value);
        let doublings = (f64::from(workers.max(1)) / f64::from(present)).log2().max(0.0);
        let low = known.low * (1.0 - DOUBLING).powf(doublings);
        if !(2..present).contains(&workers) {
            return Known { low, ..known };
        }
        // One and all of them were measured. How soon between them they get into each other's way was not.
        let (one, other) = (ideal(workers, cores), ideal(workers, cores) * kept);
        Known { low: low.min(one.min(other)), high: known.high.max(one.max(other)), ..known }
    }

    /// What the trainer should get as things are, as far as the model knows.
    pub(super) fn modelled(&self) -> f64 {
        self.usually(&Change::default()).0
    }

    /// The least that the trainer should get as things are, when every rate is as low as it may be.
    pub(super) fn modelled_at_least(&self) -> f64 {
        self.reach(&Change::default(), |known| known.low, Luck::USUAL).0
    }

    /// What the trainer would get.
    ///
    /// # Errors
    /// When the facts or the change are none.
    pub fn predict(&self, change: &Change) -> Result<Outlook, FactsError> {
        self.check()?;
        for (field, value) in [
            ("cores", change.cores.map(f64::from)),
            ("jobs", change.jobs.map(f64::from)),
            ("storage_bytes_per_s", change.storage_bytes_per_s),
            ("cache_bytes", change.cache_bytes.map(|bytes| bytes + f64::MIN_POSITIVE)),
            ("prepare", change.prepare.map(|rate| rate.low)),
        ] {
            if let Some(value) = value
                && !(value > 0.0 && value.is_finite())
            {
                return Err(FactsError::NotPositive { field, value });
            }
        }
        let value = |known: Known| known.value;
        let here = self.reach(&Change::default(), value, Luck::USUAL);
        if *change == Change::default() {
            return Ok(Outlook { samples_per_s: self.measured, bound_by: self.binds_now(name(here.1)) });
        }
        let fitted = self.fitted();
        let change = &fitted.fit(change);
        let there = fitted.reach(self, change, value, fitted.usual);
        let low = fitted.reach(self, change, |known| known.low, Luck::BAD).0;
        let high = fitted.reach(self, change, |known| known.high, Luck::GOOD).0;
        // Where the model misses by much, what is known of it is hardly the whole truth.
        let miss = self.measured.value / here.0;
        let doubt = (miss - 1.0).abs().min(0.5).max(self.measured.error().min(1.0));
        let left = fitted.left;
        // No trainer gets more than it takes.
        let best = (there.0 * left).min(self.ingest.value.max(self.measured.value));
        Ok(Outlook {
            samples_per_s: Known {
                value: best,
                low: (low * left).min(best * (1.0 - doubt)).max(best / FACTOR_MAX),
                high: (high * left).max(best * (1.0 + doubt)),
            },
            // Workers that read for most of their time are no processors.
            bound_by: match there.1 {
                Resource::Processors if fitted.facts.mostly_reads(change) => name(Resource::Storage),
                binds => name(binds),
            },
        })
    }

    /// The same facts, with what binds now as slow as it must be for the trainer to get what it got.
    ///
    /// What the model does not know about the thing that binds, it does not know in other circumstances either, for as long as that
    /// thing is felt. So it is the thing that is corrected and not what comes out: predictions begin where the run was, and more of
    /// something never makes less of the outcome. Nothing is faster than it was by itself; where more came out than the model knows
    /// of, loader and trainer overlap better than usual. That matters only where both are about as fast; what is left after that is true in
    /// other circumstances, too.
    ///
    /// Workers that read and prepare in turn are slower together than each by itself for two reasons. Which part of it is preparing shows with
    /// all samples in memory; the rest is reads that wait for a turn or for a processor, and goes away with them.
    pub(super) fn fitted(&self) -> Fitted {
        let now = Change::default();
        let (here, binds) = self.usually(&now);
        if here <= self.measured.value {
            let usual = self.luckier();
            let here = self.reach(&now, |known| known.value, usual).0;
            let left = self.measured.value / here;
            return Fitted { facts: *self, left, binds, factor: 1.0, late_s: 0.0, usual };
        }
        let read_s = self.read_s.filter(|_| binds == Resource::Processors && self.workers > 0);
        let (circumstances, reached) = if read_s.is_some() {
            let kept = Change { cache_bytes: Some(self.dataset_bytes()), ..now };
            let in_memory = self.measured.value / (1.0 - self.stalls.fetch).max(1.0 / FIT_MAX);
            // A trainer that takes no more tells nothing about the workers.
            (kept, if in_memory < DEVICE_FELT * self.ingest.value { in_memory } else { f64::INFINITY })
        } else {
            (now, self.measured.value)
        };
        // Less comes out the slower a thing is, so halving the interval finds how slow it must be.
        let inverse = halved(1.0, FIT_MAX, |inverse| {
            self.with(binds, 1.0 / inverse).usually(&circumstances).0 > reached
        });
        let slower = self.with(binds, 1.0 / inverse);
        // A read that alone takes as long as a sample does now is more than late enough.
        let latest = f64::from(self.workers) / self.measured.value;
        let late_s = read_s.map_or(0.0, |read_s| {
            halved(-read_s, latest, |late_s| {
                slower.with_reads_later(late_s).usually(&now).0 > self.measured.value
            })
        });
        let facts = slower.with_reads_later(late_s);
        let left = self.measured.value / facts.usually(&now).0;
        Fitted { facts, left, binds, factor: 1.0 / inverse, late_s, usual: Luck::USUAL }
    }

    /// What the trainer would get with the usual luck, and what would bind.
    fn usually(&self, change: &Change) -> (f64, Resource) {
        self.reach(change, |known| known.value, Luck::USUAL)
    }

    /// The luck with which the trainer gets what it got, where it got more than usual; the best there is, where that is not enough. Where one
    /// of loader and trainer is much slower, luck makes no difference, so that what they got tells nothing about it.
    fn luckier(&self) -> Luck {
        let reached = |luck| self.reach(&Change::default(), |known| known.value, luck).0;
        let best = Luck { take_over: f64::INFINITY, ..Luck::USUAL };
        if reached(Luck::USUAL) > (1.0 - LUCK_MIN) * reached(best) {
            return Luck::USUAL;
        }
        // Of the abruptness its inverse, which ends at 0.
        let usual = 1.0 / Luck::USUAL.take_over;
        let lucky = |gain: f64| Luck { take_over: 1.0 / (usual - gain), ..Luck::USUAL };
        lucky(halved(0.0, usual, |gain| reached(lucky(gain)) < self.measured.value))
    }

    /// The same with something so many times as fast.
    fn with(&self, resource: Resource, factor: f64) -> Self {
        let mut facts = *self;
        let faster = |known: Option<Known>| known.map(|known| known.times(factor));
        match resource {
            Resource::Storage => {
                facts.storage = faster(self.storage);
                facts.read_s = self.read_s.map(|read_s| read_s / factor);
            }
            Resource::Cache => facts.recall = faster(self.recall),
            // There is none between the workers and what they read.
            Resource::Network => {}
            Resource::Processors => {
                facts.prepare = self.prepare.times(factor);
                facts.prepare_alone = faster(self.prepare_alone);
                facts.work_s = self.work_s.map(|work_s| work_s / factor);
            }
            Resource::Bus => facts.hand_over = faster(self.hand_over),
            Resource::Device => facts.ingest = self.ingest.times(factor),
        }
        facts
    }

    /// The same with reads that each keep a worker longer; storage delivers as much.
    fn with_reads_later(&self, late_s: f64) -> Self {
        Self { read_s: self.read_s.map(|read_s| read_s + late_s), ..*self }
    }

    /// What binds as things are.
    ///
    /// That is what the model says, unless something else is waited for: longer than for transport, or for long although the trainer is
    /// said to bind, or although preparation by itself is fast enough. Fetching is what comes on top of preparing, so a small share of it does
    /// not mean that storage is fast enough; but where it is more than all of preparing, workers are kept by reads and not by processors.
    fn binds_now(&self, modelled: &'static str) -> &'static str {
        let is_enough = self.prepare.value >= self.ingest.value;
        match modelled {
            _ if !self.is_felt() => "device",
            "device" if self.is_ahead() || (self.workers > 0 && self.stalls.waiting() < WAITING_SOME) => {
                "device"
            }
            "device" | "transport" => self.largest_stall().1,
            "processors" if is_enough => self.largest_stall().1,
            "processors" if self.stalls.fetch > self.stalls.prep => "storage",
            other => other,
        }
    }

    /// Whether the trainer waits long enough to be worth anybody's while.
    pub(super) fn is_felt(&self) -> bool {
        self.stalls.waiting() >= WAITING_MIN
    }

    /// Whether the loader is so much faster that waits are nobody's fault. A trainer that prepares for itself waits for every batch.
    pub(super) fn is_ahead(&self) -> bool {
        self.workers > 0 && self.loader_ahead() >= FAR_AHEAD
    }

    /// How many times as many samples as the trainer takes the loader delivers by itself.
    pub(super) fn loader_ahead(&self) -> f64 {
        self.prepare.value.min(self.fetch_rate(self.cache_bytes).value) / self.ingest.value
    }

    /// What the trainer waits for the most, and which part of its time.
    pub(super) fn largest_stall(&self) -> (f64, &'static str) {
        let parts = [
            (self.stalls.fetch, "storage"),
            (self.stalls.prep, "processors"),
            (self.stalls.transport, "transport"),
        ];
        parts.into_iter().fold(parts[0], |most, part| if part.0 > most.0 { part } else { most })
    }

    /// What a worker delivers that has storage to itself: it reads a sample, unless the cache has it, and then prepares it.
    pub(super) fn reads_and_prepares(&self) -> f64 {
        1.0 / (1.0 / self.alone().value + self.reading_s(self.cache_bytes))
    }

    /// Whether a worker takes longer to read a sample than to prepare it.
    pub(super) fn mostly_reads(&self, change: &Change) -> bool {
        self.reading_s(change.cache_bytes.unwrap_or(self.cache_bytes)) > 1.0 / self.alone().value
    }

    /// Seconds that reading a sample keeps a worker on average, which it does not if the cache has it.
    fn reading_s(&self, cache_bytes: f64) -> f64 {
        self.read_s.unwrap_or(0.0) * (1.0 - self.cached(cache_bytes))
    }

    /// Whether functions of the user's that run in the trainer's process are most of what the trainer waits for.
    pub(super) fn waits_for_functions(&self) -> bool {
        self.workers > 0 && self.in_trainer_s * self.measured.value > self.stalls.waiting() / 2.0
    }

    /// The part of its time that a worker keeps a processor busy; what is left of it, it waits for something.
    pub(super) fn busy(&self) -> f64 {
        self.work_s.map_or(1.0, |work_s| (work_s * self.alone().value).clamp(0.05, 1.0))
    }

    /// What storage must have delivered for the loader alone, without a trainer, to have reached `reached` samples a second: for loaders whose reads
    /// cannot be told apart from what they do with them. `None` where they would reach no more with all samples in memory, so that storage was no limit.
    #[must_use]
    pub fn storage_behind(&self, reached: f64) -> Option<f64> {
        let with = |rate: f64| {
            let free =
                Facts { storage: Some(Known::exactly(rate)), ingest: Known::exactly(UNLIMITED), ..*self };
            free.reach(&Change::default(), |known| known.value, Luck::USUAL).0
        };
        if !(reached > 0.0 && reached < NO_LIMIT * with(UNLIMITED)) {
            return None;
        }
        // What it reaches grows with what storage delivers, over many orders of magnitude.
        let exponent =
            halved((reached / 2.0).ln(), UNLIMITED.ln(), |exponent| with(exponent.exp()) < reached);
        Some(exponent.exp())
    }

    /// Samples per second for each job and what binds, when every rate is what `pick` says and batches fall with this luck.
    fn reach(&self, change: &Change, pick: impl Fn(Known) -> f64, luck: Luck) -> (f64, Resource) {
        let workers = change.cores.or(change.workers).unwrap_or(self.workers);
        let cores = if self.in_turns { 1 } else { change.cores.unwrap_or(self.cores) };
        // A trainer that prepares for itself shares with nobody, here or elsewhere.
        let by_itself = workers == 0;
        let machines = if by_itself { 1.0 } else { 1.0 + f64::from(change.remote.unwrap_or(0)) };
        let jobs = if by_itself { 1 } else { change.jobs.unwrap_or(1) };
        let moved = workers != self.workers || (cores != self.cores && !self.in_turns);
        let mut prepare = if moved { self.prepare_with(workers, cores) } else { self.prepare };
        if let Some(other) = change.prepare {
            // It was measured with the workers of now.
            prepare = other.times(prepare.value / self.prepare.value);
        }
        let threads = f64::from(workers.max(1)) * machines;
        let storage = change.storage_bytes_per_s.unwrap_or(pick(self.storage_rate()) * self.sample_bytes);
        // Storage has nothing to do while none of the samples in the making is missing in the cache: with small batches and most of the
        // dataset kept that is felt.
        let cached = self.cached(change.cache_bytes.unwrap_or(self.cache_bytes));
        let idle = self.ahead.map_or(0.0, |ahead| (luck.idle * cached.powf(ahead)).min(IDLE_MAX));
        let storage = if cached < 1.0 { storage * (1.0 - idle) } else { storage };
        // With another storage a read takes longer or shorter in proportion; what a read takes beyond its turn is latency, which stays.
        let turn = self.sample_bytes / storage;
        let latency = self.read_s.map_or(0.0, |read_s| read_s - 1.0 / self.storage_rate().value).max(0.0);
        // What a sample costs workers that all prepare at the same time. Where they are more than processors, those that wait for a read leave
        // theirs to the others, and a sample costs no more than it costs one that has a processor to itself.
        let together = threads / (pick(prepare) * machines);
        let own = if workers > cores && !self.in_turns {
            let shared = together * f64::from(cores) / f64::from(workers);
            shared.max(1.0 / pick(self.alone())).min(together)
        } else {
            together
        };
        // A trainer that does all of it itself has it in what preparing takes.
        let between = if by_itself { 0.0 } else { self.in_trainer_s };
        let device = f64::from(jobs) / (1.0 / pick(self.ingest) + between);
        let profile = Profile {
            samples: self.samples,
            encoded_bytes: self.sample_bytes,
            encoded_kept_bytes: self.kept_bytes,
            decoded_bytes: self.sample_bytes,
            augmented_bytes: 1.0,
            storage_bytes_per_s: storage,
            cache_bytes_per_s: pick(self.recall_rate()) * self.kept_bytes,
            network: None,
            read_s: turn + latency,
            read_work_s: 0.0,
            recall_s: 0.0,
            // As many processors are counted as make them reach together what they do.
            decode_s: own,
            augment_s: 0.0,
            copy_s: 0.0,
            threads,
            cores: threads * own / together,
            share: 1.0,
            bus_bytes_per_s: self.hand_over.map(|rate| pick(rate) * f64::from(jobs)),
            device_samples_per_s: device,
            jobs,
            window: jobs > 1,
        };
        let budget = change.cache_bytes.unwrap_or(self.cache_bytes);
        let split = Split::new(100, 0, 0);
        let predicted = profile.predict(budget, split);
        let binds = predicted.binds.unwrap_or(Resource::Device);
        if by_itself {
            return (one_after_the_other(&profile, &predicted), binds);
        }
        let loader =
            Profile { device_samples_per_s: UNLIMITED, ..profile }.predict(budget, split).samples_per_s;
        (slower(loader, device, luck.take_over) / f64::from(jobs), binds)
    }
}

/// The least of an interval that is enough, where everything below it is not; its end where nothing is.
fn halved(mut low: f64, mut high: f64, is_too_little: impl Fn(f64) -> bool) -> f64 {
    if !is_too_little(low) {
        return low;
    }
    // 50 times is more than enough for all digits.
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if is_too_little(middle) { low = middle } else { high = middle }
    }
    high
}

/// What comes out of two that work one behind the other.
fn slower(one: f64, other: f64, take_over: f64) -> f64 {
    let (less, more) = if one < other { (one, other) } else { (other, one) };
    less * (1.0 + (less / more).powf(take_over)).powf(-1.0 / take_over)
}

/// What a trainer gets that fetches, prepares and trains in turn.
fn one_after_the_other(profile: &Profile, predicted: &Prediction) -> f64 {
    let load = profile.load(&predicted.fractions);
    let seconds = |resource| {
        let capacity = profile.capacity(resource);
        // What is fetched goes through one pair of hands, so it takes as long as for one worker alone.
        if capacity.is_finite() { load.of(resource) / capacity } else { 0.0 }
    };
    1.0 / Resource::ALL.map(seconds).iter().sum::<f64>()
}

/// What reports call it. The bus stands for everything between a prepared sample and the trainer.
fn name(resource: Resource) -> &'static str {
    if resource == Resource::Bus { "transport" } else { resource.name() }
}

#[cfg(test)]
pub(super) mod tests;
