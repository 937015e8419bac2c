//! What a worker does to one sample.
//!
//! The engine knows neither images nor files: it hands a sample id and a place for the result to a [`Preparer`] and
//! gets back the stage times or the reason why not.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sutler_core::{Draw, Form, Hints, Repeats, Rota, SampleId, StepTimes};

use crate::{Arena, Failure, Framing, OwnSample, Padding};

/// The memory one prepared sample takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSpec {
    /// Every sample has this many bytes: batches are one block and samples are written straight into it.
    Fixed {
        /// Bytes per sample.
        bytes: usize,
    },
    /// Samples differ in size: each gets a buffer of its own.
    Varies,
}

/// Where a prepared sample goes.
pub enum Target<'a> {
    /// Its row in the batch's memory.
    Row(&'a mut [u8]),
    /// A buffer of its own.
    Own(&'a mut OwnSample),
}

/// How a sample's place is found out, at the moment it is to be written.
///
/// In an order where batches are filled as samples get ready, the answer depends on that moment; so ask when all that
/// is left to do is writing.
pub trait Place {
    /// The place; `None` when nobody wants the sample any more.
    fn target(&mut self) -> Option<Target<'_>>;

    /// The place of the sample's second array, where the target is a row and there is a second array: see
    /// [`Preparation::beside`].
    fn beside(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// A place that is known beforehand.
impl Place for Target<'_> {
    fn target(&mut self) -> Option<Target<'_>> {
        Some(match self {
            Target::Row(row) => Target::Row(row),
            Target::Own(own) => Target::Own(own),
        })
    }
}

/// What happened to one sample, and when. Every figure Sutler reports is summed up from these.
#[derive(Clone, Copy, Debug)]
pub struct SampleRecord {
    /// When a worker took it up.
    pub started: Instant,
    /// Time to get the encoded bytes.
    pub fetch: Duration,
    /// Time to decode them.
    pub decode: Duration,
    /// Time to transform the result and put it in place.
    pub augment: Duration,
    /// Bytes read from storage.
    pub storage_bytes: u64,
    /// Read requests to storage.
    pub storage_reads: u64,
    /// The form it was found in: a copy in memory, or storage.
    pub served: Form,
    /// Whether the decoder complained about the data and went on.
    pub warned: bool,
    /// What [`Preparation::hints`] would have said of it.
    pub hints: Hints,
    /// What each of its steps took, where it is prepared in steps: see [`Preparation::steps`].
    pub steps: StepTimes,
}

impl SampleRecord {
    /// A record that begins now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            fetch: Duration::ZERO,
            decode: Duration::ZERO,
            augment: Duration::ZERO,
            storage_bytes: 0,
            storage_reads: 0,
            served: Form::Storage,
            warned: false,
            hints: Hints::default(),
            steps: StepTimes::default(),
        }
    }

    /// How long workers were at it, in microseconds.
    #[must_use]
    pub fn work_micros(&self) -> u64 {
        u64::try_from((self.fetch + self.decode + self.augment).as_micros()).unwrap_or(u64::MAX)
    }
}

/// The clock that tells the steps of a sample apart.
pub(crate) struct Laps {
    since: Instant,
}

impl Laps {
    /// A step begins.
    pub fn start() -> Self {
        Self { since: Instant::now() }
    }

    /// What was done since the last end was for this step.
    pub fn end(&mut self, step: usize, record: &mut SampleRecord) {
        let now = Instant::now();
        let took = now.saturating_duration_since(self.since);
        record.steps.add(step, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.since = now;
    }
}

/// What decides how much of their preparation the samples of two jobs have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Likeness {
    /// Jobs that agree in this make the same of a sample and the same random numbers.
    pub finished: String,
    /// Jobs that agree in this have the same decoded form of every sample.
    pub decoded: String,
    /// Whether that form comes up on the way to a finished sample.
    pub decoded_on_the_way: bool,
}

/// What jobs with different transforms have in common of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Common {
    /// Encoded or decoded.
    pub form: Form,
    /// As the cache keeps it.
    pub data: Vec<u8>,
}

/// What jobs with different transforms do for each other over one sample.
pub enum Exchange<'a> {
    /// Another job has left this.
    Given(&'a Common),
    /// Others want something.
    Wanted(&'a mut Request),
}

/// What others want of a sample that is about to be prepared.
#[derive(Debug)]
pub struct Request {
    /// In which form. Where it is decoded, encoded will do as well.
    pub form: Form,
    /// The most that a decoded sample may take.
    pub bytes_max: u64,
    /// What is left for them; nothing where the cache has it for all of them.
    pub left: Option<Common>,
}

/// How a job's samples are prepared; shared by all workers.
pub trait Preparation: Send + Sync {
    /// The memory a sample takes.
    fn row(&self) -> RowSpec;

    /// Bytes of a second array that each sample has, where samples have one size: all of a batch make a block of their
    /// own behind that of the rows. What has a buffer of its own has both in it, one after the other.
    fn beside(&self) -> usize {
        0
    }

    /// How samples of different lengths become one block, where they do.
    fn padding(&self) -> Option<Padding> {
        None
    }

    /// How pictures of different sizes become one block, where they do.
    fn framing(&self) -> Option<Framing> {
        None
    }

    /// Whether samples are prepared by somebody else, several at a time.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// Whether one worker prepares all samples of a batch, because it does something with them as a whole.
    fn takes_whole_batches(&self) -> bool {
        false
    }

    /// Who prepares which batch of a run that is about to begin, where whole batches are prepared and workers take turns;
    /// elsewhere whoever is free does.
    fn rota(&self) -> Option<Rota> {
        None
    }

    /// Memory that worker processes write finished rows to by themselves, where there is such.
    fn shared_memory(&self) -> Option<Arc<Arena>> {
        None
    }

    /// The form in which the sample is kept in memory, so that preparing it reads no storage; of several, the one that
    /// serves the most jobs.
    fn kept_as(&self, _sample: SampleId) -> Form {
        Form::Storage
    }

    /// What other jobs over the same dataset may have in common with this one. By default everything.
    fn likeness(&self) -> Likeness {
        Likeness::default()
    }

    /// What is known of a sample beforehand that may tell how long it takes. Workers ask, a little ahead, where what
    /// they noted in [`SampleRecord::hints`] has told something; it should take microseconds.
    fn hints(&self, _sample: SampleId, _draw: Draw) -> Hints {
        Hints::default()
    }

    /// What the steps are called that samples are prepared in, in order; empty where there is but one.
    fn steps(&self) -> Vec<String> {
        Vec::new()
    }

    /// The label that goes with a sample.
    fn label(&self, sample: SampleId) -> i64;

    /// Where the sample comes from, for messages.
    fn describe(&self, sample: SampleId) -> String;

    /// One worker's tools and scratch memory.
    fn preparer(&self) -> Box<dyn Preparer>;
}

/// What a sample has become so far, in memory that is no worker's own.
pub type Unfinished = Box<dyn Any + Send>;

/// What a preparer came back with.
pub enum Progress {
    /// The sample is where it belongs.
    Finished,
    /// It stands between two transforms; [`Preparer::go_on`] takes it up again.
    Parked(Unfinished),
}

/// Whoever says whether a sample makes room for others.
pub trait Boundary {
    /// Asked between two transforms, when this many steps are done: whether the sample is to be put aside. Who is told
    /// so must do it.
    fn parks(&mut self, done: usize) -> bool;

    /// How long a sample may take before there is any use in asking, and whether there ever is.
    fn asks_after(&self) -> Option<Duration>;
}

/// Nobody makes room.
pub struct NoBoundary;

impl Boundary for NoBoundary {
    fn parks(&mut self, _done: usize) -> bool {
        false
    }

    fn asks_after(&self) -> Option<Duration> {
        None
    }
}

/// One worker's side of a [`Preparation`].
pub trait Preparer: Send {
    /// Prepares `sample` with the random numbers of this draw, and notes the stage times. Without a place to go it is
    /// left undone.
    ///
    /// # Errors
    /// When the sample cannot be read, decoded or transformed. What the target then holds is unspecified.
    fn prepare(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure>;

    /// The same where jobs with other transforms have a part in it. Whoever has nothing to give or take may leave it at
    /// [`Preparer::prepare`].
    ///
    /// # Errors
    /// As for [`Preparer::prepare`].
    fn prepare_with(
        &mut self,
        _exchange: Exchange<'_>,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        self.prepare(sample, draw, place, record)
    }

    /// As [`Preparer::prepare`], asking between transforms whether others are to go first. Whoever has but one step may
    /// leave it at that.
    ///
    /// # Errors
    /// As for [`Preparer::prepare`].
    fn prepare_in_steps(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        _boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        self.prepare(sample, draw, place, record).map(|()| Progress::Finished)
    }

    /// Goes on with a sample that this preparer or another one has parked, with the transform that is next. What comes
    /// out is the same as if it had never been parked. The record is the one from before.
    ///
    /// # Errors
    /// As for [`Preparer::prepare`].
    fn go_on(
        &mut self,
        _unfinished: Unfinished,
        sample: SampleId,
        _place: &mut dyn Place,
        _record: &mut SampleRecord,
        _boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let reason = "it was put aside by a preparation that puts nothing aside".to_owned();
        Err(Failure::new(sample, String::new(), "internal", reason))
    }

    /// The process that prepares for this worker, where it is another one.
    fn process(&self) -> Option<i32> {
        None
    }

    /// The number of the process that has prepared last, where it is another one: threads take them as they come.
    fn worker(&self) -> Option<usize> {
        None
    }

    /// Whether what was prepared last took as long as it usually takes, rather than a process having had to begin
    /// first.
    fn has_settled(&self) -> bool {
        true
    }

    /// How many samples this worker would like at a time. More than one pays where handing over a sample costs as much
    /// as preparing it.
    fn appetite(&self) -> usize {
        1
    }

    /// Prepares several samples elsewhere and answers for each; called instead of [`Preparer::prepare`] where
    /// [`Preparation::is_elsewhere`].
    fn prepare_elsewhere(
        &mut self,
        _order: Order<'_>,
        _rows: &mut dyn Rows,
        _boundary: &mut dyn Boundary,
    ) -> Vec<Elsewhere> {
        Vec::new()
    }
}

/// Samples to be prepared elsewhere.
pub struct Order<'a> {
    /// The epoch they are for.
    pub epoch: u32,
    /// Which ones.
    pub samples: &'a [SampleId],
    /// How often each was drawn before.
    pub repeats: &'a Repeats,
    /// Whether they are all the samples of a batch.
    pub whole_batch: bool,
    /// The worker that is to prepare them, where workers take turns.
    pub worker: Option<usize>,
    /// What a single sample has become so far, where it was parked.
    pub unfinished: Option<Unfinished>,
}

/// The rows that the samples of an order go into.
pub trait Rows {
    /// Whether they are to be asked for only when the samples are there.
    fn are_late(&self) -> bool;

    /// The row of the order's sample `index`, the same for each time it is asked; `None` when nobody wants it any more.
    fn row(&mut self, index: usize) -> Option<SharedRow>;
}

/// A row of a batch that worker processes can write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRow {
    /// Which row of its batch.
    pub row: usize,
    /// Where the batch's memory begins in the shared memory, if it has any.
    pub offset: Option<usize>,
}

/// What became of a sample that was to be prepared elsewhere.
#[allow(clippy::large_enum_variant)] // nearly all are the large one, and a box would cost each sample an allocation
pub enum Elsewhere {
    /// It is done with.
    Answered {
        /// When, and how long.
        record: SampleRecord,
        /// The sample, or why not.
        result: Result<ForeignRow, Failure>,
    },
    /// It stands between two transforms. Only an order for a single sample may end so, and only the same preparer can
    /// go on with it.
    Parked(Unfinished),
}

/// A sample that was prepared elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignRow {
    /// Whether its arrays are in the batch's shared memory.
    pub in_block: bool,
    /// What is not.
    pub payload: Parcel,
}

impl ForeignRow {
    /// How much memory it takes beside the batch's; the most there is where that is not known.
    pub(crate) fn bytes_beside(&self) -> usize {
        match &self.payload {
            Parcel::Bytes(bytes) => bytes.len(),
            // What is left of a sample without its arrays is little.
            Parcel::Object(_) if self.in_block => 0,
            Parcel::Object(_) => usize::MAX,
        }
    }
}

/// Something that a preparer leaves for whoever gets the batch. The engine does not look into it.
#[derive(Clone, Debug)]
pub enum Parcel {
    /// From another process, in words that only the two understand; empty where there is nothing to say.
    Bytes(Vec<u8>),
    /// From a thread of this process, as it is.
    Object(Arc<dyn Any + Send + Sync>),
}

impl Default for Parcel {
    fn default() -> Self {
        Self::Bytes(Vec::new())
    }
}

impl PartialEq for Parcel {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(one), Self::Bytes(two)) => one == two,
            (Self::Object(one), Self::Object(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}

impl Eq for Parcel {}
