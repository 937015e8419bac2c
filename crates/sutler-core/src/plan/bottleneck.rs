//! Our model: all forms draw on the same machine, and what is exhausted first sets the pace.
//!
//! Serving one sample from form `f` costs an amount `d(r, f)` of each resource `r`: bytes of storage, seconds of a processor, and so
//! on. When a fraction `p(f)` of the samples comes from each form, the average sample costs `Σ p(f)·d(r, f)`, and a machine that has
//! `capacity(r)` of it per second serves `min over r of capacity(r) / Σ p(f)·d(r, f)`. So a mixture of fast and slow samples
//! runs at the harmonic mean of their rates where they share a resource, and unhindered where they do not.
//!
//! Storage and processors are not quite independent: a thread that waits for a read prepares nothing meanwhile. With many threads
//! the others fill the gap; with two of them it is felt. So the two are taken together, as threads that go round between their own
//! work and a queue for storage ([`Profile::predict`]).
//!
//! Threads are not processors. What a sample costs is counted in seconds of a processor, which stay the same on a busy machine; how
//! much the threads get of how many processors is counted apart. So more threads than processors help against waiting and against
//! nothing else, and what others take of the processors makes every thread slower.
//!
//! Several jobs share work in two ways. Through the [shared window](crate::SharedOrder) whatever was read, decoded and augmented for one job
//! serves all `J` of them, so every form costs a `J`-th of its preparation per sample served; the one that prepares copies the result to the
//! window, and the others copy it from there. Without the window only augmented entries are shared: each serves every job once and is then
//! made anew, from storage. (An augmented entry is a window entry under another name, so beside the window a share for augmented samples
//! gains nothing, and with a single job it never does.)

use serde::{Deserialize, Serialize};

use super::{Fractions, Plan, Prediction, Split};
use crate::Form;

/// Above this many threads nothing is gained by looking at the queue for storage.
const QUEUED_THREADS_MAX: f64 = 256.0;

/// How much better a split must be to take the place of another: what leaves for it has to be read, and often decoded, once more.
const WORTH_MOVING: f64 = 1.05;

/// By which part a choice may be wrong about how much fits: sizes of photographs differ by two fifths of their mean, so some two hundred
/// of them tell it to 3 %. Where everything just fits, a little less would send samples back to slow storage, so that much is left over.
const SIZES_UNCERTAIN: f64 = 0.03;

/// What can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Bytes per second from where the dataset lives.
    Storage,
    /// Bytes per second from and to the memory that keeps samples.
    Cache,
    /// Bytes per second over the network.
    Network,
    /// Seconds of processors per second that the threads which prepare get.
    Processors,
    /// Bytes per second from memory to the accelerators.
    Bus,
    /// Samples per second that the accelerators of all jobs ingest.
    Device,
}

impl Resource {
    /// All of them, in the order a sample meets them.
    pub const ALL: [Resource; 6] = [
        Resource::Storage,
        Resource::Cache,
        Resource::Network,
        Resource::Processors,
        Resource::Bus,
        Resource::Device,
    ];

    /// The name used in reports and documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Resource::Storage => "storage",
            Resource::Cache => "cache",
            Resource::Network => "network",
            Resource::Processors => "processors",
            Resource::Bus => "bus",
            Resource::Device => "device",
        }
    }
}

/// A network between the samples and the machine that prepares them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// How much it carries.
    pub bytes_per_s: f64,
    /// Whether the kept samples lie at its other end as well, as the stored ones do.
    pub carries_cache: bool,
}

/// A dataset, a pipeline and a machine, as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// How many samples the dataset has.
    pub samples: u32,
    /// Of an average sample as stored.
    pub encoded_bytes: f64,
    /// What it takes in memory: a little more, as memory is given out in blocks.
    pub encoded_kept_bytes: f64,
    /// Of one after every transform that draws no random number.
    pub decoded_bytes: f64,
    /// Of one that is ready for a batch.
    pub augmented_bytes: f64,
    /// What storage delivers to all threads together.
    pub storage_bytes_per_s: f64,
    /// What the memory for kept samples delivers.
    pub cache_bytes_per_s: f64,
    /// What lies between, if anything.
    pub network: Option<Network>,
    /// Seconds that a read keeps a thread when no other thread reads.
    pub read_s: f64,
    /// What of that a processor is busy with it.
    pub read_work_s: f64,
    /// Seconds of one processor to get a sample's encoded copy out of memory.
    pub recall_s: f64,
    /// Seconds of one processor to decode a sample.
    pub decode_s: f64,
    /// Seconds of one processor to augment it.
    pub augment_s: f64,
    /// Seconds of one processor to put it into a batch.
    pub copy_s: f64,
    /// How many threads prepare.
    pub threads: f64,
    /// How many processors they run on: one each, unless there are fewer.
    pub cores: f64,
    /// How much of each they get. What is missing to 1 others have, on a machine that is busy with something else, too.
    pub share: f64,
    /// What the bus to the accelerators carries, where it matters.
    pub bus_bytes_per_s: Option<f64>,
    /// What the accelerators of all jobs ingest together.
    pub device_samples_per_s: f64,
    /// How many jobs train on the dataset.
    pub jobs: u32,
    /// Whether they share a window of prepared samples. Its memory comes on top of the budget that is split.
    pub window: bool,
}

/// A profile that no machine has.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum ProfileError {
    /// Something that divides, or that there must be some of.
    #[error("the profile has {field} = {value}, but it must be a positive number; measure it again")]
    NotPositive {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: f64,
    },
    /// A cost below nothing.
    #[error("the profile has {field} = {value}, but it must be zero or a positive number; measure it again")]
    Negative {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: f64,
    },
}

/// How much of each resource something takes, in the units of [`Resource`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loads {
    /// Bytes.
    pub storage: f64,
    /// Bytes.
    pub cache: f64,
    /// Bytes.
    pub network: f64,
    /// Seconds of one processor.
    pub processors: f64,
    /// Bytes.
    pub bus: f64,
    /// Samples.
    pub device: f64,
}

impl Loads {
    /// The amount of one resource.
    #[must_use]
    pub fn of(&self, resource: Resource) -> f64 {
        match resource {
            Resource::Storage => self.storage,
            Resource::Cache => self.cache,
            Resource::Network => self.network,
            Resource::Processors => self.processors,
            Resource::Bus => self.bus,
            Resource::Device => self.device,
        }
    }

    /// The same for so many samples.
    #[must_use]
    pub fn times(&self, factor: f64) -> Loads {
        Loads {
            storage: self.storage * factor,
            cache: self.cache * factor,
            network: self.network * factor,
            processors: self.processors * factor,
            bus: self.bus * factor,
            device: self.device * factor,
        }
    }

    fn plus(&self, other: &Loads) -> Loads {
        Loads {
            storage: self.storage + other.storage,
            cache: self.cache + other.cache,
            network: self.network + other.network,
            processors: self.processors + other.processors,
            bus: self.bus + other.bus,
            device: self.device + other.device,
        }
    }
}

impl Profile {
    /// Checks that the model can say something about it.
    ///
    /// # Errors
    /// When a rate, a size or a count is not positive, or a cost is negative.
    pub fn check(&self) -> Result<(), ProfileError> {
        let positive = [
            ("samples", f64::from(self.samples)),
            ("encoded_bytes", self.encoded_bytes),
            ("encoded_kept_bytes", self.encoded_kept_bytes),
            ("decoded_bytes", self.decoded_bytes),
            ("augmented_bytes", self.augmented_bytes),
            ("storage_bytes_per_s", self.storage_bytes_per_s),
            ("cache_bytes_per_s", self.cache_bytes_per_s),
            ("network.bytes_per_s", self.network.map_or(1.0, |network| network.bytes_per_s)),
            ("threads", self.threads),
            ("cores", self.cores),
            ("share", self.share),
            ("bus_bytes_per_s", self.bus_bytes_per_s.unwrap_or(1.0)),
            ("device_samples_per_s", self.device_samples_per_s),
            ("jobs", f64::from(self.jobs)),
        ];
        for (field, value) in positive {
            if !(value > 0.0 && value.is_finite()) {
                return Err(ProfileError::NotPositive { field, value });
            }
        }
        let costs = [
            ("read_s", self.read_s),
            ("read_work_s", self.read_work_s),
            ("recall_s", self.recall_s),
            ("decode_s", self.decode_s),
            ("augment_s", self.augment_s),
            ("copy_s", self.copy_s),
        ];
        for (field, value) in costs {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(ProfileError::Negative { field, value });
            }
        }
        Ok(())
    }

    /// What the machine has of each resource per second.
    #[must_use]
    pub fn capacity(&self, resource: Resource) -> f64 {
        match resource {
            Resource::Storage => self.storage_bytes_per_s,
            Resource::Cache => self.cache_bytes_per_s,
            Resource::Network => self.network.map_or(f64::INFINITY, |network| network.bytes_per_s),
            Resource::Processors => self.cores * self.share,
            Resource::Bus => self.bus_bytes_per_s.unwrap_or(f64::INFINITY),
            Resource::Device => self.device_samples_per_s,
        }
    }

    /// What it takes to serve one sample from a form.
    #[must_use]
    pub fn demand(&self, form: Form) -> Loads {
        let jobs = f64::from(self.jobs);
        // How many jobs one preparation serves.
        let sharers = if self.window || form == Form::Augmented { jobs } else { 1.0 };
        let stored_s = self.read_work_s + self.decode_s + self.augment_s;
        let (read, cached, prepare_s) = match form {
            Form::Storage => (self.encoded_bytes / sharers, 0.0, stored_s),
            Form::Encoded => {
                (0.0, self.encoded_kept_bytes / sharers, self.recall_s + self.decode_s + self.augment_s)
            }
            Form::Decoded => (0.0, self.decoded_bytes / sharers, self.augment_s),
            // Every job reads the entry; once for all of them it is made anew and written.
            Form::Augmented => {
                (self.encoded_bytes / sharers, self.augmented_bytes * (1.0 + 1.0 / sharers), stored_s)
            }
        };
        // Everybody's row is written once. What is shared was written once more before, by the one who prepared it, for the others.
        let copies = if sharers > 1.0 { 1.0 + 1.0 / sharers } else { 1.0 };
        let carries_cache = self.network.is_some_and(|network| network.carries_cache);
        Loads {
            storage: read,
            cache: cached,
            network: read + if carries_cache { cached } else { 0.0 },
            processors: prepare_s / sharers + copies * self.copy_s,
            bus: self.augmented_bytes,
            device: 1.0,
        }
    }

    /// What the average sample takes when samples come from the forms in these proportions.
    #[must_use]
    pub fn load(&self, fractions: &Fractions) -> Loads {
        let parts = [
            (Form::Storage, fractions.storage),
            (Form::Encoded, fractions.encoded),
            (Form::Decoded, fractions.decoded),
            (Form::Augmented, fractions.augmented),
        ];
        let sum = parts
            .iter()
            .fold(Loads::default(), |sum, (form, part)| sum.plus(&self.demand(*form).times(*part)));
        // Wherever a sample comes from, it crosses the bus and takes its turn at the device: said here once more, since fractions
        // do not always add up to 1 in their last digit, and no split serves more than the device takes.
        Loads { bus: self.augmented_bytes, device: 1.0, ..sum }
    }

    /// What the machine would need per second to serve so many samples per second under a split: compare it with
    /// [`Profile::capacity`] to see what is missing.
    #[must_use]
    pub fn needed(&self, budget_bytes: f64, split: Split, samples_per_s: f64) -> Loads {
        self.load(&self.fractions(budget_bytes, split)).times(samples_per_s)
    }

    /// What the model says of one split of a budget.
    #[must_use]
    pub fn predict(&self, budget_bytes: f64, split: Split) -> Prediction {
        let fractions = self.fractions(budget_bytes, split);
        let load = self.load(&fractions);
        let rate = |resource| (resource, self.capacity(resource) / load.of(resource));
        let slower = |one: (Resource, f64), other: (Resource, f64)| if other.1 < one.1 { other } else { one };
        let slowest = Resource::ALL.map(rate).into_iter().reduce(slower);
        let (mut binds, mut samples_per_s) = slowest.expect("there are six resources");
        let queued = self.queued_rate(&load);
        if queued < samples_per_s {
            samples_per_s = queued;
            (binds, _) = slower(rate(Resource::Storage), rate(Resource::Processors));
        }
        Prediction { split, fractions, samples_per_s, binds: Some(binds) }
    }

    /// What the threads reach when they queue for storage: they go round between work of their own, which takes each of them a while
    /// whatever the others do, and one server that takes them one by one.
    ///
    /// This is mean value analysis: with one thread more, a read finds before it what all the other threads have there on average. Files
    /// are of similar sizes, so whoever is being served is on average half done, and not, as textbooks have it, as good as not begun.
    fn queued_rate(&self, load: &Loads) -> f64 {
        let threads = self.threads.round();
        let reads = load.storage / self.encoded_bytes;
        let alone = reads * self.read_s;
        let service = (load.storage / self.storage_bytes_per_s).min(alone);
        // Fractions of threads are no threads, and with this many the queue is empty or never so: the bounds say it all.
        if !(1.0..=QUEUED_THREADS_MAX).contains(&threads) || service <= 0.0 {
            return f64::INFINITY;
        }
        // Of a read, what is not the server's own time is a latency, which all threads can wait for at once.
        let work = (load.processors - reads * self.read_work_s).max(0.0);
        let elsewhere = work / self.share + (alone - service);
        let (mut rate, mut queue, mut busy) = (0.0, 0.0, 0.0);
        for present in 1..=threads as u32 {
            let stay = service * (1.0 + queue - busy / 2.0);
            rate = f64::from(present) / (elsewhere + stay);
            queue = rate * stay;
            busy = (rate * service).min(1.0);
        }
        rate
    }

    /// What the model says of every split of a budget.
    ///
    /// # Errors
    /// When the profile is none.
    pub fn plan(&self, budget_bytes: f64) -> Result<Plan, ProfileError> {
        self.check()?;
        if !(budget_bytes >= 0.0 && budget_bytes.is_finite()) {
            return Err(ProfileError::Negative { field: "budget_bytes", value: budget_bytes });
        }
        Ok(Plan::search(|split| self.predict(budget_bytes, split)))
    }

    /// The split for a cache that serves a single job: the best without augmented samples, also if a little less fits than it seems, unless
    /// the one in force is nearly as good.
    ///
    /// # Errors
    /// When the profile is none.
    pub fn choose(&self, budget_bytes: f64, in_force: Option<Split>) -> Result<Prediction, ProfileError> {
        let safe = self.plan(budget_bytes * (1.0 - SIZES_UNCERTAIN))?.best_without_augmented();
        let best = self.predict(budget_bytes, safe.split);
        let staying = in_force.map(|split| self.predict(budget_bytes, split));
        Ok(staying
            .filter(|staying| staying.samples_per_s * WORTH_MOVING >= best.samples_per_s)
            .unwrap_or(best))
    }

    fn fractions(&self, budget_bytes: f64, split: Split) -> Fractions {
        let sizes = [self.encoded_kept_bytes, self.decoded_bytes, self.augmented_bytes];
        split.fractions(f64::from(self.samples), budget_bytes, sizes)
    }
}

#[cfg(test)]
mod tests;
