//! What client and agent say to each other.
//!
//! Every request has a number and gets exactly one answer with that number, in order. A file descriptor may travel with an
//! answer: that of the batch memory, or of a batch outside of it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sutler_core::{Course, Repeats, SampleId};
use sutler_engine::{Counts, Failure, RunError};

use crate::spec::{EpochSpec, JobSpec};

/// Changes whenever an agent and a client of different versions would misunderstand each other.
pub const PROTOCOL: u32 = 7;

/// The number of a connection's first request, which is the greeting.
pub const HELLO: u64 = 1;

/// A request and its number.
#[derive(Debug, Serialize, Deserialize)]
pub struct Asked {
    pub id: u64,
    pub request: Request,
}

/// What a client asks. All runs belong to the connection's one job; the client numbers them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first words.
    Hello { protocol: u32, version: String },
    /// Make the connection's job.
    Open { job: Box<JobSpec> },
    /// Begin an epoch.
    Start { run: u64, epoch: EpochSpec },
    /// A sampler has drawn these.
    Extend { run: u64, indices: Vec<u64> },
    /// A batch sampler has drawn these.
    ExtendBatches { run: u64, batches: Vec<Vec<u64>> },
    /// The sampler is at its end.
    EndDrawing { run: u64 },
    /// The next batch, and up to `most` in all if more are ready. Nobody uses the batches in these slots any more.
    Next { run: u64, released: Vec<usize>, most: usize },
    /// The run's rest is not wanted.
    CallOff { run: u64 },
    /// The job's figures.
    Figures,
    /// What the agent is doing, for all its clients.
    Status,
}

/// An answer and the number of its request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answered {
    pub id: u64,
    pub answer: Answer,
}

/// What the agent answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To `Hello`.
    Welcome { version: String, threads: usize },
    /// To `Open`. The batch memory comes along, where samples have one size.
    Opened { slots: Option<Slots>, row_bytes: Option<usize>, beside_bytes: usize },
    /// To `Start` and whatever changes the plan: how many batches the run has in all, once that is known.
    Planned { batches: Option<u64> },
    /// To `Next`: here they are. A file that comes along belongs to the last of them.
    Batches(Vec<Delivered>),
    /// To `Next`: nothing was ready in a while; ask again.
    NotYet,
    /// To `Next`: so many batches had no good sample; ask again, and draw as many more.
    Passed { batches: u64 },
    /// To `Next`: the epoch is over.
    End { failures: Vec<Bad>, counts: Counts, figures: Value },
    /// To `Next`: the run cannot go on.
    Broken { error: Box<Breakage>, failures: Vec<Bad>, counts: Counts },
    /// To `CallOff`.
    CalledOff,
    /// To `Figures` and `Status`.
    Facts { facts: Value },
    /// No; for this reason.
    Refused { kind: Refusal, reason: String },
}

/// Why a request was refused, as far as the client has an exception for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The agent has nothing to do with such clients: another user's, or another protocol's.
    Denied,
    /// The request makes no sense, or contradicts another one.
    Value,
    /// A file or folder is missing.
    Missing,
    /// A file or folder cannot be read.
    System,
    /// Memory ran out.
    Memory,
}

/// How a job's batch memory is divided.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Slots {
    pub bytes: usize,
    pub count: usize,
}

/// A batch; its values are elsewhere.
#[derive(Debug, Serialize, Deserialize)]
pub struct Delivered {
    pub index: u64,
    /// How many batches were passed over since the one before it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed: u64,
    pub place: Place,
    pub ids: Vec<u32>,
    pub repeats: Repeats,
    pub labels: Vec<i64>,
    pub positions: Vec<u32>,
    /// How much of the epoch's sequence all ranks have consumed with it, where batches are served in order.
    pub consumed: u64,
    /// What its samples were at until it was ready, which is so many nanoseconds ago: what a trainer that waited for it was
    /// waiting for.
    pub course: Course,
    pub ready_for_nanos: u64,
    /// Samples that failed since the batch before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Bad>,
    /// What was counted since the batch before it.
    #[serde(with = "counts_in_brief")]
    pub counts: Counts,
    /// The job's figures, now and then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<Value>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Counts as bare numbers: they go with every batch, and their names would be the larger part of what is said of a small
/// one.
mod counts_in_brief {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use sutler_engine::{Counts, Served};

    pub fn serialize<S: Serializer>(counts: &Counts, serializer: S) -> Result<S::Ok, S::Error> {
        let Counts { served, storage_reads, storage_bytes, fetched, warnings } = *counts;
        let Served { storage, encoded, decoded, augmented } = served;
        [storage, encoded, decoded, augmented, storage_reads, storage_bytes, fetched, warnings]
            .serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Counts, D::Error> {
        let [storage, encoded, decoded, augmented, storage_reads, storage_bytes, fetched, warnings] =
            <[u64; 8]>::deserialize(deserializer)?;
        let served = Served { storage, encoded, decoded, augmented };
        Ok(Counts { served, storage_reads, storage_bytes, fetched, warnings })
    }
}

/// Where the values of a batch are.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In a slot of the batch memory, which is the client's until it says otherwise.
    Slot(usize),
    /// In a file of its own, which comes along.
    File { bytes: usize },
    /// In a file that comes along, one after the other; samples differ in shape.
    Each { shapes: Vec<[u32; 3]>, bytes: Vec<usize> },
}

/// A sample that failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bad {
    sample: u32,
    path: String,
    kind: String,
    reason: String,
}

impl From<&Failure> for Bad {
    fn from(failure: &Failure) -> Self {
        Self {
            sample: failure.sample.0,
            path: failure.path.clone(),
            kind: failure.kind.to_owned(),
            reason: failure.reason.clone(),
        }
    }
}

impl From<Bad> for Failure {
    fn from(bad: Bad) -> Self {
        Self::new(SampleId(bad.sample), bad.path, lasting(&bad.kind), bad.reason)
    }
}

/// The same word with a lifetime that failures ask for. There are a dozen of them, each kept once.
fn lasting(word: &str) -> &'static str {
    static WORDS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = words.get(word) {
        return known;
    }
    let kept: &'static str = Box::leak(word.to_owned().into_boxed_str());
    words.insert(kept);
    kept
}

/// Why a run cannot go on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Breakage {
    Sample { failure: Bad },
    Budget { failed: u64, allowed: u64, last: Bad },
    OutOfStep { batch: u64, last: Bad },
    Memory { reason: String },
    Closed,
}

impl From<&RunError> for Breakage {
    fn from(error: &RunError) -> Self {
        match error {
            RunError::Sample(failure) => Self::Sample { failure: failure.into() },
            RunError::Budget { failed, allowed, last } => {
                Self::Budget { failed: *failed, allowed: *allowed, last: last.into() }
            }
            RunError::OutOfStep { batch, last } => Self::OutOfStep { batch: *batch, last: last.into() },
            RunError::Memory(reason) => Self::Memory { reason: reason.clone() },
            RunError::Closed => Self::Closed,
        }
    }
}

impl From<Breakage> for RunError {
    fn from(breakage: Breakage) -> Self {
        match breakage {
            Breakage::Sample { failure } => Self::Sample(failure.into()),
            Breakage::Budget { failed, allowed, last } => Self::Budget { failed, allowed, last: last.into() },
            Breakage::OutOfStep { batch, last } => Self::OutOfStep { batch, last: last.into() },
            Breakage::Memory { reason } => Self::Memory(reason),
            Breakage::Closed => Self::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use sutler_core::Span;
    use sutler_engine::Served;

    use super::*;

    #[test]
    fn a_small_batch_is_the_same_after_the_journey_and_is_told_in_few_words() {
        let served = Served { storage: 1, encoded: 2, decoded: 3, augmented: 4 };
        let counts = Counts { served, storage_reads: 5, storage_bytes: 1_000_000, fetched: 6, warnings: 7 };
        let span = Span { begun: 1_000, fetched: 200_000, finished: 900_000 };
        let course = Course::of(&[span], 0, 1_000_000);
        let delivered = Delivered {
            passed: 0,
            index: 123_456,
            place: Place::Slot(60),
            ids: vec![1_234_567],
            repeats: Repeats::default(),
            labels: vec![999],
            positions: vec![123_456],
            consumed: 123_457,
            course: course.clone(),
            ready_for_nanos: 1_000_000,
            failures: Vec::new(),
            counts,
            figures: None,
        };
        let text = serde_json::to_string(&delivered).unwrap();
        assert!(text.len() < 300, "{} bytes: {text}", text.len());
        let came: Delivered = serde_json::from_str(&text).unwrap();
        assert_eq!((came.counts, came.course, came.ids), (counts, course, vec![1_234_567]));
        assert!(matches!(came.place, Place::Slot(60)) && came.failures.is_empty() && came.figures.is_none());
    }

    #[test]
    fn errors_are_the_same_after_the_journey() {
        let failure = || Failure::new(SampleId(7), "a/b.jpg".into(), "truncated", "it ends early".into());
        for error in [
            RunError::Sample(failure()),
            RunError::Budget { failed: 3, allowed: 2, last: failure() },
            RunError::OutOfStep { batch: 4, last: failure() },
            RunError::Memory("none".into()),
            RunError::Closed,
        ] {
            let text = serde_json::to_string(&Breakage::from(&error)).unwrap();
            assert_eq!(RunError::from(serde_json::from_str::<Breakage>(&text).unwrap()), error, "{text}");
        }
    }
}
