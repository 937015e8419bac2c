//! Sound: draw, fetch, decode, transform, or a shorter way from a copy that was kept; and what the headers of a dataset's files say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sutler_core::{Draw, Form, Hints, SampleId, SampleRng};
use sutler_media::audio::{self, DecodedForm, Header, Limits, Pipeline, Plan, Worker};
use sutler_store::cache::Cache;
use sutler_store::{ReadBuffer, Source};

use crate::copies::{Fetched, Fetching, give_back_giant, kept_as, read_copy, seat};
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
    /// Where copies of samples are kept, if they are.
    pub cache: Option<Arc<Cache>>,
}

impl Preparation for AudioPreparation {
    fn row(&self) -> RowSpec {
        RowSpec::Varies
    }

    fn padding(&self) -> Option<Padding> {
        self.padding
    }

    fn kept_as(&self, sample: SampleId) -> Form {
        kept_as(self.cache.as_deref(), sample)
    }

    /// Only jobs that do the same share a window: for others nothing is left there but what the cache keeps.
    fn likeness(&self) -> Likeness {
        let finished = format!("{:?} {}", self.pipeline, self.mono);
        Likeness { decoded: finished.clone(), finished, decoded_on_the_way: false }
    }

    /// The size of the file, and how long the clip will be by the speed that is drawn for it.
    fn hints(&self, sample: SampleId, draw: Draw) -> Hints {
        if self.kept_as(sample) == Form::Decoded {
            return Hints::default();
        }
        let mut plan = Plan::default();
        self.pipeline.draw(&mut SampleRng::for_draw(self.seed, draw, sample), &mut plan);
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
        let tools = Tools {
            worker: Worker::new(self.limits, self.mono),
            plan: Plan::default(),
            form: DecodedForm::new(&self.pipeline, self.mono),
            decoded: Vec::new(),
        };
        Box::new(AudioPreparer { preparation: self.clone(), fetching: Fetching::default(), tools })
    }
}

struct AudioPreparer {
    preparation: AudioPreparation,
    fetching: Fetching,
    tools: Tools,
}

/// What a worker has for the clip at hand.
struct Tools {
    worker: Worker,
    plan: Plan,
    form: DecodedForm,
    /// The decoded copy that is read or made.
    decoded: Vec<u8>,
}

/// A clip that stands before operation `next`.
struct Standing {
    clip: audio::Unfinished,
    plan: Plan,
    next: usize,
}

/// A sample and all that concerns it on its way.
struct Part<'a> {
    sample: SampleId,
    place: &'a mut dyn Place,
    record: &'a mut SampleRecord,
    boundary: &'a mut dyn Boundary,
    /// What it was decoded from, where its copy may be kept once it has proved to be good.
    offered: Option<Offered<'a>>,
}

struct Offered<'a> {
    cache: &'a Cache,
    fetched: Fetched<'a>,
    /// Whether there is a decoded copy that is of no use here.
    foreign: bool,
}

/// Where a clip was found.
enum Recalled {
    /// In its decoded form.
    Yes,
    /// In one that was kept for other operations.
    Foreign,
    No,
}

fn hints(bytes: Option<u64>, plan: &Plan) -> Hints {
    let size = bytes.map(|bytes| bytes as f64);
    Hints { size, drawn: size.map(|size| size * plan.stretch()), values: None }
}

impl Preparer for AudioPreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        self.prepare_in_steps(sample, draw, place, record, &mut NoBoundary).map(|_| ())
    }

    fn prepare_in_steps(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let mut laps = Laps::start();
        let Self { preparation, fetching, tools } = self;
        let AudioPreparation { source, pipeline, seed, cache, .. } = &*preparation;
        let failure = |kind, reason: String| Failure::new(sample, source.describe(sample), kind, reason);

        pipeline.draw(&mut SampleRng::for_draw(*seed, draw, sample), &mut tools.plan);
        let recalled = cache.as_deref().map_or(Recalled::No, |cache| tools.recall(cache, sample));
        if let Recalled::Yes = recalled {
            record.served = Form::Decoded;
            record.decode = record.started.elapsed();
            laps.end(0, record);
            let part = Part { sample, place, record, boundary, offered: None };
            return tools.transform(preparation, tools.form.prefix(), true, part);
        }
        let fetched = fetching
            .fetch(&**source, cache.as_deref(), sample, record)
            .map_err(|error| failure(error.kind(), error.to_string()))?;
        record.hints = hints(Some(fetched.bytes.len() as u64), &tools.plan);
        tools.worker.decode(fetched.bytes).map_err(|error| failure(error.kind(), error.to_string()))?;
        record.decode = record.started.elapsed().saturating_sub(record.fetch);
        laps.end(0, record);
        let foreign = matches!(recalled, Recalled::Foreign);
        let offered = cache.as_deref().map(|cache| Offered { cache, fetched, foreign });
        tools.transform(preparation, 0, true, Part { sample, place, record, boundary, offered })
    }

    fn go_on(
        &mut self,
        unfinished: Unfinished,
        sample: SampleId,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let Self { preparation, tools, .. } = self;
        let Ok(standing) = unfinished.downcast::<Standing>() else {
            let reason = "what was put aside of it is no clip".to_owned();
            return Err(Failure::new(sample, preparation.describe(sample), "internal", reason));
        };
        let Standing { clip, plan, next } = *standing;
        tools.worker.take_up(clip);
        tools.plan = plan;
        // What was read of it is another worker's, or gone: it is offered when it is read again.
        let part = Part { sample, place, record, boundary, offered: None };
        tools.transform(preparation, next, false, part)
    }
}

impl Tools {
    /// Takes up a clip from its decoded copy, if there is one.
    fn recall(&mut self, cache: &Cache, sample: SampleId) -> Recalled {
        if !read_copy(cache, sample, Form::Decoded, &mut self.decoded) {
            return Recalled::No;
        }
        if self.worker.recall(&self.form, &self.decoded) { Recalled::Yes } else { Recalled::Foreign }
    }

    /// Keeps the clip, which has all operations behind it that draw nothing, in the form there is room for.
    fn keep(&mut self, sample: SampleId, offered: &Offered<'_>) {
        let Offered { cache, fetched, foreign } = *offered;
        let decoded_bytes = || Some(self.worker.decoded_bytes());
        match seat(cache, sample, fetched, decoded_bytes, foreign) {
            Some(seat) if seat.form() == Form::Decoded => {
                self.worker.keep(&self.form, &mut self.decoded);
                seat.commit(&[&self.decoded]);
                give_back_giant(&mut self.decoded);
            }
            Some(seat) => seat.commit(&[fetched.bytes]),
            None => {}
        }
    }

    /// Runs the operations from `first` on and writes the result, unless others are to go first. One that was taken up again, and
    /// is not `fresh`, has work to do before it may be put aside once more.
    fn transform(
        &mut self,
        preparation: &AudioPreparation,
        first: usize,
        fresh: bool,
        part: Part<'_>,
    ) -> Result<Progress, Failure> {
        let Part { sample, place, record, boundary, mut offered } = part;
        let begun = Instant::now();
        let mut laps = Laps::start();
        let pipeline = &preparation.pipeline;
        let failure = |error: audio::PipelineError| {
            Failure::new(sample, preparation.describe(sample), "transform", error.to_string())
        };
        for next in first..pipeline.ops().len() {
            if let Some(offered) = offered.take_if(|_| next == self.form.prefix()) {
                self.keep(sample, &offered);
            }
            if (fresh || next > first) && boundary.parks(next + 1) {
                record.augment += begun.elapsed();
                let clip = self.worker.put_aside();
                let plan = std::mem::take(&mut self.plan);
                return Ok(Progress::Parked(Box::new(Standing { clip, plan, next })));
            }
            self.worker.step(pipeline, &self.plan, next).map_err(failure)?;
            laps.end(next + 1, record);
        }
        if let Some(offered) = offered {
            self.keep(sample, &offered);
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
        self.worker.write(out).map_err(failure)?;
        laps.end(pipeline.ops().len(), record);
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
