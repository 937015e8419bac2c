//! Sound: fetch, draw, decode, transform; and what the headers of a dataset's files say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sutler_core::{Hints, SampleId, SampleRng};
use sutler_media::audio::{self, Header, Limits, Pipeline, Plan, Worker};
use sutler_store::{ReadBuffer, Source};

use crate::preparation::Laps;
use crate::{
    Boundary, Failure, Likeness, NoBoundary, Padding, Place, Preparation, Preparer, Progress, RowSpec,
    SampleRecord, Target, Unfinished,
};

/// How much of a file is read for its header: descriptions and pictures in front of the sound take some kilobytes.
const START_BYTES: usize = 64 << 10;

/// How the clips of a job are prepared.
#[derive(Clone)]
pub struct AudioPreparation {
    /// Where the encoded clips are.
    pub source: Arc<dyn Source>,
    /// What is done to them.
    pub pipeline: Arc<Pipeline>,
    /// What is refused.
    pub limits: Limits,
    /// Whether all channels are mixed to one.
    pub mono: bool,
    /// With the epoch and the sample, the origin of all randomness.
    pub seed: u64,
    /// How clips of different lengths become one block, if they do.
    pub padding: Option<Padding>,
}

impl Preparation for AudioPreparation {
    fn row(&self) -> RowSpec {
        RowSpec::Varies
    }

    fn padding(&self) -> Option<Padding> {
        self.padding
    }

    /// Only jobs that do the same share anything: sound has no form between the file and the finished sample that is kept.
    fn likeness(&self) -> Likeness {
        let finished = format!("{:?} {}", self.pipeline, self.mono);
        Likeness { decoded: finished.clone(), finished, decoded_on_the_way: false }
    }

    /// The size of the file, and how long the clip will be by the speed that is drawn for it.
    fn hints(&self, sample: SampleId, epoch: u32) -> Hints {
        let mut plan = Plan::default();
        self.pipeline.draw(&mut SampleRng::new(self.seed, epoch, sample), &mut plan);
        hints(self.source.encoded_bytes(sample), &plan)
    }

    fn steps(&self) -> Vec<String> {
        let ops = self.pipeline.ops().iter().map(|op| op.name().to_owned());
        std::iter::once("decode".to_owned()).chain(ops).collect()
    }

    fn label(&self, sample: SampleId) -> i64 {
        self.source.label(sample)
    }

    fn describe(&self, sample: SampleId) -> String {
        self.source.describe(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(AudioPreparer {
            preparation: self.clone(),
            buffer: ReadBuffer::default(),
            worker: Worker::new(self.limits, self.mono),
            plan: Plan::default(),
        })
    }
}

struct AudioPreparer {
    preparation: AudioPreparation,
    buffer: ReadBuffer,
    worker: Worker,
    plan: Plan,
}

/// A clip that stands before operation `next`.
struct Standing {
    clip: audio::Unfinished,
    plan: Plan,
    next: usize,
}

/// A sample and all that concerns it on its way.
type Part<'a> = (SampleId, &'a mut dyn Place, &'a mut SampleRecord, &'a mut dyn Boundary);

fn hints(bytes: Option<u64>, plan: &Plan) -> Hints {
    let size = bytes.map(|bytes| bytes as f64);
    Hints { size, drawn: size.map(|size| size * plan.stretch()), values: None }
}

impl Preparer for AudioPreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        epoch: u32,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        self.prepare_in_steps(sample, epoch, place, record, &mut NoBoundary).map(|_| ())
    }

    fn prepare_in_steps(
        &mut self,
        sample: SampleId,
        epoch: u32,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let mut laps = Laps::start();
        let Self { preparation, buffer, worker, plan } = self;
        let AudioPreparation { source, pipeline, seed, .. } = &*preparation;
        let failure = |kind, reason: String| Failure::new(sample, source.describe(sample), kind, reason);

        let read = source.read(sample, buffer);
        record.fetch = record.started.elapsed();
        let bytes = read.map_err(|error| failure(error.kind(), error.to_string()))?;
        record.storage_reads = 1;
        record.storage_bytes = bytes.len() as u64;

        pipeline.draw(&mut SampleRng::new(*seed, epoch, sample), plan);
        record.hints = hints(Some(record.storage_bytes), plan);
        worker.decode(bytes).map_err(|error| failure(error.kind(), error.to_string()))?;
        record.decode = record.started.elapsed().saturating_sub(record.fetch);
        laps.end(0, record);
        self.transform(0, true, (sample, place, record, boundary))
    }

    fn go_on(
        &mut self,
        unfinished: Unfinished,
        sample: SampleId,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let Ok(standing) = unfinished.downcast::<Standing>() else {
            return Err(self.failure(sample, "internal", "what was put aside of it is no clip".to_owned()));
        };
        let Standing { clip, plan, next } = *standing;
        self.worker.take_up(clip);
        self.plan = plan;
        self.transform(next, false, (sample, place, record, boundary))
    }
}

impl AudioPreparer {
    fn failure(&self, sample: SampleId, kind: &'static str, reason: String) -> Failure {
        Failure::new(sample, self.preparation.source.describe(sample), kind, reason)
    }

    /// Runs the operations from `first` on and writes the result, unless others are to go first. One that was taken up again, and
    /// is not `fresh`, has work to do before it may be put aside once more.
    fn transform(
        &mut self,
        first: usize,
        fresh: bool,
        (sample, place, record, boundary): Part<'_>,
    ) -> Result<Progress, Failure> {
        let begun = Instant::now();
        let mut laps = Laps::start();
        let transform =
            |this: &Self, error: audio::PipelineError| this.failure(sample, "transform", error.to_string());
        for next in first..self.preparation.pipeline.ops().len() {
            if (fresh || next > first) && boundary.parks(next + 1) {
                record.augment += begun.elapsed();
                let clip = self.worker.put_aside();
                let plan = std::mem::take(&mut self.plan);
                return Ok(Progress::Parked(Box::new(Standing { clip, plan, next })));
            }
            let stepped = self.worker.step(&self.preparation.pipeline, &self.plan, next);
            stepped.map_err(|error| transform(self, error))?;
            laps.end(next + 1, record);
        }
        let shape = self.worker.shape();
        let out = match place.target() {
            None => return Ok(Progress::Finished),
            Some(Target::Row(row)) => row,
            Some(Target::Own(own)) => {
                own.shape = shape.axes();
                own.data.resize(shape.bytes(), 0);
                &mut own.data[..]
            }
        };
        self.worker.write(out).map_err(|error| transform(self, error))?;
        laps.end(self.preparation.pipeline.ops().len(), record);
        record.augment += begun.elapsed();
        Ok(Progress::Finished)
    }
}

/// What the headers of all files say, without decoding them; `None` for those that say nothing or cannot be read, which
/// preparing them will explain.
#[must_use]
pub fn audio_headers(source: &dyn Source, threads: usize) -> Vec<Option<Header>> {
    let next = AtomicUsize::new(0);
    let mut headers = vec![None; source.len()];
    std::thread::scope(|scope| {
        let work = || {
            let mut buffer = ReadBuffer::default();
            let mut found = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= source.len() {
                    return found;
                }
                found.push((index, header(source, SampleId(index as u32), &mut buffer)));
            }
        };
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(found) => found.into_iter().for_each(|(index, header)| headers[index] = header),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    headers
}

fn header(source: &dyn Source, sample: SampleId, buffer: &mut ReadBuffer) -> Option<Header> {
    let (start, file_bytes) = source.read_start(sample, START_BYTES, buffer).ok()?;
    if start.len() as u64 == file_bytes {
        return audio::probe(start).ok();
    }
    if let Some(header) = audio::header_from_start(start, file_bytes) {
        return Some(header);
    }
    audio::probe(source.read(sample, buffer).ok()?).ok()
}
