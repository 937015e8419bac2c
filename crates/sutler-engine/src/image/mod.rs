//! Images: fetch, probe, draw, decode, augment; or a shorter way from a copy that was kept, or that another job has left.

mod copies;
mod sizes;

use std::sync::Arc;
use std::time::Instant;

use sutler_core::{Draw, Form, Hints, SampleId, SampleRng};
use sutler_media::{
    DType, DecodedForm, DecodedLayout, DecodedPixels, Layout, Limits, Pipeline, Plan, Size, Worker, probe,
};
use sutler_store::Source;
use sutler_store::cache::Cache;

use self::copies::{Admitted, Copies, Read};
pub use self::sizes::PictureSizes;
use self::sizes::Seen;

use crate::copies::{Fetched, Fetching, kept_as};
use crate::preparation::Laps;
use crate::{
    Boundary, Common, Exchange, Failure, Likeness, NoBoundary, Place, Preparation, Preparer, Progress,
    Request, RowSpec, SampleRecord, Target, Unfinished,
};

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
    /// How large pictures are, as far as workers have seen them.
    pub sizes: Arc<PictureSizes>,
}

/// What a pixel of a photograph takes in its file is a quarter of a byte or so, at the usual qualities.
const PIXELS_PER_BYTE: f64 = 4.0;

impl ImagePreparation {
    /// What is known of a picture that nobody has opened in this epoch: its size and kind if somebody has before, or if its annotations
    /// say so.
    fn seen(&self, sample: SampleId) -> Option<Seen> {
        let annotated = || {
            let picture = self.source.annotations()?.picture(sample);
            Some(Seen { size: Size { width: picture.width, height: picture.height }, in_part: true })
        };
        self.sizes.get(sample).or_else(annotated)
    }

    /// What tells how long a picture takes, by the plan that was drawn for it: the bytes of its file, those that the decoder has to go
    /// through for it, and the pixels that are worked on.
    fn hints_of(&self, bytes: u64, seen: Seen, plan: &Plan) -> Hints {
        let effort = plan.effort(&self.pipeline, seen.size, seen.in_part);
        let size = bytes as f64;
        Hints { size: Some(size), drawn: Some(size * effort.file_share), values: Some(effort.pixels) }
    }
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

    fn kept_as(&self, sample: SampleId) -> Form {
        kept_as(self.cache.as_deref(), sample)
    }

    fn likeness(&self) -> Likeness {
        let (pipeline, form) = (&self.pipeline, DecodedForm::new(&self.pipeline));
        Likeness {
            finished: format!("{:?} {:?} {:?}", pipeline.ops(), pipeline.options(), self.layout),
            decoded: form.likeness(),
            decoded_on_the_way: form.is_on_the_way(),
        }
    }

    /// The decisions of the epoch are drawn here as well, for what is known of the picture. Where that is nothing, what a crop
    /// leaves of a file is told by any picture of that shape, but not how many pixels.
    fn hints(&self, sample: SampleId, draw: Draw) -> Hints {
        let kept = |cache: &Arc<Cache>| cache.get(sample, Form::Decoded).is_some();
        let Some(bytes) =
            self.source.encoded_bytes(sample).filter(|_| !self.cache.as_ref().is_some_and(kept))
        else {
            return Hints::default();
        };
        let seen = self.seen(sample);
        let assumed = seen.unwrap_or_else(|| {
            let side = (bytes as f64 * PIXELS_PER_BYTE).sqrt().max(1.0) as u32;
            Seen { size: Size { width: side, height: side }, in_part: true }
        });
        let (mut rng, mut plan) = (SampleRng::for_draw(self.seed, draw, sample), Plan::default());
        let drawn = self.pipeline.foresee(assumed.size, assumed.in_part, &mut rng, &mut plan);
        let hints = self.hints_of(bytes, assumed, &plan);
        match (drawn, seen) {
            (Err(_), _) => Hints { size: hints.size, ..Hints::default() },
            (Ok(()), None) => Hints { values: None, ..hints },
            (Ok(()), Some(_)) => hints,
        }
    }

    fn steps(&self) -> Vec<String> {
        ["decode", "transforms"].map(str::to_owned).to_vec()
    }

    fn label(&self, sample: SampleId) -> i64 {
        self.source.label(sample)
    }

    fn describe(&self, sample: SampleId) -> String {
        self.source.describe(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(ImagePreparer::new(self))
    }
}

pub(crate) struct ImagePreparer {
    preparation: ImagePreparation,
    fetching: Fetching,
    worker: Worker,
    plan: Plan,
    copies: Copies,
    /// The size of the picture prepared last, as its file has it.
    source: Size,
}

/// What is left to do to pixels that a worker has loaded.
enum Rest {
    /// The whole pipeline.
    All,
    /// What follows a decoded form that is laid out like this.
    After(DecodedLayout),
}

/// A sample that is decoded and has its transforms before it.
struct Standing {
    pixels: DecodedPixels,
    plan: Plan,
    source: Size,
}

impl Preparer for ImagePreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        self.prepare_in_steps(sample, draw, place, record, &mut NoBoundary).map(|_| ())
    }

    /// There is one boundary: the transforms after decoding are fused into few passes.
    fn prepare_in_steps(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let mut laps = Laps::start();
        let rest = match self.recall(sample, draw, record) {
            Some(layout) => Rest::After(layout),
            None => self.decode(sample, draw, None, record)?,
        };
        record.decode = record.started.elapsed().saturating_sub(record.fetch);
        laps.end(0, record);
        if matches!(rest, Rest::All) && boundary.parks(1) {
            let pixels = self.worker.put_aside();
            let plan = std::mem::take(&mut self.plan);
            return Ok(Progress::Parked(Box::new(Standing { pixels, plan, source: self.source })));
        }
        self.finish(rest, sample, place, record).map(|()| Progress::Finished)
    }

    fn go_on(
        &mut self,
        unfinished: Unfinished,
        sample: SampleId,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        _boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let Ok(standing) = unfinished.downcast::<Standing>() else {
            return Err(self.failure(
                sample,
                "internal",
                "what was put aside of it is no picture".to_owned(),
            ));
        };
        let Standing { pixels, plan, source } = *standing;
        self.worker.take_up(pixels);
        self.plan = plan;
        self.source = source;
        self.finish(Rest::All, sample, place, record).map(|()| Progress::Finished)
    }

    fn prepare_with(
        &mut self,
        exchange: Exchange<'_>,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let rest = match exchange {
            Exchange::Wanted(request) => match self.recall(sample, draw, record) {
                Some(layout) => Rest::After(layout),
                None => self.decode(sample, draw, Some(request), record)?,
            },
            Exchange::Given(Common { form: Form::Decoded, data }) => {
                match self.load(sample, draw, data, record) {
                    Some(layout) => Rest::After(layout),
                    None => return self.prepare(sample, draw, place, record),
                }
            }
            Exchange::Given(Common { data, .. }) => {
                record.served = Form::Encoded;
                self.decode_given(sample, draw, data, record)?
            }
        };
        record.decode = record.started.elapsed().saturating_sub(record.fetch);
        self.finish(rest, sample, place, record)
    }
}

impl ImagePreparer {
    pub fn new(preparation: &ImagePreparation) -> Self {
        Self {
            fetching: Fetching::default(),
            worker: Worker::new(preparation.limits),
            plan: Plan::default(),
            copies: Copies::new(&preparation.pipeline),
            source: Size::default(),
            preparation: preparation.clone(),
        }
    }

    /// The size of the picture prepared last, as its file has it.
    pub fn source_size(&self) -> Size {
        self.source
    }

    fn failure(&self, sample: SampleId, kind: &'static str, reason: String) -> Failure {
        Failure::new(sample, self.preparation.source.describe(sample), kind, reason)
    }

    fn rng(&self, sample: SampleId, draw: Draw) -> SampleRng {
        SampleRng::for_draw(self.preparation.seed, draw, sample)
    }

    /// Does what is left to do and writes the sample where it belongs.
    fn finish(
        &mut self,
        rest: Rest,
        sample: SampleId,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let decoded = Instant::now();
        let mut laps = Laps::start();
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
        let pipeline = match &rest {
            Rest::After(layout) => self.copies.rest(layout),
            Rest::All => &self.preparation.pipeline,
        };
        self.worker
            .augment(pipeline, &self.plan, self.preparation.layout, out)
            .map_err(|error| self.failure(sample, "transform", error.to_string()))?;
        record.augment = decoded.elapsed();
        laps.end(1, record);
        Ok(())
    }

    /// Loads the sample from its decoded form, if the cache has it.
    fn recall(&mut self, sample: SampleId, draw: Draw, record: &mut SampleRecord) -> Option<DecodedLayout> {
        let mut rng = self.rng(sample, draw);
        let cache = self.preparation.cache.as_deref()?;
        let layout = self.copies.recall(cache, sample, &mut rng, (&mut self.worker, &mut self.plan))?;
        self.source = layout.source_size();
        record.served = Form::Decoded;
        Some(layout)
    }

    /// Loads the sample from a decoded form that another job has left.
    fn load(
        &mut self,
        sample: SampleId,
        draw: Draw,
        data: &[u8],
        record: &mut SampleRecord,
    ) -> Option<DecodedLayout> {
        let mut rng = self.rng(sample, draw);
        let layout = self.copies.load(data, &mut rng, (&mut self.worker, &mut self.plan))?;
        self.source = layout.source_size();
        record.served = Form::Decoded;
        Some(layout)
    }

    /// Loads the sample from its encoded form, which another job has left.
    fn decode_given(
        &mut self,
        sample: SampleId,
        draw: Draw,
        bytes: &[u8],
        record: &mut SampleRecord,
    ) -> Result<Rest, Failure> {
        let Self { preparation, worker, plan, source: size, .. } = self;
        let failure = |kind, reason| Failure::new(sample, preparation.source.describe(sample), kind, reason);
        let ImagePreparation { pipeline, limits, seed, .. } = preparation;
        let header = probe(bytes, limits).map_err(|error| failure(error.kind(), error.to_string()))?;
        *size = header.size();
        pipeline
            .draw(&header, &mut SampleRng::for_draw(*seed, draw, sample), plan)
            .map_err(|error| failure("transform", error.to_string()))?;
        let warnings = worker
            .decode(pipeline, plan, &header, bytes)
            .map_err(|error| failure(error.kind(), error.to_string()))?;
        record.warned = warnings > 0;
        Ok(Rest::All)
    }

    /// Loads the sample from its encoded form, kept or stored, sees to it that what was stored is kept if it may be, and leaves what
    /// others want of it.
    fn decode(
        &mut self,
        sample: SampleId,
        draw: Draw,
        mut request: Option<&mut Request>,
        record: &mut SampleRecord,
    ) -> Result<Rest, Failure> {
        let Self { preparation, fetching, worker, plan, copies, source: size } = self;
        let ImagePreparation { source, pipeline, limits, seed, cache, .. } = &*preparation;
        let failure = |kind, reason: String| Failure::new(sample, source.describe(sample), kind, reason);

        let fetched = fetching
            .fetch(&**source, cache.as_deref(), sample, record)
            .map_err(|error| failure(error.kind(), error.to_string()))?;
        let Fetched { bytes, from_storage } = fetched;
        if !from_storage {
            request = None; // whoever wants it finds it where we did
        }

        let header = probe(bytes, limits).map_err(|error| failure(error.kind(), error.to_string()))?;
        *size = header.size();
        let mut rng = SampleRng::for_draw(*seed, draw, sample);
        pipeline.draw(&header, &mut rng, plan).map_err(|error| failure("transform", error.to_string()))?;
        let seen = Seen { size: header.size(), in_part: header.can_crop() };
        preparation.sizes.note(sample, source.len(), seen);
        record.hints = preparation.hints_of(bytes.len() as u64, seen, plan);
        let mut rng = SampleRng::for_draw(*seed, draw, sample);
        let read = Read { sample, header: &header, fetched };
        let admitted = match cache {
            Some(cache) => copies.admit(cache, &read, &mut rng, (&mut *worker, &mut *plan)),
            None => Admitted::No,
        };
        let seat = match admitted {
            Admitted::Decoded(layout) => {
                if let Some(request) = request.filter(|request| request.form == Form::Encoded) {
                    request.left = Some(Common { form: Form::Encoded, data: bytes.to_vec() });
                }
                return Ok(Rest::After(layout));
            }
            Admitted::Encoded(seat) => Some(seat),
            Admitted::No => None,
        };
        if let (None, Some(request)) = (&seat, request) {
            let mut rng = SampleRng::for_draw(*seed, draw, sample);
            if let Some(layout) = copies.leave(&read, request, &mut rng, (&mut *worker, &mut *plan)) {
                return Ok(Rest::After(layout));
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
