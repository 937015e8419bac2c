//! A preparation whose every answer is known beforehand, and a way to run whole epochs of it.

#![allow(dead_code)] // every test file takes what it needs

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sutler_core::{Draw, EpochPlan, Form, JobCursor, JobSpec, Permutation, SampleId, SampleRng, Shard};
use sutler_engine::{
    Batch, Boundary, Common, Engine, ErrorPolicy, Exchange, Failure, Job, JobOptions, Likeness, Next,
    OwnSample, Place, Preparation, Preparer, Progress, RowSpec, Run, RunError, SampleRecord, ServingOrder,
    Snapshot, Target, Unfinished,
};

/// An epoch over what a sampler drew.
pub fn drawn(indices: &[u64], samples: u32, batch_size: u32, cursor: JobCursor) -> EpochPlan {
    let mut plan = EpochPlan::to_be_drawn(batch_size, false, cursor).unwrap();
    plan.extend(indices, samples).unwrap();
    plan.end();
    plan
}

/// An epoch over what a batch sampler drew.
pub fn drawn_batches(batches: &[Vec<u64>], samples: u32) -> EpochPlan {
    let mut plan = EpochPlan::batches_to_be_drawn(JobCursor::start_of(0));
    plan.extend_batches(batches, samples).unwrap();
    plan.end();
    plan
}

/// Long enough that only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An engine with one job, and the bytes that come out of it.
pub struct Loader {
    pub engine: Engine,
    pub job: Arc<Job>,
    samples: u32,
}

impl Loader {
    /// Batches of 16.
    pub fn new(preparation: Arc<dyn Preparation>, samples: u32, threads: usize, errors: ErrorPolicy) -> Self {
        let job = Job::new(preparation, JobOptions { errors, ..options(16, 3) }).unwrap();
        Self { engine: Engine::new(threads).unwrap(), job, samples }
    }

    /// The ids and bytes of an epoch's batches.
    pub fn epoch(&self, epoch: u32) -> Vec<(Vec<SampleId>, Vec<u8>)> {
        let mut run = self.engine.start(&self.job, whole(self.samples, 16, epoch), epoch);
        let mut batches = Vec::new();
        loop {
            match run.next(PATIENCE).unwrap() {
                Next::Batch(batch) => {
                    let own = || batch.take_owned().into_iter().flat_map(|sample| sample.data).collect();
                    let mut bytes = batch.block().map_or_else(own, <[u8]>::to_vec);
                    bytes.extend_from_slice(batch.block_beside().unwrap_or_default());
                    batches.push((batch.ids().to_vec(), bytes));
                }
                Next::End => return batches,
                Next::Passed => {}
                Next::TimedOut => panic!("no batch in {PATIENCE:?}"),
            }
        }
    }

    pub fn figures(&self) -> Snapshot {
        self.job.snapshot()
    }
}

/// The bytes of a sample in an epoch.
pub fn expected(sample: SampleId, epoch: u32, bytes: usize) -> Vec<u8> {
    let mut rng = SampleRng::new(7, epoch, sample);
    (0..bytes).map(|_| rng.next_u32() as u8).collect()
}

/// Prepares [`expected`] bytes, unless it was told to do worse.
#[derive(Default)]
pub struct Fake {
    /// Bytes per sample; 0 for samples that differ in size.
    pub row_bytes: usize,
    /// Samples that fail.
    pub bad: BTreeSet<u32>,
    /// Samples that panic.
    pub panics: BTreeSet<u32>,
    /// The tools themselves panic, this many times.
    pub broken_tools: AtomicUsize,
    /// Samples that take this long on top.
    pub slow: (BTreeSet<u32>, Duration),
    /// Sleep up to so many microseconds, by sample and epoch.
    pub sleep_micros_max: u64,
    /// Samples prepared so far, failed ones included.
    pub prepared: AtomicUsize,
    /// Samples in the order in which they were begun.
    pub begun: Mutex<Vec<u32>>,
    /// Sets of tools made so far.
    pub tools: AtomicUsize,
    /// What it makes of samples, where jobs make different things of them. Kinds that are equal but for the last digit decode alike.
    pub kind: u8,
    /// Samples that went on from what another job had left.
    pub went_on: AtomicUsize,
    /// In how many steps a sample is prepared; between two of them it may make room.
    pub steps: usize,
    /// How often one did, and how many stand so at the moment and at most.
    pub parked: AtomicUsize,
    pub standing: AtomicUsize,
    pub standing_max: AtomicUsize,
}

impl Fake {
    pub fn fixed(row_bytes: usize) -> Self {
        Self { row_bytes, ..Self::default() }
    }

    pub fn sleeping(self, sleep_micros_max: u64) -> Self {
        Self { sleep_micros_max, ..self }
    }

    /// What this job has in common with others of a sample: what was read with all, what was decoded with those that decode alike.
    fn common(&self, sample: SampleId, form: Form) -> Vec<u8> {
        let decoder = if form == Form::Decoded { self.kind / 10 } else { 0 };
        [&[form as u8, decoder], &sample.0.to_le_bytes()[..]].concat()
    }

    /// How many bytes a sample has.
    pub fn bytes_of(&self, sample: SampleId) -> usize {
        if self.row_bytes > 0 { self.row_bytes } else { 3 * (1 + sample.index() % 5) }
    }
}

/// A [`Fake`] that the test keeps a hand on.
pub struct Shared(pub Arc<Fake>);

impl Preparation for Shared {
    fn row(&self) -> RowSpec {
        match self.0.row_bytes {
            0 => RowSpec::Varies,
            bytes => RowSpec::Fixed { bytes },
        }
    }

    fn label(&self, sample: SampleId) -> i64 {
        i64::from(sample.0) * 10
    }

    fn describe(&self, sample: SampleId) -> String {
        format!("fake/{}", sample.0)
    }

    fn likeness(&self) -> Likeness {
        let kind = self.0.kind;
        Likeness {
            finished: kind.to_string(),
            decoded: (kind / 10).to_string(),
            decoded_on_the_way: kind >= 100,
        }
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        self.0.tools.fetch_add(1, Ordering::Relaxed);
        let breaks =
            self.0.broken_tools.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        assert!(breaks.is_err(), "the tools are broken");
        Box::new(FakePreparer(Arc::clone(&self.0)))
    }
}

struct FakePreparer(Arc<Fake>);

impl Preparer for FakePreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        self.0.prepared.fetch_add(1, Ordering::SeqCst);
        self.work(sample, draw, place, record)?;
        record.storage_reads = 1;
        record.storage_bytes = 100;
        Ok(())
    }

    fn prepare_in_steps(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        if self.0.steps == 0 {
            return self.prepare(sample, draw, place, record).map(|()| Progress::Finished);
        }
        self.0.prepared.fetch_add(1, Ordering::SeqCst);
        self.walk((sample, draw, 0), place, record, boundary)
    }

    fn go_on(
        &mut self,
        unfinished: Unfinished,
        sample: SampleId,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let standing = unfinished.downcast::<FakeStanding>().expect("it is ours");
        assert_eq!(standing.sample, sample, "another sample's work");
        let (draw, next) = (standing.draw, standing.next);
        drop(standing);
        self.walk((sample, draw, next), place, record, boundary)
    }

    fn prepare_with(
        &mut self,
        exchange: Exchange<'_>,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        match exchange {
            Exchange::Given(common) => {
                assert_eq!(common.data, self.0.common(sample, common.form), "{:?}", common.form);
                self.0.went_on.fetch_add(1, Ordering::SeqCst);
                self.work(sample, draw, place, record)
            }
            Exchange::Wanted(request) => {
                self.prepare(sample, draw, place, record)?;
                let data = self.0.common(sample, request.form);
                request.left = Some(Common { form: request.form, data });
                Ok(())
            }
        }
    }
}

/// A sample that has taken some of its steps.
struct FakeStanding {
    sample: SampleId,
    draw: Draw,
    next: usize,
    fake: Arc<Fake>,
}

impl Drop for FakeStanding {
    fn drop(&mut self) {
        self.fake.standing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FakePreparer {
    /// Takes the steps from `first` on, each as long as the others, and puts the sample in its place.
    fn walk(
        &mut self,
        (sample, draw, first): (SampleId, Draw, usize),
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let fake = Arc::clone(&self.0);
        let slow = fake.slow.0.contains(&sample.0);
        let each = if slow { fake.slow.1 } else { Duration::from_micros(fake.sleep_micros_max) };
        for next in first..fake.steps {
            if next > first && boundary.parks(next) {
                fake.parked.fetch_add(1, Ordering::SeqCst);
                let standing = fake.standing.fetch_add(1, Ordering::SeqCst) + 1;
                fake.standing_max.fetch_max(standing, Ordering::SeqCst);
                let fake = Arc::clone(&fake);
                return Ok(Progress::Parked(Box::new(FakeStanding { sample, draw, next, fake })));
            }
            std::thread::sleep(each / fake.steps as u32);
            record.augment += each / fake.steps as u32;
            record.steps.add(next, (each / fake.steps as u32).as_micros() as u64);
        }
        self.put(sample, draw, place).map(|()| Progress::Finished)
    }

    fn work(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let fake = &self.0;
        fake.begun.lock().unwrap().push(sample.0);
        let mut rng = SampleRng::for_draw(1, draw, sample);
        if fake.sleep_micros_max > 0 {
            std::thread::sleep(Duration::from_micros(u64::from(rng.next_u32()) % fake.sleep_micros_max));
        }
        if fake.slow.0.contains(&sample.0) {
            std::thread::sleep(fake.slow.1);
        }
        record.decode = record.started.elapsed();
        self.put(sample, draw, place)
    }

    fn put(&mut self, sample: SampleId, draw: Draw, place: &mut dyn Place) -> Result<(), Failure> {
        let fake = &self.0;
        assert!(!fake.panics.contains(&sample.0), "sample {} is poison", sample.0);
        if fake.bad.contains(&sample.0) {
            let path = format!("fake/{}", sample.0);
            return Err(Failure::new(sample, path, "corrupt", "it is bad".to_owned()));
        }
        let bytes = fake.bytes_of(sample);
        let out = match place.target() {
            None => return Ok(()),
            Some(Target::Row(row)) => row,
            Some(Target::Own(own)) => {
                own.shape = [1, bytes as u32 / 3, 3];
                own.data.resize(bytes, 0);
                &mut own.data[..]
            }
        };
        let mut rng = SampleRng::for_draw(7, draw, sample);
        out.fill_with(|| rng.next_u32() as u8);
        if fake.kind > 0 {
            out[0] = fake.kind;
        }
        Ok(())
    }
}

pub fn options(batch_size: usize, batches_ahead: usize) -> JobOptions {
    JobOptions {
        batch_size,
        batches_ahead,
        ahead_grows: false,
        batches_held: 1,
        errors: ErrorPolicy::Raise,
        go_on: false,
        in_step: false,
        order: ServingOrder::Strict,
    }
}

pub fn job(fake: &Arc<Fake>, options: JobOptions) -> Arc<Job> {
    Job::new(Arc::new(Shared(Arc::clone(fake))), options).unwrap()
}

/// A rank's shuffled epoch from a cursor on.
pub fn plan(samples: u32, batch_size: u32, drop_last: bool, shard: Shard, cursor: JobCursor) -> EpochPlan {
    let spec = JobSpec { batch_size, drop_last, shard };
    EpochPlan::new(Permutation::shuffled(samples, 3, cursor.epoch), &spec, cursor).unwrap()
}

/// All of an epoch for a single rank.
pub fn whole(samples: u32, batch_size: u32, epoch: u32) -> EpochPlan {
    plan(samples, batch_size, false, Shard::WHOLE, JobCursor::start_of(epoch))
}

/// A delivered batch, checked against what its samples must hold, as plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    pub ids: Vec<u32>,
    pub bytes: Vec<u8>,
}

pub fn check_batch(batch: &Batch, fake: &Fake, epoch: u32) -> Delivered {
    let ids: Vec<u32> = batch.ids().iter().map(|id| id.0).collect();
    assert_eq!(batch.len(), ids.len());
    assert_eq!(batch.labels(), ids.iter().map(|&id| i64::from(id) * 10).collect::<Vec<_>>());
    let bytes = match batch.block() {
        Some(block) => block.to_vec(),
        None => batch.take_owned().into_iter().flat_map(|OwnSample { data, .. }| data).collect(),
    };
    let right: Vec<u8> = batch.ids().iter().flat_map(|&id| expected(id, epoch, fake.bytes_of(id))).collect();
    assert_eq!(bytes, right, "the bytes of samples {ids:?}");
    Delivered { ids, bytes }
}

/// The next batch, or `None` at the end.
pub fn next(run: &mut Run) -> Result<Option<Batch>, RunError> {
    loop {
        match run.next(PATIENCE)? {
            Next::Batch(batch) => return Ok(Some(batch)),
            Next::End => return Ok(None),
            Next::Passed => {}
            Next::TimedOut => panic!("no batch in {PATIENCE:?}"),
        }
    }
}

/// Up to `limit` batches of a run, checked.
pub fn drain(run: &mut Run, fake: &Fake, epoch: u32, limit: usize) -> Vec<Delivered> {
    let mut delivered = Vec::new();
    while delivered.len() < limit {
        match next(run).unwrap() {
            Some(batch) => delivered.push(check_batch(&batch, fake, epoch)),
            None => break,
        }
    }
    delivered
}

/// One whole epoch on an engine of its own.
pub fn epoch(
    fake: &Arc<Fake>,
    options: JobOptions,
    plan: EpochPlan,
    epoch: u32,
    threads: usize,
) -> Vec<Delivered> {
    let engine = Engine::new(threads).unwrap();
    let job = job(fake, options);
    drain(&mut engine.start(&job, plan, epoch), fake, epoch, usize::MAX)
}

/// How many threads of this process are Sutler's workers.
pub fn worker_threads() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok())
        .filter(|status| is_worker(status))
        .count()
}

/// Whether the kernel's line about a thread is of a worker. One that is ending is none: it may have been joined already.
fn is_worker(status: &str) -> bool {
    const EXITING: u32 = 0x4;
    let (head, rest) = status.rsplit_once(')').unwrap();
    let flags: u32 = rest.split_whitespace().nth(6).unwrap().parse().unwrap();
    head.contains("(sutler-") && flags & EXITING == 0
}
