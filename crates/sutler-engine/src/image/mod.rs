//! Images: fetch, probe, draw, decode, augment; or a shorter way from a copy that was kept.

mod cached;

use std::sync::Arc;
use std::time::Instant;

use sutler_core::{Form, SampleId, SampleRng};
use sutler_media::{DType, DecodedLayout, Layout, Limits, Pipeline, Plan, Worker, probe};
use sutler_store::cache::Cache;
use sutler_store::{ReadBuffer, Source};

use self::cached::{Admitted, Cached};

use crate::{Failure, Place, Preparation, Preparer, RowSpec, SampleRecord, Target};

/// How the images of a job are prepared.
#[derive(Clone)]
pub struct ImagePreparation {
    /// Where the encoded images are.
    pub source: Arc<dyn Source>,
    /// What is done to them.
    pub pipeline: Arc<Pipeline>,
    /// The order of the values in memory.
    pub layout: Layout,
    /// What is refused.
    pub limits: Limits,
    /// With the epoch and the sample, the origin of all randomness.
    pub seed: u64,
    /// Where copies of samples are kept, if they are.
    pub cache: Option<Arc<Cache>>,
}

impl ImagePreparation {
    fn value_bytes(&self) -> usize {
        match self.pipeline.output().dtype {
            DType::U8 => 1,
            DType::F32 => 4,
        }
    }

    fn bytes_of(&self, [height, width]: [u32; 2]) -> usize {
        height as usize * width as usize * 3 * self.value_bytes()
    }
}

impl Preparation for ImagePreparation {
    fn row(&self) -> RowSpec {
        match self.pipeline.output().size {
            Some(size) => RowSpec::Fixed { bytes: self.bytes_of(size) },
            None => RowSpec::Varies,
        }
    }

    fn is_kept(&self, sample: SampleId) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.has(sample))
    }

    fn label(&self, sample: SampleId) -> i64 {
        self.source.label(sample)
    }

    fn describe(&self, sample: SampleId) -> String {
        self.source.describe(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(ImagePreparer {
            buffer: ReadBuffer::default(),
            encoded: Vec::new(),
            worker: Worker::new(self.limits),
            plan: Plan::default(),
            cached: self.cache.as_ref().map(|cache| Cached::new(Arc::clone(cache), &self.pipeline)),
            preparation: self.clone(),
        })
    }
}

struct ImagePreparer {
    preparation: ImagePreparation,
    buffer: ReadBuffer,
    /// The encoded copy being decoded, where the cache has one.
    encoded: Vec<u8>,
    worker: Worker,
    plan: Plan,
    cached: Option<Cached>,
}

/// What is left to do to pixels that a worker has loaded.
enum Rest {
    /// The whole pipeline.
    All,
    /// What follows a decoded form that is laid out like this.
    After(DecodedLayout),
}

impl Preparer for ImagePreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        epoch: u32,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let rest = match self.recall(sample, epoch, record) {
            Some(layout) => Rest::After(layout),
            None => self.decode(sample, epoch, record)?,
        };
        let decoded = Instant::now();
        record.decode = (decoded - record.started).saturating_sub(record.fetch);

        let out = match place.target() {
            None => return Ok(()),
            Some(Target::Row(row)) => row,
            Some(Target::Own(own)) => {
                let [height, width] = self.plan.output_size();
                own.shape = [height, width, 3];
                own.data.resize(self.preparation.bytes_of([height, width]), 0);
                &mut own.data[..]
            }
        };
        let pipeline = match (&rest, &self.cached) {
            (Rest::After(layout), Some(cached)) => cached.rest(layout),
            _ => &self.preparation.pipeline,
        };
        self.worker
            .augment(pipeline, &self.plan, self.preparation.layout, out)
            .map_err(|error| self.failure(sample, "transform", error.to_string()))?;
        record.augment = decoded.elapsed();
        Ok(())
    }
}

impl ImagePreparer {
    fn failure(&self, sample: SampleId, kind: &'static str, reason: String) -> Failure {
        Failure::new(sample, self.preparation.source.describe(sample), kind, reason)
    }

    /// Loads the sample from its decoded form, if the cache has it.
    fn recall(&mut self, sample: SampleId, epoch: u32, record: &mut SampleRecord) -> Option<DecodedLayout> {
        let mut rng = SampleRng::new(self.preparation.seed, epoch, sample);
        let tools = (&mut self.worker, &mut self.plan);
        let layout = self.cached.as_mut()?.recall(sample, &mut rng, tools)?;
        record.served = Form::Decoded;
        Some(layout)
    }

    /// Loads the sample from its encoded form, kept or stored, and sees to it that what was stored is kept if it may be.
    fn decode(&mut self, sample: SampleId, epoch: u32, record: &mut SampleRecord) -> Result<Rest, Failure> {
        let Self { preparation, buffer, encoded, worker, plan, cached } = self;
        let ImagePreparation { source, pipeline, limits, seed, .. } = &*preparation;
        let failure = |kind, reason: String| Failure::new(sample, source.describe(sample), kind, reason);

        let from_storage = !cached.as_ref().is_some_and(|cached| cached.read_encoded(sample, encoded));
        let read = if from_storage { source.read(sample, buffer) } else { Ok(&encoded[..]) };
        record.fetch = record.started.elapsed();
        let bytes = read.map_err(|error| failure(error.kind(), error.to_string()))?;
        if from_storage {
            record.storage_reads = 1;
            record.storage_bytes = bytes.len() as u64;
        } else {
            record.served = Form::Encoded;
        }

        let header = probe(bytes, limits).map_err(|error| failure(error.kind(), error.to_string()))?;
        let mut rng = SampleRng::new(*seed, epoch, sample);
        pipeline.draw(&header, &mut rng, plan).map_err(|error| failure("transform", error.to_string()))?;
        let mut seat = None;
        if let Some(cached) = cached.as_mut().filter(|cached| from_storage || cached.may_change_seats()) {
            let mut rng = SampleRng::new(*seed, epoch, sample);
            let offered = (bytes, from_storage);
            match cached.admit(sample, &header, offered, &mut rng, (&mut *worker, &mut *plan)) {
                Admitted::Decoded(layout) => return Ok(Rest::After(layout)),
                Admitted::Encoded(reserved) => seat = Some(reserved),
                Admitted::No => {}
            }
        }
        let warnings = worker
            .decode(pipeline, plan, &header, bytes)
            .map_err(|error| failure(error.kind(), error.to_string()))?;
        record.warned = warnings > 0;
        // Only now: a file that cannot be decoded is not worth its place, and may be mended by the next epoch.
        if let Some(seat) = seat {
            seat.commit(&[bytes]);
        }
        Ok(Rest::All)
    }
}
