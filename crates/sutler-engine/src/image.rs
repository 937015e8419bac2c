//! Images: fetch, probe, draw, decode, augment.

use std::sync::Arc;
use std::time::Instant;

use sutler_core::{SampleId, SampleRng};
use sutler_media::{DType, Layout, Limits, Pipeline, Plan, Worker, probe};
use sutler_store::{ReadBuffer, Source};

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

    fn label(&self, sample: SampleId) -> i64 {
        self.source.label(sample)
    }

    fn describe(&self, sample: SampleId) -> String {
        self.source.describe(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(ImagePreparer {
            buffer: ReadBuffer::default(),
            worker: Worker::new(self.limits),
            plan: Plan::default(),
            preparation: self.clone(),
        })
    }
}

struct ImagePreparer {
    preparation: ImagePreparation,
    buffer: ReadBuffer,
    worker: Worker,
    plan: Plan,
}

impl Preparer for ImagePreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        epoch: u32,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let ImagePreparation { source, pipeline, layout, limits, seed } = &self.preparation;
        let failure = |kind, reason: String| Failure::new(sample, source.describe(sample), kind, reason);

        let bytes = source.read(sample, &mut self.buffer);
        let fetched = Instant::now();
        record.fetch = fetched - record.started;
        let bytes = bytes.map_err(|error| failure(error.kind(), error.to_string()))?;
        record.storage_reads = 1;
        record.storage_bytes = bytes.len() as u64;

        let header = probe(bytes, limits).map_err(|error| failure(error.kind(), error.to_string()))?;
        let mut rng = SampleRng::new(*seed, epoch, sample);
        pipeline
            .draw(&header, &mut rng, &mut self.plan)
            .map_err(|error| failure("transform", error.to_string()))?;
        let warnings = self
            .worker
            .decode(pipeline, &self.plan, &header, bytes)
            .map_err(|error| failure(error.kind(), error.to_string()))?;
        record.warned = warnings > 0;
        let decoded = Instant::now();
        record.decode = decoded - fetched;

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
        self.worker
            .augment(pipeline, &self.plan, *layout, out)
            .map_err(|error| failure("transform", error.to_string()))?;
        record.augment = decoded.elapsed();
        Ok(())
    }
}
